//! State that the callers of one destination share: budget, circuit breaker, cooldown, rate limit,
//! throttle and hedge.

mod attempt;

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::task::Waker;

#[cfg(feature = "metrics")]
use relent_core::Instant;
use relent_core::destination::{Access, Admission, Outbound, ShardedCounters};
pub use relent_core::destination::{
    AttemptOutcome, BlockedBy, BreakerOutcome, BreakerPermit, Budget, CircuitBreaker, Cooldown,
    Hedge, Latencies, RateLimit, Taken, Waiter,
};
use relent_core::{HedgeConfig, Policy, Random};

use crate::clock::Clock;
use crate::random::SessionRandom;
pub use attempt::DestinationAttempt;

/// State that the callers of one destination share: retry budget, circuit breaker, cooldown, rate
/// limit, throttle, and success latencies for hedges.
///
/// A destination is a service you call. Create one for each target that fails on its own (a host, a
/// database), in an `Arc` or a `static`. Pass it to every call with
/// [`Retry::destination`](crate::Retry::destination). Its memory is bounded by the number of
/// requests that are queued.
///
/// # How long a call waits
/// With the policy [`STANDARD`](Policy::STANDARD), a call with a deadline is queued until its deadline while the
/// destination is down, for five minutes at most. A call without a deadline starts no attempt later than 30 s after
/// it began, and 9 s while no attempt of this process has ever had a response from the destination. A response is
/// a success, or a failure that names one, such as by [`Cause::Status`](crate::failure::Cause::Status). An error
/// that nothing [classifies](crate::Retry::classify) is none. A running attempt is never cut off by that. A server's `Retry-After` beyond it ends the call immediately,
/// with [`StopReason::RetryLater`](crate::StopReason::RetryLater). To wait longer, set a
/// [`deadline`](crate::policy::PolicyBuilder::deadline). [`CircuitBreakerConfig`](crate::policy::CircuitBreakerConfig)
/// has the limits.
///
/// ```
/// use relent::{Destination, Policy};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let database = Destination::new(Policy::STANDARD);
/// let answer = database.retry(|| async { Ok::<_, std::io::Error>(42) }).await;
/// assert_eq!(answer.unwrap(), 42);
/// assert!(!database.is_down());
/// # }
/// ```
pub struct Destination {
    pub(crate) core: relent_core::destination::Destination<LockedState>,
    policy: RwLock<Arc<Policy>>,
    name: Option<Arc<str>>,
}

/// The state of a destination that a lock guards.
pub struct LockedState {
    shared: Mutex<Shared>,
    /// The new breaker state that has not been reported yet; 0 for none.
    change: AtomicU8,
    /// Allocated (1 KiB) when two threads first contend for the lock.
    shards: OnceLock<Box<ShardedCounters>>,
}

/// While the lock is held, no clock is read, and no waker is cloned, called or dropped: they may
/// run foreign code.
struct Shared {
    outbound: Outbound,
    random: Box<dyn Random + Send>,
    /// The wakers of queued requests.
    wakers: HashMap<u64, Waker>,
    state: BreakerState,
}

/// The state of a circuit breaker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum BreakerState {
    Normal = 1,
    Limited,
    Down,
}

impl BreakerState {
    /// The name in events and metrics.
    #[cfg(any(feature = "tracing", feature = "metrics"))]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Limited => "limited",
            Self::Down => "down",
        }
    }

    fn of(circuit_breaker: &CircuitBreaker) -> Self {
        match (circuit_breaker.is_normal(), circuit_breaker.is_down()) {
            (true, _) => Self::Normal,
            (_, true) => Self::Down,
            (false, false) => Self::Limited,
        }
    }
}

