//! The future of a call, written by hand: no box, and no allocation before it waits.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use relent::{Attempt, Clock, Entry, GaveUp, Sleeper, Summary};
use relent_core::{Cause, Decision, Failure, Hedge, Instant, Kind, StopReason};
use tower_service::Service;

use super::body::ResponseBody;
use super::head::Head;
use super::last::Last;
use super::race::{Call, Ended, Finish, Racing};
use super::{CallDriver, Config, MapBody, Override, ServiceError};
use crate::classify::cannot_fail;
use crate::cross_layer::Telling;
use crate::drain;
use crate::network;
use crate::observe::AttemptSpan;
use crate::repeatable::RequestFacts;
use crate::replay::{BoxError, NotReplayable, Reopen, Replay, ReplayBody};

/// A service that fails at once, again and again, without a wait, lets other tasks run after this
/// many attempts.
const ATTEMPTS_PER_TURN: u32 = 32;

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
        config: Arc<Config<K, M, N>>,
        service: S,
        // What the next attempt sends; `None` if there is none.
        head: Option<Head>,
        // The request of the first attempt, while it may not start.
        first: Option<Box<Request<M::Body>>>,
        replay: Replay<B>,
        facts: RequestFacts,
        driver: CallDriver<K>,
        // What the attempts tell the server.
        telling: Telling<K>,
        // One timer for waits and limits, made when it is first needed and reused.
        timer: Option<Pin<Box<K::Sleep>>>,
        // The next attempt should have a new connection.
        fresh: bool,
        // What joins attempts that take long.
        hedge: Option<Arc<Hedge>>,
        // What the last attempt has left, until the next one starts.
        last: Option<Box<Last<R>>>,
        #[pin]
        state: State<S::Future, B, R, K>,
    }
}

/// When a running attempt is cut off.
#[derive(Clone, Copy)]
enum Limit {
    Never,
    /// Then; the timer is not set before the attempt has to wait.
    At(Instant, Duration),
    /// When the timer says so.
    Timer(Duration),
}

/// What the timer of a wait is set for.
#[derive(Clone, Copy)]
enum Set {
    Nothing,
    Wait,
    /// For what is still to be drained after the wait.
    Drain,
}

pin_project! {
    #[project = StateProjection]
    enum State<F, B, R, K: Sleeper> {
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
        // Until the service is ready for the next attempt, or the deadline.
        Reserving {
            timed: bool,
            failure: Failure,
        },
        // Polled again by mistake, it must not call the service again.
        Done,
    }
}

/// How an attempt ended.
pub(super) enum Outcome<R> {
    Response(Response<R>),
    Error(ServiceError),
}

pub(super) type Output<R> = Result<Response<ResponseBody<R>>, GaveUp<ServiceError>>;

