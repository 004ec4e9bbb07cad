//! The event loop of a worker: the single task that decides. It takes an event, asks the part that owns the matter, and
//! starts what follows.
//!
//! | part | owns |
//! |---|---|
//! | [`Ability`] | whether this machine can make attempts |
//! | [`Lease`] | the lease of the worker: renewal, loss, share of endpoints |
//! | [`Search`], [`Ownership`] | which endpoints to look for, to acquire and to release |
//! | [`ReadyQueue`], [`Isolation`] | which endpoint requests its next attempt |
//! | [`EndpointState`] | one endpoint: rules, admission, due messages |
//! | [`ClaimBatch`] | the next claim and the running one |
//! | [`InFlight`] | running attempts, their slots and their memory |
//! | [`Results`] | results to be written |
//! | [`StoreCalls`] | running store calls, and the pause while the store fails |

mod claim;
mod find;
mod settle;

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use relent::random::SessionRandom;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::ability::{Ability, MAX_TARGETS};
use super::attempt::Transport;
use super::claim_batch::ClaimBatch;
use super::clock::CoreClock;
use super::config::{Drained, WorkerConfig};
use super::endpoint_state::EndpointState;
use super::held_endpoints::{HeldEndpoint, HeldRequests, HoldReason};
use super::in_flight::InFlight;
use super::isolation::Isolation;
use super::lease::Lease;
use super::ownership::Ownership;
use super::payload_memory::Bodies;
use super::permission::Permissions;
use super::ready_queue::ReadyQueue;
use super::results::Results;
use super::rules::Rules;
use super::search::{MIN_SEARCH_INTERVAL, Search};
use super::slots::Slots;
use super::store_calls::{CallResult, StoreCall, StoreCalls};
use crate::endpoint::Endpoint;
use crate::observe;
use crate::secrets::Secrets;
use crate::sender::Sender;
use crate::store::Store;
use crate::target::Target;

/// The limit of configured times: a hundred years.
const MAX_CONFIGURED_TIME: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// The longest time until a waiting endpoint is checked again, even if its wait is infinite.
const MAX_RECHECK_WAIT: Duration = Duration::from_secs(3600);
/// The shortest timer.
const MIN_TIMER: Duration = Duration::from_millis(1);

/// The means of a worker, which do not change while it runs.
pub(super) struct Setup<S> {
    pub(super) store: S,
    pub(super) sender: Sender,
    pub(super) secrets: Secrets,
    pub(super) config: WorkerConfig,
    /// Notified when there may be work.
    pub(super) hint: Arc<Notify>,
}

impl<S> Setup<S> {
    fn rules(&self, endpoint: Endpoint) -> Rules {
        Rules::new(endpoint, &self.sender, &self.secrets)
    }

    fn limit_times(&mut self) {
        let config = &mut self.config;
        let shortest_lease = Duration::from_millis(100);
        config.lease = config.lease.clamp(shortest_lease, MAX_CONFIGURED_TIME);
        config.poll = config.poll.clamp(MIN_SEARCH_INTERVAL, MAX_CONFIGURED_TIME);
        config.slow_after = config.slow_after.min(MAX_CONFIGURED_TIME);
        config.drain = config.drain.min(MAX_CONFIGURED_TIME);
    }
}

pub(super) struct EventLoop<S> {
    setup: Setup<S>,
    clock: CoreClock,
    /// For the schedules of messages.
    random: SessionRandom,
    endpoints: HashMap<i64, EndpointState>,
    queue: ReadyQueue,
    isolation: Isolation,
    claims: ClaimBatch,
    in_flight: InFlight,
    results: Results,
    calls: StoreCalls,
    lease: Lease,
    ability: Ability,
    search: Search,
    ownership: Ownership,
    permissions: Permissions,
}

