//! A rate limiter by the generic cell rate algorithm (GCRA), with slots that are reserved for
//! rejected callers.
//!
//! # Why slots
//! A limiter that sends the same Retry-After to all callers makes them return together: 1000
//! clients against 100 per second with "Retry-After: 10" need 990 s and 50 attempts each. With a
//! slot for each they need 9.9 s and two attempts.
//!
//! # Slots
//! The schedule is a sequence of slots, one `interval` apart. A caller without a ticket takes the
//! next free slot. If that slot lies in the future, it is reserved for the caller's key. Each slot
//! serves at most one attempt:
//!
//! | slot | serves |
//! |---|---|
//! | reserved | its key, from the slot until the end of the grace |
//! | open | the first caller without a key in that time |
//! | lapsed: unused | any caller without a ticket, later. It becomes a token of the burst again: at most `burst` are kept, the others are lost like idle time |
//!
//! At most `burst + t/interval` attempts are admitted in the first t. Any other window of length t
//! also admits late tickets: at most `burst + (t + grace)/interval + 1` attempts. Attempts with a
//! cost above one have their slots up to a burst apart, and may use all of them late:
//! `2·burst + (t + grace)/interval`.
//!
//! # Callers that cannot hold a ticket
//! A caller without a key, or with a new key each time, must not wait behind reservations for ever.
//! Callers that ignore their slots must not displace those that obey.
//! - The rest of the schedule (lapsed slots, and every slot once no caller is ahead) is open to
//!   every caller, with or without a key.
//! - A rejected caller without a key is counted in a queue behind the schedule. It holds no slot,
//!   but while there is such a queue, every reserved slot is preceded by an open one. Callers
//!   without a key thus get one slot per rejection, up to every second slot. At least every second
//!   slot belongs to a ticket, however often the others come.
//! - The next open slot may be as far away as the schedule reaches, since earlier callers have
//!   their slots: at most the horizon.
//! - Callers in the queue get different times, one interval apart, so that they do not return
//!   together. Such a time is not a ticket: others may come first.
//!
//! A caller with a new key each time lets its slots lapse, and is served by lapsed slots. It cannot
//! use an open slot: new callers with keys, which can wait, would otherwise take them from callers
//! without. In return the last lapsed slot is kept for a caller with a key (with a burst of 1, the
//! first caller gets it). Beyond that, a caller that comes more often is served more often: it
//! cannot be distinguished from many callers. Use a key that clients cannot change at will: with
//! many keys one client can reserve the schedule up to the horizon. Treat a client without such an
//! identity as a caller without a key.

mod keyed;

use alloc::collections::{BTreeMap, VecDeque};
use core::time::Duration;

use crate::policy::error::{Found, PolicyError};
use crate::time::{Instant, nanos};

pub use keyed::KeyedLimiter;

/// The maximum number of slots in a schedule, at about 100 bytes each.
const MAX_SLOTS: u64 = 1_000_000;

/// The configuration of a [`Limiter`].
///
/// ```
/// use core::time::Duration;
/// use relent_core::admission::LimiterConfig;
///
/// // A hundred per second, and ten immediately after a pause.
/// let config = LimiterConfig {
///     burst: 10,
///     ..LimiterConfig::new(100, Duration::from_secs(1))
/// };
/// assert_eq!(config.horizon, Duration::from_secs(300));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimiterConfig {
    /// The number of attempts in each [`per`](Self::per). At least 1.
    pub rate: u32,
    /// The period for that many attempts; more than zero.
    pub per: Duration,
    /// The number of attempts that may come together after a pause; at least 1. Default: the
    /// attempts of one second, and at least 2, so that a double click is not rejected. With 1, two
    /// attempts are at least one interval apart.
    pub burst: u32,
    /// How far ahead slots are reserved; zero reserves none. Default 5 min, the default maximum
    /// hint of a policy. Memory: about 100 bytes for each slot in the horizon and the grace, and at
    /// most a million slots: above about 3300 attempts per second slots are reserved less far
    /// ahead.
    pub horizon: Duration,
    /// How long after its slot a caller is still admitted. Default 3 s: one for a header in whole
    /// seconds, one for the jitter of a ticket in whole seconds, one for timer and network.
    pub grace: Duration,
}

