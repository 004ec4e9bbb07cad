//! What a rate limit has taken for a request that may never be begun.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// In the extensions of a request that a rate limit has let in: whether it is begun. All layers of one request share it.
///
/// A service that knows nothing of it begins what it gets. A layer that may turn a request away says that it
/// [waits](Self::waits), and that it is [begun](Self::begins) when it is. So also what is dropped in between was not begun.
#[derive(Clone, Debug, Default)]
pub(crate) struct Loan(Arc<AtomicU8>);

/// With the rate limit, or with a layer that may turn it away.
const WAITS: u8 = 0;
const HANDED_ON: u8 = 1;
const BEGUN: u8 = 2;

impl Loan {
    /// The service inside gets the request.
    pub(crate) fn hand_on(&self) {
        self.change(WAITS, HANDED_ON);
    }

    /// A layer has the request that may turn it away.
    pub(crate) fn waits(&self) {
        self.change(HANDED_ON, WAITS);
    }

    /// It is begun, whatever becomes of it.
    pub(crate) fn begins(&self) {
        self.0.store(BEGUN, Ordering::Relaxed);
    }

    /// Whether it was turned away or dropped before anybody began it, so that it owes nothing.
    pub(crate) fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed) == WAITS
    }

    fn change(&self, from: u8, to: u8) {
        let relaxed = Ordering::Relaxed;
        // Who has begun stays so.
        let _ = self.0.compare_exchange(from, to, relaxed, relaxed);
    }
}
