//! Queue of callers that wait to make an attempt. Callers queued by the circuit breaker are stored
//! there instead.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use super::{Asking, Holding, Permit};
use crate::gate::Claim;
use crate::ordered_map::OrderedMap;
use crate::time::{Instant, nanos};

#[derive(Default, Debug)]
pub(super) struct Line {
    places: OrderedMap<u64, Place>,
    /// Offered permits, by their expiry.
    offers: OrderedMap<(Instant, u64), Permit>,
    /// Allocated for the first one, since a process may have very many destinations.
    waiters: Option<Box<Waiters>>,
    lookout: Option<Lookout>,
    /// Ids of callers that the driver has to wake.
    pub(super) woken: Vec<u64>,
}

/// Callers that wait for the cooldown or the rate limit.
#[derive(Default, Debug)]
struct Waiters {
    /// Held by the cooldown, by its end.
    held: OrderedMap<(Instant, u64), Waiter>,
    /// Queued for the rate limit, in order of arrival.
    queue: OrderedMap<u64, (u64, Waiter)>,
    /// The next position in the queue.
    next_place: u64,
}

/// State of a waiting caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// Held by the cooldown until this instant.
    Held(Instant),
    /// Queued for the rate limit, at this position.
    Queued(u64),
    /// It has an offer until this instant.
    Offered(Instant),
    /// It missed its offer or its turn, or its breaker was removed. It has no position until it
    /// requests again.
    Absent,
}

/// Compact copy of an [`Asking`] from when it joined the queue, by which the breaker will know it. A
/// hundred thousand may wait.
#[derive(Debug)]
struct Waiter {
    since: Instant,
    last_start: Instant,
    answer_by: Instant,
    /// In nanoseconds.
    longest: u64,
    spread: f64,
    claim: Claim,
    stays: bool,
    paced_only: bool,
}

impl Waiter {
    fn new(asking: &Asking) -> Self {
        Self {
            since: asking.since,
            last_start: asking.last_start,
            answer_by: asking.answer_by,
            longest: nanos(asking.longest),
            spread: asking.spread,
            claim: asking.claim,
            stays: asking.stays,
            paced_only: asking.paced_only,
        }
    }

    const fn asking(&self, id: u64) -> Asking {
        Asking {
            id,
            since: self.since,
            last_start: self.last_start,
            answer_by: self.answer_by,
            longest: Duration::from_nanos(self.longest),
            spread: self.spread,
            claim: self.claim,
            stays: self.stays,
            paced_only: self.paced_only,
        }
    }
}

/// The leader: the caller that owns the timer for the next offer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookout {
    pub(super) id: u64,
    pub(super) at: Instant,
}

impl Line {
    /// Reads both ends, to prefetch them: see [`Outbound::touch`](super::Outbound::touch).
    #[inline]
    pub(super) fn touch(&self) -> u64 {
        self.len() as u64
            ^ self.offers.len() as u64
            ^ u64::from(self.waiters.is_some())
            ^ self.woken.len() as u64
    }

