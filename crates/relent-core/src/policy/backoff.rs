//! The growing delay before retry n, before jitter.

mod wait;

use alloc::vec::Vec;
use core::time::Duration;

use crate::policy::error::{Found, PolicyError};
use crate::time::nanos;
pub(crate) use wait::BackoffPosition;

/// The growth of the delay from retry to retry.
///
/// A backoff is data without a position. The session counts the retries, so one value serves any
/// number of concurrent sessions. All arithmetic is on integer nanoseconds and saturates.
///
/// | kind | delay before retry n = 1, 2, 3, … | draws its own randomness |
/// |---|---|---|
/// | [`None`](Self::None) | 0, 0, 0 | no |
/// | [`Constant`](Self::Constant) | d, d, d | no |
/// | [`Linear`](Self::Linear) | i, i+s, i+2s | no |
/// | [`Exponential`](Self::Exponential) | i, i·f, i·f² | no |
/// | [`Fibonacci`](Self::Fibonacci) | i, i, 2i, 3i, 5i | no |
/// | [`Decorrelated`](Self::Decorrelated) | uniform in [i, previous delay·f] | yes |
/// | [`Slotted`](Self::Slotted) | slot · uniform in 0..2^min(n, limit) | yes |
/// | [`Schedule`](Self::Schedule) | the list, then no more retries | no |
/// | [`Elapsed`](Self::Elapsed) | max(i, elapsed·f) | no |
/// | [`Chain`](Self::Chain) | that of each phase, one after the other | as its phases |
#[derive(Clone, PartialEq, Debug)]
pub enum Backoff {
    /// No delay: retry immediately, such as at another server. The driver does not use its timer.
    None,
    /// A constant delay.
    Constant {
        /// The delay.
        delay: Duration,
    },
    /// A delay that grows by a fixed step.
    Linear {
        /// The delay before the first retry.
        initial: Duration,
        /// The increment of each further retry.
        step: Duration,
    },
    /// A delay that is multiplied by a factor at each retry.
    Exponential {
        /// The delay before the first retry.
        initial: Duration,
        /// The multiplier, at least 1.
        factor: f64,
    },
    /// Each delay is the sum of the two before it.
    Fibonacci {
        /// The delay before the first and the second retry.
        initial: Duration,
    },
    /// A random walk: uniform between `initial` and the previous delay times `factor` (the
    /// "decorrelated jitter" of the AWS Architecture Blog, factor 3).
    Decorrelated {
        /// The minimum delay.
        initial: Duration,
        /// The maximum growth per retry, at least 1.
        factor: f64,
    },
    /// Truncated binary exponential backoff of Ethernet (IEEE 802.3): a random number of slots
    /// below 2^min(n, `exponent_limit`).
    Slotted {
        /// One slot; 51.2 µs at 10 Mb/s.
        slot: Duration,
        /// The exponent at which the range stops doubling: from 1 to 62, 10 in IEEE 802.3.
        exponent_limit: u32,
    },
    /// A fixed list of delays; there is no retry after the last.
    Schedule {
        /// The delay before each retry.
        delays: Vec<Duration>,
    },
    /// A share of the time since the session began or was last reset. Polling slows down as the job
    /// takes longer: ln(T/i)/ln(1+f) polls for a job of length T.
    Elapsed {
        /// The minimum delay.
        initial: Duration,
        /// The share, above 0.
        fraction: f64,
    },
    /// Phases one after the other, such as "three quick retries, then patient ones".
    Chain {
        /// The phases in order. Only the last may have no number of retries.
        phases: Vec<Phase>,
    },
}

/// One part of a [`Backoff::Chain`].
#[derive(Clone, PartialEq, Debug)]
pub struct Phase {
    /// The number of retries in this phase; `None` for as many as the policy allows.
    pub retries: Option<u32>,
    /// The delays of this phase, counted from its start. It cannot be a chain.
    pub backoff: Backoff,
}

impl Backoff {
    /// A constant delay.
    #[must_use]
    pub const fn constant(delay: Duration) -> Self {
        Self::Constant { delay }
    }

    /// Delays that double from `initial`.
    #[must_use]
    pub const fn exponential(initial: Duration) -> Self {
        Self::Exponential {
            initial,
            factor: 2.0,
        }
    }

    /// Delays that start at `initial` and grow by `step`.
    #[must_use]
    pub const fn linear(initial: Duration, step: Duration) -> Self {
        Self::Linear { initial, step }
    }

    /// Delays of `initial` · 1, 1, 2, 3, 5, …
    #[must_use]
    pub const fn fibonacci(initial: Duration) -> Self {
        Self::Fibonacci { initial }
    }

    /// The random walk of the AWS Architecture Blog: uniform between `initial` and three times the
    /// previous delay.
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

    /// A fixed list of delays, from any finite iterator of durations.
    ///
    /// For an endless one, pass the iterator to the driver with `relent::Retry::waits`.
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

    /// This backoff for a number of retries, then the next one.
    ///
    /// ```
    /// use core::time::Duration;
    /// use relent_core::{Backoff, FixedRandom, Jitter, Policy};
    ///
    /// let three_quick = Backoff::constant(Duration::from_millis(50));
    /// let policy = Policy::builder(three_quick.then(3, Backoff::exponential(Duration::from_secs(1))))
    ///     .jitter(Jitter::None)
    ///     .max_retries(5)
    ///     .build()?;
    /// let waits: Vec<_> = policy.waits(FixedRandom::at(0.5)).map(|wait| wait.as_millis()).collect();
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

