//! Concurrent attempts of a hedged request.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use http_body::Body;
use relent::clock::Sleeper;
use relent::driver::CallPermit;
use relent::race::{RaceEvent, Running};
use relent_core::call::RaceOutcome;
use relent_core::destination::Hedge;
use relent_core::{Cause, Failure};
use tower_service::Service;

use super::outcome::{AttemptResult, Ended, classification, of_error};
use super::readiness::release_readiness;
use super::sender::{RunningAttempt, Sender};
use super::{CallDriver, MapBody, ServiceError};
use crate::attempt::apply_concurrent_attempts;
use crate::repeatable::RequestInfo;
use crate::replay::{BoxError, ReadProgress, Reopen, Replay, ReplayBody, UnfinishedUpload};

/// A race of attempts; boxed, since few requests have one.
pub(super) struct Racing<F, B, R, K: Sleeper> {
    hedge: Arc<Hedge>,
    running: Running<RunningAttempt<F, B>, K>,
    /// The body of the hedge that waits for the service to become ready.
    body: Option<ReplayBody<B>>,
    /// The outcome that belongs to the deciding failure, unless a clearer failure follows.
    kept: Option<Ended<R>>,
}

/// Result of a race: the response that won, or the failure that decides.
type Finish<R> = Result<Response<R>, (Ended<R>, Failure)>;

impl<F, B, R, K> Racing<F, B, R, K>
where
    F: Future,
    B: Body<Error: Into<BoxError>>,
    K: Sleeper + Clone,
{
    /// Starts the first attempt, which hedges may join.
    pub(super) fn begin<S, M, N>(
        hedge: Arc<Hedge>,
        driver: &mut CallDriver<K>,
        leave: CallPermit,
        mut sender: Sender<'_, S, K, M, N>,
        body: ReplayBody<B>,
    ) -> Box<Self>
    where
        S: Service<Request<M::Body>, Response = Response<R>, Future = F>,
        M: MapBody<B>,
    {
        let mut running = Running::new();
        running.begin(driver, &hedge, leave, |racer| sender.race(body, racer));
        Box::new(Self {
            hedge,
            running,
            body: None,
            kept: None,
        })
    }

    /// Drops the hedge that waits for the service, and releases the readiness
    /// or queue position that it may hold.
    fn give_up_hedge<S: Clone>(&mut self, service: &mut S) {
        if self.body.take().is_some() {
            release_readiness(service);
        }
    }

    /// Runs until one attempt has succeeded or all have failed.
    pub(super) fn poll_finish<S, M, N>(
        &mut self,
        driver: &mut CallDriver<K>,
        mut sender: Sender<'_, S, K, M, N>,
        replay: &mut Replay<B>,
        facts: RequestInfo,
        context: &mut Context<'_>,
    ) -> Poll<Finish<R>>
    where
        S: Service<Request<M::Body>, Response = Response<R>, Future = F> + Clone,
        S::Error: Into<BoxError>,
        M: MapBody<B>,
        N: Reopen<B>,
        F: Future<Output = Result<Response<R>, S::Error>>,
    {
        loop {
            if !self.running.is_due() {
                self.give_up_hedge(sender.service);
            } else if self.body.is_some() {
                match sender.service.poll_ready(context) {
                    Poll::Ready(Ok(())) if self.running.resume_postponed(driver) => {
                        if let Some(body) = self.body.take() {
                            self.running.join(driver, |racer| sender.race(body, racer));
                        }
                    }
                    Poll::Ready(Ok(())) => self.give_up_hedge(sender.service),
                    // The running attempts may still succeed.
                    Poll::Ready(Err(_)) => {
                        self.running.cancel_due_hedge(driver);
                        self.give_up_hedge(sender.service);
                    }
                    Poll::Pending => self.running.postpone(driver),
                }
            }
            let (racer, ended, mut failure) = match ready!(self.running.poll_next(driver, context))
            {
                RaceEvent::Due => {
                    match replay.beside(&sender.config.reopen) {
                        Ok(body) => self.body = Some(body),
                        Err(_) => self.running.cancel_due_hedge(driver),
                    }
                    continue;
                }
                RaceEvent::Ended(racer, (Ok(response), sent, mut span)) => {
                    let failure = classification(&response, facts, sender.config, driver);
                    if let Some(span) = &mut span {
                        span.answered(response.status(), failure.as_ref());
                    }
                    let Some(failure) = failure else {
                        let seen = Some(Cause::Status(response.status().as_u16()));
                        self.running.won(driver, &self.hedge, &racer, seen);
                        self.give_up_hedge(sender.service);
                        return Poll::Ready(Ok(response));
                    };
                    let ended = Ended {
                        outcome: AttemptResult::Response(response),
                        busy: sent.as_ref().is_some_and(|sent| !sent.is_whole()),
                        sending: sent.map_or(UnfinishedUpload::NOTHING, ReadProgress::over),
                    };
                    (racer, ended, failure)
                }
                RaceEvent::Ended(racer, (Err(error), _, span)) => {
                    let (error, failure) = of_error(error.into(), sender.config.errors);
                    let ended = Ended::error(ServiceError::Service(error), span, &failure);
                    (racer, ended, failure)
                }
                RaceEvent::CutOff(racer, mut attempt) => {
                    let given = racer.attempt().limit.unwrap_or_default();
                    let failure = Failure::ambiguous().cause(Cause::Timeout);
                    let span = attempt.as_mut().project().span.take();
                    let ended = Ended::error(ServiceError::Timeout(given), span, &failure);
                    (racer, ended, failure)
                }
            };
            if sender.config.calls_twice {
                let outcome = &ended.outcome;
                sender
                    .config
                    .attribute_to_last_request(driver, outcome, &mut failure);
            }
            if !self.running.is_empty() {
                failure = apply_concurrent_attempts(failure, sender.template.method());
            }
            match self.running.failed(driver, &self.hedge, &racer, &failure) {
                RaceOutcome::GoesOn { kept } => {
                    if kept {
                        self.kept = Some(ended);
                    }
                }
                RaceOutcome::Over { failure, latest } => {
                    let kept = self.kept.take().filter(|_| !latest);
                    self.give_up_hedge(sender.service);
                    return Poll::Ready(Err((kept.unwrap_or(ended), failure)));
                }
            }
        }
    }
}
