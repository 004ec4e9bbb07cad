//! Outcomes of attempts, and the decisions after them.

use super::{Call, CallWork, Environment, refundable_budget};
use crate::call::session::decision::{Decision, DelaySource};
use crate::call::stop::{Stop, StopReason};
use crate::destination::attempt_outcome::AttemptOutcome;
use crate::destination::{Access, Destination};
use crate::failure::{Cause, Failure};
use crate::time::Instant;
use core::time::Duration;

impl Call<'_> {
    /// The operation succeeded.
    #[inline]
    pub fn succeeded<E: Environment>(&mut self, environment: &mut E) {
        if self.work != CallWork::Nothing {
            self.report_success(environment);
            if self.work == CallWork::Extras {
                self.record_success(environment);
            }
        }
    }

    /// The operation succeeded, and the [trace](Self::take_trace) is not needed: records nothing.
    #[inline]
    pub fn succeeded_untraced<E: Environment>(&mut self, environment: &mut E) {
        if self.work != CallWork::Nothing {
            self.report_success(environment);
        }
    }

    #[inline]
    fn report_success<E: Environment>(&mut self, environment: &mut E) {
        let hears = |there: &&Destination<_>| {
            there
                .refundable_budget()
                .needs_success(self.session.taken())
        };
        let there = environment.destination().filter(hears);
        self.session.on_success(there.and_then(Destination::budget));
        self.answered(environment);
    }

    /// The operation succeeded. `seen` is the result for the trace: a status, an exit status.
    #[inline]
    pub fn succeeded_with<E: Environment>(&mut self, environment: &mut E, seen: Cause) {
        self.succeeded(environment);
        if self.work == CallWork::Extras {
            self.note_seen(seen);
        }
    }

    #[cold]
    fn note_seen(&mut self, seen: Cause) {
        if let Some(last) = self.last_recorded() {
            last.seen = Some(seen);
        }
    }

    #[cold]
    fn record_success<E: Environment>(&mut self, environment: &E) {
        let now = self.now(environment);
        self.record(now, None, None);
    }

    /// The attempt failed. Returns whether to retry after a delay, or to stop.
    #[inline]
    pub fn failed<E: Environment>(&mut self, environment: &mut E, failure: &Failure) -> Decision {
        self.failed_unless(environment, failure, || None)
    }

    /// The attempt failed, and the transport may be unable to retry for a reason that the policy cannot
    /// know, such as [`StopReason::NotReplayable`]. `unable` is called only if there would be a retry.
    /// So the policy's own reason to stop takes precedence: a permanent failure is not reported as "not
    /// replayable".
    pub fn failed_unless<E: Environment>(
        &mut self,
        environment: &mut E,
        failure: &Failure,
        unable: impl FnOnce() -> Option<StopReason>,
    ) -> Decision {
        self.conclude(environment, failure, |call, environment, now, failure| {
            let waits = call.extras.as_mut();
            let delay = match waits.and_then(|extras| extras.waits.as_mut()) {
                Some(waits) => DelaySource::given(waits.next()),
                None => DelaySource::Backoff,
            };
            let decision = call.decide(environment, now, failure, delay);
            if let Decision::Retry { .. } = decision
                && let Some(reason) = unable()
            {
                call.session.on_cancel(refundable_budget(environment));
                return Decision::Stop(Stop::after(now, failure, reason));
            }
            decision
        })
    }

    /// Like [`failed`](Self::failed), with the caller's own delay instead of the policy's backoff;
    /// `None` ends the retries. Cap, jitter, hints and limits of the policy still apply.
    pub fn failed_with<E: Environment>(
        &mut self,
        environment: &mut E,
        failure: &Failure,
        own: Option<Duration>,
    ) -> Decision {
        self.conclude(environment, failure, |call, environment, now, failure| {
            call.decide(environment, now, failure, DelaySource::given(own))
        })
    }

    /// The attempt failed, and the transport ends the call for a reason that the policy cannot know,
    /// such as [`StopReason::NotReplayable`].
    pub fn failed_for_good<E: Environment>(
        &mut self,
        environment: &mut E,
        failure: &Failure,
        reason: StopReason,
    ) -> Stop {
        let decision = self.conclude(environment, failure, |_, _, now, failure| {
            Decision::Stop(Stop::after(now, failure, reason))
        });
        let retry_at = decision.stop().and_then(|stop| stop.retry_at);
        Stop { reason, retry_at }
    }

    /// Ends the attempt that failed: the destination learns of it, `decide` decides, and the decision is
    /// recorded and reported.
    #[inline]
    fn conclude<E: Environment>(
        &mut self,
        environment: &mut E,
        failure: &Failure,
        decide: impl FnOnce(&mut Self, &mut E, Instant, &Failure) -> Decision,
    ) -> Decision {
        let now = self.now(environment);
        self.note_cause(environment.policy(), failure.cause, now);
        if let Some(destination) = environment.destination()
            && (destination.learns() || failure.hint.delay().is_some() || !self.has_left())
        {
            self.failed_there(environment, now, failure);
        }
        // Earlier attempts of this call do not concern the destination.
        let failure = &self.session.in_view_of_earlier(*failure);
        let decision = decide(self, environment, now, failure);
        let mut counted = false;
        if self.work == CallWork::Extras {
            self.record(now, Some(*failure), Some(decision));
            counted = self.take_counted();
        }
        if !counted {
            environment.on_failure(failure);
        }
        environment.on_decision(self.session.attempts(), failure, &decision);
        environment.on_budget();
        decision
    }

    /// The decision of the session, within the limits of this call.
    #[inline]
    fn decide<E: Environment>(
        &mut self,
        environment: &mut E,
        now: Instant,
        failure: &Failure,
        delay: DelaySource,
    ) -> Decision {
        let latest = self.no_deadline_end(environment);
        let (policy, budget, random) = environment.parts();
        self.session
            .decide(policy, now, failure, delay, random, budget, latest)
    }

    /// The running attempt has made permanent progress, though it will fail. Restarts the count of
    /// retries and the backoff. `max_elapsed` and the deadline stay, and the limits of the circuit
    /// breaker count from now. The destination is up, so the following failure does not count against
    /// it. Call it before the failure; see
    /// [`Session::on_progress`](crate::Session::on_progress).
    pub fn progressed<E: Environment>(&mut self, environment: &mut E) {
        let now = self.now(environment);
        self.answered(environment);
        self.session
            .on_progress(now, refundable_budget(environment));
    }

    /// Reports the outcome of an attempt that was redirected to another destination, and began there at
    /// `since`. A `failure` of `None` is a success. Without the instant only the cooldown and the rate
    /// limit there are updated, since its breaker would learn of failures but not of successes.
    ///
    /// The call keeps its permit, and its own budget pays. Call it before [`failed`](Self::failed),
    /// whose failure then has [`Hop::Elsewhere`](crate::Hop), or before [`succeeded`](Self::succeeded).
    #[cold]
    pub fn redirected<E: Environment>(
        &mut self,
        environment: &mut E,
        there: &Destination<impl Access>,
        since: Option<Instant>,
        failure: Option<&Failure>,
    ) {
        let now = self.now(environment);
        let timed_out = failure.is_some_and(|failure| failure.cause == Cause::Timeout);
        if timed_out && since.is_some_and(|since| self.had_little_time(environment, now, since)) {
            return;
        }
        if there.on_redirected(now, since, failure) {
            environment.on_cooldown();
        }
    }

    /// The caller cancels the call. Refunds a retry that was granted but not started.
    pub fn cancel<E: Environment>(&mut self, environment: &mut E) -> Stop {
        let stop = Stop::because(StopReason::Cancelled);
        self.break_off(environment, None, stop);
        stop
    }

    /// The transport cannot retry after all, for a reason that the policy cannot know and that showed
    /// only after the delay. Refunds the retry. Report reasons known before the delay with
    /// [`failed_unless`](Self::failed_unless).
    pub fn abandon_retry<E: Environment>(
        &mut self,
        environment: &mut E,
        failure: &Failure,
        reason: StopReason,
    ) -> Stop {
        let now = self.now(environment);
        let stop = Stop::after(now, failure, reason);
        self.break_off(environment, Some(failure), stop);
        stop
    }

    /// The call ends for another reason than a failed attempt: returns everything it has acquired, and
    /// reports it.
    pub(super) fn break_off<E: Environment>(
        &mut self,
        environment: &mut E,
        failure: Option<&Failure>,
        stop: Stop,
    ) {
        self.end_stage(environment, &AttemptOutcome::UNKNOWN);
        self.session.on_cancel(refundable_budget(environment));
        self.give_back_hedge_slot(environment);
        environment.on_stop(self.session.attempts(), failure, stop.reason);
        environment.on_budget();
        self.record_stop(stop, || environment.now());
    }
}
