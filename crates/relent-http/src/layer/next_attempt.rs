//! Between the attempts of a call: decides, waits, drains, and requests admission. Also distinguishes
//! concurrent attempts.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use relent::GaveUp;
use relent::clock::Sleeper;
use relent::driver::Leave;
use relent_core::{Cause, Decision, Failure, Hop, StopReason};
use tower_service::Service;

use super::body::ResponseBody;
use super::future::{Extras, Next, ResponseFuture, Set, State, StateProjection, begin, known};
use super::last_outcome::LastOutcome;
use super::outcome::{Ended, Outcome, Output, answer, with};
use super::race::Racing;
use super::readiness::{Reserve, Unable, let_go};
use super::sender::Sender;
use super::{CallDriver, Config, MapBody, ReadinessError, ServiceError};
use crate::attempt::{RequestTemplate, patience};
use crate::observe;
use crate::replay::{BoxError, NotReplayable, Reopen, Replay, ReplayBody};

impl<S, B, R, K, M, N> ResponseFuture<S, B, R, K, M, N>
where
    S: Service<Request<M::Body>, Response = Response<R>, Error: Into<BoxError>> + Clone,
    B: Body<Error: Into<BoxError>>,
    R: Body<Error: Into<BoxError>>,
    K: Sleeper + Clone,
    M: MapBody<B>,
    N: Reopen<B>,
{
    /// Runs until the call ends, or until an attempt runs, which is `None`.
    #[inline(never)]
    pub(super) fn poll_between(
        mut self: Pin<&mut Self>,
        mut next: Next<R>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Output<R>>> {
        loop {
            next = match next {
                Next::Over(output) => {
                    self.project().state.set(State::Done);
                    return Poll::Ready(Some(output));
                }
                Next::Failed(ended, failure) => self.as_mut().decide(ended, failure),
                Next::Yield => {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Next::Changed => match self.as_mut().project().state.project() {
                    StateProjection::Running { .. } => return Poll::Ready(None),
                    StateProjection::Racing { .. } => ready!(self.as_mut().poll_race(context)),
                    StateProjection::Waiting { .. } => ready!(self.as_mut().poll_wait(context)),
                    StateProjection::Reserving { .. } => {
                        ready!(self.as_mut().poll_reserve(context))
                    }
                    StateProjection::Done => return Poll::Pending,
                },
            };
        }
    }

    /// Decides after an attempt, or a race of several, has failed.
    fn decide(self: Pin<&mut Self>, ended: Ended<R>, mut failure: Failure) -> Next<R> {
        let mut this = self.project();
        let Ended {
            outcome,
            busy,
            sending,
        } = ended;
        // A race has done this already.
        if this.config.calls_twice && failure.hop == Hop::None {
            let config = &**this.config;
            config.heed_calls(this.driver, &outcome, &mut failure);
        }
        let template = this.template.as_ref();
        known(this.facts, template, this.driver);
        let answered = matches!(outcome, Outcome::Response(_));
        let once = template.is_none() || this.extras.as_ref().is_some_and(|extras| extras.once);
        let replay = &mut *this.replay;
        let unable = || {
            if once {
                return Some(StopReason::RetriesExhausted);
            }
            let kept = replay.take_back(answered);
            kept.err().map(|_| StopReason::NotReplayable)
        };
        match this.driver.on_failure_unless(&failure, unable) {
            Decision::Stop(stop) => {
                observe::not_retried(stop.reason);
                sending.goes_on();
                let summary = this.driver.summary(Some(stop));
                Next::Over(match outcome {
                    Outcome::Response(response) => {
                        let method = template.map(RequestTemplate::method);
                        Ok(with(summary, ResponseBody::under(method, response)))
                    }
                    Outcome::Error(error) => Err(GaveUp::new(Some(error), summary)),
                })
            }
            Decision::Retry { after } => {
                let extras = this.extras.get_or_insert_default();
                extras.fresh = busy || failure.cause == Cause::Status(421);
                let last = extras.last.insert(LastOutcome::of(outcome));
                let patience = if last.is_draining() {
                    patience(after, this.driver.room())
                } else {
                    Duration::ZERO
                };
                // Drops the attempt and its resources before the wait.
                this.state.set(State::Waiting {
                    left: after,
                    patience,
                    timer: Set::Nothing,
                    failure,
                });
                if after.is_zero() && this.driver.is_turn_over() {
                    Next::Yield
                } else {
                    Next::Changed
                }
            }
        }
    }

    /// Polls a race until one attempt succeeds, or all have failed.
    fn poll_race(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Next<R>> {
        let this = self.project();
        let (StateProjection::Racing { racing }, Some(template)) =
            (this.state.project(), this.template.as_ref())
        else {
            return Poll::Pending;
        };
        let extras = this.extras.get_or_insert_default();
        let sender = Sender {
            service: this.service,
            template,
            config: this.config,
            fresh: extras.fresh,
            telling: &mut extras.telling,
        };
        let facts = known(this.facts, Some(template), this.driver);
        let finish = racing.poll_finish(this.driver, sender, this.replay, facts, context);
        Poll::Ready(match ready!(finish) {
            Ok(response) => {
                let (traced, method) = (this.config.traced, Some(template.method()));
                Next::Over(Ok(answer(this.driver, traced, method, response)))
            }
            Err((ended, failure)) => Next::Failed(ended, failure),
        })
    }

    /// Waits until the delay ends and the last response is drained, which may take longer.
    fn poll_wait(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Next<R>> {
        let mut this = self.project();
        let StateProjection::Waiting {
            left,
            patience,
            timer,
            failure,
        } = this.state.as_mut().project()
        else {
            return Poll::Ready(Next::Changed);
        };
        let mut last = this.extras.as_mut().and_then(|own| own.last.as_mut());
        let mut draining = match &mut last {
            Some(last) => last.poll_drain(context).is_pending(),
            None => false,
        };
        if matches!(timer, Set::Wait) || draining && matches!(timer, Set::Drain) {
            ready!(this.timer.poll(context));
        }
        *timer = Set::Nothing;
        if patience.is_zero()
            && let Some(last) = last
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
            this.timer.set(this.driver.clock(), wait);
        } else if draining {
            *timer = Set::Drain;
            this.timer.set(this.driver.clock(), *patience);
            *patience = Duration::ZERO;
        } else {
            let failure = *failure;
            this.state.set(State::Reserving {
                reserve: Reserve::Leave,
                failure,
            });
        }
        Poll::Ready(Next::Changed)
    }

    /// Waits until destination and service admit the next attempt, or until it is too late.
    fn poll_reserve(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Next<R>> {
        let mut this = self.project();
        let StateProjection::Reserving { reserve, failure } = this.state.as_mut().project() else {
            return Poll::Ready(Next::Changed);
        };
        let extras = this.extras.get_or_insert_default();
        let reserved = reserve.poll::<S, _, _>(this.driver, this.service, this.timer, context);
        let (own, stop) = match ready!(reserved) {
            Ok(leave) => {
                let first = extras.first.take();
                let template = this.template.as_ref();
                match next_body(first, template, this.replay, this.config) {
                    Ok((template, body)) => {
                        // The next attempt's outcome replaces it.
                        extras.last = None;
                        let (service, config) = (&mut *this.service, &**this.config);
                        let next =
                            extras.start(service, config, this.driver, leave, template, body);
                        this.state.set(next);
                        return Poll::Ready(Next::Changed);
                    }
                    Err(error) => {
                        let stop = this.driver.on_declined(failure, StopReason::NotReplayable);
                        (Some(ServiceError::Body(error)), stop)
                    }
                }
            }
            Err(Unable::HeldBack(stop)) => (None, stop),
            Err(Unable::NotReady(reason)) => {
                let stop = this.driver.on_declined(failure, reason);
                (Some(ServiceError::NotReady), stop)
            }
            Err(Unable::Broken(error)) => {
                observe::not_ready();
                let stop = this.driver.on_declined(failure, StopReason::Permanent);
                (Some(ServiceError::Service(error.into())), stop)
            }
        };
        // The caller may keep the future after it has completed.
        let_go(this.service);
        let summary = this.driver.summary(Some(stop));
        Poll::Ready(Next::Over(match (extras.last.take(), own) {
            (Some(mut last), own) => {
                if let Some(ServiceError::Service(error)) = own {
                    last.note(ReadinessError::new(error));
                }
                last.into_output(summary)
            }
            (None, own) => Err(GaveUp::new(own, summary)),
        }))
    }
}

impl<B, R, K> Extras<B, R, K>
where
    B: Body<Error: Into<BoxError>>,
    K: Sleeper + Clone,
{
    /// Starts an attempt, with the hedge that may join it. The service must be ready.
    pub(super) fn start<S, M, N>(
        &mut self,
        service: &mut S,
        config: &Config<K, M, N>,
        driver: &mut CallDriver<K>,
        leave: Leave,
        template: &RequestTemplate,
        body: ReplayBody<B>,
    ) -> State<S::Future, B, R, K>
    where
        S: Service<Request<M::Body>, Response = Response<R>>,
        M: MapBody<B>,
    {
        let mut sender = Sender {
            service,
            template,
            config,
            fresh: self.fresh,
            telling: &mut self.telling,
        };
        if let Some(hedge) = self.hedge.clone() {
            let racing = Racing::begin(hedge, driver, leave, sender, body);
            return State::Racing { racing };
        }
        let (attempt, limit) = begin(driver, leave);
        let (attempt, span) = sender.send(body, attempt);
        State::Running {
            attempt,
            limit,
            span,
        }
    }
}

/// The body of the next attempt, and the request template.
fn next_body<'t, B, K, M, N>(
    first: Option<ReplayBody<B>>,
    template: Option<&'t RequestTemplate>,
    replay: &mut Replay<B>,
    config: &Config<K, M, N>,
) -> Result<(&'t RequestTemplate, ReplayBody<B>), NotReplayable>
where
    B: Body<Error: Into<BoxError>>,
    N: Reopen<B>,
{
    let template = template.ok_or(NotReplayable)?;
    let body = first.map_or_else(|| replay.again(&config.reopen), Ok)?;
    Ok((template, body))
}
