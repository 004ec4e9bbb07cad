//! What the callers of one destination share: budget, gate, cooldown, request rate, throttle and hedge.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::task::Waker;

#[cfg(feature = "metrics")]
use relent_core::Instant;
use relent_core::{Access, Answer, HedgeConfig, Lanes, Outbound, Policy, Random};
pub use relent_core::{
    Budget, Caller, Cooldown, Ended, Gate, Hedge, Holding, Latencies, Pass, RequestRate, Taken,
};

use crate::clock::Clock;
use crate::random::SessionRandom;

/// What the callers of one destination share: the budget, the gate, the cooldown, the request rate, the
/// throttle, and how long its successes take, for hedges.
///
/// Have one for each destination that fails by itself (a host, a database), in an `Arc` or a
/// `static`, and give it to every session that goes there with
/// [`Retry::destination`](crate::Retry::destination). Its memory is bounded by the requests that
/// are parked at the moment.
///
/// # How long a call waits here
/// With the policy [`STANDARD`](Policy::STANDARD), a call with a deadline is queued until its deadline while the
/// destination is down, for five minutes at most. A call without a deadline starts no attempt later than 30 s after
/// it began, and 9 s while no attempt of this process has ever had a response from the destination. A running
/// attempt is never cut off by that. A server's `Retry-After` beyond it ends the call at once, with
/// [`StopReason::RetryLater`](crate::StopReason::RetryLater). To wait longer, set a
/// [`deadline`](crate::policy::PolicyBuilder::deadline); the limits are in
/// [`GateConfig`](crate::policy::GateConfig).
///
/// ```
/// use relent::{Destination, Policy};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let database = Destination::new(Policy::STANDARD);
/// let answer = database.retry(|| async { Ok::<_, std::io::Error>(42) }).await;
/// assert_eq!(answer.unwrap(), 42);
/// assert!(!database.is_closed());
/// # }
/// ```
pub struct Destination {
    pub(crate) core: relent_core::Destination<Locked>,
    policy: RwLock<Arc<Policy>>,
    name: Option<Arc<str>>,
}

/// The part of a destination that is decided under a lock.
pub struct Locked {
    shared: Mutex<Shared>,
    /// What the gate has become and nobody has told of; 0 for nothing.
    change: AtomicU8,
    /// Made when two threads have met: a kilobyte.
    lanes: OnceLock<Box<Lanes>>,
}

/// No clock is read under the lock, and no waker cloned, called or dropped: all of them may be somebody
/// else's code.
struct Shared {
    outbound: Outbound,
    random: Box<dyn Random + Send>,
    /// Of those who wait.
    wakers: HashMap<u64, Waker>,
    state: GateState,
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

impl Destination {
    /// A destination with the budget, the gate, the request rate, the throttle and the hedge of the
    /// policy, where it has them. It keeps the policy for the calls that it [makes](Self::retry).
    #[must_use]
    pub fn new(policy: impl Into<Arc<Policy>>) -> Self {
        let policy = policy.into();
        let outbound = Outbound::new(&policy);
        let core = relent_core::Destination::new(&policy, outbound, Locked::new);
        Self {
            core,
            policy: RwLock::new(policy),
            name: None,
        }
    }

    /// Gives it this name in events.
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

    /// Its name in events, if it has one.
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

    /// Takes this budget in place of the policy's.
    #[must_use]
    pub fn with_budget(self, budget: Budget) -> Self {
        Self {
            core: self.core.with_budget(budget),
            ..self
        }
    }

    /// Makes no more attempts than this rate allows, in place of the policy's. Callers are held back
    /// until their slot comes, in the order in which they asked; one whose slot would come after its
    /// limit, or after the longest hint that its policy obeys, stops at once with
    /// [`StopReason::RetryLater`](crate::StopReason::RetryLater) and the instant of that slot.
    ///
    /// ```
    /// use relent::{Destination, Policy};
    /// use relent::destination::RequestRate;
    /// use relent::policy::RequestRateConfig;
    ///
    /// // A contract of 100 requests per second, or fewer if the service says so.
    /// let config = RequestRateConfig { adapt: true, ..RequestRateConfig::new(100.0) };
    /// let rate = RequestRate::new(&config)?;
    /// let there = Destination::new(Policy::STANDARD).with_request_rate(rate);
    /// # Ok::<(), relent::policy::PolicyError>(())
    /// ```
    #[must_use]
    pub fn with_request_rate(self, rate: RequestRate) -> Self {
        self.with(|outbound| outbound.with_request_rate(rate))
    }

    /// The policy that it has now.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        let policy = self.policy.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&policy)
    }

    /// Goes by this policy from now on, without a new start: the calls that it [makes](Self::retry) later,
    /// and its budget, gate, request rate and throttle, which keep what they have learnt. They are those of
    /// the policy, also in place of what [`with_budget`](Self::with_budget) or
    /// [`with_request_rate`](Self::with_request_rate) gave.
    ///
    /// A call that has begun keeps the policy that it began with. If it waits here, it goes on waiting by the
    /// new rules: it goes as soon as they let it, and gives up as soon as it would wait for too long by them.
    /// A cooldown that runs is cut to the new [`max_hint`](Policy::max_hint).
    ///
    /// With a policy whose [retries are off](Policy::is_off) calls make one attempt, and none is parked
    /// (design rule 14). `clock` is that of the calls: [`StdClock`](crate::clock::StdClock), or tokio's.
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

    /// Spreads the callers by a stream whose seed is drawn here, for tests and repeatable runs.
    #[must_use]
    pub fn with_random(self, mut random: impl Random) -> Self {
        let seed = random.next_u64();
        self.with_stream(SessionRandom::with_seed(seed))
    }

