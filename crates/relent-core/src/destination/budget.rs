//! Retry budget: the retries that all callers of a destination may make together (a token bucket).

mod config;

use core::fmt;
use core::sync::atomic::AtomicBool;

use crate::failure::{Cause, FailureKind};
use crate::policy::error::PolicyError;
use crate::random::{Random, up_to};
use crate::sync::{AtomicU8, AtomicU32, AtomicU64, CacheAligned, Ordering};
use crate::time::Instant;
pub use config::BudgetConfig;

/// Thousandths of a token: the integer unit of the balance.
const MILLI: f64 = 1000.0;
/// Nanoseconds in which a rate of 1e-9 tokens per second makes a thousandth of a token, and a tenth of
/// one.
const UNITS_PER_MILLI: u128 = 1_000_000_000_000_000;
const UNITS_PER_TENTH: u64 = 100_000_000_000_000_000;
/// No time was seen yet: the first refill counts from the first withdrawal, not from zero (the AWS SDK
/// for Rust counts its first refill from 1970).
///
/// Half-way along the time line, so that one comparison that wraps around tells both that a refill is
/// due and that none was made.
const NEVER: u64 = 1 << 63;
/// With only the initial tokens left, a retry after two failures in a row is delayed by so many
/// nanoseconds, and up to as many again.
const PAUSE_NANOS: u64 = 4_000_000_000;

/// The category of a retry, which determines its cost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Charge {
    /// [`BudgetConfig::cost`].
    Ordinary,
    /// [`BudgetConfig::throttled_cost`].
    Throttled,
    /// [`BudgetConfig::timeout_cost`].
    Timeout,
}

impl Charge {
    /// The charge after a failure of this kind and cause.
    #[inline]
    #[must_use]
    pub const fn of(kind: FailureKind, cause: Cause) -> Self {
        match (kind, cause) {
            (FailureKind::Throttled, _) => Self::Throttled,
            (_, Cause::Timeout) => Self::Timeout,
            _ => Self::Ordinary,
        }
    }
}

impl From<FailureKind> for Charge {
    /// The charge after a failure of this kind that was not a timeout.
    #[inline]
    fn from(kind: FailureKind) -> Self {
        Self::of(kind, Cause::Error)
    }
}

/// Flags: the circuit breaker paces retries; each retry was paid for by its failure; the breaker paces
/// and admits them.
const RETRIES_FREE: u8 = 1;
const FAILURES_CHARGED: u8 = 2;
const LIMITED: u8 = 4;

/// Retry budget of one destination: a token bucket, lock-free, never overdrawn.
///
/// Share one value among all callers of a destination (in an `Arc`, or a `static`). Requests and time
/// fill it, retries empty it, and a cancelled retry gives its tokens back (see *retry budget* in the
/// rules of decision).
///
/// ```
/// use relent_core::{BudgetConfig, Instant, FailureKind};
/// use relent_core::destination::Budget;
///
/// let budget = Budget::new(&BudgetConfig { initial_tokens: 1.0, per_second: 0.0, ..BudgetConfig::DEFAULT })?;
/// let now = Instant::ORIGIN;
/// let taken = budget.withdraw(now, FailureKind::Ambiguous).expect("one in reserve");
/// assert!(budget.withdraw(now, FailureKind::Ambiguous).is_none());
/// budget.refund(taken);
/// assert!(budget.withdraw(now, FailureKind::Ambiguous).is_some());
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
// After the balance, one cache line holds the fields that every request and retry reads.
#[repr(C)]
pub struct Budget {
    /// In thousandths of a token, as all amounts. The other fields are written rarely, and stay in
    /// other cores' caches when the balance changes.
    balance: CacheAligned<AtomicU64>,
    /// When the last refill by time was made, in nanoseconds.
    refilled: AtomicU64,
    /// Nanoseconds between refills by time; `u64::MAX` for never.
    refill_every: AtomicU64,
    /// Minimum balance after a retry; and after a retry without an extra delay.
    min_tokens_now: AtomicU64,
    min_tokens_undelayed: AtomicU64,
    ratio: AtomicU32,
    capacity: AtomicU32,
    cost: AtomicU32,
    throttled_cost: AtomicU32,
    timeout_cost_now: AtomicU32,
    /// Why a granted retry takes nothing, as flags; 0 if it pays.
    free_reasons: AtomicU8,
    /// Whether every success deposits tokens.
    success_counts: AtomicBool,
    /// Whether a successful retry gets its cost back: now, and as configured.
    refunds: AtomicBool,
    refund_on_success: AtomicBool,
    charge_failures: AtomicBool,
    success: AtomicU32,
    configured_ratio: AtomicU32,
    timeout_cost: AtomicU32,
    min_tokens: AtomicU32,
    overload_reserve: AtomicU32,
    initial_tokens: AtomicU32,
    queue_when_exhausted: AtomicBool,
    /// Whether a retry is queued at the circuit breaker when the budget is exhausted.
    queues_when_exhausted: AtomicBool,
    /// Refill per second, in 1e-9 tokens; 0 for none.
    per_second: AtomicU64,
}

