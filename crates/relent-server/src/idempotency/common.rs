//! What all services of one layer share.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::execution::Running;
use crate::shares::Shares;

/// The executions of one layer, and what they may hold together.
pub(crate) struct Common {
    pub(crate) running: Running,
    /// Executions that may begin.
    pub(super) executions: Shares,
    /// Duplicates that may wait.
    pub(crate) waiters: Shares,
    /// Bytes of requests in memory.
    pub(super) buffered: Shares,
    /// Claims that may be given back.
    pub(super) abandoned: Semaphore,
    /// And so many of them concurrently.
    pub(super) give_backs: Semaphore,
    /// Handlers that may run on when their outcome is unknown.
    pub(super) run_on: Arc<Semaphore>,
}
