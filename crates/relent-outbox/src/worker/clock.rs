//! Conversion to the clock of circuit breakers, rate limits and retry sessions.

use tokio::time::Instant;

/// A clock of the core that starts with the worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct CoreClock {
    origin: Instant,
}

impl CoreClock {
    pub(super) const fn new(origin: Instant) -> Self {
        Self { origin }
    }

    pub(super) fn at(self, now: Instant) -> relent_core::Instant {
        let since = now.saturating_duration_since(self.origin);
        relent_core::Instant::ORIGIN.saturating_add(since)
    }
}
