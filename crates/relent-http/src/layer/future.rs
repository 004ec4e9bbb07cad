//! The future of a call, written by hand: no box, and no allocation before it waits.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use relent::clock::Sleeper;
use relent::timer::Timer;
use relent_core::{Cause, Failure};
use tower_service::Service;

use super::attempt::conclude;
use super::outcome::{Ended, Output};
use super::state::{AttemptLimit, CallExtras, State, StateProjection, answer};
use super::{CallDriver, Config, MapBody, ServiceError};
use crate::attempt::RequestTemplate;
use crate::repeatable::RequestInfo;
use crate::replay::{BoxError, Reopen, Replay, UnfinishedUpload};

pin_project! {
    /// The future of a [`RetryService`](super::RetryService). Dropping it at any point leaves the budget
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
        pub(super) extras: Option<Box<CallExtras<B, R, K>>>,
        #[pin]
        pub(super) state: State<S::Future, B, R, K>,
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

/// Ready when a running attempt has exceeded its limit; returns the limit.
fn poll_limit<K: Sleeper>(
    limit: &mut AttemptLimit,
    driver: &CallDriver<K>,
    timer: &mut Timer<K>,
    context: &mut Context<'_>,
) -> Poll<Duration> {
    let given = match *limit {
        AttemptLimit::Never => return Poll::Pending,
        AttemptLimit::At(ends, given) => {
            let clock = driver.clock();
            timer.set(clock, ends.saturating_since(clock.now()));
            *limit = AttemptLimit::Timer(given);
            given
        }
        AttemptLimit::Timer(given) => given,
    };
    timer.poll(context).map(|()| given)
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
                StateProjection::Running { mut attempt, limit } => {
                    let (outcome, trail) = match attempt.as_mut().poll(context) {
                        Poll::Ready((ended, trail)) => (
                            ended.map_err(|error| ServiceError::Service(error.into())),
                            trail,
                        ),
                        Poll::Pending => {
                            let given = ready!(poll_limit(limit, this.driver, this.timer, context));
                            (Err(ServiceError::Timeout(given)), attempt.cut_off())
                        }
                    };
                    let (config, template) = (&**this.config, this.template.as_ref());
                    let (driver, facts) = (&mut *this.driver, &mut *this.facts);
                    let extras = this.extras.as_mut().map(|extras| &mut extras.of_attempts);
                    match conclude(outcome, trail, config, extras, driver, facts, template) {
                        Ok(response) => {
                            let status = response.status().as_u16();
                            this.driver.on_success_with(Cause::Status(status));
                            this.state.set(State::Done);
                            let method = template.map(RequestTemplate::method);
                            let (extras, traced) = (this.extras.as_deref(), config.traced);
                            let response = answer(this.driver, extras, traced, method, response);
                            return Poll::Ready(Ok(response));
                        }
                        Err(failed) => {
                            let (outcome, failure) = *failed;
                            let ended = Ended {
                                busy: outcome.is_ok() && !this.replay.is_whole(),
                                outcome,
                                sending: UnfinishedUpload::NOTHING,
                            };
                            LayerStep::Failed(ended, failure)
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
