//! How many attempts per second a client makes at most, by itself (R4.7).

mod cubic;

use alloc::collections::BTreeMap;

use crate::error::{Found, PolicyError};
use crate::failure::{Failure, Hop, Kind, Scope};
use crate::hint::Audience;
use crate::time::Instant;
use cubic::Cubic;

/// How many attempts per second go to a destination at most, first ones and retries.
///
/// ```
/// use relent_core::RequestRateConfig;
///
/// // What a contract allows.
/// let fixed = RequestRateConfig::new(100.0);
/// assert_eq!((fixed.limit, fixed.burst, fixed.adapt), (Some(100.0), None, false));
/// // Nobody knows how much is allowed: it is found out.
/// assert_eq!(RequestRateConfig::ADAPTIVE.limit, None);
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RequestRateConfig {
    /// Attempts per second, of all callers together; from 0.00001, which is about one a day, to a
    /// thousand million. `None` for as many as the destination bears, which needs
    /// [`adapt`](Self::adapt).
    pub limit: Option<f64>,
    /// Attempts at once after a pause, at least 1. `None`, the default, for a tenth of a second's
    /// worth, at least 1.
    pub burst: Option<u32>,
    /// Whether the destination has a say: after a throttled failure fewer attempts are made, then more
    /// again, up to the limit if there is one. Off by default.
    pub adapt: bool,
}

impl RequestRateConfig {
    /// No limit until the destination throttles, and then what it bears.
    pub const ADAPTIVE: Self = Self {
        limit: None,
        burst: None,
        adapt: true,
    };

    /// At most so many attempts per second.
    #[must_use]
    pub const fn new(limit: f64) -> Self {
        Self {
            limit: Some(limit),
            burst: None,
            adapt: false,
        }
    }

    /// Whether the rate adapts to this failure: throttled as a caller of the destination, not for
    /// [one request](Scope::Request), and not told to come back in a slot of its own, which is a
    /// schedule already. Such a failure is no sign of overload for the
    /// [`Gate`](crate::Gate) of the same destination: one of them is enough to hold attempts back.
    #[must_use]
    pub fn heeds(&self, failure: &Failure) -> bool {
        let shared =
            failure.hint.delay_nanos().is_none() || failure.hint.audience == Audience::Shared;
        let here = failure.hop != Hop::Elsewhere && failure.scope == Scope::Destination;
        self.adapt && failure.kind == Kind::Throttled && shared && here
    }

    pub(crate) const fn check(&self) -> Result<(), PolicyError> {
        match self.limit {
            // Written so that NaN fails.
            Some(limit) if !(limit >= 0.000_01 && limit <= 1e9) => {
                return Err(PolicyError::new(
                    "limit",
                    Found::Number(limit),
                    "attempts per second, from 0.00001 to 1000000000; for no limit, leave it out and set adapt",
                ));
            }
            None if !self.adapt => {
                return Err(PolicyError::new(
                    "limit",
                    Found::Nothing,
                    "a request rate has a limit, or adapts, or both",
                ));
            }
            _ => {}
        }
        if let Some(0) = self.burst {
            return Err(PolicyError::new(
                "burst",
                Found::Count(0),
                "a burst is at least 1 attempt; leave it out for a tenth of a second's worth",
            ));
        }
        Ok(())
    }
}

/// Where a caller stands in the queue for the slots of a [`RequestRate`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place(u64);

/// Places of those who go before everybody else are below it.
const ORDINARY: u64 = 1 << 63;

/// What a caller is told that asks for a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// The slot is now: make the attempt.
    Now,
    /// It is queued here, until [`RequestRate::release`] names it, which is at this instant if nothing
    /// happens before.
    At(Place, Instant),
    /// Its slot would come after its limit, at this instant. It is not queued.
    TooLate(Instant),
}

