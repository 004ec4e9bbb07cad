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
//! length t at most those and the ones that come late: `burst + (t + grace)/interval + 1`.
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

use alloc::collections::{BTreeMap, VecDeque};
use core::time::Duration;

use crate::error::{Found, PolicyError};
use crate::time::{Instant, nanos};

/// The most slots that a schedule may have to remember.
const MOST_SLOTS: u64 = 10_000_000;

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
    /// The time for that many attempts. The interval between two is rounded up to a nanosecond.
    pub per: Duration,
    /// Attempts at once after a pause. Default 1: none are closer than the interval.
    pub burst: u32,
    /// How far ahead slots are reserved; zero reserves none. Default 5 min, the longest hint that a
    /// policy obeys by default. Memory: about 100 bytes for each slot in it.
    pub horizon: Duration,
    /// How long after its slot a caller is still let in. Default 3 s: one for a header in whole
    /// seconds, one for the spread behind a ticket in whole seconds (design rule 4), one for timer and
    /// network.
    pub grace: Duration,
}

impl LimiterConfig {
    /// `rate` attempts in each `per`, one at a time; horizon 5 min, grace 3 s.
    #[must_use]
    pub const fn new(rate: u32, per: Duration) -> Self {
        Self {
            rate,
            per,
            burst: 1,
            horizon: Duration::from_secs(300),
            grace: Duration::from_secs(3),
        }
    }