impl<S: Store> EventLoop<S> {
    /// Works until `shutdown` completes, and responds to `asked` with the held endpoints.
    pub(super) async fn run(
        mut setup: Setup<S>,
        transport: Transport,
        asked: HeldRequests,
        shutdown: impl Future<Output = ()>,
    ) -> Drained {
        setup.limit_times();
        let now = Instant::now();
        let (store, config) = (setup.store.clone(), &setup.config);
        let (lease, heartbeats) =
            Lease::start(now, config.lease, store.clone(), config.name.clone());
        let slots = Slots::new(config.in_flight.max(1), config.slow_in_flight.max(1));
        let bodies = Bodies::new(config.body_bytes);
        let open = transport.open();
        let ability = Ability::new(transport.clone());
        let event_loop = Self {
            clock: CoreClock::new(now),
            random: SessionRandom::new(),
            endpoints: HashMap::new(),
            queue: ReadyQueue::default(),
            isolation: Isolation::new(now),
            claims: ClaimBatch::new(now),
            in_flight: InFlight::new(transport, slots, bodies, config.slow_after),
            results: Results::new(now),
            calls: StoreCalls::new(now, config.lease),
            permissions: Permissions::new(store, config.name.clone(), config.lease, lease.state()),
            lease,
            ability,
            search: Search::new(now, config.poll),
            ownership: Ownership::default(),
            setup,
        };
        event_loop.work(open, asked, heartbeats, shutdown).await
    }

    async fn work(
        mut self,
        mut open: watch::Receiver<bool>,
        mut asked: HeldRequests,
        mut heartbeats: JoinHandle<()>,
        shutdown: impl Future<Output = ()>,
    ) -> Drained {
        let mut shutdown = pin!(shutdown);
        let mut lease = self.lease.state();
        let (hint, mut hints) = (Arc::clone(&self.setup.hint), self.setup.store.hints());
        let bodies = self.in_flight.bodies().clone();
        let (mut cut_at, mut give_up_at) = (None, None);
        self.on_open();
        loop {
            let now = Instant::now();
            self.turn(now);
            let is_stopping = self.permissions.is_stopping();
            if is_stopping && (self.is_drained() || give_up_at.is_some_and(|at| at <= now)) {
                break;
            }
            if cut_at.is_some_and(|at| at <= now) {
                cut_at = None;
                self.in_flight.abort();
            }
            let next = [self.next_timer(now), cut_at, give_up_at];
            let next = next.into_iter().flatten().min();
            tokio::select! {
                // Without heartbeats the worker can do nothing more, either.
                () = async {
                    tokio::select! {
                        () = &mut shutdown => {}
                        _ = &mut heartbeats => {}
                    }
                }, if !is_stopping => {
                    let now = Instant::now();
                    let cut = now + self.setup.config.drain;
                    (cut_at, give_up_at) = (Some(cut), Some(cut + 2 * self.setup.config.lease));
                    self.stop(now);
                }
                Ok(()) = lease.changed() => self.on_lease(Instant::now()),
                Ok(()) = open.changed() => self.on_open(),
                is_able = self.ability.next() => {
                    self.ability.tested(is_able, self.targets(None));
                    self.lease.set_able(self.ability.is_able());
                }
                () = bodies.freed() => {}
                () = hint.notified(), if !is_stopping => self.search.soon(Instant::now()),
                hinted = hints.next(), if !is_stopping => {
                    let now = Instant::now();
                    self.on_hint(now, hinted);
                    while let Some(hinted) = hints.try_next() {
                        self.on_hint(now, hinted);
                    }
                }
                Some(answer) = asked.recv() => {
                    // The receiver may be gone.
                    drop(answer.send(self.held(Instant::now())));
                }
                (kind, result) = self.calls.next() => self.on_call(Instant::now(), kind, result),
                Some((running, ended)) = self.in_flight.next_end() => {
                    let now = Instant::now();
                    self.on_attempt(now, running, ended);
                    while let Some((running, ended)) = self.in_flight.try_next_end() {
                        self.on_attempt(now, running, ended);
                    }
                }
                () = sleep_until(next.unwrap_or(now)), if next.is_some() => {}
            }
        }
        self.in_flight.shutdown().await;
        let drained = Drained {
            aborted: self.in_flight.aborted(),
            unsettled: self.results.unwritten() + self.in_flight.len(),
        };
        drop((self, lease));
        // The task ends by releasing the lease.
        if !heartbeats.is_finished() {
            let _ = heartbeats.await;
        }
        drained
    }