    /// Draws from this very stream. It is drawn from while the destination is locked, so it must not come
    /// back here.
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

    /// The budget.
    #[must_use]
    pub fn budget(&self) -> Option<&Budget> {
        self.core.budget()
    }

    /// What is remembered here for hedges that are made so, by all callers whose policy has them: how
    /// long successes take, and whether the last outcome was a refusal. `None` for a configuration that
    /// no policy can have.
    #[must_use]
    pub fn hedge(&self, config: &HedgeConfig) -> Option<Arc<Hedge>> {
        self.core.hedge(config)
    }

    /// The cooldown.
    #[must_use]
    pub const fn cooldown(&self) -> &Cooldown {
        self.core.cooldown()
    }

    /// Whether the destination is judged to be down, so that nothing but probes goes there.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.read(|outbound| outbound.gate().is_some_and(Gate::is_closed))
    }

    /// Whether everything goes: see [`Gate::is_open`].
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.read(|outbound| outbound.gate().is_none_or(Gate::is_open))
    }

    /// Requests that are parked.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.read(|outbound| outbound.parked())
    }

    /// Requests that are held back until there is a slot for them in the request rate.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.read(|outbound| outbound.queued())
    }

    /// Attempts per second that may be made at the moment, if they are held to a rate; infinite while
    /// there is no limit.
    #[cfg(feature = "metrics")]
    pub(crate) fn request_rate(&self, now: Instant) -> Option<f64> {
        let limit = |rate: &mut RequestRate| rate.limit(now).unwrap_or(f64::INFINITY);
        self.read(|outbound| outbound.request_rate_mut().map(limit))
    }

    fn read<T>(&self, read: impl FnOnce(&mut Outbound) -> T) -> T {
        read(&mut self.core.access().lock().outbound)
    }

    /// What the gate has become since somebody asked last.
    #[inline]
    pub(crate) fn gate_change(&self) -> Option<GateState> {
        let change = &self.core.access().change;
        if change.load(Ordering::Relaxed) == 0 {
            return None;
        }
        match change.swap(0, Ordering::Relaxed) {
            0 => None,
            1 => Some(GateState::Open),
            2 => Some(GateState::Limited),
            _ => Some(GateState::Closed),
        }
    }
}

impl Locked {
    fn new(outbound: Outbound) -> Self {
        let shared = Shared {
            outbound,
            random: Box::new(SessionRandom::new()),
            wakers: HashMap::new(),
            state: GateState::Open,
        };
        Self {
            shared: Mutex::new(shared),
            change: AtomicU8::new(0),
            lanes: OnceLock::new(),
        }
    }

    fn shared_mut(&mut self) -> &mut Shared {
        let shared = self.shared.get_mut();
        shared.unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets something happen under the lock, and wakes whom it lets go when the lock is released.
    #[inline]
    fn change<T>(&self, change: impl FnOnce(&mut Shared) -> T) -> T {
        let mut shared = self.lock();
        let result = change(&mut shared);
        let gate = shared.outbound.gate();
        let state = gate.map_or(GateState::Open, GateState::of);
        if state != shared.state {
            shared.state = state;
            self.change.store(state as u8, Ordering::Relaxed);
        }
        if shared.outbound.has_woken() {
            Self::wake(shared);
        }
        result
    }

    /// Wakes whom the line names, when the lock is released.
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

impl Access for Locked {
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
        ask: impl FnOnce(&mut Outbound, &mut Self::Random) -> Answer,
    ) -> Answer {
        let waker = waker.cloned();
        let (answer, unused) = self.change(|shared| {
            let answer = ask(&mut shared.outbound, &mut shared.random);
            let unused = match (&answer, waker) {
                (Answer::Wait(..), Some(waker)) => [shared.wakers.insert(id, waker), None],
                (_, waker) => [shared.wakers.remove(&id), waker],
            };
            (answer, unused)
        });
        drop(unused);
        answer
    }

    fn leave(&self, id: u64, leave: impl FnOnce(&mut Outbound, &mut Self::Random) -> bool) -> bool {
        let (left, waker) = self.change(|shared| {
            let waker = shared.wakers.remove(&id);
            (leave(&mut shared.outbound, &mut shared.random), waker)
        });
        drop(waker);
        left
    }

    #[inline]
    fn lanes(&self) -> Option<&Lanes> {
        self.lanes.get().map(|lanes| &**lanes)
    }

    #[inline]
    fn thread(&self) -> usize {
        THREAD.with(|number| match number.get() {
            0 => new_thread(number),
            known => known,
        })
    }

    #[cold]
    fn on_meeting(&self) {
        self.lanes.get_or_init(Box::default);
    }
}

thread_local! {
    /// The number of this thread; 0 before it is asked for.
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
            .field("closed", &self.is_closed())
            .field("parked", &self.parked())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Locked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Locked")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocking;
    use crate::clock::VirtualClock;

    /// Their counts come together at the next turn at the lock.
    #[test]
    fn nothing_is_lost_that_threads_count_apart() {
        let there = Destination::new(Policy::STANDARD);
        let clock = VirtualClock::new();
        clock.advance(std::time::Duration::from_secs(100_000));
        let once = Policy::STANDARD.clone().without_retries();
        let call = |policy, answer: Result<(), ()>| {
            let asked = blocking::retry(policy, move || answer);
            asked.destination(&there).clock(&clock).run().is_ok()
        };
        there.core.access().on_meeting();
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
