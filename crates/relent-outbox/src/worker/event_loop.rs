//! The event loop of a worker: the single task that decides, and the order in which endpoints send.

mod hint;
mod named;
mod results;
mod store_calls;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use relent::random::SessionRandom;
use relent_core::Session;
use relent_core::destination::Permit;
use tokio::sync::{Notify, watch};
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, sleep_until};

use self::named::HintedEndpoints;
use super::attempt::{NoResult, Transport};
use super::bodies::Bodies;
use super::calls::{Calls, StoreCall};
use super::config::{Drained, WorkerConfig};
use super::endpoint_state::{EndpointState, Ticket};
use super::heartbeat::{LeaseState, heartbeat};
use super::held::{HeldEndpoint, HeldRequests, HoldReason};
use super::permission::Grants;
use super::slots::{Pool, Slots};
use crate::schedule::Schedule;
use crate::secrets::Secrets;
use crate::sender::{AttemptResult, Sender};
use crate::store::{ClaimOrder, Claimed, Fence, Settled, Store};

/// The largest number of messages to claim or settle, or of endpoints to acquire, in one store call.
const MAX_CALL_ITEMS: usize = 512;
/// The shortest time between two searches for work, even if there are many hints.
const MIN_SEARCH_INTERVAL: Duration = Duration::from_millis(5);
/// The number of endpoints that a search for work returns in addition to those that the worker owns.
const MAX_EXTRA_ENDPOINTS: usize = 2048;
/// The time in which isolated attempts may start, once nothing else runs; then other messages have their turn.
const MAX_ISOLATION_TIME: Duration = Duration::from_secs(10);
/// The limit of configured times: a hundred years.
const MAX_CONFIGURED_TIME: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// The longest time until a waiting endpoint is checked again, even if its wait is infinite.
const MAX_RECHECK_WAIT: Duration = Duration::from_secs(3600);
/// The shortest timer.
const MIN_TIMER: Duration = Duration::from_millis(1);

pub(super) struct EventLoop<S> {
    store: S,
    sender: Sender,
    secrets: Secrets,
    config: WorkerConfig,
    transport: Transport,
    /// Whether the transport accepts attempts.
    open: watch::Receiver<bool>,
    hint: Arc<Notify>,
    asked: Option<HeldRequests>,
    /// The zero of the clock of circuit breakers and rate limits.
    origin: Instant,
    random: SessionRandom,
    endpoint_states: HashMap<i64, EndpointState>,
    slots: Slots,
    /// Endpoints to check, in turn.
    ready: VecDeque<i64>,
    /// Endpoints that wait for a slot, by pool.
    waiting_for_slot: [VecDeque<i64>; 3],
    /// The bytes of long payloads that are held, and the endpoints that wait for memory: those known to be fast, and
    /// others.
    bodies: Bodies,
    waiting_for_memory: [VecDeque<i64>; 2],
    /// Endpoints with a message to send in isolation, in turn.
    alone: VecDeque<i64>,
    /// The first of them has its turn.
    isolation_active: bool,
    /// When the others started to wait for isolated attempts; and until when none may start.
    isolation_wanted_since: Option<Instant>,
    isolation_allowed_at: Instant,
    /// Endpoints that wait for permission, with the time of their next request.
    wakes: BTreeSet<(Instant, i64)>,
    /// The known due times of messages, with their endpoints.
    due_at: BTreeSet<(Instant, i64)>,
    /// Endpoints with tickets for the next claim, and the total number of tickets.
    ticketed: Vec<i64>,
    tickets: usize,
    /// Endpoints of the running claim, with the number of messages and their order.
    claiming: Vec<(i64, usize, ClaimOrder)>,
    /// The start of that claim, from which the permission to start its attempts counts.
    claim_began: Instant,
    /// Renews permissions of attempts, once the worker runs.
    grants: Option<Grants>,
    attempts: JoinSet<Result<AttemptResult, NoResult>>,
    running: HashMap<Id, Running>,
    /// Running attempts in the order in which they become slow, and in which they give up slots of fast endpoints.
    slow_at: VecDeque<(Instant, Id)>,
    slot_release_at: VecDeque<(Instant, Id)>,
    /// Results to be written, and those being written.
    unsettled: VecDeque<Pending>,
    settling: Vec<Pending>,
    settle_began: Instant,
    to_acquire: VecDeque<i64>,
    named: HintedEndpoints,
    /// The earliest time to try again to acquire endpoints of other workers.
    ask_again_at: Instant,
    acquiring: HashSet<i64>,
    to_release: Vec<(i64, Fence)>,
    /// Some of them have due messages, as far as is known.
    release_due: bool,
    calls: Calls,
    pulse: watch::Receiver<LeaseState>,
    /// Requests an immediate heartbeat.
    nudge: Arc<Notify>,
    /// The earliest time of the next request.
    nudge_at: Instant,
    /// There is work beyond this worker's share.
    has_work_beyond_share: bool,
    /// The number of lease losses that this loop has handled.
    lost: u64,
    poll_at: Instant,
    /// The start of the last search for work.
    looked_at: Instant,
    /// The limit of the last search for work.
    looked_for: usize,
    /// It reached the limit, so there may be more.
    search_was_truncated: bool,
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
    aborted: usize,
}

