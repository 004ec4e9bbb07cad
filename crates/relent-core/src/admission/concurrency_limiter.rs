//! A server-side concurrency limiter with a bounded priority queue.

use alloc::collections::BTreeMap;
use core::time::Duration;

use crate::Criticality;
use crate::admission::adaptive_limit::{Completion, Concurrency, ConcurrencyConfig, Started};
use crate::admission::controller::Rejected;
use crate::admission::load_shedder::{Arrival, Shedder, ShedderConfig};
use crate::policy::error::{Found, PolicyError};
use crate::time::Instant;

/// The configuration of [`ConcurrencyLimiter`].
///
/// # Default
/// An adaptive limit; a queue delay of 20 ms as in [`ShedderConfig`]; at most 1000 waiting
/// requests, none for more than 1 s.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ConcurrencyLimiterConfig {
    /// The limit of concurrent requests.
    pub concurrency: ConcurrencyConfig,
    /// The limit of the queue delay, and when rejections ask the caller not to retry.
    pub shedder: ShedderConfig,
    /// The maximum number of waiting requests; 0 for a server without a queue.
    pub queue: u32,
    /// The maximum wait; more than zero.
    pub max_wait: Duration,
}

impl ConcurrencyLimiterConfig {
    /// An adaptive limit, 20 ms, 1000 requests, 1 s.
    pub const DEFAULT: Self = Self {
        concurrency: ConcurrencyConfig::DEFAULT,
        shedder: ShedderConfig::DEFAULT,
        queue: 1000,
        max_wait: Duration::from_secs(1),
    };
}

impl Default for ConcurrencyLimiterConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The slot of a request that is being served, until [`ConcurrencyLimiter::end`] or [`ConcurrencyLimiter::give_back`].
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a slot that is not given back is lost for the server"]
pub struct Slot(Started);

/// A position in the queue, ordered by importance, then first attempts before retries, then
/// arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueuePosition {
    class: Criticality,
    is_retry: bool,
    number: u64,
}

/// The result for a request that is not rejected on arrival.
#[derive(PartialEq, Eq, Debug)]
pub enum Enqueued {
    /// It is served.
    Start(Slot),
    /// It waits for its [turn](ConcurrencyLimiter::next), until this time at the latest; then it must
    /// [leave](ConcurrencyLimiter::leave).
    Wait(QueuePosition, Instant),
}

/// The result for a request that has waited.
#[derive(PartialEq, Eq, Debug)]
pub enum Dequeued {
    /// It is served.
    Start(Slot),
    /// It is rejected.
    Refused(Rejected),
}

/// A waiting request.
#[derive(Debug)]
struct Waiter<W> {
    waiter: W,
    arrival: Arrival,
    until: Instant,
    /// Whether `until` is the caller's deadline.
    is_deadline: bool,
}

/// A concurrency limiter with a bounded priority queue.
///
/// - [`Concurrency`] finds how many requests are served concurrently.
/// - Other requests wait while a [`Shedder`] finds the queue short enough. There is one for each
///   [`Criticality`], which counts the requests ahead of its class. Less important requests are
///   thus rejected first, and within a class retries before first attempts. If the queue is full,
///   its last request is rejected.
/// - The most important request is served first; within a class first attempts before retries, each
///   in order of arrival.
/// - No request waits past its caller's deadline or [`max_wait`](ConcurrencyLimiterConfig::max_wait), and none
///   starts after its deadline.
///
/// `W` identifies a waiter for the driver. A driver shares one value behind a lock. After each call
/// of [`enter`](Self::enter), [`end`](Self::end), [`give_back`](Self::give_back) and
/// [`leave`](Self::leave) it calls [`next`](Self::next) until that returns `None`, before it
/// releases the lock. Then every waiter waits for a slot that is in use. A time before the latest
/// one counts as the latest.
///
/// ```
/// use core::time::Duration;
/// use relent_core::admission::{Arrival, Completion, ConcurrencyConfig, ConcurrencyLimiter, ConcurrencyLimiterConfig, Dequeued, Enqueued};
/// use relent_core::{Criticality, Instant};
///
/// let config = ConcurrencyLimiterConfig { concurrency: ConcurrencyConfig::fixed(1), ..ConcurrencyLimiterConfig::DEFAULT };
/// let mut slots = ConcurrencyLimiter::new(&config)?;
/// let (now, first) = (Instant::ORIGIN, Arrival::FIRST);
/// let served = slots.enter(now, first, Criticality::Critical, || "never waits");
/// let Ok(Enqueued::Start(slot)) = served else { unreachable!() };
/// for (name, class) in [("batch", Criticality::Sheddable), ("user", Criticality::Critical)] {
///     assert!(matches!(slots.enter(now, first, class, || name), Ok(Enqueued::Wait(..))));
/// }
/// assert_eq!(slots.next(now), None);
/// slots.end(now, slot, Completion::Served);
/// assert!(matches!(slots.next(now), Some(("user", Dequeued::Start(_)))));
/// assert_eq!(slots.next(now), None);
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Debug)]
pub struct ConcurrencyLimiter<W> {
    concurrency: Concurrency,
    /// One for each class.
    shedders: [Shedder; Criticality::ALL.len()],
    in_flight: u32,
    waiters: BTreeMap<QueuePosition, Waiter<W>>,
    /// The number of waiting requests of each class.
    waiting: [u32; Criticality::ALL.len()],
    queue: u32,
    max_wait: Duration,
    next_number: u64,
}

