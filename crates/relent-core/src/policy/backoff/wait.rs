//! Computation of the delay before retry n.

use core::time::Duration;

use super::{Backoff, Phase};
use crate::random::{Random, up_to};
use crate::time::nanos;

/// The position of a session at which it computes the next delay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackoffPosition {
    /// Retries granted so far by this backoff: 0 before the first retry.
    pub(crate) retry: u32,
    /// The previous delay in nanoseconds, for decorrelated; 0 before the first.
    pub(crate) previous: u64,
    /// Nanoseconds since the session began or was last reset.
    pub(crate) elapsed: u64,
    /// The policy's separate first delay for throttled failures, if it has one.
    pub(crate) initial: Option<u64>,
    /// The cap of the delay; `u64::MAX` for none.
    pub(crate) ceiling: u64,
}

impl Backoff {
    /// The first delay and the delay after this many retries, in nanoseconds, if it grows with
    /// their number.
    pub(super) const fn grown(&self, retries: u32) -> Option<(u64, u64)> {
        let (first, factor) = match self {
            Self::Linear { initial, step } => {
                let more = nanos(*step).saturating_mul(retries as u64);
                return Some((nanos(*initial), nanos(*initial).saturating_add(more)));
            }
            Self::Fibonacci { initial } => {
                let first = nanos(*initial);
                return Some((first, first.saturating_mul(fibonacci(retries))));
            }
            Self::Exponential { initial, factor } => (nanos(*initial), *factor),
            _ => return None,
        };
        Some((first, grow(first, factor, retries)))
    }

    /// The delay at this step in nanoseconds, after the cap and before jitter; `None` at the end of
    /// a schedule or a chain.
    pub(crate) fn wait(
        &self,
        step: BackoffPosition,
        random: &mut (impl Random + ?Sized),
    ) -> Option<u64> {
        let initial = |own: &Duration| step.initial.unwrap_or_else(|| nanos(*own));
        let retry = step.retry;
        let wait = match self {
            Self::None => 0,
            Self::Constant { delay } => initial(delay),
            Self::Linear {
                initial: first,
                step: more,
            } => initial(first).saturating_add(nanos(*more).saturating_mul(u64::from(retry))),
            Self::Exponential {
                initial: first,
                factor,
            } => grow(initial(first), *factor, retry),
            Self::Fibonacci { initial: first } => initial(first).saturating_mul(fibonacci(retry)),
            Self::Decorrelated {
                initial: first,
                factor,
            } => {
                let least = initial(first).min(step.ceiling);
                let most = grow(step.previous.max(least), *factor, 1).min(step.ceiling);
                least.saturating_add(up_to(most.saturating_sub(least), random))
            }
            Self::Slotted {
                slot,
                exponent_limit,
            } => {
                let slot = nanos(*slot);
                let exponent = retry.saturating_add(1).min(*exponent_limit).min(62);
                // The cap applies before the draw, so the range ends at the last slot below it.
                let last = ((1_u64 << exponent) - 1).min(step.ceiling / slot.max(1));
                slot.saturating_mul(up_to(last, random))
            }
            Self::Schedule { delays } => nanos(*delays.get(retry as usize)?),
            Self::Elapsed {
                initial: first,
                fraction,
            } => initial(first).max((step.elapsed as f64 * fraction) as u64),
            Self::Chain { phases } => return chain(phases, step, random),
        };
        Some(wait.min(step.ceiling))
    }
}

fn chain(
    phases: &[Phase],
    step: BackoffPosition,
    random: &mut (impl Random + ?Sized),
) -> Option<u64> {
    let mut retry = step.retry;
    for phase in phases {
        match phase.retries {
            Some(retries) if retry >= retries => retry -= retries,
            _ => {
                // A random walk restarts in a later phase; it does not continue from the last
                // phase's delay.
                let previous = if retry == 0 { 0 } else { step.previous };
                return phase.backoff.wait(
                    BackoffPosition {
                        retry,
                        previous,
                        ..step
                    },
                    random,
                );
            }
        }
    }
    None
}

/// `initial · 2^retry`, saturating.
#[inline]
const fn double(initial: u64, retry: u32) -> u64 {
    let doubled = initial.unbounded_shl(retry);
    if doubled.unbounded_shr(retry) == initial {
        doubled
    } else {
        u64::MAX
    }
}

