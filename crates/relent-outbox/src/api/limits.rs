//! Limits of requests.

use std::time::Duration;

/// The most that a request may have in its body: 16 MiB.
pub const MAX_BODY: usize = 16 << 20;
/// The most messages that one request enqueues.
pub const MAX_BATCH: usize = 1000;
/// The same of a form of the page.
pub(super) const MAX_FORM: usize = 64 << 10;
/// How long the header of a request may take, or a connection be kept without one; and then the rest, with the reading of
/// its body.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