/// The request rate of one destination in one process: a token bucket, and the callers that wait for
/// it in the order in which they came. A plain value that a driver keeps behind a lock.
///
/// Nobody overtakes, so none is starved, and whoever cannot be served within its time is told so at
/// once instead of waiting in vain. In no span of time are there more slots than the rate allows for
/// it, and a burst.
///
/// # Adapting
/// The AWS SDKs' adaptive mode with the cubic growth of RFC 9438, whose constants are 0.7 and 0.4: a
/// throttled failure cuts the rate at which attempts are being made to 0.7 of it. It then comes back
/// to what it was, slowly just there, and probes beyond. Unlike theirs, what was sent before a cut
/// does not cut again (RFC 9002 §7.3.1): a burst of refusals is one message. Tickets do not count,
/// since they are a schedule already.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Instant, RequestRate, RequestRateConfig, Slot};
///
/// let config = RequestRateConfig { burst: Some(1), ..RequestRateConfig::new(10.0) };
/// let mut rate = RequestRate::new(&config)?;
/// let now = Instant::ORIGIN;
/// assert_eq!(rate.ask(now, Instant::MAX, false), Slot::Now);
/// let next = now.saturating_add(Duration::from_millis(100));
/// let Slot::At(place, at) = rate.ask(now, Instant::MAX, false) else { unreachable!() };
/// assert_eq!(at, next);
/// assert_eq!(rate.release(now), None);
/// assert_eq!(rate.release(next), Some(place));
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Debug)]
pub struct RequestRate {
    config: RequestRateConfig,
    /// The time from one slot to the next in nanoseconds; 0 while there is no limit.
    interval: u64,
    /// How far ahead of the schedule slots may be taken.
    ahead: u64,
    /// When the next slot of the schedule is due.
    due: u64,
    /// When the last was taken.
    last: u64,
    /// Those who wait, and what their limits are.
    waiting: BTreeMap<Place, Instant>,
    /// The places that are given next.
    next: u64,
    next_before: u64,
    cubic: Option<Cubic>,
}

impl RequestRate {
    /// A full bucket, and nobody who waits.
    ///
    /// # Errors
    /// Numbers that make no sense, and neither a limit nor adapting.
    pub fn new(config: &RequestRateConfig) -> Result<Self, PolicyError> {
        config.check()?;
        Ok(Self::from_checked(config))
    }

    pub(crate) fn from_checked(config: &RequestRateConfig) -> Self {
        let mut rate = Self {
            config: *config,
            interval: 0,
            ahead: 0,
            due: 0,
            last: 0,
            waiting: BTreeMap::new(),
            next: ORDINARY,
            next_before: 0,
            cubic: config.adapt.then(Cubic::new),
        };
        rate.pace(config.limit);
        rate
    }

    /// What it was made of.
    #[must_use]
    pub const fn config(&self) -> &RequestRateConfig {
        &self.config
    }

    /// Attempts per second that may be made at the moment; `None` while there is no limit.
    pub fn limit(&mut self, now: Instant) -> Option<f64> {
        self.adapt(now);
        (self.interval > 0).then(|| 1e9 / self.interval as f64)
    }

    /// Callers that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// May an attempt be made now, or when? `until`: the last instant at which the caller could make
    /// use of a slot. `before`: whether it goes before all who wait, since it has waited already.
    pub fn ask(&mut self, now: Instant, until: Instant, before: bool) -> Slot {
        self.adapt(now);
        let ahead = if before {
            self.before()
        } else {
            self.waiting.len() as u64
        };
        if ahead == 0 && self.take(now) {
            return Slot::Now;
        }
        // A rate that was cut comes back: nobody is turned away for what may be over soon.
        let regained = self.cubic.as_ref().and_then(Cubic::regained);
        let best = regained.map_or(self.interval, |rate| interval(rate).min(self.interval));
        let earliest = self.slot(now, ahead, best);
        if earliest > until {
            return Slot::TooLate(self.slot(now, ahead, self.interval));
        }
        let counter = if before {
            &mut self.next_before
        } else {
            &mut self.next
        };
        let place = Place(*counter);
        *counter = counter.wrapping_add(1);
        self.waiting.insert(place, until);
        Slot::At(place, self.slot(now, ahead, self.interval))
    }

    /// Takes a slot if there is one now and nobody waits: for an attempt that is made now or never.
    pub fn try_now(&mut self, now: Instant) -> bool {
        self.adapt(now);
        self.waiting.is_empty() && self.take(now)
    }

