//! The ready queue: which endpoint may request its next attempt, fairly among all of them.
//!
//! An endpoint is checked in turn. One that finds no slot or no memory waits in a queue for it, so that others continue.
//! One that its circuit breaker, rate limit or cooldown holds has a timer.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use tokio::time::Instant;

use super::payload_memory::Bodies;
use super::slots::{Pool, Slots};

/// The endpoints to check, in turn, and those that wait.
#[derive(Debug, Default)]
pub(super) struct ReadyQueue {
    ready: VecDeque<i64>,
    /// Endpoints that have waited for a slot or for memory, to be checked before those in `ready`.
    released: VecDeque<i64>,
    /// The endpoints that are in `ready` or `released`, or wait for a slot or for memory: each is in one queue once.
    queued: HashSet<i64>,
    /// Endpoints that wait for a slot, by pool.
    for_slot: [VecDeque<Waiter>; 3],
    /// Endpoints that wait for memory: those known to be fast, and others.
    for_memory: [VecDeque<Waiter>; 2],
    arrivals: u64,
    /// Endpoints that wait for permission, with the time of their next request.
    timers: BTreeSet<(Instant, i64)>,
    wakes: HashMap<i64, Instant>,
    /// The known due times of messages, with their endpoints.
    due: BTreeSet<(Instant, i64)>,
}

/// An endpoint that waits, after the number of its arrival: pools share slots, and all share the memory.
type Waiter = (u64, i64);

impl ReadyQueue {
    /// Queues an endpoint for a check, unless it is queued.
    pub(super) fn push(&mut self, id: i64) {
        if self.queued.insert(id) {
            self.ready.push_back(id);
        }
    }

    /// Takes the next endpoint to check.
    pub(super) fn pop(&mut self) -> Option<i64> {
        self.released.pop_front().or_else(|| self.ready.pop_front())
    }

    /// The check of an endpoint begins: from now on it may be queued again.
    pub(super) fn begin_check(&mut self, id: i64) {
        self.queued.remove(&id);
    }

    /// The endpoint waits until a slot of this pool is free.
    pub(super) fn wait_for_slot(&mut self, id: i64, pool: Pool) {
        let waiter = self.arrives(id);
        self.for_slot[pool as usize].push_back(waiter);
    }

    /// The endpoint waits until memory for its payload is free. `may_be_slow`: it is not known to be fast.
    pub(super) fn wait_for_memory(&mut self, id: i64, may_be_slow: bool) {
        let waiter = self.arrives(id);
        self.for_memory[usize::from(may_be_slow)].push_back(waiter);
    }

    fn arrives(&mut self, id: i64) -> Waiter {
        self.queued.insert(id);
        self.arrivals += 1;
        (self.arrivals, id)
    }

    /// Readies the waiting endpoints that now find a slot, then those that find memory, each in the order of their
    /// arrival, and before all others: an endpoint with a backlog is queued again as soon as it has freed a slot. One
    /// that then lacks the other of both waits behind later ones. `size`: the bytes that an endpoint needs.
    pub(super) fn release_waiters(
        &mut self,
        slots: &Slots,
        bodies: &Bodies,
        size: impl Fn(i64) -> usize,
    ) {
        if !self.released.is_empty() {
            // None is released for a slot that belongs to an earlier one.
            return;
        }
        let mut left = slots.clone();
        while let Some((pool, id)) = first(Pool::START_POOLS, |pool| {
            let waiter = self.for_slot[pool as usize].front()?;
            (left.free(pool) > 0).then_some(*waiter)
        }) {
            self.for_slot[pool as usize].pop_front();
            left.take(pool);
            self.released.push_back(id);
        }
        let mut free = [false, true].map(|may_be_slow| bodies.free(may_be_slow));
        while let Some((class, id)) = first([0, 1], |class: usize| {
            let waiter = self.for_memory[class].front()?;
            (size(waiter.1) <= free[class]).then_some(*waiter)
        }) {
            self.for_memory[class].pop_front();
            free = free.map(|free| free.saturating_sub(size(id)));
            self.released.push_back(id);
        }
    }

    /// The endpoints that wait for a slot or for memory.
    pub(super) fn waiters(&self) -> HashSet<i64> {
        let waiters = self.for_slot.iter().chain(&self.for_memory);
        waiters.flatten().map(|(_, id)| *id).collect()
    }

    /// Sets the time of the endpoint's next request for permission, unless it has an earlier one.
    pub(super) fn wake_at(&mut self, id: i64, at: Instant) {
        match self.wakes.get(&id) {
            Some(before) if *before <= at => return,
            Some(before) => {
                self.timers.remove(&(*before, id));
            }
            None => {}
        }
        self.wakes.insert(id, at);
        self.timers.insert((at, id));
    }

    /// The time of the endpoint's next request for permission, if it waits for it.
    pub(super) fn wakes_at(&self, id: i64) -> Option<Instant> {
        self.wakes.get(&id).copied()
    }

    /// Takes an endpoint whose next request is due.
    pub(super) fn pop_woken(&mut self, now: Instant) -> Option<i64> {
        let &(at, id) = self.timers.first().filter(|(at, _)| *at <= now)?;
        self.timers.remove(&(at, id));
        self.wakes.remove(&id);
        Some(id)
    }

    /// The endpoint has a message that is due at this time.
    pub(super) fn due_at(&mut self, id: i64, at: Instant) {
        self.due.insert((at, id));
    }