impl LimiterConfig {
    /// A limit of `rate` attempts per `per`; burst: the attempts of one second, at least 2; horizon
    /// 5 min, grace 3 s.
    ///
    /// ```
    /// use core::time::Duration;
    /// use relent_core::admission::LimiterConfig;
    ///
    /// assert_eq!(LimiterConfig::new(10, Duration::from_secs(60)).burst, 2);
    /// assert_eq!(LimiterConfig::new(100, Duration::from_secs(1)).burst, 100);
    /// ```
    #[must_use]
    pub const fn new(rate: u32, per: Duration) -> Self {
        Self {
            rate,
            per,
            burst: burst_of_a_second(rate, per),
            horizon: Duration::from_secs(300),
            grace: Duration::from_secs(3),
        }
    }

    /// Checks for contradictions.
    fn check(&self) -> Result<Pace, PolicyError> {
        let per = nanos(self.per);
        if self.rate == 0 {
            return Err(PolicyError::new(
                "rate",
                Found::Count(0),
                "a limiter admits at least 1 attempt in its period; for fewer, make the period longer",
            ));
        }
        if per == 0 {
            return Err(PolicyError::new(
                "per",
                Found::Duration(self.per),
                "a period is longer than 0: 1s for a rate per second",
            ));
        }
        let pace = Pace::new(self.rate, per);
        if self.burst == 0 || pace.checked_time(self.burst).is_none() {
            return Err(PolicyError::new(
                "burst",
                Found::Count(self.burst),
                "a burst is at least 1 attempt, and no more than fit into 584 years at the rate",
            ));
        }
        if !self.horizon.is_zero() && self.grace.is_zero() {
            return Err(PolicyError::new(
                "grace",
                Found::Duration(self.grace),
                "without a grace every slot lapses before its caller can come; 3s is usual. \
                 To reserve no slots, set the horizon to 0",
            ));
        }
        Ok(pace)
    }
}

/// The default burst.
const fn burst_of_a_second(rate: u32, per: Duration) -> u32 {
    const MIN_BURST: u32 = 2;
    let per = per.as_nanos();
    if per == 0 {
        return MIN_BURST;
    }
    // Not above the rate if the period is at least a second.
    let burst = rate as u128 * 1_000_000_000 / per;
    match burst {
        0..=1 => MIN_BURST,
        2..=0xffff_ffff => burst as u32,
        _ => u32::MAX,
    }
}

/// A rate as integers: this many attempts in this many nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Pace {
    rate: u32,
    per: u64,
    /// The time between two attempts, rounded down, and the remainder of the division.
    interval: u64,
    rest: u32,
}

impl Pace {
    /// The pace of a rate and a period above 0.
    fn new(rate: u32, per: u64) -> Self {
        Self {
            rate,
            per,
            interval: per / u64::from(rate),
            rest: (per % u64::from(rate)) as u32,
        }
    }

    /// The time for this many attempts, rounded up; `None` on overflow.
    fn checked_time(self, attempts: u32) -> Option<u64> {
        let whole = self.interval.checked_mul(u64::from(attempts))?;
        if self.rest == 0 {
            return Some(whole);
        }
        let rest = u64::from(self.rest) * u64::from(attempts);
        whole.checked_add(rest.div_ceil(u64::from(self.rate)))
    }

    /// The saturating form of [`checked_time`](Self::checked_time).
    fn time(self, attempts: u32) -> u64 {
        self.checked_time(attempts).unwrap_or(u64::MAX)
    }

