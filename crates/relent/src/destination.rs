//! What the callers of one destination share: budget, gate, cooldown, request rate, throttle and hedge.

use std::collections::HashMap;
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use relent_core::{
    Answer, Asking, Budget, Cooldown, Ended, Failure, Gate, Hedge, Hop, Instant, Outbound, Permit,
    Policy, RequestRate,
};

use crate::random::SessionRandom;

/// What the callers of one destination share: the budget, the gate, the cooldown, the request rate, the
/// throttle, and how long its successes take, for hedges.
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
    hedge: Option<Hedge>,
    cooldown: Cooldown,
    /// The policy's longest hint: no cooldown lasts longer.
    longest: Duration,
    /// Nobody has to ask while no cooldown runs.
    quiet: bool,
    /// Whether attempts are held to a rate.
    paced: bool,
    shared: Mutex<Shared>,
    /// What the gate has become and nobody has told of; 0 for nothing.
    change: AtomicU8,
}

/// What is decided under the lock. No clock is read there, and no waker cloned, called or dropped: all
/// of them may be somebody else's code.
struct Shared {
    outbound: Outbound,
    random: SessionRandom,
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
    /// policy, where it has them.
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        Self {
            budget: policy.new_budget(),
            hedge: policy.new_hedge(),
            cooldown: Cooldown::new(),
            longest: policy.max_hint(),
            quiet: true,
            paced: policy.request_rate().is_some(),
            shared: Mutex::new(Shared {
                outbound: Outbound::default(),
                random: SessionRandom::new(),
                wakers: HashMap::new(),
                state: GateState::Open,
            }),
            change: AtomicU8::new(0),
        }
        .with(|_| Outbound::new(policy))
    }

    fn with(mut self, change: impl FnOnce(Outbound) -> Outbound) -> Self {
        let shared = self
            .shared
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        shared.outbound = change(mem::take(&mut shared.outbound));
        self.quiet = shared.outbound.is_quiet();
        self
    }

    /// Takes this budget in place of the policy's.
    #[must_use]
    pub fn with_budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
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
        self.paced = true;
        self.with(|outbound| outbound.with_request_rate(rate))
    }

    /// The budget.
    #[must_use]
    pub const fn budget(&self) -> Option<&Budget> {
        self.budget.as_ref()
    }

    /// When an attempt there is joined by another, and what is remembered for it.
    #[must_use]
    pub const fn hedge(&self) -> Option<&Hedge> {
        self.hedge.as_ref()
    }

    /// The cooldown.
    #[must_use]
    pub const fn cooldown(&self) -> &Cooldown {
        &self.cooldown
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

    /// Whether nobody has to ask before an attempt, nor tell how it ended: then no clock is read for
    /// it (design rule 10).
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet && !self.cooldown.has_begun()
    }

    /// Whether somebody learns from how an attempt ends.
    pub(crate) const fn learns(&self) -> bool {
        !self.quiet
    }

    /// Whether attempts are held to a rate.
    pub(crate) const fn is_paced(&self) -> bool {
        self.paced
    }

    /// Attempts per second that may be made at the moment, if they are held to a rate; infinite while
    /// there is no limit.
    #[cfg(feature = "metrics")]
    pub(crate) fn request_rate(&self, now: Instant) -> Option<f64> {
        let limit = |rate: &mut RequestRate| rate.limit(now).unwrap_or(f64::INFINITY);
        self.read(|outbound| outbound.request_rate_mut().map(limit))
    }

    fn read<T>(&self, read: impl FnOnce(&mut Outbound) -> T) -> T {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        read(&mut shared.outbound)
    }

    /// Lets something happen under the lock, and wakes whom it lets go when the lock is released.
    #[inline]
    fn change<T>(&self, change: impl FnOnce(&mut Shared, &Cooldown) -> T) -> T {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut shared, &self.cooldown);
        let state = shared
            .outbound
            .gate()
            .map_or(GateState::Open, GateState::of);
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

    /// A request is made, before it first asks. `None` if it is not to be attempted at all; else its
    /// number here.
    pub(crate) fn on_request(&self, now: Instant, throttled: bool) -> Option<u64> {
        self.cooldown.forget_past(now);
        let id = self.change(|shared, _| shared.on_request(now, throttled))?;
        self.count_request();
        Some(id)
    }

    /// The same for a request that asks for its first attempt at once, in one turn at the lock.
    #[inline]
    pub(crate) fn enter(&self, now: Instant, asking: Asking) -> Option<(u64, Answer)> {
        self.cooldown.forget_past(now);
        let entered = self.change(|shared, cooldown| {
            let id = shared.on_request(now, !asking.paced_only)?;
            let asking = Asking { id, ..asking };
            Some((id, shared.ask(now, &asking, false, cooldown)))
        })?;
        self.count_request();
        Some(entered)
    }

    fn count_request(&self) {
        if let Some(budget) = &self.budget {
            budget.on_request();
        }
    }

    /// May this caller, who waits already or not, start an attempt now? If not, `waker` is woken when
    /// asking again helps. Without a waker, what changes is noticed when it is asked again.
    pub(crate) fn ask(
        &self,
        now: Instant,
        asking: &Asking,
        waits: bool,
        waker: Option<&Waker>,
    ) -> Answer {
        let waker = waker.cloned();
        let (answer, unused) = self.change(|shared, cooldown| {
            let answer = shared.ask(now, asking, waits, cooldown);
            let unused = match (&answer, waker) {
                (Answer::Wait(..), Some(waker)) => [shared.wakers.insert(asking.id, waker), None],
                (_, waker) => [shared.wakers.remove(&asking.id), waker],
            };
            (answer, unused)
        });
        drop(unused);
        answer
    }

    /// A caller that waits goes away. The clock is read unless a cooldown holds the caller (design rule
    /// 10).
    pub(crate) fn leave(&self, id: u64, now: impl FnOnce() -> Instant) {
        let (held, waker) = self.change(|shared, _| {
            let waker = shared.wakers.remove(&id);
            (shared.outbound.leave_held(id), waker)
        });
        drop(waker);
        if held {
            return;
        }
        let now = now();
        self.change(|shared, cooldown| {
            let Shared {
                outbound, random, ..
            } = shared;
            outbound.leave(now, id, cooldown, random);
        });
    }

    /// Takes a slot if there is one now, for a hedge, which starts now or never.
    pub(crate) fn try_hedge(&self, now: Instant) -> bool {
        self.change(|shared, cooldown| shared.outbound.try_hedge(now, cooldown))
    }

    /// An attempt that has started is over.
    #[inline]
    pub(crate) fn ended(&self, now: Instant, permit: Permit, ended: Ended) {
        self.change(|shared, cooldown| {
            let Shared {
                outbound, random, ..
            } = shared;
            outbound.ended(now, permit, ended, cooldown, random);
            self.teach_budget(now, outbound);
        });
    }

    /// An attempt failed, which had this permit unless it is one of several. What the destination said
    /// to all is kept. Whether a cooldown begins.
    pub(crate) fn failed(
        &self,
        now: Instant,
        started: Instant,
        permit: Option<Permit>,
        failure: &Failure,
    ) -> bool {
        let begins = self.cooldown.on_failure(now, failure, self.longest);
        if !self.quiet {
            self.change(|shared, cooldown| {
                let Shared {
                    outbound, random, ..
                } = shared;
                let ended = outbound.on_failure(now, started, failure);
                if let Some(permit) = permit {
                    outbound.ended(now, permit, ended, cooldown, random);
                    self.teach_budget(now, outbound);
                }
            });
        }
        begins
    }

    /// An attempt at another destination was redirected here at `started`, if that is known, and ended
    /// like this; `None` is a success. Whether a cooldown begins.
    pub(crate) fn on_redirected(
        &self,
        now: Instant,
        started: Option<Instant>,
        failure: Option<&Failure>,
    ) -> bool {
        let permit = started.map(Permit::unasked);
        let Some(failure) = failure else {
            if let Some(permit) = permit {
                self.ended(now, permit, Ended::Answered);
            }
            return false;
        };
        // Here it is a failure like any other.
        self.failed(now, started.unwrap_or(now), permit, &failure.hop(Hop::None))
    }

    /// An attempt that has a permit is not made.
    pub(crate) fn cancel(&self, now: Instant, permit: Permit) {
        self.change(|shared, cooldown| {
            let Shared {
                outbound, random, ..
            } = shared;
            outbound.cancel(now, permit, cooldown, random);
        });
    }

    /// The budget learns what the gate has found out.
    fn teach_budget(&self, now: Instant, outbound: &Outbound) {
        if let Some(budget) = &self.budget {
            outbound.teach(now, budget);
        }
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
}

impl Shared {
    fn on_request(&mut self, now: Instant, throttled: bool) -> Option<u64> {
        if throttled {
            self.outbound.on_request(now, &mut self.random)
        } else {
            Some(self.outbound.on_request_unthrottled(now))
        }
    }

    #[inline]
    fn ask(&mut self, now: Instant, asking: &Asking, waits: bool, cooldown: &Cooldown) -> Answer {
        let Self {
            outbound, random, ..
        } = self;
        if waits {
            outbound.ask_again(now, asking, cooldown, random)
        } else {
            outbound.ask(now, asking, cooldown, random)
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
