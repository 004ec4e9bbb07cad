//! What the limiter in front of a service says. It judges as `relent-core`'s own does.

use std::time::Duration;

use relent_core::{Instant, LimiterConfig, Refusal};

use crate::scenario::{Limiter as Config, RetryAfter, SECOND};
use crate::stream::rounded;

/// How an attempt was judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Admitted {
        ticket: bool,
    },
    /// Refused, with what is said about time.
    Refused(Hinted),
}

/// What a refusal says about time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hinted {
    Nothing,
    /// In nanoseconds.
    Shared(u64),
    /// In a header in whole milliseconds.
    Ticket(u64),
}

#[derive(Debug)]
pub(crate) struct Limiter {
    judge: relent_core::Limiter,
    says: RetryAfter,
}

impl Limiter {
    /// `None` for a config that was not checked when the scenario was read.
    pub(crate) fn new(config: &Config) -> Option<Self> {
        let judge = relent_core::Limiter::new(&LimiterConfig::from(config)).ok()?;
        let says = config.retry_after;
        Some(Self { judge, says })
    }

    /// Judges an attempt at `now` by the caller with this key.
    pub(crate) fn judge(&mut self, now: u64, key: Option<u64>) -> Verdict {
        let refusal = match self.judge.judge(Instant::from_nanos(now), key) {
            relent_core::Verdict::Admitted { ticket } => return Verdict::Admitted { ticket },
            relent_core::Verdict::Refused(refusal) => refusal,
        };
        Verdict::Refused(match (self.says, refusal) {
            (RetryAfter::Nothing, _) => Hinted::Nothing,
            (RetryAfter::Shared(delay), _) => Hinted::Shared(delay),
            (RetryAfter::Slots, Refusal::Ticket(_)) => Hinted::Ticket(refusal.whole_millis()),
            // A day and more, at the lowest rates, saturates like any time.
            (RetryAfter::Slots, Refusal::Shared(delay)) => {
                Hinted::Shared(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX))
            }
        })
    }
}

impl From<&Config> for LimiterConfig {
    fn from(config: &Config) -> Self {
        let interval = rounded(SECOND as f64 / config.rate);
        // Who gets no slots of its own takes none out of the schedule.
        let horizon = match config.retry_after {
            RetryAfter::Slots => config.horizon,
            RetryAfter::Nothing | RetryAfter::Shared(_) => 0,
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
    use super::*;
    use crate::scenario::WaitFormat;

    fn limiter(retry_after: RetryAfter) -> Limiter {
        Limiter::new(&Config {
            rate: 100.0,
            burst: 10,
            retry_after,
            format: WaitFormat::default(),
            horizon: 2 * SECOND,
            grace: SECOND,
        })
        .unwrap()
    }

    #[test]
    fn slots_are_tickets_in_whole_milliseconds_up_to_the_horizon() {
        let mut limiter = limiter(RetryAfter::Slots);
        let verdicts: Vec<_> = (0..1000).map(|key| limiter.judge(500, Some(key))).collect();
        let free = Verdict::Admitted { ticket: false };
        assert!(verdicts[..10].iter().all(|verdict| *verdict == free));
        assert_eq!(verdicts[10], Verdict::Refused(Hinted::Ticket(10)));
        assert_eq!(verdicts[209], Verdict::Refused(Hinted::Ticket(2000)));
        let beyond = Verdict::Refused(Hinted::Shared(2_010_000_000));
        assert!(verdicts[210..].iter().all(|verdict| *verdict == beyond));
        let slot = limiter.judge(10_000_500, Some(10));
        assert_eq!(slot, Verdict::Admitted { ticket: true });
    }

    #[test]
    fn without_slots_the_rate_is_kept_by_refusing() {
        for (says, hinted) in [
            (RetryAfter::Shared(7), Hinted::Shared(7)),
            (RetryAfter::Nothing, Hinted::Nothing),
        ] {
            let mut limiter = limiter(says);
            let mut admitted = 0;
            for millis in 0..10_000 {
                match limiter.judge(millis * 1_000_000, Some(millis)) {
                    Verdict::Admitted { ticket } => admitted += u32::from(!ticket),
                    Verdict::Refused(says) => assert_eq!(says, hinted),
                }
            }
            assert_eq!(admitted, 10 + 999);
        }
    }
}