/// Feedback from the [`CircuitBreaker`](crate::destination::CircuitBreaker) to the [`Budget`] of its destination.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct BreakerSignal {
    /// The ratio of retries to requests that hides the failures seen, while they do not depend on load
    /// (see *retry budget* in the rules of decision).
    pub ratio: f64,
    /// Whether there is a circuit breaker that can queue a retry when the budget cannot pay for it.
    pub has_queue: bool,
    /// Whether failures may be a sign of overload, as far as the client can tell.
    pub maybe_overload: bool,
    /// Whether the process makes so few requests that a successful retry gets its tokens back even if failures may be
    /// a sign of overload.
    pub low_traffic: bool,
    /// Whether at least two attempts failed in a row, in a process that may be one of very many.
    pub consecutive_failures: bool,
    /// Whether timeouts count as packet loss, and cost no more than other failures.
    pub timeouts_are_loss: bool,
    /// Whether retries are free, except after timeouts: the breaker is not normal, and paces them.
    pub retries_free: bool,
    /// Whether the breaker is limited. A retry after a timeout then pays its cost if the budget can
    /// bear it, and is free otherwise. No effect unless retries are free.
    pub limited: bool,
}

/// Tokens taken from a [`Budget`] for one retry. Return them with [`Budget::refund`] if the retry is
/// cancelled. Plain data: dropping it does nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Taken(u32);

impl Taken {
    pub(crate) const NOTHING: Self = Self(0);

    pub(crate) const fn is_nothing(self) -> bool {
        self.0 == 0
    }
}

/// The budget's response to a retry that can be delayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Payment {
    Paid(Taken),
    /// Paid, but the retry may not start before so many nanoseconds have passed.
    PaidAfter(Taken, u64),
    /// The budget is exhausted, but the retry may wait for headroom at the circuit breaker.
    QueueAtBreaker,
    Refused,
}

impl Budget {
    /// Creates a budget with its initial tokens.
    ///
    /// # Errors
    /// Returns an error if an amount is negative, not a number, above a million, or contradicts another
    /// one.
    pub fn new(config: &BudgetConfig) -> Result<Self, PolicyError> {
        config.check()?;
        Ok(Self::from_checked(config))
    }

    pub(crate) fn from_checked(config: &BudgetConfig) -> Self {
        let budget = Self {
            balance: CacheAligned(AtomicU64::new(milli(config.initial_tokens).into())),
            refilled: AtomicU64::new(NEVER),
            free_reasons: AtomicU8::new(0),
            ratio: AtomicU32::new(0),
            min_tokens_now: AtomicU64::new(0),
            min_tokens_undelayed: AtomicU64::new(0),
            timeout_cost_now: AtomicU32::new(0),
            queues_when_exhausted: AtomicBool::new(false),
            configured_ratio: AtomicU32::new(0),
            success: AtomicU32::new(0),
            capacity: AtomicU32::new(0),
            cost: AtomicU32::new(0),
            throttled_cost: AtomicU32::new(0),
            timeout_cost: AtomicU32::new(0),
            min_tokens: AtomicU32::new(0),
            overload_reserve: AtomicU32::new(0),
            initial_tokens: AtomicU32::new(0),
            queue_when_exhausted: AtomicBool::new(false),
            per_second: AtomicU64::new(0),
            refill_every: AtomicU64::new(u64::MAX),
            refunds: AtomicBool::new(false),
            refund_on_success: AtomicBool::new(false),
            success_counts: AtomicBool::new(false),
            charge_failures: AtomicBool::new(false),
        };
        budget.set(config);
        budget
    }

