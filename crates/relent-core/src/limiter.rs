//! The limiter: the generic cell rate algorithm, with slots that are reserved for who was refused.
//!
//! # Why slots
//! A limiter that tells everybody the same Retry-After brings them back together: 1000 clients
//! against 100 per second that are told "10" need 990 s and 50 attempts each. With a slot for each
//! they are done in 9.9 s, with two.
//!
//! # Where a slot is
//! The schedule is a line of slots, one `interval` apart. Whoever has no ticket takes the next slot
//! that nobody has; if that lies in the future, it is reserved for the caller's key and the next
//! moves on. Each slot serves at most one attempt, whatever becomes of it:
//!
//! | slot | serves |
//! |---|---|
//! | reserved | its key, from the slot on until the grace is over |
//! | open | the first without a key who comes in that time |
//! | lapsed: neither came | anybody without a ticket, later. It is a token of the burst again: at most `burst` of them are kept, those beyond are lost as in any idle time |
//!
//! So no more than `burst + t/interval` attempts are admitted in the first t, and in any window of
//! length t at most those and the ones that come late: `burst + (t + grace)/interval + 1`. Attempts
//! that cost more than one have their slots up to a burst apart, and come late with all of them at
//! once: `2·burst + (t + grace)/interval`.
//!
//! # Who cannot hold a ticket
//! A caller without a key, or with a new one each time, must not wait behind reservations for ever;
//! nor may callers that ignore what they are told push aside those who do not.
//! - What is left of the schedule (lapsed slots, and every slot once nobody is ahead) is for whoever
//!   comes, with a key or without.
//! - A caller without a key that is refused is counted into a line behind the schedule. It holds
//!   nothing, but as long as there is such a line, every slot reserved is preceded by one that is
//!   left open. So those without a key get one slot for each time one was refused, up to every
//!   second one; and at least every second one is a ticket's, however often the others come.
//! - The next open slot may be as far away as the schedule reaches, for those who came before have
//!   their slots: at most the horizon.
//! - Callers in the line are told different times, one interval apart, so that they do not return
//!   together. It is no ticket: others may come first.
//!
//! A caller with a new key each time lets slots lapse, and is served by such. It cannot have an open
//! one: newcomers with keys, who can wait, would else take them from those who cannot. In return the
//! last lapsed slot is kept for a caller with a key (with a burst of 1, whoever comes first has it).
//! Apart from that, who comes more often is served more often: nothing tells one such caller from
//! many. So a key should be something that cannot be changed at will: with many keys one caller can
//! reserve the schedule up to the horizon. A caller without such a thing is one without a key.

mod keyed;

use alloc::collections::{BTreeMap, VecDeque};
use core::time::Duration;

use crate::error::{Found, PolicyError};
use crate::time::{Instant, nanos};

pub use keyed::KeyedLimiter;

/// The most slots that a schedule remembers, at about 100 bytes each.
const MOST_SLOTS: u64 = 1_000_000;

/// What a limiter admits.
///
/// ```
/// use core::time::Duration;
/// use relent_core::LimiterConfig;
///
/// // A hundred per second, and ten at once after a pause.
/// let config = LimiterConfig {
///     burst: 10,
///     ..LimiterConfig::new(100, Duration::from_secs(1))
/// };
/// assert_eq!(config.horizon, Duration::from_secs(300));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimiterConfig {
    /// Attempts in each [`per`](Self::per). At least 1.
    pub rate: u32,
    /// The time for that many attempts; more than zero.
    pub per: Duration,
    /// Attempts at once after a pause; at least 1. Default: what the rate admits in a second, and at least 2, so that a
    /// double click is not refused. With 1 none are closer than the interval.
    pub burst: u32,
    /// How far ahead slots are reserved; zero reserves none. Default 5 min, the longest hint that a
    /// policy obeys by default. Memory: about 100 bytes for each slot in it and the grace, of which there are at most a
    /// million: above some 3300 attempts per second slots are reserved less far ahead.
    pub horizon: Duration,
    /// How long after its slot a caller is still let in. Default 3 s: one for a header in whole
    /// seconds, one for the spread behind a ticket in whole seconds (design rule 4), one for timer and
    /// network.
    pub grace: Duration,
}

