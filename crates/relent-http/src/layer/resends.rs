//! Requests that a service sends again by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Request extension: counts the requests that the service sends again by itself as attempts of the call.
///
/// A pool of connections sends a request again if its connection was closed before it took the request. A service
/// that does so [counts](Self::try_count) each of them before it sends, so that one counter holds all attempts. The
/// layer inserts it with [`RetryLayer::counts_resends`](super::RetryLayer::counts_resends).
///
/// Such a request is not paid from the retry budget, so the service must know that it was not processed before.
///
/// ```
/// use relent_http::layer::Resends;
///
/// /// Whether a pool may send this request again.
/// fn may_send_again<B>(request: &http::Request<B>) -> bool {
///     let resends: Option<&Resends> = request.extensions().get();
///     resends.is_none_or(Resends::try_count)
/// }
/// # assert!(may_send_again(&http::Request::new(())));
/// ```
#[derive(Clone, Debug)]
pub struct Resends(Arc<Retries>);

/// The retries of a call: those of the layer and those of the service.
#[derive(Debug)]
struct Retries {
    // A counter only: it orders nothing.
    count: AtomicU32,
    max: u32,
}

impl Resends {
    /// A call whose policy allows so many retries; `None` for no limit.
    pub(super) fn new(max_retries: Option<u32>) -> Self {
        Self(Arc::new(Retries {
            count: AtomicU32::new(0),
            max: max_retries.unwrap_or(u32::MAX),
        }))
    }

    /// Counts one more attempt of the call. `false` if the policy allows no more: the service must return the
    /// error of its last one.
    #[must_use]
    pub fn try_count(&self) -> bool {
        let Retries { count, max } = &*self.0;
        let next = |retries| (retries < *max).then_some(retries + 1);
        count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .is_ok()
    }

    /// Counts a retry of the layer. Returns the number of the attempt.
    pub(super) fn begin_retry(&self) -> u32 {
        self.0.count.fetch_add(1, Ordering::Relaxed);
        self.attempts()
    }

    /// The attempts so far, with the first.
    pub(super) fn attempts(&self) -> u32 {
        let retries = self.0.count.load(Ordering::Relaxed);
        retries.saturating_add(1)
    }

    /// Whether the policy allows no more attempts.
    pub(super) fn is_exhausted(&self) -> bool {
        self.0.count.load(Ordering::Relaxed) >= self.0.max
    }
}