    /// Placeholder for a destination without a budget: its capacity is zero.
    pub(crate) fn none() -> Self {
        Self::from_checked(&BudgetConfig {
            ratio: 0.0,
            success: 0.0,
            per_second: 0.0,
            initial_tokens: 0.0,
            capacity: 0.0,
            min_tokens: 0.0,
            ..BudgetConfig::DEFAULT
        })
    }

    /// Changes the configuration. The balance stays, up to the new capacity; if the capacity was zero,
    /// it becomes the initial tokens. Refill until now counts at the old rate. The last signal of the
    /// circuit breaker stays in force until the next.
    pub(crate) fn apply(&self, now: Instant, config: &BudgetConfig) {
        if self.per_second.load(Ordering::Relaxed) != per_second(config) {
            let earned_until = self.refilled.load(Ordering::Relaxed);
            if earned_until != NEVER {
                self.refill_since(earned_until, now.as_nanos());
                self.refilled.fetch_max(now.as_nanos(), Ordering::Relaxed);
            }
        }
        let is_first = self.capacity.load(Ordering::Relaxed) == 0;
        self.set(config);
        let (reserve, capacity) = (
            u64::from(milli(config.initial_tokens)),
            u64::from(milli(config.capacity)),
        );
        update(&self.balance.0, |balance| match is_first {
            true => Some(reserve),
            false => (balance > capacity).then_some(capacity),
        });
    }

    /// Stops charging failures while the destination has no budget. Tokens can still be returned.
    pub(crate) fn suspend(&self) {
        self.charge_failures.store(false, Ordering::Relaxed);
    }

    fn set(&self, config: &BudgetConfig) {
        let set = |cell: &AtomicU32, to: u32| cell.store(to, Ordering::Relaxed);
        let per_second = per_second(config);
        set(&self.ratio, milli(config.ratio));
        set(&self.configured_ratio, milli(config.ratio));
        set(&self.success, milli(config.success));
        set(&self.capacity, milli(config.capacity));
        set(&self.cost, milli(config.cost));
        set(&self.throttled_cost, milli(config.throttled_cost));
        set(&self.timeout_cost, milli(config.timeout_cost_or_cost()));
        set(&self.min_tokens, milli(config.min_tokens));
        set(&self.overload_reserve, milli(config.overload_reserve));
        set(&self.initial_tokens, milli(config.initial_tokens));
        self.queue_when_exhausted
            .store(config.queue_when_exhausted, Ordering::Relaxed);
        self.per_second.store(per_second, Ordering::Relaxed);
        let refill_every = UNITS_PER_TENTH.checked_div(per_second).unwrap_or(u64::MAX);
        self.refill_every.store(refill_every, Ordering::Relaxed);
        self.refund_on_success
            .store(config.refund_on_success, Ordering::Relaxed);
        self.success_counts
            .store(milli(config.success) > 0, Ordering::Relaxed);
        self.charge_failures
            .store(config.charge_failures, Ordering::Relaxed);
        self.on_signal(&BreakerSignal {
            retries_free: self.free_reasons.load(Ordering::Relaxed) & RETRIES_FREE != 0,
            limited: self.free_reasons.load(Ordering::Relaxed) & LIMITED != 0,
            ..BreakerSignal::default()
        });
    }

    /// A request starts its first attempt: deposits the ratio.
    #[inline]
    pub fn on_request(&self) {
        self.deposit(self.ratio.load(Ordering::Relaxed).into());
    }

