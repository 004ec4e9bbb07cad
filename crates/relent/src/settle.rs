//! What every loop does when an attempt is over.

use std::time::Duration;

use relent_core::{Cause, Decision, Failure, Policy, Random, Stop};

use crate::classify::{Classify, Judged};
use crate::clock::Clock;
use crate::driver::{Driver, Target};
use crate::hook::{Hook, Notice};

/// How the loop goes on.
pub(crate) enum Settled<S> {
    Success(S),
    /// Attempt again after this; `hinted` if the server asked for a time.
    Wait {
        after: Duration,
        hinted: bool,
    },
    Stop(Stop),
}

/// Judges the outcome of an attempt (`None` if it was cut off by its limit), lets the session
/// decide, tells the hook, and keeps the last error in `last`.
#[inline]
pub(crate) fn settle<O, C, H, K, R, D>(
    outcome: Option<O>,
    driver: &mut Driver<'_, K, R, &Policy, D>,
    classify: &mut C,
    hook: &mut H,
    last: &mut Option<C::Last>,
) -> Settled<C::Success>
where
    C: Classify<O>,
    H: Hook<C::Last>,
    K: Clock,
    R: Random,
    D: Target,
{
    let (failure, error) = match outcome.map(|outcome| classify.judge(outcome)) {
        Some(Judged::Success(value)) => {
            driver.on_success();
            return Settled::Success(value);
        }
        Some(Judged::Failure(failure, error)) => (failure, Some(error)),
        Some(Judged::Pending { progress }) => {
            if progress {
                driver.reset();
            }
            (Failure::pending(), None)
        }
        None => (Failure::ambiguous().cause(Cause::Timeout), None),
    };
    match driver.on_failure(&failure) {
        Decision::Stop(stop) => {
            if error.is_some() {
                *last = error;
            }
            Settled::Stop(stop)
        }
        Decision::Retry { after } => {
            let attempt = driver.attempts();
            hook.before_wait(&Notice {
                attempt,
                wait: after,
                failure,
                error: error.as_ref(),
            });
            if error.is_some() {
                *last = error;
            }
            Settled::Wait {
                after,
                hinted: failure.hint.delay().is_some(),
            }
        }
    }
}
