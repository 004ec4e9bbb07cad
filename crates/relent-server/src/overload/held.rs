//! The slots of a layer, and who holds or waits for one.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use relent_core::slots::{Completion, Placement, QueuePlace, Slot, Slots, Turn};
use relent_core::{Arrival, Criticality, Instant, Rejected};
use tokio::sync::oneshot;
use tokio::time::Sleep;

use crate::observe;

type Waiter = oneshot::Sender<Turn>;

/// The slots of a layer.
pub(crate) struct Shared {
    slots: Mutex<Slots<Waiter>>,
    origin: tokio::time::Instant,
}

/// What becomes of a request when it arrives.
pub(super) enum Arrived {
    Served(Held),
    Waits(Waiting),
}

impl Shared {
    pub(super) fn new(slots: Slots<Waiter>) -> Self {
        Self {
            slots: Mutex::new(slots),
            origin: tokio::time::Instant::now(),
        }
    }

    /// Does this with the slots, and tells those whose turn it then is.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut Slots<Waiter>, Instant) -> T) -> T {
        let passed = self.origin.elapsed();
        let now = Instant::ORIGIN.saturating_add(passed);
        // What panicked with the lock held was not the state: it has no callbacks.
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let acted = act(&mut slots, now);
        while let Some((waiter, turn)) = slots.next(now) {
            if let Err(Turn::Start(slot)) = waiter.send(turn) {
                slots.give_back(now, slot);
            }
        }
        observe::slots(&slots);
        acted
    }

    pub(super) fn arrive(
        self: &Arc<Self>,
        arrival: Arrival,
        class: Criticality,
    ) -> Result<Arrived, Rejected> {
        let mut receiver = None;
        let entered = self.with(|slots, now| {
            slots.enter(now, arrival, class, || {
                let (sender, receives) = oneshot::channel();
                receiver = Some(receives);
                sender
            })
        })?;
        Ok(match (entered, receiver) {
            (Placement::Start(slot), _) => Arrived::Served(Held::new(self, slot)),
            (Placement::Wait(place, until), Some(receiver)) => {
                let until = until.saturating_since(Instant::ORIGIN);
                let timer = tokio::time::sleep_until(self.origin + until);
                Arrived::Waits(Waiting {
                    shared: Arc::clone(self),
                    place,
                    turn: Some(receiver),
                    timer: Box::pin(timer),
                    since: tokio::time::Instant::now(),
                })
            }
            // Who waits has been asked for what it waits with.
            (Placement::Wait(..), None) => return Err(Rejected::Expired),
        })
    }
}

/// Waits for a slot. Dropped, it leaves the line, and gives back a slot that it has just got.
pub(super) struct Waiting {
    shared: Arc<Shared>,
    place: QueuePlace,
    /// `None` once it has been told.
    turn: Option<oneshot::Receiver<Turn>>,
    timer: Pin<Box<Sleep>>,
    since: tokio::time::Instant,
}

impl Waiting {
    fn told(&mut self, turn: Turn) -> Result<Held, Rejected> {
        self.turn = None;
        match turn {
            Turn::Start(slot) => Ok(Held::new(&self.shared, slot)),
            Turn::Refused(rejected) => Err(rejected),
        }
    }

    /// How long it has waited.
    pub(super) fn waited(&self) -> Duration {
        self.since.elapsed()
    }
}

impl Future for Waiting {
    type Output = Result<Held, Rejected>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(turn) = &mut self.turn else {
            return Poll::Pending;
        };
        if let Poll::Ready(Ok(turn)) = Pin::new(turn).poll(context) {
            return Poll::Ready(self.told(turn));
        }
        if self.timer.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        let place = self.place;
        let late = self.shared.with(|slots, now| slots.leave(now, place));
        let turn = match (late, &mut self.turn) {
            (Some(rejected), _) => Turn::Refused(rejected),
            // Its turn came between the two looks.
            (None, Some(turn)) => turn.try_recv().unwrap_or(Turn::Refused(Rejected::Expired)),
            (None, None) => Turn::Refused(Rejected::Expired),
        };
        Poll::Ready(self.told(turn))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(mut turn) = self.turn.take() else {
            return;
        };
        let place = self.place;
        self.shared.with(|slots, now| {
            if slots.leave(now, place).is_none()
                && let Ok(Turn::Start(slot)) = turn.try_recv()
            {
                slots.give_back(now, slot);
            }
        });
    }
}

/// A slot, which is free again when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct Held(Arc<Inner>);

/// In the extensions of a request: its slot, for what goes on when its client has gone. It holds nothing by itself,
/// since a handler may keep them for as long as it likes.
#[derive(Clone)]
pub(crate) struct SlotOf(Weak<Inner>);

impl SlotOf {
    /// The slot, as long as it is not free again.
    pub(crate) fn hold(&self) -> Option<Held> {
        self.0.upgrade().map(Held)
    }
}

struct Inner {
    shared: Arc<Shared>,
    slot: Mutex<(Option<Slot>, Completion)>,
}

impl Held {
    fn new(shared: &Arc<Shared>, slot: Slot) -> Self {
        Self(Arc::new(Inner {
            shared: Arc::clone(shared),
            slot: Mutex::new((Some(slot), Completion::TooLate)),
        }))
    }

    pub(super) fn slot_of(&self) -> SlotOf {
        SlotOf(Arc::downgrade(&self.0))
    }

    /// How the request has ended; without it its caller has gone away before it did.
    pub(super) fn ended(&self, ended: Completion) {
        let mut slot = self.0.slot.lock().unwrap_or_else(PoisonError::into_inner);
        slot.1 = ended;
    }

    /// Gives the slot back at once: the request only waits from now on.
    pub(crate) fn release(&self) {
        let mut slot = self.0.slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slot.0.take() {
            self.0.shared.with(|slots, now| slots.give_back(now, slot));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let slot = self.slot.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let (Some(slot), ended) = (slot.0.take(), slot.1) {
            let ended = match std::thread::panicking() {
                true => Completion::Failed,
                false => ended,
            };
            self.shared.with(|slots, now| slots.end(now, slot, ended));
        }
    }
}
