//! The short form of a policy that is simple, as most are.

use core::time::Duration;

use crate::backoff::{Backoff, double};
use crate::ceiling::Ceiling;
use crate::jitter::Jitter;
use crate::random::{Random, up_to};
use crate::time::nanos;

/// What a policy comes to if only count, backoff, ceiling and jitter have a say, and those in
/// their usual forms: worked out when the policy is built, and small enough that a decision by it
/// goes into a driver's own loop. It answers exactly as the policy does.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct FastPath {
    /// The most retries; `u32::MAX` for no limit.
    retries: u32,
    /// Whether the backoff doubles; it is constant otherwise.
    doubles: bool,
    /// Whether the jitter is full; there is none otherwise.
    full: bool,
    /// Nanoseconds before the first retry.
    initial: u64,
    ceiling: u64,
}

impl FastPath {
    /// The short form, if these have one. `retries` is the most, `None` for no limit.
    pub(crate) const fn of(
        retries: Option<u32>,
        backoff: &Backoff,
        max_delay: Option<Duration>,
        ceiling: Ceiling,
        jitter: Jitter,
    ) -> Option<Self> {
        let (initial, doubles) = match backoff {
            Backoff::None => (0, false),
            Backoff::Constant { delay } => (nanos(*delay), false),
            Backoff::Exponential { initial, factor } if *factor == 2.0 => (nanos(*initial), true),
            _ => return None,
        };
        let full = match (jitter, ceiling) {
            (Jitter::None, _) => false,
            (Jitter::Full, Ceiling::BeforeJitter) => true,
            _ => return None,
        };
        Some(Self {
            retries: match retries {
                Some(most) => most,
                None => u32::MAX,
            },
            doubles,
            full,
            initial,
            ceiling: match max_delay {
                Some(ceiling) => nanos(ceiling),
                None => u64::MAX,
            },
        })
    }

    /// The wait after `retries` retries in all and `step` since the backoff began, in nanoseconds;
    /// `None` if the retries are used up.
    #[inline]
    pub(crate) fn wait(
        &self,
        retries: u32,
        step: u32,
        random: &mut (impl Random + ?Sized),
    ) -> Option<u64> {
        if retries >= self.retries {
            return None;
        }
        let backoff = if self.doubles {
            double(self.initial, step)
        } else {
            self.initial
        };
        let backoff = backoff.min(self.ceiling);
        Some(if self.full {
            up_to(backoff, random)
        } else {
            backoff
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Pattern;
    use crate::policy::{Policy, Rule};
    use crate::random::Draw;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn usual() -> impl Strategy<Value = Policy> {
        let backoff = (0..3u8, 0..1u64 << 40).prop_map(|(kind, nanos)| {
            let delay = Duration::from_nanos(nanos);
            match kind {
                0 => Backoff::None,
                1 => Backoff::constant(delay),
                _ => Backoff::exponential(delay),
            }
        });
        let ceiling = proptest::option::of(1u64 << 40..1 << 62);
        (backoff, any::<bool>(), ceiling, 0..90u32).prop_map(|(backoff, full, ceiling, retries)| {
            let jitter = if full { Jitter::Full } else { Jitter::None };
            let builder = Policy::builder(backoff).jitter(jitter).max_retries(retries);
            let builder = match ceiling {
                Some(ceiling) => builder.max_delay(Duration::from_nanos(ceiling)),
                None => builder.unlimited_delay(),
            };
            builder.build().unwrap()
        })
    }

    proptest! {
        #[test]
        fn the_short_form_waits_as_the_policy_does(policy in usual(), point in 0.0..=1.0f64) {
            prop_assert!(policy.fast_path.is_some());
            // A list that matches nothing has no say, but takes away the short form.
            let long = policy.clone().into_builder().stop_on([Pattern::Signal]).build().unwrap();
            prop_assert!(long.fast_path.is_none());
            let waits = |policy: &Policy| policy.waits(Draw::at(point)).collect::<Vec<_>>();
            prop_assert_eq!(waits(&policy), waits(&long));
        }
    }

    #[test]
    fn whatever_else_has_a_say_takes_away_the_short_form() {
        let base = || Policy::builder(Backoff::exponential(Duration::from_secs(1)));
        assert!(base().build().unwrap().fast_path.is_some());
        for builder in [
            base().deadline(Duration::from_secs(9)),
            base().max_elapsed(Duration::from_secs(9)),
            base().throttled_initial(Duration::from_secs(2)),
            base().retry_on([Pattern::Any]),
            base().not_processed([Pattern::Any]),
            base().rule(Rule::on([Pattern::Any])),
            base().ceiling(Ceiling::AfterJitter),
            base().jitter(Jitter::Equal),
        ] {
            assert!(builder.build().unwrap().fast_path.is_none());
        }
    }
}
