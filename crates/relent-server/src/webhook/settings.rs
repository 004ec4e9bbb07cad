//! How messages are read, and whose they are.

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
    /// A record is kept for at least so long: the [window](relent_http::webhook::Verifier::replay_window) of a sender that is known.
    pub(super) least_keep: Duration,
    /// Whether senders have shares of their own.
    pub(super) shares: bool,
}
