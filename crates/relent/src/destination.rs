//! What the callers of one destination share: budget, gate, cooldown and request rate.

mod slots;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use relent_core::{
    Budget, Caller, Cooldown, Ended, Failure, Gate, Hop, Instant, Pass, Place, Policy, RequestRate,
    Slot, Throttle,
};

use crate::random::SessionRandom;
pub(crate) use slots::SlotTurn;
use slots::Slots;

/// What the callers of one destination share: the budget, the gate, the cooldown and the request rate.
///
/// Have one for each destination that fails by itself (a host, a database), in an `Arc` or a
/// `static`, and give it to every session that goes there with
/// [`Retry::destination`](crate::Retry::destination). Its memory is bounded by the requests that
/// are parked at the moment.
///
/// ```
/// use relent::{Destination, Policy, retry};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let policy = Policy::STANDARD;
/// let database = Destination::new(policy);
/// let answer = retry(policy, || async { Ok::<_, std::io::Error>(42) })
///     .destination(&database)
///     .await;
/// assert_eq!(answer.unwrap(), 42);
/// assert!(!database.is_closed());
/// # }
/// ```
pub struct Destination {
    budget: Option<Budget>,
    cooldown: Cooldown,
    /// The policy's longest hint: no cooldown lasts longer.
    longest: Duration,
    patience: Duration,
    gate: Option<Mutex<Gated>>,
    /// What the gate has become and nobody has told of; 0 for nothing.
    change: AtomicU8,
    /// Refuses fresh requests that the destination would refuse: off unless asked for.
    throttle: Option<Mutex<(Throttle, SessionRandom)>>,
    /// How many attempts go there per second: off unless asked for.
    slots: Option<Slots>,
    requests: AtomicU64,
}

/// What a gate does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum GateState {
    Open = 1,
    Limited,
    Closed,
}

impl GateState {
    /// As it is told.
    #[cfg(any(feature = "tracing", feature = "metrics"))]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Limited => "limited",
            Self::Closed => "closed",
        }
    }

    fn of(gate: &Gate) -> Self {
        match (gate.is_open(), gate.is_closed()) {
            (true, _) => Self::Open,
            (_, true) => Self::Closed,
            (false, false) => Self::Limited,
        }
    }
}

/// The gate, and those who wait at it.
struct Gated {
    gate: Gate,
    state: GateState,
    random: SessionRandom,
    waiting: HashMap<u64, Waiting>,
    /// Who has the timer for the next release.
    leader: Option<u64>,
}

#[derive(Default)]
struct Waiting {
    waker: Option<Waker>,
    pass: Option<Pass>,
}

/// Whether a parked caller may go.
pub(crate) enum Turn {
    Go(Pass),
    /// Not before it is woken, or this instant if it is given.
    Wait(Option<Instant>),
}

