//! Over how long an outage's backlog comes back.

use core::time::Duration;

/// ln 100: of an exponential time, one in a hundred is longer than this many means.
const LN_100: f64 = 4.605_170_185_988_091;

/// A backlog that returns to a service beside its fresh requests.
///
/// # Theory
/// A backlog of B released evenly over W seconds beside fresh requests at λ is an arrival rate of
/// λ + B/W. With capacity C the time in a queue of the kind M/M/1 is exponential with the mean
/// 1/(C − λ − B/W), so the 99th percentile is ln 100 ≈ 4.6 times that. It stays below w₉₉ from
///
/// W* = B / (C − λ − 4.6/w₉₉)
///
/// on. For a blackout of D seconds under the load ρ = λ/C the backlog is λD, and W* is little more
/// than ρD/(1 − ρ), the time in which the spare capacity can serve it at all. Too short a spread is
/// a second outage; too long only costs time.
///
/// ```
/// use core::time::Duration;
/// use relent_core::Backlog;
///
/// // A minute of 800 per second came to nothing, at a service that does 1000.
/// let backlog = Backlog {
///     size: 48_000,
///     capacity: 1000.0,
///     fresh: 800.0,
///     p99: Duration::from_millis(250),
/// };
/// assert_eq!(backlog.spread().map(|over| over.as_secs()), Some(264));
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Backlog {
    /// Requests that come back: B.
    pub size: u64,
    /// Requests per second that the service can serve: C.
    pub capacity: f64,
    /// Fresh requests per second: λ.
    pub fresh: f64,
    /// What 99 of 100 requests, fresh or not, may take meanwhile: w₉₉.
    pub p99: Duration,
}

impl Backlog {
    /// Requests of the backlog per second that the service can take: the rate of a
    /// [`Limiter`](crate::Limiter) that gives them their slots. `None` if it can take none, since
    /// the fresh requests alone take longer, or an amount is not a number.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        let rate = self.capacity - self.fresh - LN_100 / self.p99.as_secs_f64();
        (rate > 0.0 && rate.is_finite()).then_some(rate)
    }

    /// The time over which to spread it: W*. `None` as for [`rate`](Self::rate); saturates.
    #[must_use]
    pub fn spread(&self) -> Option<Duration> {
        let seconds = self.size as f64 / self.rate()?;
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLACKOUT: Backlog = Backlog {
        size: 48_000,
        capacity: 1000.0,
        fresh: 800.0,
        p99: Duration::from_millis(253),
    };

    #[test]
    fn a_blackout_takes_a_tenth_longer_than_the_spare_capacity_needs() {
        // ρD/(1 − ρ) = 240 s.
        let spread = BLACKOUT.spread().unwrap().as_secs_f64();
        assert!((spread / 240.0 - 1.1).abs() < 0.001, "{spread}");
    }

    #[test]
    fn what_cannot_be_taken_has_no_spread() {
        for backlog in [
            Backlog {
                fresh: 1000.0,
                ..BLACKOUT
            },
            // The fresh requests alone have a 99th percentile of 23 ms.
            Backlog {
                p99: Duration::from_millis(23),
                ..BLACKOUT
            },
            Backlog {
                p99: Duration::ZERO,
                ..BLACKOUT
            },
            Backlog {
                capacity: f64::NAN,
                ..BLACKOUT
            },
            Backlog {
                capacity: f64::INFINITY,
                ..BLACKOUT
            },
        ] {
            assert_eq!((backlog.rate(), backlog.spread()), (None, None));
        }
        let slow = Backlog {
            size: u64::MAX,
            capacity: 800.1,
            p99: Duration::MAX,
            ..BLACKOUT
        };
        assert_eq!(
            slow.spread().map(|over| over.as_secs() > 1 << 60),
            Some(true)
        );
    }

    proptest! {
        #[test]
        fn the_promised_percentile_is_kept(
            size in 1..1_000_000_u64, capacity in 1.0..1e5, load in 0.0..0.99, millis in 1..10_000_u64
        ) {
            let fresh = capacity * load;
            let p99 = Duration::from_millis(millis);
            let backlog = Backlog { size, capacity, fresh, p99 };
            if let Some(over) = backlog.spread() {
                let over = over.as_secs_f64();
                let together = fresh + size as f64 / over;
                let time = LN_100 / (capacity - together);
                // The spread is in whole nanoseconds, which is a rate of this much.
                let rounding = size as f64 / (over * over) * 1e-9 / (capacity - together);
                let error = (time / p99.as_secs_f64() - 1.0).abs();
                prop_assert!(error < 1e-3 + 2.0 * rounding, "{time}");
            }
        }
    }
}
