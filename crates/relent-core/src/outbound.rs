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
//! - Callers are known by their numbers, which are the driver's choice. What a caller says about itself
//!   later does not change its place.
//!
//! The value is pure: it holds no lock, waker or timer, and time and randomness are arguments.

mod hedges;
mod line;
mod permit;

use alloc::vec::Vec;
use core::time::Duration;

use crate::batch::Counted;
use crate::budget::Budget;
use crate::cooldown::Cooldown;
use crate::decision::{Stop, StopReason};
use crate::failure::Failure;
use crate::gate::{Caller, Calm, Ended, Gate, Pass};
use crate::hedge::{Hedge, HedgeConfig};
use crate::policy::Policy;
use crate::random::{Random, up_to};
use crate::request_rate::RequestRate;
use crate::sync::Arc;
use crate::throttle::Throttle;
use crate::time::{Instant, nanos, share_of};
use hedges::Hedges;
use line::Line;
pub use permit::Permit;

/// Who asks to make an attempt.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Asking {
    /// Tells the requests of one destination apart; the driver's choice.
    pub id: u64,
    /// When the request was made.
    pub since: Instant,
    /// No attempt may start later than this; [`Instant::MAX`] for no limit.
    pub last_start: Instant,
    /// Nobody waits for an answer later than this; [`Instant::MAX`] for no limit.
    pub answer_by: Instant,
    /// The longest wait for a slot that the caller accepts: the policy's `max_hint`.
    pub longest: Duration,
    /// The share of a cooldown's length by which the caller is spread behind it: the policy's
    /// `hint_spread`.
    pub spread: f64,
    /// Whether the request has made no attempt yet.
    pub fresh: bool,
    /// Whether only the request rate applies to it: for a policy whose retries are off (design rule
    /// 14), which turns off what comes with retries.
    pub paced_only: bool,
}

/// What is said to somebody who asks.
#[derive(Debug)]
pub enum Answer {
    /// Make the attempt.
    Start(Permit),
    /// Ask again when woken, and at this instant at the latest; and what holds the caller back.
    Wait(Instant, Holding),
    /// Give up. The caller has left the line.
    Stop(Stop),
    /// Its [`last_start`](Asking::last_start) has passed while it waited. It has left the line.
    TooLate,
}

/// What holds somebody back who waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Holding {
    /// The destination has asked everybody to stay away for a while.
    Cooldown,
    /// The request rate has no slot yet.
    RequestRate,
    /// The gate has parked the request.
    Gate,
}

impl Holding {
    /// As metrics and traces call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cooldown => "cooldown",
            Self::RequestRate => "request_rate",
            Self::Gate => "gate",
        }
    }
}