    /// The next who has a slot now. Ask until there is none, and again at
    /// [`next_release`](Self::next_release). Whoever could not make use of it any more is passed over.
    pub fn release(&mut self, now: Instant) -> Option<Place> {
        self.adapt(now);
        while let Some(first) = self.waiting.first_entry() {
            if *first.get() < now {
                first.remove();
                continue;
            }
            let place = *first.key();
            if !self.take(now) {
                return None;
            }
            self.waiting.remove(&place);
            return Some(place);
        }
        None
    }

    /// The first of those who wait.
    #[must_use]
    pub fn first(&self) -> Option<Place> {
        self.waiting.keys().next().copied()
    }

    /// When the first of those who wait has a slot, if nothing happens before.
    pub fn next_release(&mut self, now: Instant) -> Option<Instant> {
        self.adapt(now);
        (!self.waiting.is_empty()).then(|| self.slot(now, 0, self.interval))
    }

    /// When the one who waits here has a slot, if nobody before it goes away.
    pub fn slot_of(&mut self, now: Instant, place: Place) -> Instant {
        self.adapt(now);
        let first = self.waiting.range(Place(ORDINARY)..).next();
        let ahead = match first {
            // Those who have gone away are counted: whoever is first is told the time exactly.
            Some((first, _)) if place.0 >= ORDINARY => {
                self.before() + (place.0 - first.0.min(place.0))
            }
            _ => self.waiting.range(..place).count() as u64,
        };
        self.slot(now, ahead, self.interval)
    }

    /// One who waits goes away. Does nothing about one who does not.
    pub fn forget(&mut self, place: Place) {
        self.waiting.remove(&place);
    }

    /// The slot that was taken at this instant is not used: it is somebody else's (design rule 12).
    /// When another has been taken since, it is lost: two attempts would come too close.
    pub fn give_back(&mut self, taken: Instant) {
        if self.last == taken.as_nanos() {
            self.due = self.due.saturating_sub(self.interval);
        }
    }

    /// An attempt that started at `started` failed. Does nothing unless it adapts.
    pub fn on_failure(&mut self, now: Instant, started: Instant, failure: &Failure) {
        if !self.config.heeds(failure) {
            return;
        }
        self.adapt(now);
        let limit = (self.interval > 0).then(|| 1e9 / self.interval as f64);
        if let Some(cubic) = &mut self.cubic
            && cubic.cut(now, started, limit)
        {
            self.adapt(now);
            // Nothing is left of what the higher rate had saved up.
            let empty = now.as_nanos().saturating_add(self.ahead);
            self.due = self.due.max(empty.saturating_add(self.interval));
        }
    }

    /// Those who wait before all others.
    fn before(&self) -> u64 {
        self.waiting.range(..Place(ORDINARY)).count() as u64
    }

    /// The rate follows the time.
    fn adapt(&mut self, now: Instant) {
        let Some(cubic) = &self.cubic else { return };
        if let Some(rate) = cubic.rate(now) {
            self.pace(Some(match self.config.limit {
                Some(limit) => rate.min(limit),
                None => rate,
            }));
        }
    }

    fn pace(&mut self, rate: Option<f64>) {
        let Some(rate) = rate else { return };
        self.interval = interval(rate);
        let burst = match self.config.burst {
            Some(burst) => u64::from(burst),
            None => (rate / 10.0) as u64,
        };
        self.ahead = self.interval.saturating_mul(burst.max(1) - 1);
    }

    /// Takes the slot that is now, if there is one.
    fn take(&mut self, now: Instant) -> bool {
        let free = self.interval == 0 || now.as_nanos() >= self.due.saturating_sub(self.ahead);
        if free {
            self.due = self.due.max(now.as_nanos()).saturating_add(self.interval);
            self.last = now.as_nanos();
            if let Some(cubic) = &mut self.cubic {
                cubic.on_attempt(now);
            }
        }
        free
    }

    /// The slot of a caller with so many before it, if they are this long apart.
    fn slot(&self, now: Instant, before: u64, interval: u64) -> Instant {
        let now = now.as_nanos();
        let due = self
            .due
            .max(now)
            .saturating_add(before.saturating_mul(interval));
        Instant::from_nanos(due.saturating_sub(self.ahead).max(now))
    }
}

/// Rounded up, so that the rate is never above what was asked for.
fn interval(rate: f64) -> u64 {
    libm::ceil(1e9 / rate) as u64
}

#[cfg(test)]
#[path = "request_rate_tests.rs"]
mod tests;
