//! A destination: the service that callers share (one per host), with their shared state.

pub(crate) mod attempt_outcome;
pub(crate) mod backlog;
pub(crate) mod budget;
pub(crate) mod circuit_breaker;
pub(crate) mod cooldown;
mod healthy;
pub(crate) mod hedge;
pub(crate) mod latencies;
#[cfg(all(test, not(loom)))]
mod load_tests;
pub(crate) mod outbound;
pub(crate) mod rate_limit;
pub(crate) mod sharded_counters;
pub(crate) mod throttle;

use core::convert::Infallible;
use core::fmt;
use core::sync::atomic::AtomicBool;
use core::time::Duration;

use crate::call::stop::{Stop, StopReason};
use crate::failure::{Failure, Hop};
use crate::policy::Policy;
use crate::random::{FixedRandom, Random};
use crate::sync::{Arc, AtomicU64, Ordering};
use crate::time::{Instant, nanos};
pub use attempt_outcome::{AttemptOutcome, CooldownRequest, Exemption};
pub use backlog::Backlog;
pub use budget::{BreakerSignal, Budget, BudgetConfig, Charge, Taken};
#[cfg(feature = "ablation")]
#[doc(hidden)]
pub use circuit_breaker::BreakerRule;
pub use circuit_breaker::{
    AttemptKind, BreakerOutcome, BreakerPermit, CircuitBreaker, CircuitBreakerConfig, Waiter,
};
pub use cooldown::Cooldown;
pub use hedge::{Hedge, HedgeConfig, HedgeDelay, MAX_HEDGES};
pub use latencies::Latencies;
pub use outbound::{Admission, AdmissionRequest, BlockedBy, Outbound, Permit};
pub use rate_limit::{RateLimit, RateLimitConfig};
use sharded_counters::HealthyCounters;
pub use sharded_counters::ShardedCounters;
pub use throttle::{Throttle, ThrottleConfig};

/// The service that several callers call (usually one per host), with the state they share.
///
/// It has two parts, so that it stays cheap. Budget and cooldown are atomics, which every caller reads
/// and writes directly. The [`Outbound`] (circuit breaker, rate limit, throttle, hedging state and
/// queue) is reached through an [`Access`]: a lock if threads share it, or direct access for one
/// thread. While the breaker is normal and nothing fails, requests and successes are counted in
/// atomics, which are passed on a few times a second.
///
/// A [`Call`](crate::call::Call) requests admission before each attempt, and reports the outcome.
///
/// ```
/// use core::cell::RefCell;
/// use relent_core::{FixedRandom, Policy};
/// use relent_core::destination::{Access, Destination, Outbound};
///
/// struct OneThread(RefCell<Outbound>);
///
/// impl Access for OneThread {
///     type Random = FixedRandom;
///     type Waker = ();
///
///     fn turn<T>(&self, change: impl FnOnce(&mut Outbound, &mut FixedRandom) -> T) -> T {
///         change(&mut self.0.borrow_mut(), &mut FixedRandom::at(0.5))
///     }
/// }
///
/// let policy = Policy::STANDARD;
/// let outbound = Outbound::new(policy);
/// let there = Destination::new(policy, outbound, |outbound| OneThread(RefCell::new(outbound)));
/// assert!(there.budget().is_some() && !there.needs_no_admission());
/// ```
pub struct Destination<A> {
    budget: Budget,
    /// Whether the policy has a budget.
    budgeted: AtomicBool,
    cooldown: Cooldown,
    /// The policy's [`max_cooldown`](Policy::max_cooldown) in nanoseconds: no cooldown lasts longer.
    longest: AtomicU64,
    /// No admission is needed while no cooldown runs.
    quiet: AtomicBool,
    /// Whether there is a rate limit.
    paced: AtomicBool,
    /// Whether any attempt got a response.
    responded: AtomicBool,
    /// Counts that the outbound has yet to receive.
    counters: HealthyCounters,
    access: A,
}

/// Access to the [`Outbound`] of a [`Destination`].
pub trait Access {
    /// Random source for the jitter of waiting callers.
    type Random: Random;
    /// The handle that a waiting caller stores, to be woken by.
    type Waker;

    /// Runs `change` with the outbound, under its lock if it has one. Wakes the callers in
    /// [`take_woken`](Outbound::take_woken) after the lock is released.
    fn turn<T>(&self, change: impl FnOnce(&mut Outbound, &mut Self::Random) -> T) -> T;

    /// Runs a repeated request for admission. If the result is to wait, stores the waker, if there is
    /// one, under the caller's id; it replaces the one before.
    #[inline]
    fn ask(
        &self,
        id: u64,
        waker: Option<&Self::Waker>,
        ask: impl FnOnce(&mut Outbound, &mut Self::Random) -> Admission,
    ) -> Admission {
        let _ = (id, waker);
        self.turn(ask)
    }

