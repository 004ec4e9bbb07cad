//! The refund of rate limit quota for a request that never starts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Whether a request has started, in the extensions of a request that a rate limit has admitted. All layers of the
/// request share it.
///
/// By default a request counts as started when the service inside gets it. A layer that may reject it first calls
/// [`waits`](Self::waits), and then [`begins`](Self::begins). A request that is dropped in between has not started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Loan(Arc<AtomicU8>);

/// The request is in the rate limiter, or in a layer that may reject it.
const WAITS: u8 = 0;
const HANDED_ON: u8 = 1;
const BEGUN: u8 = 2;

impl Loan {
    /// The service inside gets the request.
    pub(crate) fn hand_on(&self) {
        self.change(WAITS, HANDED_ON);
    }

    /// The request is in a layer that may reject it.
    pub(crate) fn waits(&self) {
        self.change(HANDED_ON, WAITS);
    }

    /// The request has started.
    pub(crate) fn begins(&self) {
        self.0.store(BEGUN, Ordering::Relaxed);
    }

    /// Returns whether the request was rejected or dropped before it started, so that its quota is refunded.
    pub(crate) fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed) == WAITS
    }

    fn change(&self, from: u8, to: u8) {
        let relaxed = Ordering::Relaxed;
        // A started request stays started.
        let _ = self.0.compare_exchange(from, to, relaxed, relaxed);
    }
}
