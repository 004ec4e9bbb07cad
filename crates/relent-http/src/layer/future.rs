//! The future of a call, written by hand: no box, and no allocation before it waits.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use relent::Attempt;
use relent::clock::{Clock, Sleeper};
use relent::driver::CallPermit;
use relent::timer::Timer;
use relent_core::destination::Hedge;
use relent_core::{Cause, Failure, Instant, Repeatable};
use tower_service::Service;

use super::last_outcome::LastOutcome;
use super::outcome::{
    AttemptResult, Ended, Output, answer, classification, is_certain_success, of_error,
};
use super::race::Racing;
use super::readiness::Reserve;
use super::{CallDriver, Config, MapBody, ServiceError};
use crate::attempt::{AttemptSpan, CrossLayerCall, RequestTemplate};
use crate::repeatable::RequestInfo;
use crate::replay::{BoxError, Reopen, Replay, ReplayBody, UnfinishedUpload};

pin_project! {
    /// The future of a [`Retry`](super::Retry). Dropping it at any point leaves the budget
    /// consistent, and drops the running attempt.
    #[must_use = "futures do nothing unless awaited"]
    pub struct ResponseFuture<S, B, R, K, M, N>
    where
        S: Service<Request<M::Body>>,
        K: Sleeper,
        M: MapBody<B>,
    {
        pub(super) config: Arc<Config<K, M, N>>,
        pub(super) service: S,
        // The head of the next attempt; `None` if there are no retries.
        pub(super) template: Option<RequestTemplate>,
        pub(super) replay: Replay<B>,
        // `None` until they are read from the head, since only failures need them.
        pub(super) facts: Option<RequestInfo>,
        pub(super) driver: CallDriver<K>,
        // One timer for delays and limits, created on first use and reused.
        pub(super) timer: Timer<K>,
        pub(super) extras: Option<Box<Extras<B, R, K>>>,
        #[pin]
        pub(super) state: State<S::Future, B, R, K>,
    }
}

/// State that few calls need, boxed to keep the others small.
pub(super) struct Extras<B, R, K: Clock> {
    /// The cross-layer headers of the attempts.
    pub(super) cross_layer_call: CrossLayerCall<K>,
    /// The hedge that joins slow attempts.
    pub(super) hedge: Option<Arc<Hedge>>,
    /// There is no attempt after the first.
    pub(super) once: bool,
    /// The body of the first attempt, while it is held.
    pub(super) first: Option<ReplayBody<B>>,
    /// The next attempt should use a new connection.
    pub(super) new_connection: bool,
    /// The outcome of the last attempt, until the next one starts.
    pub(super) last: Option<LastOutcome<R>>,
}

impl<B, R, K: Clock> Default for Extras<B, R, K> {
    fn default() -> Self {
        Self {
            cross_layer_call: CrossLayerCall::NOTHING,
            hedge: None,
            once: false,
            first: None,
            new_connection: false,
            last: None,
        }
    }
}

/// The time limit of a running attempt.
#[derive(Clone, Copy)]
pub(super) enum Limit {
    Never,
    /// Ends at this instant; the timer is set only when the attempt has to wait.
    At(Instant, Duration),
    /// The timer is set.
    Timer(Duration),
}

/// The purpose of the timer during a delay.
#[derive(Clone, Copy)]
pub(super) enum TimerUse {
    Nothing,
    Wait,
    /// For the remaining drain after the delay.
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
        // Until the delay ends and the last response is drained, which may take longer.
        Waiting {
            // The rest of the delay, and of the time to drain, after the timer has run out.
            left: Duration,
            drain_time: Duration,
            timer: TimerUse,
            failure: Failure,
        },
        // Until destination and service admit the next attempt, or until it is too late.
        Reserving {
            reserve: Reserve,
            failure: Failure,
        },
        // If polled again by mistake, the future must not call the service again.
        Done,
    }
}

/// The next step of a call.
pub(super) enum LayerStep<R> {
    /// Continue with the state, which has changed.
    Changed,
    /// Continue with the state, after yielding to other tasks.
    Yield,
    /// Decide about a failure.
    Failed(Ended<R>, Failure),
    /// The call ends.
    Over(Output<R>),
}

impl<R> LayerStep<R> {
    /// The step after an attempt without a response.
    fn failed(span: &mut AttemptSpan, error: ServiceError, failure: Failure) -> Self {
        span.failed(&failure);
        let ended = Ended {
            outcome: AttemptResult::Error(error),
            busy: false,
            sending: UnfinishedUpload::NOTHING,
        };
        Self::Failed(ended, failure)
    }
}

/// Starts an attempt.
#[inline]
pub(super) fn begin<K: Clock>(driver: &mut CallDriver<K>, leave: CallPermit) -> (Attempt, Limit) {
    let (attempt, ends) = driver.begin_attempt(leave);
    let limit = match (ends, attempt.limit) {
        (Some(ends), Some(limit)) => Limit::At(ends, limit),
        _ => Limit::Never,
    };
    (attempt, limit)
}

/// Ready when a running attempt has exceeded its limit; returns the limit.
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

/// The request facts, read on first use.
pub(super) fn known<K: Clock>(
    facts: &mut Option<RequestInfo>,
    template: Option<&RequestTemplate>,
    driver: &mut CallDriver<K>,
) -> RequestInfo {
    *facts.get_or_insert_with(|| {
        let facts = template.map_or_else(RequestInfo::default, RequestTemplate::facts);
        driver.set_repeatable(Repeatable::known(facts.repeatable));
        facts
    })
}

impl<S, B, R, K, M, N> Future for ResponseFuture<S, B, R, K, M, N>
where
    S: Service<Request<M::Body>, Response = Response<R>, Error: Into<BoxError>> + Clone,
    B: Body<Error: Into<BoxError>>,
    R: Body<Error: Into<BoxError>>,
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
                            let failure =
                                if is_certain_success(&response, this.config, this.driver.policy())
                                {
                                    None
                                } else {
                                    let facts =
                                        known(this.facts, this.template.as_ref(), this.driver);
                                    classification(&response, facts, this.config, this.driver)
                                };
                            match failure {
                                None => {
                                    span.answered(response.status(), None);
                                    let status = response.status().as_u16();
                                    this.driver.on_success_with(Cause::Status(status));
                                    this.state.set(State::Done);
                                    let traced = this.config.traced;
                                    let method =
                                        this.template.as_ref().map(RequestTemplate::method);
                                    let response = answer(this.driver, traced, method, response);
                                    return Poll::Ready(Ok(response));
                                }
                                Some(failure) => {
                                    span.answered(response.status(), Some(&failure));
                                    let outcome = AttemptResult::Response(response);
                                    let busy = !this.replay.is_whole();
                                    let ended = Ended {
                                        outcome,
                                        busy,
                                        sending: UnfinishedUpload::NOTHING,
                                    };
                                    LayerStep::Failed(ended, failure)
                                }
                            }
                        }
                        Poll::Ready(Err(error)) => {
                            let (error, failure) = of_error(error.into(), this.config.errors);
                            LayerStep::failed(span, ServiceError::Service(error), failure)
                        }
                        Poll::Pending => {
                            let given = ready!(poll_limit(limit, this.driver, this.timer, context));
                            let failure = Failure::ambiguous().cause(Cause::Timeout);
                            LayerStep::failed(span, ServiceError::Timeout(given), failure)
                        }
                    }
                }
                _ => LayerStep::Changed,
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