    /// Runs the departure of a waiting caller. Returns whether `leave` has handled it.
    #[inline]
    fn leave(
        &self,
        id: u64,
        remove: impl FnOnce(&mut Outbound, &mut Self::Random) -> bool,
    ) -> bool {
        let _ = id;
        self.turn(remove)
    }

    /// The id of the caller in the queue: its number, unless the driver adds something, such as the
    /// task to wake. Ids have to keep the order of the numbers. A driver that creates them from wakers
    /// always passes one.
    #[inline]
    fn name(&self, number: u64, waker: Option<&Self::Waker>) -> u64 {
        let _ = waker;
        number
    }

    /// Counters for each thread, so that threads do not contend for one cache line. `None` before
    /// threads [have met](Self::on_contention), and for one thread.
    #[inline]
    fn shards(&self) -> Option<&ShardedCounters> {
        None
    }

    /// A number for this thread, which selects its counters.
    #[inline]
    fn thread(&self) -> usize {
        0
    }

    /// Called when two threads have used the same counters concurrently: create [shards](Self::shards) if
    /// there are none.
    #[inline]
    fn on_contention(&self) {}
}

/// For calls without a destination.
impl Access for Infallible {
    type Random = FixedRandom;
    type Waker = Self;

    fn turn<T>(&self, _: impl FnOnce(&mut Outbound, &mut FixedRandom) -> T) -> T {
        match *self {}
    }
}

impl<A> Destination<A> {
    /// A destination with the budget of the policy, if it has one, and this outbound, for which `share`
    /// creates the access.
    pub fn new(policy: &Policy, outbound: Outbound, share: impl FnOnce(Outbound) -> A) -> Self {
        let budget = policy.new_budget().unwrap_or_else(Budget::none);
        let mut outbound = outbound;
        outbound.signal_budget(Instant::ORIGIN, &budget);
        Self {
            budget,
            budgeted: AtomicBool::new(policy.budget().is_some()),
            cooldown: Cooldown::new(),
            longest: AtomicU64::new(nanos(policy.max_cooldown())),
            quiet: AtomicBool::new(outbound.needs_no_admission()),
            paced: AtomicBool::new(outbound.has_rate_limit()),
            responded: AtomicBool::new(false),
            counters: HealthyCounters::new(),
            access: share(outbound),
        }
    }

    /// Uses this budget instead of the policy's.
    #[must_use]
    pub fn with_budget(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self.budgeted = AtomicBool::new(true);
        self
    }

    /// The budget.
    #[inline]
    #[must_use]
    pub fn budget(&self) -> Option<&Budget> {
        self.budgeted
            .load(Ordering::Relaxed)
            .then_some(&self.budget)
    }

    /// The budget to return tokens to, even if the policy has none any more.
    #[inline]
    pub(crate) const fn refundable_budget(&self) -> &Budget {
        &self.budget
    }

    /// The cooldown.
    #[must_use]
    pub const fn cooldown(&self) -> &Cooldown {
        &self.cooldown
    }

    /// The access to its outbound.
    #[must_use]
    pub const fn access(&self) -> &A {
        &self.access
    }

    /// Whether attempts need no admission and no report of their outcome. No clock is read for them
    /// then.
    #[inline]
    #[must_use]
    pub fn needs_no_admission(&self) -> bool {
        self.quiet.load(Ordering::Relaxed) && !self.cooldown.has_begun()
    }

    /// Whether outcomes of attempts are evaluated.
    #[inline]
    pub(crate) fn learns(&self) -> bool {
        !self.quiet.load(Ordering::Relaxed)
    }

    /// Whether any attempt got a response here: a success, or a failure that the service itself sent.
    #[inline]
    #[must_use]
    pub fn has_responded(&self) -> bool {
        self.responded.load(Ordering::Relaxed)
    }

    /// Records that an attempt got a response.
    #[inline]
    fn on_response(&self) {
        // Written only once, so that the cache line stays shared.
        if !self.has_responded() {
            self.responded.store(true, Ordering::Relaxed);
        }
    }

    /// Whether there is a rate limit.
    #[inline]
    #[must_use]
    pub fn has_rate_limit(&self) -> bool {
        self.paced.load(Ordering::Relaxed)
    }
}

impl<A: Access> Destination<A> {
    /// Replaces its outbound by one made from it. `outbound` finds it in the access.
    #[must_use]
    pub fn with_outbound(
        mut self,
        outbound: impl FnOnce(&mut A) -> &mut Outbound,
        change: impl FnOnce(Outbound) -> Outbound,
    ) -> Self {
        // It is not healthy any more; the next turn decides that again.
        let counted = self.counters.take(Instant::ORIGIN, self.access.shards());
        let outbound = outbound(&mut self.access);
        outbound.on_counted(&counted);
        *outbound = change(core::mem::take(outbound));
        self.quiet = AtomicBool::new(outbound.needs_no_admission());
        self.paced = AtomicBool::new(outbound.has_rate_limit());
        self
    }

