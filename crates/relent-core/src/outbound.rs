//! What the callers of one destination ask before an attempt, and what they tell after it.
//!
//! A cooldown says not before when, the [gate](Gate) says who, the [request rate](RequestRate) says
//! how fast. They are asked in one place and in one order, and those who have to wait stand in one line,
//! so no caller can be overtaken by a rule that it did not ask:
//!
//! ```text
//! ask ──► cooldown? ──► request rate? ──► gate? ──► Start(Permit) ──► ended | cancel
//!            │              │               │             ▲
//!            ▼              ▼               ▼             │
//!           held          queued          parked ──► offered
//! ```
//!
//! - A permit that comes up for somebody who waits is an *offer*: the driver is told whom to
//!   [wake](Outbound::take_woken). Whoever does not take the offer within a tenth of a second loses it
//!   to the next, so a future that nobody polls holds up no other.
//! - One of those who wait has the timer for the next offer (the *lookout*). When it leaves, another is
//!   woken to take over. Everyone else is told a later instant at which asking again helps all the
//!   same, so that a lost wake-up delays a caller and never strands it.
//! - A [`Caller`] is known by its number, which is the driver's choice, by when its request was made, and by
//!   when nobody waits for its answer any more. None of the three may change while it waits. What else it
//!   says about itself later does not change its place.
//!
//! The value is pure: it holds no lock, waker or timer, and time and randomness are arguments.

mod asking;
mod hedges;
mod last_chance;
mod line;
mod permit;
mod release;
mod reload;
mod waiting;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hint::black_box;

use crate::batch::Counted;
use crate::budget::Budget;
use crate::cooldown::Cooldown;
use crate::failure::{Failure, Kind};
use crate::gate::{Caller, Calm, Ended, Gate, Pass};
use crate::hedge::{Hedge, HedgeConfig};
use crate::policy::Policy;
use crate::random::Random;
use crate::request_rate::RequestRate;
use crate::sync::Arc;
use crate::throttle::Throttle;
use crate::time::Instant;
pub use asking::{Answer, Asking, Holding};
use hedges::Hedges;
use line::Line;
pub use permit::Permit;

/// The gate, the request rate, the throttle, the hedges and the line of one destination in one process.
///
/// Budget and cooldown stand beside it, since they are read and written without a lock.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Answer, Asking, Claim, Cooldown, Draw, Ended, Instant, Outbound, Policy};
///
/// let mut outbound = Outbound::new(Policy::STANDARD);
/// let (cooldown, mut random) = (Cooldown::new(), Draw::at(0.5));
/// let now = Instant::ORIGIN;
/// assert!(outbound.on_request(now, &mut random), "there is no throttle");
/// let asking = Asking {
///     id: 1,
///     since: now,
///     last_start: Instant::MAX,
///     answer_by: Instant::MAX,
///     longest: Duration::from_secs(300),
///     spread: 1.0,
///     claim: Claim::First,
///     stays: false,
///     paced_only: false,
/// };
/// let Answer::Start(permit) = outbound.ask(now, &asking, &cooldown, &mut random) else {
///     unreachable!("the gate is open");
/// };
/// let later = now.saturating_add(Duration::from_millis(5));
/// outbound.ended(later, permit, Ended::Answered, &cooldown, &mut random);
/// assert_eq!(outbound.waiting(), 0);
/// ```
#[derive(Default, Debug)]
pub struct Outbound {
    gate: Option<Gate>,
    /// Tells the probes of one gate from those of another that was there before.
    gates: u16,
    /// Both are boxed, since few policies have them, and a process may have very many destinations.
    rate: Option<Box<RequestRate>>,
    throttle: Option<Box<Throttle>>,
    hedges: Hedges,
    line: Line,
    /// When [`settle`](Self::settle) next has something to do, at the earliest.
    due: Option<Instant>,
    /// Whom the cooldown holds until then has been spread again.
    spread_again: Instant,
    /// No wake-up is ever lost.
    wakes_all: bool,
}

