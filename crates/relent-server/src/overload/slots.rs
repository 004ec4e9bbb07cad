//! The slots of a layer, their holders and the waiting requests.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use relent_core::admission::{Arrival, Rejected};
use relent_core::admission::{
    Completion, ConcurrencyLimiter, Dequeued, Enqueued, QueuePosition, Slot,
};
use relent_core::{Criticality, Instant};
use tokio::sync::oneshot;
use tokio::time::Sleep;

use crate::observe;

type Waiter = oneshot::Sender<Result<Number, Rejected>>;

/// The number of a held slot; numbers only grow.
type Number = u64;

/// The default time for which a request may hold its slot.
const SLOT_TIMEOUT: Duration = Duration::from_secs(60);

/// The slots of a layer.
pub(crate) struct Shared {
    state: Mutex<State>,
    origin: tokio::time::Instant,
}

/// Slots never leave this struct, so a request that is no longer polled cannot keep one.
struct State {
    slots: ConcurrencyLimiter<Waiter>,
    /// The slots that are held, with their start, in the order of admission.
    held: BTreeMap<Number, (Instant, Slot)>,
    given_out: Number,
    slot_timeout: Duration,
}

impl State {
    fn hold(&mut self, now: Instant, slot: Slot) -> Number {
        self.given_out += 1;
        self.held.insert(self.given_out, (now, slot));
        self.given_out
    }

    /// Gives back an unused slot; it does not count as a measurement.
    fn give_back(&mut self, now: Instant, number: Number) {
        if let Some((_, slot)) = self.held.remove(&number) {
            self.slots.give_back(now, slot);
        }
    }

    /// Takes back slots that were held for too long: a stream, or a client that does not read. Their duration says
    /// nothing about capacity, so it is not measured.
    fn take_back_overdue(&mut self, now: Instant) {
        while let Some(oldest) = self.held.first_entry()
            && oldest.get().0.saturating_add(self.slot_timeout) <= now
        {
            let (_, slot) = oldest.remove();
            self.slots.give_back(now, slot);
        }
    }
}

/// The result of an arrival.
pub(super) enum Arrived {
    Served(HeldSlot),
    Waits(Waiting),
}

impl Shared {
    pub(super) fn new(slots: ConcurrencyLimiter<Waiter>) -> Self {
        let state = State {
            slots,
            held: BTreeMap::new(),
            given_out: 0,
            slot_timeout: SLOT_TIMEOUT,
        };
        Self {
            state: Mutex::new(state),
            origin: tokio::time::Instant::now(),
        }
    }

    /// Sets how long a request may hold its slot.
    pub(super) fn set_slot_timeout(&self, timeout: Duration) {
        self.change(|state, _| state.slot_timeout = timeout);
    }

    /// Reads the slots.
    pub(super) fn with<T>(&self, look: impl FnOnce(&ConcurrencyLimiter<Waiter>) -> T) -> T {
        self.change(|state, _| look(&state.slots))
    }

    /// Changes the slots, and then notifies each waiter that gets a slot or is rejected.
    fn change<T>(&self, act: impl FnOnce(&mut State, Instant) -> T) -> T {
        let passed = self.origin.elapsed();
        let now = Instant::ORIGIN.saturating_add(passed);
        // No callback runs under this lock, so a panic of another thread has left the state consistent.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.take_back_overdue(now);
        let acted = act(&mut state, now);
        while let Some((waiter, turn)) = state.slots.next(now) {
            let turn = match turn {
                Dequeued::Start(slot) => Ok(state.hold(now, slot)),
                Dequeued::Refused(rejected) => Err(rejected),
            };
            if let Err(Ok(number)) = waiter.send(turn) {
                state.give_back(now, number);
            }
        }
        observe::slots(&state.slots);
        acted
    }

    pub(super) fn arrive(
        self: &Arc<Self>,
        arrival: Arrival,
        class: Criticality,
    ) -> Result<Arrived, Rejected> {
        let mut receiver = None;
        let entered = self.change(|state, now| {
            let placed = state.slots.enter(now, arrival, class, || {
                let (sender, receives) = oneshot::channel();
                receiver = Some(receives);
                sender
            });
            Ok(match placed? {
                Enqueued::Start(slot) => Ok(state.hold(now, slot)),
                Enqueued::Wait(place, until) => Err((place, until)),
            })
        })?;
        let since = tokio::time::Instant::now();
        Ok(match (entered, receiver) {
            (Ok(number), _) => Arrived::Served(HeldSlot::new(self, number, arrival, class, since)),
            (Err((place, until)), Some(receiver)) => {
                let until = until.saturating_since(Instant::ORIGIN);
                let timer = tokio::time::sleep_until(self.origin + until);
                Arrived::Waits(Waiting {
                    shared: Arc::clone(self),
                    arrival,
                    class,
                    place,
                    turn: Some(receiver),
                    timer: Box::pin(timer),
                    since,
                })
            }
            // Unreachable: `enter` calls the closure before it returns `Wait`.
            (Err(_), None) => return Err(Rejected::Expired),
        })
    }
}

