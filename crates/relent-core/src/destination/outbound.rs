//! Client-side admission control: all rules that the callers of one destination share.
//!
//! A cooldown sets the earliest time, the [circuit breaker](CircuitBreaker) the order, and the [rate
//! limit](RateLimit) the rate. They are checked in one place and in one order, and waiting callers
//! form one queue. So no caller can be overtaken because of a rule that does not apply to it:
//!
//! ```text
//! admit ──► cooldown? ──► rate limit? ──► breaker? ──► Start(Permit) ──► end | cancel
//!              │              │              │              ▲
//!              ▼              ▼              ▼              │
//!             held           held          queued ──► offered
//! ```
//!
//! - A permit that becomes available for a waiting caller is an *offer*, and the driver gets the
//!   caller's id to
//!   [wake](Outbound::take_woken). An offer expires after a tenth of a second and goes to the next
//!   caller. So a future that is not polled does not delay others.
//! - One waiting caller, the *leader*, owns the timer for the next offer. When it leaves, another is
//!   woken to take over. All others get a later instant at which requesting again helps, too, so a lost
//!   wake-up delays a caller but never strands it.
//! - A [`Caller`] is identified by its id (chosen by the driver), the time of its request, and its
//!   deadline. None of the three may change while it waits. Other changes do not affect its position.
//!
//! The value is pure: it holds no lock, waker or timer, and time and randomness are arguments.

mod admission;
mod hedges;
mod late_first_attempt;
mod permit;
mod queue;
mod release;
mod reload;
mod request;
mod waiting;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::destination::attempt_outcome::{AttemptOutcome, CooldownRequest};
use crate::destination::budget::Budget;
use crate::destination::circuit_breaker::{BreakerOutcome, BreakerPermit, CircuitBreaker, Waiter};
use crate::destination::cooldown::Cooldown;
use crate::destination::hedge::{Hedge, HedgeConfig};
use crate::destination::rate_limit::RateLimit;
use crate::destination::sharded_counters::{Healthy, HealthyCounts};
use crate::destination::throttle::Throttle;
use crate::policy::Policy;
use crate::random::Random;
use crate::sync::Arc;
use crate::time::{Instant, nanos};
pub use admission::{Admission, AdmissionRequest, BlockedBy};
use hedges::Hedges;
pub use permit::Permit;
use queue::Queue;

/// Client-side admission controller of one destination in one process: circuit breaker, rate limit,
/// throttle, hedging state and queue.
///
/// Budget and cooldown are separate, since they are read and written without a lock.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{FixedRandom, Instant, Policy};
/// use relent_core::destination::{Admission, AdmissionRequest, AttemptKind, AttemptOutcome, Cooldown, Outbound};
///
/// let mut outbound = Outbound::new(Policy::STANDARD);
/// let (cooldown, mut random) = (Cooldown::new(), FixedRandom::at(0.5));
/// let now = Instant::ORIGIN;
/// assert!(outbound.on_request(now, &mut random), "there is no throttle");
/// let request = AdmissionRequest {
///     id: 1,
///     since: now,
///     last_start: Instant::MAX,
///     answer_by: Instant::MAX,
///     longest: Duration::from_secs(300),
///     jitter: 1.0,
///     kind: AttemptKind::First,
///     waits_without_limit: false,
///     rate_limit_only: false,
///     may_wait: true,
/// };
/// let Admission::Start(permit) = outbound.admit(now, &request, &cooldown, &mut random) else {
///     unreachable!("the circuit breaker is normal");
/// };
/// let later = now.saturating_add(Duration::from_millis(5));
/// outbound.end(later, permit, &AttemptOutcome::SUCCESS, &cooldown, &mut random);
/// assert_eq!(outbound.waiting(), 0);
/// ```
#[derive(Default, Debug)]
pub struct Outbound {
    circuit_breaker: Option<CircuitBreaker>,
    /// Generation of the breaker: distinguishes its probes from those of a removed one.
    breaker_generation: u16,
    /// Boxed, since few policies have them, and a process may have very many destinations.
    rate: Option<Box<RateLimit>>,
    throttle: Option<Box<Throttle>>,
    hedges: Hedges,
    queue: Queue,
    /// The earliest time when [`settle`](Self::settle) has something to do.
    due: Option<Instant>,
    /// Holds that end by then already have new jitter.
    respread_until: Instant,
    /// Whether the driver guarantees that no wake-up is lost.
    wakes_are_certain: bool,
}

