//! The shared allowance of retries for a destination.

mod config;

use core::fmt;
use core::sync::atomic::AtomicBool;

use crate::error::PolicyError;
use crate::failure::{Cause, Kind};
use crate::random::{Random, up_to};
use crate::sync::{Alone, AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::time::Instant;
pub use config::BudgetConfig;

/// One token in the integer unit of the balance.
const MILLI: f64 = 1000.0;
/// Nanoseconds in which a thousand millionth of a token per second makes a thousandth of one, and those
/// in which it makes a tenth.
const PER_MILLI: u128 = 1_000_000_000_000_000;
const TENTH: u64 = 100_000_000_000_000_000;
/// No time has been seen yet: the first refill counts from the first withdrawal, not from zero
/// (the AWS SDK for Rust counts its first refill from 1970).
///
/// Half-way along the time line, so that one comparison that wraps around tells both that a refill
/// is due and that none has been.
const NEVER: u64 = 1 << 63;
/// Who lives off its reserve waits for so many nanoseconds, and up to as many again, after two failures in a row.
const PAUSE: u64 = 4_000_000_000;

/// What a retry is charged as, which decides what it costs.
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
    pub const fn of(kind: Kind, cause: Cause) -> Self {
        match (kind, cause) {
            (Kind::Throttled, _) => Self::Throttled,
            (_, Cause::Timeout) => Self::Timeout,
            _ => Self::Ordinary,
        }
    }
}

impl From<Kind> for Charge {
    /// The charge after a failure of this kind that was no timeout.
    #[inline]
    fn from(kind: Kind) -> Self {
        Self::of(kind, Cause::Error)
    }
}

/// A gate paces retries; or each was paid for when it failed; or the gate paces them and lets attempts go.
const WAIVED: u8 = 1;
const CHARGED: u8 = 2;
const LIMITED: u8 = 4;

/// The shared allowance of retries for one destination: lock-free, never overdrawn.
///
/// Share one value among all callers of a destination (in an `Arc`, or a `static`). Requests and
/// time fill it, retries empty it, and a retry that is called off gives its tokens back (design
/// rules 7 and 12).
///
/// ```
/// use relent_core::{Budget, BudgetConfig, Instant, Kind};
///
/// let budget = Budget::new(&BudgetConfig { reserve: 1.0, per_second: 0.0, ..BudgetConfig::DEFAULT })?;
/// let now = Instant::ORIGIN;
/// let taken = budget.withdraw(now, Kind::Ambiguous).expect("one in reserve");
/// assert!(budget.withdraw(now, Kind::Ambiguous).is_none());
/// budget.refund(taken);
/// assert!(budget.withdraw(now, Kind::Ambiguous).is_some());
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
// Behind the balance comes, in one cache line, what every request and retry looks at.
#[repr(C)]
pub struct Budget {
    /// In thousandths of a token, as all amounts. The rest is seldom written, and is not to be fetched again
    /// whenever another core has changed the balance.
    balance: Alone<AtomicU64>,
    /// When time last made a deposit, in nanoseconds.
    refilled: AtomicU64,
    /// Nanoseconds after which time makes a deposit; `u64::MAX` for never.
    refill_every: AtomicU64,
    /// What a retry leaves; and what one leaves that does not pause.
    floor_now: AtomicU64,
    soon_floor: AtomicU64,
    ratio: AtomicU32,
    capacity: AtomicU32,
    cost: AtomicU32,
    throttled_cost: AtomicU32,
    timeout_cost_now: AtomicU32,
    /// Why a retry takes nothing when it is granted, in bits; 0 where it does.
    unpaid: AtomicU8,
    /// Whether every success deposits something.
    success_counts: AtomicBool,
    /// Whether a retry that succeeds gives back what it cost: now, and where it is configured.
    refunds: AtomicBool,
    refund_on_success: AtomicBool,
    charge_failures: AtomicBool,
    success: AtomicU32,
    least_ratio: AtomicU32,
    timeout_cost: AtomicU32,
    floor: AtomicU32,
    overload_floor: AtomicU32,
    reserve: AtomicU32,
    wait_when_empty: AtomicBool,
    /// Whether a retry waits at the gate where nothing is left.
    waits: AtomicBool,
    /// What time deposits in a second, in thousand millionths of a token; 0 for nothing.
    per_second: AtomicU64,
}

