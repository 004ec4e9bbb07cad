//! The future of a call, written by hand: no box, and no allocation before it waits.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Method, Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use relent::clock::{Clock, Sleeper};
use relent::driver::Leave;
use relent::timer::Timer;
use relent::{Attempt, GaveUp, Summary};
#[cfg(feature = "grpc")]
use relent_core::Network;
use relent_core::{Cause, Failure, Hedge, Instant, Kind, Policy, Repeatable};
use tower_service::Service;

use super::body::ResponseBody;
use super::head::Head;
use super::last::Last;
use super::race::{Ended, Racing};
use super::readiness::Reserve;
use super::{CallDriver, ClassifyError, Config, MapBody, ServiceError};
use crate::classify::cannot_fail;
use crate::cross_layer::Telling;

use crate::network;
use crate::observe::AttemptSpan;
use crate::repeatable::RequestFacts;
use crate::replay::{BoxError, Reopen, Replay};

pin_project! {
    /// The future of a [`Retry`](super::Retry). Dropping it at any point leaves the budget
    /// consistent, and lets the running attempt go.
    #[must_use = "futures do nothing unless awaited"]
    pub struct ResponseFuture<S, B, R, K, M, N>
    where
        S: Service<Request<M::Body>>,
        K: Sleeper,
        M: MapBody<B>,
    {
        pub(super) config: Arc<Config<K, M, N>>,
        pub(super) service: S,
        // What the next attempt sends; `None` if there is none.
        pub(super) head: Option<Head>,
        pub(super) replay: Replay<B>,
        // `None` while they have not been read from the head, since only failures need them.
        pub(super) facts: Option<RequestFacts>,
        pub(super) driver: CallDriver<K>,
        // One timer for waits and limits, made when it is first needed and reused.
        pub(super) timer: Timer<K>,
        pub(super) extras: Option<Box<Extras<M::Body, R, K>>>,
        #[pin]
        pub(super) state: State<S::Future, B, R, K>,
    }
}

/// What few calls have, out of the way of those that do not.
pub(super) struct Extras<T, R, K: Clock> {
    /// What the attempts tell the server.
    pub(super) telling: Telling<K>,
    /// What joins attempts that take long.
    pub(super) hedge: Option<Arc<Hedge>>,
    /// The request of the first attempt, while it may not start.
    pub(super) first: Option<Request<T>>,
    /// The next attempt should have a new connection.
    pub(super) fresh: bool,
    /// What the last attempt has left, until the next one starts.
    pub(super) last: Option<Last<R>>,
}

impl<T, R, K: Clock> Default for Extras<T, R, K> {
    fn default() -> Self {
        Self {
            telling: Telling::NOTHING,
            hedge: None,
            first: None,
            fresh: false,
            last: None,
        }
    }
}

/// When a running attempt is cut off.
#[derive(Clone, Copy)]
pub(super) enum Limit {
    Never,
    /// Then; the timer is not set before the attempt has to wait.
    At(Instant, Duration),
    /// When the timer says so.
    Timer(Duration),
}

/// What the timer of a wait is set for.
#[derive(Clone, Copy)]
pub(super) enum Set {
    Nothing,
    Wait,
    /// For what is still to be drained after the wait.
    Drain,
}

pin_project! {
    #[project = StateProjection]
    pub(super) enum State<F, B, R, K: Sleeper> {
        Running {
            #[pin]
            attempt: F,
            limit: Limit,
            span: AttemptSpan,
        },
        // Until one of several attempts has succeeded, or all have failed.
        Racing {
            racing: Box<Racing<F, B, R, K>>,
        },
        // Until the wait is over and the last response is drained, which may take longer.
        Waiting {
            // What is left of the wait, and of the time to drain, when the timer has run out.
            left: Duration,
            patience: Duration,
            timer: Set,
            failure: Failure,
        },
        // Until destination and service have room for the next attempt, or it is too late.
        Reserving {
            reserve: Reserve,
            failure: Failure,
        },
        // Polled again by mistake, it must not call the service again.
        Done,
    }
}

impl<F, B, R, K: Sleeper> State<F, B, R, K> {
    /// An attempt that is sent now.
    pub(super) fn running<S, T>(
        service: &mut S,
        request: Request<T>,
        number: u32,
        limit: Limit,
    ) -> Self
    where
        S: Service<Request<T>, Future = F>,
    {
        let span = span_of(&request, number);
        let entered = span.enter();
        let attempt = service.call(request);
        drop(entered);
        Self::Running {
            attempt,
            limit,
            span,
        }
    }
}

