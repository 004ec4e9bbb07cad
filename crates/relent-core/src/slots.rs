//! The slots of a server: who is served, who waits, and who is turned away.

use alloc::collections::BTreeMap;
use core::time::Duration;

pub use crate::concurrency::{Completion, Concurrency, ConcurrencyConfig, Started};

use crate::Criticality;
use crate::error::{Found, PolicyError};
use crate::intake::Rejected;
use crate::shedder::{Arrival, Shedder, ShedderConfig};
use crate::time::Instant;

/// How many are served at once, how long others wait, and when they are turned away.
///
/// # Default
/// A limit that is found out, a queue of 20 ms as [`ShedderConfig`] has it, with at most 1000 who wait, and none for more
/// than 1 s.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SlotsConfig {
    /// How many are served at once.
    pub concurrency: ConcurrencyConfig,
    /// How long the queue may be, by its delay, and when whoever is turned away is told not to come back.
    pub shedder: ShedderConfig,
    /// The most that wait; 0 for a server without a queue.
    pub queue: u32,
    /// The longest that anybody waits; more than zero.
    pub max_wait: Duration,
}

impl SlotsConfig {
    /// A limit that is found out, 20 ms, 1000, 1 s.
    pub const DEFAULT: Self = Self {
        concurrency: ConcurrencyConfig::DEFAULT,
        shedder: ShedderConfig::DEFAULT,
        queue: 1000,
        max_wait: Duration::from_secs(1),
    };
}

impl Default for SlotsConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A request that is served: it holds a slot until [`Slots::end`] or [`Slots::give_back`].
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a slot that is not given back is lost for the server"]
pub struct Slot(Started);

/// A place in the line: who waits for less important requests is behind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueuePlace {
    class: Criticality,
    is_retry: bool,
    number: u64,
}

/// A request that is not turned away when it arrives.
#[derive(PartialEq, Eq, Debug)]
pub enum Placement {
    /// It is served.
    Start(Slot),
    /// It waits for its [turn](Slots::next), until this time at the latest, when it has to
    /// [leave](Slots::leave).
    Wait(QueuePlace, Instant),
}

/// What becomes of a request that has waited.
#[derive(PartialEq, Eq, Debug)]
pub enum Turn {
    /// It is served.
    Start(Slot),
    /// It is turned away.
    Refused(Rejected),
}

/// One that waits.
#[derive(Debug)]
struct Waiter<W> {
    waiter: W,
    arrival: Arrival,
    until: Instant,
    /// Whether its caller waits no longer than that.
    is_deadline: bool,
}

/// The slots of a server: who is served, who waits, and who is turned away.
///
/// - As many are served at once as [`Concurrency`] finds that the server can.
/// - Others wait, as long as a [`Shedder`] finds the queue short enough: one for each [`Criticality`], which
///   sees those who wait before a request of its class. So what matters less is turned away first, and of one
///   class a retry before a first attempt. When the line is full the last of it makes room.
/// - What matters most goes first; of one class first attempts before retries, and each in its order.
/// - Nobody waits past the caller's deadline or [`max_wait`](SlotsConfig::max_wait), and what comes past its deadline is not begun.
///
/// `W` is what a driver reaches a waiter by. A driver shares one value behind a lock. After each call of
/// [`enter`](Self::enter), [`end`](Self::end), [`give_back`](Self::give_back) and [`leave`](Self::leave) it calls [`next`](Self::next) until
/// there is none, before it gives the lock back: then whoever waits, waits for a slot that somebody holds.
/// Time that steps back stands still.
///
/// ```
/// use core::time::Duration;
/// use relent_core::slots::{ConcurrencyConfig, Completion, Placement, Slots, SlotsConfig, Turn};
/// use relent_core::{Arrival, Criticality, Instant};
///
/// let config = SlotsConfig { concurrency: ConcurrencyConfig::fixed(1), ..SlotsConfig::DEFAULT };
/// let mut slots = Slots::new(&config)?;
/// let (now, first) = (Instant::ORIGIN, Arrival::FIRST);
/// let served = slots.enter(now, first, Criticality::Critical, || "never waits");
/// let Ok(Placement::Start(slot)) = served else { unreachable!() };
/// for (name, class) in [("batch", Criticality::Sheddable), ("user", Criticality::Critical)] {
///     assert!(matches!(slots.enter(now, first, class, || name), Ok(Placement::Wait(..))));
/// }
/// assert_eq!(slots.next(now), None);
/// slots.end(now, slot, Completion::Served);
/// assert!(matches!(slots.next(now), Some(("user", Turn::Start(_)))));
/// assert_eq!(slots.next(now), None);
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Debug)]
pub struct Slots<W> {
    concurrency: Concurrency,
    /// One for each class.
    shedders: [Shedder; Criticality::ALL.len()],
    in_flight: u32,
    line: BTreeMap<QueuePlace, Waiter<W>>,
    /// How many of each class wait.
    waiting: [u32; Criticality::ALL.len()],
    queue: u32,
    max_wait: Duration,
    entered: u64,
}

