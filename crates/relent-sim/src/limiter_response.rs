//! The Retry-After of a rejection by the service's limiter.

use std::time::Duration;

use relent_core::admission::{LimiterConfig, Refusal};

use crate::random_stream::rounded;
use crate::scenario::{SECOND, ServiceLimiter as Config, ServiceRetryAfter};

/// The Retry-After of a rejection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RetryAfterHint {
    Nothing,
    /// In nanoseconds.
    Shared(u64),
    /// In a header in whole milliseconds.
    Ticket(u64),
}

impl RetryAfterHint {
    pub(crate) fn of(says: ServiceRetryAfter, refusal: Refusal) -> Self {
        match (says, refusal) {
            (ServiceRetryAfter::Nothing, _) => Self::Nothing,
            (ServiceRetryAfter::Shared(delay), _) => Self::Shared(delay),
            (ServiceRetryAfter::Slots, Refusal::Ticket(_)) => Self::Ticket(refusal.whole_millis()),
            // A day and more, at the lowest rates, saturates like any time.
            (ServiceRetryAfter::Slots, Refusal::Shared(delay)) => {
                Self::Shared(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX))
            }
        }
    }
}

impl From<&Config> for LimiterConfig {
    fn from(config: &Config) -> Self {
        let interval = rounded(SECOND as f64 / config.rate);
        // Without reserved slots, a rejected caller takes none out of the schedule.
        let horizon = match config.retry_after {
            ServiceRetryAfter::Slots => config.horizon,
            ServiceRetryAfter::Nothing | ServiceRetryAfter::Shared(_) => 0,
        };
        Self {
            burst: config.burst,
            horizon: Duration::from_nanos(horizon),
            grace: Duration::from_nanos(config.grace),
            ..Self::new(1, Duration::from_nanos(interval))
        }
    }
}

#[cfg(test)]
mod tests {
    use relent_core::Instant;
    use relent_core::admission::{Limiter, Verdict};

    use super::*;
    use crate::scenario::WaitFormat;

    /// `None` for each admitted attempt, otherwise its Retry-After in nanoseconds.
    fn judged(
        says: ServiceRetryAfter,
        attempts: impl Iterator<Item = (u64, u64)>,
    ) -> Vec<Option<RetryAfterHint>> {
        let config = Config {
            rate: 100.0,
            burst: 10,
            retry_after: says,
            format: WaitFormat::default(),
            horizon: 2 * SECOND,
            grace: SECOND,
        };
        let mut limiter = Limiter::new(&(&config).into()).unwrap();
        let judge = |(now, key)| match limiter.admit(Instant::from_nanos(now), Some(key), 1) {
            Verdict::Refused(refusal) => Some(RetryAfterHint::of(says, refusal)),
            Verdict::Admitted { .. } | Verdict::Impossible => None,
        };
        attempts.map(judge).collect()
    }

    #[test]
    fn limiter_slots_are_reserved_in_whole_milliseconds_up_to_the_horizon() {
        let attempts = (0..1000).map(|key| (500, key));
        let judged = judged(ServiceRetryAfter::Slots, attempts.chain([(10_000_500, 10)]));
        assert_eq!(judged[..10], [None; 10]);
        assert_eq!(judged[10], Some(RetryAfterHint::Ticket(10)));
        assert_eq!(judged[209], Some(RetryAfterHint::Ticket(2000)));
        assert_eq!(
            judged[210..1000],
            [Some(RetryAfterHint::Shared(2_010_000_000)); 790]
        );
        assert_eq!(judged[1000], None, "in its slot");
    }

    #[test]
    fn a_limiter_without_slots_keeps_its_rate_by_rejecting() {
        for (says, hinted) in [
            (ServiceRetryAfter::Shared(7), RetryAfterHint::Shared(7)),
            (ServiceRetryAfter::Nothing, RetryAfterHint::Nothing),
        ] {
            let judged = judged(says, (0..10_000).map(|millis| (millis * 1_000_000, millis)));
            let refused = judged.iter().flatten();
            assert!(refused.clone().all(|said| *said == hinted));
            assert_eq!(refused.count(), 10_000 - 10 - 999);
        }
    }
}