/// `initial · factor^retry`, rounded to the nanosecond and saturating; never below `initial`.
const fn grow(initial: u64, factor: f64, retry: u32) -> u64 {
    if factor == 2.0 {
        return double(initial, retry);
    }
    grow_by(initial, factor, retry)
}

/// Above this value an `f64` has no fractions; above twice this value it cannot hold every integer.
const WHOLE_FLOATS_FROM: f64 = (1_u64 << 52) as f64;

const fn grow_by(initial: u64, factor: f64, retry: u32) -> u64 {
    let mut power = 1.0;
    let mut square = factor;
    let mut rest = retry;
    while rest > 0 {
        if rest & 1 == 1 {
            power *= square;
        }
        square *= square;
        rest >>= 1;
    }
    // 0 · ∞ is NaN, which the cast makes 0: without an initial delay there is no delay.
    let product = initial as f64 * power;
    if product < WHOLE_FLOATS_FROM {
        return (product + 0.5) as u64;
    }
    let grown = product as u64;
    if power == 1.0 || grown < initial {
        initial
    } else {
        grown
    }
}

/// 1, 1, 2, 3, 5, … saturating.
const fn fibonacci(retry: u32) -> u64 {
    let (mut now, mut next) = (1_u64, 1_u64);
    // The sequence exceeds 64 bits after 93 steps.
    let mut left = if retry < 93 { retry } else { 93 };
    while left > 0 {
        (now, next) = (next, now.saturating_add(next));
        left -= 1;
    }
    now
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::FixedRandom;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn step(retry: u32) -> BackoffPosition {
        BackoffPosition {
            retry,
            previous: 0,
            elapsed: 0,
            initial: None,
            ceiling: u64::MAX,
        }
    }

    fn first(backoff: &Backoff, count: u32) -> Vec<Option<u64>> {
        (0..count)
            .map(|retry| backoff.wait(step(retry), &mut FixedRandom::at(0.5)))
            .collect()
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn growth_of_each_kind() {
        let ms = |values: &[u64]| -> Vec<Option<u64>> {
            values.iter().map(|value| Some(value * 1_000_000)).collect()
        };
        assert_eq!(first(&Backoff::None, 3), ms(&[0, 0, 0]));
        assert_eq!(first(&Backoff::constant(7 * MS), 3), ms(&[7, 7, 7]));
        assert_eq!(
            first(&Backoff::linear(10 * MS, 5 * MS), 3),
            ms(&[10, 15, 20])
        );
        assert_eq!(
            first(&Backoff::exponential(100 * MS), 4),
            ms(&[100, 200, 400, 800])
        );
        assert_eq!(
            first(&Backoff::fibonacci(MS), 7),
            ms(&[1, 1, 2, 3, 5, 8, 13])
        );
        let schedule = Backoff::schedule([MS, 5 * MS]);
        assert_eq!(first(&schedule, 2), ms(&[1, 5]));
        assert_eq!(schedule.wait(step(2), &mut FixedRandom::at(0.5)), None);
    }

    /// backon computes in f32 and gives 200.000003 ms, 12.800000191 s.
    #[test]
    fn backon_f32_drift() {
        let waits = first(&Backoff::exponential(100 * MS), 8);
        assert_eq!(waits[7], Some(12_800_000_000));
        let tenths = Backoff::Exponential {
            initial: 100 * MS,
            factor: 1.1,
        };
        assert_eq!(
            tenths.wait(step(2), &mut FixedRandom::at(0.5)),
            Some(121_000_000)
        );
    }

    /// backon's Fibonacci exceeds its cap, and its first delay ignores it.
    #[test]
    fn backon_first_delay_and_fibonacci_ignore_the_cap() {
        for backoff in [Backoff::fibonacci(4 * MS), Backoff::exponential(4 * MS)] {
            for retry in 0..100 {
                let under = BackoffPosition {
                    ceiling: 3_000_000,
                    ..step(retry)
                };
                assert_eq!(
                    backoff.wait(under, &mut FixedRandom::at(0.5)),
                    Some(3_000_000)
                );
            }
        }
    }

    #[test]
    fn ethernet_slots_double_up_to_the_exponent_limit() {
        let ethernet = Backoff::slotted(Duration::from_nanos(51_200));
        let most = |retry| {
            ethernet
                .wait(step(retry), &mut FixedRandom::at(1.0))
                .unwrap()
                / 51_200
        };
        assert_eq!(
            (0..12).map(most).collect::<Vec<_>>(),
            [1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 1023, 1023]
        );
        assert_eq!(ethernet.wait(step(5), &mut FixedRandom::at(0.0)), Some(0));
    }

    #[test]
    fn decorrelated_walks_between_initial_and_three_times_the_previous() {
        let walk = Backoff::decorrelated(MS);
        let after = |previous: u64, point| {
            walk.wait(
                BackoffPosition {
                    previous,
                    ..step(1)
                },
                &mut FixedRandom::at(point),
            )
            .unwrap()
        };
        assert_eq!(after(0, 1.0), 3_000_000);
        assert_eq!(after(10_000_000, 0.0), 1_000_000);
        assert_eq!(after(10_000_000, 1.0), 30_000_000);
        let capped = BackoffPosition {
            previous: 10_000_000,
            ceiling: 20_000_000,
            ..step(1)
        };
        assert_eq!(
            walk.wait(capped, &mut FixedRandom::at(0.5)),
            Some(10_500_000)
        );
    }

    #[test]
    fn elapsed_waits_a_share_of_the_time_so_far() {
        let polling = Backoff::elapsed(MS, 0.5);
        let at = |elapsed| {
            polling
                .wait(
                    BackoffPosition { elapsed, ..step(9) },
                    &mut FixedRandom::at(0.5),
                )
                .unwrap()
        };
        assert_eq!(at(0), 1_000_000);
        assert_eq!(at(10_000_000), 5_000_000);
    }

    proptest! {
        /// backon panics with "overflow when adding durations" in three ways.
        #[test]
        fn backon_overflow_when_adding_durations(
            first: u64, factor in 1.0..1e20f64, retry: u32, previous: u64, elapsed: u64,
            point in 0.0..=1.0f64, ceiling: u64,
        ) {
            let initial = Duration::from_nanos(first);
            for backoff in [
                Backoff::linear(initial, initial),
                Backoff::Exponential { initial, factor },
                Backoff::fibonacci(initial),
                Backoff::Decorrelated { initial, factor },
                Backoff::Slotted { slot: initial, exponent_limit: 62 },
                Backoff::elapsed(initial, factor),
                Backoff::constant(initial).then(3, Backoff::exponential(initial)),
            ] {
                let step = BackoffPosition { retry, previous, elapsed, initial: None, ceiling };
                let wait = backoff.wait(step, &mut FixedRandom::at(point)).unwrap();
                prop_assert!(wait <= ceiling, "{:?}", backoff);
            }
        }

        #[test]
        fn doubling_is_growth_by_two(first in 0..1u64 << 52, retry in 0..200u32) {
            let (doubled, grown) = (double(first, retry), grow_by(first, 2.0, retry));
            // An `f64` holds 53 bits, so the result may be off by one nanosecond.
            prop_assert!(doubled.abs_diff(grown) <= 1, "{} {}", doubled, grown);
        }

        #[test]
        fn exponential_never_shrinks(first: u64, factor in 1.0..10f64, retry in 0..10u32) {
            prop_assert!(first <= grow(first, factor, retry));
            prop_assert!(grow(first, factor, retry) <= grow(first, factor, retry + 1));
            prop_assert_eq!(grow(first, 1.0, retry), first);
        }

        /// An `f64` above 2^53 may lie below the integer it was converted from.
        #[test]
        fn a_random_walk_never_goes_below_its_minimum(
            first in 1u64 << 52..=u64::MAX, previous: u64, factor in 1.0..1.000_000_1f64,
            point in 0.0..=1.0f64,
        ) {
            for factor in [1.0, factor] {
                let initial = Duration::from_nanos(first);
                let walk = Backoff::Decorrelated { initial, factor };
                let step = BackoffPosition { previous, ..step(1) };
                let wait = walk.wait(step, &mut FixedRandom::at(point)).unwrap();
                prop_assert!(first <= wait);
                prop_assert!(factor > 1.0 || wait <= first.max(previous));
            }
        }
    }
}
