//! Those who wait to make an attempt.

use alloc::vec::Vec;
use core::time::Duration;

use super::{Asking, Holding, Permit};
use crate::ordered_map::OrderedMap;
use crate::time::{Instant, nanos};

#[derive(Default, Debug)]
pub(super) struct Line {
    waiters: OrderedMap<u64, Waiter>,
    /// Until when the cooldown holds them.
    held: OrderedMap<(Instant, u64), ()>,
    /// By the order in which they came to the request rate.
    queue: OrderedMap<u64, u64>,
    /// The next place in the queue.
    next_place: u64,
    /// Until when those may go who have an offer, and by what permit.
    offers: OrderedMap<(Instant, u64), Permit>,
    lookout: Option<Lookout>,
    /// To be woken by the driver.
    pub(super) woken: Vec<u64>,
}

/// Somebody who waits, as it was when it joined the line, which is how the gate knows it: its [`Asking`] in
/// little memory, since a hundred thousand may wait.
#[derive(Debug)]
struct Waiter {
    since: Instant,
    last_start: Instant,
    answer_by: Instant,
    /// In nanoseconds.
    longest: u64,
    spread: f64,
    fresh: bool,
    paced_only: bool,
    place: Place,
    /// When the hold or the offer ends, or the place in the queue: see [`Place`].
    at: u64,
}

impl Waiter {
    fn new(asking: &Asking, place: Place, at: u64) -> Self {
        Self {
            since: asking.since,
            last_start: asking.last_start,
            answer_by: asking.answer_by,
            longest: nanos(asking.longest),
            spread: asking.spread,
            fresh: asking.fresh,
            paced_only: asking.paced_only,
            place,
            at,
        }
    }

    fn until(&self) -> Instant {
        Instant::from_nanos(self.at)
    }

    fn asking(&self, id: u64) -> Asking {
        Asking {
            id,
            since: self.since,
            last_start: self.last_start,
            answer_by: self.answer_by,
            longest: Duration::from_nanos(self.longest),
            spread: self.spread,
            fresh: self.fresh,
            paced_only: self.paced_only,
        }
    }
}

/// What somebody waits for. The number that belongs to it stands beside it, which takes less memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// The cooldown, until then.
    Held,
    /// The request rate, at this place.
    Queued,
    /// The gate, which keeps the order of those whom it has parked.
    Parked,
    /// It may go, until then.
    Offered,
    /// It did not take its offer, or was too late for its turn. It is out of the order until it asks.
    Absent,
}

/// Who has the timer for the next offer, and when that is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookout {
    pub(super) id: u64,
    pub(super) at: Instant,
}

impl Line {
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn holding(&self, id: u64) -> Option<Holding> {
        match self.waiters.get(&id)?.place {
            Place::Held => Some(Holding::Cooldown),
            Place::Queued => Some(Holding::RequestRate),
            Place::Parked => Some(Holding::Gate),
            Place::Offered | Place::Absent => None,
        }
    }

    /// What it said about itself when it joined the line.
    pub(super) fn asking(&self, id: u64) -> Option<Asking> {
        self.waiters.get(&id).map(|waiter| waiter.asking(id))
    }

    /// Until when the cooldown holds it.
    pub(super) fn held_until(&self, id: u64) -> Option<Instant> {
        let waiter = self.waiters.get(&id)?;
        (waiter.place == Place::Held).then(|| waiter.until())
    }

    /// At most how many are before it in the queue. Those who have left the middle are counted; who is
    /// first is told exactly.
    pub(super) fn ahead(&self, id: u64) -> u64 {
        let waiter = self.waiters.get(&id);
        match (waiter, self.queue.first()) {
            (Some(waiter), Some((first, _))) if waiter.place == Place::Queued => {
                waiter.at.saturating_sub(*first)
            }
            _ => 0,
        }
    }

    /// The cooldown holds it until then. It has a timer of its own, and keeps none for others.
    pub(super) fn hold(&mut self, asking: &Asking, until: Instant) {
        self.relieve(asking.id);
        self.put(asking, Place::Held, until.as_nanos());
        self.held.insert((until, asking.id), ());
    }

    /// It waits for the request rate, behind all who do already.
    pub(super) fn queue(&mut self, asking: &Asking) {
        let place = self.next_place;
        self.next_place += 1;
        self.put(asking, Place::Queued, place);
        self.queue.insert(place, asking.id);
    }

    /// The gate has parked it.
    pub(super) fn park(&mut self, asking: &Asking) {
        self.put(asking, Place::Parked, 0);
    }

    /// It cannot make use of its turn, which goes to the next.
    pub(super) fn pass_over(&mut self, asking: &Asking) {
        self.put(asking, Place::Absent, 0);
        self.relieve(asking.id);
        self.woken.push(asking.id);
    }