    /// The number of attempts in this time, rounded down.
    fn attempts(self, time: u64) -> u64 {
        if self.rest == 0 {
            return time / self.interval;
        }
        let attempts = u128::from(time) * u128::from(self.rate) / u128::from(self.per);
        u64::try_from(attempts).unwrap_or(u64::MAX)
    }
}

/// The decision about an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// The attempt is admitted.
    Admitted {
        /// It came in the slot that was reserved for it, so it is not a retry by the caller's own
        /// choice.
        ticket: bool,
    },
    /// The attempt is rejected for now.
    Refused(Refusal),
    /// The attempt costs more than the burst, so it can never be admitted.
    Impossible,
}

/// When a rejected caller should return.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refusal {
    /// A ticket: after exactly this time a slot is reserved for the caller.
    Ticket(Duration),
    /// After about this time there may be quota. Nothing is reserved.
    Shared(Duration),
}

impl Refusal {
    /// The delay for the caller; more than zero.
    #[must_use]
    pub const fn delay(self) -> Duration {
        match self {
            Self::Ticket(delay) | Self::Shared(delay) => delay,
        }
    }

    /// The delay in whole milliseconds, rounded up so that the caller is not early.
    ///
    /// ```
    /// use core::time::Duration;
    /// use relent_core::admission::Refusal;
    ///
    /// let ticket = Refusal::Ticket(Duration::from_micros(1500));
    /// assert_eq!((ticket.whole_millis(), ticket.whole_seconds()), (2, 1));
    /// ```
    #[must_use]
    pub const fn whole_millis(self) -> u64 {
        nanos(self.delay()).div_ceil(1_000_000)
    }

    /// The delay in whole seconds, for Retry-After, rounded up. (tower_governor truncates and sends
    /// 0.)
    #[must_use]
    pub const fn whole_seconds(self) -> u64 {
        nanos(self.delay()).div_ceil(1_000_000_000)
    }
}

/// A rate limiter (GCRA) that gives each rejected caller a reserved slot.
///
/// A slot is bound to the caller's key. A caller that comes early gets the same slot again, one
/// that comes within the grace is admitted, and after that the slot lapses. A key has at most one
/// slot. Beyond the horizon and without a key, a rejection is a plain Retry-After.
///
/// Callers that cannot hold a ticket get lapsed slots, free slots, and one slot per rejection while
/// others reserve, up to every second slot. At least every second slot is for tickets, however
/// often the others come.
///
/// In any window of length t it admits at most `burst + t/interval` attempts, plus tickets that
/// come late within the grace. Each call takes logarithmic time in the number of reserved slots. A
/// driver shares one value behind a lock. A time before the latest one counts as the latest.
///
/// An attempt may cost more than one: it then counts as that many concurrent attempts, and its
/// ticket is for all of them. To combine several limits or a [`Shedder`](crate::admission::Shedder), use
/// [`AdmissionController`](crate::admission::AdmissionController), in which a rejection by one consumes nothing of the others.
///
/// ```
/// use core::time::Duration;
/// use relent_core::Instant;
/// use relent_core::admission::{Limiter, LimiterConfig, Refusal, Verdict};
///
/// let config = LimiterConfig { burst: 1, ..LimiterConfig::new(10, Duration::from_secs(1)) };
/// let mut limiter = Limiter::new(&config)?;
/// let start = Instant::ORIGIN;
/// let (ann, bob) = (Some(1), Some(2));
/// assert_eq!(limiter.admit(start, ann, 1), Verdict::Admitted { ticket: false });
///
/// // Rejected, with a reserved slot; if he comes early, he gets the same slot.
/// let ticket = Refusal::Ticket(Duration::from_millis(100));
/// assert_eq!(limiter.admit(start, bob, 1), Verdict::Refused(ticket));
/// assert_eq!(limiter.admit(start, bob, 1), Verdict::Refused(ticket));
///
/// let slot = start.saturating_add(ticket.delay());
/// assert_eq!(limiter.admit(slot, bob, 1), Verdict::Admitted { ticket: true });
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Limiter {
    /// The pace of the slots; all times here are in nanoseconds.
    pace: Pace,
    /// How far the schedule may run ahead of time before attempts are rejected: the burst.
    tolerance: u64,
    burst: u32,
    horizon: u64,
    grace: u64,
    /// The latest time seen.
    latest: u64,
    /// The theoretical arrival time of GCRA: the next free slot plus the tolerance. Rounded up to a
    /// nanosecond.
    scheduled: u64,
    /// The rounding error, in nanoseconds times the rate, which keeps the rate exact.
    rounded: u32,
    /// The last time that was given to a caller without a key. If it is beyond the next free slot,
    /// there is a queue.
    queue_end: u64,
    /// Lapsed slots that any caller without a ticket may use; at most the burst.
    spare: u32,
    /// Reserved slots with their keys, by time, including used ones until they lapse.
    reserved: VecDeque<(u64, u64)>,
    /// The ticket of each key that has one.
    tickets: BTreeMap<u64, Ticket>,
    /// Open slots by time.
    open: VecDeque<u64>,
}

