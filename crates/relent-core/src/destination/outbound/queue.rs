//! Queue of callers that wait to make an attempt. Callers queued by the circuit breaker are stored
//! there instead.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use super::admission::{AdmissionRequest, BlockedBy};
use super::permit::Permit;
use crate::destination::circuit_breaker::AttemptKind;
use crate::ordered_map::OrderedMap;
use crate::time::{Instant, nanos};

/// How long an offer is valid, in nanoseconds: enough for a late runtime, and short compared with waits
/// for the breaker or the rate limit.
pub(super) const OFFER: u64 = 100_000_000;
/// When a caller requests again in case a wake-up was lost, in nanoseconds.
pub(super) const FALLBACK: u64 = 1_000_000_000;

#[derive(Default, Debug)]
pub(super) struct Queue {
    places: OrderedMap<u64, Position>,
    /// Offered permits, by their expiry.
    offers: OrderedMap<(Instant, u64), Permit>,
    /// Allocated for the first one, since a process may have very many destinations.
    waiters: Option<Box<WaitLists>>,
    leader: Option<Leader>,
    /// Ids of callers that the driver has to wake.
    pub(super) woken: Vec<u64>,
}

/// Callers that wait for the cooldown or the rate limit.
#[derive(Default, Debug)]
struct WaitLists {
    /// Held by the cooldown, by its end in nanoseconds and their id.
    held: OrderedMap<(u64, u64), WaitState>,
    /// Queued for the rate limit, by position and id.
    queue: OrderedMap<(u64, u64), WaitState>,
    /// The next position in the queue.
    next_place: u64,
}

/// State of a waiting caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Position {
    /// Held by the cooldown until this instant.
    Held(Instant),
    /// Queued for the rate limit, at this position.
    Queued(u64),
    /// It has an offer until this instant.
    Offered(Instant),
    /// It missed its offer or its turn, or its breaker was removed. It has no position until it
    /// requests again.
    Unplaced,
}

/// Compact copy of an [`AdmissionRequest`] from when it joined the queue, by which the breaker will know it. A
/// hundred thousand may wait.
#[derive(Debug)]
struct WaitState {
    since: Instant,
    last_start: Instant,
    answer_by: Instant,
    /// In nanoseconds.
    longest: u64,
    jitter: f64,
    kind: AttemptKind,
    waits_without_limit: bool,
    rate_limit_only: bool,
}

impl WaitState {
    fn new(request: &AdmissionRequest) -> Self {
        Self {
            since: request.since,
            last_start: request.last_start,
            answer_by: request.answer_by,
            longest: nanos(request.longest),
            jitter: request.jitter,
            kind: request.kind,
            waits_without_limit: request.waits_without_limit,
            rate_limit_only: request.rate_limit_only,
        }
    }

    const fn request(&self, id: u64) -> AdmissionRequest {
        AdmissionRequest {
            id,
            since: self.since,
            last_start: self.last_start,
            answer_by: self.answer_by,
            longest: Duration::from_nanos(self.longest),
            jitter: self.jitter,
            kind: self.kind,
            waits_without_limit: self.waits_without_limit,
            rate_limit_only: self.rate_limit_only,
            may_wait: true,
        }
    }
}

/// The leader: the caller that owns the timer for the next offer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leader {
    pub(super) id: u64,
    pub(super) at: Instant,
}

impl Queue {
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

    pub(super) fn blocked_by(&self, id: u64) -> Option<BlockedBy> {
        match self.places.get(&id)? {
            Position::Held(_) => Some(BlockedBy::Cooldown),
            Position::Queued(_) => Some(BlockedBy::RateLimit),
            Position::Offered(_) | Position::Unplaced => None,
        }
    }

    /// When the cooldown releases it.
    pub(super) fn held_until(&self, id: u64) -> Option<Instant> {
        match self.places.get(&id)? {
            Position::Held(until) => Some(*until),
            _ => None,
        }
    }

    /// Upper bound of the number of callers ahead in the queue; callers that left the middle are
    /// counted. Exact for the first.
    pub(super) fn ahead(&self, id: u64) -> u64 {
        let first = || self.waiters.as_ref()?.queue.first();
        match self.places.get(&id) {
            Some(Position::Queued(place)) => {
                first().map_or(0, |((first, _), _)| place.saturating_sub(*first))
            }
            _ => 0,
        }
    }

    /// The cooldown holds it until then. It has its own timer, and is no leader for others.
    pub(super) fn hold(&mut self, request: &AdmissionRequest, until: Instant) {
        self.resign_leader(request.id);
        self.put(request.id, Position::Held(until));
        let waiters = self.waiters.get_or_insert_default();
        waiters
            .held
            .insert((until.as_nanos(), request.id), WaitState::new(request));
    }

    /// Appends it to the queue for the rate limit.
    pub(super) fn queue(&mut self, request: &AdmissionRequest) {
        let waiters = self.waiters.get_or_insert_default();
        let place = waiters.next_place;
        waiters.next_place += 1;
        waiters
            .queue
            .insert((place, request.id), WaitState::new(request));
        self.put(request.id, Position::Queued(place));
    }

    /// The circuit breaker has queued it. If it is the leader, it stays so.
    pub(super) fn move_to_breaker(&mut self, id: u64) {
        if let Some(place) = self.places.remove(&id) {
            self.take_out(id, place);
        }
    }

    /// It cannot use its turn, which goes to the next.
    pub(super) fn skip(&mut self, id: u64) {
        self.put(id, Position::Unplaced);
        self.resign_leader(id);
        self.woken.push(id);
    }

    /// Offers a permit until then.
    pub(super) fn offer(&mut self, id: u64, until: Instant, permit: Permit) {
        self.put(id, Position::Offered(until));
        self.offers.insert((until, id), permit);
        self.resign_leader(id);
        self.woken.push(id);
    }

