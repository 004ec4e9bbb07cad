//! Attempts in flight: their tasks, and the slots and the memory that they hold.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::time::Duration;

use relent_core::destination::Permit;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;

use super::attempt::{AttemptEnd, Job, NoResult, Transport};
use super::payload_memory::{Bodies, PayloadPermit};
use super::slots::{Pool, Slots};
use crate::schedule::Schedule;
use crate::store::Claimed;

/// An attempt holds a slot of fast endpoints for this fraction of `slow_after`.
const SLOT_TIME_FRACTION: u32 = 10;

/// A slot for an attempt, and memory for its payload if it may be long.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) pool: Pool,
    pub(super) memory: Option<PayloadPermit>,
}

/// The reason that there is no [`Place`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Full {
    Slots,
    Memory,
}

/// A running attempt.
pub(super) struct Running {
    pub(super) claimed: Claimed,
    pub(super) claimed_at: Instant,
    pub(super) schedule: Schedule,
    pub(super) permit: Permit,
    pub(super) pool: Pool,
    /// The permit is from the current circuit breaker of the endpoint if this is its current epoch.
    pub(super) epoch: u32,
}

/// The running attempts of a worker, with the limits on their number and on their memory.
pub(super) struct InFlight {
    transport: Transport,
    tasks: JoinSet<AttemptEnd>,
    running: HashMap<Id, Running>,
    slots: Slots,
    bodies: Bodies,
    slow_after: Duration,
    /// Running attempts in the order in which they become slow, and in which they give up slots of fast endpoints.
    slow_at: VecDeque<(Instant, Id)>,
    slot_release_at: VecDeque<(Instant, Id)>,
    /// The number of attempts that were cut off.
    aborted: usize,
}

impl InFlight {
    pub(super) fn new(
        transport: Transport,
        slots: Slots,
        bodies: Bodies,
        slow_after: Duration,
    ) -> Self {
        Self {
            transport,
            tasks: JoinSet::new(),
            running: HashMap::new(),
            slots,
            bodies,
            slow_after,
            slow_at: VecDeque::new(),
            slot_release_at: VecDeque::new(),
            aborted: 0,
        }
    }

    /// Whether the transport accepts attempts.
    pub(super) fn is_open(&self) -> bool {
        self.transport.is_open()
    }

    /// Whether this process makes the attempts.
    pub(super) const fn is_in_process(&self) -> bool {
        self.transport.is_in_process()
    }

    pub(super) const fn slots(&self) -> &Slots {
        &self.slots
    }

    pub(super) const fn bodies(&self) -> &Bodies {
        &self.bodies
    }

    /// Takes a slot of this pool, and memory for a payload of this size, which is 0 for a short one.
    pub(super) fn reserve(&mut self, pool: Pool, size: usize) -> Result<Place, Full> {
        if !self.slots.take(pool) {
            return Err(Full::Slots);
        }
        let mut place = Place { pool, memory: None };
        match self.fit(&mut place, size) {
            true => Ok(place),
            false => {
                self.give_back(place);
                Err(Full::Memory)
            }
        }
    }

    /// Adapts the memory to a payload of this size. Returns whether there is enough.
    pub(super) fn fit(&self, place: &mut Place, size: usize) -> bool {
        place.memory = match place.memory.take() {
            _ if size == 0 => None,
            Some(mut memory) if memory.bytes() >= size => {
                memory.shrink(size);
                Some(memory)
            }
            memory => {
                drop(memory);
                self.bodies.take(size, place.pool != Pool::Fast)
            }
        };
        size == 0 || place.memory.is_some()
    }

    /// Returns a place that no attempt has used.
    pub(super) fn give_back(&mut self, place: Place) {
        self.slots.give_back(place.pool);
        drop(place.memory);
    }

    /// Starts an attempt.
    pub(super) fn start(&mut self, now: Instant, job: Job, running: Running) {
        self.spawn(now, self.transport.make(job), running);
    }

