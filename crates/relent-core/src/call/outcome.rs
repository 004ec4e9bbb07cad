//! What a call makes of how an attempt ended.

use super::{Attends, Call, Environment, Place, repaid, stop_after};
use crate::decision::{Decision, Stop, StopReason};
use crate::destination::{Access, Destination};
use crate::failure::{Cause, Failure};
use crate::gate::Ended;
use crate::time::Instant;
use core::time::Duration;

impl<L: Place> Call<'_, L> {
    /// The operation succeeded.
    #[inline]
    pub fn succeeded<E: Environment<Place = L>>(&mut self, environment: &mut E) {
        if self.attends != Attends::Nothing {
            self.tell_success(environment);
            if self.attends == Attends::Extras {
                self.record_success(environment);
            }
        }
    }

    /// The same where nobody will ask for the [trace](Self::take_trace): nothing is written down.
    #[inline]
    pub fn succeeded_unseen<E: Environment<Place = L>>(&mut self, environment: &mut E) {
        if self.attends != Attends::Nothing {
            self.tell_success(environment);
        }
    }

    #[inline]
    fn tell_success<E: Environment<Place = L>>(&mut self, environment: &mut E) {
        let hears =
            |there: &&Destination<_>| there.repaid_budget().hears_of_success(self.session.taken());
        let there = environment.destination().filter(hears);
        self.session.on_success(there.and_then(Destination::budget));
        self.answered(environment);
    }

    /// The same, with what was seen of the success, for the trace: a status, an exit status.
    #[inline]
    pub fn succeeded_with<E: Environment<Place = L>>(&mut self, environment: &mut E, seen: Cause) {
        self.succeeded(environment);
        if self.attends == Attends::Extras {
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
    fn record_success<E: Environment<Place = L>>(&mut self, environment: &E) {
        let now = self.now(environment);
        self.record(now, None, None);
    }

    /// The attempt failed: retry after a wait, or stop?
    #[inline]
    pub fn failed<E: Environment<Place = L>>(
        &mut self,
        environment: &mut E,
        failure: &Failure,
    ) -> Decision {
        if self.attends == Attends::Extras || failure.as_if_in_progress {
            return self.failed_in_full(environment, failure);
        }
        // The short path: it goes into the transport's own loop.
        self.note_cause(failure.cause);
        let now = self.now(environment);
        if let Some(destination) = environment.destination()
            && (destination.learns() || failure.hint.delay().is_some() || !self.has_left())
        {
            self.failed_there(environment, now, failure);
        }
        let latest = self.open_end(environment);
        let (policy, budget, random) = environment.parts();
        let decision = self
            .session
            .on_failure_until(policy, now, failure, random, budget, latest);
        self.tell_decision(environment, failure, &decision, true);
        decision
    }

    #[cold]
    #[inline(never)]
    fn failed_in_full<E: Environment<Place = L>>(
        &mut self,
        environment: &mut E,
        failure: &Failure,
    ) -> Decision {
        self.failed_unless(environment, failure, || None)
    }

    /// The same where the transport may be unable to make use of a retry, for a reason that the policy
    /// cannot know, such as [`StopReason::NotReplayable`]. It is asked only if there would be a retry,
    /// so the policy's own reason to stop stands: what is permanent is not called "not replayable".
    pub fn failed_unless<E: Environment<Place = L>>(
        &mut self,
        environment: &mut E,
        failure: &Failure,
        unable: impl FnOnce() -> Option<StopReason>,
    ) -> Decision {
        self.note_cause(failure.cause);
        let failure = &self.session.in_view_of_earlier(*failure);
        let now = self.now(environment);
        self.failed_there(environment, now, failure);
        let latest = self.open_end(environment);
        let (policy, budget, random) = environment.parts();
        let waits = self
            .extras
            .as_mut()
            .and_then(|extras| extras.waits.as_mut());
        let mut decision = match waits {
            Some(waits) => {
                let own = waits.next();
                self.session
                    .on_failure_with_until(policy, now, failure, own, random, budget, latest)
            }
            None => self
                .session
                .on_failure_until(policy, now, failure, random, budget, latest),
        };
        if let Decision::Retry { .. } = decision
            && let Some(reason) = unable()
        {
            self.session.on_cancel(budget);
            decision = Decision::Stop(stop_after(now, failure, reason));
        }
        self.decided(environment, now, failure, decision);
        decision
    }

    /// The same as [`failed`](Self::failed) with a wait of the caller's own in place of the policy's
    /// backoff; `None` says that there is no other. Ceiling, jitter, hints and limits of the policy
    /// apply as ever.
    pub fn failed_with<E: Environment<Place = L>>(
        &mut self,
        environment: &mut E,
        failure: &Failure,
        own: Option<Duration>,
    ) -> Decision {
        self.note_cause(failure.cause);
        let failure = &self.session.in_view_of_earlier(*failure);
        let now = self.now(environment);
        self.failed_there(environment, now, failure);
        let latest = self.open_end(environment);
        let (policy, budget, random) = environment.parts();
        let decision = self
            .session
            .on_failure_with_until(policy, now, failure, own, random, budget, latest);
        self.decided(environment, now, failure, decision);
        decision
    }

    /// The attempt failed, and the transport ends the call, for a reason that the policy cannot know,
    /// such as [`StopReason::NotReplayable`].
    pub fn failed_for_good<E: Environment<Place = L>>(
        &mut self,
        environment: &mut E,
        failure: &Failure,
        reason: StopReason,
    ) -> Stop {
        self.note_cause(failure.cause);
        let now = self.now(environment);
        self.failed_there(environment, now, failure);
        let stop = stop_after(now, failure, reason);
        self.decided(environment, now, failure, Decision::Stop(stop));
        stop
    }

    /// The running attempt has brought the operation on for good, though it fails: the count of
    /// retries and the backoff begin anew, and limits of time hold. Its destination is up: the failure
    /// that follows is no sign against it. To be said before the failure; see
    /// [`Session::on_progress`](crate::Session::on_progress).
    pub fn progressed<E: Environment<Place = L>>(&mut self, environment: &mut E) {
        let now = self.now(environment);
        self.answered(environment);
        self.session.on_progress(now, repaid(environment));
    }

    /// An attempt of this call was redirected to another destination, and began there at this instant:
    /// tells that destination how it ended. A `failure` of `None` is a success. Without the instant only
    /// its cooldown and its request rate hear of it, and not its gate, which would learn of failures
    /// where successes are not told.
    ///
    /// The call keeps its leave, and its budget pays. To be said before [`failed`](Self::failed), whose
    /// failure has [`Hop::Elsewhere`](crate::Hop) then, or before [`succeeded`](Self::succeeded).
    #[cold]
    pub fn elsewhere<E: Environment<Place = L>>(
        &mut self,
        environment: &mut E,
        there: &Destination<impl Access>,
        since: Option<Instant>,
        failure: Option<&Failure>,
    ) {
        let now = self.now(environment);
        if there.on_redirected(now, since, failure) {
            environment.on_cooldown();
        }
    }

    /// The caller goes away. A retry that was granted but not started is given back.
    pub fn cancel<E: Environment<Place = L>>(&mut self, environment: &mut E) -> Stop {
        let stop = Stop {
            reason: StopReason::Cancelled,
            retry_at: None,
        };
        self.break_off(environment, None, stop);
        stop
    }

    /// The transport cannot make use of the retry after all, for a reason that the policy cannot know
    /// and that showed only after the wait. It is given back. What is known before the wait is for
    /// [`failed_unless`](Self::failed_unless).
    pub fn decline<E: Environment<Place = L>>(
        &mut self,
        environment: &mut E,
        failure: &Failure,
        reason: StopReason,
    ) -> Stop {
        let now = self.now(environment);
        let stop = stop_after(now, failure, reason);
        self.break_off(environment, Some(failure), stop);
        stop
    }

    /// The call ends, and not because an attempt failed: gives back all that it has, and tells of it.
    pub(super) fn break_off<E: Environment<Place = L>>(
        &mut self,
        environment: &mut E,
        failure: Option<&Failure>,
        stop: Stop,
    ) {
        self.end_stage(environment, Ended::Unknown);
        self.session.on_cancel(repaid(environment));
        self.give_back_hedge_slot(environment);
        environment.on_stop(self.session.attempts(), failure, stop.reason);
        environment.on_budget();
        self.record_stop(stop, || environment.now());
    }

    /// Writes a decision down, and tells of it.
    fn decided<E: Environment<Place = L>>(
        &mut self,
        environment: &E,
        now: Instant,
        failure: &Failure,
        decision: Decision,
    ) {
        self.record(now, Some(*failure), Some(decision));
        let counted = self.take_counted();
        self.tell_decision(environment, failure, &decision, !counted);
    }

    #[inline]
    fn tell_decision<E: Environment<Place = L>>(
        &self,
        environment: &E,
        failure: &Failure,
        decision: &Decision,
        count: bool,
    ) {
        if count {
            environment.on_failure(failure);
        }
        environment.on_decision(self.session.attempts(), failure, decision);
        environment.on_budget();
    }
}