    /// Starts everything that can start.
    fn turn(&mut self, now: Instant) {
        for id in self.in_flight.mark_slow(now) {
            if let Some(endpoint) = self.endpoints.get_mut(&id) {
                endpoint.speed.turn_slow();
            }
        }
        while let Some(id) = self.queue.pop_woken(now) {
            self.mark_due(id);
        }
        while let Some(id) = self.queue.pop_due(now) {
            self.on_due(id);
        }
        let may_claim = self.may_look() && self.calls.next_at() <= now && self.lease.is_held(now);
        if may_claim {
            self.request(now);
        } else {
            self.isolation.nothing_waits();
        }
        self.begin_settle(now);
        self.begin_release();
        if !may_claim {
            return;
        }
        self.begin_claim(now);
        if self.search.next_at() <= now && !self.calls.is_busy(StoreCall::Find) {
            self.begin_find(now);
        }
        self.begin_acquire(now);
    }

    /// Whether it may search and claim, as far as the lease and the pause of store calls permit.
    fn may_look(&self) -> bool {
        !self.permissions.is_stopping() && !self.results.has_failed() && self.in_flight.is_open()
    }

    /// The time of the next action that no event triggers.
    fn next_timer(&self, now: Instant) -> Option<Instant> {
        let settle = (!self.results.is_empty() && !self.calls.is_busy(StoreCall::Settle))
            .then_some(self.calls.next_at());
        let looks = self.may_look() && !self.calls.is_busy(StoreCall::Find);
        // A renewed lease arrives as an event.
        let find = (looks && self.lease.is_held(now))
            .then(|| self.search.next_at().max(self.calls.next_at()));
        let is_stopping = self.permissions.is_stopping();
        let wake = self.queue.next_timer().filter(|_| !is_stopping);
        let next = [self.in_flight.next_timer(), settle, find, wake];
        let next = next.into_iter().flatten().min();
        next.map(|at| at.max(now + MIN_TIMER))
    }

    /// Handles the end of a store call.
    fn on_call(&mut self, now: Instant, kind: StoreCall, result: Result<CallResult, String>) {
        let error = match result {
            Ok(done) => {
                self.calls.succeeded();
                match done {
                    CallResult::Found(work) => self.on_found(now, work),
                    CallResult::Acquired(owned) => self.on_acquired(now, owned),
                    CallResult::Claimed(claimed) => self.on_claimed(now, claimed),
                    CallResult::Settled(written) => self.on_settled(now, &written),
                    CallResult::Released => self.on_released(now),
                }
                return;
            }
            Err(error) => error,
        };
        observe::store_error(kind.name(), &error);
        match kind {
            StoreCall::Acquire => {
                self.on_acquire_failed(now);
                return;
            }
            StoreCall::Claim => self.on_claim_failed(now),
            StoreCall::Settle => self.results.failed(),
            // After a failed release, the endpoints are found as this worker's, and acquired again.
            StoreCall::Find | StoreCall::Release => {}
        }
        self.search.postpone(self.calls.failed(now));
    }

    /// The transport accepts attempts now, or does not.
    fn on_open(&mut self) {
        match self.in_flight.is_open() {
            false => self.ability.doubt(Vec::new()),
            true if !self.in_flight.is_in_process() => {
                self.ability.restore();
                self.lease.set_able(true);
            }
            true => {}
        }
    }

    /// Tests this machine after a local fault of this endpoint, with other endpoints, too.
    fn doubt(&mut self, id: i64) {
        if !self.ability.is_in_doubt() {
            self.ability.doubt(self.targets(Some(id)));
        }
    }

    /// The targets for a test of this machine: of this endpoint, and of others, those without a local fault first.
    fn targets(&self, id: Option<i64>) -> Vec<Target> {
        let others = self.endpoints.iter();
        let others = others.filter(|(other, _)| Some(**other) != id);
        let (held, others): (Vec<_>, Vec<_>) = others
            .map(|(_, endpoint)| endpoint)
            .partition(|endpoint| endpoint.fault.fault().is_some());
        let first = id.and_then(|id| self.endpoints.get(&id)).into_iter();
        let all = first.chain(others).chain(held);
        let targets = all.filter_map(|endpoint| endpoint.rules().target.clone().ok());
        targets.take(MAX_TARGETS).collect()
    }