impl LimiterConfig {
    /// `rate` attempts in each `per`; as many at once as in a second, and at least 2; horizon 5 min, grace 3 s.
    ///
    /// ```
    /// use core::time::Duration;
    /// use relent_core::LimiterConfig;
    ///
    /// assert_eq!(LimiterConfig::new(10, Duration::from_secs(60)).burst, 2);
    /// assert_eq!(LimiterConfig::new(100, Duration::from_secs(1)).burst, 100);
    /// ```
    #[must_use]
    pub const fn new(rate: u32, per: Duration) -> Self {
        Self {
            rate,
            per,
            burst: in_a_second(rate, per),
            horizon: Duration::from_secs(300),
            grace: Duration::from_secs(3),
        }
    }

    /// What does not fit together.
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
const fn in_a_second(rate: u32, per: Duration) -> u32 {
    const LEAST: u32 = 2;
    let per = per.as_nanos();
    if per == 0 {
        return LEAST;
    }
    // No more than the rate, if the period is at least a second.
    let burst = rate as u128 * 1_000_000_000 / per;
    match burst {
        0..=1 => LEAST,
        2..=0xffff_ffff => burst as u32,
        _ => u32::MAX,
    }
}

/// A rate as whole numbers: so many attempts in so many nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Pace {
    rate: u32,
    per: u64,
    /// The time between two attempts, rounded down, and the rest of the division.
    interval: u64,
    rest: u32,
}

impl Pace {
    /// Of a rate and a period above 0.
    fn new(rate: u32, per: u64) -> Self {
        Self {
            rate,
            per,
            interval: per / u64::from(rate),
            rest: (per % u64::from(rate)) as u32,
        }
    }

    /// The time for so many attempts, rounded up; `None` if it is too long to be counted.
    fn checked_time(self, attempts: u32) -> Option<u64> {
        let whole = self.interval.checked_mul(u64::from(attempts))?;
        if self.rest == 0 {
            return Some(whole);
        }
        let rest = u64::from(self.rest) * u64::from(attempts);
        whole.checked_add(rest.div_ceil(u64::from(self.rate)))
    }

    /// The same, saturating.
    fn time(self, attempts: u32) -> u64 {
        self.checked_time(attempts).unwrap_or(u64::MAX)
    }

    /// How many attempts there are in this time, rounded down.
    fn attempts(self, time: u64) -> u64 {
        if self.rest == 0 {
            return time / self.interval;
        }
        let attempts = u128::from(time) * u128::from(self.rate) / u128::from(self.per);
        u64::try_from(attempts).unwrap_or(u64::MAX)
    }
}

/// How a limiter judges an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// The attempt may go on.
    Admitted {
        /// It came in the slot that was reserved for it: it was told to come, and is no retry by
        /// the caller's own choice.
        ticket: bool,
    },
    /// The attempt may not go on.
    Refused(Refusal),
    /// The attempt costs more than the burst, so that it can never go on.
    Impossible,
}

/// When a refused caller should come back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refusal {
    /// A ticket: after exactly this time a slot is reserved for the caller.
    Ticket(Duration),
    /// After about this time there may be room. Nothing is reserved.
    Shared(Duration),
}

impl Refusal {
    /// How long the caller should wait; more than zero.
    #[must_use]
    pub const fn delay(self) -> Duration {
        match self {
            Self::Ticket(delay) | Self::Shared(delay) => delay,
        }
    }

    /// For a header in whole milliseconds: rounded up, or the caller would be early.
    ///
    /// ```
    /// use core::time::Duration;
    /// use relent_core::Refusal;
    ///
    /// let ticket = Refusal::Ticket(Duration::from_micros(1500));
    /// assert_eq!((ticket.whole_millis(), ticket.whole_seconds()), (2, 1));
    /// ```
    #[must_use]
    pub const fn whole_millis(self) -> u64 {
        nanos(self.delay()).div_ceil(1_000_000)
    }

