//! Between the attempts of a call: decides, waits, drains, and requests admission. Also distinguishes
//! concurrent attempts.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use relent::GaveUp;
use relent::clock::Sleeper;
use relent_core::{Cause, Decision, Failure, StopReason};
use tower_service::Service;

use super::attempt::{AttemptRequest, Sender};
use super::body::ResponseBody;
use super::future::{LayerStep, ResponseFuture};
use super::last_outcome::LastOutcome;
use super::outcome::{Ended, Output, known, with};
use super::race::RaceCall;
use super::readiness::{CannotStart, Reserve, release_readiness};
use super::state::{State, StateProjection, TimerUse, answer, summary};
use super::{Config, MapBody, ReadinessError, Resends, ServiceError};
use crate::attempt::{RequestTemplate, drain_time};
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
        mut next: LayerStep<R>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Output<R>>> {
        loop {
            next = match next {
                LayerStep::Over(output) => {
                    self.project().state.set(State::Done);
                    return Poll::Ready(Some(output));
                }
                LayerStep::Failed(ended, failure) => self.as_mut().decide(ended, failure),
                LayerStep::Yield => {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                LayerStep::Changed => match self.as_mut().project().state.project() {
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
    fn decide(self: Pin<&mut Self>, ended: Ended<R>, failure: Failure) -> LayerStep<R> {
        let mut this = self.project();
        let Ended {
            outcome,
            busy,
            sending,
        } = ended;
        let template = this.template.as_ref();
        known(this.facts, template, this.driver);
        let answered = outcome.is_ok();
        let once = template.is_none() || this.extras.as_ref().is_some_and(|extras| extras.once);
        let replay = &mut *this.replay;
        let extras = this.extras.as_ref();
        let resends = extras.and_then(|extras| extras.of_attempts.resends.as_ref());
        let unable = || {
            if once || resends.is_some_and(Resends::is_exhausted) {
                return Some(StopReason::RetriesExhausted);
            }
            let kept = replay.take_back(answered);
            kept.err().map(|_| StopReason::NotReplayable)
        };
        match this.driver.on_failure_unless(&failure, unable) {
            Decision::Stop(stop) => {
                observe::not_retried(stop.reason);
                sending.detach();
                let summary = summary(this.driver, this.extras.as_deref(), Some(stop));
                LayerStep::Over(match outcome {
                    Ok(response) => {
                        let method = template.map(RequestTemplate::method);
                        Ok(with(summary, ResponseBody::under(method, response)))
                    }
                    Err(error) => Err(GaveUp::new(Some(error), summary)),
                })
            }
            Decision::Retry { after } => {
                let extras = this.extras.get_or_insert_default();
                extras.new_connection = busy || failure.cause == Cause::Status(421);
                let last = extras.last.insert(LastOutcome::of(outcome));
                let drain_time = if last.is_draining() {
                    drain_time(after, this.driver.room())
                } else {
                    Duration::ZERO
                };
                // Drops the attempt and its resources before the wait.
                this.state.set(State::Waiting {
                    left: after,
                    drain_time,
                    timer: TimerUse::Nothing,
                    failure,
                });
                if after.is_zero() && this.driver.should_yield() {
                    LayerStep::Yield
                } else {
                    LayerStep::Changed
                }
            }
        }
    }

    /// Polls a race until one attempt succeeds, or all have failed.
    fn poll_race(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<LayerStep<R>> {
        let this = self.project();
        let (StateProjection::Racing { racing }, Some(template)) =
            (this.state.project(), this.template.as_ref())
        else {
            return Poll::Pending;
        };
        let extras = this.extras.get_or_insert_default();
        let sender = Sender {
            service: this.service,
            config: this.config,
            extras: Some(&mut extras.of_attempts),
        };
        let call = RaceCall {
            template,
            replay: this.replay,
            facts: this.facts,
            new_connection: extras.new_connection,
        };
        let finish = racing.poll_finish(this.driver, sender, call, context);
        Poll::Ready(match ready!(finish) {
            Ok(response) => {
                let (traced, method) = (this.config.traced, Some(template.method()));
                let extras = Some(&**extras);
                LayerStep::Over(Ok(answer(this.driver, extras, traced, method, response)))
            }
            Err((ended, failure)) => LayerStep::Failed(ended, failure),
        })
    }

    /// Waits until the delay ends and the last response is drained, which may take longer.
    fn poll_wait(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<LayerStep<R>> {
        let mut this = self.project();
        let StateProjection::Waiting {
            left,
            drain_time,
            timer,
            failure,
        } = this.state.as_mut().project()
        else {
            return Poll::Ready(LayerStep::Changed);
        };
        let mut last = this.extras.as_mut().and_then(|own| own.last.as_mut());
        let mut draining = match &mut last {
            Some(last) => last.poll_drain(context).is_pending(),
            None => false,
        };
        if matches!(timer, TimerUse::Wait) || draining && matches!(timer, TimerUse::Drain) {
            ready!(this.timer.poll(context));
        }
        *timer = TimerUse::Nothing;
        if drain_time.is_zero()
            && let Some(last) = last
        {
            last.end_drain();
            draining = false;
        }
        if !left.is_zero() {
            let wait = if draining {
                (*drain_time).min(*left)
            } else {
                *left
            };
            *left = left.saturating_sub(wait);
            *drain_time = drain_time.saturating_sub(wait);
            *timer = TimerUse::Wait;
            this.timer.set(this.driver.clock(), wait);
        } else if draining {
            *timer = TimerUse::Drain;
            this.timer.set(this.driver.clock(), *drain_time);
            *drain_time = Duration::ZERO;
        } else {
            let failure = *failure;
            this.state.set(State::Reserving {
                reserve: Reserve::Permit,
                failure,
            });
        }
        Poll::Ready(LayerStep::Changed)
    }

    /// Waits until destination and service admit the next attempt, or until it is too late.
    fn poll_reserve(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<LayerStep<R>> {
        let mut this = self.project();
        let StateProjection::Reserving { reserve, failure } = this.state.as_mut().project() else {
            return Poll::Ready(LayerStep::Changed);
        };
        let extras = &mut **this.extras.get_or_insert_default();
        let (driver, service) = (&mut *this.driver, &mut *this.service);
        let reserved = reserve.poll::<S, _, _>(driver, service, this.timer, context);
        let (own, stop) = match ready!(reserved) {
            Ok(permit) => {
                let first = extras.first.take();
                let template = this.template.as_ref();
                match next_body(first, template, this.replay, this.config) {
                    Ok((template, body)) => {
                        // The next attempt's outcome replaces it.
                        extras.last = None;
                        let sender = Sender {
                            service: this.service,
                            config: this.config,
                            extras: Some(&mut extras.of_attempts),
                        };
                        let hedge = extras.hedge.clone();
                        let request = AttemptRequest::again(template, body, extras.new_connection);
                        let next = State::start(sender, this.driver, permit, hedge, request);
                        this.state.set(next);
                        return Poll::Ready(LayerStep::Changed);
                    }
                    Err(error) => {
                        let stop = this
                            .driver
                            .on_retry_abandoned(failure, StopReason::NotReplayable);
                        (Some(ServiceError::Body(error)), stop)
                    }
                }
            }
            Err(CannotStart::HeldBack(stop)) => (None, stop),
            Err(CannotStart::NotReady(reason)) => {
                let stop = this.driver.on_retry_abandoned(failure, reason);
                (Some(ServiceError::NotReady), stop)
            }
            Err(CannotStart::Broken(error)) => {
                observe::not_ready();
                let stop = this
                    .driver
                    .on_retry_abandoned(failure, StopReason::Permanent);
                (Some(ServiceError::Service(error.into())), stop)
            }
        };
        // The caller may keep the future after it has completed.
        release_readiness(this.service);
        let summary = summary(this.driver, Some(extras), Some(stop));
        Poll::Ready(LayerStep::Over(match (extras.last.take(), own) {
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