/// Waits for a slot. On drop it leaves the queue, and gives back a slot that it has just received.
pub(super) struct Waiting {
    shared: Arc<Shared>,
    arrival: Arrival,
    class: Criticality,
    place: QueuePosition,
    /// `None` after the waiter has its result.
    turn: Option<oneshot::Receiver<Result<Number, Rejected>>>,
    timer: Pin<Box<Sleep>>,
    since: tokio::time::Instant,
}

impl Waiting {
    fn told(&mut self, turn: Result<Number, Rejected>) -> Result<HeldSlot, Rejected> {
        self.turn = None;
        let (arrival, class) = (self.arrival, self.class);
        turn.map(|number| HeldSlot::new(&self.shared, number, arrival, class, self.since))
    }

    /// Returns how long it has waited.
    pub(super) fn waited(&self) -> Duration {
        self.since.elapsed()
    }
}

impl Future for Waiting {
    type Output = Result<HeldSlot, Rejected>;

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
        let late = (self.shared).change(|state, now| state.slots.leave(now, place));
        let turn = match (late, &mut self.turn) {
            (Some(rejected), _) => Err(rejected),
            // The slot came between the two checks.
            (None, Some(turn)) => turn.try_recv().unwrap_or(Err(Rejected::Expired)),
            (None, None) => Err(Rejected::Expired),
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
        self.shared.change(|state, now| {
            if state.slots.leave(now, place).is_none()
                && let Ok(Ok(number)) = turn.try_recv()
            {
                state.give_back(now, number);
            }
        });
    }
}

/// A slot, which is freed when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct HeldSlot(Arc<Inner>);

/// A weak reference to the slot of a request, in its extensions, for work that continues after the client has
/// disconnected. It holds nothing, since a handler may keep extensions as long as it likes.
#[derive(Clone)]
pub(crate) struct WeakSlot(Weak<Inner>);

impl WeakSlot {
    /// Returns the slot, unless it has been freed.
    pub(crate) fn hold(&self) -> Option<HeldSlot> {
        self.0.upgrade().map(HeldSlot)
    }
}

struct Inner {
    shared: Arc<Shared>,
    arrival: Arrival,
    class: Criticality,
    /// The time of the arrival.
    since: tokio::time::Instant,
    slot: Mutex<(Option<Number>, Completion)>,
}

impl HeldSlot {
    fn new(
        shared: &Arc<Shared>,
        number: Number,
        arrival: Arrival,
        class: Criticality,
        since: tokio::time::Instant,
    ) -> Self {
        Self(Arc::new(Inner {
            shared: Arc::clone(shared),
            arrival,
            class,
            since,
            slot: Mutex::new((Some(number), Completion::TooLate)),
        }))
    }

    pub(super) fn weak_slot(&self) -> WeakSlot {
        WeakSlot(Arc::downgrade(&self.0))
    }

    fn lock(&self) -> MutexGuard<'_, (Option<Number>, Completion)> {
        self.0.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets how the request has ended; without it the client has disconnected first.
    pub(super) fn ended(&self, ended: Completion) {
        self.lock().1 = ended;
    }

    /// Gives the slot back immediately, because the request only waits from now on.
    pub(crate) fn release(&self) {
        let number = self.lock().0.take();
        if let Some(number) = number {
            (self.0.shared).change(|state, now| state.give_back(now, number));
        }
    }

    /// Waits for a slot again, as on arrival, if the request has released its own.
    ///
    /// # Errors
    /// The request is rejected, which is counted.
    pub(crate) async fn take_again(&self) -> Result<(), Rejected> {
        if self.lock().0.is_some() {
            return Ok(());
        }
        let passed = self.0.since.elapsed();
        let remaining = self.0.arrival.remaining;
        let arrival = Arrival {
            remaining: remaining.map(|left| left.saturating_sub(passed)),
            ..self.0.arrival
        };
        let again = match self.0.shared.arrive(arrival, self.0.class) {
            Ok(Arrived::Served(held)) => Ok(held),
            Ok(Arrived::Waits(waiting)) => waiting.await,
            Err(rejected) => Err(rejected),
        };
        let again = again.inspect_err(|rejected| observe::shed(self.0.class, rejected))?;
        let number = again.lock().0.take();
        self.lock().0 = number;
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let slot = self.slot.get_mut().unwrap_or_else(PoisonError::into_inner);
        let (Some(number), ended) = (slot.0.take(), slot.1) else {
            return;
        };
        let ended = match std::thread::panicking() {
            true => Completion::Failed,
            false => ended,
        };
        self.shared.change(|state, now| {
            // The slot may have been taken back as overdue.
            if let Some((_, slot)) = state.held.remove(&number) {
                state.slots.end(now, slot, ended);
            }
        });
    }
}