/// The reservation of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ticket {
    slot: u64,
    /// The cost of the attempt; at most the burst.
    cost: u32,
}

/// The slot that is available to an attempt, before anything is consumed.
enum Availability {
    /// It comes within the grace of its ticket.
    Due,
    /// It comes before the slot of its ticket.
    Early(u64),
    /// It can use open slots.
    Open,
    /// It can use lapsed slots.
    LapsedSlots,
    /// The schedule has a free slot.
    FreeSlot,
    /// The schedule is full.
    Full,
    /// The schedule has reached the end of the time range.
    Ended,
    /// The cost exceeds the burst.
    Impossible,
}

impl Limiter {
    /// A limiter that has admitted nothing yet.
    ///
    /// # Errors
    /// A rate, period or burst of zero, a burst that takes more than 584 years, or slots without
    /// grace.
    pub fn new(config: &LimiterConfig) -> Result<Self, PolicyError> {
        let pace = config.check()?;
        let grace = nanos(config.grace);
        let remembered = u128::from(pace.per) * u128::from(MAX_SLOTS) / u128::from(pace.rate);
        let remembered = u64::try_from(remembered).unwrap_or(u64::MAX);
        Ok(Self {
            pace,
            tolerance: pace.time(config.burst - 1),
            burst: config.burst,
            horizon: nanos(config.horizon).min(remembered.saturating_sub(grace)),
            grace,
            latest: 0,
            scheduled: 0,
            rounded: 0,
            queue_end: 0,
            spare: 0,
            reserved: VecDeque::new(),
            tickets: BTreeMap::new(),
            open: VecDeque::new(),
        })
    }

    /// Decides about an attempt at `now` by the caller with this key, at this cost (0 counts as 1).
    /// A key is a hash of the caller's identity; `None` is a caller without one.
    ///
    /// A ticket has the cost for which it was given. A caller that uses it at a lower cost releases
    /// the rest. A caller that comes at a higher cost gives up the ticket and is handled as
    /// without.
    pub fn admit(&mut self, now: Instant, key: Option<u64>, cost: u32) -> Verdict {
        let (now, cost) = (self.arrive(now), cost.max(1));
        let place = self.place(now, key, cost);
        let verdict = self.verdict(now, key, cost, &place);
        if matches!(
            place,
            Availability::Early(_) | Availability::Ended | Availability::Impossible
        ) {
            return verdict;
        }
        // Its ticket is used now, or given up.
        let left = match key.and_then(|key| self.tickets.remove(&key)) {
            Some(ticket) if matches!(place, Availability::Due) => ticket.cost - cost,
            Some(ticket) => ticket.cost,
            None => 0,
        };
        match (place, key) {
            (Availability::Open, _) => drop(self.open.drain(..cost as usize)),
            (Availability::LapsedSlots, _) => self.spare -= cost,
            (Availability::FreeSlot, _) => {
                if self.scheduled < now {
                    (self.scheduled, self.rounded) = (now, 0);
                }
                self.advance(cost);
            }
            (Availability::Full, Some(key)) => self.reserve(now, key, cost),
            (Availability::Full, None) => self.queue_unkeyed(now, cost),
            _ => {}
        }
        self.lapsed(left);
        verdict
    }

