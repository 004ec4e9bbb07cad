//! The growing wait before retry n, before randomness.

use alloc::vec::Vec;
use core::time::Duration;

use crate::error::{Found, PolicyError};
use crate::random::{Random, up_to};
use crate::time::nanos;

/// How the wait grows from retry to retry.
///
/// A backoff is data: it holds no position. The session counts, so one value serves any number of
/// sessions at once. All arithmetic is on integer nanoseconds and saturates.
///
/// | kind | wait before retry n = 1, 2, 3, … | draws its own randomness |
/// |---|---|---|
/// | [`None`](Self::None) | 0, 0, 0 | no |
/// | [`Constant`](Self::Constant) | d, d, d | no |
/// | [`Linear`](Self::Linear) | i, i+s, i+2s | no |
/// | [`Exponential`](Self::Exponential) | i, i·f, i·f² | no |
/// | [`Fibonacci`](Self::Fibonacci) | i, i, 2i, 3i, 5i | no |
/// | [`Decorrelated`](Self::Decorrelated) | uniform in [i, previous wait·f] | yes |
/// | [`Slotted`](Self::Slotted) | slot · uniform in 0..2^min(n, limit) | yes |
/// | [`Schedule`](Self::Schedule) | the list, then no more retries | no |
/// | [`Elapsed`](Self::Elapsed) | the greater of i and elapsed·f | no |
/// | [`Chain`](Self::Chain) | each phase's own, one after the other | as its phases |
#[derive(Clone, PartialEq, Debug)]
pub enum Backoff {
    /// No wait at all: "elsewhere, now". A driver does not touch its timer for it.
    None,
    /// The same wait each time.
    Constant {
        /// The wait.
        delay: Duration,
    },
    /// A wait that grows by a fixed step.
    Linear {
        /// The wait before the first retry.
        initial: Duration,
        /// What each further retry adds.
        step: Duration,
    },
    /// A wait that is multiplied each time (R1.3, R2.2, R3.1, R4.1).
    Exponential {
        /// The wait before the first retry.
        initial: Duration,
        /// The multiplier, at least 1.
        factor: f64,
    },
    /// Each wait is the sum of the two before it.
    Fibonacci {
        /// The wait before the first and the second retry.
        initial: Duration,
    },
    /// A random walk: uniform between `initial` and the previous wait times `factor`
    /// (the "decorrelated jitter" of the AWS Architecture Blog, factor 3).
    Decorrelated {
        /// The least wait.
        initial: Duration,
        /// The most a wait may grow, at least 1.
        factor: f64,
    },
    /// Truncated binary exponential backoff of Ethernet (IEEE 802.3, R4.2): a random number of
    /// slots below 2^min(n, `exponent_limit`).
    Slotted {
        /// One slot; 51.2 µs at 10 Mb/s.
        slot: Duration,
        /// Where the range stops doubling; 10 in IEEE 802.3, at most 62.
        exponent_limit: u32,
    },
    /// Exactly these waits; there is no retry after the last.
    Schedule {
        /// The wait before each retry.
        delays: Vec<Duration>,
    },
    /// A share of the time since the session began or was last reset: polling that slows down
    /// with the job (R4.4), ln(T/i)/ln(1+f) polls for a job of length T.
    Elapsed {
        /// The least wait.
        initial: Duration,
        /// The share, above 0.
        fraction: f64,
    },
    /// Phases one after the other: "three quick, then patient".
    Chain {
        /// In order. Only the last may be without a number of retries.
        phases: Vec<Phase>,
    },
}

/// One part of a [`Backoff::Chain`].
#[derive(Clone, PartialEq, Debug)]
pub struct Phase {
    /// How many retries this phase lasts; `None` for as long as the policy allows.
    pub retries: Option<u32>,
    /// The waits of this phase, counted from its own beginning. Not itself a chain.
    pub backoff: Backoff,
}

