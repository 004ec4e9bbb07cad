//! The event loop of a worker: the single task that decides, and the order in which endpoints send.

mod answers;
mod begin;
mod hint;
mod named;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use relent::random::SessionRandom;
use relent_core::{Permit, Session};
use tokio::sync::{Notify, watch};
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, sleep_until};

use self::named::Named;
use super::attempt::{Transport, Unmade};
use super::beat::{Pulse, beat};
use super::bodies::Bodies;
use super::calls::{Calls, Kind};
use super::config::{Drained, WorkerConfig};
use super::grants::Grants;
use super::held::{Asked, Because, Held};
use super::lane::{Lane, Ticket};
use super::slots::{Pool, Slots};
use crate::schedule::Schedule;
use crate::secrets::Secrets;
use crate::sender::{Sender, Sent};
use crate::store::{Claimed, Fence, First, Settled, Store};

/// The largest number of messages to claim or settle, or of endpoints to acquire, in one store call.
const BATCH: usize = 512;
/// The shortest time between two searches for work, even if there are many hints.
const LOOK_GAP: Duration = Duration::from_millis(5);
/// The number of endpoints that a search for work returns in addition to those that the worker owns.
const LOOK: usize = 2048;
/// The time in which isolated attempts may start, once nothing else runs; then other messages have their turn.
const ALONE: Duration = Duration::from_secs(10);
/// The limit of configured times: a hundred years.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// The longest time until a waiting endpoint is checked again, even if its wait is infinite.
const NEVER: Duration = Duration::from_secs(3600);
/// The shortest timer.
const TICK: Duration = Duration::from_millis(1);

pub(super) struct Scheduler<S> {
    store: S,
    sender: Sender,
    secrets: Secrets,
    config: WorkerConfig,
    transport: Transport,
    /// Whether the transport accepts attempts.
    open: watch::Receiver<bool>,
    hint: Arc<Notify>,
    asked: Option<Asked>,
    /// The zero of the clock of circuit breakers and rate limits.
    origin: Instant,
    random: SessionRandom,
    lanes: HashMap<i64, Lane>,
    slots: Slots,
    /// Endpoints to check, in turn.
    ready: VecDeque<i64>,
    /// Endpoints that wait for a slot, by pool.
    starved: [VecDeque<i64>; 3],
    /// The bytes of long payloads that are held, and the endpoints that wait for memory: those known to be fast, and
    /// others.
    bodies: Bodies,
    hungry: [VecDeque<i64>; 2],
    /// Endpoints with a message to send in isolation, in turn.
    alone: VecDeque<i64>,
    /// The first of them has its turn.
    is_alone: bool,
    /// When the others started to wait for isolated attempts; and until when none may start.
    alone_since: Option<Instant>,
    alone_at: Instant,
    /// Endpoints that wait for permission, with the time of their next request.
    wakes: BTreeSet<(Instant, i64)>,
    /// The known due times of messages, with their endpoints.
    dues: BTreeSet<(Instant, i64)>,
    /// Endpoints with tickets for the next claim, and the total number of tickets.
    ticketed: Vec<i64>,
    tickets: usize,
    /// Endpoints of the running claim, with the number of messages and their order.
    claiming: Vec<(i64, usize, First)>,
    /// The start of that claim, from which the permission to start its attempts counts.
    claim_began: Instant,
    /// Renews permissions of attempts, once the worker runs.
    grants: Option<Grants>,
    attempts: JoinSet<Result<Sent, Unmade>>,
    running: HashMap<Id, Running>,
    /// Running attempts in the order in which they become slow, and in which they give up slots of fast endpoints.
    aging: VecDeque<(Instant, Id)>,
    turning: VecDeque<(Instant, Id)>,
    /// Results to be written, and those being written.
    unsettled: VecDeque<Pending>,
    settling: Vec<Pending>,
    settle_began: Instant,
    to_acquire: VecDeque<i64>,
    named: Named,
    /// The earliest time to try again to acquire endpoints of other workers.
    ask_again_at: Instant,
    acquiring: HashSet<i64>,
    to_release: Vec<(i64, Fence)>,
    /// Some of them have due messages, as far as is known.
    release_due: bool,
    calls: Calls,
    pulse: watch::Receiver<Pulse>,
    /// Requests an immediate heartbeat.
    nudge: Arc<Notify>,
    /// The earliest time of the next request.
    nudge_at: Instant,
    /// There is work beyond this worker's share.
    is_short: bool,
    /// The number of lease losses that this loop has handled.
    lost: u64,
    poll_at: Instant,
    /// The start of the last search for work.
    looked_at: Instant,
    /// The limit of the last search for work.
    looked_for: usize,
    /// It reached the limit, so there may be more.
    is_cut: bool,
    /// The retry session of a store that has failed and not responded since.
    away: Option<Session>,
    /// The earliest time of the next store call.
    ask_at: Instant,
    /// The last attempt to write results failed: nothing is claimed until one succeeds.
    settle_failed: bool,
    settle_batch: usize,
    stopping: bool,
    /// Notifies attempts that the worker is stopping.
    stop: watch::Sender<bool>,
    cut_off: usize,
}

