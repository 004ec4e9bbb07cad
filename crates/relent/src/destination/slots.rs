//! The request rate of a destination, and those who wait for their slots.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use relent_core::{Failure, Instant, Place, RequestRate, RequestRateConfig, Slot};

pub(super) struct Slots {
    config: RequestRateConfig,
    queue: Mutex<Queue>,
}

struct Queue {
    rate: RequestRate,
    waiting: HashMap<Place, Waiting>,
}

#[derive(Default)]
struct Waiting {
    waker: Option<Waker>,
    /// When its slot was taken for it.
    taken: Option<Instant>,
}

/// Whether a caller that waits for its slot has it.
pub(crate) enum SlotTurn {
    /// It was taken for it at this instant.
    Go(Instant),
    /// Not before it is woken, or this instant.
    Wait(Instant),
}

impl Slots {
    pub(super) fn new(rate: RequestRate) -> Self {
        Self {
            config: *rate.config(),
            queue: Mutex::new(Queue {
                rate,
                waiting: HashMap::new(),
            }),
        }
    }

    fn locked(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn waiting(&self) -> usize {
        self.locked().waiting.len()
    }

    #[cfg(feature = "metrics")]
    pub(super) fn limit(&self, now: Instant) -> Option<f64> {
        self.locked().rate.limit(now)
    }

    pub(super) fn ask(&self, now: Instant, until: Instant, before: bool) -> Slot {
        let mut queue = self.locked();
        queue.release(now);
        let slot = queue.rate.ask(now, until, before);
        if let Slot::At(place, _) = slot {
            queue.waiting.insert(place, Waiting::default());
            if before {
                // The one who was first may have to wait longer, and learns it when it looks.
                queue.wake_first();
            }
        }
        slot
    }

    /// Whether the one who waits at this place may go; if not, `waker` is woken when it may.
    pub(super) fn turn(&self, now: Instant, place: Place, waker: Option<&Waker>) -> SlotTurn {
        let mut queue = self.locked();
        queue.release(now);
        let slot = queue.rate.slot_of(now, place);
        let Some(own) = queue.waiting.get_mut(&place) else {
            return SlotTurn::Wait(slot);
        };
        let Some(taken) = own.taken else {
            own.waker = waker.cloned();
            return SlotTurn::Wait(slot);
        };
        queue.waiting.remove(&place);
        queue.wake_first();
        SlotTurn::Go(taken)
    }

    pub(super) fn forget(&self, now: Instant, place: Place) {
        let mut queue = self.locked();
        queue.rate.forget(place);
        if let Some(taken) = queue.waiting.remove(&place).and_then(|own| own.taken) {
            queue.rate.give_back(taken);
        }
        queue.release(now);
        queue.wake_first();
    }

    pub(super) fn try_now(&self, now: Instant) -> bool {
        self.locked().rate.try_now(now)
    }

    pub(super) fn give_back(&self, now: Instant, taken: Instant) {
        let mut queue = self.locked();
        queue.rate.give_back(taken);
        queue.release(now);
        queue.wake_first();
    }

    /// Whether the rate adapts to this failure.
    pub(super) fn heeds(&self, failure: &Failure) -> bool {
        self.config.heeds(failure)
    }

    pub(super) fn on_failure(&self, now: Instant, started: Instant, failure: &Failure) {
        if self.heeds(failure) {
            self.locked().rate.on_failure(now, started, failure);
        }
    }
}

impl Queue {
    /// Takes for all whose slots have come: whoever does not look just now holds up nobody else.
    fn release(&mut self, now: Instant) {
        while let Some(place) = self.rate.release(now) {
            match self.waiting.get_mut(&place) {
                Some(own) => {
                    own.taken = Some(now);
                    if let Some(waker) = own.waker.take() {
                        waker.wake();
                    }
                }
                None => self.rate.give_back(now),
            }
        }
    }

    /// The first looks again: its timer may be too late now.
    fn wake_first(&mut self) {
        let first = self.rate.first();
        let first = first.and_then(|place| self.waiting.get_mut(&place));
        if let Some(waker) = first.and_then(|first| first.waker.take()) {
            waker.wake();
        }
    }
}