    /// The result that [`admit`](Self::admit) would have for this attempt now. Nothing is consumed,
    /// reserved or counted.
    ///
    /// ```
    /// use core::time::Duration;
    /// use relent_core::Instant;
    /// use relent_core::admission::{Limiter, LimiterConfig, Verdict};
    ///
    /// let config = LimiterConfig { burst: 1, ..LimiterConfig::new(10, Duration::from_secs(1)) };
    /// let mut limiter = Limiter::new(&config)?;
    /// let (now, admitted) = (Instant::ORIGIN, Verdict::Admitted { ticket: false });
    /// assert_eq!(limiter.peek(now, Some(1), 1), admitted);
    /// assert_eq!(limiter.admit(now, Some(2), 1), admitted, "it is still there");
    /// assert_eq!(limiter.peek(now, Some(1), 2), Verdict::Impossible, "above the burst of 1");
    /// # Ok::<(), relent_core::PolicyError>(())
    /// ```
    pub fn peek(&mut self, now: Instant, key: Option<u64>, cost: u32) -> Verdict {
        let (now, cost) = (self.arrive(now), cost.max(1));
        let place = self.place(now, key, cost);
        self.verdict(now, key, cost, &place)
    }

    /// Returns the quota of an admitted attempt of this cost that was not made, such as one that
    /// was shed behind the limiter. Like a lapsed slot, any caller may use it. A ticket that it had
    /// is used up.
    ///
    /// ```
    /// use core::time::Duration;
    /// use relent_core::Instant;
    /// use relent_core::admission::{Limiter, LimiterConfig, Verdict};
    ///
    /// let config = LimiterConfig { burst: 1, ..LimiterConfig::new(10, Duration::from_secs(1)) };
    /// let mut limiter = Limiter::new(&config)?;
    /// let (now, admitted) = (Instant::ORIGIN, Verdict::Admitted { ticket: false });
    /// assert_eq!(limiter.admit(now, Some(1), 1), admitted);
    /// limiter.give_back(now, 1);
    /// assert_eq!(limiter.admit(now, Some(2), 1), admitted);
    /// # Ok::<(), relent_core::PolicyError>(())
    /// ```
    pub fn give_back(&mut self, now: Instant, cost: u32) {
        self.arrive(now);
        self.lapsed(cost.max(1));
    }

    /// The remaining quota: the number of attempts that callers without a ticket can still make
    /// within this time.
    pub fn available(&mut self, now: Instant, within: Duration) -> u32 {
        let now = self.arrive(now);
        let from = self.scheduled.max(now);
        let to = now
            .saturating_add(nanos(within))
            .saturating_add(self.tolerance);
        let scheduled = match to.checked_sub(from) {
            Some(time) if self.scheduled < u64::MAX => self.pace.attempts(time).saturating_add(1),
            _ => 0,
        };
        u32::try_from(scheduled).map_or(u32::MAX, |scheduled| scheduled.saturating_add(self.spare))
    }

    /// The time until callers without a ticket can make this many attempts, if no other caller
    /// comes. Zero if they can be made now.
    pub fn until_available(&mut self, now: Instant, attempts: u32) -> Duration {
        let now = self.arrive(now);
        if attempts <= self.spare {
            return Duration::ZERO;
        }
        let last = self
            .time(attempts.saturating_sub(self.spare) - 1)
            .saturating_add(self.scheduled.max(now));
        Duration::from_nanos(last.saturating_sub(self.tolerance).saturating_sub(now))
    }

