//! The one task of a worker that decides.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use relent::random::SessionRandom;
use relent_core::{Backoff, Failure, Permit, Policy, Session};
use tokio::sync::{Notify, watch};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::attempt::{Job, Transport, broken_off};
use super::beat::{Pulse, beat};
use super::calls::{Calls, Done, Kind};
use super::lane::{Lane, Ticket};
use super::slots::{Pool, Slots};
use super::{Drained, WorkerConfig};
use crate::acknowledgement::{MAX_EXCERPT, printable};
use crate::observe;
use crate::schedule::Schedule;
use crate::secrets::Secrets;
use crate::sender::{Sender, Sent};
use crate::store::{AttemptRecord, Claimed, Fence, Next, Settled, Store, Wanted, Work};

/// At most so many messages are claimed, settled, or endpoints taken, in one call of the store.
const BATCH: usize = 512;
/// Two looks for work are at least so far apart, however many hints there are.
const LOOK_GAP: Duration = Duration::from_millis(5);
/// So many endpoints with work are looked for beside those that cannot be served now.
const LOOK: usize = 2048;
/// No time of a configuration is longer: a hundred years.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// No timer is shorter.
const TICK: Duration = Duration::from_millis(1);

/// How the store is asked again that fails.
static ASK_AGAIN: Policy = Policy::builder(Backoff::exponential(Duration::from_millis(100)))
    .max_delay(Duration::from_secs(5))
    .unlimited_retries()
    .build_const();

pub(super) struct Scheduler<S> {
    store: S,
    sender: Sender,
    secrets: Secrets,
    config: WorkerConfig,
    transport: Transport,
    hint: Arc<Notify>,
    /// What the instants of gates and rates count from.
    origin: Instant,
    random: SessionRandom,
    lanes: HashMap<i64, Lane>,
    slots: Slots,
    /// Lanes that are looked at, in turn.
    ready: VecDeque<i64>,
    /// Lanes that wait for a slot.
    starved: [VecDeque<i64>; 2],
    /// Lanes that wait for a time.
    wakes: BTreeSet<(Instant, i64)>,
    /// Lanes with tickets for the next claim, and how many there are in all.
    ticketed: Vec<i64>,
    tickets: usize,
    /// Lanes of the claim that is on its way, with how many messages it is for.
    claiming: Vec<(i64, usize)>,
    attempts: JoinSet<Sent>,
    running: HashMap<Id, Running>,
    /// Attempts in the order in which they become slow.
    aging: VecDeque<(Instant, Id)>,
    /// What is to be written, and what is being written.
    unsettled: VecDeque<Pending>,
    settling: Vec<Pending>,
    to_acquire: VecDeque<i64>,
    acquiring: HashSet<i64>,
    to_release: Vec<(i64, Fence)>,
    calls: Calls,
    pulse: watch::Receiver<Pulse>,
    /// Asks for a beat at once.
    nudge: Arc<Notify>,
    /// Not before then.
    nudge_at: Instant,
    /// There is work that the share does not cover.
    is_short: bool,
    /// How often the lease has been lost, as far as that has been heeded.
    lost: u64,
    poll_at: Instant,
    /// When the last look for work began.
    looked_at: Instant,
    /// How many endpoints the last look for work was for.
    looked_for: usize,
    /// It found as many, so there may be more.
    is_cut: bool,
    /// The store has failed, and not answered since.
    away: Option<Session>,
    /// When it is asked again.
    ask_at: Instant,
    /// What is to be written could not be: nothing is claimed until it is.
    settle_failed: bool,
    settle_batch: usize,
    stopping: bool,
    cut_off: usize,
}

/// An attempt that runs.
struct Running {
    claimed: Claimed,
    claimed_at: Instant,
    schedule: Schedule,
    permit: Permit,
    pool: Pool,
}