/// What a [`Gate`](crate::Gate) has found out, for the [`Budget`] of its destination.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Lesson {
    /// The ratio of retries to requests that hides the failures seen, while they do not depend on load
    /// (design rule 7).
    pub ratio: f64,
    /// Whether there is a gate at which a retry can wait that the budget cannot pay for.
    pub gated: bool,
    /// Whether a failure may be a sign of overload, as far as one can tell.
    pub suspicious: bool,
    /// Whether the last failures were two or more in a row.
    pub repeated: bool,
    /// Whether attempts that time out are taken to be lost on the way, and cost no more than others.
    pub lossy: bool,
    /// Whether retries cost nothing, but after timeouts: the gate is not open, and paces them.
    pub waived: bool,
    /// Whether the gate is limited: a retry after a timeout takes what it costs if that is there, and goes without if
    /// it is not. Of no effect where retries are not `waived`.
    pub limited: bool,
}

/// Tokens taken from a [`Budget`] for one retry; hand them to [`Budget::refund`] if the retry is
/// called off. Plain data: nothing happens when it is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Taken(u32);

impl Taken {
    pub(crate) const NOTHING: Self = Self(0);

    pub(crate) const fn is_nothing(self) -> bool {
        self.0 == 0
    }
}

/// What a budget says to a retry that can wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Payment {
    Paid(Taken),
    /// It is not to start before so many nanoseconds have passed.
    PaidAfter(Taken, u64),
    /// Nothing is left, but it may wait for room at the gate.
    AtGate,
    Refused,
}

impl Budget {
    /// A budget with its reserve in it.
    ///
    /// # Errors
    /// Amounts that are negative, not numbers, above a million, or contradict each other.
    pub fn new(config: &BudgetConfig) -> Result<Self, PolicyError> {
        config.check()?;
        Ok(Self::from_checked(config))
    }

    pub(crate) fn from_checked(config: &BudgetConfig) -> Self {
        let budget = Self {
            balance: Alone(AtomicU64::new(milli(config.reserve).into())),
            refilled: AtomicU64::new(NEVER),
            unpaid: AtomicU8::new(0),
            ratio: AtomicU32::new(0),
            floor_now: AtomicU64::new(0),
            soon_floor: AtomicU64::new(0),
            timeout_cost_now: AtomicU32::new(0),
            waits: AtomicBool::new(false),
            least_ratio: AtomicU32::new(0),
            success: AtomicU32::new(0),
            capacity: AtomicU32::new(0),
            cost: AtomicU32::new(0),
            throttled_cost: AtomicU32::new(0),
            timeout_cost: AtomicU32::new(0),
            floor: AtomicU32::new(0),
            overload_floor: AtomicU32::new(0),
            reserve: AtomicU32::new(0),
            wait_when_empty: AtomicBool::new(false),
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

    /// In place of a budget that there may be one day: nothing fits in.
    pub(crate) fn none() -> Self {
        Self::from_checked(&BudgetConfig {
            ratio: 0.0,
            success: 0.0,
            per_second: 0.0,
            reserve: 0.0,
            capacity: 0.0,
            floor: 0.0,
            ..BudgetConfig::DEFAULT
        })
    }

    /// Goes by this from now on. What is in it stays, up to the new capacity, and is the reserve if nothing
    /// fitted in before; what time has earned so far counts at the old rate. What a gate has said holds
    /// until it says something else.
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
            u64::from(milli(config.reserve)),
            u64::from(milli(config.capacity)),
        );
        update(&self.balance.0, |balance| match is_first {
            true => Some(reserve),
            false => (balance > capacity).then_some(capacity),
        });
    }

    /// No failure is charged while its destination has no budget. What was taken can be given back.
    pub(crate) fn suspend(&self) {
        self.charge_failures.store(false, Ordering::Relaxed);
    }

    fn set(&self, config: &BudgetConfig) {
        let set = |cell: &AtomicU32, to: u32| cell.store(to, Ordering::Relaxed);
        let per_second = per_second(config);
        set(&self.ratio, milli(config.ratio));
        set(&self.least_ratio, milli(config.ratio));
        set(&self.success, milli(config.success));
        set(&self.capacity, milli(config.capacity));
        set(&self.cost, milli(config.cost));
        set(&self.throttled_cost, milli(config.throttled_cost));
        set(&self.timeout_cost, milli(config.timeout_cost_or_cost()));
        set(&self.floor, milli(config.floor));
        set(&self.overload_floor, milli(config.overload_floor));
        set(&self.reserve, milli(config.reserve));
        self.wait_when_empty
            .store(config.wait_when_empty, Ordering::Relaxed);
        self.per_second.store(per_second, Ordering::Relaxed);
        let refill_every = TENTH.checked_div(per_second).unwrap_or(u64::MAX);
        self.refill_every.store(refill_every, Ordering::Relaxed);
        self.refund_on_success
            .store(config.refund_on_success, Ordering::Relaxed);
        self.success_counts
            .store(milli(config.success) > 0, Ordering::Relaxed);
        self.charge_failures
            .store(config.charge_failures, Ordering::Relaxed);
        self.learn(&Lesson {
            waived: self.unpaid.load(Ordering::Relaxed) & WAIVED != 0,
            limited: self.unpaid.load(Ordering::Relaxed) & LIMITED != 0,
            ..Lesson::default()
        });
    }