/// Where a session stands when it asks a backoff for the next wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// Retries granted so far by this backoff: 0 before the first retry.
    pub(crate) retry: u32,
    /// The previous wait, for decorrelated; 0 before the first.
    pub(crate) previous: u64,
    /// Since the session began or was last reset.
    pub(crate) elapsed: u64,
    /// The first delay of the policy for throttled failures, if it has one of its own.
    pub(crate) initial: Option<u64>,
    /// The most the wait may be, `u64::MAX` for no ceiling.
    pub(crate) ceiling: u64,
}

impl Backoff {
    /// The same wait each time.
    #[must_use]
    pub const fn constant(delay: Duration) -> Self {
        Self::Constant { delay }
    }

    /// Doubling from `initial`.
    #[must_use]
    pub const fn exponential(initial: Duration) -> Self {
        Self::Exponential {
            initial,
            factor: 2.0,
        }
    }

    /// `initial`, then `step` more each time.
    #[must_use]
    pub const fn linear(initial: Duration, step: Duration) -> Self {
        Self::Linear { initial, step }
    }

    /// `initial` · 1, 1, 2, 3, 5, …
    #[must_use]
    pub const fn fibonacci(initial: Duration) -> Self {
        Self::Fibonacci { initial }
    }

    /// The random walk of the AWS Architecture Blog: between `initial` and three times the
    /// previous wait.
    #[must_use]
    pub const fn decorrelated(initial: Duration) -> Self {
        Self::Decorrelated {
            initial,
            factor: 3.0,
        }
    }

    /// Ethernet's backoff with this slot time and the exponent limit 10 of IEEE 802.3.
    #[must_use]
    pub const fn slotted(slot: Duration) -> Self {
        Self::Slotted {
            slot,
            exponent_limit: 10,
        }
    }

    /// Exactly these waits, from any iterator of durations. The iterator must end.
    ///
    /// For an endless one, use `Policy::waits` the other way round: hand the driver the iterator
    /// with `relent::Retry::waits`.
    #[must_use]
    pub fn schedule(delays: impl IntoIterator<Item = Duration>) -> Self {
        Self::Schedule {
            delays: delays.into_iter().collect(),
        }
    }

    /// A share of the elapsed time, at least `initial`.
    #[must_use]
    pub const fn elapsed(initial: Duration, fraction: f64) -> Self {
        Self::Elapsed { initial, fraction }
    }

    /// `quick` for a number of retries, then `patient`.
    ///
    /// ```
    /// use core::time::Duration;
    /// use relent_core::{Backoff, Draw, Jitter, Policy};
    ///
    /// let three_quick = Backoff::constant(Duration::from_millis(50));
    /// let policy = Policy::builder(three_quick.then(3, Backoff::exponential(Duration::from_secs(1))))
    ///     .jitter(Jitter::None)
    ///     .max_retries(5)
    ///     .build()?;
    /// let waits: Vec<_> = policy.waits(Draw::at(0.5)).map(|wait| wait.as_millis()).collect();
    /// assert_eq!(waits, [50, 50, 50, 1000, 2000]);
    /// # Ok::<(), relent_core::PolicyError>(())
    /// ```
    #[must_use]
    pub fn then(self, retries: u32, next: Self) -> Self {
        let mut phases = match self {
            Self::Chain { mut phases } => {
                if let Some(last) = phases.last_mut() {
                    last.retries = Some(retries);
                }
                phases
            }
            single => alloc::vec![Phase {
                retries: Some(retries),
                backoff: single
            }],
        };
        phases.push(Phase {
            retries: None,
            backoff: next,
        });
        Self::Chain { phases }
    }

    /// Whether this backoff draws its own randomness, so that a jitter would be a second one.
    #[must_use]
    pub const fn draws(&self) -> bool {
        matches!(self, Self::Decorrelated { .. } | Self::Slotted { .. })
    }