impl Destination {
    /// A destination with the budget, the gate and the request rate of the policy, where it has them.
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        Self {
            budget: policy.new_budget(),
            cooldown: Cooldown::new(),
            longest: policy.max_hint(),
            patience: policy.gate().map_or(Duration::MAX, |gate| gate.patience),
            gate: policy.new_gate().map(|gate| {
                Mutex::new(Gated {
                    gate,
                    state: GateState::Open,
                    random: SessionRandom::new(),
                    waiting: HashMap::new(),
                    leader: None,
                })
            }),
            change: AtomicU8::new(0),
            throttle: None,
            slots: policy.new_request_rate().map(Slots::new),
            requests: AtomicU64::new(0),
        }
    }

    /// Takes this budget in place of the policy's.
    #[must_use]
    pub fn with_budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Refuses requests locally that the destination would most likely refuse, by the recent share of
    /// those it accepted ("Handling Overload", Site Reliability Engineering; R4.7). Such a request
    /// stops with [`StopReason::Overloaded`](crate::StopReason::Overloaded) before its first attempt.
    #[must_use]
    pub fn with_throttle(mut self, throttle: Throttle) -> Self {
        self.throttle = Some(Mutex::new((throttle, SessionRandom::new())));
        self
    }

    /// Makes no more attempts than this rate allows, in place of the policy's. Callers are held back
    /// until their slot comes, in the order in which they asked; one whose slot would come after its
    /// limit, or after the longest hint that its policy obeys, stops at once with
    /// [`StopReason::RetryLater`](crate::StopReason::RetryLater) and the instant of that slot.
    ///
    /// ```
    /// use relent::{Destination, Policy, RequestRate, RequestRateConfig};
    ///
    /// // A contract of 100 requests per second, or fewer if the service says so.
    /// let config = RequestRateConfig { adapt: true, ..RequestRateConfig::new(100.0) };
    /// let rate = RequestRate::new(&config)?;
    /// let there = Destination::new(Policy::STANDARD).with_request_rate(rate);
    /// # Ok::<(), relent::PolicyError>(())
    /// ```
    #[must_use]
    pub fn with_request_rate(mut self, rate: RequestRate) -> Self {
        self.slots = Some(Slots::new(rate));
        self
    }

    /// The budget.
    #[must_use]
    pub const fn budget(&self) -> Option<&Budget> {
        self.budget.as_ref()
    }

    /// The cooldown.
    #[must_use]
    pub const fn cooldown(&self) -> &Cooldown {
        &self.cooldown
    }

    /// Whether the destination is judged to be down, so that nothing but probes goes there.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.locked().is_some_and(|gated| gated.gate.is_closed())
    }

    /// Whether everything goes: see [`Gate::is_open`].
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.locked().is_none_or(|gated| gated.gate.is_open())
    }

    /// Requests that are parked.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.locked().map_or(0, |gated| gated.gate.parked())
    }

    /// Whether nobody has to ask before an attempt, nor tell how it ended: then no clock is read for
    /// it (design rule 10).
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.gate.is_none()
            && self.throttle.is_none()
            && self.slots.is_none()
            && !self.cooldown.has_begun()
    }

    /// Attempts per second that may be made at the moment, if they are held to a rate; infinite while
    /// there is no limit.
    #[cfg(feature = "metrics")]
    pub(crate) fn request_rate(&self, now: Instant) -> Option<f64> {
        let slots = self.slots.as_ref()?;
        Some(slots.limit(now).unwrap_or(f64::INFINITY))
    }

    /// Requests that are held back until there is a slot for them in the request rate.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.slots.as_ref().map_or(0, Slots::waiting)
    }

    fn locked(&self) -> Option<MutexGuard<'_, Gated>> {
        let gate = self.gate.as_ref()?;
        Some(gate.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Until when a request that was made at `since` may be parked.
    pub(crate) const fn patience(&self, since: Instant) -> Instant {
        since.saturating_add(self.patience)
    }

    /// A request is made. `None` if it is not to be attempted at all; else its name here.
    pub(crate) fn on_request(&self, now: Instant) -> Option<u64> {
        self.cooldown.forget_past(now);
        if let Some(throttle) = &self.throttle {
            let (throttle, random) = &mut *throttle.lock().unwrap_or_else(PoisonError::into_inner);
            if !throttle.admit(now, random) {
                return None;
            }
        }
        if let Some(budget) = &self.budget {
            budget.on_request();
        }
        if let Some(mut gated) = self.locked() {
            gated.gate.on_request(now);
        }
        Some(self.requests.fetch_add(1, Ordering::Relaxed))
    }

    /// The same for a request that then asks for its first attempt, where nothing but a gate has a say
    /// about it: as [`admit`](Self::admit), in one turn at the lock. `None`: there is more to ask.
    #[inline]
    pub(crate) fn on_request_at_gate(
        &self,
        now: Instant,
        last_start: Instant,
    ) -> Option<(u64, Option<Pass>)> {
        if self.throttle.is_some() || self.slots.is_some() || self.cooldown.has_begun() {
            return None;
        }
        let mut gated = self.locked()?;
        if let Some(budget) = &self.budget {
            budget.on_request();
        }
        gated.gate.on_request(now);
        let caller = Caller {
            until: last_start.min(self.patience(now)),
            since: now,
            id: self.requests.fetch_add(1, Ordering::Relaxed),
            fresh: true,
        };
        let pass = gated.admit(now, caller, &self.change);
        Some((caller.id, pass))
    }

    /// May the caller make an attempt? `None`: it is parked, and asks for its [turn](Self::turn).
    pub(crate) fn admit(&self, now: Instant, caller: Caller) -> Option<Option<Pass>> {
        let Some(mut gated) = self.locked() else {
            return Some(None);
        };
        gated.admit(now, caller, &self.change).map(Some)
    }

    /// Whether a parked caller may go now; if not, `waker` is woken when it may.
    pub(crate) fn turn(&self, now: Instant, caller: &Caller, waker: Option<&Waker>) -> Turn {
        let Some(mut gated) = self.locked() else {
            return Turn::Wait(None);
        };
        let gated = &mut *gated;
        gated.release(now);
        gated.note(&self.change);
        let pass = gated.waiting.get_mut(&caller.id).and_then(|own| {
            own.waker = waker.cloned();
            own.pass.take()
        });
        if let Some(pass) = pass {
            gated.leave(caller.id);
            return Turn::Go(pass);
        }
        // One has the timer; the others are woken.
        let leads = *gated.leader.get_or_insert(caller.id) == caller.id;
        let next = gated.gate.next_release(now);
        Turn::Wait(next.filter(|_| leads || waker.is_none()))
    }

    /// A parked caller goes away.
    pub(crate) fn forget(&self, now: Instant, caller: &Caller) {
        let Some(mut gated) = self.locked() else {
            return;
        };
        let gated = &mut *gated;
        gated.gate.forget(caller);
        let pass = gated.waiting.get_mut(&caller.id);
        if let Some(pass) = pass.and_then(|own| own.pass.take()) {
            gated
                .gate
                .on_end(now, pass, Ended::Unknown, &mut gated.random);
            // The probe that it was to be may be somebody else's now.
            gated.wake_leader();
        }
        gated.leave(caller.id);
    }

    /// Whether attempts are held to a rate.
    pub(crate) const fn is_paced(&self) -> bool {
        self.slots.is_some()
    }

    /// May the caller make an attempt now by the request rate, or when? `before`: it has waited at the
    /// gate already.
    pub(crate) fn ask(&self, now: Instant, until: Instant, before: bool) -> Slot {
        match &self.slots {
            Some(slots) => slots.ask(now, until, before),
            None => Slot::Now,
        }
    }

    /// Whether a caller that waits for its slot may go now; if not, `waker` is woken when it may.
    pub(crate) fn slot_turn(&self, now: Instant, place: Place, waker: Option<&Waker>) -> SlotTurn {
        match &self.slots {
            Some(slots) => slots.turn(now, place, waker),
            None => SlotTurn::Go(now),
        }
    }

    /// A caller that waits for its slot goes away.
    pub(crate) fn leave_queue(&self, now: Instant, place: Place) {
        if let Some(slots) = &self.slots {
            slots.forget(now, place);
        }
    }

    /// Takes a slot if there is one now, for an attempt that is made now or never.
    pub(crate) fn try_slot(&self, now: Instant) -> bool {
        self.slots.as_ref().is_none_or(|slots| slots.try_now(now))
    }

    /// The slot that was taken at this instant is not used.
    pub(crate) fn give_slot_back(&self, now: Instant, taken: Instant) {
        if let Some(slots) = &self.slots {
            slots.give_back(now, taken);
        }
    }

    /// An attempt that started at `started` failed: what the destination said to all is kept. Whether a
    /// cooldown begins.
    pub(crate) fn on_failure(&self, now: Instant, started: Instant, failure: &Failure) -> bool {
        if let Some(slots) = &self.slots {
            slots.on_failure(now, started, failure);
        }
        self.cooldown.on_failure(now, failure, self.longest)
    }

    /// An attempt at another destination was redirected here at `started`, if that is known, and ended
    /// like this; `None` is a success. Whether a cooldown begins.
    pub(crate) fn on_redirected(
        &self,
        now: Instant,
        started: Option<Instant>,
        failure: Option<&Failure>,
    ) -> bool {
        // Here it is a failure like any other.
        let failure = failure.map(|failure| failure.hop(Hop::None));
        let failure = failure.as_ref();
        let since = started.unwrap_or(now);
        let begins = failure.is_some_and(|failure| self.on_failure(now, since, failure));
        let ended = failure.map_or(Ended::Answered, |failure| self.ended(failure));
        if let Some(started) = started {
            self.on_end(|| now, Some(Pass::new(started, false)), ended);
        }
        begins
    }

    /// What the gate has become since somebody asked last.
    #[inline]
    pub(crate) fn gate_change(&self) -> Option<GateState> {
        if self.change.load(Ordering::Relaxed) == 0 {
            return None;
        }
        match self.change.swap(0, Ordering::Relaxed) {
            0 => None,
            1 => Some(GateState::Open),
            2 => Some(GateState::Limited),
            _ => Some(GateState::Closed),
        }
    }

    /// How an attempt ended that failed like this, as far as the gate is concerned.
    pub(crate) fn ended(&self, failure: &Failure) -> Ended {
        match &self.slots {
            Some(slots) if slots.heeds(failure) => Ended::Unknown,
            _ => Ended::of(failure),
        }
    }

    /// An attempt is over.
    pub(crate) fn on_end(&self, now: impl Fn() -> Instant, pass: Option<Pass>, ended: Ended) {
        if let Some(throttle) = &self.throttle
            && ended == Ended::Answered
        {
            let (throttle, _) = &mut *throttle.lock().unwrap_or_else(PoisonError::into_inner);
            throttle.on_accept(now());
        }
        let (Some(pass), Some(mut gated)) = (pass, self.locked()) else {
            return;
        };
        let now = now();
        let gated = &mut *gated;
        gated.gate.on_end(now, pass, ended, &mut gated.random);
        gated.note(&self.change);
        if let Some(budget) = &self.budget {
            budget.widen(gated.gate.ratio(now));
            budget.waive(!gated.gate.is_open());
        }
        if !gated.waiting.is_empty() {
            gated.release(now);
            // Its timer may be too late now.
            gated.wake_leader();
        }
    }
}