    /// Reads of each cache line: see [`Outbound::touch`](crate::Outbound::touch).
    #[inline]
    pub(crate) fn touch(&self) -> u64 {
        self.balance.0.load(Ordering::Relaxed)
            ^ self.refilled.load(Ordering::Relaxed)
            ^ self.per_second.load(Ordering::Relaxed)
    }

    /// A logical request goes out for the first time: deposits the ratio.
    #[inline]
    pub fn on_request(&self) {
        self.deposit(self.ratio.load(Ordering::Relaxed).into());
    }

    /// Goes by this from now on, until it is told something else. A ratio below the configured one has no
    /// effect.
    pub fn learn(&self, lesson: &Lesson) {
        // Seldom changed, often read.
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
        let ratio = ((lesson.ratio * MILLI) as u32).min(self.capacity.load(Ordering::Relaxed));
        let ratio = ratio.max(self.least_ratio.load(Ordering::Relaxed));
        set_amount(&self.ratio, ratio);
        // Where failures may come of load a success says nothing of room: others may fail for it.
        let refunds = self.refund_on_success.load(Ordering::Relaxed) && !lesson.suspicious;
        set_flag(&self.refunds, refunds);
        let floor = u64::from(self.floor.load(Ordering::Relaxed));
        let beside = u64::from(self.overload_floor.load(Ordering::Relaxed));
        let floor = floor + if lesson.suspicious { beside } else { 0 };
        set(&self.floor_now, floor);
        // Who may be one of very many.
        let soon_floor = match lesson.suspicious && lesson.repeated && beside > 0 {
            true => floor.max(self.reserve.load(Ordering::Relaxed).into()),
            false => floor,
        };
        set(&self.soon_floor, soon_floor);
        let timeout_cost = match lesson.lossy {
            true => &self.cost,
            false => &self.timeout_cost,
        };
        set_amount(&self.timeout_cost_now, timeout_cost.load(Ordering::Relaxed));
        let waits = lesson.gated && self.wait_when_empty.load(Ordering::Relaxed);
        set_flag(&self.waits, waits);
        let charged = u8::from(self.charge_failures.load(Ordering::Relaxed)) * CHARGED;
        let limited = u8::from(lesson.waived && lesson.limited) * LIMITED;
        let unpaid = charged | limited | (u8::from(lesson.waived) * WAIVED);
        if self.unpaid.load(Ordering::Relaxed) != unpaid {
            self.unpaid.store(unpaid, Ordering::Relaxed);
        }
    }

    /// Whether it goes by what it was made of, and would still if it was [told](Self::learn) any
    /// ratio up to this, and retries were to cost what they do.
    pub(crate) fn is_unmoved(&self, ratio: f64) -> bool {
        let least = self.least_ratio.load(Ordering::Relaxed);
        let ratio = ((ratio * MILLI) as u32).min(self.capacity.load(Ordering::Relaxed));
        ratio <= least
            && self.ratio.load(Ordering::Relaxed) == least
            && self.unpaid.load(Ordering::Relaxed) & WAIVED == 0
    }

    /// Whether [`on_success`](Self::on_success) changes anything after a last retry that took this.
    #[inline]
    pub(crate) fn hears_of_success(&self, last: Taken) -> bool {
        self.success_counts.load(Ordering::Relaxed)
            || last.0 > 0 && self.refunds.load(Ordering::Relaxed)
    }

    /// A logical request succeeded; `last` is what its last retry took.
    #[inline]
    pub fn on_success(&self, last: Taken) {
        if self.refunds.load(Ordering::Relaxed) && last.0 > 0 {
            self.refund(last);
        } else {
            self.deposit(self.success.load(Ordering::Relaxed).into());
        }
    }

    /// An attempt failed in a way that says something about the server's health: with
    /// `charge_failures`, takes its cost.
    pub fn on_failure(&self, what: impl Into<Charge>) {
        if self.charge_failures.load(Ordering::Relaxed) {
            let cost = u64::from(self.cost_of(what.into()));
            update(&self.balance.0, |balance| {
                Some(balance.saturating_sub(cost))
            });
        }
    }

    /// Takes the cost of one retry, or nothing and `None` if the budget cannot bear it. The check
    /// and the taking are one step, so that no number of threads can overdraw. `what` is the
    /// [`Charge`], or the kind of a failure that was no timeout.
    #[inline]
    pub fn withdraw(&self, now: Instant, what: impl Into<Charge>) -> Option<Taken> {
        let what = what.into();
        if let Some(granted) = self.settle(now, what) {
            return granted;
        }
        self.take(self.cost_of(what), self.floor_now.load(Ordering::Relaxed))
    }

