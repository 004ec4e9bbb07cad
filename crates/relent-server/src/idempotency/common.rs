//! The state that all services of one layer share.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::execution::Running;
use crate::fair_shares::Shares;

/// The executions of one layer, and their shared limits.
pub(crate) struct Common {
    pub(crate) running: Running,
    /// Executions that may run concurrently.
    pub(super) executions: Shares,
    /// Duplicates that may wait.
    pub(crate) waiters: Shares,
    /// Bytes of requests in memory.
    pub(super) buffered: Shares,
    /// Claims that may wait to be given back.
    pub(super) abandoned: Semaphore,
    /// Claims that may be given back concurrently.
    pub(super) give_backs: Semaphore,
    /// Handlers that may continue after their outcome is unknown.
    pub(super) run_on: Arc<Semaphore>,
}