/// The gate, the request rate, the throttle, the hedges and the line of one destination in one process.
///
/// Budget and cooldown stand beside it, since they are read and written without a lock.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Answer, Asking, Cooldown, Draw, Ended, Instant, Outbound, Policy};
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
///     fresh: true,
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
    rate: Option<RequestRate>,
    throttle: Option<Throttle>,
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
            rate: policy.new_request_rate(),
            throttle: policy.new_throttle(),
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
        self.rate = Some(rate);
        self
    }

    /// Goes by this policy from now on. What is kept goes on with what it has learnt. A cooldown that runs
    /// is cut to the new longest hint. Whoever waits is woken, to wait by the new rules, and is told so if it
    /// would wait for too long by them.
    ///
    /// While retries are off the gate and the throttle are left as they are, even if this policy has none:
    /// they have no say about new requests, and those who wait there go on as they were promised.
    pub fn set_policy(
        &mut self,
        now: Instant,
        policy: &Policy,
        cooldown: &Cooldown,
        random: &mut impl Random,
    ) {
        // What is over by the old rules is over.
        self.settle(now, cooldown, random);
        match (&mut self.gate, policy.gate()) {
            (Some(gate), Some(config)) => gate.apply(now, config),
            (Some(_), None) if policy.is_off() => {}
            (Some(_), None) => self.remove_gate(),
            (None, _) => self.gate = policy.new_gate(),
        }
        match (&mut self.rate, policy.request_rate()) {
            (Some(rate), Some(config)) => rate.apply(now, config),
            (rate, _) => *rate = policy.new_request_rate(),
        }
        match (&mut self.throttle, policy.throttle()) {
            (Some(throttle), Some(config)) => throttle.apply(config),
            (Some(_), None) if policy.is_off() => {}
            (throttle, _) => *throttle = policy.new_throttle(),
        }
        cooldown.shorten(now, policy.max_hint());
        let end = now.saturating_add(cooldown.left(now));
        self.line.hold_again(|asking, until| {
            // It may be spread behind a cooldown that is over, and was longer.
            let spread = share_of(nanos(policy.max_hint()), asking.spread);
            match until <= later_by(end, spread) {
                true => until,
                false => {
                    let room = asking.last_start.nanos_since(end);
                    later_by(end, up_to(spread.min(room), random))
                }
            }
        });
        self.turn_away_late(now);
        self.changed(now, cooldown, random);
        self.line.wake_all();
    }

    /// Whose slot the request rate puts off too far is told so when it asks.
    fn turn_away_late(&mut self, now: Instant) {
        let mut ahead = 0;
        for id in self.line.all_queued() {
            let Some(asking) = self.line.asking(id) else {
                continue;
            };
            match self.too_late(now, ahead, &asking) {
                Some(_) => self.line.pass_over(&asking),
                None => ahead += 1,
            }
        }
    }

    /// When a caller that lets so many others go first would have its slot, if that is too late for it.
    fn too_late(&mut self, now: Instant, ahead: u64, asking: &Asking) -> Option<Instant> {
        // A rate that was cut comes back: nobody is turned away for what may be over soon.
        let (slot, at_best) = self.rate.as_mut()?.slot_behind(now, ahead);
        let is_late = at_best > asking.last_start || slot.saturating_since(now) > asking.longest;
        is_late.then_some(slot)
    }

    /// Those whom it has parked queue up.
    fn remove_gate(&mut self) {
        let Some(mut gate) = self.gate.take() else {
            return;
        };
        while let Some(asking) = gate.first_parked().and_then(|id| self.line.asking(id)) {
            gate.forget(&caller(&asking));
            self.line.queue(&asking);
        }
        self.gates = self.gates.wrapping_add(1);
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
    pub const fn request_rate_mut(&mut self) -> Option<&mut RequestRate> {
        self.rate.as_mut()
    }

    /// Callers that wait, for whatever reason.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.line.len()
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
    pub fn holding(&self, id: u64) -> Option<Holding> {
        self.line.holding(id)
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

    /// May this caller, who does not wait yet, start an attempt now? Whoever is told to wait [asks
    /// again](Self::ask_again) when it is woken, and at the instant that it is told.
    #[inline]
    pub fn ask(
        &mut self,
        now: Instant,
        asking: &Asking,
        cooldown: &Cooldown,
        random: &mut impl Random,
    ) -> Answer {
        self.settle(now, cooldown, random);
        let answer = match self.arrive(now, asking, cooldown, random) {
            Some(answer) => answer,
            None => {
                self.due = self.next(now, cooldown);
                if self.due.is_some_and(|due| due <= now) {
                    // It joins the line, and need not wait there.
                    return self.ask_again(now, asking, cooldown, random);
                }
                self.wait(now, asking)
            }
        };
        if !self.line.is_empty() {
            self.appoint(now);
        }
        answer
    }

    /// May this caller, who was told to wait, start its attempt now?
    pub fn ask_again(
        &mut self,
        now: Instant,
        asking: &Asking,
        cooldown: &Cooldown,
        random: &mut impl Random,
    ) -> Answer {
        self.settle(now, cooldown, random);
        if let Some(mut permit) = self.line.take_offer(asking.id) {
            if now > asking.last_start {
                self.cancel(now, permit, cooldown, random);
                return Answer::TooLate;
            }
            if !asking.paced_only && cooldown.is_running(now) {
                // It has begun since the offer.
                self.cancel(now, permit, cooldown, random);
                return self.ask(now, asking, cooldown, random);
            }
            permit.restart(now);
            if self.line.is_empty() {
                self.due = None;
            }
            self.appoint(now);
            return Answer::Start(permit);
        }
        if !self.line.waits(asking.id) {
            // It has lost its offer.
            self.line.remove(asking.id);
            if self.line.is_empty() {
                self.due = None;
            }
            return self.ask(now, asking, cooldown, random);
        }
        if let Some(answer) = self.gives_up(now, asking, cooldown) {
            // What it leaves may be somebody else's now.
            self.remove(asking.id);
            self.changed(now, cooldown, random);
            return answer;
        }
        if let Some(permit) = self.take_last_chance(now, asking, cooldown) {
            self.changed(now, cooldown, random);
            return Answer::Start(permit);
        }
        let answer = self.wait(now, asking);
        self.appoint(now);
        answer
    }

    /// Somebody comes who is not in the line; `None`: now it is.
    #[inline]
    fn arrive(
        &mut self,
        now: Instant,
        asking: &Asking,
        cooldown: &Cooldown,
        random: &mut impl Random,
    ) -> Option<Answer> {
        if now > asking.last_start {
            return Some(Answer::TooLate);
        }
        if !asking.paced_only && cooldown.is_running(now) {
            let left = cooldown.left(now);
            let room = asking.last_start.saturating_since(now);
            let wait = cooldown.wait(now, room, asking.spread, random);
            if wait > room {
                return Some(later(now.saturating_add(left)));
            }
            self.line.hold(asking, now.saturating_add(wait));
            return None;
        }
        if let Some(rate) = &mut self.rate {
            let ahead = self.line.queued() as u64;
            if ahead > 0 || rate.next_slot(now) > now {
                if let Some(slot) = self.too_late(now, ahead, asking) {
                    return Some(later(slot));
                }
                self.line.queue(asking);
                return None;
            }
        }
        let mut pass = None;
        if let Some(gate) = self.gate.as_mut().filter(|_| !asking.paced_only) {
            pass = gate.admit(now, caller(asking));
            let is_late = || last_chance(gate, asking).is_some_and(|at| at <= now);
            if pass.is_none() && gate.is_closed() && is_late() {
                // It comes too late for another one, since it was held or queued before.
                gate.forget(&caller(asking));
                pass = Some(Pass::new(now, false));
            }
            if pass.is_none() {
                self.line.park(asking);
                return None;
            }
        }
        Some(Answer::Start(self.permit(now, pass)))
    }

    /// Why somebody who waits is to wait no longer.
    fn gives_up(&mut self, now: Instant, asking: &Asking, cooldown: &Cooldown) -> Option<Answer> {
        let cooled = now.saturating_add(cooldown.left(now));
        if !asking.paced_only && cooled > now && cooled > asking.last_start {
            return Some(later(cooled));
        }
        match self.line.holding(asking.id)? {
            Holding::Gate if now >= self.parked_until(asking).0 => Some(Answer::Stop(Stop {
                reason: StopReason::Gate,
                retry_at: None,
            })),
            Holding::RequestRate if now > asking.last_start => {
                Some(later(self.slot_of(now, asking.id)))
            }
            _ => None,
        }
    }

    /// Until when somebody who is in the line waits before it asks again.
    fn wait(&mut self, now: Instant, asking: &Asking) -> Answer {
        let id = asking.id;
        let holding = self.line.holding(id).unwrap_or(Holding::RequestRate);
        let (own, fallback) = match holding {
            // It has a timer of its own, and keeps none for others: it may leave without a word.
            Holding::Cooldown => {
                let until = self.line.held_until(id).unwrap_or(Instant::MAX);
                return Answer::Wait(until.max(later_by(now, 1)), holding);
            }
            Holding::RequestRate => {
                // Those before it may be futures that nobody polls, and their slots may be far apart.
                let each = FALLBACK_AHEAD.saturating_mul(self.line.ahead(id));
                let fallback = later_by(now, FALLBACK.saturating_add(each));
                let slot = self.slot_of(now, id);
                (later_by(asking.last_start, 1), slot.min(fallback))
            }
            Holding::Gate => {
                // The more wait, the less often each of them looks after itself.
                let each = FALLBACK_EACH.saturating_mul(self.line.len() as u64);
                let fallback = later_by(now, FALLBACK.saturating_add(each));
                let (until, last) = self.parked_until(asking);
                let own = last
                    .filter(|last| *last > now)
                    .map_or(until, |last| until.min(last));
                (
                    own,
                    if self.wakes_all {
                        Instant::MAX
                    } else {
                        fallback
                    },
                )
            }
        };
        let relieved = match self.line.lookout() {
            Some(lookout) => lookout.id == id || is_overdue(lookout.at, now),
            None => true,
        };
        let helps = if relieved {
            let due = self.due.unwrap_or(Instant::MAX);
            self.line.set_lookout(id, due);
            due
        } else {
            // Somebody else has the timer: this is for the case that it does not come.
            fallback.max(later_by(now, OFFER))
        };
        Answer::Wait(helps.min(own).max(later_by(now, 1)), holding)
    }

    /// When the slot of somebody who is queued comes, if all before it take theirs.
    fn slot_of(&mut self, now: Instant, id: u64) -> Instant {
        let ahead = self.line.ahead(id);
        let rate = self.rate.as_mut();
        rate.map_or(now, |rate| rate.slot_behind(now, ahead).0)
    }

    /// Sees to it that somebody has the timer for what comes next.
    fn appoint(&mut self, now: Instant) {
        let (id, at) = match (self.line.lookout(), self.due) {
            (Some(lookout), Some(due)) if due < lookout.at => (lookout.id, due),
            (Some(_), _) => return,
            (None, _) => {
                let parked = || self.gate.as_ref().and_then(Gate::first_parked);
                let Some(first) = self.line.first_queued().or_else(parked) else {
                    // Whom the cooldown holds has a timer of its own.
                    return;
                };
                (first, now)
            }
        };
        self.line.set_lookout(id, at);
        self.line.woken.push(id);
    }

    /// What is remembered here for hedges that are made so, by all callers whose policy has them: how long
    /// successes take, and whether the last outcome was a refusal. One that is new, such as after a reload,
    /// begins with what the others know. `None` for a configuration that no policy can have.
    pub fn hedge(&mut self, config: &HedgeConfig) -> Option<Arc<Hedge>> {
        self.hedges.of(config)
    }

    /// Takes a slot for a hedge, which starts now or never: while the gate is open, no cooldown runs,
    /// and nobody waits. A hedge has no permit, since the call that it is for has one.
    pub fn try_hedge(&mut self, now: Instant, cooldown: &Cooldown) -> bool {
        let open = self.gate.as_ref().is_none_or(Gate::is_open);
        open && self.line.is_empty()
            && !cooldown.is_running(now)
            && self.rate.as_mut().is_none_or(|rate| rate.take(now))
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

    /// Whether what a failure says to all is not true of all: the destination has answered others within the
    /// time for which it asks everybody to stay away.
    pub(crate) fn contradicts(&mut self, now: Instant, failure: &Failure) -> bool {
        let gate = self.gate.as_mut().filter(|gate| !gate.is_closed());
        let said = gate.zip(failure.hint.delay_nanos());
        said.is_some_and(|(gate, delay)| gate.has_answered_within(now, delay))
    }

    /// Until when it may be parked, and when it has its last chance.
    fn parked_until(&self, asking: &Asking) -> (Instant, Option<Instant>) {
        let gate = self.gate.as_ref();
        let until = gate.map_or(asking.since, |gate| patience_ends(gate, asking));
        (until, gate.and_then(|gate| last_chance(gate, asking)))
    }

    /// The last chance of a parked request, if this is the time for it and the gate is closed: no retries
    /// would have made one attempt. Where what is parked goes by and by, there is a pace.
    fn take_last_chance(
        &mut self,
        now: Instant,
        asking: &Asking,
        cooldown: &Cooldown,
    ) -> Option<Permit> {
        let gate = self.gate.as_ref().filter(|gate| gate.is_closed())?;
        let at = last_chance(gate, asking)?;
        let parked = self.line.holding(asking.id) == Some(Holding::Gate);
        let in_time = at <= now && !is_overdue(at, now);
        let rate = self.rate.as_mut();
        let has_slot = rate.is_none_or(|rate| rate.next_slot(now) <= now);
        if !parked || !in_time || cooldown.is_running(now) || !has_slot {
            return None;
        }
        self.remove(asking.id);
        Some(self.permit(now, Some(Pass::new(now, false))))
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
    pub fn leave(&mut self, now: Instant, id: u64, cooldown: &Cooldown, random: &mut impl Random) {
        match self.line.take_offer(id) {
            Some(permit) => self.give_back(now, permit, random),
            None => self.remove(id),
        }
        self.changed(now, cooldown, random);
    }

    /// The same for one that a cooldown holds, which nobody else waits for: no time need be known.
    /// Whether it was one.
    pub fn leave_held(&mut self, id: u64) -> bool {
        let held = self.line.held_until(id).is_some();
        if held {
            self.line.remove(id);
            if self.line.is_empty() {
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

    /// When [`settle`](Self::settle) next has something to do, if nothing happens before; `None` while
    /// nobody waits. For drivers that keep one timer for all, such as a simulator.
    #[must_use]
    pub const fn due(&self) -> Option<Instant> {
        self.due
    }

    fn next(&mut self, now: Instant, cooldown: &Cooldown) -> Option<Instant> {
        let cooled = now.saturating_add(cooldown.left(now));
        let slot = self.rate.as_mut().map_or(now, |rate| rate.next_slot(now));
        let queued = self.line.first_queued().map(|_| slot);
        let gate = self.gate.as_mut();
        let parked = gate.and_then(|gate| gate.next_release(now));
        let parked = parked.map(|at| at.max(slot).max(cooled));
        let held = self.line.first_held().map(|(until, _)| until);
        let nexts = [held, self.line.first_expiry(), queued, parked];
        nexts.into_iter().flatten().min()
    }

    /// Makes the offers that are due and withdraws those that were not taken. All other calls do so by
    /// themselves.
    #[inline]
    pub fn settle(&mut self, now: Instant, cooldown: &Cooldown, random: &mut impl Random) {
        if self.due.is_some_and(|due| due <= now) {
            self.release(now, cooldown, random);
            self.due = self.next(now, cooldown);
        }
    }

    fn release(&mut self, now: Instant, cooldown: &Cooldown, random: &mut impl Random) {
        while let Some(permit) = self.line.take_expired(now) {
            self.give_back(now, permit, random);
        }
        self.stay_spread(now);
        while let Some((_, id)) = self.line.first_held().filter(|(until, _)| *until <= now)
            && let Some(asking) = self.line.asking(id)
        {
            // It has not been asked yet whether its slot comes in time.
            match self.too_late(now, self.line.queued() as u64, &asking) {
                Some(_) => self.line.pass_over(&asking),
                None => self.line.queue(&asking),
            }
        }
        let cooling = cooldown.is_running(now);
        loop {
            let rate = self.rate.as_mut();
            if rate.is_some_and(|rate| rate.next_slot(now) > now) {
                return;
            }
            if !cooling
                && let Some(gate) = &mut self.gate
                && let Some((caller, pass)) = gate.release(now)
            {
                self.offer(now, caller.id, Some(pass), random);
                continue;
            }
            let first = self.line.first_queued();
            let Some(asking) = first.and_then(|id| self.line.asking(id)) else {
                return;
            };
            if now > asking.last_start {
                // It is told so when it asks.
                self.line.pass_over(&asking);
                continue;
            }
            if cooling && !asking.paced_only {
                // A cooldown has begun since it came.
                let room = asking.last_start.saturating_since(now);
                let wait = cooldown.wait(now, room, asking.spread, random);
                self.line.hold(&asking, now.saturating_add(wait));
                self.line.woken.push(asking.id);
                continue;
            }
            let mut pass = None;
            if let Some(gate) = self.gate.as_mut().filter(|_| !asking.paced_only) {
                pass = gate.admit(now, caller(&asking));
                if pass.is_none() {
                    self.line.park(&asking);
                    self.line.woken.push(asking.id);
                    continue;
                }
            }
            self.offer(now, asking.id, pass, random);
        }
    }

    /// Those whose cooldown ended while nobody looked, such as while the machine slept, stay spread as they were,
    /// from now on: they would all go at once. Each is put off once, and by no more than it is late, so that
    /// nobody starves where the driver is always late.
    fn stay_spread(&mut self, now: Instant) {
        let before = self.spread_again;
        let first = self.line.first_held_after(before);
        let Some(first) = first.filter(|first| now.nanos_since(*first) > FALLBACK) else {
            return;
        };
        let mut last = now;
        self.line.hold_again(|asking, until| {
            if until <= before || until > now {
                return until;
            }
            let again = later_by(now, until.nanos_since(first)).min(asking.last_start);
            last = last.max(again);
            again
        });
        self.spread_again = last;
    }

    #[inline]
    fn changed(&mut self, now: Instant, cooldown: &Cooldown, random: &mut impl Random) {
        if self.line.is_empty() {
            self.due = None;
            return;
        }
        self.due = self.next(now, cooldown);
        self.settle(now, cooldown, random);
        self.appoint(now);
    }

    fn offer(&mut self, now: Instant, id: u64, pass: Option<Pass>, random: &mut impl Random) {
        let permit = self.permit(now, pass);
        if let Err(permit) = self.line.offer(id, later_by(now, OFFER), permit) {
            self.give_back(now, permit, random);
        }
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

    fn remove(&mut self, id: u64) {
        if let Some(asking) = self.line.remove(id)
            && let Some(gate) = &mut self.gate
        {
            gate.forget(&caller(&asking));
        }
    }
}

/// A parked request that has made no attempt makes one when this part of its time is left, one in so many: enough
/// to be answered, and late enough for most outages to be over.
const LAST_PART: u64 = 4;
/// Until when a gate may park it.
fn patience_ends(gate: &Gate, asking: &Asking) -> Instant {
    let patience = asking.since.saturating_add(gate.config().patience);
    asking.last_start.min(patience)
}

/// When a parked request that has made no attempt looks whether it makes one whatever the gate says.
fn last_chance(gate: &Gate, asking: &Asking) -> Option<Instant> {
    let until = patience_ends(gate, asking).min(asking.answer_by);
    let time = until.nanos_since(asking.since);
    let last = later_by(asking.since, time - time / LAST_PART);
    asking.fresh.then_some(last)
}

/// How long an offer stands, in nanoseconds: enough for a runtime that is late, and little beside what
/// a gate or a rate lets anybody wait for.
const OFFER: u64 = 100_000_000;
/// When somebody who should be woken looks after itself, in nanoseconds: after this, and so much more for each
/// who waits, if the gate has parked it, or for each who is before it in the queue. So those who wait look at
/// most 10,000 times a second, and those who are queued at most 100 times for each e-fold of their number.
const FALLBACK: u64 = 1_000_000_000;
const FALLBACK_EACH: u64 = 100_000;
const FALLBACK_AHEAD: u64 = 10_000_000;

/// Whether a lookout has not come when it was to.
const fn is_overdue(at: Instant, now: Instant) -> bool {
    at.as_nanos().saturating_add(OFFER) <= now.as_nanos()
}

const fn later_by(now: Instant, nanos: u64) -> Instant {
    Instant::from_nanos(now.as_nanos().saturating_add(nanos))
}

/// As the gate knows it.
const fn caller(asking: &Asking) -> Caller {
    Caller {
        until: asking.answer_by,
        since: asking.since,
        id: asking.id,
        fresh: asking.fresh,
    }
}

/// It would have to wait for longer than it may.
const fn later(at: Instant) -> Answer {
    Answer::Stop(Stop {
        reason: StopReason::RetryLater,
        retry_at: Some(at),
    })
}

#[cfg(test)]
mod tests;
