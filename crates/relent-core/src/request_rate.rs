//! How many attempts per second a client makes at most, by itself (R4.7).

mod cubic;

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
        if let (Some(limit), Some(burst)) = (self.limit, self.burst)
            && burst as f64 / limit > MOST_AHEAD as f64 / 1e9
        {
            return Err(PolicyError::new(
                "burst",
                Found::Count(burst),
                "at this limit a burst of that size takes more than 146 years to come back, so there would be no \
                 limit: lower the burst",
            ));
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

/// The request rate of one destination in one process: a token bucket. In no span of time are there more
/// slots than the rate allows for it, and a burst. [`Outbound`](crate::Outbound) keeps the line of those
/// who wait for one.
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
/// use relent_core::{Instant, RequestRate, RequestRateConfig};
///
/// let config = RequestRateConfig { burst: Some(1), ..RequestRateConfig::new(10.0) };
/// let mut rate = RequestRate::new(&config)?;
/// let now = Instant::ORIGIN;
/// assert!(rate.take(now));
/// assert!(!rate.take(now));
/// let next = now.saturating_add(Duration::from_millis(100));
/// assert_eq!(rate.next_slot(now), next);
/// assert!(rate.take(next));
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
    /// When the last was taken, and what it moved the schedule by.
    last: (u64, u64),
    cubic: Option<Cubic>,
}

impl RequestRate {
    /// A full bucket.
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
            last: (0, 0),
            cubic: config.adapt.then(Cubic::new),
        };
        rate.pace(config.limit);
        rate
    }

    /// Goes by this from now on. It keeps what it has learnt if it goes on adapting. What is left of the
    /// burst is left, as far as the new burst has room for it, and comes back at the new rate.
    pub(crate) fn apply(&mut self, now: Instant, config: &RequestRateConfig) {
        if self.config == *config {
            return;
        }
        self.adapt(now);
        let old = core::mem::replace(self, Self::from_checked(config));
        if self.cubic.is_some() && old.cubic.is_some() {
            self.cubic = old.cubic;
            self.adapt(now);
        }
        if old.interval == 0 || self.interval == 0 {
            return;
        }
        let slots = |ahead: u64, interval: u64| ahead as f64 / interval as f64 + 1.0;
        let burst = slots(self.ahead, self.interval);
        let used = old.due.saturating_sub(now.as_nanos()) as f64 / old.interval as f64;
        let left = (slots(old.ahead, old.interval) - used).clamp(0.0, burst);
        let used = libm::ceil((burst - left) * self.interval as f64) as u64;
        self.due = now.as_nanos().saturating_add(used);
        // The last that was taken can be given back, for as much as it is worth now.
        let (taken, moved) = old.last;
        self.last = (taken, if moved == 0 { 0 } else { self.interval });
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

    /// When the next slot is free: now, or later.
    pub fn next_slot(&mut self, now: Instant) -> Instant {
        self.adapt(now);
        self.slot(now, 0, self.interval)
    }

    /// When somebody has a slot who lets this many others go first: at the rate of now, and at best. A
    /// rate that was cut comes back, to what it was.
    pub fn slot_behind(&mut self, now: Instant, ahead: u64) -> (Instant, Instant) {
        self.adapt(now);
        let regained = self.cubic.as_ref().and_then(Cubic::regained);
        let best = regained.map_or(self.interval, |rate| interval(rate).min(self.interval));
        (
            self.slot(now, ahead, self.interval),
            self.slot(now, ahead, best),
        )
    }

    /// Takes the slot that is now, if there is one.
    pub fn take(&mut self, now: Instant) -> bool {
        self.adapt(now);
        let due = self.due.max(now.as_nanos()).checked_add(self.interval);
        let on_time = now.as_nanos() >= self.due.saturating_sub(self.ahead);
        let free = self.interval == 0 || on_time && due.is_some();
        if free {
            let due = due.unwrap_or(u64::MAX);
            self.last = (now.as_nanos(), self.interval);
            self.due = due;
            if let Some(cubic) = &mut self.cubic {
                cubic.on_attempt(now);
            }
        }
        free
    }

    /// The slot that was taken at this instant is not used: it is somebody else's (design rule 12).
    /// When another has been taken since, it is lost: two attempts would come too close.
    pub fn give_back(&mut self, taken: Instant) {
        let (last, moved) = self.last;
        if last == taken.as_nanos() {
            self.due = self.due.saturating_sub(moved);
            self.last.1 = 0;
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
            self.last.1 = 0;
        }
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
        let ahead = self.interval.saturating_mul(burst.max(1) - 1);
        self.ahead = ahead.min(MOST_AHEAD);
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

/// The most that a burst is worth: 146 years. Where it filled the time line, every slot would be free.
const MOST_AHEAD: u64 = 1 << 62;

/// Rounded up, so that the rate is never above what was asked for.
fn interval(rate: f64) -> u64 {
    libm::ceil(1e9 / rate) as u64
}

#[cfg(test)]
#[path = "request_rate_tests.rs"]
mod tests;
