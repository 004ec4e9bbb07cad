//! The return of a backlog after an outage.

use core::time::Duration;

/// ln 100: the 99th percentile of an exponential distribution, in multiples of its mean.
const LN_100: f64 = 4.605_170_185_988_091;

/// A backlog that returns to a service beside its first attempts.
///
/// # Theory
/// A backlog of B released evenly over W seconds, beside first attempts at rate λ, is an arrival
/// rate of λ + B/W. With capacity C the time in an M/M/1 queue is exponential with the mean 1/(C −
/// λ − B/W), so the 99th percentile is ln 100 ≈ 4.6 times that. It stays below w₉₉ from
///
/// W* = B / (C − λ − 4.6/w₉₉)
///
/// on. After a blackout of D seconds at the load ρ = λ/C the backlog is λD, and W* is slightly
/// above ρD/(1 − ρ), the time that the spare capacity needs for it. A shorter release causes a
/// second outage; a longer one only costs time.
///
/// ```
/// use core::time::Duration;
/// use relent_core::destination::Backlog;
///
/// // A minute of 800 per second failed, at a service with a capacity of 1000.
/// let backlog = Backlog {
///     size: 48_000,
///     capacity: 1000.0,
///     first_attempt_rate: 800.0,
///     p99: Duration::from_millis(250),
/// };
/// assert_eq!(backlog.release_time().map(|over| over.as_secs()), Some(264));
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Backlog {
    /// The number of returning requests: B.
    pub size: u64,
    /// The capacity of the service in requests per second: C.
    pub capacity: f64,
    /// First attempts per second: λ.
    pub first_attempt_rate: f64,
    /// The allowed 99th percentile of the latency of all requests meanwhile: w₉₉.
    pub p99: Duration,
}

impl Backlog {
    /// The rate at which the service can take the backlog, in requests per second: the rate of a
    /// [`Limiter`](crate::admission::Limiter) that gives them their slots. `None` if the first attempts alone
    /// exceed the percentile, or if a value is not finite.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        let rate = self.capacity - self.first_attempt_rate - LN_100 / self.p99.as_secs_f64();
        (rate > 0.0 && rate.is_finite()).then_some(rate)
    }

    /// The time over which to release the backlog: W*. `None` as for [`rate`](Self::rate);
    /// saturates.
    #[must_use]
    pub fn release_time(&self) -> Option<Duration> {
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
        first_attempt_rate: 800.0,
        p99: Duration::from_millis(253),
    };

    #[test]
    fn a_blackout_backlog_takes_a_tenth_longer_than_spare_capacity_needs() {
        // ρD/(1 − ρ) = 240 s.
        let release_time = BLACKOUT.release_time().unwrap().as_secs_f64();
        assert!((release_time / 240.0 - 1.1).abs() < 0.001, "{release_time}");
    }

    #[test]
    fn a_backlog_beyond_the_capacity_has_no_release_time() {
        for backlog in [
            Backlog {
                first_attempt_rate: 1000.0,
                ..BLACKOUT
            },
            // The first attempts alone have a 99th percentile of 23 ms.
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
            assert_eq!((backlog.rate(), backlog.release_time()), (None, None));
        }
        let slow = Backlog {
            size: u64::MAX,
            capacity: 800.1,
            p99: Duration::MAX,
            ..BLACKOUT
        };
        assert_eq!(
            slow.release_time().map(|over| over.as_secs() > 1 << 60),
            Some(true)
        );
    }

    proptest! {
        #[test]
        fn a_released_backlog_keeps_the_promised_percentile(
            size in 1..1_000_000_u64, capacity in 1.0..1e5, load in 0.0..0.99, millis in 1..10_000_u64
        ) {
            let first_attempt_rate = capacity * load;
            let p99 = Duration::from_millis(millis);
            let backlog = Backlog { size, capacity, first_attempt_rate, p99 };
            if let Some(over) = backlog.release_time() {
                let over = over.as_secs_f64();
                let together = first_attempt_rate + size as f64 / over;
                let time = LN_100 / (capacity - together);
                // The time is in whole nanoseconds, which corresponds to this error of the rate.
                let rounding = size as f64 / (over * over) * 1e-9 / (capacity - together);
                let error = (time / p99.as_secs_f64() - 1.0).abs();
                prop_assert!(error < 1e-3 + 2.0 * rounding, "{time}");
            }
        }
    }
}