impl Outbound {
    /// With the gate, the request rate and the throttle of the policy, where it has them.
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        Self {
            gate: policy.new_gate(),
            gates: 0,
            rate: policy.new_request_rate().map(Box::new),
            throttle: policy.new_throttle().map(Box::new),
            hedges: Hedges::default(),
            line: Line::default(),
            due: None,
            spread_again: Instant::ORIGIN,
            wakes_all: false,
        }
    }

    /// For a driver that lets everybody ask who is woken, and at the time that it was told, such as a
    /// simulator: nobody who is parked need look after itself in case that a wake-up is lost.
    #[must_use]
    pub const fn with_certain_wakes(mut self) -> Self {
        self.wakes_all = true;
        self
    }

    /// Takes this request rate in place of the policy's.
    #[must_use]
    pub fn with_request_rate(mut self, rate: RequestRate) -> Self {
        self.rate = Some(Box::new(rate));
        self
    }

    /// Reads a word here and there, so that the processor fetches all of it from memory at once in place of
    /// each line when it is needed: for a driver with more destinations than its caches hold, which knows
    /// who asks next. Changes nothing.
    #[inline]
    pub fn touch(&self) {
        let gate = self.gate.as_ref().map_or(0, Gate::touch);
        let due = self.due.map_or(0, Instant::as_nanos);
        black_box(gate ^ self.line.touch() ^ due ^ self.spread_again.as_nanos());
    }

    /// The same for those who wait, as far as they come next: once it has been fetched itself.
    #[inline]
    pub fn touch_first(&self) {
        let parked = self.gate.as_ref().and_then(Gate::first_parked);
        black_box(parked.unwrap_or(0) ^ self.line.touch_first());
    }

    /// Whether nobody has to ask before an attempt, nor tell how it ended, while no cooldown runs.
    #[must_use]
    pub const fn is_quiet(&self) -> bool {
        self.gate.is_none() && self.rate.is_none() && self.throttle.is_none()
    }

    /// Whether attempts are held to a rate.
    #[must_use]
    pub const fn is_paced(&self) -> bool {
        self.rate.is_some()
    }

    /// The gate.
    #[must_use]
    pub const fn gate(&self) -> Option<&Gate> {
        self.gate.as_ref()
    }

    /// The request rate.
    pub fn request_rate_mut(&mut self) -> Option<&mut RequestRate> {
        self.rate.as_deref_mut()
    }

    /// Callers that wait, for whatever reason.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.line.len() + self.parked()
    }

    fn nobody_waits(&self) -> bool {
        self.line.is_empty() && self.parked() == 0
    }

    /// Callers that the gate has parked.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.gate.as_ref().map_or(0, Gate::parked)
    }

    /// Callers that wait for a slot of the request rate.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.line.queued()
    }

    /// What holds this caller back; `None` if it does not wait, or has an offer.
    #[must_use]
    pub fn holding(&self, caller: &Caller) -> Option<Holding> {
        let parked = || {
            self.gate
                .as_ref()?
                .has_parked(caller)
                .then_some(Holding::Gate)
        };
        self.line.holding(caller.id).or_else(parked)
    }

    /// A request is made: call it once for each, before it first [asks](Self::ask). `false` if the
    /// throttle refuses it.
    pub fn on_request(&mut self, now: Instant, random: &mut impl Random) -> bool {
        let throttle = self.throttle.as_mut();
        let admitted = throttle.is_none_or(|throttle| throttle.admit(now, random));
        if admitted {
            self.on_request_unthrottled(now);
        }
        admitted
    }

    /// The same for a request that the throttle has no say about.
    #[inline]
    pub fn on_request_unthrottled(&mut self, now: Instant) {
        if let Some(gate) = &mut self.gate {
            gate.on_request(now);
        }
    }

    /// While everything goes, and only the gate hears of it: see [`Gate::calm`].
    pub(crate) fn calm(&self, now: Instant) -> Option<Calm> {
        let others = self.rate.is_some() || self.throttle.is_some();
        let gate = self.gate.as_ref().filter(|_| !others);
        gate.filter(|_| self.line.is_empty() && self.due.is_none())?
            .calm(now)
    }

    /// Hears of what was counted while it was [calm](Self::calm).
    #[inline]
    pub(crate) fn on_counted(&mut self, counted: &Counted) {
        if let Some(gate) = &mut self.gate {
            gate.on_counted(counted);
        }
    }

    /// What is remembered here for hedges that are made so, by all callers whose policy has them: how long
    /// successes take, and whether the last outcome was a refusal. One that is new, such as after a reload,
    /// begins with what the others know. `None` for a configuration that no policy can have.
    pub fn hedge(&mut self, config: &HedgeConfig) -> Option<Arc<Hedge>> {
        self.hedges.of(config)
    }

    /// Takes a slot for a hedge, which starts now or never: while the gate is open, no cooldown runs,
    /// and nobody waits. The permit is for the slot alone, since the gate knows the call that the hedge is
    /// for: [cancel](Self::cancel) it if the hedge is not sent.
    pub fn try_hedge(&mut self, now: Instant, cooldown: &Cooldown) -> Option<Permit> {
        let open = self.gate.as_ref().is_none_or(Gate::is_open);
        let starts = open
            && self.nobody_waits()
            && !cooldown.is_running(now)
            && self.rate.as_mut().is_none_or(|rate| rate.take(now));
        starts.then(|| Permit::for_hedge(now, self.rate.is_some()))
    }

    /// An attempt that started at `started` failed: a request rate that adapts learns from it. Returns
    /// how the attempt [ended](Self::ended) for the gate: where the rate adapts, a throttled attempt is
    /// the rate's business.
    pub fn on_failure(&mut self, now: Instant, started: Instant, failure: &Failure) -> Ended {
        match &mut self.rate {
            Some(rate) if rate.config().heeds(failure) => {
                rate.on_failure(now, started, failure);
                Ended::Deferred
            }
            _ => Ended::of(failure),
        }
    }

    /// The attempt is over, and ended like this.
    #[inline]
    pub fn ended(
        &mut self,
        now: Instant,
        permit: Permit,
        ended: Ended,
        cooldown: &Cooldown,
        random: &mut impl Random,
    ) {
        if let Some(throttle) = &mut self.throttle
            && ended == Ended::Answered
        {
            throttle.on_accept(now);
        }
        let (_, pass) = permit.into_parts(self.gates);
        if let (Some(gate), Some(pass)) = (&mut self.gate, pass) {
            gate.on_end(now, pass, ended, random);
        }
        self.changed(now, cooldown, random);
    }

    /// Tells the budget of the destination what the gate has found out.
    pub fn teach(&mut self, now: Instant, budget: &Budget) {
        if let Some(gate) = &mut self.gate {
            budget.learn(&gate.lesson(now));
        }
    }

    /// Whether the time that a failure names holds for its caller alone (design rule 4). Where there is a gate, a
    /// destination that is down or full is the gate's business, and only one that refuses because of rate, or asks
    /// not to be asked again, holds back all. It does not if it contradicts itself: it has answered others within
    /// the time for which it asks everybody to stay away.
    pub fn holds_for_one(&mut self, now: Instant, failure: &Failure) -> bool {
        let Some(gate) = &mut self.gate else {
            return false;
        };
        let delay = failure.hint.delay_nanos();
        failure.kind == Kind::NotProcessed
            || !gate.is_closed() && delay.is_some_and(|delay| gate.has_answered_within(now, delay))
    }

    /// The attempt was not made: its slot is free again, and if it was a probe, another may go.
    pub fn cancel(
        &mut self,
        now: Instant,
        permit: Permit,
        cooldown: &Cooldown,
        random: &mut impl Random,
    ) {
        self.give_back(now, permit, random);
        self.changed(now, cooldown, random);
    }

    /// A caller that waits goes away. Does nothing about one that does not wait.
    pub fn leave(
        &mut self,
        now: Instant,
        caller: &Caller,
        cooldown: &Cooldown,
        random: &mut impl Random,
    ) {
        match self.line.take_offer(caller.id) {
            Some(permit) => self.give_back(now, permit, random),
            None => self.remove(caller),
        }
        self.changed(now, cooldown, random);
    }

    /// The same for one that a cooldown holds, which nobody else waits for: no time need be known.
    /// Whether it was one.
    pub fn leave_held(&mut self, id: u64) -> bool {
        let held = self.line.held_until(id).is_some();
        if held {
            self.line.remove(id);
            if self.nobody_waits() {
                self.due = None;
            }
        }
        held
    }

    /// Those to be woken since this was last called, in the order of their turns. Wake them when the
    /// lock is released: a waker may run code that comes back here.
    pub fn take_woken(&mut self) -> Vec<u64> {
        core::mem::take(&mut self.line.woken)
    }

    /// Whether [`take_woken`](Self::take_woken) has anybody.
    #[inline]
    #[must_use]
    pub const fn has_woken(&self) -> bool {
        !self.line.woken.is_empty()
    }

    #[inline]
    fn changed(&mut self, now: Instant, cooldown: &Cooldown, random: &mut impl Random) {
        if self.nobody_waits() {
            self.due = None;
            return;
        }
        self.due = self.next(now, cooldown);
        self.settle(now, cooldown, random);
        self.appoint(now);
    }

    /// Takes a slot, which is free.
    fn permit(&mut self, now: Instant, pass: Option<Pass>) -> Permit {
        let paced = self.rate.as_mut().is_some_and(|rate| rate.take(now));
        Permit::new(now, paced, pass, self.gates)
    }

    fn give_back(&mut self, now: Instant, permit: Permit, random: &mut impl Random) {
        let (slot, pass) = permit.into_parts(self.gates);
        if let (Some(rate), Some(slot)) = (&mut self.rate, slot) {
            rate.give_back(slot);
        }
        if let (Some(gate), Some(pass)) = (&mut self.gate, pass) {
            gate.on_end(now, pass, Ended::Unknown, random);
        }
    }

    fn remove(&mut self, caller: &Caller) {
        if !self.line.remove(caller.id)
            && let Some(gate) = &mut self.gate
        {
            gate.forget(caller);
        }
    }
}

const fn later_by(now: Instant, nanos: u64) -> Instant {
    Instant::from_nanos(now.as_nanos().saturating_add(nanos))
}

#[cfg(test)]
mod tests;