    /// The time between two attempts in nanoseconds, or what does not fit together.
    fn check(&self) -> Result<u64, PolicyError> {
        let per = nanos(self.per);
        if self.rate == 0 {
            return Err(PolicyError::new(
                "rate",
                Found::Count(0),
                "a limiter admits at least 1 attempt in its period; for fewer, make the period longer",
            ));
        }
        if per < u64::from(self.rate) {
            return Err(PolicyError::new(
                "per",
                Found::Duration(self.per),
                "a period has at least a nanosecond for each attempt: lower the rate",
            ));
        }
        let interval = per.div_ceil(u64::from(self.rate));
        let fills = interval.checked_mul(u64::from(self.burst));
        if self.burst == 0 || fills.is_none() {
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
        let slots = nanos(self.horizon).saturating_add(nanos(self.grace)) / interval;
        if !self.horizon.is_zero() && slots > MOST_SLOTS {
            return Err(PolicyError::new(
                "horizon",
                Found::Duration(self.horizon),
                "horizon and grace hold more than 10 million slots at this rate: shorten them",
            ));
        }
        Ok(interval)
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
/// ```
/// use core::time::Duration;
/// use relent_core::{Instant, Limiter, LimiterConfig, Refusal, Verdict};
///
/// let mut limiter = Limiter::new(&LimiterConfig::new(10, Duration::from_secs(1)))?;
/// let start = Instant::ORIGIN;
/// let (ann, bob) = (Some(1), Some(2));
/// assert_eq!(limiter.judge(start, ann), Verdict::Admitted { ticket: false });
///
/// // Refused, with a slot of his own; early, he hears of the same again.
/// let ticket = Refusal::Ticket(Duration::from_millis(100));
/// assert_eq!(limiter.judge(start, bob), Verdict::Refused(ticket));
/// assert_eq!(limiter.judge(start, bob), Verdict::Refused(ticket));
///
/// let slot = start.saturating_add(ticket.delay());
/// assert_eq!(limiter.judge(slot, bob), Verdict::Admitted { ticket: true });
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Limiter {
    /// Between two slots, in nanoseconds, as all times here.
    interval: u64,
    /// How far the schedule may run ahead of time before attempts are refused: the burst.
    tolerance: u64,
    burst: u32,
    horizon: u64,
    grace: u64,
    /// The latest time seen.
    latest: u64,
    /// The theoretical arrival time of the generic cell rate algorithm: the next free slot and
    /// the tolerance.
    scheduled: u64,
    /// Up to here callers without a key were told to come. Beyond the next free slot: the line.
    line: u64,
    /// Lapsed slots that anybody without a ticket may have; at most the burst.
    spare: u32,
    /// Reserved slots with their keys by time, also those that were used, until they lapse.
    reserved: VecDeque<(u64, u64)>,
    /// The slot of each key that has one.
    tickets: BTreeMap<u64, u64>,
    /// Open slots by time.
    open: VecDeque<u64>,
}

impl Limiter {
    /// A limiter that has admitted nothing yet.
    ///
    /// # Errors
    /// A rate or burst of zero, a rate above one per nanosecond, slots without grace, and more than
    /// ten million slots within horizon and grace.
    pub fn new(config: &LimiterConfig) -> Result<Self, PolicyError> {
        let interval = config.check()?;
        Ok(Self {
            interval,
            // Checked to fit.
            tolerance: interval * (u64::from(config.burst) - 1),
            burst: config.burst,
            horizon: nanos(config.horizon),
            grace: nanos(config.grace),
            latest: 0,
            scheduled: 0,
            line: 0,
            spare: 0,
            reserved: VecDeque::new(),
            tickets: BTreeMap::new(),
            open: VecDeque::new(),
        })
    }

    /// Judges an attempt at `now` by the caller with this key; `None` for one that cannot be told
    /// apart. The key is a hash of whatever identifies the caller.
    pub fn judge(&mut self, now: Instant, key: Option<u64>) -> Verdict {
        self.latest = self.latest.max(now.as_nanos());
        let now = self.latest;
        self.lapse(now);
        let slot = key.and_then(|key| Some((key, *self.tickets.get(&key)?)));
        if let Some((key, slot)) = slot {
            if now < slot {
                return refused(Refusal::Ticket, slot - now);
            }
            self.tickets.remove(&key);
            return Verdict::Admitted { ticket: true };
        }
        if self.scheduled == u64::MAX {
            // The end of time: the schedule cannot move on.
            return refused(Refusal::Shared, self.interval);
        }
        if self.take_free(now, key.is_none()) {
            return Verdict::Admitted { ticket: false };
        }
        match key {
            Some(key) => self.reserve(now, key),
            None => self.line_up(now),
        }
    }

    /// The number of keys that hold a slot, as of the latest attempt.
    #[must_use]
    pub fn tickets(&self) -> usize {
        self.tickets.len()
    }

    /// The next slot that nobody has.
    fn next(&self) -> u64 {
        self.scheduled.saturating_sub(self.tolerance)
    }

    /// Takes the next slot off the schedule.
    fn advance(&mut self) {
        self.scheduled = self.scheduled.saturating_add(self.interval);
    }

    /// Makes slots whose grace is over anybody's.
    fn lapse(&mut self, now: u64) {
        let grace = self.grace;
        let is_over = |slot: u64| slot.saturating_add(grace) < now;
        let mut lapsed: u32 = 0;
        while let Some((slot, key)) = pop_if(&mut self.reserved, |(slot, _)| is_over(*slot)) {
            // Otherwise it was used, and the key may have another by now.
            if self.tickets.get(&key) == Some(&slot) {
                self.tickets.remove(&key);
                lapsed = lapsed.saturating_add(1);
            }
        }
        while pop_if(&mut self.open, |slot| is_over(*slot)).is_some() {
            lapsed = lapsed.saturating_add(1);
        }
        self.spare = self.spare.saturating_add(lapsed).min(self.burst);
        if self.next() <= now {
            // The schedule itself holds what is left of the burst, and bounds it.
            let spare = u64::from(core::mem::take(&mut self.spare));
            self.scheduled = self.scheduled.saturating_sub(spare * self.interval);
        }
    }

    /// Takes a slot that is free at `now`, if there is one: an open one first, for that lapses.
    fn take_free(&mut self, now: u64, has_no_key: bool) -> bool {
        if has_no_key && pop_if(&mut self.open, |slot| *slot <= now).is_some() {
            return true;
        }
        // The last one is kept for a caller with a key, who cannot have an open one.
        let kept = u32::from(has_no_key && self.burst > 1);
        if self.spare > kept {
            self.spare -= 1;
            return true;
        }
        let free = self.next() <= now;
        if free {
            self.scheduled = self.scheduled.max(now);
            self.advance();
        }
        free
    }

    /// Reserves the next slot for the key, after an open one if there is a line.
    fn reserve(&mut self, now: u64, key: u64) -> Verdict {
        let next = self.next();
        let is_line = self.line > next;
        let slot = match is_line {
            true => next.saturating_add(self.interval),
            false => next,
        };
        if slot - now > self.horizon {
            return refused(Refusal::Shared, next - now);
        }
        if is_line {
            self.open.push_back(next);
            self.advance();
            // The line has moved up by the open slot and back by the reserved one.
            self.line = self.line.saturating_add(self.interval);
        }
        self.advance();
        self.reserved.push_back((slot, key));
        self.tickets.insert(key, slot);
        refused(Refusal::Ticket, slot - now)
    }

    /// Counts a caller without a key into the line, and tells it the time of its place there.
    fn line_up(&mut self, now: u64) -> Verdict {
        let next = self.next();
        let place = self.line.max(next);
        if place - now > self.horizon {
            // However far the schedule reaches: that somebody waits has to be known.
            self.line = place.max(next.saturating_add(self.interval));
            return refused(Refusal::Shared, self.horizon.max(next - now));
        }
        self.line = place.saturating_add(self.interval);
        refused(Refusal::Shared, place - now)
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