/// A running attempt.
struct Running {
    claimed: Claimed,
    claimed_at: Instant,
    schedule: Schedule,
    permit: Permit,
    pool: Pool,
    /// The permit is from the current circuit breaker of the endpoint if this equals [`Lane::epoch`].
    epoch: u32,
}

/// A result to be written.
struct Pending {
    settled: Settled,
    /// It changes the endpoint's health, which is written in its state at that time: a delayed result may be written
    /// after later ones.
    changes_health: bool,
    /// An earlier call for it failed, but may have taken effect.
    is_repeated: bool,
    /// [`Scheduler::lost`] at the end of the attempt.
    lost: u64,
    ended: Instant,
}

impl<S: Store> Scheduler<S> {
    pub(super) fn new(
        store: S,
        sender: Sender,
        secrets: Secrets,
        mut config: WorkerConfig,
        transport: Transport,
        hint: Arc<Notify>,
    ) -> Self {
        config.lease = config.lease.clamp(Duration::from_millis(100), LONGEST);
        config.poll = config.poll.clamp(LOOK_GAP, LONGEST);
        config.slow_after = config.slow_after.min(LONGEST);
        config.drain = config.drain.min(LONGEST);
        let now = Instant::now();
        let (_, pulse) = watch::channel(Pulse::NONE);
        Self {
            slots: Slots::new(config.in_flight.max(1), config.slow_in_flight.max(1)),
            bodies: Bodies::new(config.body_bytes),
            hungry: Default::default(),
            claim_began: now,
            grants: None,
            turning: VecDeque::new(),
            store,
            sender,
            secrets,
            config,
            transport,
            open: watch::channel(true).1,
            hint,
            asked: None,
            origin: now,
            random: SessionRandom::new(),
            lanes: HashMap::new(),
            ready: VecDeque::new(),
            starved: Default::default(),
            alone: VecDeque::new(),
            is_alone: false,
            alone_since: None,
            alone_at: now,
            wakes: BTreeSet::new(),
            dues: BTreeSet::new(),
            ticketed: Vec::new(),
            tickets: 0,
            claiming: Vec::new(),
            attempts: JoinSet::new(),
            running: HashMap::new(),
            aging: VecDeque::new(),
            unsettled: VecDeque::new(),
            settling: Vec::new(),
            settle_began: now,
            to_acquire: VecDeque::new(),
            named: Named::default(),
            ask_again_at: now,
            acquiring: HashSet::new(),
            to_release: Vec::new(),
            release_due: false,
            calls: Calls::default(),
            pulse,
            nudge: Arc::new(Notify::new()),
            nudge_at: now,
            is_short: false,
            lost: 0,
            poll_at: now,
            looked_at: now,
            looked_for: LOOK,
            is_cut: false,
            away: None,
            ask_at: now,
            settle_failed: false,
            settle_batch: BATCH,
            stopping: false,
            stop: watch::Sender::new(false),
            cut_off: 0,
        }
    }

    /// Claims only while the transport accepts attempts.
    #[cfg(feature = "nats")]
    pub(super) fn while_open(mut self, open: watch::Receiver<bool>) -> Self {
        self.open = open;
        self
    }

    /// Responds to requests on this channel with the held endpoints.
    pub(super) fn asked(mut self, asked: Asked) -> Self {
        self.asked = Some(asked);
        self
    }

