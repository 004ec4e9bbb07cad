//! A session at its destination: before each attempt it asks whether it may start.

use std::ops::Deref;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use relent_core::{
    Caller, Ended, Failure, Instant, Pass, Place, Policy, Random, Slot, Stop, StopReason,
};

use super::{Driver, Goes, budget};
use crate::clock::{Clock, Sleeper};
use crate::destination::{Destination, SlotTurn, Turn};
use crate::observe::Held;
use crate::timer::Timer;

/// A session at its destination.
#[derive(Clone, Copy, Debug)]
pub struct Visit {
    /// Its name there.
    id: u64,
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

/// What a destination says to an attempt that would start: see [`Driver::enter`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Start it.
    Go,
    /// Ask again after this; `None` for when the waker is woken.
    Wait(Option<Duration>),
    /// Give up.
    Stop(Stop),
}

impl<K, R, P, D> Driver<'_, K, R, P, D>
where
    K: Clock,
    R: Random,
    P: Deref<Target = Policy>,
    D: Goes,
{
    /// Asks the destination whether the next attempt may start now. Without one, it may.
    ///
    /// A loop asks before each attempt, and again after the wait that it is told. `waker` is woken if
    /// the answer changes before; without one, what changes is noticed when it is asked again.
    #[inline]
    pub fn enter(&mut self, waker: Option<&Waker>) -> Entry {
        if self.needs_no_leave() {
            return Entry::Go;
        }
        self.enter_there(waker)
    }

    /// Whether the next attempt may start without a look at the clock.
    #[inline]
    pub(crate) fn needs_no_leave(&self) -> bool {
        let Some(destination) = self.to.destination() else {
            return true;
        };
        let unasked = matches!(
            self.to.visit(),
            None | Some(Visit {
                stage: Stage::Unasked,
                ..
            })
        );
        // Off is no retries, and nothing that comes with them; the request rate holds for first
        // attempts too.
        self.policy.is_off() && !destination.is_paced() || unasked && destination.is_quiet()
    }

    #[inline(never)]
    fn enter_there(&mut self, waker: Option<&Waker>) -> Entry {
        let now = self.now();
        let before = self.held();
        let entry = self.ask_there(now, waker);
        self.tell_there(before, Some(now));
        entry
    }

    fn held(&self) -> Option<Held> {
        self.to.visit().and_then(|visit| visit.stage.held())
    }

    /// Tells of what has changed there: `before` is what held the attempt back until now. Without the
    /// time, it goes away.
    fn tell_there(&mut self, before: Option<Held>, now: Option<Instant>) {
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

    fn ask_there(&mut self, now: Instant, waker: Option<&Waker>) -> Entry {
        let off = self.policy.is_off();
        let last_start = self.session.last_start(&self.policy);
        if self.to.visit().is_none() {
            if !off && let Some(stage) = self.visit_gate(now, last_start) {
                if let Stage::Entered(..) = stage {
                    return Entry::Go;
                }
            } else {
                self.visit(now);
            }
        }
        let longest = self.policy.max_hint();
        let caller = self.caller(last_start);
        let Some((destination, Some(visit))) = self.to.parts() else {
            return Entry::Go;
        };
        let slot = |before| match destination.ask(now, last_start, before) {
            Slot::Now => Ok(None),
            // Nobody sleeps for hours.
            Slot::At(place, at) if at.saturating_since(now) > longest => {
                destination.leave_queue(now, place);
                Err(later(at))
            }
            Slot::At(place, _) => Ok(Some(place)),
            Slot::TooLate(at) => Err(later(at)),
        };
        loop {
            // When its slot was taken, for an attempt that has yet to ask the gate.
            let taken = match visit.stage {
                Stage::Refused if !off => return stop(StopReason::Overloaded),
                // The service was not ready when it might have started.
                Stage::Entered(_, probe) => {
                    visit.stage = Stage::Entered(now, probe);
                    return Entry::Go;
                }
                Stage::Inside(..) => return Entry::Go,
                Stage::Held(until) if now < until => {
                    return Entry::Wait(Some(until.saturating_since(now)));
                }
                Stage::Unasked | Stage::Outside | Stage::Held(_) | Stage::Refused => {
                    if matches!(visit.stage, Stage::Unasked | Stage::Outside)
                        && !off
                        && destination.cooldown().has_begun()
                    {
                        let room = last_start.saturating_since(now);
                        let wait = destination.cooldown().wait(now, room, &mut self.random);
                        if wait > room {
                            let left = destination.cooldown().left(now);
                            return later(now.saturating_add(left));
                        }
                        if !wait.is_zero() {
                            visit.stage = Stage::Held(now.saturating_add(wait));
                            return Entry::Wait(Some(wait));
                        }
                    }
                    match slot(false) {
                        Ok(None) => now,
                        Ok(Some(place)) => {
                            visit.stage = Stage::Queued(place, None);
                            continue;
                        }
                        Err(stop) => {
                            visit.stage = Stage::Outside;
                            return stop;
                        }
                    }
                }
                Stage::Queued(place, released) => {
                    let taken = match destination.slot_turn(now, place, waker) {
                        SlotTurn::Go(taken) => taken,
                        SlotTurn::Wait(at) if now > last_start => {
                            destination.leave_queue(now, place);
                            end(destination, || now, released);
                            visit.stage = Stage::Outside;
                            return later(at);
                        }
                        SlotTurn::Wait(at) => return wait_until(now, Some(at), last_start),
                    };
                    if released.is_some() {
                        visit.stage = Stage::Entered(now, released);
                        return Entry::Go;
                    }
                    taken
                }
                Stage::Parked if now >= caller.until => {
                    destination.forget(now, &caller);
                    visit.stage = Stage::Outside;
                    return stop(StopReason::Gate);
                }
                Stage::Parked => match destination.turn(now, &caller, waker) {
                    Turn::Go(pass) => match slot(true) {
                        Ok(None) => {
                            visit.stage = Stage::Entered(now, Some(pass.is_probe()));
                            return Entry::Go;
                        }
                        Ok(Some(place)) => {
                            visit.stage = Stage::Queued(place, Some(pass.is_probe()));
                            continue;
                        }
                        Err(stop) => {
                            end(destination, || now, Some(pass.is_probe()));
                            visit.stage = Stage::Outside;
                            return stop;
                        }
                    },
                    Turn::Wait(next) => return wait_until(now, next, caller.until),
                },
            };
            let admitted = if off {
                Some(None)
            } else {
                destination.admit(now, caller)
            };
            match admitted {
                Some(pass) => {
                    visit.stage = Stage::Entered(now, pass.map(|pass| pass.is_probe()));
                    return Entry::Go;
                }
                None => {
                    destination.give_slot_back(now, taken);
                    visit.stage = Stage::Parked;
                }
            }
        }
    }

    /// The session as its destination knows it; `last_start` is that of the session.
    #[inline]
    fn caller(&self, last_start: Instant) -> Caller {
        let since = self.session.started();
        let patience = self.to.destination();
        let patience = patience.map_or(Instant::MAX, |there| there.patience(since));
        Caller {
            until: last_start.min(patience),
            since,
            id: self.to.visit().map_or(0, |visit| visit.id),
            fresh: self.session.attempts() == 0,
        }
    }

    /// Asks, and waits as long as it takes with this timer.
    ///
    /// # Errors
    /// When the session is to give up.
    #[inline]
    pub fn poll_enter(
        &mut self,
        context: &mut Context<'_>,
        timer: &mut Timer<K>,
    ) -> Poll<Result<(), Stop>>
    where
        K: Sleeper,
    {
        if self.needs_no_leave() {
            return Poll::Ready(Ok(()));
        }
        self.poll_enter_there(context, timer)
    }

    #[inline(never)]
    fn poll_enter_there(
        &mut self,
        context: &mut Context<'_>,
        timer: &mut Timer<K>,
    ) -> Poll<Result<(), Stop>>
    where
        K: Sleeper,
    {
        loop {
            match self.enter_there(Some(context.waker())) {
                Entry::Go => return Poll::Ready(Ok(())),
                Entry::Stop(stop) => return Poll::Ready(Err(stop)),
                Entry::Wait(None) => return Poll::Pending,
                Entry::Wait(Some(wait)) => {
                    timer.set(&self.clock, wait);
                    ready!(timer.poll(context));
                }
            }
        }
    }

    /// The same as [`poll_enter`](Self::poll_enter), to be awaited.
    ///
    /// # Errors
    /// When the session is to give up.
    #[inline]
    pub async fn entered(&mut self) -> Result<(), Stop>
    where
        K: Sleeper,
    {
        if self.needs_no_leave() {
            return Ok(());
        }
        let mut timer = Timer::new();
        std::future::poll_fn(|context| self.poll_enter(context, &mut timer)).await
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
    fn visit_gate(&mut self, now: Instant, last_start: Instant) -> Option<Stage> {
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
    fn visit(&mut self, now: Instant) {
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

    #[inline(never)]
    pub(super) fn leave(&mut self) {
        self.end_visit(Ended::Unknown);
        self.session.on_cancel(budget(&self.to));
    }
}

fn stop(reason: StopReason) -> Entry {
    Entry::Stop(Stop {
        reason,
        retry_at: None,
    })
}

/// It would have to wait for longer than it may.
fn later(at: Instant) -> Entry {
    Entry::Stop(Stop {
        reason: StopReason::RetryLater,
        retry_at: Some(at),
    })
}

/// The gate let an attempt go, perhaps as a probe, that is not made.
fn end(destination: &Destination, now: impl Fn() -> Instant, released: Option<bool>) {
    if let Some(probe) = released {
        let pass = Pass::new(now(), probe);
        destination.on_end(now, Some(pass), Ended::Unknown);
    }
}

/// The wait until one of these, if there is one.
fn wait_until(now: Instant, next: Option<Instant>, until: Instant) -> Entry {
    let at = next.map_or(until, |next| next.min(until));
    Entry::Wait((at < Instant::MAX).then(|| at.saturating_since(now)))
}