impl Destination {
    /// Creates a destination with the budget, circuit breaker, rate limit, throttle and hedge of
    /// the policy, as far as the policy has them. [`retry`](Self::retry) uses the policy, too.
    #[must_use]
    pub fn new(policy: impl Into<Arc<Policy>>) -> Self {
        let policy = policy.into();
        let outbound = Outbound::new(&policy);
        let core = relent_core::destination::Destination::new(&policy, outbound, LockedState::new);
        Self {
            core,
            policy: RwLock::new(policy),
            name: None,
        }
    }

    /// Sets the name for events.
    ///
    /// ```
    /// use relent::{Destination, Policy};
    ///
    /// let orders = Destination::new(Policy::STANDARD).named("orders");
    /// assert_eq!(orders.name(), Some("orders"));
    /// ```
    #[must_use]
    pub fn named(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The name in events, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn with(self, change: impl FnOnce(Outbound) -> Outbound) -> Self {
        Self {
            core: self
                .core
                .with_outbound(|locked| &mut locked.shared_mut().outbound, change),
            ..self
        }
    }

    /// Replaces the policy's budget.
    #[must_use]
    pub fn with_budget(self, budget: Budget) -> Self {
        Self {
            core: self.core.with_budget(budget),
            ..self
        }
    }

    /// Replaces the policy's rate limit. Callers are held back in order of arrival until their slot
    /// comes. A caller whose slot would come after its limit, or after the longest hint that its
    /// policy obeys, stops immediately with
    /// [`StopReason::RetryLater`](crate::StopReason::RetryLater) and the instant of that slot.
    ///
    /// ```
    /// use relent::{Destination, Policy};
    /// use relent::destination::RateLimit;
    /// use relent::policy::RateLimitConfig;
    ///
    /// // A contract of 100 requests per second, or fewer if the service throttles.
    /// let config = RateLimitConfig { adaptive: true, ..RateLimitConfig::new(100.0) };
    /// let rate = RateLimit::new(&config)?;
    /// let there = Destination::new(Policy::STANDARD).with_rate_limit(rate);
    /// # Ok::<(), relent::policy::PolicyError>(())
    /// ```
    #[must_use]
    pub fn with_rate_limit(self, rate: RateLimit) -> Self {
        self.with(|outbound| outbound.with_rate_limit(rate))
    }

    /// The current policy.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        let policy = self.policy.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&policy)
    }