    /// The wait before the first retry, where there is one by name.
    pub(crate) const fn first(&self) -> Option<Duration> {
        match self {
            Self::Constant { delay } => Some(*delay),
            Self::Linear { initial, .. }
            | Self::Exponential { initial, .. }
            | Self::Fibonacci { initial }
            | Self::Decorrelated { initial, .. }
            | Self::Elapsed { initial, .. } => Some(*initial),
            Self::None | Self::Slotted { .. } | Self::Schedule { .. } | Self::Chain { .. } => None,
        }
    }

    /// Whether the wait grows without end, so that a ceiling is called for.
    pub(crate) const fn grows(&self) -> bool {
        matches!(
            self,
            Self::Linear { .. }
                | Self::Exponential { .. }
                | Self::Fibonacci { .. }
                | Self::Decorrelated { .. }
        )
    }

    /// Whether the end of a schedule, and the beginning of the last phase of a chain, lie within
    /// what a session counts for a rule: one byte.
    pub(crate) const fn fits_a_byte(&self) -> bool {
        let mut retries: u64 = 0;
        match self {
            Self::Schedule { delays } => retries = delays.len() as u64,
            Self::Chain { phases } => {
                let phases = phases.as_slice();
                let mut index = 0;
                while index < phases.len() {
                    retries += match (&phases[index].backoff, phases[index].retries) {
                        (Self::Schedule { delays }, None) => delays.len() as u64,
                        (_, Some(retries)) => retries as u64,
                        (_, None) => 1,
                    };
                    index += 1;
                }
            }
            _ => {}
        }
        retries <= u8::MAX as u64
    }

    /// Whether the wait depends on the time since the session began.
    pub(crate) const fn looks_at_elapsed(&self) -> bool {
        let Self::Chain { phases } = self else {
            return matches!(self, Self::Elapsed { .. });
        };
        let phases = phases.as_slice();
        let mut index = 0;
        while index < phases.len() {
            if matches!(phases[index].backoff, Self::Elapsed { .. }) {
                return true;
            }
            index += 1;
        }
        false
    }

