//! Hedging: concurrent attempts of a session.

use super::{HEDGE_PENDING, Session};
use crate::call::stop::StopReason;
use crate::destination::budget::{Budget, Taken};
use crate::failure::{Failure, FailureKind};
use crate::policy::Policy;
use crate::time::Instant;

impl Session {
    /// Requests a hedge that joins the running attempts now. A hedge is an attempt like a retry,
    /// without a failure before it: the operation must be repeatable, and the retry count, time limits
    /// and budget of the policy apply. If granted, it is pending until it is sent.
    ///
    /// The budget pays now and not when the race begins: nineteen of twenty races need no hedge, and
    /// would block tokens that others need.
    #[must_use]
    pub fn grant_hedge(&mut self, policy: &Policy, now: Instant, budget: Option<&Budget>) -> bool {
        let retries = self.attempts.saturating_sub(self.base);
        if !self.repeatable.is_allowed_by(policy)
            || policy.max_retries().is_some_and(|most| retries >= most)
            || now > policy.last_start(self.started)
        {
            return false;
        }
        self.cancel_hedge(budget);
        self.hedge_taken = match budget {
            None => Taken::NOTHING,
            Some(budget) => match budget.withdraw(now, FailureKind::Ambiguous) {
                Some(taken) => taken,
                None => return false,
            },
        };
        self.flags |= HEDGE_PENDING;
        true
    }

    /// The granted hedge starts. Returns its attempt number, and the tokens it took.
    pub const fn on_hedge(&mut self) -> (u32, Taken) {
        let taken = self.hedge_taken;
        self.hedge_taken = Taken::NOTHING;
        self.flags &= !HEDGE_PENDING;
        (self.on_attempt(), taken)
    }

    /// A granted hedge is not sent: refunds its tokens.
    pub fn cancel_hedge(&mut self, budget: Option<&Budget>) {
        if self.flags & HEDGE_PENDING != 0
            && let Some(budget) = budget
        {
            budget.refund(self.hedge_taken);
        }
        self.hedge_taken = Taken::NOTHING;
        self.flags &= !HEDGE_PENDING;
    }

    /// The tokens that the running attempt took from the budget. Keep them to identify the attempt
    /// after others have started.
    #[must_use]
    pub const fn taken(&self) -> Taken {
        self.taken
    }

    /// The attempt that took these tokens won the race.
    pub(crate) fn on_race_won(&mut self, taken: Taken, budget: Option<&Budget>) {
        self.cancel_hedge(budget);
        self.taken = taken;
        self.on_success(budget);
    }

    /// Whether a failure ends all attempts of the race. It does if it is permanent and not the effect
    /// of another attempt, or if it is a response that the others would get as well.
    pub(crate) fn ends_race(&self, policy: &Policy, failure: &Failure) -> bool {
        let by_another = failure.as_if_applied || failure.as_if_in_progress;
        failure.cause.is_regular_response()
            || !by_another && self.retryable_kind(policy, failure) == Err(StopReason::Permanent)
    }

    /// Records what a failure says about the operation, if another failure decides.
    pub(crate) fn note(&mut self, policy: &Policy, failure: &Failure) {
        if let Ok(kind) = self.retryable_kind(policy, failure) {
            self.note_effect(failure, kind);
        }
    }

    /// Charges such a failure to the budget: each failure is charged once.
    pub(crate) fn charge_loser(&self, policy: &Policy, failure: &Failure, budget: Option<&Budget>) {
        self.charge(failure, self.retryable_kind(policy, failure), budget);
    }
}