    /// Replaces the policy, without a restart. It applies to calls that [`retry`](Self::retry)
    /// starts later, and to budget, circuit breaker, rate limit and throttle, which keep their
    /// learned state. It also overrides an earlier [`with_budget`](Self::with_budget) or
    /// [`with_rate_limit`](Self::with_rate_limit).
    ///
    /// A running call keeps the policy it started with. If it is waiting here, the new limits apply
    /// to its wait: it starts as soon as they allow, and gives up as soon as its wait would exceed
    /// them. A running cooldown is shortened to the new [`max_hint`](Policy::max_hint).
    ///
    /// With a policy whose [retries are off](Policy::is_off) calls make one attempt and are never
    /// queued. `clock` is the clock of the calls: [`StdClock`](crate::clock::StdClock), or tokio's.
    ///
    /// ```
    /// use relent::{Destination, Policy, StopReason};
    /// use relent::clock::StdClock;
    ///
    /// let orders = Destination::new(Policy::STANDARD);
    /// orders.set_policy(Policy::STANDARD.clone().without_retries(), &StdClock);
    /// let gave_up = orders.blocking(|| Err::<(), _>("down")).run().unwrap_err();
    /// assert_eq!((gave_up.attempts(), gave_up.reason()), (1, StopReason::RetriesExhausted));
    /// ```
    pub fn set_policy(&self, policy: impl Into<Arc<Policy>>, clock: &impl Clock) {
        let (policy, now) = (policy.into(), clock.now());
        let mut before = Arc::clone(&policy);
        self.core.set_policy(now, &policy, || {
            let mut own = self.policy.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut *own, &mut before);
        });
    }

    /// Jitters the callers with a stream seeded from `random`, for tests and repeatable runs.
    #[must_use]
    pub fn with_random(self, mut random: impl Random) -> Self {
        let seed = random.next_u64();
        self.with_stream(SessionRandom::with_seed(seed))
    }

    /// Uses this random source itself. It is called while the destination is locked, so it must not
    /// call the destination.
    #[doc(hidden)]
    #[must_use]
    pub fn with_stream(self, random: impl Random + Send + 'static) -> Self {
        let core = self.core.with_outbound(
            |locked| {
                let shared = locked.shared_mut();
                shared.random = Box::new(random);
                &mut shared.outbound
            },
            |outbound| outbound,
        );
        Self { core, ..self }
    }

    /// The retry budget.
    #[must_use]
    pub fn budget(&self) -> Option<&Budget> {
        self.core.budget()
    }

    /// The hedging state for this configuration, shared by all callers whose policy has it: success
    /// latencies, and whether the last outcome was a rejection. `None` for a configuration that no
    /// policy can have.
    #[must_use]
    pub fn hedge(&self, config: &HedgeConfig) -> Option<Arc<Hedge>> {
        self.core.hedge(config)
    }

    /// The cooldown.
    #[must_use]
    pub const fn cooldown(&self) -> &Cooldown {
        self.core.cooldown()
    }

    /// Whether the circuit breaker is down: only probes are sent.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.read(|outbound| {
            outbound
                .circuit_breaker()
                .is_some_and(CircuitBreaker::is_down)
        })
    }

    /// Whether the circuit breaker is normal: every request is sent. See [`CircuitBreaker::is_normal`].
    #[must_use]
    pub fn is_normal(&self) -> bool {
        self.read(|outbound| {
            outbound
                .circuit_breaker()
                .is_none_or(CircuitBreaker::is_normal)
        })
    }

    /// The number of requests that the circuit breaker has queued.
    #[must_use]
    pub fn queued_while_down(&self) -> usize {
        self.read(|outbound| outbound.queued_while_down())
    }

    /// The number of requests that the rate limit holds back.
    #[must_use]
    pub fn held_by_rate_limit(&self) -> usize {
        self.read(|outbound| outbound.held_by_rate_limit())
    }

    /// The current rate limit in attempts per second; infinite while there is none. `None` without
    /// a configured rate.
    #[cfg(feature = "metrics")]
    pub(crate) fn rate_limit(&self, now: Instant) -> Option<f64> {
        if !self.core.has_rate_limit() {
            return None;
        }
        let limit = |rate: &mut RateLimit| rate.limit(now).unwrap_or(f64::INFINITY);
        self.read(|outbound| outbound.rate_limit_mut().map(limit))
    }

    fn read<T>(&self, read: impl FnOnce(&mut Outbound) -> T) -> T {
        read(&mut self.core.access().lock().outbound)
    }

    /// The new breaker state, if it changed since the last call of this function.
    #[inline]
    pub(crate) fn breaker_change(&self) -> Option<BreakerState> {
        let change = &self.core.access().change;
        if change.load(Ordering::Relaxed) == 0 {
            return None;
        }
        match change.swap(0, Ordering::Relaxed) {
            0 => None,
            1 => Some(BreakerState::Normal),
            2 => Some(BreakerState::Limited),
            _ => Some(BreakerState::Down),
        }
    }
}

impl LockedState {
    fn new(outbound: Outbound) -> Self {
        let shared = Shared {
            outbound,
            random: Box::new(SessionRandom::new()),
            wakers: HashMap::new(),
            state: BreakerState::Normal,
        };
        Self {
            shared: Mutex::new(shared),
            change: AtomicU8::new(0),
            shards: OnceLock::new(),
        }
    }

