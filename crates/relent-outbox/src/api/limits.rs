//! Limits of requests.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

/// The largest body of a request: 16 MiB.
pub const MAX_BODY: usize = 16 << 20;
/// The memory for the bodies of concurrent requests, without the short ones: 64 MiB.
const BODY_MEMORY: usize = 64 << 20;
/// A body up to this length is short, and counts as nothing.
const SHORT_BODY: u64 = 8 << 10;
/// The largest number of messages in one request.
pub const MAX_BATCH: usize = 1000;
/// The largest policy of an endpoint, in bytes: 64 KiB. Lists of endpoints have all of their policies.
pub(super) const MAX_POLICY: usize = 64 << 10;
/// The largest body of a form of the page: 64 KiB.
pub(super) const MAX_FORM: usize = 64 << 10;
/// The time limit for the header of a request, and of an idle connection; and then for the body and the response.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Limits the bytes of the request bodies that all handlers hold. Further requests wait before their body is read.
#[derive(Debug)]
pub(super) struct RequestBodies(Semaphore);

impl Default for RequestBodies {
    fn default() -> Self {
        Self(Semaphore::new(BODY_MEMORY))
    }
}

impl RequestBodies {
    /// Waits for the memory of a body with this length. One of unknown length counts as the longest. The permit is to be
    /// held until the response.
    pub(super) async fn reserve(&self, length: Option<u64>) -> Option<SemaphorePermit<'_>> {
        let most = u32::try_from(MAX_BODY).unwrap_or(u32::MAX);
        let bytes = match length {
            Some(length) if length <= SHORT_BODY => return None,
            Some(length) => u32::try_from(length).map_or(most, |length| length.min(most)),
            None => most,
        };
        // An error means that the semaphore is closed, which it never is.
        self.0.acquire_many(bytes).await.ok()
    }
}