impl Gated {
    fn admit(&mut self, now: Instant, caller: Caller, change: &AtomicU8) -> Option<Pass> {
        let pass = self.gate.admit(now, caller);
        self.note(change);
        if pass.is_none() {
            self.waiting.insert(caller.id, Waiting::default());
        }
        pass
    }

    /// Notes what the gate has become.
    fn note(&mut self, change: &AtomicU8) {
        let state = GateState::of(&self.gate);
        if state != self.state {
            self.state = state;
            change.store(state as u8, Ordering::Relaxed);
        }
    }

    /// Lets those go who may.
    fn release(&mut self, now: Instant) {
        while let Some((caller, pass)) = self.gate.release(now) {
            match self.waiting.get_mut(&caller.id) {
                Some(waiting) => {
                    waiting.pass = Some(pass);
                    if let Some(waker) = waiting.waker.take() {
                        waker.wake();
                    }
                }
                None => self
                    .gate
                    .on_end(now, pass, Ended::Unknown, &mut self.random),
            }
        }
    }

    /// One who was parked is not any more; somebody else takes the timer.
    fn leave(&mut self, id: u64) {
        self.waiting.remove(&id);
        if self.leader == Some(id) {
            self.leader = None;
            let next = self.waiting.values_mut();
            if let Some(waker) = next.filter_map(|other| other.waker.take()).next() {
                waker.wake();
            }
        }
    }

    fn wake_leader(&mut self) {
        let leader = self.leader.and_then(|id| self.waiting.get_mut(&id));
        if let Some(waker) = leader.and_then(|leader| leader.waker.take()) {
            waker.wake();
        }
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Destination")
            .field("budget", &self.budget)
            .field("cooldown", &self.cooldown)
            .field("closed", &self.is_closed())
            .field("parked", &self.parked())
            .finish_non_exhaustive()
    }
}