impl Outbound {
    /// Creates it with the circuit breaker, rate limit and throttle of the policy.
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        Self {
            circuit_breaker: policy.new_circuit_breaker(),
            breaker_generation: 0,
            rate: policy.new_rate_limit().map(Box::new),
            throttle: policy.new_throttle().map(Box::new),
            hedges: Hedges::default(),
            queue: Queue::default(),
            due: None,
            respread_until: Instant::ORIGIN,
            wakes_are_certain: false,
        }
    }

    /// For a driver that guarantees to act on every wake-up and every returned time, such as a
    /// simulator. Queued callers then need no fallback timer.
    #[must_use]
    pub const fn with_certain_wakes(mut self) -> Self {
        self.wakes_are_certain = true;
        self
    }

    /// Uses this rate limit instead of the policy's.
    #[must_use]
    pub fn with_rate_limit(mut self, rate: RateLimit) -> Self {
        self.rate = Some(Box::new(rate));
        self
    }

    /// Whether attempts need no admission and no report of their outcome while no cooldown runs.
    #[must_use]
    pub const fn needs_no_admission(&self) -> bool {
        self.circuit_breaker.is_none() && self.rate.is_none() && self.throttle.is_none()
    }

    /// Whether there is a rate limit.
    #[must_use]
    pub const fn has_rate_limit(&self) -> bool {
        self.rate.is_some()
    }

    /// The circuit breaker.
    #[must_use]
    pub const fn circuit_breaker(&self) -> Option<&CircuitBreaker> {
        self.circuit_breaker.as_ref()
    }

    /// The rate limit.
    pub fn rate_limit_mut(&mut self) -> Option<&mut RateLimit> {
        self.rate.as_deref_mut()
    }

    /// Number of callers that wait, for any reason.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.len() + self.queued_while_down()
    }

    fn nobody_waits(&self) -> bool {
        self.queue.is_empty() && self.queued_while_down() == 0
    }

    /// Number of callers queued by the circuit breaker.
    #[must_use]
    pub fn queued_while_down(&self) -> usize {
        self.circuit_breaker
            .as_ref()
            .map_or(0, CircuitBreaker::queued)
    }

    /// Number of callers that wait for a slot of the rate limit.
    #[must_use]
    pub fn held_by_rate_limit(&self) -> usize {
        self.queue.queued()
    }

    /// What this caller waits for; `None` if it does not wait, or has an offer.
    #[must_use]
    pub fn blocked_by(&self, caller: &Waiter) -> Option<BlockedBy> {
        let queued = || {
            self.circuit_breaker
                .as_ref()?
                .has_queued(caller)
                .then_some(BlockedBy::CircuitBreaker)
        };
        self.queue.blocked_by(caller.id).or_else(queued)
    }

    /// Counts a request. Call it once for each, before it first [requests admission](Self::admit).
    /// `false` if the throttle rejects it.
    pub fn on_request(&mut self, now: Instant, random: &mut impl Random) -> bool {
        let throttle = self.throttle.as_mut();
        let admitted = throttle.is_none_or(|throttle| throttle.admit(now, random));
        if admitted {
            self.on_request_unthrottled(now);
        }
        admitted
    }

    /// Counts a request to which the throttle does not apply.
    #[inline]
    pub fn on_request_unthrottled(&mut self, now: Instant) {
        if let Some(circuit_breaker) = &mut self.circuit_breaker {
            circuit_breaker.on_request(now);
        }
    }

    /// The period in which everything is admitted and only the breaker counts: see
    /// [`CircuitBreaker::healthy`].
    pub(crate) fn healthy_period(&self, now: Instant) -> Option<Healthy> {
        let others = self.rate.is_some() || self.throttle.is_some();
        let circuit_breaker = self.circuit_breaker.as_ref().filter(|_| !others);
        circuit_breaker
            .filter(|_| self.queue.is_empty() && self.due.is_none())?
            .healthy(now)
    }

    /// Adds the counts of a [healthy period](Self::healthy_period).
    #[inline]
    pub(crate) fn on_counted(&mut self, counted: &HealthyCounts) {
        if let Some(circuit_breaker) = &mut self.circuit_breaker {
            circuit_breaker.on_counted(counted);
        }
    }

    /// The hedging state for this configuration, shared by all callers whose policy has it: latencies
    /// of successes, and whether the last outcome was a rejection. A new one, such as after a reload,
    /// starts with the data of the others. `None` for an invalid configuration.
    pub fn hedge(&mut self, config: &HedgeConfig) -> Option<Arc<Hedge>> {
        self.hedges.of(config)
    }

    /// Takes a slot for a hedge, which starts now or never: only if the breaker is normal, no cooldown
    /// runs, and no caller waits. The permit holds the slot alone, since the breaker already knows the
    /// call. [Cancel](Self::cancel) it if the hedge is not sent.
    pub fn try_hedge(&mut self, now: Instant, cooldown: &Cooldown) -> Option<Permit> {
        let open = self
            .circuit_breaker
            .as_ref()
            .is_none_or(CircuitBreaker::is_normal);
        let starts = open
            && self.nobody_waits()
            && !cooldown.is_running(now)
            && self.rate.as_mut().is_none_or(|rate| rate.take(now));
        starts.then(|| Permit::for_hedge(now, self.rate.is_some()))
    }

    /// Reports an attempt that started at `started` to the adaptive rate limit. [`end`](Self::end) does
    /// this for an attempt with a permit.
    #[inline]
    pub fn adapt_rate(&mut self, now: Instant, started: Instant, outcome: &AttemptOutcome) {
        if let Some(rate) = &mut self.rate {
            rate.on_end(now, started, outcome);
        }
    }

    /// Ends an attempt with this outcome.
    #[inline]
    pub fn end(
        &mut self,
        now: Instant,
        permit: Permit,
        outcome: &AttemptOutcome,
        cooldown: &Cooldown,
        random: &mut impl Random,
    ) {
        self.adapt_rate(now, permit.started(), outcome);
        // If the rate limit handles the throttling, the breaker does not.
        let ended = match &self.rate {
            Some(rate) if rate.adapts_to(outcome) => BreakerOutcome::Deferred,
            _ => outcome.circuit_breaker,
        };
        if let Some(throttle) = &mut self.throttle
            && ended == BreakerOutcome::Answered
        {
            throttle.on_accept(now);
        }
        let (_, breaker_permit) = permit.into_parts(self.breaker_generation);
        if let (Some(circuit_breaker), Some(breaker_permit)) =
            (&mut self.circuit_breaker, breaker_permit)
        {
            circuit_breaker.on_end(now, breaker_permit, ended, random);
        }
        self.changed(now, cooldown, random);
    }

    /// Passes the breaker's feedback to the budget of the destination.
    pub fn signal_budget(&mut self, now: Instant, budget: &Budget) {
        if let Some(circuit_breaker) = &mut self.circuit_breaker {
            budget.on_signal(&circuit_breaker.signal(now));
        }
    }

    /// Whether the [requested cooldown](AttemptOutcome::cooldown) applies to its caller alone. With a
    /// circuit breaker, a destination that is down or full is handled by the breaker. Only a rejection
    /// because of rate, or a request to stay away, holds all callers. It does not if the destination
    /// has responded to others within that time, which contradicts it.
    pub fn applies_to_one_caller(&mut self, now: Instant, request: &CooldownRequest) -> bool {
        let Some(circuit_breaker) = &mut self.circuit_breaker else {
            return false;
        };
        request.is_left_to_breaker
            || !circuit_breaker.is_down()
                && circuit_breaker.has_success_within(now, nanos(request.delay))
    }

    /// Cancels an attempt that was not made: its slot is free again, and another probe may go.
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

    /// Removes a waiting caller. Does nothing if it does not wait.
    pub fn leave(
        &mut self,
        now: Instant,
        caller: &Waiter,
        cooldown: &Cooldown,
        random: &mut impl Random,
    ) {
        match self.queue.take_offer(caller.id) {
            Some(permit) => self.give_back(now, permit, random),
            None => self.remove(caller),
        }
        self.changed(now, cooldown, random);
    }

    /// Removes a caller that a cooldown holds, which affects no other caller, so it needs no time.
    /// Returns whether it was one.
    pub fn remove_held(&mut self, id: u64) -> bool {
        let held = self.queue.held_until(id).is_some();
        if held {
            self.queue.remove(id);
            if self.nobody_waits() {
                self.due = None;
            }
        }
        held
    }

    /// Returns the callers to be woken since the last call, in order. Wake them after releasing the
    /// lock: a waker may run code that comes back here.
    pub fn take_woken(&mut self) -> Vec<u64> {
        core::mem::take(&mut self.queue.woken)
    }

    /// Whether [`take_woken`](Self::take_woken) has any.
    #[inline]
    #[must_use]
    pub const fn has_woken(&self) -> bool {
        !self.queue.woken.is_empty()
    }

    #[inline]
    fn changed(&mut self, now: Instant, cooldown: &Cooldown, random: &mut impl Random) {
        if self.nobody_waits() {
            self.due = None;
            return;
        }
        self.due = self.next(now, cooldown);
        self.settle(now, cooldown, random);
        self.appoint_leader(now);
    }

    /// Issues a permit, and takes a slot, which is free.
    fn permit(&mut self, now: Instant, breaker_permit: Option<BreakerPermit>) -> Permit {
        let paced = self.rate.as_mut().is_some_and(|rate| rate.take(now));
        Permit::new(now, paced, breaker_permit, self.breaker_generation)
    }

    fn give_back(&mut self, now: Instant, permit: Permit, random: &mut impl Random) {
        let (slot, breaker_permit) = permit.into_parts(self.breaker_generation);
        if let (Some(rate), Some(slot)) = (&mut self.rate, slot) {
            rate.give_back(slot);
        }
        if let (Some(circuit_breaker), Some(breaker_permit)) =
            (&mut self.circuit_breaker, breaker_permit)
        {
            circuit_breaker.on_end(now, breaker_permit, BreakerOutcome::Unknown, random);
        }
    }

    fn remove(&mut self, caller: &Waiter) {
        if !self.queue.remove(caller.id)
            && let Some(circuit_breaker) = &mut self.circuit_breaker
        {
            circuit_breaker.forget(caller);
        }
    }
}

#[cfg(test)]
mod tests;
