//! The settings of a webhook layer.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::request::Parts;

use super::sender::Sender;

type ReadHead<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) sender: ReadHead<Option<Sender>>,
    pub(super) operation: ReadHead<String>,
    pub(super) clock: Arc<dyn Fn() -> SystemTime + Send + Sync>,
    pub(super) max_body: usize,
    pub(super) read_timeout: Duration,
    /// The least retention of a record: the [window](relent_http::webhook::Verifier::replay_window) of a fixed
    /// sender.
    pub(super) least_keep: Duration,
    /// Whether each sender has its own share of the limits.
    pub(super) shares: bool,
}