    pub(super) async fn run(mut self, shutdown: impl Future<Output = ()>) -> Drained {
        let (sender, pulse) = watch::channel(Pulse::NONE);
        self.pulse = pulse;
        let (name, lease) = (self.config.name.clone(), self.config.lease);
        self.grants = Some(Grants::of(self.store.clone(), name.clone(), lease));
        let bodies = self.bodies.clone();
        // It ends when both receivers are dropped.
        let nudge = Arc::clone(&self.nudge);
        let mut beats = tokio::spawn(beat(self.store.clone(), name, lease, sender, nudge));
        let mut shutdown = pin!(shutdown);
        let (mut pulse, mut open) = (self.pulse.clone(), self.open.clone());
        let (hint, mut hints) = (Arc::clone(&self.hint), self.store.hints());
        let (mut cut_at, mut give_up_at) = (None, None);
        let mut asked = self.asked.take();
        loop {
            let now = Instant::now();
            self.turn(now);
            if self.stopping && (self.is_drained() || give_up_at.is_some_and(|at| at <= now)) {
                break;
            }
            if cut_at.is_some_and(|at| at <= now) {
                cut_at = None;
                self.attempts.abort_all();
            }
            let next = [self.next_timer(), cut_at, give_up_at];
            let next = next.into_iter().flatten().min();
            tokio::select! {
                // Without heartbeats the worker can do nothing more, either.
                () = async {
                    tokio::select! {
                        () = &mut shutdown => {}
                        _ = &mut beats => {}
                    }
                }, if !self.stopping => {
                    let now = Instant::now();
                    let cut = now + self.config.drain;
                    (cut_at, give_up_at) = (Some(cut), Some(cut + 2 * self.config.lease));
                    self.stop(now);
                }
                Ok(()) = pulse.changed() => {
                    let now = *pulse.borrow_and_update();
                    self.on_pulse(now);
                }
                Ok(()) = open.changed() => {}
                () = bodies.freed() => {}
                () = hint.notified(), if !self.stopping => self.look_soon(),
                hinted = hints.next(), if !self.stopping => {
                    self.on_hint(hinted);
                    while let Some(hinted) = hints.try_next() {
                        self.on_hint(hinted);
                    }
                }
                Some(answer) = async { asked.as_mut()?.recv().await } => {
                    // The receiver may be gone.
                    drop(answer.send(self.held()));
                }
                (kind, result) = self.calls.next() => self.on_call(kind, result),
                Some(ended) = self.attempts.join_next_with_id() => {
                    self.on_attempt(ended);
                    while let Some(ended) = self.attempts.try_join_next_with_id() {
                        self.on_attempt(ended);
                    }
                }
                () = sleep_until(next.unwrap_or(now)), if next.is_some() => {}
            }
        }
        self.attempts.shutdown().await;
        let drained = Drained {
            cut_off: self.cut_off,
            unsettled: self.unsettled.len() + self.settling.len() + self.running.len(),
        };
        drop((self, pulse));
        // The task ends by releasing the lease.
        if !beats.is_finished() {
            let _ = beats.await;
        }
        drained
    }

    /// The endpoints whose due messages wait.
    fn held(&self) -> Vec<Held> {
        let (now, wall) = (Instant::now(), SystemTime::now());
        let starved = self.starved.iter().chain(&self.hungry);
        let starved: HashSet<i64> = starved.flatten().copied().collect();
        let held = self.lanes.iter().filter_map(|(id, lane)| {
            let because = match lane.held(now, self.config.slow_after) {
                None if starved.contains(id) => Because::Slots,
                because => because?,
            };
            // For the other reasons the end of an attempt wakes the endpoint, not a timer.
            let waits = matches!(
                because,
                Because::Down
                    | Because::Recovering
                    | Because::Cooldown
                    | Because::RequestRate
                    | Because::LocalFault
            );
            let wakes = lane
                .wakes
                .filter(|at| waits && at.saturating_duration_since(now) < NEVER);
            let endpoint = &lane.rules.endpoint;
            Some(Held {
                tenant: endpoint.tenant.clone(),
                name: endpoint.name.clone(),
                because,
                until: wakes.map(|at| wall + at.saturating_duration_since(now)),
                running: lane.running,
                error: lane
                    .fault()
                    .map_or_else(String::new, |fault| fault.error.clone()),
            })
        });
        held.collect()
    }

    /// Searches for work soon: there may be some.
    fn look_soon(&mut self) {
        self.poll_at = self.poll_at.min(Instant::now() + LOOK_GAP);
    }