    fn spawn(
        &mut self,
        now: Instant,
        attempt: impl Future<Output = AttemptEnd> + Send + 'static,
        running: Running,
    ) {
        let id = self.tasks.spawn(attempt).id();
        self.slow_at.push_back((now + self.slow_after, id));
        if running.pool != Pool::Slow {
            let at = now + self.slow_after / SLOT_TIME_FRACTION;
            self.slot_release_at.push_back((at, id));
        }
        self.running.insert(id, running);
    }

    /// Moves long-running attempts to the slots of those that turned out slow, first from the slots of fast endpoints.
    /// Returns the endpoints of attempts that are slow by now.
    pub(super) fn mark_slow(&mut self, now: Instant) -> Vec<i64> {
        while let Some(&(_, id)) = self.slot_release_at.front().filter(|(at, _)| *at <= now) {
            self.slot_release_at.pop_front();
            self.turn(id);
        }
        let mut slow = Vec::new();
        while let Some(&(_, id)) = self.slow_at.front().filter(|(at, _)| *at <= now) {
            self.slow_at.pop_front();
            slow.extend(self.turn(id));
        }
        slow
    }

    fn turn(&mut self, id: Id) -> Option<i64> {
        let running = self.running.get_mut(&id)?;
        running.pool = self.slots.move_to_turned_pool(running.pool);
        Some(running.claimed.endpoint)
    }

    /// The time of the next action in [`mark_slow`](Self::mark_slow).
    pub(super) fn next_timer(&self) -> Option<Instant> {
        let first = [&self.slow_at, &self.slot_release_at].map(|of| of.front().map(|(at, _)| *at));
        first.into_iter().flatten().min()
    }

    /// Waits for the end of an attempt; `None` if none runs.
    pub(super) async fn next_end(&mut self) -> Option<(Running, AttemptEnd)> {
        loop {
            let ended = self.tasks.join_next_with_id().await?;
            if let Some(ended) = self.ended(ended) {
                return Some(ended);
            }
        }
    }

    /// The end of an attempt that has ended already.
    pub(super) fn try_next_end(&mut self) -> Option<(Running, AttemptEnd)> {
        loop {
            let ended = self.tasks.try_join_next_with_id()?;
            if let Some(ended) = self.ended(ended) {
                return Some(ended);
            }
        }
    }

    /// Frees the slot of an attempt. Its memory is free when its payload is.
    fn ended(
        &mut self,
        ended: Result<(Id, AttemptEnd), JoinError>,
    ) -> Option<(Running, AttemptEnd)> {
        let (id, end) = match ended {
            Ok(ended) => ended,
            Err(error) if error.is_cancelled() => {
                self.aborted += 1;
                let why = "cut off, since the worker was stopped";
                (error.id(), Err(NoResult::Unknown(why)))
            }
            Err(error) => {
                let why = "the attempt broke off by a fault of the worker";
                (error.id(), Err(NoResult::Unknown(why)))
            }
        };
        let running = self.running.remove(&id)?;
        self.slots.give_back(running.pool);
        Some((running, end))
    }

    /// Cuts all attempts off.
    pub(super) fn abort(&mut self) {
        self.tasks.abort_all();
    }

    /// Cuts all attempts off, and waits until their tasks have ended.
    pub(super) async fn shutdown(&mut self) {
        self.tasks.shutdown().await;
    }

