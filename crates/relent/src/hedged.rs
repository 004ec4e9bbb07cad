//! Hedged attempts of [`retry`](crate::retry), boxed since few calls are hedged.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use relent_core::call::{CallPermit, RaceAttempt, RaceOutcome};
use relent_core::destination::Hedge;
use relent_core::{Policy, Random};

use crate::after_attempt::{AfterAttempt, classify_outcome, decide};
use crate::classify::Classify;
use crate::clock::Sleeper;
use crate::driver::{Driver, Target};
use crate::hook::Hook;
use crate::operation::AsyncOperation;
use crate::race::{RaceEvent, Running};

/// The concurrent attempts of an operation.
pub(crate) struct Racing<O: AsyncOperation, L, K: Sleeper> {
    hedge: Arc<Hedge>,
    running: Running<O::Future, K>,
    /// The error of the deciding failure, unless a more definite failure follows.
    kept: Option<L>,
}

impl<O: AsyncOperation, L, K: Sleeper> Racing<O, L, K> {
    /// Starts the first attempt, which the permit allows.
    pub(crate) fn begin<R: Random, D: Target>(
        hedge: Arc<Hedge>,
        driver: &mut Driver<'_, K, R, &Policy, D>,
        permit: CallPermit,
        operation: &mut O,
    ) -> Box<Self> {
        let mut racing = Box::new(Self {
            hedge,
            running: Running::new(),
            kept: None,
        });
        let start = |racer: &RaceAttempt| operation.start(racer.attempt());
        racing.running.begin(driver, &racing.hedge, permit, start);
        racing
    }

    /// Polls the attempts until one has succeeded or all have failed.
    pub(crate) fn poll<C, H, R, D>(
        &mut self,
        driver: &mut Driver<'_, K, R, &Policy, D>,
        operation: &mut O,
        classify: &mut C,
        hook: &mut H,
        last: &mut Option<L>,
        context: &mut Context<'_>,
    ) -> Poll<AfterAttempt<C::Success>>
    where
        C: Classify<O::Outcome, Last = L>,
        H: Hook<L>,
        R: Random,
        D: Target,
    {
        loop {
            let (racer, outcome) = match ready!(self.running.poll_next(driver, context)) {
                RaceEvent::Due => {
                    let start = |racer: &RaceAttempt| operation.start(racer.attempt());
                    self.running.join(driver, start);
                    continue;
                }
                RaceEvent::Ended(racer, outcome) => (racer, Some(outcome)),
                RaceEvent::CutOff(racer, attempt) => {
                    drop(attempt);
                    (racer, None)
                }
            };
            let (failure, error) = match classify_outcome(outcome, driver, classify) {
                Ok(value) => {
                    self.running.won(driver, &self.hedge, &racer, None);
                    return Poll::Ready(AfterAttempt::Success(value));
                }
                Err(failed) => failed,
            };
            let raced = self.running.failed(driver, &self.hedge, &racer, &failure);
            match raced {
                RaceOutcome::GoesOn { kept } => {
                    if kept && error.is_some() {
                        self.kept = error;
                    }
                }
                RaceOutcome::Over { failure, latest } => {
                    let kept = self.kept.take();
                    let error = if latest {
                        error.or(kept)
                    } else {
                        kept.or(error)
                    };
                    let number = racer.attempt().number;
                    let settled = decide(number, &failure, error, driver, hook, last);
                    return Poll::Ready(settled);
                }
            }
        }
    }

    /// Drops the attempts, and returns the error of the deciding failure, if one has failed.
    pub(crate) fn cancel<R: Random, D: Target>(
        &mut self,
        driver: &mut Driver<'_, K, R, &Policy, D>,
    ) -> Option<L> {
        self.running.cancel(driver);
        self.kept.take()
    }
}