/// What is to be written.
struct Pending {
    settled: Settled,
    ended: Instant,
    ordered: bool,
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
            store,
            sender,
            secrets,
            config,
            transport,
            hint,
            origin: now,
            random: SessionRandom::new(),
            lanes: HashMap::new(),
            ready: VecDeque::new(),
            starved: [VecDeque::new(), VecDeque::new()],
            wakes: BTreeSet::new(),
            ticketed: Vec::new(),
            tickets: 0,
            claiming: Vec::new(),
            attempts: JoinSet::new(),
            running: HashMap::new(),
            aging: VecDeque::new(),
            unsettled: VecDeque::new(),
            settling: Vec::new(),
            to_acquire: VecDeque::new(),
            acquiring: HashSet::new(),
            to_release: Vec::new(),
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
            cut_off: 0,
        }
    }

    pub(super) async fn run(mut self, shutdown: impl Future<Output = ()>) -> Drained {
        let (sender, pulse) = watch::channel(Pulse::NONE);
        self.pulse = pulse;
        let (name, lease) = (self.config.name.clone(), self.config.lease);
        // It ends when both receivers are dropped.
        let nudge = Arc::clone(&self.nudge);
        let mut beats = tokio::spawn(beat(self.store.clone(), name, lease, sender, nudge));
        let mut shutdown = pin!(shutdown);
        let mut pulse = self.pulse.clone();
        let (hint, mut hints) = (Arc::clone(&self.hint), self.store.hints());
        let (mut cut_at, mut give_up_at) = (None, None);
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
                // Without beats it can do nothing more either.
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
                () = hint.notified(), if !self.stopping => self.look_soon(),
                () = hints.next(), if !self.stopping => self.look_soon(),
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
        // They end with giving the lease back.
        if !beats.is_finished() {
            let _ = beats.await;
        }
        drained
    }

    /// There is work, perhaps.
    fn look_soon(&mut self) {
        self.poll_at = self.poll_at.min(Instant::now() + LOOK_GAP);
    }

    /// Begins whatever can begin.
    fn turn(&mut self, now: Instant) {
        self.age(now);
        while let Some(&(at, id)) = self.wakes.first().filter(|(at, _)| *at <= now) {
            self.wakes.remove(&(at, id));
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.wakes = None;
                self.mark_due(id);
            }
        }
        let may_claim = !self.stopping
            && !self.settle_failed
            && self.ask_at <= now
            && self.pulse.borrow().is_held(now);
        if may_claim {
            self.ask(now);
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

    /// When there is something to do that nothing else tells of.
    fn next_timer(&self) -> Option<Instant> {
        let aging = self.aging.front().map(|(at, _)| *at);
        let settle = (!self.unsettled.is_empty() && !self.calls.is_busy(Kind::Settle))
            .then_some(self.ask_at);
        let looks = !self.stopping && !self.settle_failed && !self.calls.is_busy(Kind::Find);
        // A lease that comes back tells by itself.
        let is_held = self.pulse.borrow().is_held(Instant::now());
        let find = (looks && is_held).then_some(self.poll_at);
        let wake = (!self.stopping)
            .then(|| self.wakes.first().map(|(at, _)| *at))
            .flatten();
        let next = [aging, settle, find, wake].into_iter().flatten().min();
        next.map(|at| at.max(Instant::now() + TICK))
    }

    /// Attempts that have run for long are slow, and so are their endpoints.
    fn age(&mut self, now: Instant) {
        while let Some(&(_, id)) = self.aging.front().filter(|(at, _)| *at <= now) {
            self.aging.pop_front();
            let Some(running) = self.running.get_mut(&id) else {
                continue;
            };
            if running.pool == Pool::Quick {
                running.pool = self.slots.slow_down();
            }
            if let Some(lane) = self.lanes.get_mut(&running.claimed.endpoint) {
                lane.slow = true;
            }
        }
    }

    /// A lane has a message that is due, perhaps.
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

    /// Asks, lane by lane, for leave to claim: one message of each in turn.
    fn ask(&mut self, now: Instant) {
        for pool in [Pool::Quick, Pool::Slow] {
            let starved = &mut self.starved[pool as usize];
            let free = self.slots.free(pool).min(starved.len());
            self.ready.extend(starved.drain(..free));
        }
        while self.tickets < BATCH
            && let Some(id) = self.ready.pop_front()
        {
            let core_now = self.core(now);
            let Some(lane) = self.lanes.get_mut(&id) else {
                continue;
            };
            lane.queued = false;
            if !lane.has_room() {
                // It is looked at again when a claim comes back, an attempt ends, or something is due.
                if !lane.due {
                    lane.stop_asking(core_now);
                }
                continue;
            }
            let pool = lane.pool();
            if !self.slots.take(pool) {
                lane.queued = true;
                self.starved[pool as usize].push_back(id);
                continue;
            }
            match lane.ask(core_now) {
                Ok(permit) => {
                    if lane.tickets.is_empty() {
                        self.ticketed.push(id);
                    }
                    lane.tickets.push(Ticket { permit, pool });
                    self.tickets += 1;
                    self.look_at(id);
                }
                Err(until) => {
                    self.slots.give_back(pool);
                    let wait = until.saturating_since(core_now).max(TICK);
                    // Nothing is forgotten, were the wait for ever.
                    let wait = wait.min(Duration::from_secs(3600));
                    self.wake_at(id, now + wait);
                }
            }
        }
    }

    fn begin_find(&mut self, now: Instant) {
        observe::holding(self.lanes.len(), self.running.len());
        self.poll_at = now + self.config.poll;
        let busy = self.lanes.values().filter(|lane| lane.due).count();
        let (store, name) = (self.store.clone(), self.config.name.clone());
        let (within, most) = (self.config.poll, LOOK + busy);
        (self.looked_at, self.looked_for) = (now, most);
        self.begin(Kind::Find, async move {
            store.find_work(&name, within, most).await.map(Done::Found)
        });
    }

    fn begin_acquire(&mut self) {
        if self.to_acquire.is_empty() || self.calls.is_busy(Kind::Acquire) {
            return;
        }
        let share = self.pulse.borrow().share;
        let wanted = self.to_acquire.len().min(BATCH);
        if share < self.lanes.len() + wanted {
            // Those that have nothing to do make room.
            let excess = self.lanes.len() + wanted - share;
            let idle = self
                .lanes
                .iter()
                .filter(|(_, lane)| !lane.due && lane.is_over());
            let idle: Vec<i64> = idle.map(|(id, _)| *id).take(excess).collect();
            for id in idle {
                self.leave(id);
            }
        }
        let most = share.saturating_sub(self.lanes.len()).min(wanted);
        let endpoints: Vec<i64> = self.to_acquire.drain(..most).collect();
        if endpoints.is_empty() {
            // There may be more endpoints by now, or fewer workers, than at the last beat.
            self.to_acquire.clear();
            self.is_short = true;
            let now = Instant::now();
            if self.nudge_at <= now {
                self.nudge_at = now + self.config.poll;
                self.nudge.notify_one();
            }
            return;
        }
        self.acquiring = endpoints.iter().copied().collect();
        let (store, name) = (self.store.clone(), self.config.name.clone());
        self.begin(Kind::Acquire, async move {
            store.acquire(&name, endpoints).await.map(Done::Acquired)
        });
    }

    fn begin_claim(&mut self) {
        if self.tickets == 0 || self.calls.is_busy(Kind::Claim) {
            return;
        }
        self.tickets = 0;
        let mut wanted = Vec::with_capacity(self.ticketed.len());
        for id in std::mem::take(&mut self.ticketed) {
            let Some(lane) = self
                .lanes
                .get_mut(&id)
                .filter(|lane| !lane.tickets.is_empty())
            else {
                continue;
            };
            lane.claiming = std::mem::take(&mut lane.tickets);
            let most = lane.claiming.len();
            self.claiming.push((id, most));
            wanted.push(Wanted {
                endpoint: id,
                fence: lane.fence,
                most,
            });
        }
        if wanted.is_empty() {
            return;
        }
        let (store, name) = (self.store.clone(), self.config.name.clone());
        self.begin(Kind::Claim, async move {
            store.claim(&name, wanted).await.map(Done::Claimed)
        });
    }

    fn begin_settle(&mut self, now: Instant) {
        if self.unsettled.is_empty() || self.ask_at > now || self.calls.is_busy(Kind::Settle) {
            return;
        }
        let batch = self.unsettled.len().min(self.settle_batch);
        self.settling = self.unsettled.drain(..batch).collect();
        let settled = self.settling.iter().map(|pending| {
            let mut settled = pending.settled.clone();
            if let Next::Again(after) = &mut settled.next {
                // It counts from the end of the attempt, and the store counts from now.
                *after = after.saturating_sub(now.saturating_duration_since(pending.ended));
            }
            settled
        });
        let settled: Vec<Settled> = settled.collect();
        let store = self.store.clone();
        self.begin(Kind::Settle, async move {
            store.settle(settled).await.map(Done::Settled)
        });
    }

    fn begin_release(&mut self) {
        if self.to_release.is_empty() || self.calls.is_busy(Kind::Release) {
            return;
        }
        let endpoints = std::mem::take(&mut self.to_release);
        let (store, name) = (self.store.clone(), self.config.name.clone());
        self.begin(Kind::Release, async move {
            store
                .release(&name, endpoints)
                .await
                .map(|()| Done::Released)
        });
    }

    fn begin(
        &mut self,
        kind: Kind,
        call: impl Future<Output = Result<Done, S::Error>> + Send + 'static,
    ) {
        self.calls.begin(kind, self.config.lease, call);
    }

    fn on_call(&mut self, kind: Kind, result: Result<Done, String>) {
        let now = Instant::now();
        match result {
            Ok(done) => {
                self.away = None;
                match done {
                    Done::Found(work) => self.on_found(now, work),
                    Done::Acquired(owned) => {
                        self.acquiring.clear();
                        if self.is_cut && !owned.is_empty() {
                            self.look_soon();
                        }
                        for owned in owned {
                            let id = owned.id;
                            let lane = Lane::new(owned, now, &self.sender, &self.secrets);
                            self.lanes.insert(id, lane);
                            self.mark_due(id);
                            if self.stopping {
                                self.leave(id);
                            }
                        }
                    }
                    Done::Claimed(claimed) => self.on_claimed(now, claimed),
                    Done::Settled(written) => self.on_settled(now, &written),
                    Done::Released => {}
                }
            }
            Err(error) => {
                observe::store_error(kind.name(), &error);
                let wait = self.away(now);
                match kind {
                    Kind::Find => {}
                    // Whatever was acquired is found as this worker's, and acquired again.
                    Kind::Acquire => self.acquiring.clear(),
                    Kind::Claim => self.on_claim_failed(now),
                    Kind::Settle => {
                        self.settle_failed = true;
                        // If the store cannot keep one of them, the others come before it.
                        self.settle_batch = (self.settle_batch / 2).max(1);
                        self.unsettled.extend(std::mem::take(&mut self.settling));
                    }
                    // It is found as this worker's, and acquired again.
                    Kind::Release => {}
                }
                self.ask_at = now + wait;
                self.poll_at = now + wait;
            }
        }
    }

    /// The store has failed: how long it is left alone.
    fn away(&mut self, now: Instant) -> Duration {
        let at = self.core(now);
        let session = self.away.get_or_insert_with(|| Session::new(at, true));
        session.on_attempt();
        let failure = Failure::not_processed();
        match session.on_failure(&ASK_AGAIN, at, &failure, &mut self.random, None) {
            relent_core::Decision::Retry { after } => after.max(TICK),
            relent_core::Decision::Stop(_) => Duration::from_secs(5),
        }
    }

    fn on_found(&mut self, now: Instant, found: Vec<Work>) {
        self.is_cut = found.len() >= self.looked_for;
        let mut is_new = false;
        self.to_acquire.clear();
        for Work {
            endpoint,
            owned,
            due,
            revision,
        } in found
        {
            if let Some(lane) = self.lanes.get(&endpoint) {
                // What was taken since is not known to that look.
                let is_lost = owned != Some(lane.fence) && lane.taken < self.looked_at;
                if is_lost || lane.revision != revision {
                    // It was another's meanwhile, or registered anew: what runs ends by the old rules, then it is taken
                    // with the new ones.
                    self.leave(endpoint);
                } else if due.is_zero() {
                    is_new |= !lane.due;
                    self.mark_due(endpoint);
                } else {
                    self.wake_at(endpoint, now + due);
                }
            } else if !self.stopping && !self.acquiring.contains(&endpoint) {
                // If it is this worker's, the answer that said so was lost.
                self.to_acquire.push_back(endpoint);
            }
        }
        if self.is_cut && is_new {
            // There may be more behind those, which the next look is for as well.
            self.poll_at = now + LOOK_GAP;
        }
    }

    fn on_claimed(&mut self, now: Instant, claimed: Vec<Claimed>) {
        let core_now = self.core(now);
        let may_send = !self.stopping && self.pulse.borrow().is_held(now);
        let mut got: HashMap<i64, usize> = HashMap::new();
        for claimed in claimed {
            let endpoint = claimed.endpoint;
            *got.entry(endpoint).or_default() += 1;
            let lane = self.lanes.get_mut(&endpoint);
            let ticket = lane.and_then(|lane| lane.claiming.pop());
            match ticket {
                Some(ticket) if may_send && !claimed.lost => self.start(now, claimed, ticket),
                ticket => {
                    if let Some(Ticket { permit, pool }) = ticket
                        && let Some(lane) = self.lanes.get_mut(&endpoint)
                    {
                        lane.cancel(core_now, permit);
                        self.slots.give_back(pool);
                    }
                    self.not_sent(now, &claimed);
                }
            }
        }
        for (id, asked) in std::mem::take(&mut self.claiming) {
            let Some(lane) = self.lanes.get_mut(&id) else {
                continue;
            };
            for Ticket { permit, pool } in std::mem::take(&mut lane.claiming) {
                lane.cancel(core_now, permit);
                self.slots.give_back(pool);
            }
            lane.claimed(asked, got.get(&id).copied().unwrap_or_default());
            self.look_at(id);
            self.close_if_over(id);
        }
    }

    /// What was claimed, if anything was, comes back as lost when the endpoint is taken anew.
    fn on_claim_failed(&mut self, now: Instant) {
        let core_now = self.core(now);
        for (id, _) in std::mem::take(&mut self.claiming) {
            if let Some(lane) = self.lanes.get_mut(&id) {
                for Ticket { permit, pool } in std::mem::take(&mut lane.claiming) {
                    lane.cancel(core_now, permit);
                    self.slots.give_back(pool);
                }
            }
            self.leave(id);
        }
    }

    fn start(&mut self, now: Instant, mut claimed: Claimed, ticket: Ticket) {
        let core_now = self.core(now);
        let Some(lane) = self.lanes.get_mut(&claimed.endpoint) else {
            return;
        };
        let schedule = Schedule::at_attempt(&claimed.session, claimed.attempt, claimed.began);
        let rules = Arc::clone(&lane.rules);
        lane.running += 1;
        let job = Job {
            limit: schedule.attempt_limit(&rules.policy, claimed.now),
            rules,
            id: claimed.id.clone(),
            content_type: std::mem::take(&mut claimed.content_type),
            payload: std::mem::take(&mut claimed.payload),
            now: claimed.now,
        };
        let task = self.attempts.spawn((self.transport)(job));
        self.aging
            .push_back((now + self.config.slow_after, task.id()));
        let Ticket { mut permit, pool } = ticket;
        // The claim is no time that the endpoint took.
        permit.restart(core_now);
        let running = Running {
            claimed,
            claimed_at: now,
            schedule,
            permit,
            pool,
        };
        self.running.insert(task.id(), running);
    }

    /// A message was claimed and is not sent: an earlier worker died with it, or this one may not any more.
    fn not_sent(&mut self, now: Instant, claimed: &Claimed) {
        if !claimed.lost {
            self.settle(now, claimed, Next::Unsent, claimed.session.clone(), None);
            return;
        }
        let mut schedule = Schedule::at_attempt(&claimed.session, claimed.attempt, claimed.began);
        let sent = broken_off(
            "the worker that made the attempt was lost with it",
            Duration::ZERO,
        );
        observe::attempt("lost", Duration::ZERO);
        self.failed(now, claimed, claimed.now, &mut schedule, &sent, false);
    }

    fn on_attempt(&mut self, ended: Result<(Id, Sent), JoinError>) {
        let now = Instant::now();
        let (id, sent) = match ended {
            Ok((id, sent)) => (id, Ok(sent)),
            Err(error) => (error.id(), Err(error)),
        };
        let Some(running) = self.running.remove(&id) else {
            return;
        };
        let Running {
            claimed,
            claimed_at,
            mut schedule,
            permit,
            pool,
        } = running;
        let took = now.saturating_duration_since(claimed_at);
        let (sent, told) = match sent {
            Ok(sent) => (sent, true),
            Err(error) if error.is_cancelled() => {
                self.cut_off += 1;
                (
                    broken_off("cut off, since the worker was stopped", took),
                    false,
                )
            }
            Err(_) => (
                broken_off("the attempt broke off by a fault of the worker", took),
                false,
            ),
        };
        self.slots.give_back(pool);
        let core_now = self.core(now);
        if let Some(lane) = self.lanes.get_mut(&claimed.endpoint) {
            lane.running -= 1;
            if told {
                lane.is_known = true;
                lane.slow = sent.took >= self.config.slow_after;
                let failure = sent.outcome.as_ref().err().map(|refused| &refused.failure);
                lane.ended(core_now, permit, failure);
            } else {
                lane.cancel(core_now, permit);
            }
        }
        let store_now = claimed.now + took;
        let endpoint = claimed.endpoint;
        if sent.outcome.is_ok() {
            observe::attempt("acknowledged", sent.took);
            let waited = store_now.duration_since(claimed.began).unwrap_or_default();
            observe::acknowledged(waited);
            let session = schedule.save();
            self.settle(now, &claimed, Next::Delivered, session, Some(&sent));
        } else {
            observe::attempt("failed", sent.took);
            self.failed(now, &claimed, store_now, &mut schedule, &sent, told);
        }
        self.look_at(endpoint);
    }

    /// An attempt failed. `told`: it says something about the endpoint.
    fn failed(
        &mut self,
        now: Instant,
        claimed: &Claimed,
        store_now: SystemTime,
        schedule: &mut Schedule,
        sent: &Sent,
        told: bool,
    ) {
        let (Err(refused), Some(lane)) = (&sent.outcome, self.lanes.get_mut(&claimed.endpoint))
        else {
            return;
        };
        let rules = Arc::clone(&lane.rules);
        let mut disable = None;
        let error = printable(&refused.error, MAX_EXCERPT);
        if told {
            lane.health.failed(store_now, &error);
            disable = match refused.gone {
                true => Some("it answered 410: it wants no messages any more".to_owned()),
                false => lane.health.disables(&self.config.disable_after, store_now),
            };
        }
        let next = schedule.failed(
            &rules.policy,
            store_now,
            &refused.failure,
            &error,
            &mut self.random,
        );
        if let Next::Dead(reason) = &next {
            observe::dead(claimed.id.as_str(), reason);
        }
        self.settle(now, claimed, next, schedule.save(), Some(sent));
        if let Some(reason) = disable {
            observe::disabled(&rules.endpoint.tenant, &rules.endpoint.name, &reason);
            if let Some(pending) = self.unsettled.back_mut() {
                pending.settled.disable = Some(reason);
            }
            self.leave(claimed.endpoint);
        }
    }

    /// Notes what is to be written.
    fn settle(
        &mut self,
        now: Instant,
        claimed: &Claimed,
        next: Next,
        session: Vec<u8>,
        sent: Option<&Sent>,
    ) {
        let mut health = None;
        if let Some(lane) = self.lanes.get_mut(&claimed.endpoint) {
            lane.unsettled += 1;
            let changed = match (&next, sent) {
                (Next::Delivered, _) => lane.health.succeeded(),
                (Next::Unsent, _) | (_, None) => false,
                _ => true,
            };
            health = changed.then(|| lane.health.write());
        }
        let record = sent.map(|sent| AttemptRecord {
            number: claimed.attempt,
            began_ms: millis(claimed.now),
            took_ms: u32::try_from(sent.took.as_millis()).unwrap_or(u32::MAX),
            status: sent.status,
            error: match &sent.outcome {
                Ok(()) => String::new(),
                Err(refused) => printable(&refused.error, MAX_EXCERPT),
            },
            excerpt: sent.excerpt.clone(),
            address: sent.address.clone(),
        });
        self.unsettled.push_back(Pending {
            settled: Settled {
                row: claimed.row,
                endpoint: claimed.endpoint,
                fence: claimed.fence,
                number: claimed.attempt,
                began: claimed.began,
                next,
                session,
                attempt: record,
                health,
                disable: None,
            },
            ended: now,
            ordered: claimed.ordered,
        });
    }

    fn on_settled(&mut self, now: Instant, written: &[bool]) {
        self.settle_failed = false;
        self.settle_batch = (self.settle_batch * 2).min(BATCH);
        for (at, pending) in std::mem::take(&mut self.settling).into_iter().enumerate() {
            let id = pending.settled.endpoint;
            let Some(lane) = self.lanes.get_mut(&id) else {
                continue;
            };
            lane.unsettled = lane.unsettled.saturating_sub(1);
            if written.get(at) != Some(&true) {
                // The endpoint is another's, or the answer to an earlier try was lost. Taken anew, it is known again.
                self.leave(id);
                continue;
            }
            match pending.settled.next {
                Next::Again(after) if after <= self.config.poll => {
                    self.wake_at(id, (pending.ended + after).max(now));
                }
                Next::Unsent => self.mark_due(id),
                Next::Delivered | Next::Dead(_) if pending.ordered => self.mark_due(id),
                _ => {}
            }
            self.close_if_over(id);
        }
    }

    fn on_pulse(&mut self, pulse: Pulse) {
        if std::mem::take(&mut self.is_short) && self.lanes.len() < pulse.share {
            self.look_soon();
        }
        if pulse.lost != self.lost {
            self.lost = pulse.lost;
            observe::lease_lost();
            let all: Vec<i64> = self.lanes.keys().copied().collect();
            for id in all {
                self.leave(id);
            }
            return;
        }
        // A tenth more is no reason to move endpoints about.
        let most = pulse.share + pulse.share / 10 + 1;
        let excess = self.lanes.len().saturating_sub(most);
        if excess > 0 {
            let mut idle: Vec<(bool, usize, i64)> = self
                .lanes
                .iter()
                .map(|(id, lane)| (lane.due, lane.running, *id))
                .collect();
            idle.sort_unstable();
            for (_, _, id) in idle.into_iter().take(excess) {
                self.leave(id);
            }
        }
    }

    /// Claims nothing more.
    fn stop(&mut self, now: Instant) {
        self.stopping = true;
        self.ask_at = now;
        self.to_acquire.clear();
        let all: Vec<i64> = self.lanes.keys().copied().collect();
        for id in all {
            self.leave(id);
        }
    }

    /// Nothing more of it is claimed, and it is given back when nothing of it runs or is to be written.
    fn leave(&mut self, id: i64) {
        let core_now = self.core(Instant::now());
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        lane.leaving = true;
        lane.stop_asking(core_now);
        for Ticket { permit, pool } in std::mem::take(&mut lane.tickets) {
            lane.cancel(core_now, permit);
            self.slots.give_back(pool);
            self.tickets -= 1;
        }
        self.close_if_over(id);
    }

    fn close_if_over(&mut self, id: i64) {
        if let Some(lane) = self
            .lanes
            .get(&id)
            .filter(|lane| lane.leaving && lane.is_over())
        {
            self.to_release.push((id, lane.fence));
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

    /// On the clock of gates and rates.
    fn core(&self, now: Instant) -> relent_core::Instant {
        let since = now.saturating_duration_since(self.origin);
        relent_core::Instant::ORIGIN.saturating_add(since)
    }
}

fn millis(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