/// What a call does next.
pub(super) enum Next<R> {
    /// What its state says, which has changed.
    Changed,
    /// The same, when others have had their turn.
    Yield,
    /// It decides what to make of a failure.
    Failed(Ended<R>, Failure),
    /// It ends.
    Over(Output<R>),
}

impl<R> Next<R> {
    /// After an attempt without a response.
    fn failed(span: &mut AttemptSpan, error: ServiceError, failure: Failure) -> Self {
        span.failed(&failure);
        let ended = Ended {
            outcome: Outcome::Error(error),
            busy: false,
        };
        Self::Failed(ended, failure)
    }
}

/// How an attempt ended.
pub(super) enum Outcome<R> {
    Response(Response<R>),
    Error(ServiceError),
}

impl<R> Outcome<R> {
    pub(super) const fn response(&self) -> Option<&Response<R>> {
        match self {
            Self::Response(response) => Some(response),
            Self::Error(_) => None,
        }
    }
}

pub(super) type Output<R> = Result<Response<ResponseBody<R>>, GaveUp<ServiceError>>;

/// An attempt starts.
#[inline]
pub(super) fn begin<K: Clock>(driver: &mut CallDriver<K>, leave: Leave) -> (Attempt, Limit) {
    let (attempt, ends) = driver.begin_attempt(leave);
    let limit = match (ends, attempt.limit) {
        (Some(ends), Some(limit)) => Limit::At(ends, limit),
        _ => Limit::Never,
    };
    (attempt, limit)
}

/// The span of the attempt that sends this.
#[inline]
pub(super) fn span_of<T>(request: &Request<T>, attempt: u32) -> AttemptSpan {
    AttemptSpan::start(request.method(), request.uri(), request.headers(), attempt)
}

/// Ready when a running attempt is to be cut off, with the time that it was given.
fn poll_limit<K: Sleeper>(
    limit: &mut Limit,
    driver: &CallDriver<K>,
    timer: &mut Timer<K>,
    context: &mut Context<'_>,
) -> Poll<Duration> {
    let given = match *limit {
        Limit::Never => return Poll::Pending,
        Limit::At(ends, given) => {
            let clock = driver.clock();
            timer.set(clock, ends.saturating_since(clock.now()));
            *limit = Limit::Timer(given);
            given
        }
        Limit::Timer(given) => given,
    };
    timer.poll(context).map(|()| given)
}

/// What the layer for gRPC has found out.
#[inline]
fn verdict<R>(response: &Response<R>) -> Option<Option<Failure>> {
    #[cfg(feature = "grpc")]
    if let Some(super::grpc::Verdict(failure)) = response.extensions().get() {
        return Some(*failure);
    }
    #[cfg(not(feature = "grpc"))]
    let _ = response;
    None
}

/// What is known of the request, read when it is first needed.
pub(super) fn known<K: Clock>(
    facts: &mut Option<RequestFacts>,
    head: Option<&Head>,
    driver: &mut CallDriver<K>,
) -> RequestFacts {
    *facts.get_or_insert_with(|| {
        let facts = head.map_or_else(RequestFacts::default, Head::facts);
        driver.set_repeatable(Repeatable::known(facts.repeatable));
        facts
    })
}

/// Whether a response is no failure by this policy, whatever is known of its request.
#[inline]
fn is_fine<R>(response: &Response<R>, policy: &Policy) -> bool {
    cannot_fail(response.status(), response.headers())
        && !policy.makes_failure_of(response.status().as_u16())
        && verdict(response).is_none()
}

/// The failure that a response is, if it is one.
#[inline]
pub(super) fn judge<R, K: Clock, M, N>(
    response: &Response<R>,
    facts: RequestFacts,
    config: &Config<K, M, N>,
    driver: &CallDriver<K>,
) -> Option<Failure> {
    let (status, headers) = (response.status(), response.headers());
    if is_fine(response, driver.policy()) {
        return None;
    }
    let now = driver.clock().wall();
    let mut failure = match verdict(response) {
        Some(verdict) => verdict?,
        None => crate::classify(status, headers, facts, now, &config.hints).or_else(|| {
            crate::classify_listed(driver.policy(), status, headers, now, &config.hints)
        })?,
    };
    let given_up_below = response
        .extensions()
        .get::<Summary>()
        .is_some_and(|summary| summary.reason.is_some());
    if given_up_below && failure.kind != Kind::Permanent {
        failure.kind = Kind::Overloaded;
    }
    Some(failure)
}

