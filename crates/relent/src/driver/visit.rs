//! A session at its destination: it comes, starts its attempts, and leaves.

use std::mem;
use std::ops::Deref;

use relent_core::{Answer, Asking, Ended, Failure, Holding, Instant, Permit, Policy, Random};

use super::{Driver, Goes, budget};
use crate::clock::Clock;
use crate::destination::Destination;

#[derive(Debug)]
pub struct Visit {
    /// Its name there.
    pub(super) id: u64,
    pub(super) stage: Stage,
    /// Since when something holds it back.
    #[cfg(feature = "metrics")]
    since: Instant,
}

impl Visit {
    const fn new(id: u64, stage: Stage) -> Self {
        Self {
            id,
            stage,
            #[cfg(feature = "metrics")]
            since: Instant::ORIGIN,
        }
    }
}

#[derive(Debug)]
pub(super) enum Stage {
    /// Nobody had to ask so far (design rule 10).
    Unasked,
    /// The next attempt has yet to ask.
    Outside,
    /// This holds it back.
    Waiting(Holding),
    /// The attempt may start, or runs.
    Permitted(Permit),
    /// It is not to be attempted.
    Refused,
}

impl<K, R, P, D> Driver<'_, K, R, P, D>
where
    K: Clock,
    R: Random,
    P: Deref<Target = Policy>,
    D: Goes,
{
    pub(super) fn held(&self) -> Option<Holding> {
        match self.to.visit()?.stage {
            Stage::Waiting(holding) => Some(holding),
            _ => None,
        }
    }

    /// Tells of what has changed there: `before` is what held the attempt back until now. Without the
    /// time, it goes away.
    pub(super) fn tell_there(&mut self, before: Option<Holding>, now: Option<Instant>) {
        let after = self.held();
        let Some((destination, Some(visit))) = self.to.parts() else {
            return;
        };
        if let Some(state) = destination.gate_change() {
            self.observer.on_gate(state);
        }
        #[cfg(feature = "metrics")]
        {
            if let Some(now) = now
                && let Some(rate) = destination.request_rate(now)
            {
                self.observer.on_request_rate(rate);
            }
            if before != after {
                let held = now.map(|now| now.saturating_since(visit.since));
                self.observer.on_held(before, held, after);
                visit.since = now.unwrap_or_default();
            }
        }
        let _ = (before, after, now, visit);
    }

    /// An attempt starts, also one that has not asked.
    #[inline]
    pub(super) fn start_visit(&mut self) {
        match self.to.parts() {
            Some((_, Some(visit))) => {
                if let Stage::Permitted(permit) = &mut visit.stage {
                    permit.begin();
                }
            }
            Some((_, None)) => self.visit_unasked(),
            None => {}
        }
    }

    /// The session comes to its destination for the first time, without having asked.
    #[inline]
    fn visit_unasked(&mut self) {
        let Some((destination, visit)) = self.to.parts() else {
            return;
        };
        if !destination.is_quiet() {
            return self.visit_now();
        }
        *visit = Some(Visit::new(0, Stage::Unasked));
        if let Some(budget) = destination.budget() {
            budget.on_request();
            if !self.silent {
                self.observer.on_budget(budget);
            }
        }
    }

    #[inline(never)]
    fn visit_now(&mut self) {
        let now = self.now();
        self.visit(now);
    }

    /// The session comes to its destination for the first time, and asks for its first attempt at once.
    /// What the destination says; `None` if it has come before, or is refused.
    pub(super) fn visit_and_ask(&mut self, now: Instant, asking: Asking) -> Option<Answer> {
        let (destination, visit) = self.to.parts()?;
        if visit.is_some() {
            return None;
        }
        let entered = destination.enter(now, asking);
        let (visited, answer) = match entered {
            Some((id, answer)) => (Visit::new(id, Stage::Outside), Some(answer)),
            None => (Visit::new(0, Stage::Refused), None),
        };
        *visit = Some(visited);
        self.tell_budget();
        answer
    }

    /// The session comes to its destination for the first time.
    fn visit(&mut self, now: Instant) {
        if let Some((destination, visit)) = self.to.parts() {
            let id = destination.on_request(now, !self.policy.is_off());
            let stage = match id {
                Some(_) => Stage::Outside,
                None => Stage::Refused,
            };
            *visit = Some(Visit::new(id.unwrap_or(0), stage));
        }
        self.tell_budget();
    }

    fn tell_budget(&self) {
        if let Some(budget) = budget(&self.to)
            && !self.silent
        {
            self.observer.on_budget(budget);
        }
    }

    /// The destination answered, whatever is made of it.
    #[inline]
    pub(crate) fn on_answered(&mut self) {
        if self.to.destination().is_some() {
            self.end_visit(Ended::Answered);
        }
    }

    /// The running attempt is over, or the session goes away.
    #[inline]
    pub(super) fn end_visit(&mut self, ended: Ended) {
        if !self.has_left() {
            self.end_visit_there(ended);
        }
    }

    /// Whether its destination knows nothing of it that it would have to end.
    #[inline]
    pub(super) fn has_left(&self) -> bool {
        match self.to.visit() {
            None => true,
            Some(visit) => matches!(visit.stage, Stage::Unasked | Stage::Outside),
        }
    }

    #[inline(never)]
    fn end_visit_there(&mut self, ended: Ended) {
        let before = self.held();
        self.leave_there(ended);
        self.tell_there(before, None);
    }

    fn leave_there(&mut self, ended: Ended) {
        let Some((destination, Some(visit))) = self.to.parts() else {
            return;
        };
        if let Stage::Refused = visit.stage {
            return;
        }
        let now = || self.clock.now();
        match mem::replace(&mut visit.stage, Stage::Outside) {
            Stage::Waiting(_) => destination.leave(visit.id, now),
            Stage::Permitted(permit) if permit.has_begun() => {
                destination.ended(now(), permit, ended);
            }
            Stage::Permitted(permit) => destination.cancel(now(), permit),
            Stage::Outside | Stage::Unasked | Stage::Refused => {}
        }
    }

    #[inline(never)]
    pub(super) fn failed_there(&mut self, now: Instant, failure: &Failure) {
        let before = self.held();
        if let Some((destination, visit)) = self.to.parts() {
            let permit = visit.as_mut().and_then(|visit| visit.stage.end());
            let started = permit.as_ref().map_or(now, Permit::started);
            if destination.failed(now, started, permit, failure) {
                self.observer.on_cooldown();
            }
        }
        // What was not running has nothing to tell.
        self.leave_there(Ended::Unknown);
        self.tell_there(before, None);
    }

    /// A call of this session was redirected to another destination, and began there at this instant:
    /// tells that destination how it ended. A `failure` of `None` is a success. Without the instant only
    /// its cooldown and its request rate hear of it, and not its gate, which would learn of failures
    /// where successes are not told.
    ///
    /// The session keeps its leave, and its budget pays. To be said before
    /// [`on_failure`](Self::on_failure), whose failure has [`Hop::Elsewhere`](relent_core::Hop) then,
    /// or before [`on_success`](Self::on_success).
    ///
    /// ```
    /// use std::time::Duration;
    /// use relent::{Clock, Destination, Driver, Failure, Hint, Hop, Policy, StdClock};
    ///
    /// let (asked, answered) = (Destination::new(Policy::STANDARD), Destination::new(Policy::STANDARD));
    /// let mut driver = Driver::builder(Policy::STANDARD, StdClock).destination(&asked).start();
    /// driver.on_attempt();
    /// let redirected = Some(driver.clock().now());
    /// let busy = Failure::throttled().hint(Hint::after(Duration::from_secs(2)));
    /// driver.on_elsewhere(&answered, redirected, Some(&busy));
    /// driver.on_failure(&busy.hop(Hop::Elsewhere));
    /// assert!(answered.cooldown().has_begun() && !asked.cooldown().has_begun());
    /// ```
    #[cold]
    pub fn on_elsewhere(
        &mut self,
        there: &Destination,
        since: Option<Instant>,
        failure: Option<&Failure>,
    ) {
        let now = self.now();
        if there.on_redirected(now, since, failure) && !self.silent {
            self.observer.on_cooldown();
        }
    }

    #[inline(never)]
    pub(super) fn leave(&mut self) {
        self.end_visit(Ended::Unknown);
        self.session.on_cancel(budget(&self.to));
    }
}

impl Stage {
    /// The running attempt is over.
    fn end(&mut self) -> Option<Permit> {
        match mem::replace(self, Self::Outside) {
            Self::Permitted(permit) if permit.has_begun() => Some(permit),
            other => {
                *self = other;
                None
            }
        }
    }
}