    /// Applies the signal of the circuit breaker until the next one. A ratio below the configured one
    /// has no effect.
    pub fn on_signal(&self, signal: &BreakerSignal) {
        // Rarely changed, often read.
        let set = |cell: &AtomicU64, to: u64| {
            if cell.load(Ordering::Relaxed) != to {
                cell.store(to, Ordering::Relaxed);
            }
        };
        let set_flag = |cell: &AtomicBool, to: bool| {
            if cell.load(Ordering::Relaxed) != to {
                cell.store(to, Ordering::Relaxed);
            }
        };
        let set_amount = |cell: &AtomicU32, to: u32| {
            if cell.load(Ordering::Relaxed) != to {
                cell.store(to, Ordering::Relaxed);
            }
        };
        let ratio = ((signal.ratio * MILLI) as u32).min(self.capacity.load(Ordering::Relaxed));
        let ratio = ratio.max(self.configured_ratio.load(Ordering::Relaxed));
        set_amount(&self.ratio, ratio);
        // If load may cause failures, a success proves no headroom: other requests may fail because of
        // it. A process with low traffic takes too little for that.
        let is_proof = !signal.maybe_overload || signal.low_traffic;
        let refunds = self.refund_on_success.load(Ordering::Relaxed) && is_proof;
        set_flag(&self.refunds, refunds);
        let floor = u64::from(self.min_tokens.load(Ordering::Relaxed));
        let beside = u64::from(self.overload_reserve.load(Ordering::Relaxed));
        let floor = floor + if signal.maybe_overload { beside } else { 0 };
        set(&self.min_tokens_now, floor);
        // This process may be one of very many with the same initial tokens.
        let min_tokens_undelayed =
            match signal.maybe_overload && signal.consecutive_failures && beside > 0 {
                true => floor.max(self.initial_tokens.load(Ordering::Relaxed).into()),
                false => floor,
            };
        set(&self.min_tokens_undelayed, min_tokens_undelayed);
        let timeout_cost = match signal.timeouts_are_loss {
            true => &self.cost,
            false => &self.timeout_cost,
        };
        set_amount(&self.timeout_cost_now, timeout_cost.load(Ordering::Relaxed));
        let queues_when_exhausted =
            signal.has_queue && self.queue_when_exhausted.load(Ordering::Relaxed);
        set_flag(&self.queues_when_exhausted, queues_when_exhausted);
        let charged = u8::from(self.charge_failures.load(Ordering::Relaxed)) * FAILURES_CHARGED;
        let limited = u8::from(signal.retries_free && signal.limited) * LIMITED;
        let free_reasons = charged | limited | (u8::from(signal.retries_free) * RETRIES_FREE);
        if self.free_reasons.load(Ordering::Relaxed) != free_reasons {
            self.free_reasons.store(free_reasons, Ordering::Relaxed);
        }
    }

    /// Whether the budget behaves as configured, and would still after a [signal](Self::on_signal) with any
    /// ratio up to this one and unchanged costs.
    pub(crate) fn is_unaffected_by_ratio(&self, ratio: f64) -> bool {
        let least = self.configured_ratio.load(Ordering::Relaxed);
        let ratio = ((ratio * MILLI) as u32).min(self.capacity.load(Ordering::Relaxed));
        ratio <= least
            && self.ratio.load(Ordering::Relaxed) == least
            && self.free_reasons.load(Ordering::Relaxed) & RETRIES_FREE == 0
    }

    /// Whether [`on_success`](Self::on_success) has an effect if the last retry took `last`.
    #[inline]
    pub(crate) fn needs_success(&self, last: Taken) -> bool {
        self.success_counts.load(Ordering::Relaxed)
            || last.0 > 0 && self.refunds.load(Ordering::Relaxed)
    }

    /// A request succeeded; `last` is the tokens that its last retry took.
    #[inline]
    pub fn on_success(&self, last: Taken) {
        if self.refunds.load(Ordering::Relaxed) && last.0 > 0 {
            self.refund(last);
        } else {
            self.deposit(self.success.load(Ordering::Relaxed).into());
        }
    }

    /// An attempt failed in a way that concerns the server's health. Takes its cost if
    /// `charge_failures` is set.
    pub fn on_failure(&self, what: impl Into<Charge>) {
        if self.charge_failures.load(Ordering::Relaxed) {
            let cost = u64::from(self.cost_of(what.into()));
            update(&self.balance.0, |balance| {
                Some(balance.saturating_sub(cost))
            });
        }
    }

    /// Takes the cost of one retry; `None` if the budget cannot pay. Check and withdrawal are one
    /// atomic step, so no number of threads can overdraw. Pass the [`Charge`], or the kind of a failure
    /// that was not a timeout.
    #[inline]
    pub fn withdraw(&self, now: Instant, what: impl Into<Charge>) -> Option<Taken> {
        let what = what.into();
        if let Some(granted) = self.settle(now, what) {
            return granted;
        }
        self.take(
            self.cost_of(what),
            self.min_tokens_now.load(Ordering::Relaxed),
        )
    }