    /// Takes an endpoint with a due message.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<i64> {
        self.due.first().filter(|(at, _)| *at <= now)?;
        self.due.pop_first().map(|(_, id)| id)
    }

    /// The time of the next timer.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        let first = [&self.timers, &self.due].map(|of| of.first().map(|(at, _)| *at));
        first.into_iter().flatten().min()
    }

    /// Forgets an endpoint that the worker releases. Its places in queues and its due times have no effect.
    pub(super) fn forget(&mut self, id: i64) {
        self.queued.remove(&id);
        if let Some(at) = self.wakes.remove(&id) {
            self.timers.remove(&(at, id));
        }
    }
}

/// The queue whose first waiter has come before those of the others, and that waiter.
fn first<Q: Copy, const N: usize>(
    queues: [Q; N],
    waiter: impl Fn(Q) -> Option<Waiter>,
) -> Option<(Q, i64)> {
    let first = queues
        .into_iter()
        .filter_map(|queue| Some((waiter(queue)?, queue)));
    let first = first.min_by_key(|(waiter, _)| *waiter);
    first.map(|((_, id), queue)| (queue, id))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn all(queue: &mut ReadyQueue) -> Vec<i64> {
        std::iter::from_fn(|| {
            let id = queue.pop()?;
            queue.begin_check(id);
            Some(id)
        })
        .collect()
    }

    #[test]
    fn endpoints_are_checked_in_turn_and_queued_once() {
        let mut queue = ReadyQueue::default();
        for id in [1, 2, 1, 3, 2] {
            queue.push(id);
        }
        assert_eq!(all(&mut queue), [1, 2, 3]);
        queue.push(1);
        assert_eq!(all(&mut queue), [1], "it is checked again");
    }

    #[test]
    fn as_many_endpoints_are_released_as_there_are_free_slots() {
        let (mut queue, bodies) = (ReadyQueue::default(), Bodies::new(100));
        let mut slots = Slots::new(2, 1);
        assert!(slots.take(Pool::Fast) && slots.take(Pool::Slow));
        for id in 1..=3 {
            queue.wait_for_slot(id, Pool::Fast);
        }
        queue.wait_for_slot(4, Pool::Slow);
        queue.push(1);
        queue.release_waiters(&slots, &bodies, |_| 0);
        assert_eq!(all(&mut queue), [1], "a waiter is queued once");
        assert_eq!(queue.waiters(), HashSet::from([2, 3, 4]));
    }

    #[test]
    fn waiters_of_all_pools_go_in_the_order_of_arrival_and_before_others() {
        let (mut queue, bodies) = (ReadyQueue::default(), Bodies::new(100));
        for (id, pool) in [(1, Pool::Unknown), (2, Pool::Fast), (3, Pool::Unknown)] {
            queue.wait_for_slot(id, pool);
        }
        queue.push(4);
        // Unknown endpoints get at most one of two slots. They may be checked later.
        for _ in 0..2 {
            queue.release_waiters(&Slots::new(2, 1), &bodies, |_| 0);
        }
        assert_eq!(all(&mut queue), [1, 2, 4]);
        assert_eq!(queue.waiters(), HashSet::from([3]));
    }

    #[test]
    fn a_payload_that_does_not_fit_keeps_its_place_before_smaller_ones() {
        let (mut queue, slots) = (ReadyQueue::default(), Slots::new(1, 1));
        let bodies = Bodies::new(100);
        let held = bodies.take(60, false).unwrap();
        for id in [30, 50, 10] {
            queue.wait_for_memory(id, false);
        }
        let size = |id| usize::try_from(id).unwrap();
        queue.release_waiters(&slots, &bodies, size);
        assert_eq!(all(&mut queue), [30]);
        drop(held);
        queue.release_waiters(&slots, &bodies, size);
        assert_eq!(all(&mut queue), [50, 10]);
    }

    #[test]
    fn endpoints_that_wait_for_memory_go_in_the_order_of_arrival() {
        let (mut queue, slots) = (ReadyQueue::default(), Slots::new(1, 1));
        let bodies = Bodies::new(100);
        let _held = bodies.take(20, false).unwrap();
        for (id, may_be_slow) in [(30, true), (40, false), (60, true), (10, false)] {
            queue.wait_for_memory(id, may_be_slow);
        }
        // The third does not fit.
        queue.release_waiters(&slots, &bodies, |id| usize::try_from(id).unwrap());
        assert_eq!(all(&mut queue), [30, 40, 10]);
    }

    #[test]
    fn the_earliest_request_of_an_endpoint_counts() {
        let (mut queue, now) = (ReadyQueue::default(), Instant::now());
        queue.wake_at(1, now + 3 * SECOND);
        queue.wake_at(1, now + SECOND);
        queue.wake_at(1, now + 2 * SECOND);
        assert_eq!(queue.wakes_at(1), Some(now + SECOND));
        assert_eq!(queue.pop_woken(now), None);
        assert_eq!(queue.pop_woken(now + SECOND), Some(1));
        assert_eq!((queue.wakes_at(1), queue.next_timer()), (None, None));
    }

    #[test]
    fn a_forgotten_endpoint_has_no_timer() {
        let (mut queue, now) = (ReadyQueue::default(), Instant::now());
        queue.wake_at(1, now);
        queue.due_at(2, now + SECOND);
        queue.forget(1);
        assert_eq!(queue.pop_woken(now), None);
        assert_eq!(queue.next_timer(), Some(now + SECOND));
        assert_eq!(queue.pop_due(now), None);
        assert_eq!(queue.pop_due(now + SECOND), Some(2));
    }
}