    /// It may go, until then. Gives the permit back if nobody of that number waits.
    pub(super) fn offer(&mut self, id: u64, until: Instant, permit: Permit) -> Result<(), Permit> {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return Err(permit);
        };
        let (place, at) = (waiter.place, waiter.at);
        (waiter.place, waiter.at) = (Place::Offered, until.as_nanos());
        self.take_out(id, place, at);
        self.offers.insert((until, id), permit);
        self.relieve(id);
        self.woken.push(id);
        Ok(())
    }

    /// Takes the permit that it was offered, with which it leaves the line.
    pub(super) fn take_offer(&mut self, id: u64) -> Option<Permit> {
        let offered = |waiter: &Waiter| waiter.place == Place::Offered;
        let until = self.waiters.remove_if(&id, offered)?.until();
        let permit = self.offers.remove(&(until, id));
        self.relieve(id);
        // It may have come by itself.
        self.woken.retain(|woken| *woken != id);
        permit
    }

    /// Takes an offer whose time is over from the one who has it.
    pub(super) fn take_expired(&mut self, now: Instant) -> Option<Permit> {
        let (first, _) = self
            .offers
            .first()
            .filter(|((until, _), _)| *until <= now)?;
        let first = *first;
        let permit = self.offers.remove(&first)?;
        if let Some(waiter) = self.waiters.get_mut(&first.1) {
            waiter.place = Place::Absent;
        }
        Some(permit)
    }

    pub(super) fn first_expiry(&self) -> Option<Instant> {
        self.offers.first().map(|((until, _), _)| *until)
    }

    pub(super) fn first_held(&self) -> Option<(Instant, u64)> {
        self.held.first().map(|(held, ())| *held)
    }

    /// Until when the first is held whom the cooldown holds for longer than this.
    pub(super) fn first_held_after(&self, after: Instant) -> Option<Instant> {
        let later = Instant::from_nanos(after.as_nanos().saturating_add(1));
        let first = self.held.first_from(&(later, 0));
        first
            .map(|((until, _), ())| *until)
            .filter(|until| *until > after)
    }

    pub(super) fn all_queued(&self) -> Vec<u64> {
        self.queue.iter().map(|(_, id)| *id).collect()
    }

    /// Those whom the cooldown holds are held until then.
    pub(super) fn hold_again(&mut self, mut until: impl FnMut(&Asking, Instant) -> Instant) {
        let held: Vec<_> = self.held.iter().map(|(held, ())| *held).collect();
        for (before, id) in held {
            if let Some(asking) = self.asking(id) {
                self.hold(&asking, until(&asking, before));
            }
        }
    }

    /// All who wait look again.
    pub(super) fn wake_all(&mut self) {
        self.woken.extend(self.waiters.iter().map(|(id, _)| *id));
    }

    pub(super) fn first_queued(&self) -> Option<u64> {
        self.queue.first().map(|(_, id)| *id)
    }

    /// Out of the line. If the gate has parked it, the gate is to forget it, by what it said when it
    /// joined.
    pub(super) fn remove(&mut self, id: u64) -> Option<Asking> {
        let waiter = self.waiters.remove(&id)?;
        self.take_out(id, waiter.place, waiter.at);
        self.relieve(id);
        matches!(waiter.place, Place::Parked).then(|| waiter.asking(id))
    }

    pub(super) const fn lookout(&self) -> Option<Lookout> {
        self.lookout
    }

    pub(super) const fn set_lookout(&mut self, id: u64, at: Instant) {
        self.lookout = Some(Lookout { id, at });
    }

    /// It is the lookout no more.
    fn relieve(&mut self, id: u64) {
        if self.lookout.is_some_and(|lookout| lookout.id == id) {
            self.lookout = None;
        }
    }

    fn put(&mut self, asking: &Asking, place: Place, at: u64) {
        let waiter = Waiter::new(asking, place, at);
        if let Some(before) = self.waiters.insert(asking.id, waiter) {
            self.take_out(asking.id, before.place, before.at);
        }
    }

    fn take_out(&mut self, id: u64, place: Place, at: u64) {
        match place {
            Place::Held => {
                self.held.remove(&(Instant::from_nanos(at), id));
            }
            Place::Queued => {
                self.queue.remove(&at);
            }
            Place::Offered => {
                self.offers.remove(&(Instant::from_nanos(at), id));
            }
            Place::Parked | Place::Absent => {}
        }
    }

    /// Everybody stands where its place says, and nobody else does: nobody who has taken an offer or has left.
    #[cfg(test)]
    pub(super) fn is_in_order(&self) -> bool {
        let (mut held, mut queue, mut offers) = (Vec::new(), Vec::new(), Vec::new());
        for (id, waiter) in self.waiters.iter() {
            match waiter.place {
                Place::Held => held.push(((waiter.until(), *id), ())),
                Place::Queued => queue.push((waiter.at, *id)),
                Place::Offered => offers.push((waiter.until(), *id)),
                Place::Parked | Place::Absent => {}
            }
        }
        held.sort_unstable();
        queue.sort_unstable();
        offers.sort_unstable();
        held.iter().eq(self.held.iter())
            && queue.iter().eq(self.queue.iter())
            && offers.iter().eq(self.offers.iter().map(|(offer, _)| offer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_who_waits_takes_at_most_64_bytes_in_the_line() {
        let bytes = size_of::<(u64, Waiter)>();
        assert!(bytes <= 64, "{bytes}");
    }
}