    /// The same for a retry that waits for `longest` nanoseconds at most. One that lives off the reserve after two failures
    /// in a row pauses, and where nothing is left there may be room at the gate.
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
        let floor = self.floor_now.load(Ordering::Relaxed);
        let soon_floor = self.soon_floor.load(Ordering::Relaxed);
        if let Some(taken) = self.take(cost, soon_floor) {
            return Payment::Paid(taken);
        }
        if soon_floor > floor {
            let pause = PAUSE + up_to(PAUSE, random);
            if pause <= longest
                && let Some(taken) = self.take(cost, floor)
            {
                return Payment::PaidAfter(taken, pause);
            }
        }
        // What timed out has cost the destination as much as what is answered, and so would the next.
        match what != Charge::Timeout && self.waits.load(Ordering::Relaxed) {
            true => Payment::AtGate,
            false => Payment::Refused,
        }
    }

    /// The same where nothing but the balance has a say: `None` also where time is to refill it first,
    /// something else pays for retries, or the retry is to pause.
    #[inline]
    pub(crate) fn withdraw_at_once(&self, now: Instant, what: Charge) -> Option<Taken> {
        let last = self.refilled.load(Ordering::Relaxed);
        if self.is_due(last, now) || self.unpaid.load(Ordering::Relaxed) != 0 {
            return None;
        }
        self.take(self.cost_of(what), self.soon_floor.load(Ordering::Relaxed))
    }

    /// Refills the balance by time. Returns what is said where something else than the balance decides.
    #[inline]
    fn settle(&self, now: Instant, what: Charge) -> Option<Option<Taken>> {
        self.refill(now);
        match self.unpaid.load(Ordering::Relaxed) {
            0 => None,
            why => self.grant_unpaid(why, what),
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

    /// What is said where something else pays for a retry; `None` where it pays for itself all the same.
    #[cold]
    fn grant_unpaid(&self, why: u8, what: Charge) -> Option<Option<Taken>> {
        if why & CHARGED == 0 {
            // What the destination was left with by an attempt that timed out costs it as much as ever. A limited gate
            // has room for a retry all the same, and a closed one need not.
            if what != Charge::Timeout {
                return Some(Some(Taken(0)));
            }
            return (why & LIMITED != 0).then(|| {
                let floor = self.floor_now.load(Ordering::Relaxed);
                self.take(self.cost_of(what), floor).or(Some(Taken(0)))
            });
        }
        // What was paid when it failed goes while there is strictly more than the floor (A6).
        let granted = why & WAIVED != 0
            || self.balance.0.load(Ordering::Relaxed) > self.floor_now.load(Ordering::Relaxed);
        Some(granted.then_some(Taken(0)))
    }

    /// Gives back what a retry took that was called off before it went out.
    pub fn refund(&self, taken: Taken) {
        self.deposit(u64::from(taken.0));
    }

    /// The tokens in the budget now.
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
        // A full budget is the usual state of a healthy destination: it is only read, so that
        // its cache line stays shared among the cores.
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

    /// Whether time makes a deposit, of which the last was then.
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
        let gained = elapsed * per_second / PER_MILLI;
        if gained == 0 {
            return;
        }
        // Whoever moves the time forward makes the deposit, once.
        let moved = last + (gained * PER_MILLI).div_ceil(per_second) as u64;
        if self
            .refilled
            .compare_exchange(last, moved, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
        {
            // More than any budget holds is too much to be added; the capacity is seen to there.
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

/// Thousand millionths of a token.
fn per_second(config: &BudgetConfig) -> u64 {
    (config.per_second * 1e9 + 0.5) as u64
}

/// Thousandths of a token, of which there are at most a million by the check.
fn milli(tokens: f64) -> u32 {
    (tokens * MILLI + 0.5) as u32
}

/// Applies `change` atomically; `false` if it declined.
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
            reserve,
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
            let there =
                thread::spawn(move || other.withdraw(Instant::ORIGIN, Kind::Ambiguous).is_some());
            let here = budget.withdraw(Instant::ORIGIN, Kind::Ambiguous).is_some();
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
                if let Some(taken) = other.withdraw(Instant::ORIGIN, Kind::Ambiguous) {
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
            assert!(budget.withdraw(at(1), Kind::Ambiguous).is_none());
            let other = budget.clone();
            let there = thread::spawn(move || other.withdraw(at(2), Kind::Ambiguous).is_some());
            let here = budget.withdraw(at(2), Kind::Ambiguous).is_some();
            let granted = u32::from(here) + u32::from(there.join().unwrap());
            // The one who finds the time moved but the deposit not yet made goes without.
            assert!(granted <= 1);
            assert_eq!(budget.balance() + f64::from(granted), 1.0);
        });
    }
}
