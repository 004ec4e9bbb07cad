//! A client-side rate limit in attempts per second, fixed or adaptive.

mod cubic;

use crate::destination::attempt_outcome::AttemptOutcome;
use crate::policy::error::{Found, PolicyError};
use crate::time::Instant;
use cubic::Cubic;

/// The configuration of a destination's rate limit, for first attempts and retries.
///
/// ```
/// use relent_core::RateLimitConfig;
///
/// // A limit by contract.
/// let fixed = RateLimitConfig::new(100.0);
/// assert_eq!((fixed.limit, fixed.burst, fixed.adaptive), (Some(100.0), None, false));
/// // An unknown limit, which is found by adapting.
/// assert_eq!(RateLimitConfig::ADAPTIVE.limit, None);
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RateLimitConfig {
    /// Attempts per second of all callers together; from 0.00001, which is about one a day, to 1e9.
    /// `None` for no fixed limit, which requires [`adaptive`](Self::adaptive).
    pub limit: Option<f64>,
    /// The number of attempts that may start together after a pause, at least 1. `None`, the
    /// default, is the number of a tenth of a second, at least 1.
    pub burst: Option<u32>,
    /// Whether the limit adapts: it decreases after a throttled failure and then increases again,
    /// up to `limit` if set. Off by default.
    pub adaptive: bool,
}

impl RateLimitConfig {
    /// Adaptive, without a limit until the destination throttles.
    pub const ADAPTIVE: Self = Self {
        limit: None,
        burst: None,
        adaptive: true,
    };

    /// A fixed limit of this many attempts per second.
    #[must_use]
    pub const fn new(limit: f64) -> Self {
        Self {
            limit: Some(limit),
            burst: None,
            adaptive: false,
        }
    }

    pub(crate) const fn check(&self) -> Result<(), PolicyError> {
        match self.limit {
            // Written so that NaN fails.
            Some(limit) if !(limit >= 0.000_01 && limit <= 1e9) => {
                return Err(PolicyError::new(
                    "limit",
                    Found::Number(limit),
                    "attempts per second, from 0.00001 to 1000000000; for no limit, leave it out and set adaptive = true",
                ));
            }
            None if !self.adaptive => {
                return Err(PolicyError::new(
                    "limit",
                    Found::Nothing,
                    "a rate limit has a limit, or adapts, or both",
                ));
            }
            _ => {}
        }
        if let (Some(limit), Some(burst)) = (self.limit, self.burst)
            && burst as f64 / limit > MAX_AHEAD_NANOS as f64 / 1e9
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

/// The rate limit of one destination in one process: a token bucket. In no period are there more
/// slots than the rate allows plus one burst. [`Outbound`](crate::destination::Outbound) has the queue of
/// waiting requests.
///
/// # Adapting
/// This is the adaptive mode of the AWS SDKs, with the cubic growth of RFC 9438 and its constants
/// 0.7 and 0.4. A throttled failure reduces the measured rate of attempts to 0.7 of it. The rate
/// then returns to its previous value, slowly near it, and probes beyond. Unlike in the SDKs,
/// attempts that started before a reduction cause no other one (RFC 9002 §7.3.1): a burst of
/// rejections counts once. Tickets do not count, since they are a schedule already.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Instant, RateLimitConfig};
/// use relent_core::destination::RateLimit;
///
/// let config = RateLimitConfig { burst: Some(1), ..RateLimitConfig::new(10.0) };
/// let mut rate = RateLimit::new(&config)?;
/// let now = Instant::ORIGIN;
/// assert!(rate.take(now));
/// assert!(!rate.take(now));
/// let next = now.saturating_add(Duration::from_millis(100));
/// assert_eq!(rate.next_slot(now), next);
/// assert!(rate.take(next));
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Debug)]
pub struct RateLimit {
    config: RateLimitConfig,
    /// Nanoseconds between two slots; 0 while there is no limit.
    interval: u64,
    /// How far ahead of the schedule slots may be taken.
    ahead: u64,
    /// The time of the next slot of the schedule.
    due: u64,
    /// The time of the last taken slot, and its advance of the schedule.
    last: (u64, u64),
    cubic: Option<Cubic>,
}

impl RateLimit {
    /// Creates a full bucket.
    ///
    /// # Errors
    /// Invalid numbers, or neither a limit nor adaptation.
    pub fn new(config: &RateLimitConfig) -> Result<Self, PolicyError> {
        config.check()?;
        Ok(Self::from_checked(config))
    }