    /// The number of keys with a reserved slot, as of the latest attempt.
    #[must_use]
    pub fn tickets(&self) -> usize {
        self.tickets.len()
    }

    /// How long after its slot a ticket is valid, in nanoseconds.
    pub(crate) const fn grace(&self) -> u64 {
        self.grace
    }

    /// Advances the limiter to this time, which it returns; an earlier time than the latest counts
    /// as the latest.
    fn arrive(&mut self, now: Instant) -> u64 {
        self.latest = self.latest.max(now.as_nanos());
        self.lapse(self.latest);
        self.latest
    }

    fn place(&self, now: u64, key: Option<u64>, cost: u32) -> Availability {
        if cost > self.burst {
            return Availability::Impossible;
        }
        let ticket = key.and_then(|key| self.tickets.get(&key));
        match ticket {
            Some(ticket) if now < ticket.slot => return Availability::Early(ticket.slot),
            Some(ticket) if cost <= ticket.cost => return Availability::Due,
            Some(_) | None => {}
        }
        if self.scheduled == u64::MAX {
            return Availability::Ended;
        }
        // An open slot first, since it can lapse.
        let last_open = self.open.get(cost as usize - 1);
        if key.is_none() && last_open.is_some_and(|slot| *slot <= now) {
            return Availability::Open;
        }
        // The last one is kept for callers with a key, which cannot use open slots.
        let kept = u32::from(key.is_none() && self.burst > 1);
        if self.spare.saturating_sub(kept) >= cost {
            return Availability::LapsedSlots;
        }
        match self.free_slot_time(cost) <= now {
            true => Availability::FreeSlot,
            false => Availability::Full,
        }
    }

    fn verdict(&self, now: u64, key: Option<u64>, cost: u32, place: &Availability) -> Verdict {
        match place {
            Availability::Due => Verdict::Admitted { ticket: true },
            Availability::Open | Availability::LapsedSlots | Availability::FreeSlot => {
                Verdict::Admitted { ticket: false }
            }
            Availability::Early(slot) => refused(Refusal::Ticket, slot - now),
            Availability::Full => match key {
                Some(_) => self.reserved_slot(now, cost),
                None => self.queue_time(now, cost),
            },
            Availability::Ended => refused(Refusal::Shared, self.time(1)),
            Availability::Impossible => Verdict::Impossible,
        }
    }

    /// The next free slot.
    fn next(&self) -> u64 {
        self.free_slot_time(1)
    }

    /// The time at which the schedule has this many free slots; at most the burst.
    fn free_slot_time(&self, cost: u32) -> u64 {
        self.scheduled
            .saturating_sub(self.tolerance.saturating_sub(self.time(cost - 1)))
    }

    /// The time for this many attempts.
    fn time(&self, attempts: u32) -> u64 {
        self.pace.time(attempts)
    }

    /// Takes this many slots off the schedule.
    fn advance(&mut self, slots: u32) {
        self.scheduled = self.scheduled.saturating_add(self.time(slots));
        if self.pace.rest > 0 {
            // Once the rounding errors add up to a nanosecond, it is subtracted.
            let rate = u64::from(self.pace.rate);
            let now = (rate - u64::from(self.pace.rest) * u64::from(slots) % rate) % rate;
            let rounded = u64::from(self.rounded) + now;
            if rounded >= rate && self.scheduled < u64::MAX {
                self.scheduled -= 1;
            }
            self.rounded = (rounded % rate) as u32;
        }
    }

