//! The steps of every loop after an attempt has ended.

use std::time::Duration;

use relent_core::{Cause, Decision, Failure, Policy, Random, Stop};

use crate::classify::{Classify, OutcomeClass};
use crate::clock::Clock;
use crate::driver::{Driver, Target};
use crate::hook::{Hook, Notice};

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
/// decision, calls the hook, and stores the last error in `last`.
#[inline]
pub(crate) fn after_attempt<O, C, H, K, R, D>(
    outcome: Option<O>,
    driver: &mut Driver<'_, K, R, &Policy, D>,
    classify: &mut C,
    hook: &mut H,
    last: &mut Option<C::Last>,
) -> AfterAttempt<C::Success>
where
    C: Classify<O>,
    H: Hook<C::Last>,
    K: Clock,
    R: Random,
    D: Target,
{
    match classify_outcome(outcome, driver, classify) {
        Ok(value) => {
            driver.on_success();
            AfterAttempt::Success(value)
        }
        Err((failure, error)) => {
            let number = driver.attempts();
            decide(number, &failure, error, driver, hook, last)
        }
    }
}

/// Classifies the outcome of an attempt.
#[inline]
pub(crate) fn classify_outcome<O, C, K, R, D>(
    outcome: Option<O>,
    driver: &mut Driver<'_, K, R, &Policy, D>,
    classify: &mut C,
) -> Result<C::Success, (Failure, Option<C::Last>)>
where
    C: Classify<O>,
    K: Clock,
    R: Random,
    D: Target,
{
    match outcome.map(|outcome| classify.classify_outcome(outcome)) {
        Some(OutcomeClass::Success(value)) => Ok(value),
        Some(OutcomeClass::Failure(failure, error)) => Err((failure, Some(error))),
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
pub(crate) fn decide<S, L, H, K, R, D>(
    number: u32,
    failure: &Failure,
    error: Option<L>,
    driver: &mut Driver<'_, K, R, &Policy, D>,
    hook: &mut H,
    last: &mut Option<L>,
) -> AfterAttempt<S>
where
    H: Hook<L>,
    K: Clock,
    R: Random,
    D: Target,
{
    let decision = driver.on_failure(failure);
    if let Decision::Retry { after } = decision {
        hook.before_wait(&Notice {
            attempt: number,
            wait: after,
            failure: Some(*failure),
            error: error.as_ref(),
            queued: None,
        });
    }
    if error.is_some() {
        *last = error;
    }
    match decision {
        Decision::Stop(stop) => AfterAttempt::Stop(stop),
        Decision::Retry { after } => AfterAttempt::Wait {
            after,
            hinted: failure.hint.delay().is_some(),
        },
    }
}