/// A running attempt.
struct Running {
    claimed: Claimed,
    claimed_at: Instant,
    schedule: Schedule,
    permit: Permit,
    pool: Pool,
    /// The permit is from the current circuit breaker of the endpoint if this equals [`EndpointState::epoch`].
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
    /// [`EventLoop::lost`] at the end of the attempt.
    lost: u64,
    ended: Instant,
}

impl<S: Store> EventLoop<S> {
    pub(super) fn new(
        store: S,
        sender: Sender,
        secrets: Secrets,
        mut config: WorkerConfig,
        transport: Transport,
        hint: Arc<Notify>,
    ) -> Self {
        config.lease = config
            .lease
            .clamp(Duration::from_millis(100), MAX_CONFIGURED_TIME);
        config.poll = config.poll.clamp(MIN_SEARCH_INTERVAL, MAX_CONFIGURED_TIME);
        config.slow_after = config.slow_after.min(MAX_CONFIGURED_TIME);
        config.drain = config.drain.min(MAX_CONFIGURED_TIME);
        let now = Instant::now();
        let (_, pulse) = watch::channel(LeaseState::NONE);
        Self {
            slots: Slots::new(config.in_flight.max(1), config.slow_in_flight.max(1)),
            bodies: Bodies::new(config.body_bytes),
            waiting_for_memory: Default::default(),
            claim_began: now,
            grants: None,
            slot_release_at: VecDeque::new(),
            store,
            sender,
            secrets,
            config,
            open: transport.open(),
            transport,
            hint,
            asked: None,
            origin: now,
            random: SessionRandom::new(),
            endpoint_states: HashMap::new(),
            ready: VecDeque::new(),
            waiting_for_slot: Default::default(),
            alone: VecDeque::new(),
            isolation_active: false,
            isolation_wanted_since: None,
            isolation_allowed_at: now,
            wakes: BTreeSet::new(),
            due_at: BTreeSet::new(),
            ticketed: Vec::new(),
            tickets: 0,
            claiming: Vec::new(),
            attempts: JoinSet::new(),
            running: HashMap::new(),
            slow_at: VecDeque::new(),
            unsettled: VecDeque::new(),
            settling: Vec::new(),
            settle_began: now,
            to_acquire: VecDeque::new(),
            named: HintedEndpoints::default(),
            ask_again_at: now,
            acquiring: HashSet::new(),
            to_release: Vec::new(),
            release_due: false,
            calls: Calls::default(),
            pulse,
            nudge: Arc::new(Notify::new()),
            nudge_at: now,
            has_work_beyond_share: false,
            lost: 0,
            poll_at: now,
            looked_at: now,
            looked_for: MAX_EXTRA_ENDPOINTS,
            search_was_truncated: false,
            away: None,
            ask_at: now,
            settle_failed: false,
            settle_batch: MAX_CALL_ITEMS,
            stopping: false,
            stop: watch::Sender::new(false),
            aborted: 0,
        }
    }

    /// Responds to requests on this channel with the held endpoints.
    pub(super) fn asked(mut self, asked: HeldRequests) -> Self {
        self.asked = Some(asked);
        self
    }