    /// Starts everything that can start.
    fn turn(&mut self, now: Instant) {
        self.age(now);
        while let Some(&(at, id)) = self.wakes.first().filter(|(at, _)| *at <= now) {
            self.wakes.remove(&(at, id));
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.wakes = None;
                self.mark_due(id);
            }
        }
        while self.dues.first().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, id)) = self.dues.pop_first() {
                self.hear_due(id);
            }
        }
        let may_claim = !self.stopping
            && !self.settle_failed
            && self.ask_at <= now
            && *self.open.borrow()
            && self.pulse.borrow().is_held(now);
        if may_claim {
            self.ask(now);
        } else {
            // Nothing can start, so the others do not wait for isolated attempts.
            self.alone_since = None;
        }
        self.begin_settle(now);
        self.begin_release();
        if !may_claim {
            return;
        }
        self.begin_claim();
        if self.poll_at <= now && !self.calls.is_busy(Kind::Find) {
            self.begin_find(now);
        }
        self.begin_acquire();
    }

    /// The time of the next action that no event triggers.
    fn next_timer(&self) -> Option<Instant> {
        let aging = [&self.aging, &self.turning].map(|of| of.front().map(|(at, _)| *at));
        let aging = aging.into_iter().flatten().min();
        let settle = (!self.unsettled.is_empty() && !self.calls.is_busy(Kind::Settle))
            .then_some(self.ask_at);
        let looks = !self.stopping
            && !self.settle_failed
            && *self.open.borrow()
            && !self.calls.is_busy(Kind::Find);
        // A renewed lease arrives as an event.
        let is_held = self.pulse.borrow().is_held(Instant::now());
        let find = (looks && is_held).then_some(self.poll_at);
        let timed = [&self.wakes, &self.dues].map(|of| of.first().map(|(at, _)| *at));
        let wake = timed.into_iter().flatten().min().filter(|_| !self.stopping);
        let next = [aging, settle, find, wake].into_iter().flatten().min();
        next.map(|at| at.max(Instant::now() + TICK))
    }

    /// Marks long-running attempts and their endpoints as slow. Earlier, such attempts give up their slots of fast
    /// endpoints.
    fn age(&mut self, now: Instant) {
        while let Some(&(_, id)) = self.turning.front().filter(|(at, _)| *at <= now) {
            self.turning.pop_front();
            if let Some(running) = self.running.get_mut(&id) {
                running.pool = self.slots.turn_slow(running.pool);
            }
        }
        while let Some(&(_, id)) = self.aging.front().filter(|(at, _)| *at <= now) {
            self.aging.pop_front();
            let Some(running) = self.running.get_mut(&id) else {
                continue;
            };
            running.pool = self.slots.turn_slow(running.pool);
            if let Some(lane) = self.lanes.get_mut(&running.claimed.endpoint) {
                lane.slow = true;
            }
        }
    }

    /// Notes that an endpoint may have a due message.
    fn mark_due(&mut self, id: i64) {
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.due = true;
            lane.due_again |= !lane.claiming.is_empty();
            self.look_at(id);
        }
    }

    fn look_at(&mut self, id: i64) {
        if let Some(lane) = self.lanes.get_mut(&id)
            && !lane.queued
        {
            lane.queued = true;
            self.ready.push_back(id);
        }
    }

    /// Schedules the endpoint's next request for permission.
    fn wake_at(&mut self, id: i64, at: Instant) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        match lane.wakes {
            Some(before) if before <= at => return,
            Some(before) => {
                self.wakes.remove(&(before, id));
            }
            None => {}
        }
        lane.wakes = Some(at);
        self.wakes.insert((at, id));
    }

    /// Requests permission to claim for one message of each endpoint in turn.
    fn ask(&mut self, now: Instant) {
        for pool in Pool::BEGUN {
            let starved = &mut self.starved[pool as usize];
            let free = self.slots.free(pool).min(starved.len());
            self.ready.extend(starved.drain(..free));
        }
        for is_doubtful in [false, true] {
            let mut free = self.bodies.free(is_doubtful);
            let hungry = &mut self.hungry[usize::from(is_doubtful)];
            while let Some(id) = hungry.front() {
                let large = self.lanes.get(id).map_or(0, |lane| lane.large);
                if large > free {
                    break;
                }
                free -= large;
                self.ready.extend(hungry.pop_front());
            }
        }
        if self.ask_alone(now) {
            return;
        }
        while self.tickets < BATCH
            && let Some(id) = self.ready.pop_front()
        {
            self.ask_lane(now, id);
        }
    }

    fn ask_lane(&mut self, now: Instant, id: i64) {
        let core_now = self.core(now);
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        lane.queued = false;
        if lane.stale && !lane.leaving {
            // The next claim returns the current endpoint.
            if lane.tickets.is_empty() && !std::mem::replace(&mut lane.refreshing, true) {
                self.ticketed.push(id);
            }
            return;
        }
        if !lane.has_room(now, self.config.slow_after) {
            // It is checked again when a claim returns, an attempt ends, or a message is due.
            if !lane.due {
                lane.stop_asking(core_now);
            }
            return;
        }
        if let Some(until) = lane.held_by_fault(now, &self.sender, &self.secrets) {
            self.wake_at(id, until);
            return;
        }
        let pool = lane.pool(now);
        if !self.slots.take(pool) {
            lane.queued = true;
            self.starved[pool as usize].push_back(id);
            return;
        }
        let is_doubtful = pool != Pool::Quick;
        let room = match lane.large {
            0 => None,
            large => match self.bodies.take(large, is_doubtful) {
                Some(room) => Some(room),
                None => {
                    self.slots.give_back(pool);
                    lane.queued = true;
                    self.hungry[usize::from(is_doubtful)].push_back(id);
                    return;
                }
            },
        };
        match lane.ask(core_now) {
            Ok(permit) => {
                if lane.tickets.is_empty() && !lane.refreshing {
                    self.ticketed.push(id);
                }
                lane.tickets.push(Ticket { permit, pool, room });
                self.tickets += 1;
                self.look_at(id);
            }
            Err(until) => {
                self.slots.give_back(pool);
                let wait = until.saturating_since(core_now).max(TICK);
                // Even an infinite wait must not lose an endpoint.
                let wait = wait.min(NEVER);
                self.wake_at(id, now + wait);
            }
        }
    }

    /// Starts messages that [need isolation](Self::goes_alone) one after another, once nothing else runs. Returns
    /// whether all others wait for that.
    fn ask_alone(&mut self, now: Instant) -> bool {
        if self.alone.is_empty() || now < self.alone_at {
            return false;
        }
        let waited = now.saturating_duration_since(*self.alone_since.get_or_insert(now));
        while self.is_quiet() {
            let mut is_over = false;
            if std::mem::take(&mut self.is_alone) {
                self.alone.pop_front();
                is_over = waited >= ALONE;
            }
            let Some(&id) = self.alone.front().filter(|_| !is_over) else {
                // Others may now send for as long as they have waited.
                self.alone_at = now + waited;
                self.alone_since = None;
                return false;
            };
            self.is_alone = true;
            if let Some(lane) = self.lanes.get_mut(&id) {
                (lane.alone, lane.due) = (false, true);
            }
            self.ask_lane(now, id);
        }
        true
    }

    /// Whether nothing runs, is claimed, or is to be written.
    fn is_quiet(&self) -> bool {
        self.running.is_empty()
            && self.tickets == 0
            && self.unsettled.is_empty()
            && !self.calls.is_busy(Kind::Claim)
            && !self.calls.is_busy(Kind::Settle)
    }

    /// Stops claiming.
    fn stop(&mut self, now: Instant) {
        self.stopping = true;
        self.stop.send_replace(true);
        self.ask_at = now;
        self.to_acquire.clear();
        self.named = Named::default();
        let all: Vec<i64> = self.lanes.keys().copied().collect();
        for id in all {
            self.leave(id);
        }
    }

    /// Stops claiming messages of an endpoint, and releases it when none of them runs or is to be written.
    fn leave(&mut self, id: i64) {
        let core_now = self.core(Instant::now());
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        lane.leaving = true;
        lane.stop_asking(core_now);
        self.give_tickets_back(id);
        self.close_if_over(id);
    }

    /// Releases the tickets of an endpoint that are not in a claim.
    fn give_tickets_back(&mut self, id: i64) {
        let core_now = self.core(Instant::now());
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        for ticket in std::mem::take(&mut lane.tickets) {
            lane.cancel(core_now, ticket.permit);
            self.slots.give_back(ticket.pool);
            self.tickets -= 1;
        }
    }

    fn close_if_over(&mut self, id: i64) {
        if let Some(lane) = self
            .lanes
            .get(&id)
            .filter(|lane| lane.leaving && lane.is_over())
        {
            self.to_release.push((id, lane.fence));
            self.release_due |= lane.due;
            if let Some(at) = lane.wakes {
                self.wakes.remove(&(at, id));
            }
            self.lanes.remove(&id);
        }
    }

    fn is_drained(&self) -> bool {
        self.lanes.is_empty()
            && self.running.is_empty()
            && self.unsettled.is_empty()
            && self.to_release.is_empty()
            && self.calls.is_empty()
    }

    /// Converts to the clock of circuit breakers and rate limits.
    fn core(&self, now: Instant) -> relent_core::Instant {
        let since = now.saturating_duration_since(self.origin);
        relent_core::Instant::ORIGIN.saturating_add(since)
    }
}