/// The error of an attempt, and the failure that it is.
pub(super) fn of_error(error: BoxError, classify: ClassifyError) -> (BoxError, Failure) {
    if network::chain(&*error).any(<dyn Error>::is::<GaveUp<ServiceError>>) {
        return (error, Failure::overloaded());
    }
    #[cfg(feature = "grpc")]
    let error = match error.downcast::<super::grpc::AfterHead>() {
        Ok(after) => {
            let mut failure = classify(&*after.0);
            if failure.kind == Kind::NotProcessed {
                failure = Failure::network(Network::Reset);
            }
            return (after.0, failure);
        }
        Err(error) => error,
    };
    let failure = classify(&*error);
    (error, failure)
}

/// What a call that has succeeded ends with.
#[inline]
pub(super) fn answer<R, K: Clock>(
    driver: &mut CallDriver<K>,
    traced: bool,
    method: Option<&Method>,
    response: Response<R>,
) -> Response<ResponseBody<R>> {
    let response = ResponseBody::under(method, response);
    if driver.attempts() > 1 || traced {
        return with(driver.summary(None), response);
    }
    response
}

#[cold]
pub(super) fn with<R>(summary: Summary, mut response: Response<R>) -> Response<R> {
    response.extensions_mut().insert(summary);
    response
}

impl<S, B, R, K, M, N> Future for ResponseFuture<S, B, R, K, M, N>
where
    S: Service<Request<M::Body>, Response = Response<R>> + Clone,
    S::Error: Into<BoxError>,
    B: Body,
    B::Error: Into<BoxError>,
    R: Body,
    R::Error: Into<BoxError>,
    K: Sleeper + Clone,
    M: MapBody<B>,
    N: Reopen<B>,
{
    type Output = Output<R>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Output<R>> {
        loop {
            let mut this = self.as_mut().project();
            let next = match this.state.as_mut().project() {
                StateProjection::Running {
                    attempt,
                    limit,
                    span,
                } => {
                    let entered = span.enter();
                    let polled = attempt.poll(context);
                    drop(entered);
                    match polled {
                        Poll::Ready(Ok(response)) => {
                            let failure = if is_fine(&response, this.driver.policy()) {
                                None
                            } else {
                                let facts = known(this.facts, this.head.as_ref(), this.driver);
                                judge(&response, facts, this.config, this.driver)
                            };
                            match failure {
                                None => {
                                    span.answered(response.status(), None);
                                    let status = response.status().as_u16();
                                    this.driver.on_success_with(Cause::Status(status));
                                    this.state.set(State::Done);
                                    let traced = this.config.traced;
                                    let method = this.head.as_ref().map(Head::method);
                                    let response = answer(this.driver, traced, method, response);
                                    return Poll::Ready(Ok(response));
                                }
                                Some(failure) => {
                                    span.answered(response.status(), Some(&failure));
                                    let outcome = Outcome::Response(response);
                                    let busy = !this.replay.is_whole();
                                    Next::Failed(Ended { outcome, busy }, failure)
                                }
                            }
                        }
                        Poll::Ready(Err(error)) => {
                            let (error, failure) = of_error(error.into(), this.config.errors);
                            Next::failed(span, ServiceError::Service(error), failure)
                        }
                        Poll::Pending => {
                            let given = ready!(poll_limit(limit, this.driver, this.timer, context));
                            let failure = Failure::ambiguous().cause(Cause::Timeout);
                            Next::failed(span, ServiceError::Timeout(given), failure)
                        }
                    }
                }
                _ => Next::Changed,
            };
            if let Some(output) = ready!(self.as_mut().poll_between(next, context)) {
                return Poll::Ready(output);
            }
        }
    }
}

impl<S, B, R, K, M, N> fmt::Debug for ResponseFuture<S, B, R, K, M, N>
where
    S: Service<Request<M::Body>>,
    K: Sleeper,
    M: MapBody<B>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture")
            .field("driver", &self.driver)
            .finish_non_exhaustive()
    }
}