    pub(super) async fn run(mut self, shutdown: impl Future<Output = ()>) -> Drained {
        let (sender, pulse) = watch::channel(LeaseState::NONE);
        self.pulse = pulse;
        let (name, lease) = (self.config.name.clone(), self.config.lease);
        self.grants = Some(Grants::of(self.store.clone(), name.clone(), lease));
        let bodies = self.bodies.clone();
        // It ends when both receivers are dropped.
        let nudge = Arc::clone(&self.nudge);
        let mut heartbeats =
            tokio::spawn(heartbeat(self.store.clone(), name, lease, sender, nudge));
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
                        _ = &mut heartbeats => {}
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
                () = hint.notified(), if !self.stopping => self.search_soon(),
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
            aborted: self.aborted,
            unsettled: self.unsettled.len() + self.settling.len() + self.running.len(),
        };
        drop((self, pulse));
        // The task ends by releasing the lease.
        if !heartbeats.is_finished() {
            let _ = heartbeats.await;
        }
        drained
    }

    /// The endpoints whose due messages wait.
    fn held(&self) -> Vec<HeldEndpoint> {
        let (now, wall) = (Instant::now(), SystemTime::now());
        let waiting_for_slot = self.waiting_for_slot.iter().chain(&self.waiting_for_memory);
        let waiting_for_slot: HashSet<i64> = waiting_for_slot.flatten().copied().collect();
        let held = self
            .endpoint_states
            .iter()
            .filter_map(|(id, endpoint_state)| {
                let hold_reason = match endpoint_state.held(now, self.config.slow_after) {
                    None if waiting_for_slot.contains(id) => HoldReason::Slots,
                    hold_reason => hold_reason?,
                };
                // For the other reasons the end of an attempt wakes the endpoint, not a timer.
                let waits = matches!(
                    hold_reason,
                    HoldReason::Down
                        | HoldReason::Recovering
                        | HoldReason::Cooldown
                        | HoldReason::RateLimit
                        | HoldReason::LocalFault
                );
                let wakes = endpoint_state
                    .wakes
                    .filter(|at| waits && at.saturating_duration_since(now) < MAX_RECHECK_WAIT);
                let endpoint = &endpoint_state.rules.endpoint;
                Some(HeldEndpoint {
                    tenant: endpoint.tenant.clone(),
                    name: endpoint.name.clone(),
                    hold_reason,
                    until: wakes.map(|at| wall + at.saturating_duration_since(now)),
                    running: endpoint_state.running,
                    error: endpoint_state
                        .fault()
                        .map_or_else(String::new, |fault| fault.error.clone()),
                })
            });
        held.collect()
    }

    /// Searches for work soon: there may be some.
    fn search_soon(&mut self) {
        self.poll_at = self.poll_at.min(Instant::now() + MIN_SEARCH_INTERVAL);
    }

    /// Starts everything that can start.
    fn turn(&mut self, now: Instant) {
        self.mark_slow_attempts(now);
        while let Some(&(at, id)) = self.wakes.first().filter(|(at, _)| *at <= now) {
            self.wakes.remove(&(at, id));
            if let Some(endpoint_state) = self.endpoint_states.get_mut(&id) {
                endpoint_state.wakes = None;
                self.mark_due(id);
            }
        }
        while self.due_at.first().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, id)) = self.due_at.pop_first() {
                self.on_due(id);
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
            self.isolation_wanted_since = None;
        }
        self.begin_settle(now);
        self.begin_release();
        if !may_claim {
            return;
        }
        self.begin_claim();
        if self.poll_at <= now && !self.calls.is_busy(StoreCall::Find) {
            self.begin_find(now);
        }
        self.begin_acquire();
    }

    /// The time of the next action that no event triggers.
    fn next_timer(&self) -> Option<Instant> {
        let slow_at =
            [&self.slow_at, &self.slot_release_at].map(|of| of.front().map(|(at, _)| *at));
        let slow_at = slow_at.into_iter().flatten().min();
        let settle = (!self.unsettled.is_empty() && !self.calls.is_busy(StoreCall::Settle))
            .then_some(self.ask_at);
        let looks = !self.stopping
            && !self.settle_failed
            && *self.open.borrow()
            && !self.calls.is_busy(StoreCall::Find);
        // A renewed lease arrives as an event.
        let is_held = self.pulse.borrow().is_held(Instant::now());
        let find = (looks && is_held).then_some(self.poll_at);
        let timed = [&self.wakes, &self.due_at].map(|of| of.first().map(|(at, _)| *at));
        let wake = timed.into_iter().flatten().min().filter(|_| !self.stopping);
        let next = [slow_at, settle, find, wake].into_iter().flatten().min();
        next.map(|at| at.max(Instant::now() + MIN_TIMER))
    }

    /// Marks long-running attempts and their endpoints as slow. Earlier, such attempts give up their slots of fast
    /// endpoints.
    fn mark_slow_attempts(&mut self, now: Instant) {
        while let Some(&(_, id)) = self.slot_release_at.front().filter(|(at, _)| *at <= now) {
            self.slot_release_at.pop_front();
            if let Some(running) = self.running.get_mut(&id) {
                running.pool = self.slots.move_to_turned_pool(running.pool);
            }
        }
        while let Some(&(_, id)) = self.slow_at.front().filter(|(at, _)| *at <= now) {
            self.slow_at.pop_front();
            let Some(running) = self.running.get_mut(&id) else {
                continue;
            };
            running.pool = self.slots.move_to_turned_pool(running.pool);
            if let Some(endpoint_state) = self.endpoint_states.get_mut(&running.claimed.endpoint) {
                endpoint_state.slow = true;
            }
        }
    }

    /// Notes that an endpoint may have a due message.
    fn mark_due(&mut self, id: i64) {
        if let Some(endpoint_state) = self.endpoint_states.get_mut(&id) {
            endpoint_state.due = true;
            endpoint_state.due_again |= !endpoint_state.claiming.is_empty();
            self.queue_check(id);
        }
    }

    fn queue_check(&mut self, id: i64) {
        if let Some(endpoint_state) = self.endpoint_states.get_mut(&id)
            && !endpoint_state.queued
        {
            endpoint_state.queued = true;
            self.ready.push_back(id);
        }
    }

    /// Schedules the endpoint's next request for permission.
    fn wake_at(&mut self, id: i64, at: Instant) {
        let Some(endpoint_state) = self.endpoint_states.get_mut(&id) else {
            return;
        };
        match endpoint_state.wakes {
            Some(before) if before <= at => return,
            Some(before) => {
                self.wakes.remove(&(before, id));
            }
            None => {}
        }
        endpoint_state.wakes = Some(at);
        self.wakes.insert((at, id));
    }

    /// Requests permission to claim for one message of each endpoint in turn.
    fn ask(&mut self, now: Instant) {
        for pool in Pool::START_POOLS {
            let waiting_for_slot = &mut self.waiting_for_slot[pool as usize];
            let free = self.slots.free(pool).min(waiting_for_slot.len());
            self.ready.extend(waiting_for_slot.drain(..free));
        }
        for may_be_slow in [false, true] {
            let mut free = self.bodies.free(may_be_slow);
            let waiting_for_memory = &mut self.waiting_for_memory[usize::from(may_be_slow)];
            while let Some(id) = waiting_for_memory.front() {
                let large = self
                    .endpoint_states
                    .get(id)
                    .map_or(0, |endpoint_state| endpoint_state.large);
                if large > free {
                    break;
                }
                free -= large;
                self.ready.extend(waiting_for_memory.pop_front());
            }
        }
        if self.request_isolated(now) {
            return;
        }
        while self.tickets < MAX_CALL_ITEMS
            && let Some(id) = self.ready.pop_front()
        {
            self.request_for_endpoint(now, id);
        }
    }

    fn request_for_endpoint(&mut self, now: Instant, id: i64) {
        let core_now = self.core(now);
        let Some(endpoint_state) = self.endpoint_states.get_mut(&id) else {
            return;
        };
        endpoint_state.queued = false;
        if endpoint_state.stale && !endpoint_state.retiring {
            // The next claim returns the current endpoint.
            if endpoint_state.tickets.is_empty()
                && !std::mem::replace(&mut endpoint_state.refreshing, true)
            {
                self.ticketed.push(id);
            }
            return;
        }
        if !endpoint_state.can_claim_more(now, self.config.slow_after) {
            // It is checked again when a claim returns, an attempt ends, or a message is due.
            if !endpoint_state.due {
                endpoint_state.stop_asking(core_now);
            }
            return;
        }
        if let Some(until) = endpoint_state.held_by_fault(now, &self.sender, &self.secrets) {
            self.wake_at(id, until);
            return;
        }
        let pool = endpoint_state.pool(now);
        if !self.slots.take(pool) {
            endpoint_state.queued = true;
            self.waiting_for_slot[pool as usize].push_back(id);
            return;
        }
        let may_be_slow = pool != Pool::Fast;
        let memory = match endpoint_state.large {
            0 => None,
            large => match self.bodies.take(large, may_be_slow) {
                Some(memory) => Some(memory),
                None => {
                    self.slots.give_back(pool);
                    endpoint_state.queued = true;
                    self.waiting_for_memory[usize::from(may_be_slow)].push_back(id);
                    return;
                }
            },
        };
        match endpoint_state.ask(core_now) {
            Ok(permit) => {
                if endpoint_state.tickets.is_empty() && !endpoint_state.refreshing {
                    self.ticketed.push(id);
                }
                endpoint_state.tickets.push(Ticket {
                    permit,
                    pool,
                    memory,
                });
                self.tickets += 1;
                self.queue_check(id);
            }
            Err(until) => {
                self.slots.give_back(pool);
                let wait = until.saturating_since(core_now).max(MIN_TIMER);
                // Even an infinite wait must not lose an endpoint.
                let wait = wait.min(MAX_RECHECK_WAIT);
                self.wake_at(id, now + wait);
            }
        }
    }

    /// Starts messages that [need isolation](Self::needs_isolation) one after another, once nothing else runs. Returns
    /// whether all others wait for that.
    fn request_isolated(&mut self, now: Instant) -> bool {
        if self.alone.is_empty() || now < self.isolation_allowed_at {
            return false;
        }
        let waited = now.saturating_duration_since(*self.isolation_wanted_since.get_or_insert(now));
        while self.is_quiet() {
            let mut is_over = false;
            if std::mem::take(&mut self.isolation_active) {
                self.alone.pop_front();
                is_over = waited >= MAX_ISOLATION_TIME;
            }
            let Some(&id) = self.alone.front().filter(|_| !is_over) else {
                // Others may now send for as long as they have waited.
                self.isolation_allowed_at = now + waited;
                self.isolation_wanted_since = None;
                return false;
            };
            self.isolation_active = true;
            if let Some(endpoint_state) = self.endpoint_states.get_mut(&id) {
                (endpoint_state.alone, endpoint_state.due) = (false, true);
            }
            self.request_for_endpoint(now, id);
        }
        true
    }

    /// Whether nothing runs, is claimed, or is to be written.
    fn is_quiet(&self) -> bool {
        self.running.is_empty()
            && self.tickets == 0
            && self.unsettled.is_empty()
            && !self.calls.is_busy(StoreCall::Claim)
            && !self.calls.is_busy(StoreCall::Settle)
    }

    /// Stops claiming.
    fn stop(&mut self, now: Instant) {
        self.stopping = true;
        self.stop.send_replace(true);
        self.ask_at = now;
        self.to_acquire.clear();
        self.named = HintedEndpoints::default();
        let all: Vec<i64> = self.endpoint_states.keys().copied().collect();
        for id in all {
            self.retire_endpoint(id);
        }
    }

    /// Stops claiming messages of an endpoint, and releases it when none of them runs or is to be written.
    fn retire_endpoint(&mut self, id: i64) {
        let core_now = self.core(Instant::now());
        let Some(endpoint_state) = self.endpoint_states.get_mut(&id) else {
            return;
        };
        endpoint_state.retiring = true;
        endpoint_state.stop_asking(core_now);
        self.release_tickets(id);
        self.release_if_idle(id);
    }

    /// Releases the tickets of an endpoint that are not in a claim.
    fn release_tickets(&mut self, id: i64) {
        let core_now = self.core(Instant::now());
        let Some(endpoint_state) = self.endpoint_states.get_mut(&id) else {
            return;
        };
        for ticket in std::mem::take(&mut endpoint_state.tickets) {
            endpoint_state.cancel(core_now, ticket.permit);
            self.slots.give_back(ticket.pool);
            self.tickets -= 1;
        }
    }

    fn release_if_idle(&mut self, id: i64) {
        if let Some(endpoint_state) = self
            .endpoint_states
            .get(&id)
            .filter(|endpoint_state| endpoint_state.retiring && endpoint_state.is_over())
        {
            self.to_release.push((id, endpoint_state.fence));
            self.release_due |= endpoint_state.due;
            if let Some(at) = endpoint_state.wakes {
                self.wakes.remove(&(at, id));
            }
            self.endpoint_states.remove(&id);
        }
    }

    fn is_drained(&self) -> bool {
        self.endpoint_states.is_empty()
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
