//! Limits of requests.

use std::time::Duration;

/// The largest body of a request: 16 MiB.
pub const MAX_BODY: usize = 16 << 20;
/// The largest number of messages in one request.
pub const MAX_BATCH: usize = 1000;
/// The largest body of a form of the page: 64 KiB.
pub(super) const MAX_FORM: usize = 64 << 10;
/// The time limit for the header of a request, and of an idle connection; and then for the body and the response.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