impl<S, B, R, K, M, N> ResponseFuture<S, B, R, K, M, N>
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
    /// Calls the service, which is ready.
    #[inline]
    pub(super) fn start(
        service: &mut S,
        config: &Arc<Config<K, M, N>>,
        mut request: Request<B>,
    ) -> Self {
        let mut overrides: Option<Override> = if request.extensions().is_empty() {
            None
        } else {
            request.extensions_mut().remove()
        };
        config.obey_deadline(&request, &mut overrides);
        let facts = RequestFacts::of(request.method(), request.headers());
        let mut driver = config.driver(request.uri(), facts, overrides.as_ref());
        let once = driver.policy().max_retries() == Some(0)
            || overrides
                .as_ref()
                .is_some_and(|overrides| overrides.no_retry);
        let hedge = if once {
            None
        } else {
            config.hedge_for(facts, overrides.as_ref(), driver.policy())
        };
        let head = (!once).then(|| Head::of(&request));
        let (parts, body) = request.into_parts();
        let cap = if once { 0 } else { config.cap };
        let (mut replay, body) = Replay::new(body, &config.reopen, cap);
        if replay.is_streamed()
            && let Some(length) = content_length(&parts)
        {
            replay.announce(length);
        }
        let sent = hedge.is_some().then(|| body.progressed());
        let mut request = Request::from_parts(parts, config.map.map_body(body));
        config.route(&mut request, 1);
        let mut telling = config.telling();
        let mut first = None;
        let state = match (driver.enter(None), &hedge, sent) {
            // The destination wants to be left alone for now: the future waits. What waited is not
            // hedged.
            (Entry::Wait(_) | Entry::Stop(_), ..) => {
                first = Some(Box::new(request));
                State::Reserving {
                    timed: false,
                    failure: Failure::not_processed(),
                }
            }
            (Entry::Go, Some(hedge), Some(sent)) => {
                let span = span_of(&request, 1);
                let send = |attempt| {
                    telling.tell(&attempt, request.headers_mut());
                    service.call(request)
                };
                State::Racing {
                    racing: Racing::first(hedge.clone(), &mut driver, sent, span, send),
                }
            }
            (Entry::Go, ..) => {
                let span = span_of(&request, 1);
                let (first, limit) = begin(&mut driver);
                telling.tell(&first, request.headers_mut());
                let attempt = span.in_scope(|| service.call(request));
                State::Running {
                    attempt,
                    limit,
                    span,
                }
            }
        };
        Self {
            config: config.clone(),
            service: service.clone(),
            head,
            first,
            replay,
            facts,
            driver,
            telling,
            timer: None,
            fresh: false,
            hedge,
            last: None,
            state,
        }
    }

    fn poll_output(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Output<R>> {
        let mut this = self.project();
        loop {
            let (outcome, failure, busy) = match this.state.as_mut().project() {
                StateProjection::Done => return Poll::Pending,
                StateProjection::Running {
                    attempt,
                    limit,
                    span,
                } => match span.in_scope(|| attempt.poll(context)) {
                    Poll::Ready(Ok(response)) => {
                        match judge(&response, *this.facts, this.config, this.driver) {
                            None => {
                                span.answered(response.status(), None);
                                let status = response.status().as_u16();
                                this.driver.on_success_with(Cause::Status(status));
                                this.state.set(State::Done);
                                let response = response.map(ResponseBody::of);
                                if this.driver.attempts() > 1 || this.config.traced {
                                    let summary = this.driver.summary(None);
                                    return Poll::Ready(Ok(with(summary, response)));
                                }
                                return Poll::Ready(Ok(response));
                            }
                            Some(failure) => {
                                span.answered(response.status(), Some(&failure));
                                let busy = !this.replay.is_whole();
                                (Outcome::Response(response), failure, busy)
                            }
                        }
                    }
                    Poll::Ready(Err(error)) => {
                        let error = error.into();
                        let failure = of_error(&*error);
                        span.failed(&failure);
                        (Outcome::Error(ServiceError::Service(error)), failure, false)
                    }
                    Poll::Pending => {
                        let given = ready!(poll_limit(limit, this.driver, this.timer, context));
                        let failure = Failure::ambiguous().cause(Cause::Timeout);
                        span.failed(&failure);
                        (Outcome::Error(ServiceError::Timeout(given)), failure, false)
                    }
                },
                StateProjection::Racing { racing } => {
                    let Some(head) = this.head.as_ref() else {
                        return Poll::Pending;
                    };
                    let call = Call {
                        service: this.service,
                        head,
                        config: this.config,
                        fresh: *this.fresh,
                        telling: this.telling,
                    };
                    let (driver, facts) = (&mut *this.driver, *this.facts);
                    match ready!(racing.poll_finish(driver, call, this.replay, facts, context)) {
                        Finish::Won(response) => {
                            this.state.set(State::Done);
                            let response = response.map(ResponseBody::of);
                            if this.driver.attempts() > 1 || this.config.traced {
                                let summary = this.driver.summary(None);
                                return Poll::Ready(Ok(with(summary, response)));
                            }
                            return Poll::Ready(Ok(response));
                        }
                        Finish::Failed(Ended { outcome, busy }, failure) => {
                            (outcome, failure, busy)
                        }
                    }
                }
                StateProjection::Waiting {
                    left,
                    patience,
                    timer,
                    failure,
                } => {
                    let mut draining = match this.last {
                        Some(last) => last.poll_drain(context).is_pending(),
                        None => false,
                    };
                    if matches!(timer, Set::Wait) || draining && matches!(timer, Set::Drain) {
                        ready!(poll_timer(this.timer, context));
                    }
                    *timer = Set::Nothing;
                    if patience.is_zero()
                        && let Some(last) = this.last
                    {
                        last.end_drain();
                        draining = false;
                    }
                    if !left.is_zero() {
                        let wait = if draining {
                            (*patience).min(*left)
                        } else {
                            *left
                        };
                        *left = left.saturating_sub(wait);
                        *patience = patience.saturating_sub(wait);
                        *timer = Set::Wait;
                        set_timer(this.timer, this.driver.clock(), wait);
                        continue;
                    }
                    if draining {
                        *timer = Set::Drain;
                        set_timer(this.timer, this.driver.clock(), *patience);
                        *patience = Duration::ZERO;
                        continue;
                    }
                    let failure = *failure;
                    this.state.set(State::Reserving {
                        timed: false,
                        failure,
                    });
                    continue;
                }
                StateProjection::Reserving { timed, failure } => {
                    if let Err(stop) = ready!(this.driver.poll_enter(context, this.timer)) {
                        this.state.set(State::Done);
                        let summary = this.driver.summary(Some(stop));
                        return Poll::Ready(match this.last.take() {
                            Some(last) => last.into_output(summary),
                            None => Err(GaveUp::new(None, summary)),
                        });
                    }
                    let (last, stop) = match this.service.poll_ready(context) {
                        Poll::Ready(Ok(())) => {
                            if let Some(mut request) = this.first.take() {
                                let (attempt, limit) = begin(this.driver);
                                this.telling.tell(&attempt, request.headers_mut());
                                let span = span_of(&request, 1);
                                let attempt = span.in_scope(|| this.service.call(*request));
                                this.state.set(State::Running {
                                    attempt,
                                    limit,
                                    span,
                                });
                                continue;
                            }
                            match again(this.head.as_ref(), this.replay, this.config) {
                                Ok((head, body)) => {
                                    // The next outcome takes its place.
                                    *this.last = None;
                                    let (config, fresh) = (&**this.config, *this.fresh);
                                    let state = if let Some(hedge) = this.hedge {
                                        let call = Call {
                                            service: this.service,
                                            head,
                                            config,
                                            fresh,
                                            telling: this.telling,
                                        };
                                        let hedge = hedge.clone();
                                        let racing = Racing::again(hedge, this.driver, call, body);
                                        State::Racing { racing }
                                    } else {
                                        let body = config.map.map_body(body);
                                        let (attempt, limit) = begin(this.driver);
                                        let mut request =
                                            head.attempt(body, attempt, fresh, config);
                                        this.telling.tell(&attempt, request.headers_mut());
                                        let span = span_of(&request, attempt.number);
                                        let attempt = span.in_scope(|| this.service.call(request));
                                        State::Running {
                                            attempt,
                                            limit,
                                            span,
                                        }
                                    };
                                    this.state.set(state);
                                    continue;
                                }
                                Err(error) => {
                                    let stop =
                                        this.driver.on_declined(failure, StopReason::NotReplayable);
                                    let own = Box::new(Last::Error(ServiceError::Body(error)));
                                    (this.last.take().unwrap_or(own), stop)
                                }
                            }
                        }
                        Poll::Ready(Err(error)) => {
                            let stop = this.driver.on_declined(failure, StopReason::Permanent);
                            let own = Last::Error(ServiceError::Service(error.into()));
                            (Box::new(own), stop)
                        }
                        Poll::Pending => {
                            if !*timed {
                                let Some(left) = this.driver.remaining() else {
                                    return Poll::Pending;
                                };
                                *timed = true;
                                set_timer(this.timer, this.driver.clock(), left);
                            }
                            ready!(poll_timer(this.timer, context));
                            let stop = this.driver.on_declined(failure, StopReason::Deadline);
                            let own = Box::new(Last::Error(ServiceError::NotReady));
                            (this.last.take().unwrap_or(own), stop)
                        }
                    };
                    this.state.set(State::Done);
                    let summary = this.driver.summary(Some(stop));
                    return Poll::Ready(last.into_output(summary));
                }
            };

            let answered = matches!(outcome, Outcome::Response(_));
            *this.fresh = busy || failure.cause == Cause::Status(421);
            let (head, replay) = (this.head.as_ref(), &mut *this.replay);
            let unable = || match head {
                None => Some(StopReason::RetriesExhausted),
                Some(_) => {
                    let kept = replay.take_back(answered);
                    kept.err().map(|_| StopReason::NotReplayable)
                }
            };
            match this.driver.on_failure_unless(&failure, unable) {
                Decision::Stop(stop) => {
                    this.state.set(State::Done);
                    let summary = this.driver.summary(Some(stop));
                    return Poll::Ready(match outcome {
                        Outcome::Response(response) => {
                            Ok(with(summary, response.map(ResponseBody::of)))
                        }
                        Outcome::Error(error) => Err(GaveUp::new(Some(error), summary)),
                    });
                }
                Decision::Retry { after } => {
                    let last = this.last.insert(Box::new(Last::of(outcome)));
                    let patience = if last.is_draining() {
                        drain::patience(after, this.driver.room())
                    } else {
                        Duration::ZERO
                    };
                    // Drops the attempt, with all that it holds, before the wait.
                    this.state.set(State::Waiting {
                        left: after,
                        patience,
                        timer: Set::Nothing,
                        failure,
                    });
                    if after.is_zero() && this.driver.attempts().is_multiple_of(ATTEMPTS_PER_TURN) {
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
            }
        }
    }
}

fn content_length(head: &Parts) -> Option<u64> {
    let length = head.headers.get(CONTENT_LENGTH)?;
    length.to_str().ok()?.parse().ok()
}

/// An attempt starts.
#[inline]
fn begin<K: Clock>(driver: &mut CallDriver<K>) -> (Attempt, Limit) {
    let (attempt, ends) = driver.begin_attempt();
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

/// What an attempt after the first sends.
fn again<'h, B, K, M, N>(
    head: Option<&'h Head>,
    replay: &mut Replay<B>,
    config: &Config<K, M, N>,
) -> Result<(&'h Head, ReplayBody<B>), NotReplayable>
where
    B: Body,
    B::Error: Into<BoxError>,
    N: Reopen<B>,
{
    let head = head.ok_or(NotReplayable)?;
    Ok((head, replay.again(&config.reopen)?))
}

/// Ready when a running attempt is to be cut off, with the time that it was given.
fn poll_limit<K: Sleeper>(
    limit: &mut Limit,
    driver: &CallDriver<K>,
    timer: &mut Option<Pin<Box<K::Sleep>>>,
    context: &mut Context<'_>,
) -> Poll<Duration> {
    let given = match *limit {
        Limit::Never => return Poll::Pending,
        Limit::At(ends, given) => {
            let clock = driver.clock();
            set_timer(timer, clock, ends.saturating_since(clock.now()));
            *limit = Limit::Timer(given);
            given
        }
        Limit::Timer(given) => given,
    };
    poll_timer(timer, context).map(|()| given)
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

/// The failure that a response is, if it is one.
#[inline]
pub(super) fn judge<R, K: Clock, M, N>(
    response: &Response<R>,
    facts: RequestFacts,
    config: &Config<K, M, N>,
    driver: &CallDriver<K>,
) -> Option<Failure> {
    let (status, headers) = (response.status(), response.headers());
    if cannot_fail(status, headers) && verdict(response).is_none() {
        return None;
    }
    let now = driver.clock().wall();
    let mut failure = match verdict(response) {
        Some(verdict) => verdict?,
        None => crate::classify(status, headers, facts, now, &config.hints)?,
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

pub(super) fn of_error(error: network::Source<'_>) -> Failure {
    if network::chain(error).any(<dyn Error>::is::<GaveUp<ServiceError>>) {
        return Failure::overloaded();
    }
    network::classify_error(error)
}

#[cold]
pub(super) fn with<R>(summary: Summary, mut response: Response<R>) -> Response<R> {
    response.extensions_mut().insert(summary);
    response
}

fn set_timer<K: Sleeper>(timer: &mut Option<Pin<Box<K::Sleep>>>, clock: &K, duration: Duration) {
    let sleep = clock.sleep(duration);
    match timer {
        Some(timer) => timer.as_mut().set(sleep),
        None => *timer = Some(Box::pin(sleep)),
    }
}

fn poll_timer<F: Future<Output = ()>>(
    timer: &mut Option<Pin<Box<F>>>,
    context: &mut Context<'_>,
) -> Poll<()> {
    match timer {
        Some(timer) => timer.as_mut().poll(context),
        None => Poll::Ready(()),
    }
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
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Output<R>> {
        self.poll_output(context)
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