    /// Releases slots whose grace is over.
    fn lapse(&mut self, now: u64) {
        let grace = self.grace;
        let is_over = |slot: u64| slot.saturating_add(grace) < now;
        let mut lapsed: u32 = 0;
        while let Some((slot, key)) = pop_if(&mut self.reserved, |(slot, _)| is_over(*slot)) {
            // Otherwise it was used, and the key may have another slot by now.
            if let Some(ticket) = self.tickets.get(&key).filter(|ticket| ticket.slot == slot) {
                lapsed = lapsed.saturating_add(ticket.cost);
                self.tickets.remove(&key);
            }
        }
        while pop_if(&mut self.open, |slot| is_over(*slot)).is_some() {
            lapsed = lapsed.saturating_add(1);
        }
        self.lapsed(lapsed);
        if self.next() <= now {
            // The schedule itself then contains and bounds the rest of the burst.
            let spare = core::mem::take(&mut self.spare);
            self.scheduled = self.scheduled.saturating_sub(self.time(spare));
        }
    }

    /// Makes this many slots available to any caller.
    fn lapsed(&mut self, slots: u32) {
        self.spare = self.spare.saturating_add(slots).min(self.burst);
    }

    /// The number of slots left open before a reservation: as many as it takes itself while there
    /// is a queue.
    fn left_open(&self, cost: u32) -> u32 {
        // A queue time in the past has no waiter, so a large burst leaves no more slots open than
        // the horizon holds.
        let queue_end = self.queue_end.saturating_sub(self.next().max(self.latest));
        match queue_end {
            0 => 0,
            _ => u32::try_from(self.pace.attempts(queue_end - 1))
                .map_or(cost, |queue_end| queue_end.saturating_add(1).min(cost)),
        }
    }

    /// The result for a caller with a key: its slot, after the open ones.
    fn reserved_slot(&self, now: u64, cost: u32) -> Verdict {
        let free_slot_time = self.free_slot_time(cost);
        let slot = free_slot_time.saturating_add(self.time(self.left_open(cost)));
        match slot - now > self.horizon {
            true => refused(Refusal::Shared, free_slot_time - now),
            false => refused(Refusal::Ticket, slot - now),
        }
    }

    /// Reserves the slot that the key gets.
    fn reserve(&mut self, now: u64, key: u64, cost: u32) {
        let Verdict::Refused(Refusal::Ticket(delay)) = self.reserved_slot(now, cost) else {
            return;
        };
        let open = self.left_open(cost);
        for _ in 0..open {
            self.open.push_back(self.next());
            self.advance(1);
            // The queue has moved forward by the open slot and back by the reserved one.
            self.queue_end = self.queue_end.saturating_add(self.time(1));
        }
        self.advance(cost);
        let slot = now.saturating_add(nanos(delay));
        self.reserved.push_back((slot, key));
        self.tickets.insert(key, Ticket { slot, cost });
    }

    /// The result for a caller without a key: its time in the queue, or the end of the horizon if
    /// that is earlier.
    fn queue_time(&self, now: u64, cost: u32) -> Verdict {
        let free_slot_time = self.free_slot_time(cost);
        let place = self
            .queue_end
            .saturating_add(self.time(cost - 1))
            .max(free_slot_time);
        let place = match place - now > self.horizon {
            true => now.saturating_add(self.horizon).max(free_slot_time),
            false => place,
        };
        refused(Refusal::Shared, place - now)
    }

    /// Counts a caller without a key in the queue.
    fn queue_unkeyed(&mut self, now: u64, cost: u32) {
        let next = self.next();
        let place = self.queue_end.max(next);
        self.queue_end =
            match place.saturating_add(self.time(cost - 1)) > now.saturating_add(self.horizon) {
                // Beyond the horizon, too, it must be known that there is a queue.
                true => place.max(next.saturating_add(self.time(1))),
                false => place.saturating_add(self.time(cost)),
            };
    }
}

/// Removes the front of a queue if it satisfies the condition.
fn pop_if<T>(queue: &mut VecDeque<T>, is_such: impl FnOnce(&T) -> bool) -> Option<T> {
    queue.front().filter(|front| is_such(front))?;
    queue.pop_front()
}

fn refused(refusal: fn(Duration) -> Refusal, delay: u64) -> Verdict {
    Verdict::Refused(refusal(Duration::from_nanos(delay)))
}

#[cfg(all(test, not(loom)))]
mod tests;
