//! A model of a limiter: the generic cell rate algorithm, with slots that can be reserved.

use crate::scenario::{Limiter as Config, RetryAfter, SECOND};
use crate::stream::rounded;

/// How a limiter judges an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Admitted,
    /// Refused, with what is said about time in nanoseconds.
    Refused(Hinted),
}

/// What a refusal says about time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hinted {
    Nothing,
    Shared(u64),
    Ticket(u64),
}

/// No slot is reserved.
pub(crate) const NO_SLOT: u64 = 0;

#[derive(Debug)]
pub(crate) struct Limiter {
    /// Between two attempts, in nanoseconds.
    interval: u64,
    /// How far the schedule may run ahead of time: the burst.
    tolerance: u64,
    /// The instant at which the schedule is used up to.
    scheduled: u64,
    says: RetryAfter,
}

impl Limiter {
    pub(crate) fn new(config: &Config) -> Self {
        let interval = rounded(SECOND as f64 / config.rate).max(1);
        Self {
            interval,
            tolerance: interval.saturating_mul(u64::from(config.burst) - 1),
            scheduled: 0,
            says: config.retry_after,
        }
    }

    /// Judges an attempt at `now` by a caller whose reserved slot is `slot`, or [`NO_SLOT`].
    pub(crate) fn judge(&mut self, now: u64, slot: &mut u64) -> Verdict {
        if *slot != NO_SLOT {
            // Its place in the schedule is taken already.
            if now < *slot {
                return Verdict::Refused(Hinted::Ticket(*slot - now));
            }
            *slot = NO_SLOT;
            return Verdict::Admitted;
        }
        let next = self.scheduled.saturating_sub(self.tolerance);
        if next <= now {
            self.scheduled = self.scheduled.max(now).saturating_add(self.interval);
            return Verdict::Admitted;
        }
        Verdict::Refused(match self.says {
            RetryAfter::Nothing => Hinted::Nothing,
            RetryAfter::Shared(delay) => Hinted::Shared(delay),
            RetryAfter::Slots => {
                self.scheduled = self.scheduled.saturating_add(self.interval);
                *slot = next;
                Hinted::Ticket(next - now)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(retry_after: RetryAfter) -> Limiter {
        Limiter::new(&Config {
            rate: 100.0,
            burst: 10,
            retry_after,
        })
    }

    #[test]
    fn a_burst_is_admitted_and_every_other_caller_gets_the_next_slot() {
        let mut limiter = limiter(RetryAfter::Slots);
        let mut slots = vec![NO_SLOT; 1000];
        let admitted = slots
            .iter_mut()
            .filter_map(|slot| (limiter.judge(0, slot) == Verdict::Admitted).then_some(()))
            .count();
        assert_eq!(admitted, 10);
        assert_eq!(slots[10], SECOND / 100);
        assert_eq!(slots[999], 9_900_000_000, "9.9 s for 1000, as reckoned");
        let early = limiter.judge(slots[999] - 5, &mut slots[999]);
        assert_eq!(early, Verdict::Refused(Hinted::Ticket(5)));
        let late = limiter.judge(slots[999] + 5, &mut slots[999]);
        assert_eq!((late, slots[999]), (Verdict::Admitted, NO_SLOT));
    }

    #[test]
    fn without_slots_the_rate_is_kept_by_refusing() {
        let mut limiter = limiter(RetryAfter::Shared(7));
        let mut slot = NO_SLOT;
        let mut admitted = 0;
        for millis in 0..10_000 {
            match limiter.judge(millis * 1_000_000, &mut slot) {
                Verdict::Admitted => admitted += 1,
                Verdict::Refused(says) => assert_eq!(says, Hinted::Shared(7)),
            }
        }
        assert_eq!((admitted, slot), (10 + 999, NO_SLOT));
    }
}
