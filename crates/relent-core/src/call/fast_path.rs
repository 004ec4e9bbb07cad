//! Fast path of simple policies, which most are.

use core::time::Duration;

use crate::policy::backoff::{Backoff, double};
use crate::policy::ceiling::Ceiling;
use crate::policy::jitter::Jitter;
use crate::random::{Random, up_to};
use crate::time::nanos;

/// Compact form of a policy in which only count, backoff, cap and jitter apply, in their common forms.
/// It is computed when the policy is built, and small enough to be inlined into a driver's loop. It
/// decides exactly as the policy does.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct FastPath {
    /// The maximum number of retries; `u32::MAX` for no limit.
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
    /// The compact form, if these settings have one. `retries` is the maximum, `None` for no limit.
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

    /// Whether another retry is allowed after so many.
    #[inline]
    pub(crate) const fn allows_after(&self, retries: u32) -> bool {
        retries < self.retries
    }

    /// The longest possible [`wait`](Self::wait) at this step, in nanoseconds.
    #[inline]
    pub(crate) fn longest(&self, step: u32) -> u64 {
        let backoff = if self.doubles {
            double(self.initial, step)
        } else {
            self.initial
        };
        backoff.min(self.ceiling)
    }

    /// The delay after `step` retries since the backoff began, in nanoseconds.
    #[inline]
    pub(crate) fn wait(&self, step: u32, random: &mut (impl Random + ?Sized)) -> u64 {
        let backoff = self.longest(step);
        if self.full {
            up_to(backoff, random)
        } else {
            backoff
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::session::Session;
    use crate::destination::budget::{BreakerSignal, Budget, BudgetConfig};
    use crate::failure::{Cause, Failure, FailureKind, Hop, Network, Scope};
    use crate::hint::Hint;
    use crate::policy::pattern::Pattern;
    use crate::policy::{Policy, Rule};
    use crate::random::FixedRandom;
    use crate::time::Instant;
    use alloc::format;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn common_policy() -> impl Strategy<Value = Policy> {
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

    /// A pattern list that matches nothing has no effect, but disables the fast path.
    fn without_fast_path(policy: &Policy) -> Policy {
        let builder = policy.clone().into_builder();
        let long = builder.stop_on([Pattern::Signal]).build().unwrap();
        assert!(policy.fast_path.is_some() && long.fast_path.is_none());
        long
    }

    fn failures() -> impl Strategy<Value = Vec<Failure>> {
        let kind = prop::sample::select(alloc::vec![
            FailureKind::NotProcessed,
            FailureKind::Ambiguous,
            FailureKind::Ambiguous,
            FailureKind::Throttled,
            FailureKind::Permanent,
            FailureKind::Overloaded,
        ]);
        let cause = prop::sample::select(alloc::vec![
            Cause::Error,
            Cause::Status(503),
            Cause::Status(425),
            Cause::Timeout,
            Cause::Pending,
            Cause::Conflict,
            Cause::Network(Network::GoAway),
        ]);
        let hint = prop::sample::select(alloc::vec![
            Hint::NONE,
            Hint::NONE,
            Hint::do_retry(),
            Hint::do_not_retry(),
            Hint::after(Duration::from_secs(1)),
        ]);
        let rest = (any::<bool>(), any::<bool>());
        let failure =
            (kind, cause, hint, rest).prop_map(|(kind, cause, hint, (hops, of_request))| {
                let hop = if hops { Hop::Here } else { Hop::None };
                let scope = match of_request {
                    true => Scope::Request,
                    false => Scope::Destination,
                };
                let failure = Failure::new(kind).cause(cause).hint(hint);
                failure.hop(hop).scope(scope)
            });
        prop::collection::vec(failure, 1..9)
    }

    proptest! {
        #[test]
        fn the_fast_path_uses_the_budget_as_the_full_path_does(
            policy in common_policy(),
            failures in failures(),
            (reserve, per_second, charge_failures, waived) in
                (0..4000u32, 0..2000u32, any::<bool>(), any::<bool>()),
            repeatable: bool,
        ) {
            let config = BudgetConfig {
                initial_tokens: f64::from(reserve) / 1000.0,
                per_second: f64::from(per_second) / 1000.0,
                charge_failures,
                ..BudgetConfig::DEFAULT
            };
            let went = |policy: &Policy| {
                let budget = Budget::new(&config).unwrap();
                budget.on_signal(&BreakerSignal { retries_free: waived, ..BreakerSignal::default() });
                let mut session = Session::new(Instant::ORIGIN, repeatable);
                let mut now = 0;
                let decisions: Vec<_> = failures
                    .iter()
                    .map(|failure| {
                        session.on_attempt();
                        now += 700_000_000;
                        let now = Instant::from_nanos(now);
                        let mut random = FixedRandom::at(0.5);
                        session.on_failure(policy, now, failure, &mut random, Some(&budget))
                    })
                    .collect();
                (decisions, budget.balance(), format!("{session:?}"))
            };
            prop_assert_eq!(went(&policy), went(&without_fast_path(&policy)));
        }

        #[test]
        fn the_fast_path_delays_as_the_full_path_does(policy in common_policy(), point in 0.0..=1.0f64) {
            let long = without_fast_path(&policy);
            let waits = |policy: &Policy| policy.waits(FixedRandom::at(point)).collect::<Vec<_>>();
            prop_assert_eq!(waits(&policy), waits(&long));
        }
    }

    #[test]
    fn any_other_setting_disables_the_fast_path() {
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