    /// For a header in whole seconds such as Retry-After: rounded up. (tower_governor cuts the
    /// fraction off and says 0.)
    #[must_use]
    pub const fn whole_seconds(self) -> u64 {
        nanos(self.delay()).div_ceil(1_000_000_000)
    }
}

/// Admits attempts at a rate, and tells each refused caller a slot of its own.
///
/// A slot is bound to the caller's key: whoever comes early hears of the same slot again; whoever
/// comes within the grace after it is let in; then it lapses. A key has one live slot. Beyond the
/// horizon, and without a key, a refusal is a plain Retry-After.
///
/// Callers that cannot hold a ticket get slots that lapse, those that nobody has, and one for each
/// time one of them was refused while others reserve, up to every second slot. At least every second
/// slot is for tickets, however often the others come.
///
/// In any window of length t it admits at most `burst + t/interval` attempts, and beyond them only
/// tickets that come late within the grace. Each call takes a time logarithmic in the slots
/// reserved. A driver shares one value behind a lock. Time that steps back stands still.
///
/// An attempt may cost more than one: then it counts as so many attempts at once, and a ticket is
/// for all of them. With several limits for one attempt, or a [`Shedder`](crate::Shedder) behind
/// them, see [`Intake`](crate::Intake), in which a refusal by one takes nothing from the others.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Instant, Limiter, LimiterConfig, Refusal, Verdict};
///
/// let config = LimiterConfig { burst: 1, ..LimiterConfig::new(10, Duration::from_secs(1)) };
/// let mut limiter = Limiter::new(&config)?;
/// let start = Instant::ORIGIN;
/// let (ann, bob) = (Some(1), Some(2));
/// assert_eq!(limiter.judge(start, ann, 1), Verdict::Admitted { ticket: false });
///
/// // Refused, with a slot of his own; early, he hears of the same again.
/// let ticket = Refusal::Ticket(Duration::from_millis(100));
/// assert_eq!(limiter.judge(start, bob, 1), Verdict::Refused(ticket));
/// assert_eq!(limiter.judge(start, bob, 1), Verdict::Refused(ticket));
///
/// let slot = start.saturating_add(ticket.delay());
/// assert_eq!(limiter.judge(slot, bob, 1), Verdict::Admitted { ticket: true });
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Limiter {
    /// Of slots; all times here are in nanoseconds.
    pace: Pace,
    /// How far the schedule may run ahead of time before attempts are refused: the burst.
    tolerance: u64,
    burst: u32,
    horizon: u64,
    grace: u64,
    /// The latest time seen.
    latest: u64,
    /// The theoretical arrival time of the generic cell rate algorithm: the next free slot and
    /// the tolerance. Rounded up to a nanosecond.
    scheduled: u64,
    /// By how much it is rounded up, in nanoseconds times the rate: so no rate is lower than it should be.
    rounded: u32,
    /// Up to here callers without a key were told to come. Beyond the next free slot: the line.
    line: u64,
    /// Lapsed slots that anybody without a ticket may have; at most the burst.
    spare: u32,
    /// Reserved slots with their keys by time, also those that were used, until they lapse.
    reserved: VecDeque<(u64, u64)>,
    /// The ticket of each key that has one.
    tickets: BTreeMap<u64, Ticket>,
    /// Open slots by time.
    open: VecDeque<u64>,
}

/// What is reserved for a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ticket {
    slot: u64,
    /// The attempts that it counts as; at most the burst.
    cost: u32,
}

/// What an attempt finds, before anything is taken for it.
enum Place {
    /// It comes within the grace of its ticket.
    Due,
    /// It comes before the slot of its ticket.
    Early(u64),
    /// Open slots, which it may have.
    Open,
    /// Lapsed slots, which it may have.
    Spare,
    /// Room on the schedule.
    Room,
    /// No room.
    Full,
    /// The end of time: the schedule cannot move on.
    Ended,
    /// A cost above the burst.
    Impossible,
}