    /// Changes the policy. Budget, breaker, rate limit and throttle keep their state, and waiting
    /// callers wait by the new rules. See [`Outbound::set_policy`]. A budget that the policy removes is
    /// kept for a later one. [Hedges](Self::hedge) belong to the policy of each call.
    ///
    /// It is one atomic change: of two concurrent policies, one is in force completely. `in_force` is
    /// called within it, for further state of the driver.
    pub fn set_policy(&self, now: Instant, policy: &Policy, in_force: impl FnOnce()) {
        self.turn(now, |outbound, random| {
            match policy.budget() {
                Some(config) => self.budget.apply(now, config),
                None => self.budget.suspend(),
            }
            self.budgeted
                .store(policy.budget().is_some(), Ordering::Relaxed);
            self.longest
                .store(nanos(policy.max_cooldown()), Ordering::Relaxed);
            outbound.set_policy(now, policy, &self.cooldown, random);
            match outbound.circuit_breaker() {
                Some(_) => outbound.signal_budget(now, &self.budget),
                // Without a breaker, its last signal must not stay in force.
                None => self.budget.on_signal(&BreakerSignal::default()),
            }
            self.quiet
                .store(outbound.needs_no_admission(), Ordering::Relaxed);
            self.paced
                .store(outbound.has_rate_limit(), Ordering::Relaxed);
            in_force();
        });
    }

    /// Runs `change` with the outbound, after passing on all counts.
    #[inline]
    fn turn<T>(&self, now: Instant, change: impl FnOnce(&mut Outbound, &mut A::Random) -> T) -> T {
        self.access
            .turn(|outbound, random| self.in_turn(now, outbound, random, change))
    }

    #[inline]
    fn in_turn<T>(
        &self,
        now: Instant,
        outbound: &mut Outbound,
        random: &mut A::Random,
        change: impl FnOnce(&mut Outbound, &mut A::Random) -> T,
    ) -> T {
        outbound.on_counted(&self.counters.take(now, self.access.shards()));
        let result = change(outbound, random);
        if let Some(period) = self.healthy_period(now, outbound) {
            self.counters.open(period, self.access.shards());
        }
        result
    }

    /// The id of a request that the outbound counts in this turn.
    #[inline]
    fn register_request(&self, waker: Option<&A::Waker>) -> u64 {
        self.access
            .name(self.counters.add_reported_request(), waker)
    }

    /// Counts a request that needs no admission: for a policy with retries off.
    pub(crate) fn on_request(&self, now: Instant) -> u64 {
        if self.is_healthy(now) {
            return self.enter_while_healthy(None);
        }
        self.cooldown.clear_if_ended(now);
        let id = self.turn(now, |outbound, _| {
            outbound.on_request_unthrottled(now);
            self.register_request(None)
        });
        self.count_request();
        id
    }

    /// Counts a new caller, and requests admission for its first attempt. Assigns the id. `is_counted`:
    /// it needed no admission when it came, and budget and throttle have seen it.
    ///
    /// This, [`admit`](Self::admit), [`leave`](Self::leave), [`cancel`](Self::cancel) and
    /// [`end`](Self::end) are for drivers whose attempts belong to no [`Call`](crate::call::Call).
    pub fn enter(
        &self,
        now: Instant,
        request: &mut AdmissionRequest,
        is_counted: bool,
        waker: Option<&A::Waker>,
    ) -> Admission {
        if !is_counted && let Some(permit) = self.start_while_healthy(now, request) {
            request.id = self.enter_while_healthy(waker);
            return Admission::Start(permit);
        }
        self.cooldown.clear_if_ended(now);
        let admission = self.turn(now, |outbound, random| {
            if is_counted || request.rate_limit_only {
                outbound.on_request_unthrottled(now);
            } else if !outbound.on_request(now, random) {
                return None;
            }
            request.id = self.register_request(waker);
            Some(outbound.admit(now, request, &self.cooldown, random))
        });
        let Some(admission) = admission else {
            return Admission::Stop(Stop::because(StopReason::Throttle));
        };
        if !is_counted {
            self.count_request();
        }
        match admission {
            // Few have to wait, and only those store a waker.
            Admission::Wait(..) if waker.is_some() => self.admit(now, request, true, waker),
            admission => admission,
        }
    }

    #[inline]
    pub(crate) fn count_request(&self) {
        if let Some(budget) = self.budget() {
            budget.on_request();
        }
    }

