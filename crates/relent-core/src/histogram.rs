//! The distribution of attempts per request.

use core::time::Duration;

use crate::time::Instant;
use crate::window::Window;

/// The number of buckets of a [`Histogram`]: 1 to 7 attempts, and 8 or more.
pub const BUCKETS: usize = 8;

/// A histogram of attempts per request over the recent past. A client keeps it and sends it to the
/// server, which uses it to determine whether retries are significant.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Histogram, Instant};
///
/// let mut histogram = Histogram::new(Duration::from_secs(120));
/// let now = Instant::ORIGIN;
/// for attempts in [1, 1, 1, 3] {
///     histogram.record(now, attempts);
/// }
/// assert_eq!(histogram.counts(now), [3, 0, 1, 0, 0, 0, 0, 0]);
/// assert_eq!(histogram.retry_share(now), 0.25);
/// ```
#[derive(Clone, Debug)]
pub struct Histogram {
    window: Window<BUCKETS>,
}

impl Histogram {
    /// An empty histogram over a window of this length.
    #[must_use]
    pub const fn new(window: Duration) -> Self {
        Self {
            window: Window::new(window),
        }
    }

    /// Records a logical request that ended after this many attempts; 0 counts as 1.
    pub fn record(&mut self, now: Instant, attempts: u32) {
        self.window
            .add(now, (attempts.max(1) as usize - 1).min(BUCKETS - 1));
    }

    /// The numbers of requests in the window that took 1, 2, …, 7, and 8 or more attempts.
    pub fn counts(&mut self, now: Instant) -> [u32; BUCKETS] {
        self.window.totals(now)
    }

    /// The share of requests in the window that took more than one attempt; 0 if there were none.
    pub fn retry_share(&mut self, now: Instant) -> f64 {
        share_of_retries(&self.counts(now))
    }
}

/// The share of these counts that took more than one attempt; 0 if there are none.
pub(crate) fn share_of_retries(counts: &[u32; BUCKETS]) -> f64 {
    let all: u64 = counts.iter().map(|count| u64::from(*count)).sum();
    let first = u64::from(counts[0]);
    if all == 0 {
        0.0
    } else {
        (all - first) as f64 / all as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_of_attempts_has_a_bucket() {
        let mut histogram = Histogram::new(Duration::from_secs(60));
        for attempts in [0, 1, 7, 8, 9, u32::MAX] {
            histogram.record(Instant::ORIGIN, attempts);
        }
        assert_eq!(histogram.counts(Instant::ORIGIN), [2, 0, 0, 0, 0, 0, 1, 3]);
        let later = Instant::ORIGIN.saturating_add(Duration::from_secs(61));
        assert_eq!(histogram.retry_share(later), 0.0);
    }
}
