//! The attempts of a request that is hedged.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use relent::Attempt;
use relent::clock::{Clock, Sleeper};
use relent::driver::Leave;
use relent::race::{RaceEvent, Racer, Running};
use relent_core::{Cause, Failure, Hedge, Raced};
use tower_service::Service;

use super::future::{Outcome, judge, of_error, span_of};
use super::head::Head;
use super::readiness::let_go;
use super::{CallDriver, Config, MapBody, ServiceError};
use crate::classify::is_gone;
use crate::cross_layer::Telling;
use crate::observe::AttemptSpan;
use crate::repeatable::RequestFacts;
use crate::replay::{BoxError, Progressed, Reopen, Replay, ReplayBody};

pin_project! {
    /// One attempt, with what it has sent of its body.
    pub(super) struct Sent<F, B> {
        #[pin]
        call: F,
        sent: Progressed<B>,
        // `None` when it is over.
        span: Option<AttemptSpan>,
    }
}

impl<F, B> Future for Sent<F, B>
where
    F: Future,
    B: Body,
    B::Error: Into<BoxError>,
{
    /// With it, whether the whole body was sent.
    type Output = (F::Output, bool, Option<AttemptSpan>);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let entered = this.span.as_ref().map(AttemptSpan::enter);
        let output = ready!(this.call.poll(context));
        drop(entered);
        Poll::Ready((output, this.sent.is_whole(), this.span.take()))
    }
}

/// A race of attempts, in a box: few requests have one.
pub(super) struct Racing<F, B, R, K: Sleeper> {
    hedge: Arc<Hedge>,
    running: Running<Sent<F, B>, K>,
    /// Of the hedge that waits for the service to be ready.
    body: Option<ReplayBody<B>>,
    /// What belongs to the failure that decides, unless a plainer one comes.
    kept: Option<Ended<R>>,
}

/// A failed attempt: its outcome, and whether its connection is still busy with the request.
pub(super) struct Ended<R> {
    pub(super) outcome: Outcome<R>,
    pub(super) busy: bool,
}

/// How a race ended: with the response that won, or with the failure that decides.
type Finish<R> = Result<Response<R>, (Ended<R>, Failure)>;

/// What an attempt is made of, beside its body.
pub(super) struct Call<'a, S, K: Clock, M, N> {
    pub(super) service: &'a mut S,
    pub(super) head: &'a Head,
    pub(super) config: &'a Config<K, M, N>,
    pub(super) fresh: bool,
    pub(super) telling: &'a mut Telling<K>,
}

impl<S, K: Clock, M, N> Call<'_, S, K, M, N> {
    /// Sends an attempt after the first. The service is ready.
    fn send<B, R>(&mut self, body: ReplayBody<B>, racer: &Racer) -> Sent<S::Future, B>
    where
        S: Service<Request<M::Body>, Response = Response<R>>,
        K: Clock + Clone,
        M: MapBody<B>,
    {
        let sent = body.progressed();
        let body = self.config.map.map_body(body);
        let attempt = racer.attempt();
        let mut request = self.head.attempt(body, attempt, self.fresh, self.config);
        self.telling.tell(&attempt, request.headers_mut());
        let span = span_of(&request, attempt.number);
        let entered = span.enter();
        let call = self.service.call(request);
        drop(entered);
        Sent {
            call,
            sent,
            span: Some(span),
        }
    }
}