    /// Takes the permit that it was offered, and removes it from the queue.
    pub(super) fn take_offer(&mut self, id: u64) -> Option<Permit> {
        let Position::Offered(until) = *self.places.get(&id)? else {
            return None;
        };
        self.places.remove(&id);
        let permit = self.offers.remove(&(until, id));
        self.resign_leader(id);
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
        self.places.insert(first.1, Position::Unplaced);
        Some(permit)
    }

    pub(super) fn first_expiry(&self) -> Option<Instant> {
        self.offers.first().map(|((until, _), _)| *until)
    }

    /// The earliest end of a hold by the cooldown.
    pub(super) fn first_held(&self) -> Option<Instant> {
        let first = self.waiters.as_ref()?.held.first();
        first.map(|((until, _), _)| Instant::from_nanos(*until))
    }

    /// The first caller whose hold by the cooldown ends by `now`.
    pub(super) fn first_hold_ended(&self, now: Instant) -> Option<AdmissionRequest> {
        let ((until, id), waiter) = self.waiters.as_ref()?.held.first()?;
        (*until <= now.as_nanos()).then(|| waiter.request(*id))
    }

    /// The earliest end of a hold by the cooldown after this instant.
    pub(super) fn first_held_after(&self, after: Instant) -> Option<Instant> {
        let later = after.as_nanos().saturating_add(1);
        let first = self.waiters.as_ref()?.held.first_from(&(later, 0));
        first
            .map(|((until, _), _)| Instant::from_nanos(*until))
            .filter(|until| *until > after)
    }

    /// Changes the end of each hold by the cooldown.
    pub(super) fn change_holds(
        &mut self,
        mut until: impl FnMut(&AdmissionRequest, Instant) -> Instant,
    ) {
        let held = self.waiters.as_ref().map(|waiters| waiters.held.all());
        let held: Vec<_> = held
            .unwrap_or_default()
            .into_iter()
            .map(|((until, id), waiter)| (Instant::from_nanos(*until), waiter.request(*id)))
            .collect();
        for (before, request) in held {
            self.hold(&request, until(&request, before));
        }
    }

    /// Wakes all waiting callers: these, queued by the breaker, and those in this queue.
    pub(super) fn wake_all(&mut self, queued: impl Iterator<Item = u64>) {
        self.woken.extend(queued);
        self.woken
            .extend(self.places.all().into_iter().map(|(id, _)| *id));
    }

    /// The first caller in the queue for the rate limit.
    pub(super) fn first_queued(&self) -> Option<AdmissionRequest> {
        let ((_, id), waiter) = self.waiters.as_ref()?.queue.first()?;
        Some(waiter.request(*id))
    }

    /// The callers in the queue for the rate limit.
    pub(super) fn all_queued(&self) -> impl Iterator<Item = AdmissionRequest> {
        let queued = self.waiters.as_ref().map(|waiters| waiters.queue.all());
        queued
            .unwrap_or_default()
            .into_iter()
            .map(|((_, id), waiter)| waiter.request(*id))
    }

    /// Removes it from the queue; returns whether it was there.
    pub(super) fn remove(&mut self, id: u64) -> bool {
        self.resign_leader(id);
        let place = self.places.remove(&id);
        if let Some(place) = place {
            self.take_out(id, place);
        }
        place.is_some()
    }

    pub(super) const fn leader(&self) -> Option<Leader> {
        self.leader
    }

    pub(super) const fn set_leader(&mut self, id: u64, at: Instant) {
        self.leader = Some(Leader { id, at });
    }

    /// It is not the leader any more.
    fn resign_leader(&mut self, id: u64) {
        if self.leader.is_some_and(|leader| leader.id == id) {
            self.leader = None;
        }
    }

    fn put(&mut self, id: u64, place: Position) {
        if let Some(before) = self.places.insert(id, place) {
            self.take_out(id, before);
        }
    }

    fn take_out(&mut self, id: u64, place: Position) {
        match place {
            Position::Held(until) => {
                if let Some(waiters) = &mut self.waiters {
                    waiters.held.remove(&(until.as_nanos(), id));
                }
            }
            Position::Queued(place) => {
                if let Some(waiters) = &mut self.waiters {
                    waiters.queue.remove(&(place, id));
                }
            }
            Position::Offered(until) => {
                self.offers.remove(&(until, id));
            }
            Position::Unplaced => {}
        }
    }

    /// Whether every caller is in the collection that its state names, and in no other.
    #[cfg(test)]
    pub(super) fn is_in_order(&self) -> bool {
        let (mut held, mut queue, mut offers) = (Vec::new(), Vec::new(), Vec::new());
        for (id, place) in self.places.all() {
            match place {
                Position::Held(until) => held.push((until.as_nanos(), *id)),
                Position::Queued(place) => queue.push((*place, *id)),
                Position::Offered(until) => offers.push((*until, *id)),
                Position::Unplaced => {}
            }
        }
        held.sort_unstable();
        queue.sort_unstable();
        offers.sort_unstable();
        let waiters = || self.waiters.iter();
        let all_held = waiters().flat_map(|waiters| waiters.held.all());
        let all_queued = waiters().flat_map(|waiters| waiters.queue.all());
        held.iter().eq(all_held.map(|(held, _)| held))
            && queue.iter().eq(all_queued.map(|(queued, _)| queued))
            && offers
                .iter()
                .eq(self.offers.all().into_iter().map(|(offer, _)| offer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_caller_takes_at_most_88_bytes_in_the_queue() {
        let place = size_of::<(u64, Position)>();
        let waiter = size_of::<((u64, u64), WaitState)>();
        assert!(place + waiter <= 88, "{place} {waiter}");
    }
}