    fn shared_mut(&mut self) -> &mut Shared {
        let shared = self.shared.get_mut();
        shared.unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `change` under the lock, and wakes the requests that it releases after unlocking.
    #[inline]
    fn change<T>(&self, change: impl FnOnce(&mut Shared) -> T) -> T {
        let mut shared = self.lock();
        let result = change(&mut shared);
        let circuit_breaker = shared.outbound.circuit_breaker();
        let state = circuit_breaker.map_or(BreakerState::Normal, BreakerState::of);
        if state != shared.state {
            shared.state = state;
            self.change.store(state as u8, Ordering::Relaxed);
        }
        if shared.outbound.has_woken() {
            Self::wake(shared);
        }
        result
    }

    /// Unlocks, and wakes the released requests.
    #[cold]
    fn wake(mut shared: MutexGuard<'_, Shared>) {
        let woken = shared.outbound.take_woken();
        let wakers = woken.iter().filter_map(|id| shared.wakers.remove(id));
        let wakers: Vec<_> = wakers.collect();
        drop(shared);
        for waker in wakers {
            waker.wake();
        }
    }
}

impl Access for LockedState {
    type Random = Box<dyn Random + Send>;
    type Waker = Waker;

    #[inline]
    fn turn<T>(&self, change: impl FnOnce(&mut Outbound, &mut Self::Random) -> T) -> T {
        self.change(|shared| change(&mut shared.outbound, &mut shared.random))
    }

    fn ask(
        &self,
        id: u64,
        waker: Option<&Waker>,
        ask: impl FnOnce(&mut Outbound, &mut Self::Random) -> Admission,
    ) -> Admission {
        let waker = waker.cloned();
        let (answer, unused) = self.change(|shared| {
            let answer = ask(&mut shared.outbound, &mut shared.random);
            let unused = match (&answer, waker) {
                (Admission::Wait(..), Some(waker)) => [shared.wakers.insert(id, waker), None],
                (_, waker) => [shared.wakers.remove(&id), waker],
            };
            (answer, unused)
        });
        drop(unused);
        answer
    }

    fn leave(
        &self,
        id: u64,
        remove: impl FnOnce(&mut Outbound, &mut Self::Random) -> bool,
    ) -> bool {
        let (left, waker) = self.change(|shared| {
            let waker = shared.wakers.remove(&id);
            (remove(&mut shared.outbound, &mut shared.random), waker)
        });
        drop(waker);
        left
    }

    #[inline]
    fn shards(&self) -> Option<&ShardedCounters> {
        self.shards.get().map(|shards| &**shards)
    }

    #[inline]
    fn thread(&self) -> usize {
        THREAD.with(|number| match number.get() {
            0 => new_thread(number),
            known => known,
        })
    }

    #[cold]
    fn on_contention(&self) {
        self.shards.get_or_init(Box::default);
    }
}

thread_local! {
    /// The number of this thread; 0 before its first use.
    static THREAD: Cell<usize> = const { Cell::new(0) };
}

#[cold]
fn new_thread(number: &Cell<usize>) -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(1);
    number.set(THREADS.fetch_add(1, Ordering::Relaxed));
    number.get()
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Destination")
            .field("budget", &self.budget())
            .field("cooldown", &self.cooldown())
            .field("down", &self.is_down())
            .field("queued_while_down", &self.queued_while_down())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for LockedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LockedState")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocking;
    use crate::clock::VirtualClock;

    /// The counts are added up the next time the lock is taken.
    #[test]
    fn counts_of_several_threads_are_added_up_without_loss() {
        let there = Destination::new(Policy::STANDARD);
        let clock = VirtualClock::new();
        clock.advance(std::time::Duration::from_secs(100_000));
        let once = Policy::STANDARD.clone().without_retries();
        let call = |policy, answer: Result<(), ()>| {
            let asked = blocking::retry(policy, move || answer);
            asked.destination(&there).clock(&clock).run().is_ok()
        };
        there.core.access().on_contention();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..5000).for_each(|_| assert!(call(Policy::STANDARD, Ok(())))));
            }
        });
        assert!(!call(&once, Err(())));
        let known = there.read(|outbound| format!("{outbound:?}"));
        assert!(known.contains("totals: [20001]"), "{known}");
    }
}