impl<F, B, R, K> Racing<F, B, R, K>
where
    F: Future,
    B: Body,
    B::Error: Into<BoxError>,
    K: Sleeper + Clone,
{
    fn new(hedge: Arc<Hedge>) -> Box<Self> {
        Box::new(Self {
            hedge,
            running: Running::new(),
            body: None,
            kept: None,
        })
    }

    /// The first attempt of a call starts.
    pub(super) fn first(
        hedge: Arc<Hedge>,
        driver: &mut CallDriver<K>,
        leave: Leave,
        sent: Progressed<B>,
        span: AttemptSpan,
        send: impl FnOnce(Attempt) -> F,
    ) -> Box<Self> {
        let mut racing = Self::new(hedge);
        let hedge = racing.hedge.clone();
        let start = |racer: &Racer| {
            let entered = span.enter();
            let call = send(racer.attempt());
            drop(entered);
            Sent {
                call,
                sent,
                span: Some(span),
            }
        };
        racing.running.begin(driver, &hedge, leave, start);
        racing
    }

    /// A retry starts, which may be hedged as well.
    pub(super) fn again<S, M, N>(
        hedge: Arc<Hedge>,
        driver: &mut CallDriver<K>,
        leave: Leave,
        mut call: Call<'_, S, K, M, N>,
        body: ReplayBody<B>,
    ) -> Box<Self>
    where
        S: Service<Request<M::Body>, Response = Response<R>, Future = F>,
        M: MapBody<B>,
    {
        let mut racing = Self::new(hedge);
        let hedge = racing.hedge.clone();
        let start = |racer: &Racer| call.send(body, racer);
        racing.running.begin(driver, &hedge, leave, start);
        racing
    }

    /// The hedge that waited for the service is not sent. Neither is the readiness kept that it may
    /// have, nor its place in the line.
    fn give_up_hedge<S: Clone>(&mut self, service: &mut S) {
        if self.body.take().is_some() {
            let_go(service);
        }
    }

    /// Goes on until one attempt has succeeded or all have failed.
    pub(super) fn poll_finish<S, M, N>(
        &mut self,
        driver: &mut CallDriver<K>,
        mut call: Call<'_, S, K, M, N>,
        replay: &mut Replay<B>,
        facts: RequestFacts,
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
                self.give_up_hedge(call.service);
            } else if self.body.is_some() {
                match call.service.poll_ready(context) {
                    Poll::Ready(Ok(())) if self.running.renew(driver) => {
                        if let Some(body) = self.body.take() {
                            let start = |racer: &Racer| call.send(body, racer);
                            self.running.join(driver, start);
                        }
                    }
                    Poll::Ready(Ok(())) => self.give_up_hedge(call.service),
                    // Those that run may yet succeed.
                    Poll::Ready(Err(_)) => {
                        self.running.call_off(driver);
                        self.give_up_hedge(call.service);
                    }
                    Poll::Pending => self.running.put_off(driver),
                }
            }
            let (racer, ended, mut failure) = match ready!(self.running.poll_next(driver, context))
            {
                RaceEvent::Due => {
                    match replay.beside(&call.config.reopen) {
                        Ok(body) => self.body = Some(body),
                        Err(_) => self.running.call_off(driver),
                    }
                    continue;
                }
                RaceEvent::Ended(racer, (Ok(response), whole, mut span)) => {
                    let failure = judge(&response, facts, call.config, driver);
                    if let Some(span) = &mut span {
                        span.answered(response.status(), failure.as_ref());
                    }
                    let Some(failure) = failure else {
                        let seen = Some(Cause::Status(response.status().as_u16()));
                        self.running.won(driver, &self.hedge, &racer, seen);
                        self.give_up_hedge(call.service);
                        return Poll::Ready(Ok(response));
                    };
                    let ended = Ended {
                        outcome: Outcome::Response(response),
                        busy: !whole,
                    };
                    (racer, ended, failure)
                }
                RaceEvent::Ended(racer, (Err(error), _, span)) => {
                    let (error, failure) = of_error(error.into(), call.config.errors);
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
            if call.config.calls_twice {
                let outcome = &ended.outcome;
                call.config.heed_calls(driver, outcome, &mut failure);
            }
            if !self.running.is_empty() && is_gone(call.head.method(), &failure) {
                // The attempt that is still running may have deleted it.
                failure.as_if_done = true;
            }
            match self.running.failed(driver, &self.hedge, &racer, &failure) {
                Raced::GoesOn { kept } => {
                    if kept {
                        self.kept = Some(ended);
                    }
                }
                Raced::Over { failure, latest } => {
                    let kept = self.kept.take().filter(|_| !latest);
                    self.give_up_hedge(call.service);
                    return Poll::Ready(Err((kept.unwrap_or(ended), failure)));
                }
            }
        }
    }
}

impl<R> Ended<R> {
    fn error(error: ServiceError, span: Option<AttemptSpan>, failure: &Failure) -> Self {
        if let Some(mut span) = span {
            span.failed(failure);
        }
        Self {
            outcome: Outcome::Error(error),
            busy: false,
        }
    }
}