    pub(crate) fn from_checked(config: &RateLimitConfig) -> Self {
        let mut rate = Self {
            config: *config,
            interval: 0,
            ahead: 0,
            due: 0,
            last: (0, 0),
            cubic: config.adaptive.then(Cubic::new),
        };
        rate.pace(config.limit);
        rate
    }

    /// Applies a new configuration. An adaptive limit keeps its learned state. The remaining burst
    /// is kept up to the new burst size, and refills at the new rate.
    pub(crate) fn apply(&mut self, now: Instant, config: &RateLimitConfig) {
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
        let used = round_up((burst - left) * self.interval as f64);
        self.due = now.as_nanos().saturating_add(used);
        // The last slot can still be returned, at its new value.
        let (taken, moved) = old.last;
        self.last = (taken, if moved == 0 { 0 } else { self.interval });
    }

    /// The configuration.
    #[must_use]
    pub const fn config(&self) -> &RateLimitConfig {
        &self.config
    }

    /// The current limit in attempts per second; `None` while there is none.
    pub fn limit(&mut self, now: Instant) -> Option<f64> {
        self.adapt(now);
        (self.interval > 0).then(|| 1e9 / self.interval as f64)
    }

    /// The time of the next free slot: now or later.
    pub fn next_slot(&mut self, now: Instant) -> Instant {
        self.adapt(now);
        self.slot(now, 0, self.interval)
    }

    /// The time of the slot behind this many callers: at the current rate, and at best. A reduced
    /// rate returns to its previous value.
    pub fn slot_behind(&mut self, now: Instant, ahead: u64) -> (Instant, Instant) {
        self.adapt(now);
        let previous_rate = self.cubic.as_ref().and_then(Cubic::previous_rate);
        let best = previous_rate.map_or(self.interval, |rate| interval(rate).min(self.interval));
        (
            self.slot(now, ahead, self.interval),
            self.slot(now, ahead, best),
        )
    }

    /// Takes a slot now, if one is free.
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

    /// Returns the slot that was taken at this instant and not used. If another has been taken
    /// since, the slot is lost: otherwise two attempts would be too close.
    pub fn give_back(&mut self, taken: Instant) {
        let (last, moved) = self.last;
        if last == taken.as_nanos() {
            self.due = self.due.saturating_sub(moved);
            self.last.1 = 0;
        }
    }

    /// Whether it handles this outcome: the limit adapts, and the outcome [reduces
    /// it](AttemptOutcome::reduces_rate).
    #[must_use]
    pub const fn adapts_to(&self, outcome: &AttemptOutcome) -> bool {
        self.config.adaptive && outcome.reduces_rate
    }

    /// Reports that an attempt that started at `started` is over. No effect unless it
    /// [adapts](Self::adapts_to).
    pub fn on_end(&mut self, now: Instant, started: Instant, outcome: &AttemptOutcome) {
        if !self.adapts_to(outcome) {
            return;
        }
        self.adapt(now);
        let limit = (self.interval > 0).then(|| 1e9 / self.interval as f64);
        if let Some(cubic) = &mut self.cubic
            && cubic.cut(now, started, limit)
        {
            self.adapt(now);
            // The burst saved at the higher rate is discarded.
            let empty = now.as_nanos().saturating_add(self.ahead);
            self.due = self.due.max(empty.saturating_add(self.interval));
            self.last.1 = 0;
        }
    }

    /// Updates the adaptive rate to this time.
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
        self.ahead = ahead.min(MAX_AHEAD_NANOS);
    }

    /// The slot of a caller behind `before` others, at this interval.
    fn slot(&self, now: Instant, before: u64, interval: u64) -> Instant {
        let now = now.as_nanos();
        let due = self
            .due
            .max(now)
            .saturating_add(before.saturating_mul(interval));
        Instant::from_nanos(due.saturating_sub(self.ahead).max(now))
    }
}

/// The maximum burst in nanoseconds: 146 years. If it spanned the whole time line, every slot would
/// be free.
const MAX_AHEAD_NANOS: u64 = 1 << 62;

/// Rounded up, so that the rate never exceeds the limit.
fn interval(rate: f64) -> u64 {
    round_up(1e9 / rate)
}

/// Saturates.
fn round_up(nanos: f64) -> u64 {
    let whole = nanos as u64;
    whole.saturating_add(u64::from((whole as f64) < nanos))
}

#[cfg(test)]
mod tests;
