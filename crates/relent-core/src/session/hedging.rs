//! What a session does for attempts that run at once.

use super::{HEDGING, Session};
use crate::budget::{Budget, Charge, Taken};
use crate::decision::StopReason;
use crate::failure::{Failure, Kind};
use crate::policy::Policy;
use crate::time::Instant;

impl Session {
    /// May a hedge join the running attempts now? It is an attempt like a retry, without a failure
    /// before it: only if the operation may run twice, as one of the retries that the policy allows,
    /// within its limits of time, and out of the same budget. If so, it waits to be sent.
    ///
    /// The budget is asked now and not when the race begins: nineteen of twenty races have no need
    /// of a hedge, and would lock up what others need.
    #[must_use]
    pub fn grant_hedge(&mut self, policy: &Policy, now: Instant, budget: Option<&Budget>) -> bool {
        let retries = self.attempts.saturating_sub(self.base);
        if !self.repeatable.is_allowed_by(policy)
            || policy.max_retries().is_some_and(|most| retries >= most)
            || now > policy.last_start(self.started)
        {
            return false;
        }
        self.call_off_hedge(budget);
        self.hedge_taken = match budget {
            None => Taken::NOTHING,
            Some(budget) => match budget.withdraw(now, Kind::Ambiguous) {
                Some(taken) => taken,
                None => return false,
            },
        };
        self.marks |= HEDGING;
        true
    }

    /// The hedge that was granted starts. Returns its number as an attempt, and what it took.
    pub const fn on_hedge(&mut self) -> (u32, Taken) {
        let taken = self.hedge_taken;
        self.hedge_taken = Taken::NOTHING;
        self.marks &= !HEDGING;
        (self.on_attempt(), taken)
    }

    /// A hedge that was granted is not to be sent: gives back what it took (design rule 12).
    pub fn call_off_hedge(&mut self, budget: Option<&Budget>) {
        if self.marks & HEDGING != 0
            && let Some(budget) = budget
        {
            budget.refund(self.hedge_taken);
        }
        self.hedge_taken = Taken::NOTHING;
        self.marks &= !HEDGING;
    }

    /// What the running attempt took from the budget, to be known again when it is over and others
    /// have started since.
    #[must_use]
    pub const fn taken(&self) -> Taken {
        self.taken
    }

    /// The attempt that took this from the budget won the race.
    pub(crate) fn on_race_won(&mut self, taken: Taken, budget: Option<&Budget>) {
        self.call_off_hedge(budget);
        self.taken = taken;
        self.on_success(budget);
    }

    /// An attempt failed while others run. Whether that ends them all: repeating cannot help, and
    /// it is not what one of the others would have brought about; or it is an answer, which the others
    /// would get as well.
    pub(crate) fn is_fatal(&self, policy: &Policy, failure: &Failure) -> bool {
        let by_another = failure.as_if_done || failure.as_if_in_progress;
        failure.cause.is_answer()
            || !by_another && self.eligible(policy, failure) == Err(StopReason::Permanent)
    }

    /// An attempt failed, and another failure decides: keeps what it says about the operation.
    pub(crate) fn note(&mut self, policy: &Policy, failure: &Failure) {
        if let Ok(kind) = self.eligible(policy, failure) {
            self.note_effect(failure, kind);
        }
    }

    /// The same for the budget: each failure is charged once.
    pub(crate) fn charge(&self, policy: &Policy, failure: &Failure, budget: Option<&Budget>) {
        let eligible = self.eligible(policy, failure);
        if let Some(budget) = budget
            && self.is_servers_failure(failure, eligible)
        {
            budget.on_failure(Charge::of(eligible.unwrap_or(failure.kind), failure.cause));
        }
    }
}