    /// Requests admission for a known caller, which waits already or not.
    pub fn admit(
        &self,
        now: Instant,
        request: &AdmissionRequest,
        waits: bool,
        waker: Option<&A::Waker>,
    ) -> Admission {
        if !waits && let Some(permit) = self.start_while_healthy(now, request) {
            return Admission::Start(permit);
        }
        self.access.ask(request.id, waker, |outbound, random| {
            self.in_turn(now, outbound, random, |outbound, random| match waits {
                true => outbound.admit_again(now, request, &self.cooldown, random),
                false => outbound.admit(now, request, &self.cooldown, random),
            })
        })
    }

    /// A waiting caller goes away. If a cooldown `held` it, no other caller is affected, so the clock
    /// is not read.
    pub fn leave(&self, caller: &Waiter, held: bool, now: impl FnOnce() -> Instant) {
        let id = caller.id;
        // While a caller waits, no counts are pending.
        if held
            && self
                .access
                .leave(id, |outbound, _| outbound.remove_held(id))
        {
            return;
        }
        let now = now();
        self.access.leave(id, |outbound, random| {
            self.in_turn(now, outbound, random, |outbound, random| {
                outbound.leave(now, caller, &self.cooldown, random);
            });
            true
        });
    }

    /// Whether the breaker is down, so that only probes are sent.
    pub(crate) fn is_down(&self) -> bool {
        self.access.turn(|outbound, _| {
            outbound
                .circuit_breaker()
                .is_some_and(CircuitBreaker::is_down)
        })
    }

    /// The hedging state for this configuration: see [`Outbound::hedge`].
    pub fn hedge(&self, config: &HedgeConfig) -> Option<Arc<Hedge>> {
        self.access.turn(|outbound, _| outbound.hedge(config))
    }

    /// Takes a slot for a hedge if there is one now; the hedge starts now or never. See
    /// [`Outbound::try_hedge`].
    pub(crate) fn try_hedge(&self, now: Instant) -> Option<Permit> {
        if self.needs_no_admission() || self.is_healthy(now) {
            return Some(Permit::for_hedge(now, false));
        }
        self.turn(now, |outbound, _| outbound.try_hedge(now, &self.cooldown))
    }

    /// An attempt that has started is over. Returns whether a cooldown begins.
    #[inline]
    pub fn end(&self, now: Instant, permit: Permit, outcome: &AttemptOutcome) -> bool {
        if *outcome == AttemptOutcome::SUCCESS && self.succeed_while_healthy(now, &permit) {
            return false;
        }
        self.learn(now, permit.started(), Some(permit), outcome)
    }

    /// An attempt that started at `started` is over; it has a permit unless it is one of several.
    /// Returns whether a cooldown begins.
    pub(crate) fn learn(
        &self,
        now: Instant,
        started: Instant,
        permit: Option<Permit>,
        outcome: &AttemptOutcome,
    ) -> bool {
        if outcome.has_responded {
            self.on_response();
        }
        let longest = Duration::from_nanos(self.longest.load(Ordering::Relaxed));
        if permit.is_none() && !self.learns() {
            return self.cooldown.on_end(now, outcome, longest);
        }
        self.turn(now, |outbound, random| {
            let begins = outcome
                .cooldown
                .is_some_and(|request| !outbound.applies_to_one_caller(now, &request))
                && self.cooldown.on_end(now, outcome, longest);
            let Some(permit) = permit else {
                outbound.adapt_rate(now, started, outcome);
                return begins;
            };
            outbound.end(now, permit, outcome, &self.cooldown, random);
            // The budget gets the breaker's feedback.
            if let Some(budget) = self.budget() {
                outbound.signal_budget(now, budget);
            }
            begins
        })
    }

    /// An attempt at another destination was redirected here at `started`, if known, and has ended; a
    /// `failure` of `None` is a success. Returns whether a cooldown begins.
    pub(crate) fn on_redirected(
        &self,
        now: Instant,
        started: Option<Instant>,
        failure: Option<&Failure>,
    ) -> bool {
        // Here it is an ordinary failure.
        let outcome = failure.map_or(AttemptOutcome::SUCCESS, |failure| {
            AttemptOutcome::of(&failure.hop(Hop::None))
        });
        match started {
            Some(started) => self.end(now, Permit::for_redirect(started), &outcome),
            None if failure.is_some() => self.learn(now, now, None, &outcome),
            None => false,
        }
    }

    /// Cancels an attempt with a permit that was not made.
    pub fn cancel(&self, now: Instant, permit: Permit) {
        self.turn(now, |outbound, random| {
            outbound.cancel(now, permit, &self.cooldown, random);
        });
    }
}

impl<A> fmt::Debug for Destination<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Destination")
            .field("budget", &self.budget)
            .field("cooldown", &self.cooldown)
            .finish_non_exhaustive()
    }
}