    /// Withdraws for a retry that can be delayed by up to `longest` nanoseconds. After two failures in
    /// a row a retry from the initial tokens is delayed. If the budget is exhausted, the retry may be
    /// queued at the circuit breaker.
    pub(crate) fn withdraw_within(
        &self,
        now: Instant,
        what: Charge,
        longest: u64,
        random: &mut (impl Random + ?Sized),
    ) -> Payment {
        if let Some(granted) = self.settle(now, what) {
            return granted.map_or(Payment::Refused, Payment::Paid);
        }
        let cost = self.cost_of(what);
        let floor = self.min_tokens_now.load(Ordering::Relaxed);
        let min_tokens_undelayed = self.min_tokens_undelayed.load(Ordering::Relaxed);
        if let Some(taken) = self.take(cost, min_tokens_undelayed) {
            return Payment::Paid(taken);
        }
        if min_tokens_undelayed > floor {
            let pause = PAUSE_NANOS + up_to(PAUSE_NANOS, random);
            if pause <= longest
                && let Some(taken) = self.take(cost, floor)
            {
                return Payment::PaidAfter(taken, pause);
            }
        }
        // A timeout costs the destination as much as a success, and so would the next one.
        match what != Charge::Timeout && self.queues_when_exhausted.load(Ordering::Relaxed) {
            true => Payment::QueueAtBreaker,
            false => Payment::Refused,
        }
    }

    /// Refills the balance by time. Returns the result if the balance does not decide.
    #[inline]
    fn settle(&self, now: Instant, what: Charge) -> Option<Option<Taken>> {
        self.refill(now);
        match self.free_reasons.load(Ordering::Relaxed) {
            0 => None,
            why => self.grant_free(why, what),
        }
    }

    #[inline]
    fn take(&self, cost: u32, floor: u64) -> Option<Taken> {
        update(&self.balance.0, |balance| {
            let left = balance.checked_sub(u64::from(cost))?;
            (left >= floor).then_some(left)
        })
        .then_some(Taken(cost))
    }

    /// The result if something else pays for the retry; `None` if the budget pays.
    #[cold]
    fn grant_free(&self, why: u8, what: Charge) -> Option<Option<Taken>> {
        if why & FAILURES_CHARGED == 0 {
            // The destination may still be working on the attempt that timed out. A limited breaker has
            // headroom for a retry all the same; one that is down need not.
            if what != Charge::Timeout {
                return Some(Some(Taken(0)));
            }
            return (why & LIMITED != 0).then(|| {
                let floor = self.min_tokens_now.load(Ordering::Relaxed);
                self.take(self.cost_of(what), floor).or(Some(Taken(0)))
            });
        }
        // Its failure has paid for it; it goes while the balance is strictly above the minimum (gRFC
        // A6).
        let granted = why & RETRIES_FREE != 0
            || self.balance.0.load(Ordering::Relaxed) > self.min_tokens_now.load(Ordering::Relaxed);
        Some(granted.then_some(Taken(0)))
    }

    /// Returns the tokens of a retry that was cancelled before it started.
    pub fn refund(&self, taken: Taken) {
        self.deposit(u64::from(taken.0));
    }

    /// The current balance in tokens.
    #[must_use]
    pub fn balance(&self) -> f64 {
        self.balance.0.load(Ordering::Relaxed) as f64 / MILLI
    }

    #[inline]
    fn cost_of(&self, what: Charge) -> u32 {
        let cost = match what {
            Charge::Ordinary => &self.cost,
            Charge::Throttled => &self.throttled_cost,
            Charge::Timeout => &self.timeout_cost_now,
        };
        cost.load(Ordering::Relaxed)
    }

    #[inline]
    fn deposit(&self, amount: u64) {
        // A healthy destination has a full budget. It is only read, so its cache line stays shared
        // among the cores.
        let capacity = u64::from(self.capacity.load(Ordering::Relaxed));
        update(&self.balance.0, |balance| {
            let after = (balance + amount).min(capacity);
            (after > balance).then_some(after)
        });
    }

    #[inline]
    fn refill(&self, now: Instant) {
        let last = self.refilled.load(Ordering::Relaxed);
        if self.is_due(last, now) {
            self.refill_since(last, now.as_nanos());
        }
    }

