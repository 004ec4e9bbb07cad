//! Concurrent attempts of a hedged request.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use relent::clock::{Clock, Sleeper};
use relent::driver::CallPermit;
use relent::race::{RaceAttempt, RaceEvent, Running};
use relent_core::call::RaceOutcome;
use relent_core::destination::Hedge;
use relent_core::{Cause, Failure};
use tower_service::Service;

use super::attempt::{AttemptRequest, RunningAttempt, Sender, Trail, conclude};
use super::outcome::Ended;
use super::readiness::release_readiness;
use super::{CallDriver, MapBody, Resends, ServiceError};
use crate::attempt::{RequestTemplate, apply_concurrent_attempts};
use crate::repeatable::RequestInfo;
use crate::replay::{BoxError, ReadProgress, Reopen, Replay, ReplayBody, UnfinishedUpload};

/// A race of attempts; boxed, since few requests have one.
pub(super) struct Racing<F, B, R, K: Sleeper> {
    hedge: Arc<Hedge>,
    running: Running<Contender<F, B, K>, K>,
    /// The body of the hedge that waits for the service to become ready.
    body: Option<ReplayBody<B>>,
    /// The outcome that belongs to the deciding failure, unless a clearer failure follows.
    kept: Option<Ended<R>>,
}

/// The parts of a call that its race uses.
pub(super) struct RaceCall<'a, B> {
    pub(super) template: &'a RequestTemplate,
    pub(super) replay: &'a mut Replay<B>,
    pub(super) facts: &'a mut Option<RequestInfo>,
    /// The hedges should use a new connection.
    pub(super) new_connection: bool,
}

pin_project! {
    /// One of the attempts, with the progress of its body.
    struct Contender<F, B, K: Clock> {
        #[pin]
        attempt: RunningAttempt<F, K>,
        // `None` when it has ended.
        sent: Option<ReadProgress<B>>,
    }
}

impl<F, B, K> Future for Contender<F, B, K>
where
    F: Future,
    B: Body<Error: Into<BoxError>>,
    K: Clock,
{
    /// The output of the call, with its trail and the progress of the request body.
    type Output = (F::Output, Option<Trail<K>>, Option<ReadProgress<B>>);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let (output, trail) = ready!(this.attempt.poll(context));
        Poll::Ready((output, trail, this.sent.take()))
    }
}

impl<S, K: Sleeper + Clone, M, N> Sender<'_, S, K, M, N> {
    /// Sends one of the attempts.
    fn contend<B>(
        &mut self,
        racer: &RaceAttempt,
        request: AttemptRequest<B>,
    ) -> Contender<S::Future, B, K>
    where
        S: Service<Request<M::Body>>,
        M: MapBody<B>,
        B: Body<Error: Into<BoxError>>,
    {
        let sent = Some(request.request.body().read_progress());
        let attempt = self.send(racer.attempt(), request);
        Contender { attempt, sent }
    }
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
        permit: CallPermit,
        mut sender: Sender<'_, S, K, M, N>,
        request: AttemptRequest<B>,
    ) -> Box<Self>
    where
        S: Service<Request<M::Body>, Response = Response<R>, Future = F>,
        M: MapBody<B>,
    {
        let mut running = Running::new();
        running.begin(driver, &hedge, permit, |racer| {
            sender.contend(racer, request)
        });
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
        call: RaceCall<'_, B>,
        context: &mut Context<'_>,
    ) -> Poll<Finish<R>>
    where
        S: Service<Request<M::Body>, Response = Response<R>, Future = F> + Clone,
        S::Error: Into<BoxError>,
        M: MapBody<B>,
        N: Reopen<B>,
        F: Future<Output = Result<Response<R>, S::Error>>,
    {
        let RaceCall {
            template,
            replay,
            facts,
            new_connection,
        } = call;
        let config = sender.config;
        loop {
            if !self.running.is_due() {
                self.give_up_hedge(sender.service);
            } else if self.body.is_some() {
                match sender.service.poll_ready(context) {
                    Poll::Ready(Ok(())) if self.running.resume_postponed(driver) => {
                        if let Some(body) = self.body.take() {
                            let request = AttemptRequest::again(template, body, new_connection);
                            self.running
                                .join(driver, |racer| sender.contend(racer, request));
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
            let (racer, outcome, trail, sent) =
                match ready!(self.running.poll_next(driver, context)) {
                    RaceEvent::Due => {
                        let extras = sender.extras.as_deref();
                        let resends = extras.and_then(|extras| extras.resends.as_ref());
                        match replay.beside(&config.reopen) {
                            Ok(body) if !resends.is_some_and(Resends::is_exhausted) => {
                                self.body = Some(body);
                            }
                            _ => self.running.cancel_due_hedge(driver),
                        }
                        continue;
                    }
                    RaceEvent::Ended(racer, (ended, trail, sent)) => {
                        let outcome = ended.map_err(|error| ServiceError::Service(error.into()));
                        (racer, outcome, trail, sent)
                    }
                    RaceEvent::CutOff(racer, mut contender) => {
                        let given = racer.attempt().limit.unwrap_or_default();
                        let trail = contender.as_mut().project().attempt.cut_off();
                        (racer, Err(ServiceError::Timeout(given)), trail, None)
                    }
                };
            let extras = sender.extras.as_deref_mut();
            let head = Some(template);
            let concluded = conclude(outcome, trail, config, extras, driver, facts, head);
            let (outcome, mut failure) = match concluded {
                Ok(response) => {
                    let seen = Some(Cause::Status(response.status().as_u16()));
                    self.running.won(driver, &self.hedge, &racer, seen);
                    self.give_up_hedge(sender.service);
                    if let Some(sent) = sent {
                        sent.over().detach();
                    }
                    return Poll::Ready(Ok(response));
                }
                Err(failed) => *failed,
            };
            // Without a response, the connection of the attempt has ended with it.
            let sent = sent.filter(|_| outcome.is_ok());
            let ended = Ended {
                outcome,
                busy: sent.as_ref().is_some_and(|sent| !sent.is_whole()),
                sending: sent.map_or(UnfinishedUpload::NOTHING, ReadProgress::over),
            };
            if !self.running.is_empty() {
                failure = apply_concurrent_attempts(failure, template.method());
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
