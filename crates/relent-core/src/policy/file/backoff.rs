//! The file form of a backoff.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::table::{missing, non_default, present, table};
use super::value::{Count, DurationText};
use crate::policy::backoff::{Backoff, Phase};

table!(PhaseForm {
    retries: Count,
    backoff: BackoffForm,
});

table!(ConstantForm {
    delay: DurationText
});
table!(LinearForm {
    initial: DurationText,
    step: DurationText,
});
table!(ExponentialForm {
    initial: DurationText,
    factor: f64,
});
table!(FibonacciForm {
    initial: DurationText
});
table!(DecorrelatedForm {
    initial: DurationText,
    factor: f64,
});
table!(SlottedForm {
    slot: DurationText,
    exponent_limit: Count,
});
table!(ScheduleForm { delays: Vec<DurationText>, });
table!(ElapsedForm {
    initial: DurationText,
    fraction: f64,
});

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum BackoffForm {
    None,
    Constant(ConstantForm),
    Linear(LinearForm),
    Exponential(ExponentialForm),
    Fibonacci(FibonacciForm),
    Decorrelated(DecorrelatedForm),
    Slotted(SlottedForm),
    Schedule(ScheduleForm),
    Elapsed(ElapsedForm),
    Chain(Vec<PhaseForm>),
}

/// The default second values of [`Backoff::exponential`], [`Backoff::decorrelated`] and
/// [`Backoff::slotted`].
const EXPONENTIAL_FACTOR: f64 = 2.0;
const DECORRELATED_FACTOR: f64 = 3.0;
const EXPONENT_LIMIT: u32 = 10;

impl BackoffForm {
    pub(super) fn of(backoff: &Backoff) -> Self {
        let span = |duration: &Duration| Some(DurationText(*duration));
        match backoff {
            Backoff::None => Self::None,
            Backoff::Constant { delay } => Self::Constant(ConstantForm { delay: span(delay) }),
            Backoff::Linear { initial, step } => Self::Linear(LinearForm {
                initial: span(initial),
                step: span(step),
            }),
            Backoff::Exponential { initial, factor } => Self::Exponential(ExponentialForm {
                initial: span(initial),
                factor: non_default(*factor, &EXPONENTIAL_FACTOR),
            }),
            Backoff::Fibonacci { initial } => Self::Fibonacci(FibonacciForm {
                initial: span(initial),
            }),
            Backoff::Decorrelated { initial, factor } => Self::Decorrelated(DecorrelatedForm {
                initial: span(initial),
                factor: non_default(*factor, &DECORRELATED_FACTOR),
            }),
            Backoff::Slotted {
                slot,
                exponent_limit,
            } => Self::Slotted(SlottedForm {
                slot: span(slot),
                exponent_limit: non_default(*exponent_limit, &EXPONENT_LIMIT).map(Count),
            }),
            Backoff::Schedule { delays } => Self::Schedule(ScheduleForm {
                delays: Some(delays.iter().copied().map(DurationText).collect()),
            }),
            Backoff::Elapsed { initial, fraction } => Self::Elapsed(ElapsedForm {
                initial: span(initial),
                fraction: Some(*fraction),
            }),
            Backoff::Chain { phases } => Self::Chain(phases.iter().map(PhaseForm::of).collect()),
        }
    }

    pub(super) fn into_backoff(self) -> Result<Backoff, String> {
        Ok(match self {
            Self::None => Backoff::None,
            Self::Constant(form) => Backoff::Constant {
                delay: missing(form.delay, "`delay` of the constant backoff")?.0,
            },
            Self::Linear(form) => Backoff::Linear {
                initial: missing(form.initial, "`initial` of the linear backoff")?.0,
                step: missing(form.step, "`step` of the linear backoff")?.0,
            },
            Self::Exponential(form) => Backoff::Exponential {
                initial: missing(form.initial, "`initial` of the exponential backoff")?.0,
                factor: form.factor.unwrap_or(EXPONENTIAL_FACTOR),
            },
            Self::Fibonacci(form) => Backoff::Fibonacci {
                initial: missing(form.initial, "`initial` of the fibonacci backoff")?.0,
            },
            Self::Decorrelated(form) => Backoff::Decorrelated {
                initial: missing(form.initial, "`initial` of the decorrelated backoff")?.0,
                factor: form.factor.unwrap_or(DECORRELATED_FACTOR),
            },
            Self::Slotted(form) => Backoff::Slotted {
                slot: missing(form.slot, "`slot` of the slotted backoff")?.0,
                exponent_limit: form.exponent_limit.map_or(EXPONENT_LIMIT, |limit| limit.0),
            },
            Self::Schedule(form) => Backoff::schedule(
                missing(form.delays, "`delays` of the schedule")?
                    .into_iter()
                    .map(|delay| delay.0),
            ),
            Self::Elapsed(form) => Backoff::Elapsed {
                initial: missing(form.initial, "`initial` of the elapsed backoff")?.0,
                fraction: missing(form.fraction, "`fraction` of the elapsed backoff")?,
            },
            Self::Chain(phases) => Backoff::Chain {
                phases: phases
                    .into_iter()
                    .map(PhaseForm::into_phase)
                    .collect::<Result<_, _>>()?,
            },
        })
    }
}

impl PhaseForm {
    fn of(phase: &Phase) -> Self {
        Self {
            retries: phase.retries.map(Count),
            backoff: Some(BackoffForm::of(&phase.backoff)),
        }
    }

    fn into_phase(self) -> Result<Phase, String> {
        Ok(Phase {
            retries: self.retries.map(|count| count.0),
            backoff: missing(self.backoff, "`backoff` of a phase of the chain")?.into_backoff()?,
        })
    }
}
