//! The refund of rate limit quota for a request that never starts.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Whether a request has started, in the extensions of a request that a rate limit has admitted. All layers of the
/// request share it.
///
/// By default a request counts as started when the service inside gets it. A layer that may reject it first calls
/// [`waits`](Self::waits), and then [`begins`](Self::begins). A request that is dropped in between has not started.
#[derive(Clone, Debug, Default)]
pub(crate) struct QuotaRefund(Arc<AtomicU8>);

/// The request is in the rate limiter, or in a layer that may reject it.
const MAY_BE_REJECTED: u8 = 0;
const IN_SERVICE: u8 = 1;
const STARTED: u8 = 2;

impl QuotaRefund {
    /// The service inside gets the request.
    pub(crate) fn hand_on(&self) {
        self.change(MAY_BE_REJECTED, IN_SERVICE);
    }

    /// The request is in a layer that may reject it.
    pub(crate) fn waits(&self) {
        self.change(IN_SERVICE, MAY_BE_REJECTED);
    }

    /// Waits for something without which the request does not start. If that fails, or the request is dropped
    /// meanwhile, it has not started.
    pub(crate) async fn during<T, E>(
        quota_refund: Option<Self>,
        wait: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let swap = |Self(state): &Self, to| state.swap(to, Ordering::Relaxed);
        let before = quota_refund
            .as_ref()
            .map(|quota_refund| swap(quota_refund, MAY_BE_REJECTED));
        let waited = wait.await?;
        if let (Some(quota_refund), Some(before)) = (&quota_refund, before) {
            swap(quota_refund, before);
        }
        Ok(waited)
    }

    /// The request has started.
    pub(crate) fn begins(&self) {
        self.0.store(STARTED, Ordering::Relaxed);
    }

    /// The request is rejected after all, and nothing of it has run.
    pub(crate) fn reject(&self) {
        self.0.store(MAY_BE_REJECTED, Ordering::Relaxed);
    }

    /// Returns whether the request was rejected or dropped before it started, so that its quota is refunded.
    pub(crate) fn is_refundable(&self) -> bool {
        self.0.load(Ordering::Relaxed) == MAY_BE_REJECTED
    }

    fn change(&self, from: u8, to: u8) {
        let relaxed = Ordering::Relaxed;
        // A started request stays started.
        let _ = self.0.compare_exchange(from, to, relaxed, relaxed);
    }
}