    /// Whether a refill is due, if the last one was at `last`.
    #[inline]
    fn is_due(&self, last: u64, now: Instant) -> bool {
        now.as_nanos().wrapping_sub(last) >= self.refill_every.load(Ordering::Relaxed)
    }

    #[cold]
    fn refill_since(&self, last: u64, now: u64) {
        let per_second = u128::from(self.per_second.load(Ordering::Relaxed));
        if per_second == 0 {
            return;
        }
        if last == NEVER {
            let _ = self
                .refilled
                .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed);
            return;
        }
        let elapsed = u128::from(now.saturating_sub(last));
        let gained = elapsed * per_second / UNITS_PER_MILLI;
        if gained == 0 {
            return;
        }
        // The thread that advances the time makes the deposit, once.
        let moved = last + (gained * UNITS_PER_MILLI).div_ceil(per_second) as u64;
        if self
            .refilled
            .compare_exchange(last, moved, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
        {
            // A deposit is bounded by the capacity, so any larger number is the same.
            self.deposit(u32::try_from(gained).unwrap_or(u32::MAX).into());
        }
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget")
            .field("balance", &self.balance())
            .field(
                "capacity",
                &(f64::from(self.capacity.load(Ordering::Relaxed)) / MILLI),
            )
            .finish_non_exhaustive()
    }
}

/// Converts to 1e-9 tokens per second.
fn per_second(config: &BudgetConfig) -> u64 {
    (config.per_second * 1e9 + 0.5) as u64
}

/// Converts to thousandths of a token; at most 1e9, as checked.
fn milli(tokens: f64) -> u32 {
    (tokens * MILLI + 0.5) as u32
}

/// Applies `change` atomically; `false` if it returned `None`.
#[inline]
fn update(cell: &AtomicU64, change: impl Fn(u64) -> Option<u64>) -> bool {
    let mut seen = cell.load(Ordering::Relaxed);
    while let Some(next) = change(seen) {
        match cell.compare_exchange_weak(seen, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(now) => seen = now,
        }
    }
    false
}

#[cfg(all(test, not(loom)))]
mod tests;

/// Run with `RUSTFLAGS="--cfg loom" cargo test -p relent-core --lib loom`.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use core::time::Duration;
    use loom::sync::Arc;
    use loom::thread;

    fn budget(reserve: f64, per_second: f64) -> Arc<Budget> {
        let config = BudgetConfig {
            initial_tokens: reserve,
            per_second,
            ..BudgetConfig::DEFAULT
        };
        Arc::new(Budget::new(&config).unwrap())
    }

    #[test]
    fn loom_the_last_token_is_granted_once() {
        loom::model(|| {
            let budget = budget(1.0, 0.0);
            let other = budget.clone();
            let there = thread::spawn(move || {
                other
                    .withdraw(Instant::ORIGIN, FailureKind::Ambiguous)
                    .is_some()
            });
            let here = budget
                .withdraw(Instant::ORIGIN, FailureKind::Ambiguous)
                .is_some();
            assert!(here ^ there.join().unwrap());
            assert_eq!(budget.balance(), 0.0);
        });
    }

    #[test]
    fn loom_refund_and_deposit_are_never_lost() {
        loom::model(|| {
            let budget = budget(1.0, 0.0);
            let other = budget.clone();
            let there = thread::spawn(move || {
                other.on_request();
                if let Some(taken) = other.withdraw(Instant::ORIGIN, FailureKind::Ambiguous) {
                    other.refund(taken);
                }
            });
            budget.on_request();
            there.join().unwrap();
            assert_eq!(budget.balance(), 1.2);
        });
    }

    #[test]
    fn loom_time_refills_once() {
        loom::model(|| {
            let budget = budget(0.0, 1.0);
            let at = |seconds| Instant::ORIGIN.saturating_add(Duration::from_secs(seconds));
            assert!(budget.withdraw(at(1), FailureKind::Ambiguous).is_none());
            let other = budget.clone();
            let there =
                thread::spawn(move || other.withdraw(at(2), FailureKind::Ambiguous).is_some());
            let here = budget.withdraw(at(2), FailureKind::Ambiguous).is_some();
            let granted = u32::from(here) + u32::from(there.join().unwrap());
            // A thread that sees the new time before the deposit is made gets nothing.
            assert!(granted <= 1);
            assert_eq!(budget.balance() + f64::from(granted), 1.0);
        });
    }
}
