//! Reports of a call to its destination when an attempt is over, and when the call goes away.

use core::mem;

use super::destination_state::Stage;
use super::{Call, Environment, refundable_budget};
use crate::destination::attempt_outcome::AttemptOutcome;
use crate::destination::circuit_breaker::{BreakerOutcome, BreakerRule, Waiter};
use crate::destination::outbound::{BlockedBy, Permit};
use crate::failure::Failure;
use crate::time::Instant;

impl Call<'_> {
    /// The destination responded, whatever the result.
    #[inline]
    pub fn answered<E: Environment>(&mut self, environment: &E) {
        self.end_stage(environment, &AttemptOutcome::SUCCESS);
    }

    /// The running attempt is over, or the call goes away.
    #[inline]
    pub(super) fn end_stage<E: Environment>(&mut self, environment: &E, ended: &AttemptOutcome) {
        if !self.has_left() {
            self.end_there(environment, ended);
        }
    }

    /// Whether the destination holds nothing of this call that has to be released.
    #[inline]
    pub(super) fn has_left(&self) -> bool {
        match &self.destination_state {
            None => true,
            Some(entered) => matches!(
                entered.stage,
                Stage::NotRequired | Stage::Idle | Stage::Stopped(..)
            ),
        }
    }

    #[inline(never)]
    fn end_there<E: Environment>(&mut self, environment: &E, ended: &AttemptOutcome) {
        let before = self.blocked_since();
        self.leave_there(environment, ended);
        self.report_admission(environment, before, None);
    }

    fn leave_there<E: Environment>(&mut self, environment: &E, ended: &AttemptOutcome) {
        let (Some(destination), Some(entered)) =
            (environment.destination(), &mut self.destination_state)
        else {
            return;
        };
        if let Stage::Stopped(..) | Stage::NotRequired = entered.stage {
            return;
        }
        let now = || environment.now();
        match mem::replace(&mut entered.stage, Stage::Idle) {
            Stage::Waiting { by, answer_by, .. } => {
                let caller = Waiter {
                    until: answer_by,
                    since: self.session.since(),
                    id: entered.id,
                };
                destination.leave(&caller, by == BlockedBy::Cooldown, now);
            }
            Stage::Permitted(permit) if permit.has_begun() => {
                // Neither a success nor an unknown outcome begins a cooldown.
                destination.end(now(), permit, ended);
            }
            Stage::Permitted(permit) => destination.cancel(now(), permit),
            Stage::Idle | Stage::NotRequired | Stage::Stopped(..) => {}
        }
    }

    #[inline(never)]
    pub(super) fn failed_there<E: Environment>(
        &mut self,
        environment: &E,
        now: Instant,
        failure: &Failure,
    ) {
        let Some(destination) = environment.destination() else {
            return;
        };
        let before = self.blocked_since();
        let state = self.destination_state.as_mut();
        let permit = state.and_then(|entered| entered.stage.take_permit(Permit::has_begun));
        let started = permit.as_ref().map_or(now, Permit::started);
        if permit.as_ref().is_some_and(Permit::is_probe) && BreakerRule::FreeProbe.is_on() {
            self.session.on_probe(environment.policy());
        }
        let mut outcome = AttemptOutcome::of(failure);
        if permit.is_some()
            && outcome.circuit_breaker == BreakerOutcome::TimedOut
            && self.had_little_time(environment, now, started)
        {
            outcome = AttemptOutcome::UNKNOWN;
        }
        if destination.learn(now, started, permit, &outcome) {
            environment.on_cooldown();
        }
        // An attempt that was not running has no outcome to report.
        self.leave_there(environment, &AttemptOutcome::UNKNOWN);
        self.report_admission(environment, before, None);
    }

    /// Whether the running attempt, cut off at `now`, got less than half of its normal time limit since
    /// `started`. That is no evidence about the destination: a queued request that starts in its last
    /// milliseconds would count as a timeout, and keep the breaker from releasing others.
    pub fn had_little_time<E: Environment>(
        &self,
        environment: &E,
        now: Instant,
        started: Instant,
    ) -> bool {
        let answer_by = self.answer_by(environment);
        let whole = answer_by.saturating_since(self.session.started());
        let timeout = self.session.attempt_timeout(environment.policy());
        let given = timeout.map_or(whole, |timeout| timeout.min(whole));
        // The timeout of the attempt counts from its start, also if it was redirected later.
        let timed_out = self
            .attempt_started()
            .zip(timeout)
            .is_some_and(|(began, timeout)| now >= began.saturating_add(timeout));
        (now >= answer_by || timed_out) && now.saturating_since(started) < given / 2
    }

    /// When the running attempt started, if its destination has admitted it.
    fn attempt_started(&self) -> Option<Instant> {
        match &self.destination_state.as_ref()?.stage {
            Stage::Permitted(permit) if permit.has_begun() => Some(permit.started()),
            _ => None,
        }
    }

    /// Whether it has something to release when it goes away: see [`leave`](Self::leave).
    #[inline]
    #[must_use]
    pub fn holds(&self) -> bool {
        self.session.holds() || !self.has_left()
    }

    /// The call goes away without an outcome, as when a future is dropped. Returns what it was granted,
    /// and leaves its destination. Does nothing if it is over.
    #[inline]
    pub fn leave<E: Environment>(&mut self, environment: &E) {
        if environment.destination().is_some() && self.holds() {
            self.leave_now(environment);
        }
    }

    #[inline(never)]
    fn leave_now<E: Environment>(&mut self, environment: &E) {
        self.end_stage(environment, &AttemptOutcome::UNKNOWN);
        self.session.on_cancel(refundable_budget(environment));
        self.give_back_hedge_slot(environment);
    }
}
