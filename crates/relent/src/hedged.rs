//! Hedged attempts of [`retry`](crate::retry()), boxed since few calls are hedged.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use relent_core::Attempt;
use relent_core::call::{CallPermit, RaceAttempt, RaceOutcome};
use relent_core::destination::Hedge;

use crate::after_attempt::{AfterAttempt, classify_outcome, decide};
use crate::classify::Classify;
use crate::clock::{Clock, Sleeper};
use crate::driver::Driver;
use crate::race::{RaceEvent, Running};

/// The concurrent attempts of an operation: futures `F` with outcomes `O`.
pub(crate) struct Racing<F, O, K: Clock> {
    hedge: Arc<Hedge>,
    running: Running<F, K>,
    /// The outcome of the deciding failure, unless a more definite failure follows.
    kept: Option<O>,
}

impl<F: Future, K: Sleeper> Racing<F, F::Output, K> {
    /// Starts the first attempt, which the permit allows.
    pub(crate) fn begin(
        hedge: Arc<Hedge>,
        driver: &mut Driver<'_, K>,
        permit: CallPermit,
        start: impl FnOnce(Attempt) -> F,
    ) -> Box<Self> {
        let mut racing = Box::new(Self {
            hedge,
            running: Running::new(),
            kept: None,
        });
        let start = |racer: &RaceAttempt| start(racer.attempt());
        racing.running.begin(driver, &racing.hedge, permit, start);
        racing
    }

    /// Polls the attempts until one has succeeded or all have failed.
    #[cold]
    #[inline(never)]
    pub(crate) fn poll<C: Classify<F::Output>>(
        &mut self,
        driver: &mut Driver<'_, K>,
        mut start: impl FnMut(Attempt) -> F,
        classify: &mut C,
        last: &mut Option<F::Output>,
        context: &mut Context<'_>,
    ) -> Poll<AfterAttempt<C::Success>> {
        loop {
            let (racer, outcome) = match ready!(self.running.poll_next(driver, context)) {
                RaceEvent::Due => {
                    self.running.join(driver, |racer| start(racer.attempt()));
                    continue;
                }
                RaceEvent::Ended(racer, outcome) => (racer, Some(outcome)),
                RaceEvent::CutOff(racer, attempt) => {
                    drop(attempt);
                    (racer, None)
                }
            };
            let (failure, outcome) = match classify_outcome(outcome, driver, classify) {
                Ok(value) => {
                    self.running.won(driver, &self.hedge, &racer, None);
                    return Poll::Ready(AfterAttempt::Success(value));
                }
                Err(failed) => failed,
            };
            let raced = self.running.failed(driver, &self.hedge, &racer, &failure);
            match raced {
                RaceOutcome::GoesOn { kept: false } => {}
                RaceOutcome::GoesOn { kept: true } => {
                    let before = std::mem::replace(&mut self.kept, outcome);
                    *last = before.or(last.take());
                }
                RaceOutcome::Over { failure, latest } => {
                    let kept = self.kept.take();
                    // A notice has the error of the deciding attempt, or none if that was cut off.
                    let outcome = if latest {
                        *last = kept.or(last.take());
                        outcome
                    } else {
                        kept
                    };
                    let number = racer.attempt().number;
                    let settled = decide(number, &failure, outcome, driver, classify, last);
                    return Poll::Ready(settled);
                }
            }
        }
    }

    /// Drops the attempts, and returns the outcome of the deciding failure, if one has failed.
    pub(crate) fn cancel(&mut self, driver: &mut Driver<'_, K>) -> Option<F::Output> {
        self.running.cancel(driver);
        self.kept.take()
    }
}
