//! The steps of every loop after an attempt has ended.

use std::time::Duration;

use relent_core::{Cause, Decision, Failure, Stop};

use crate::classify::{Classify, OutcomeClass};
use crate::clock::Clock;
use crate::driver::Driver;
use crate::hook::Notice;

/// The next step of the loop.
pub(crate) enum AfterAttempt<S> {
    Success(S),
    /// Wait, then attempt again; `hinted` if the server asked for a time.
    Wait {
        after: Duration,
        hinted: bool,
    },
    Stop(Stop),
}

/// Classifies the outcome of an attempt (`None` if its limit cut it off), gets the session's
/// decision, notifies, and stores the outcome of a failure in `last`.
#[inline]
pub(crate) fn after_attempt<O, C: Classify<O>, K: Clock>(
    outcome: Option<O>,
    driver: &mut Driver<'_, K>,
    classify: &mut C,
    last: &mut Option<O>,
) -> AfterAttempt<C::Success> {
    match classify_outcome(outcome, driver, classify) {
        Ok(value) => {
            driver.on_success();
            AfterAttempt::Success(value)
        }
        Err((failure, outcome)) => {
            let number = driver.attempts();
            decide(number, &failure, outcome, driver, classify, last)
        }
    }
}

/// Classifies the outcome of an attempt.
#[inline]
pub(crate) fn classify_outcome<O, C: Classify<O>, K: Clock>(
    outcome: Option<O>,
    driver: &mut Driver<'_, K>,
    classify: &mut C,
) -> Result<C::Success, (Failure, Option<O>)> {
    match outcome.map(|outcome| classify.classify_outcome(outcome)) {
        Some(OutcomeClass::Success(value)) => Ok(value),
        Some(OutcomeClass::Failure(failure, outcome)) => Err((failure, Some(outcome))),
        Some(OutcomeClass::Pending { progress }) => {
            if progress {
                driver.reset();
            }
            Err((Failure::pending(), None))
        }
        None => Err((Failure::ambiguous().cause(Cause::Timeout), None)),
    }
}

/// Handles the failure of this attempt, or of all attempts of a race.
#[inline]
pub(crate) fn decide<O, C: Classify<O>, K: Clock>(
    number: u32,
    failure: &Failure,
    outcome: Option<O>,
    driver: &mut Driver<'_, K>,
    classify: &mut C,
    last: &mut Option<O>,
) -> AfterAttempt<C::Success> {
    let decision = driver.on_failure(failure);
    if let Decision::Retry { after } = decision {
        classify.before_wait(&Notice {
            attempt: number,
            wait: after,
            failure: Some(*failure),
            error: outcome.as_ref().and_then(C::error),
            queued: None,
        });
    }
    if outcome.is_some() {
        *last = outcome;
    }
    match decision {
        Decision::Stop(stop) => AfterAttempt::Stop(stop),
        Decision::Retry { after } => AfterAttempt::Wait {
            after,
            hinted: failure.hint.delay().is_some(),
        },
    }
}