impl Limiter {
    /// A limiter that has admitted nothing yet.
    ///
    /// # Errors
    /// A rate, period or burst of zero, a burst that takes centuries, and slots without grace.
    pub fn new(config: &LimiterConfig) -> Result<Self, PolicyError> {
        let pace = config.check()?;
        let grace = nanos(config.grace);
        let remembered = u128::from(pace.per) * u128::from(MOST_SLOTS) / u128::from(pace.rate);
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
            line: 0,
            spare: 0,
            reserved: VecDeque::new(),
            tickets: BTreeMap::new(),
            open: VecDeque::new(),
        })
    }

    /// Judges an attempt at `now` by the caller with this key, which counts as `cost` attempts. A key
    /// is a hash of whatever identifies the caller; `None` is one that cannot be told apart. A cost of 0
    /// counts as 1.
    ///
    /// A ticket is for the cost at which it was given. Whoever comes in its slot with a lower one
    /// leaves the rest to others; whoever comes with a higher one gives it up and is judged as without.
    pub fn judge(&mut self, now: Instant, key: Option<u64>, cost: u32) -> Verdict {
        let (now, cost) = (self.arrive(now), cost.max(1));
        let place = self.place(now, key, cost);
        let verdict = self.verdict(now, key, cost, &place);
        if matches!(place, Place::Early(_) | Place::Ended | Place::Impossible) {
            return verdict;
        }
        // What it holds is used now, or given up.
        let left = match key.and_then(|key| self.tickets.remove(&key)) {
            Some(ticket) if matches!(place, Place::Due) => ticket.cost - cost,
            Some(ticket) => ticket.cost,
            None => 0,
        };
        match (place, key) {
            (Place::Open, _) => drop(self.open.drain(..cost as usize)),
            (Place::Spare, _) => self.spare -= cost,
            (Place::Room, _) => {
                if self.scheduled < now {
                    (self.scheduled, self.rounded) = (now, 0);
                }
                self.advance(cost);
            }
            (Place::Full, Some(key)) => self.reserve(now, key, cost),
            (Place::Full, None) => self.line_up(now, cost),
            _ => {}
        }
        self.lapsed(left);
        verdict
    }

    /// How [`judge`](Self::judge) would judge the same attempt now. Nothing is taken, reserved or
    /// counted.
    ///
    /// ```
    /// use core::time::Duration;
    /// use relent_core::{Instant, Limiter, LimiterConfig, Verdict};
    ///
    /// let config = LimiterConfig { burst: 1, ..LimiterConfig::new(10, Duration::from_secs(1)) };
    /// let mut limiter = Limiter::new(&config)?;
    /// let (now, admitted) = (Instant::ORIGIN, Verdict::Admitted { ticket: false });
    /// assert_eq!(limiter.peek(now, Some(1), 1), admitted);
    /// assert_eq!(limiter.judge(now, Some(2), 1), admitted, "it is still there");
    /// assert_eq!(limiter.peek(now, Some(1), 2), Verdict::Impossible, "above the burst of 1");
    /// # Ok::<(), relent_core::PolicyError>(())
    /// ```
    pub fn peek(&mut self, now: Instant, key: Option<u64>, cost: u32) -> Verdict {
        let (now, cost) = (self.arrive(now), cost.max(1));
        let place = self.place(now, key, cost);
        self.verdict(now, key, cost, &place)
    }

    /// An admitted attempt that counted as `cost` was not made after all, as one that was shed behind the limiter: what
    /// was taken for it is anybody's, as a slot that lapses. A ticket that it had is used up.
    ///
    /// ```
    /// use core::time::Duration;
    /// use relent_core::{Instant, Limiter, LimiterConfig, Verdict};
    ///
    /// let config = LimiterConfig { burst: 1, ..LimiterConfig::new(10, Duration::from_secs(1)) };
    /// let mut limiter = Limiter::new(&config)?;
    /// let (now, admitted) = (Instant::ORIGIN, Verdict::Admitted { ticket: false });
    /// assert_eq!(limiter.judge(now, Some(1), 1), admitted);
    /// limiter.give_back(now, 1);
    /// assert_eq!(limiter.judge(now, Some(2), 1), admitted);
    /// # Ok::<(), relent_core::PolicyError>(())
    /// ```
    pub fn give_back(&mut self, now: Instant, cost: u32) {
        self.arrive(now);
        self.lapsed(cost.max(1));
    }

    /// The number of attempts that callers without a ticket can still make until so much later: the
    /// quota that is left.
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

    /// The time until that number of attempts by callers without a ticket can be made, if nobody else
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

    /// The number of keys that hold a slot, as of the latest attempt.
    #[must_use]
    pub fn tickets(&self) -> usize {
        self.tickets.len()
    }

    /// How long after its slot a ticket is kept, in nanoseconds.
    pub(crate) const fn grace(&self) -> u64 {
        self.grace
    }

    /// Brings the limiter to this time, which it returns; time that steps back stands still.
    fn arrive(&mut self, now: Instant) -> u64 {
        self.latest = self.latest.max(now.as_nanos());
        self.lapse(self.latest);
        self.latest
    }

    fn place(&self, now: u64, key: Option<u64>, cost: u32) -> Place {
        if cost > self.burst {
            return Place::Impossible;
        }
        let ticket = key.and_then(|key| self.tickets.get(&key));
        match ticket {
            Some(ticket) if now < ticket.slot => return Place::Early(ticket.slot),
            Some(ticket) if cost <= ticket.cost => return Place::Due,
            Some(_) | None => {}
        }
        if self.scheduled == u64::MAX {
            return Place::Ended;
        }
        // An open slot first, for that lapses.
        let last_open = self.open.get(cost as usize - 1);
        if key.is_none() && last_open.is_some_and(|slot| *slot <= now) {
            return Place::Open;
        }
        // The last one is kept for a caller with a key, who cannot have an open one.
        let kept = u32::from(key.is_none() && self.burst > 1);
        if self.spare.saturating_sub(kept) >= cost {
            return Place::Spare;
        }
        match self.room(cost) <= now {
            true => Place::Room,
            false => Place::Full,
        }
    }

    fn verdict(&self, now: u64, key: Option<u64>, cost: u32, place: &Place) -> Verdict {
        match place {
            Place::Due => Verdict::Admitted { ticket: true },
            Place::Open | Place::Spare | Place::Room => Verdict::Admitted { ticket: false },
            Place::Early(slot) => refused(Refusal::Ticket, slot - now),
            Place::Full => match key {
                Some(_) => self.reserved_slot(now, cost),
                None => self.told_time(now, cost),
            },
            Place::Ended => refused(Refusal::Shared, self.time(1)),
            Place::Impossible => Verdict::Impossible,
        }
    }

    /// The next slot that nobody has.
    fn next(&self) -> u64 {
        self.room(1)
    }

    /// When there is room for so many on the schedule; at most the burst.
    fn room(&self, cost: u32) -> u64 {
        self.scheduled
            .saturating_sub(self.tolerance.saturating_sub(self.time(cost - 1)))
    }

    /// The time for so many attempts.
    fn time(&self, attempts: u32) -> u64 {
        self.pace.time(attempts)
    }

    /// Takes so many slots off the schedule.
    fn advance(&mut self, slots: u32) {
        self.scheduled = self.scheduled.saturating_add(self.time(slots));
        if self.pace.rest > 0 {
            // What was rounded up before and now is taken off as soon as it is a nanosecond.
            let rate = u64::from(self.pace.rate);
            let now = (rate - u64::from(self.pace.rest) * u64::from(slots) % rate) % rate;
            let rounded = u64::from(self.rounded) + now;
            if rounded >= rate && self.scheduled < u64::MAX {
                self.scheduled -= 1;
            }
            self.rounded = (rounded % rate) as u32;
        }
    }

    /// Makes slots whose grace is over anybody's.
    fn lapse(&mut self, now: u64) {
        let grace = self.grace;
        let is_over = |slot: u64| slot.saturating_add(grace) < now;
        let mut lapsed: u32 = 0;
        while let Some((slot, key)) = pop_if(&mut self.reserved, |(slot, _)| is_over(*slot)) {
            // Otherwise it was used, and the key may have another by now.
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
            // The schedule itself holds what is left of the burst, and bounds it.
            let spare = core::mem::take(&mut self.spare);
            self.scheduled = self.scheduled.saturating_sub(self.time(spare));
        }
    }

    /// So many slots are anybody's.
    fn lapsed(&mut self, slots: u32) {
        self.spare = self.spare.saturating_add(slots).min(self.burst);
    }

    /// How many slots are left open before one that is reserved: as many as it takes itself, as long
    /// as there is a line.
    fn left_open(&self, cost: u32) -> u32 {
        // What is behind now waits for nobody: so a large burst leaves no more open than the horizon holds.
        let line = self.line.saturating_sub(self.next().max(self.latest));
        match line {
            0 => 0,
            _ => u32::try_from(self.pace.attempts(line - 1))
                .map_or(cost, |line| line.saturating_add(1).min(cost)),
        }
    }

    /// What a caller with a key is told: its slot, after the open ones.
    fn reserved_slot(&self, now: u64, cost: u32) -> Verdict {
        let room = self.room(cost);
        let slot = room.saturating_add(self.time(self.left_open(cost)));
        match slot - now > self.horizon {
            true => refused(Refusal::Shared, room - now),
            false => refused(Refusal::Ticket, slot - now),
        }
    }

    /// Reserves what the key is told.
    fn reserve(&mut self, now: u64, key: u64, cost: u32) {
        let Verdict::Refused(Refusal::Ticket(delay)) = self.reserved_slot(now, cost) else {
            return;
        };
        let open = self.left_open(cost);
        for _ in 0..open {
            self.open.push_back(self.next());
            self.advance(1);
            // The line has moved up by the open slot and back by the reserved one.
            self.line = self.line.saturating_add(self.time(1));
        }
        self.advance(cost);
        let slot = now.saturating_add(nanos(delay));
        self.reserved.push_back((slot, key));
        self.tickets.insert(key, Ticket { slot, cost });
    }

    /// What a caller without a key is told: the time of its place in the line, or of the end of the
    /// horizon if that is nearer.
    fn told_time(&self, now: u64, cost: u32) -> Verdict {
        let room = self.room(cost);
        let place = self.line.saturating_add(self.time(cost - 1)).max(room);
        let place = match place - now > self.horizon {
            true => now.saturating_add(self.horizon).max(room),
            false => place,
        };
        refused(Refusal::Shared, place - now)
    }

    /// Counts a caller without a key into the line.
    fn line_up(&mut self, now: u64, cost: u32) {
        let next = self.next();
        let place = self.line.max(next);
        self.line =
            match place.saturating_add(self.time(cost - 1)) > now.saturating_add(self.horizon) {
                // However far the schedule reaches: that somebody waits has to be known.
                true => place.max(next.saturating_add(self.time(1))),
                false => place.saturating_add(self.time(cost)),
            };
    }
}

/// Takes the front of a queue if it is such a one.
fn pop_if<T>(queue: &mut VecDeque<T>, is_such: impl FnOnce(&T) -> bool) -> Option<T> {
    queue.front().filter(|front| is_such(front))?;
    queue.pop_front()
}

fn refused(refusal: fn(Duration) -> Refusal, delay: u64) -> Verdict {
    Verdict::Refused(refusal(Duration::from_nanos(delay)))
}

#[cfg(all(test, not(loom)))]
#[path = "limiter_tests.rs"]
mod tests;