impl<W> ConcurrencyLimiter<W> {
    /// Creates a limiter without requests.
    ///
    /// # Errors
    /// The errors of [`Concurrency::new`] and [`Shedder::new`], and a maximum wait of zero.
    pub fn new(config: &ConcurrencyLimiterConfig) -> Result<Self, PolicyError> {
        if config.max_wait.is_zero() {
            return Err(PolicyError::new(
                "max_wait",
                Found::Duration(config.max_wait),
                "a time above 0; a server in which nobody waits has a queue of 0",
            ));
        }
        let shedder = Shedder::new(&config.shedder)?;
        Ok(Self {
            concurrency: Concurrency::new(&config.concurrency)?,
            shedders: core::array::from_fn(|_| shedder.clone()),
            in_flight: 0,
            waiters: BTreeMap::new(),
            waiting: [0; Criticality::ALL.len()],
            queue: config.queue,
            max_wait: config.max_wait,
            next_number: 0,
        })
    }

    /// Handles a request that arrives at `now`. Ignores the queue and in-flight counts of
    /// `arrival`. Calls `waiter` if the request must wait.
    ///
    /// # Errors
    /// [`Rejected::Expired`] or [`Rejected::Shed`] if it is rejected.
    pub fn enter(
        &mut self,
        now: Instant,
        mut arrival: Arrival,
        class: Criticality,
        waiter: impl FnOnce() -> W,
    ) -> Result<Enqueued, Rejected> {
        if arrival.remaining.is_some_and(|left| left.is_zero()) {
            return Err(Rejected::Expired);
        }
        let starts = self.waiters.is_empty() && self.in_flight < self.concurrency.limit();
        arrival.queued = if starts { 0 } else { self.ahead(class) + 1 };
        arrival.in_flight = self.in_flight.saturating_add(self.waiting());
        let shedder = &mut self.shedders[class as usize];
        shedder.admit(now, &arrival).map_err(Rejected::Shed)?;
        if starts {
            return Ok(Enqueued::Start(self.start(now)));
        }
        let is_retry = arrival.attempt > 1;
        let place = QueuePosition {
            class,
            is_retry,
            number: self.next_number,
        };
        // It would be the last in the queue, so it is the one to reject.
        let is_last = self
            .waiters
            .last_key_value()
            .is_none_or(|(last, _)| *last < place);
        if self.waiting() >= self.queue && is_last {
            let shedder = &mut self.shedders[class as usize];
            return Err(Rejected::Shed(shedder.reject(now, &arrival)));
        }
        self.next_number += 1;
        let wait = arrival.remaining.unwrap_or(Duration::MAX);
        let until = now.saturating_add(wait.min(self.max_wait));
        let waiter = Waiter {
            waiter: waiter(),
            arrival,
            until,
            is_deadline: wait <= self.max_wait,
        };
        self.waiters.insert(place, waiter);
        self.waiting[class as usize] += 1;
        Ok(Enqueued::Wait(place, until))
    }

    /// The next waiter to notify at `now`, with its result; `None` once all others must keep
    /// waiting.
    pub fn next(&mut self, now: Instant) -> Option<(W, Dequeued)> {
        if self.waiting() > self.queue {
            let (last, _) = self.waiters.last_key_value()?;
            let (waiter, rejected) = self.remove(now, *last)?;
            return Some((waiter, Dequeued::Refused(rejected)));
        }
        let (first, waiter) = self.waiters.first_key_value()?;
        let (first, is_late) = (*first, waiter.until <= now);
        if !is_late && self.in_flight >= self.concurrency.limit() {
            return None;
        }
        let (waiter, rejected) = self.remove(now, first)?;
        Some(match is_late {
            true => (waiter, Dequeued::Refused(rejected)),
            false => (waiter, Dequeued::Start(self.start(now))),
        })
    }

    /// Removes a waiter because its caller disconnected or its time is over; returns the response
    /// for the second case. `None` if it has had its turn already.
    pub fn leave(&mut self, now: Instant, place: QueuePosition) -> Option<Rejected> {
        self.remove(now, place).map(|(_, rejected)| rejected)
    }

    /// Reports that a request has been served; frees its slot.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "a slot is given back only once"
    )]
    pub fn end(&mut self, now: Instant, slot: Slot, ended: Completion) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.concurrency.on_end(now, slot.0, ended);
        let mut ahead = 0;
        for (shedder, waiting) in self.shedders.iter_mut().zip(self.waiting) {
            ahead += waiting;
            shedder.on_service_end(now, ahead);
        }
    }

    /// Returns an unused slot: the caller disconnected before the service began, or the request
    /// needs none.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "a slot is given back only once"
    )]
    pub fn give_back(&mut self, now: Instant, slot: Slot) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.concurrency.on_end(now, slot.0, Completion::Failed);
    }

    /// The number of requests being served.
    #[must_use]
    pub const fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// The current limit of concurrent requests.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.concurrency.limit()
    }

    /// The number of waiting requests.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        // At most the queue size plus one.
        self.waiters.len() as u32
    }

    fn start(&mut self, now: Instant) -> Slot {
        self.in_flight += 1;
        Slot(self.concurrency.on_start(now, self.in_flight))
    }

    /// The number of waiting requests that are at least as important as this class.
    fn ahead(&self, class: Criticality) -> u32 {
        self.waiting[..=class as usize].iter().sum()
    }

    /// Removes a request from the queue; returns the response in case it is rejected.
    fn remove(&mut self, now: Instant, place: QueuePosition) -> Option<(W, Rejected)> {
        let Waiter {
            waiter,
            arrival,
            until,
            is_deadline,
        } = self.waiters.remove(&place)?;
        self.waiting[place.class as usize] -= 1;
        let rejected = if is_deadline && until <= now {
            Rejected::Expired
        } else {
            let shedder = &mut self.shedders[place.class as usize];
            Rejected::Shed(shedder.reject(now, &arrival))
        };
        Some((waiter, rejected))
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