    /// Reads the first entries.
    #[inline]
    pub(super) fn touch_first(&self) -> u64 {
        let first = self.places.first().map_or(0, |(id, _)| *id);
        first ^ self.offers.first().map_or(0, |((_, id), _)| *id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn queued(&self) -> usize {
        self.waiters
            .as_ref()
            .map_or(0, |waiters| waiters.queue.len())
    }

    pub(super) fn holding(&self, id: u64) -> Option<Holding> {
        match self.places.get(&id)? {
            Place::Held(_) => Some(Holding::Cooldown),
            Place::Queued(_) => Some(Holding::RequestRate),
            Place::Offered(_) | Place::Absent => None,
        }
    }

    /// When the cooldown releases it.
    pub(super) fn held_until(&self, id: u64) -> Option<Instant> {
        match self.places.get(&id)? {
            Place::Held(until) => Some(*until),
            _ => None,
        }
    }

    /// Upper bound of the number of callers ahead in the queue; callers that left the middle are
    /// counted. Exact for the first.
    pub(super) fn ahead(&self, id: u64) -> u64 {
        let first = || self.waiters.as_ref()?.queue.first();
        match self.places.get(&id) {
            Some(Place::Queued(place)) => {
                first().map_or(0, |(first, _)| place.saturating_sub(*first))
            }
            _ => 0,
        }
    }

    /// The cooldown holds it until then. It has its own timer, and is no leader for others.
    pub(super) fn hold(&mut self, asking: &Asking, until: Instant) {
        self.relieve(asking.id);
        self.put(asking.id, Place::Held(until));
        let waiters = self.waiters.get_or_insert_default();
        waiters.held.insert((until, asking.id), Waiter::new(asking));
    }

    /// Appends it to the queue for the rate limit.
    pub(super) fn queue(&mut self, asking: &Asking) {
        let waiters = self.waiters.get_or_insert_default();
        let place = waiters.next_place;
        waiters.next_place += 1;
        waiters
            .queue
            .insert(place, (asking.id, Waiter::new(asking)));
        self.put(asking.id, Place::Queued(place));
    }

    /// The circuit breaker has queued it. If it is the leader, it stays so.
    pub(super) fn park(&mut self, id: u64) {
        if let Some(place) = self.places.remove(&id) {
            self.take_out(id, place);
        }
    }

    /// It cannot use its turn, which goes to the next.
    pub(super) fn pass_over(&mut self, id: u64) {
        self.put(id, Place::Absent);
        self.relieve(id);
        self.woken.push(id);
    }

    /// Offers a permit until then.
    pub(super) fn offer(&mut self, id: u64, until: Instant, permit: Permit) {
        self.put(id, Place::Offered(until));
        self.offers.insert((until, id), permit);
        self.relieve(id);
        self.woken.push(id);
    }

    /// Takes the permit that it was offered, and removes it from the queue.
    pub(super) fn take_offer(&mut self, id: u64) -> Option<Permit> {
        let offered = |place: &Place| matches!(place, Place::Offered(_));
        let Place::Offered(until) = self.places.remove_if(&id, offered)? else {
            return None;
        };
        let permit = self.offers.remove(&(until, id));
        self.relieve(id);
        // It may have come without the wake-up.
        self.woken.retain(|woken| *woken != id);
        permit
    }

    /// Withdraws an expired offer.
    pub(super) fn take_expired(&mut self, now: Instant) -> Option<Permit> {
        let (first, _) = self
            .offers
            .first()
            .filter(|((until, _), _)| *until <= now)?;
        let first = *first;
        let permit = self.offers.remove(&first)?;
        self.places.insert(first.1, Place::Absent);
        Some(permit)
    }

    pub(super) fn first_expiry(&self) -> Option<Instant> {
        self.offers.first().map(|((until, _), _)| *until)
    }

    /// The earliest end of a hold by the cooldown.
    pub(super) fn first_held(&self) -> Option<Instant> {
        let first = self.waiters.as_ref()?.held.first();
        first.map(|((until, _), _)| *until)
    }

    /// The first caller whose hold by the cooldown ends by `now`.
    pub(super) fn first_held_by(&self, now: Instant) -> Option<Asking> {
        let ((until, id), waiter) = self.waiters.as_ref()?.held.first()?;
        (*until <= now).then(|| waiter.asking(*id))
    }

    /// The earliest end of a hold by the cooldown after this instant.
    pub(super) fn first_held_after(&self, after: Instant) -> Option<Instant> {
        let later = Instant::from_nanos(after.as_nanos().saturating_add(1));
        let first = self.waiters.as_ref()?.held.first_from(&(later, 0));
        first
            .map(|((until, _), _)| *until)
            .filter(|until| *until > after)
    }

    /// Changes the end of each hold by the cooldown.
    pub(super) fn hold_again(&mut self, mut until: impl FnMut(&Asking, Instant) -> Instant) {
        let held = self.waiters.iter().flat_map(|waiters| waiters.held.iter());
        let held: Vec<_> = held
            .map(|((until, id), waiter)| (*until, waiter.asking(*id)))
            .collect();
        for (before, asking) in held {
            self.hold(&asking, until(&asking, before));
        }
    }

    /// Wakes all waiting callers: these, queued by the breaker, and those in this queue.
    pub(super) fn wake_all(&mut self, parked: impl Iterator<Item = u64>) {
        self.woken.extend(parked);
        self.woken.extend(self.places.iter().map(|(id, _)| *id));
    }

    /// The id of the first in the queue for the rate limit.
    pub(super) fn first_queued(&self) -> Option<u64> {
        let first = self.waiters.as_ref()?.queue.first();
        first.map(|(_, (id, _))| *id)
    }

    /// The callers in the queue for the rate limit.
    pub(super) fn all_queued(&self) -> impl Iterator<Item = Asking> {
        let waiters = self.waiters.iter();
        waiters
            .flat_map(|waiters| waiters.queue.iter())
            .map(|(_, (id, waiter))| waiter.asking(*id))
    }

    /// Removes it from the queue; returns whether it was there.
    pub(super) fn remove(&mut self, id: u64) -> bool {
        self.relieve(id);
        let place = self.places.remove(&id);
        if let Some(place) = place {
            self.take_out(id, place);
        }
        place.is_some()
    }

    pub(super) const fn lookout(&self) -> Option<Lookout> {
        self.lookout
    }

    pub(super) const fn set_lookout(&mut self, id: u64, at: Instant) {
        self.lookout = Some(Lookout { id, at });
    }

    /// It is not the leader any more.
    fn relieve(&mut self, id: u64) {
        if self.lookout.is_some_and(|lookout| lookout.id == id) {
            self.lookout = None;
        }
    }

    fn put(&mut self, id: u64, place: Place) {
        if let Some(before) = self.places.insert(id, place) {
            self.take_out(id, before);
        }
    }

    fn take_out(&mut self, id: u64, place: Place) {
        match place {
            Place::Held(until) => {
                if let Some(waiters) = &mut self.waiters {
                    waiters.held.remove(&(until, id));
                }
            }
            Place::Queued(place) => {
                if let Some(waiters) = &mut self.waiters {
                    waiters.queue.remove(&place);
                }
            }
            Place::Offered(until) => {
                self.offers.remove(&(until, id));
            }
            Place::Absent => {}
        }
    }

    /// Whether every caller is in the collection that its state names, and in no other.
    #[cfg(test)]
    pub(super) fn is_in_order(&self) -> bool {
        let (mut held, mut queue, mut offers) = (Vec::new(), Vec::new(), Vec::new());
        for (id, place) in self.places.iter() {
            match place {
                Place::Held(until) => held.push((*until, *id)),
                Place::Queued(place) => queue.push((*place, *id)),
                Place::Offered(until) => offers.push((*until, *id)),
                Place::Absent => {}
            }
        }
        held.sort_unstable();
        queue.sort_unstable();
        offers.sort_unstable();
        let waiters = || self.waiters.iter();
        let all_held = waiters().flat_map(|waiters| waiters.held.iter());
        let all_queued = waiters().flat_map(|waiters| waiters.queue.iter());
        let queued = all_queued.map(|(place, (id, _))| (*place, *id));
        held.iter().eq(all_held.map(|(held, _)| held))
            && queue.iter().copied().eq(queued)
            && offers.iter().eq(self.offers.iter().map(|(offer, _)| offer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_who_waits_takes_at_most_88_bytes_in_the_line() {
        let place = size_of::<(u64, Place)>();
        let held = size_of::<((Instant, u64), Waiter)>();
        let queued = size_of::<(u64, (u64, Waiter))>();
        assert!(place + held <= 88, "{place} {held}");
        assert!(place + queued <= 88, "{place} {queued}");
    }
}