    /// The number of running attempts.
    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// The number of attempts that were cut off.
    pub(super) const fn aborted(&self) -> usize {
        self.aborted
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::UNIX_EPOCH;

    use relent_core::destination::{Admission, AdmissionRequest, AttemptKind, Cooldown, Outbound};
    use relent_core::{FixedRandom, Policy};
    use tokio::sync::watch;

    use super::*;
    use crate::message::MessageId;
    use crate::store::Fence;

    const SECOND: Duration = Duration::from_secs(1);

    fn in_flight(slots: usize, bytes: usize) -> InFlight {
        let transport = Transport::new(watch::channel(true).1, |_| pending());
        let slots = Slots::new(slots, slots);
        InFlight::new(transport, slots, Bodies::new(bytes), SECOND)
    }

    fn permit() -> Permit {
        let now = relent_core::Instant::ORIGIN;
        let request = AdmissionRequest {
            id: 1,
            since: now,
            last_start: relent_core::Instant::MAX,
            answer_by: relent_core::Instant::MAX,
            longest: Duration::MAX,
            jitter: 0.0,
            kind: AttemptKind::First,
            waits_without_limit: true,
            rate_limit_only: false,
            may_wait: true,
        };
        let (mut random, cooldown) = (FixedRandom::at(0.5), Cooldown::new());
        let mut outbound = Outbound::new(Policy::STANDARD);
        match outbound.admit(now, &request, &cooldown, &mut random) {
            Admission::Start(permit) => permit,
            held => panic!("{held:?}"),
        }
    }

    fn running(now: Instant, endpoint: i64, pool: Pool) -> Running {
        Running {
            claimed: Claimed {
                row: 1,
                endpoint,
                fence: Fence(1),
                revision: 1,
                id: MessageId::new(),
                content_type: String::new(),
                payload: bytes::Bytes::new(),
                size: 0,
                attempt: 1,
                ordered: false,
                session: Vec::new(),
                began: UNIX_EPOCH,
                now: UNIX_EPOCH,
                started: UNIX_EPOCH,
                lost: false,
            },
            claimed_at: now,
            schedule: Schedule::at_attempt(&[], 1, UNIX_EPOCH),
            permit: permit(),
            pool,
            epoch: 0,
        }
    }

    #[test]
    fn a_place_has_a_slot_and_memory_or_neither() {
        let mut in_flight = in_flight(2, 100);
        let first = in_flight.reserve(Pool::Fast, 80).unwrap();
        assert_eq!(in_flight.reserve(Pool::Fast, 30).unwrap_err(), Full::Memory);
        let mut second = in_flight.reserve(Pool::Fast, 0).unwrap();
        assert_eq!(in_flight.reserve(Pool::Fast, 0).unwrap_err(), Full::Slots);
        assert!(in_flight.fit(&mut second, 20) && !in_flight.fit(&mut second, 30));
        in_flight.give_back(first);
        assert!(in_flight.fit(&mut second, 30));
        in_flight.give_back(second);
        assert_eq!(in_flight.slots().free(Pool::Fast), 2);
    }

    #[tokio::test]
    async fn a_long_attempt_gives_up_its_slot_early_and_is_slow_later() {
        let (mut in_flight, now) = (in_flight(1, 100), Instant::now());
        let place = in_flight.reserve(Pool::Fast, 0).unwrap();
        in_flight.spawn(now, pending(), running(now, 7, place.pool));
        let early = now + SECOND / SLOT_TIME_FRACTION;
        assert_eq!(in_flight.next_timer(), Some(early));
        assert_eq!(in_flight.slots().free(Pool::Fast), 0);
        assert!(in_flight.mark_slow(early).is_empty());
        assert_eq!(in_flight.slots().free(Pool::Fast), 1);
        assert_eq!(in_flight.mark_slow(now + SECOND), [7]);
        assert_eq!(in_flight.next_timer(), None);
    }

    #[tokio::test]
    async fn the_end_of_an_attempt_frees_its_slot_and_an_abort_is_counted() {
        let (mut in_flight, now) = (in_flight(2, 100), Instant::now());
        for endpoint in [1, 2] {
            let place = in_flight.reserve(Pool::Fast, 0).unwrap();
            let running = running(now, endpoint, place.pool);
            match endpoint {
                1 => in_flight.spawn(now, ready(Err(NoResult::NotStarted)), running),
                _ => in_flight.spawn(now, pending(), running),
            }
        }
        let (ended, result) = in_flight.next_end().await.unwrap();
        assert_eq!(ended.claimed.endpoint, 1);
        assert_eq!(result, Err(NoResult::NotStarted));
        assert_eq!(
            (in_flight.len(), in_flight.slots().free(Pool::Fast)),
            (1, 1)
        );
        in_flight.abort();
        let (ended, result) = in_flight.next_end().await.unwrap();
        assert_eq!(ended.claimed.endpoint, 2);
        assert!(matches!(result, Err(NoResult::Unknown(why)) if why.contains("cut off")));
        assert_eq!(
            (in_flight.aborted(), in_flight.slots().free(Pool::Fast)),
            (1, 2)
        );
        assert!(in_flight.next_end().await.is_none() && in_flight.is_empty());
    }
}