    /// The wait at this step in nanoseconds, ceiling applied, before jitter; `None` when a schedule
    /// or a chain has come to its end.
    pub(crate) fn wait(&self, step: Step, random: &mut (impl Random + ?Sized)) -> Option<u64> {
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
                least.saturating_add(up_to(most - least, random))
            }
            Self::Slotted {
                slot,
                exponent_limit,
            } => {
                let slot = nanos(*slot);
                let exponent = retry.saturating_add(1).min(*exponent_limit).min(62);
                // With the ceiling before the draw, the range ends at the last slot below it.
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

    pub(crate) const fn check(&self) -> Result<(), PolicyError> {
        match self {
            Self::None | Self::Constant { .. } | Self::Linear { .. } | Self::Fibonacci { .. } => {
                Ok(())
            }
            Self::Exponential { factor, .. } | Self::Decorrelated { factor, .. } => {
                if *factor >= 1.0 && factor.is_finite() {
                    Ok(())
                } else {
                    Err(PolicyError::new(
                        "factor",
                        Found::Number(*factor),
                        "the factor of a backoff is a number from 1 up, so that waits never shrink",
                    ))
                }
            }
            Self::Slotted {
                slot,
                exponent_limit,
            } => {
                if slot.is_zero() {
                    Err(PolicyError::new(
                        "slot",
                        Found::Duration(*slot),
                        "a slot lasts longer than nothing, such as 51.2us",
                    ))
                } else if *exponent_limit > 62 {
                    Err(PolicyError::new(
                        "exponent_limit",
                        Found::Count(*exponent_limit),
                        "the exponent limit is at most 62",
                    ))
                } else {
                    Ok(())
                }
            }
            Self::Schedule { delays } => {
                if delays.as_slice().is_empty() {
                    Err(PolicyError::new(
                        "delays",
                        Found::Nothing,
                        "a schedule has at least one delay",
                    ))
                } else {
                    Ok(())
                }
            }
            Self::Elapsed { fraction, .. } => {
                if *fraction > 0.0 && fraction.is_finite() {
                    Ok(())
                } else {
                    Err(PolicyError::new(
                        "fraction",
                        Found::Number(*fraction),
                        "the fraction of the elapsed time is a number above 0, such as 0.1",
                    ))
                }
            }
            Self::Chain { phases } => check_chain(phases.as_slice()),
        }
    }
}

const fn check_chain(phases: &[Phase]) -> Result<(), PolicyError> {
    if phases.is_empty() {
        return Err(PolicyError::new(
            "chain",
            Found::Nothing,
            "a chain has at least one phase",
        ));
    }
    let mut index = 0;
    while index < phases.len() {
        let phase = &phases[index];
        if matches!(phase.backoff, Backoff::Chain { .. }) {
            return Err(PolicyError::new(
                "chain",
                Found::Nothing,
                "a phase of a chain is not itself a chain: list all phases in one",
            ));
        }
        match phase.retries {
            Some(0) => {
                return Err(PolicyError::new(
                    "retries",
                    Found::Count(0),
                    "a phase lasts at least one retry",
                ));
            }
            None if index + 1 < phases.len() => {
                return Err(PolicyError::new(
                    "retries",
                    Found::Nothing,
                    "every phase but the last says for how many retries it lasts",
                ));
            }
            _ => {}
        }
        if let Err(error) = phase.backoff.check() {
            return Err(error);
        }
        index += 1;
    }
    Ok(())
}

fn chain(phases: &[Phase], step: Step, random: &mut (impl Random + ?Sized)) -> Option<u64> {
    let mut retry = step.retry;
    for phase in phases {
        match phase.retries {
            Some(retries) if retry >= retries => retry -= retries,
            _ => {
                // A random walk of a later phase begins anew, not at the last phase's wait.
                let previous = if retry == 0 { 0 } else { step.previous };
                return phase.backoff.wait(
                    Step {
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
pub(crate) const fn double(initial: u64, retry: u32) -> u64 {
    let doubled = initial.unbounded_shl(retry);
    if doubled.unbounded_shr(retry) == initial {
        doubled
    } else {
        u64::MAX
    }
}

/// `initial · factor^retry`, rounded to the nanosecond and saturating.
fn grow(initial: u64, factor: f64, retry: u32) -> u64 {
    if factor == 2.0 {
        return double(initial, retry);
    }
    grow_by(initial, factor, retry)
}

fn grow_by(initial: u64, factor: f64, retry: u32) -> u64 {
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
    // 0 · ∞ is NaN, which the cast makes 0: no initial delay, no wait.
    (initial as f64 * power + 0.5) as u64
}

/// 1, 1, 2, 3, 5, … saturating.
fn fibonacci(retry: u32) -> u64 {
    let (mut now, mut next) = (1_u64, 1_u64);
    // 93 steps fill 64 bits; there is nothing to learn beyond.
    for _ in 0..retry.min(93) {
        (now, next) = (next, now.saturating_add(next));
    }
    now
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Draw;
    use proptest::prelude::*;

    fn step(retry: u32) -> Step {
        Step {
            retry,
            previous: 0,
            elapsed: 0,
            initial: None,
            ceiling: u64::MAX,
        }
    }

    fn first(backoff: &Backoff, count: u32) -> Vec<Option<u64>> {
        (0..count)
            .map(|retry| backoff.wait(step(retry), &mut Draw::at(0.5)))
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
        assert_eq!(schedule.wait(step(2), &mut Draw::at(0.5)), None);
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
        assert_eq!(tenths.wait(step(2), &mut Draw::at(0.5)), Some(121_000_000));
    }

    /// backon's Fibonacci exceeds its cap, and its first delay ignores it.
    #[test]
    fn backon_first_delay_and_fibonacci_ignore_the_ceiling() {
        for backoff in [Backoff::fibonacci(4 * MS), Backoff::exponential(4 * MS)] {
            for retry in 0..100 {
                let under = Step {
                    ceiling: 3_000_000,
                    ..step(retry)
                };
                assert_eq!(backoff.wait(under, &mut Draw::at(0.5)), Some(3_000_000));
            }
        }
    }

    #[test]
    fn ethernet_slots_double_up_to_the_exponent_limit() {
        let ethernet = Backoff::slotted(Duration::from_nanos(51_200));
        let most = |retry| ethernet.wait(step(retry), &mut Draw::at(1.0)).unwrap() / 51_200;
        assert_eq!(
            (0..12).map(most).collect::<Vec<_>>(),
            [1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 1023, 1023]
        );
        assert_eq!(ethernet.wait(step(5), &mut Draw::at(0.0)), Some(0));
    }

    #[test]
    fn decorrelated_walks_between_initial_and_three_times_the_previous() {
        let walk = Backoff::decorrelated(MS);
        let after = |previous: u64, point| {
            walk.wait(
                Step {
                    previous,
                    ..step(1)
                },
                &mut Draw::at(point),
            )
            .unwrap()
        };
        assert_eq!(after(0, 1.0), 3_000_000);
        assert_eq!(after(10_000_000, 0.0), 1_000_000);
        assert_eq!(after(10_000_000, 1.0), 30_000_000);
        let capped = Step {
            previous: 10_000_000,
            ceiling: 20_000_000,
            ..step(1)
        };
        assert_eq!(walk.wait(capped, &mut Draw::at(0.5)), Some(10_500_000));
    }

    #[test]
    fn elapsed_waits_a_share_of_the_time_so_far() {
        let polling = Backoff::elapsed(MS, 0.5);
        let at = |elapsed| {
            polling
                .wait(Step { elapsed, ..step(9) }, &mut Draw::at(0.5))
                .unwrap()
        };
        assert_eq!(at(0), 1_000_000);
        assert_eq!(at(10_000_000), 5_000_000);
    }

    #[test]
    fn contradictions_do_not_build() {
        for (backoff, key) in [
            (
                Backoff::Exponential {
                    initial: MS,
                    factor: 0.5,
                },
                "factor",
            ),
            (
                Backoff::Exponential {
                    initial: MS,
                    factor: f64::NAN,
                },
                "factor",
            ),
            (
                Backoff::Exponential {
                    initial: MS,
                    factor: f64::INFINITY,
                },
                "factor",
            ),
            (
                Backoff::Decorrelated {
                    initial: MS,
                    factor: -3.0,
                },
                "factor",
            ),
            (
                Backoff::Slotted {
                    slot: Duration::ZERO,
                    exponent_limit: 10,
                },
                "slot",
            ),
            (
                Backoff::Slotted {
                    slot: MS,
                    exponent_limit: 63,
                },
                "exponent_limit",
            ),
            (Backoff::schedule([]), "delays"),
            (Backoff::elapsed(MS, 0.0), "fraction"),
            (Backoff::Chain { phases: Vec::new() }, "chain"),
            (Backoff::None.then(0, Backoff::None), "retries"),
        ] {
            assert_eq!(backoff.check().unwrap_err().key(), key, "{backoff:?}");
        }
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
                let step = Step { retry, previous, elapsed, initial: None, ceiling };
                let wait = backoff.wait(step, &mut Draw::at(point)).unwrap();
                prop_assert!(wait <= ceiling, "{:?}", backoff);
            }
        }

        #[test]
        fn doubling_is_growth_by_two(first in 0..1u64 << 52, retry in 0..200u32) {
            let (doubled, grown) = (double(first, retry), grow_by(first, 2.0, retry));
            // A float holds 53 bits, so that its last nanosecond may be one off.
            prop_assert!(doubled.abs_diff(grown) <= 1, "{} {}", doubled, grown);
        }

        #[test]
        fn exponential_never_shrinks(first in 0..1u64 << 30, factor in 1.0..10f64, retry in 0..10u32) {
            prop_assert!(grow(first, factor, retry) <= grow(first, factor, retry + 1));
        }
    }
}
