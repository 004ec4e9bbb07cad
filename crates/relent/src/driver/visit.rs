//! A session at its destination: it comes, starts its attempts, and leaves.

use std::ops::Deref;

use relent_core::{Ended, Failure, Instant, Pass, Place, Policy, Random};

use super::{Driver, Goes, budget};
use crate::clock::Clock;
use crate::destination::Destination;
use crate::observe::Held;

#[derive(Clone, Copy, Debug)]
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

#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    /// Nobody had to ask so far (design rule 10).
    Unasked,
    /// The next attempt has yet to ask.
    Outside,
    /// Held back by the cooldown until then.
    Held(Instant),
    /// Waits for its slot in the request rate. If the gate has let it go before, whether as a probe.
    Queued(Place, Option<bool>),
    Parked,
    /// The attempt may start, since then. If the gate has let it go, whether as a probe.
    Entered(Instant, Option<bool>),
    /// The attempt has started then.
    Inside(Instant, Option<bool>),
    /// It is not to be attempted.
    Refused,
}

impl Stage {
    /// What holds the attempt back.
    const fn held(self) -> Option<Held> {
        match self {
            Self::Held(_) => Some(Held::Cooldown),
            Self::Queued(..) => Some(Held::RequestRate),
            Self::Parked => Some(Held::Gate),
            _ => None,
        }
    }
}

impl<K, R, P, D> Driver<'_, K, R, P, D>
where
    K: Clock,
    R: Random,
    P: Deref<Target = Policy>,
    D: Goes,
{
    pub(super) fn held(&self) -> Option<Held> {
        self.to.visit().and_then(|visit| visit.stage.held())
    }

    /// Tells of what has changed there: `before` is what held the attempt back until now. Without the
    /// time, it goes away.
    pub(super) fn tell_there(&mut self, before: Option<Held>, now: Option<Instant>) {
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
                if let Stage::Entered(since, probe) = visit.stage {
                    visit.stage = Stage::Inside(since, probe);
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

    /// The session comes to its destination for the first time, and asks the gate if that is all.
    #[inline]
    pub(super) fn visit_gate(&mut self, now: Instant, last_start: Instant) -> Option<Stage> {
        let (destination, visit) = self.to.parts()?;
        let (id, pass) = destination.on_request_at_gate(now, last_start)?;
        let stage = match pass {
            Some(pass) => Stage::Entered(now, Some(pass.is_probe())),
            None => Stage::Parked,
        };
        *visit = Some(Visit::new(id, stage));
        if let Some(budget) = destination.budget()
            && !self.silent
        {
            self.observer.on_budget(budget);
        }
        Some(stage)
    }

    /// The session comes to its destination for the first time.
    pub(super) fn visit(&mut self, now: Instant) {
        if let Some((destination, visit)) = self.to.parts() {
            let id = destination.on_request(now);
            if let Some(budget) = destination.budget()
                && !self.silent
            {
                self.observer.on_budget(budget);
            }
            let stage = match id {
                Some(_) => Stage::Outside,
                None => Stage::Refused,
            };
            *visit = Some(Visit::new(id.unwrap_or(0), stage));
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
        if let Some(Stage::Parked) = self.to.visit().map(|visit| visit.stage) {
            self.forget_there();
        }
        let Some((destination, Some(visit))) = self.to.parts() else {
            return;
        };
        let now = || self.clock.now();
        match visit.stage {
            Stage::Refused => return,
            Stage::Queued(place, released) => {
                destination.leave_queue(now(), place);
                end(destination, now, released);
            }
            Stage::Entered(since, probe) => {
                destination.give_slot_back(now(), since);
                end(destination, now, probe);
            }
            Stage::Inside(started, probe) => {
                let pass = probe.map(|probe| Pass::new(started, probe));
                destination.on_end(now, pass, ended);
            }
            Stage::Outside | Stage::Unasked | Stage::Held(_) | Stage::Parked => {}
        }
        visit.stage = Stage::Outside;
    }

    /// A parked session goes away.
    #[cold]
    fn forget_there(&self) {
        let caller = self.caller(self.session.last_start(&self.policy));
        if let Some(destination) = self.to.destination() {
            destination.forget(self.clock.now(), &caller);
        }
    }

    #[inline(never)]
    pub(super) fn failed_there(&mut self, now: Instant, failure: &Failure) {
        let mut ended = Ended::Unknown;
        if let Some(destination) = self.to.destination() {
            let started = match self.to.visit() {
                Some(Visit {
                    stage: Stage::Inside(started, _),
                    ..
                }) => *started,
                _ => now,
            };
            if destination.on_failure(now, started, failure) {
                self.observer.on_cooldown();
            }
            ended = destination.ended(failure);
        }
        self.end_visit(ended);
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

/// The gate let an attempt go, perhaps as a probe, that is not made.
pub(super) fn end(destination: &Destination, now: impl Fn() -> Instant, released: Option<bool>) {
    if let Some(probe) = released {
        let pass = Pass::new(now(), probe);
        destination.on_end(now, Some(pass), Ended::Unknown);
    }
}