impl<W> Slots<W> {
    /// Slots that nobody holds.
    ///
    /// # Errors
    /// What [`Concurrency::new`] and [`Shedder::new`] refuse, and a longest wait of zero.
    pub fn new(config: &SlotsConfig) -> Result<Self, PolicyError> {
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
            line: BTreeMap::new(),
            waiting: [0; Criticality::ALL.len()],
            queue: config.queue,
            max_wait: config.max_wait,
            entered: 0,
        })
    }

    /// A request arrives at `now`. What `arrival` says of the queue and of what is in flight is not looked at.
    /// `waiter` is called if it has to wait.
    ///
    /// # Errors
    /// [`Rejected::Expired`] or [`Rejected::Shed`] if it is turned away.
    pub fn enter(
        &mut self,
        now: Instant,
        mut arrival: Arrival,
        class: Criticality,
        waiter: impl FnOnce() -> W,
    ) -> Result<Placement, Rejected> {
        if arrival.remaining.is_some_and(|left| left.is_zero()) {
            return Err(Rejected::Expired);
        }
        let starts = self.line.is_empty() && self.in_flight < self.concurrency.limit();
        arrival.queued = if starts { 0 } else { self.ahead(class) + 1 };
        arrival.in_flight = self.in_flight.saturating_add(self.waiting());
        let shedder = &mut self.shedders[class as usize];
        shedder.admit(now, &arrival).map_err(Rejected::Shed)?;
        if starts {
            return Ok(Placement::Start(self.start(now)));
        }
        let is_retry = arrival.attempt > 1;
        let place = QueuePlace {
            class,
            is_retry,
            number: self.entered,
        };
        // Nobody waits behind it: it would be the one who makes room.
        let is_last = self
            .line
            .last_key_value()
            .is_none_or(|(last, _)| *last < place);
        if self.waiting() >= self.queue && is_last {
            let shedder = &mut self.shedders[class as usize];
            return Err(Rejected::Shed(shedder.turn_away(now, &arrival)));
        }
        self.entered += 1;
        let wait = arrival.remaining.unwrap_or(Duration::MAX);
        let until = now.saturating_add(wait.min(self.max_wait));
        let waiter = Waiter {
            waiter: waiter(),
            arrival,
            until,
            is_deadline: wait <= self.max_wait,
        };
        self.line.insert(place, waiter);
        self.waiting[class as usize] += 1;
        Ok(Placement::Wait(place, until))
    }

    /// The next waiter who is told something at `now`, and what; `None` once all others have to wait on.
    pub fn next(&mut self, now: Instant) -> Option<(W, Turn)> {
        if self.waiting() > self.queue {
            let (last, _) = self.line.last_key_value()?;
            let (waiter, rejected) = self.remove(now, *last)?;
            return Some((waiter, Turn::Refused(rejected)));
        }
        let (first, waiter) = self.line.first_key_value()?;
        let (first, is_late) = (*first, waiter.until <= now);
        if !is_late && self.in_flight >= self.concurrency.limit() {
            return None;
        }
        let (waiter, rejected) = self.remove(now, first)?;
        Some(match is_late {
            true => (waiter, Turn::Refused(rejected)),
            false => (waiter, Turn::Start(self.start(now))),
        })
    }

    /// A waiter goes away, because its caller does or its time is over; what its caller is told in the second case.
    /// `None` if its turn has come before.
    pub fn leave(&mut self, now: Instant, place: QueuePlace) -> Option<Rejected> {
        self.remove(now, place).map(|(_, rejected)| rejected)
    }

    /// A request has been served, and its slot is free.
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
            shedder.on_done(now, ahead);
        }
    }

    /// A slot is given back unused: its caller went away before the service began, or what it does needs none.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "a slot is given back only once"
    )]
    pub fn give_back(&mut self, now: Instant, slot: Slot) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.concurrency.on_end(now, slot.0, Completion::Failed);
    }

    /// How many are served now.
    #[must_use]
    pub const fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// How many may be served at once now.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.concurrency.limit()
    }

    /// How many wait now.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        // Never more than the queue and one.
        self.line.len() as u32
    }

    fn start(&mut self, now: Instant) -> Slot {
        self.in_flight += 1;
        Slot(self.concurrency.on_start(now, self.in_flight))
    }

    /// How many wait who matter as much as this class, or more.
    fn ahead(&self, class: Criticality) -> u32 {
        self.waiting[..=class as usize].iter().sum()
    }

    /// Takes one out of the line; what it is told if it is turned away.
    fn remove(&mut self, now: Instant, place: QueuePlace) -> Option<(W, Rejected)> {
        let Waiter {
            waiter,
            arrival,
            until,
            is_deadline,
        } = self.line.remove(&place)?;
        self.waiting[place.class as usize] -= 1;
        let rejected = if is_deadline && until <= now {
            Rejected::Expired
        } else {
            let shedder = &mut self.shedders[place.class as usize];
            Rejected::Shed(shedder.turn_away(now, &arrival))
        };
        Some((waiter, rejected))
    }
}

#[cfg(all(test, not(loom)))]
#[path = "slots_tests.rs"]
mod tests;