    /// Handles a heartbeat.
    fn on_lease(&mut self, now: Instant) {
        let change = self.lease.changed(now, self.endpoints.len());
        if change.has_room {
            self.search.soon(now);
        }
        if change.is_lost {
            observe::lease_lost();
            // None could be acquired meanwhile.
            self.ownership.forget_hints();
            self.retire_all(now);
            return;
        }
        if change.may_reacquire {
            self.ownership.ask_again();
        }
        if change.excess > 0 {
            let endpoints = self.endpoints.iter();
            let mut idle: Vec<(bool, usize, i64)> = endpoints
                .map(|(id, endpoint)| (endpoint.demand.is_due(), endpoint.work.running, *id))
                .collect();
            idle.sort_unstable();
            for (_, _, id) in idle.into_iter().take(change.excess) {
                self.retire(now, id);
            }
        }
    }

    /// The endpoints whose due messages wait.
    fn held(&self, now: Instant) -> Vec<HeldEndpoint> {
        let (wall, waiters) = (SystemTime::now(), self.queue.waiters());
        let held = self.endpoints.iter().filter_map(|(id, endpoint)| {
            let hold_reason = match endpoint.hold_reason(now) {
                None if waiters.contains(id) => HoldReason::Slots,
                hold_reason => hold_reason?,
            };
            // For the other reasons the end of an attempt wakes the endpoint, not a timer.
            let has_timer = !matches!(hold_reason, HoldReason::Slots | HoldReason::Concurrency);
            let wait = self.queue.wakes_at(*id).filter(|_| has_timer);
            let wait = wait.map(|at| at.saturating_duration_since(now));
            let fault = endpoint.fault.fault();
            Some(HeldEndpoint {
                tenant: endpoint.rules().endpoint.tenant.clone(),
                name: endpoint.rules().endpoint.name.clone(),
                hold_reason,
                until: wait
                    .filter(|wait| *wait < MAX_RECHECK_WAIT)
                    .map(|wait| wall + wait),
                running: endpoint.work.running,
                error: fault.map_or_else(String::new, |fault| fault.error.clone()),
            })
        });
        held.collect()
    }

    /// Notes that an endpoint may have a due message.
    fn mark_due(&mut self, id: i64) {
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.add_demand();
            self.queue.push(id);
        }
    }

    /// Notes that the endpoint has a due message, according to the store.
    fn on_due(&mut self, id: i64) {
        match self.endpoints.get_mut(&id) {
            // It is known, and waits for permission, such as at a circuit breaker that is down. There may be many such
            // hints.
            Some(endpoint) if endpoint.demand.is_due() && self.queue.wakes_at(id).is_some() => {
                endpoint.add_demand();
            }
            _ => self.mark_due(id),
        }
    }

    /// Stops claiming.
    fn stop(&mut self, now: Instant) {
        self.permissions.stop();
        self.calls.end_pause(now);
        self.ownership.want_none();
        self.ownership.forget_hints();
        self.retire_all(now);
    }

    fn retire_all(&mut self, now: Instant) {
        let all: Vec<i64> = self.endpoints.keys().copied().collect();
        for id in all {
            self.retire(now, id);
        }
    }

    /// Stops claiming messages of an endpoint, and releases it when none of them runs or is to be written.
    fn retire(&mut self, now: Instant, id: i64) {
        let core_now = self.clock.at(now);
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.retire(core_now);
            let returned = endpoint.return_tickets(core_now, &mut self.in_flight);
            self.claims.return_tickets(returned);
            self.release_if_idle(id);
        }
    }

    fn release_if_idle(&mut self, id: i64) {
        let is_idle = |endpoint: &&EndpointState| endpoint.is_retiring && endpoint.is_over();
        if let Some(endpoint) = self.endpoints.get(&id).filter(is_idle) {
            let (fence, is_due) = (endpoint.registration.fence, endpoint.demand.is_due());
            self.ownership.release(id, fence, is_due);
            self.queue.forget(id);
            self.endpoints.remove(&id);
        }
    }

    fn is_drained(&self) -> bool {
        self.endpoints.is_empty()
            && self.in_flight.is_empty()
            && self.results.is_empty()
            && !self.ownership.has_releases()
            && self.calls.is_empty()
    }
}