    /// Whether this backoff or one of its phases is itself random, so that jitter would be applied
    /// twice.
    #[must_use]
    pub const fn draws(&self) -> bool {
        let mut draws = matches!(self, Self::Decorrelated { .. } | Self::Slotted { .. });
        let phases = self.phases();
        let mut index = 0;
        while index < phases.len() {
            draws |= phases[index].backoff.draws();
            index += 1;
        }
        draws
    }

    /// The phases of a chain; empty for other kinds.
    const fn phases(&self) -> &[Phase] {
        match self {
            Self::Chain { phases } => phases.as_slice(),
            _ => &[],
        }
    }

    /// The first delay, if it is fixed; for a chain the longest first delay of its phases.
    pub(crate) const fn longest_first_delay(&self) -> Option<Duration> {
        let mut longest = self.first();
        let phases = self.phases();
        let mut index = 0;
        while index < phases.len() {
            longest = longer(longest, phases[index].backoff.first());
            index += 1;
        }
        longest
    }

    /// The longest slot, also of the phases of a chain. With a cap below it every delay is 0.
    pub(crate) const fn longest_slot(&self) -> Option<Duration> {
        let mut longest = self.slot();
        let phases = self.phases();
        let mut index = 0;
        while index < phases.len() {
            longest = longer(longest, phases[index].backoff.slot());
            index += 1;
        }
        longest
    }

    const fn slot(&self) -> Option<Duration> {
        match self {
            Self::Slotted { slot, .. } => Some(*slot),
            _ => None,
        }
    }

    /// The delay before the first retry, if it is fixed.
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

    /// The longest fixed delay, in a schedule or as a first delay, also of the phases of a chain.
    pub(crate) const fn longest_fixed_delay(&self) -> Option<Duration> {
        let mut longest = self.longest_first_delay();
        let delays = match self {
            Self::Schedule { delays } => delays.as_slice(),
            _ => &[],
        };
        let mut index = 0;
        while index < delays.len() {
            longest = longer(longest, Some(delays[index]));
            index += 1;
        }
        let phases = self.phases();
        index = 0;
        while index < phases.len() {
            longest = longer(longest, phases[index].backoff.longest_fixed_delay());
            index += 1;
        }
        longest
    }

    /// Whether the delay grows without end, so that a cap is needed. For a chain the last phase
    /// decides.
    pub(crate) const fn grows(&self) -> bool {
        if let Some(last) = self.phases().last() {
            return last.backoff.grows();
        }
        matches!(
            self,
            Self::Linear { .. }
                | Self::Exponential { .. }
                | Self::Fibonacci { .. }
                | Self::Decorrelated { .. }
        )
    }

    /// Whether a schedule ends, and the last phase of a chain begins, within `most` retries.
    pub(crate) const fn ends_within(&self, most: u8) -> bool {
        let mut retries: u64 = match self {
            Self::Schedule { delays } => delays.len() as u64,
            _ => 0,
        };
        let phases = self.phases();
        let mut index = 0;
        while index < phases.len() {
            retries += match (&phases[index].backoff, phases[index].retries) {
                (Self::Schedule { delays }, None) => delays.len() as u64,
                (_, Some(retries)) => retries as u64,
                (_, None) => 1,
            };
            index += 1;
        }
        retries <= most as u64
    }

    /// Whether the delay stops growing within this many retries, because it reaches the cap or
    /// never grows.
    pub(crate) const fn stops_growing_within(&self, retries: u32, ceiling: Duration) -> bool {
        let phases = self.phases();
        if let Some(last) = phases.last() {
            let (mut before, mut index) = (0_u32, 0);
            while index + 1 < phases.len() {
                before = before.saturating_add(match phases[index].retries {
                    Some(retries) => retries,
                    None => 0,
                });
                index += 1;
            }
            let left = retries.saturating_sub(before);
            return last.backoff.stops_growing_within(left, ceiling);
        }
        match self.grown(retries) {
            Some((first, grown)) => grown == first || grown >= nanos(ceiling),
            None => true,
        }
    }

    /// Whether the delay depends on the time since the session began.
    pub(crate) const fn depends_on_elapsed(&self) -> bool {
        let mut looks = matches!(self, Self::Elapsed { .. });
        let phases = self.phases();
        let mut index = 0;
        while index < phases.len() {
            looks |= phases[index].backoff.depends_on_elapsed();
            index += 1;
        }
        looks
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
                } else if *exponent_limit == 0 {
                    Err(PolicyError::new(
                        "exponent_limit",
                        Found::Count(0),
                        "with an exponent limit of 0 every delay is 0: it is from 1 to 62",
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

const fn longer(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    match (one, other) {
        (Some(first), Some(second)) if first.as_nanos() >= second.as_nanos() => one,
        (_, None) => one,
        _ => other,
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
        if let (Backoff::Schedule { delays }, Some(retries)) = (&phase.backoff, phase.retries)
            && delays.len() < retries as usize
        {
            return Err(PolicyError::new(
                "retries",
                Found::Count(retries),
                "a phase lasts no longer than its schedule has delays: add delays, or leave the retries of \
                 the last phase out",
            ));
        }
        index += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_contradictory_backoff_does_not_build() {
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
            (
                Backoff::Slotted {
                    slot: MS,
                    exponent_limit: 0,
                },
                "exponent_limit",
            ),
            (Backoff::schedule([]), "delays"),
            (Backoff::elapsed(MS, 0.0), "fraction"),
            (Backoff::Chain { phases: Vec::new() }, "chain"),
            (Backoff::None.then(0, Backoff::None), "retries"),
            (
                Backoff::schedule([MS, MS]).then(3, Backoff::None),
                "retries",
            ),
        ] {
            assert_eq!(backoff.check().unwrap_err().key(), key, "{backoff:?}");
        }
    }
}
