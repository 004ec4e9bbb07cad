//! A store in memory for tests in virtual time: the rules of [`Store`], without a database.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use relent::random::SessionRandom;
use relent_core::Random;
use tokio::sync::broadcast;
use tokio::time::{Instant, sleep};

use crate::endpoint::{Activity, Endpoint};
use crate::health::Health;
use crate::message::{MessageId, NewEvent, NewMessage};
use crate::store::{
    AfterAttempt, AttemptRecord, ClaimOrder, ClaimRequest, Claimed, Claims, ConfirmRequest,
    Content, Deletion, EndpointStatus, EndpointWork, EnqueueError, Enqueued, Fence, Filter,
    Heartbeat, Hinted, Hints, INLINE, MessageStatus, OwnedEndpoint, Published, Recent, Settled,
    Store, Summary,
};

#[derive(Clone)]
pub(super) struct Memory(Arc<Mutex<Tables>>);

/// A fault of a store call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// The call fails without effect.
    Before,
    /// The call fails, but has taken effect.
    After,
    Panic,
    /// The call never returns.
    Hang,
    /// The call takes effect, and returns 20 s later.
    Late,
}

struct Tables {
    origin: Instant,
    workers: BTreeMap<String, Instant>,
    /// The workers that are not able to make attempts.
    unable: BTreeSet<String>,
    endpoints: BTreeMap<i64, EndpointRow>,
    rows: BTreeMap<i64, Row>,
    faults: HashMap<&'static str, Vec<Fault>>,
    call_faults: Option<CallFaults>,
    calls: HashMap<&'static str, usize>,
    hints: broadcast::Sender<Hinted>,
}

/// Random latency and faults of calls.
pub(super) struct CallFaults {
    pub(super) random: SessionRandom,
    /// A call takes up to twice its baseline latency; once in 64 calls it takes `latency_factor` times as long.
    pub(super) latency_factor: u32,
    /// The number of faulty calls per 1,000.
    pub(super) faulty: u64,
    /// The workers whose heartbeats fail.
    pub(super) without_heartbeats: BTreeSet<String>,
}

impl Default for CallFaults {
    /// Random latency without faults.
    fn default() -> Self {
        Self {
            random: SessionRandom::with_seed(1),
            latency_factor: 1,
            faulty: 0,
            without_heartbeats: BTreeSet::new(),
        }
    }
}

impl CallFaults {
    fn below(&mut self, bound: u64) -> u64 {
        self.random.next_u64() % bound
    }

    fn latency(&mut self, baseline: Duration) -> Duration {
        let latency_factor = if self.below(64) == 0 {
            self.latency_factor
        } else {
            1
        };
        let percent = u32::try_from(self.below(200)).unwrap();
        baseline * latency_factor * percent / 100
    }

    fn fault(&mut self) -> Option<Fault> {
        if self.below(1000) >= self.faulty {
            return None;
        }
        let faults = [Fault::Before, Fault::After, Fault::Hang, Fault::Late];
        Some(faults[usize::try_from(self.below(4)).unwrap()])
    }
}

struct EndpointRow {
    endpoint: Endpoint,
    revision: i64,
    owner: String,
    fence: i64,
    health: Vec<u8>,
    disabled: Option<String>,
    /// Another version has written the endpoint.
    unreadable: bool,
    due: BTreeSet<(Instant, i64)>,
    running: BTreeSet<i64>,
}

pub(super) struct Row {
    id: MessageId,
    order: Option<u64>,
    payload: Bytes,
    pub(super) attempt: u32,
    session: Vec<u8>,
    due: Instant,
    began: Instant,
    pub(super) started: SystemTime,
    fence: i64,
    pub(super) ended: Option<Result<(), String>>,
    pub(super) records: Vec<AttemptRecord>,
}

#[derive(Debug)]
pub(super) struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("broken for a test")
    }
}

impl std::error::Error for Broken {}

impl Memory {
    pub(super) fn new(endpoints: impl IntoIterator<Item = Endpoint>) -> Self {
        Self(Arc::new(Mutex::new(Tables {
            origin: Instant::now(),
            workers: BTreeMap::new(),
            unable: BTreeSet::new(),
            endpoints: (1..)
                .zip(endpoints.into_iter().map(EndpointRow::new))
                .collect(),
            rows: BTreeMap::new(),
            faults: HashMap::new(),
            call_faults: None,
            calls: HashMap::new(),
            hints: broadcast::Sender::new(16),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap()
    }

    /// Makes the next calls of this name fail in this way, one after another.
    pub(super) fn fail(&self, call: &'static str, faults: &[Fault]) {
        self.lock()
            .faults
            .insert(call, faults.iter().rev().copied().collect());
    }

    /// The number of calls with this name.
    pub(super) fn calls(&self, name: &str) -> usize {
        self.lock().calls.get(name).copied().unwrap_or_default()
    }

    pub(super) fn hint(&self, hinted: Hinted) {
        let _ = self.lock().hints.send(hinted);
    }

    pub(super) fn add(&self, endpoint: i64, payload: impl Into<Bytes>) -> i64 {
        self.add_later(endpoint, payload, Duration::ZERO)
    }

    pub(super) fn add_later(
        &self,
        endpoint: i64,
        payload: impl Into<Bytes>,
        delay: Duration,
    ) -> i64 {
        self.add_ordered(endpoint, payload, delay, None)
    }

    pub(super) fn add_ordered(
        &self,
        endpoint: i64,
        payload: impl Into<Bytes>,
        delay: Duration,
        order: Option<u64>,
    ) -> i64 {
        let mut tables = self.lock();
        let row = i64::try_from(tables.rows.len()).unwrap() + 1;
        let now = Instant::now();
        tables.rows.insert(
            row,
            Row {
                id: MessageId::new(),
                order,
                payload: payload.into(),
                attempt: 0,
                session: Vec::new(),
                due: now + delay,
                began: now,
                started: SystemTime::UNIX_EPOCH,
                fence: 0,
                ended: None,
                records: Vec::new(),
            },
        );
        tables
            .endpoints
            .get_mut(&endpoint)
            .unwrap()
            .due
            .insert((now + delay, row));
        row
    }

    pub(super) fn row<T>(&self, row: i64, look: impl FnOnce(&Row) -> T) -> T {
        look(&self.lock().rows[&row])
    }

    pub(super) fn unended(&self) -> usize {
        self.lock()
            .rows
            .values()
            .filter(|row| row.ended.is_none())
            .count()
    }

    pub(super) fn owners(&self) -> Vec<String> {
        self.lock()
            .endpoints
            .values()
            .map(|row| row.owner.clone())
            .collect()
    }

    pub(super) fn disabled(&self, endpoint: i64) -> Option<String> {
        self.lock().endpoints[&endpoint].disabled.clone()
    }

    pub(super) fn health(&self, endpoint: i64) -> Health {
        Health::read(&self.lock().endpoints[&endpoint].health)
    }

    /// Ends the lease of a worker.
    pub(super) fn expire(&self, worker: &str) {
        self.lock().workers.remove(worker);
    }

    /// Simulates that another worker has acquired and released the endpoint.
    pub(super) fn pass_on(&self, endpoint: i64) {
        let mut tables = self.lock();
        let row = tables.endpoints.get_mut(&endpoint).unwrap();
        row.owner.clear();
        row.fence += 1;
    }

    pub(super) fn set_call_faults(&self, call_faults: CallFaults) {
        self.lock().call_faults = Some(call_faults);
    }

    pub(super) fn call_faults<T>(&self, change: impl FnOnce(&mut CallFaults) -> T) -> Option<T> {
        self.lock().call_faults.as_mut().map(change)
    }

    pub(super) fn set_disabled(&self, endpoint: i64, disabled: bool) {
        if let Some(row) = self.lock().endpoints.get_mut(&endpoint) {
            row.revision += i64::from(row.disabled.is_some() && !disabled);
            row.disabled = disabled.then(|| "for a test".to_owned());
        }
    }

    pub(super) fn make_unreadable(&self, endpoint: i64) {
        self.lock().endpoints.get_mut(&endpoint).unwrap().unreadable = true;
    }

    /// Registers the endpoint again.
    pub(super) fn replace(&self, endpoint: i64) {
        self.change(endpoint, |_| {});
    }

    /// Registers the endpoint again with changes.
    pub(super) fn change(&self, endpoint: i64, change: impl FnOnce(&mut Endpoint)) {
        if let Some(row) = self.lock().endpoints.get_mut(&endpoint) {
            row.revision += 1;
            let url = row.endpoint.url.clone();
            change(&mut row.endpoint);
            if row.endpoint.url != url {
                row.health.clear();
            }
        }
    }

    /// Deletes the endpoint with its messages, and registers another one with the same name.
    pub(super) fn delete_and_put(&self, endpoint: i64) -> i64 {
        let mut tables = self.lock();
        let next = *tables.endpoints.keys().next_back().unwrap() + 1;
        let gone = tables.endpoints.remove(&endpoint).unwrap();
        for row in gone.due.iter().map(|(_, row)| row).chain(&gone.running) {
            tables.rows.get_mut(row).unwrap().ended = Some(Err("deleted".to_owned()));
        }
        tables
            .endpoints
            .insert(next, EndpointRow::new(gone.endpoint));
        next
    }

    /// The owner of the endpoint, if it has a lease.
    pub(super) fn owner(&self, endpoint: i64) -> Option<String> {
        let tables = self.lock();
        let row = tables.endpoints.get(&endpoint)?;
        tables.has_lease(&row.owner).then(|| row.owner.clone())
    }

    /// The number of workers with a lease.
    pub(super) fn leases(&self) -> usize {
        self.lock().workers.len()
    }

    async fn call<T>(
        &self,
        name: &'static str,
        call: impl FnOnce(&mut Tables) -> T,
    ) -> Result<T, Broken> {
        // Writes take longer than reads.
        let baseline = Duration::from_millis(if name == "settle" { 6 } else { 2 });
        let (latency, fault) = {
            let mut tables = self.lock();
            *tables.calls.entry(name).or_default() += 1;
            let planned = tables.faults.get_mut(name).and_then(Vec::pop);
            match &mut tables.call_faults {
                None => (baseline, planned),
                Some(call_faults) => (
                    call_faults.latency(baseline),
                    planned.or_else(|| call_faults.fault()),
                ),
            }
        };
        sleep(latency / 2).await;
        match fault {
            Some(Fault::Before) => return Err(Broken),
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Panic) => panic!("for a test"),
            Some(Fault::After | Fault::Late) | None => {}
        }
        let done = call(&mut self.lock());
        // The response does not include changes made meanwhile.
        sleep(latency / 2).await;
        match fault {
            Some(Fault::Late) => {
                sleep(Duration::from_secs(20)).await;
                Ok(done)
            }
            Some(_) => Err(Broken),
            None => Ok(done),
        }
    }
}

impl EndpointRow {
    const fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            revision: 0,
            owner: String::new(),
            fence: 0,
            health: Vec::new(),
            disabled: None,
            unreadable: false,
            due: BTreeSet::new(),
            running: BTreeSet::new(),
        }
    }

    /// The messages that may be claimed: of each order key the first, if none of it runs.
    fn free(
        &self,
        rows: &BTreeMap<i64, Row>,
        now: Instant,
        most: usize,
        first_of: ClaimOrder,
    ) -> Vec<(Instant, i64)> {
        let mut taken: BTreeSet<u64> = self
            .running
            .iter()
            .filter_map(|row| rows[row].order)
            .collect();
        let mut first: BTreeMap<u64, i64> = BTreeMap::new();
        for (_, row) in &self.due {
            if let Some(order) = rows[row].order {
                let first = first.entry(order).or_insert(*row);
                *first = (*row).min(*first);
            }
        }
        let mut due: Vec<_> = self.due.iter().take_while(|(due, _)| *due <= now).collect();
        let is_fresh = |row: &i64| rows[row].attempt == 0 && rows[row].session.is_empty();
        match first_of {
            ClaimOrder::Due => {}
            ClaimOrder::Fresh => due.sort_by_key(|(_, row)| !is_fresh(row)),
            ClaimOrder::Newest => {
                let rank = |(at, (_, row)): (usize, &&(Instant, i64))| match is_fresh(row) {
                    true => (0, usize::MAX - at),
                    false => (1, at),
                };
                let mut ranked: Vec<_> = due
                    .iter()
                    .enumerate()
                    .map(|one| (rank(one), *one.1))
                    .collect();
                ranked.sort_by_key(|(rank, _)| *rank);
                due = ranked.into_iter().map(|(_, one)| one).collect();
            }
        }
        let due = due.into_iter();
        due.filter(|(_, row)| match rows[row].order {
            None => true,
            Some(order) => first[&order] == *row && taken.insert(order),
        })
        .take(most)
        .copied()
        .collect()
    }

    fn owned(&self, id: i64) -> OwnedEndpoint {
        OwnedEndpoint {
            id,
            fence: Fence(self.fence),
            endpoint: self.endpoint.clone(),
            revision: self.revision,
            health: self.health.clone(),
        }
    }
}

impl Tables {
    fn time(&self, at: Instant) -> SystemTime {
        time(self.origin, at)
    }

    fn has_lease(&self, worker: &str) -> bool {
        self.workers
            .get(worker)
            .is_some_and(|until| Instant::now() < *until)
    }

    fn forget_expired(&mut self) {
        let now = Instant::now();
        self.workers.retain(|_, until| now < *until);
        self.unable
            .retain(|worker| self.workers.contains_key(worker));
        for row in self.endpoints.values_mut() {
            if !self.workers.contains_key(&row.owner) {
                row.owner.clear();
            }
        }
    }
}

fn time(origin: Instant, at: Instant) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_795_000_000) + at.saturating_duration_since(origin)
}

impl Store for Memory {
    type Error = Broken;

    async fn enqueue(&self, _: Vec<NewMessage>) -> Result<Vec<Enqueued>, EnqueueError<Broken>> {
        Err(Broken.into())
    }

    fn hints(&self) -> Hints {
        Hints::of(self.lock().hints.subscribe())
    }

    async fn heartbeat(
        &self,
        worker: &str,
        lease: Duration,
        able: bool,
    ) -> Result<Heartbeat, Broken> {
        if self.call_faults(|call_faults| call_faults.without_heartbeats.contains(worker))
            == Some(true)
        {
            sleep(Duration::from_millis(5)).await;
            return Err(Broken);
        }
        self.call("heartbeat", |tables| {
            let kept = tables.has_lease(worker);
            tables
                .workers
                .insert(worker.to_owned(), Instant::now() + lease);
            match able {
                true => tables.unable.remove(worker),
                false => tables.unable.insert(worker.to_owned()),
            };
            tables.forget_expired();
            let active = tables
                .endpoints
                .values()
                .filter(|row| row.disabled.is_none())
                .count();
            Heartbeat {
                kept,
                share: Heartbeat::share_of(
                    active as u64,
                    tables.workers.len() as u64,
                    (tables.workers.len() - tables.unable.len()) as u64,
                    able,
                ),
            }
        })
        .await
    }

    async fn find_work(
        &self,
        worker: &str,
        within: Duration,
        most: usize,
    ) -> Result<Vec<EndpointWork>, Broken> {
        self.call("find", |tables| {
            let now = Instant::now();
            let mut found: Vec<EndpointWork> = tables
                .endpoints
                .iter()
                .filter(|(_, row)| {
                    row.disabled.is_none() && (row.owner.is_empty() || row.owner == worker)
                })
                .filter_map(|(id, row)| {
                    let fence = row.fence + i64::from(row.owner.is_empty());
                    let lost = row.running.iter().any(|row| tables.rows[row].fence < fence);
                    let due = row
                        .due
                        .first()
                        .map(|(due, _)| due.saturating_duration_since(now));
                    let due = if lost { Duration::ZERO } else { due? };
                    (due <= within).then_some(EndpointWork {
                        endpoint: *id,
                        owned: (row.owner == worker).then_some(Fence(row.fence)),
                        due,
                        revision: row.revision,
                    })
                })
                .collect();
            found.sort_by_key(|work| work.due);
            found.truncate(most);
            found
        })
        .await
    }

    async fn acquire(
        &self,
        worker: &str,
        endpoints: Vec<i64>,
    ) -> Result<Vec<OwnedEndpoint>, Broken> {
        let acquire = |tables: &mut Tables| {
            let (mut owned, mut unreadable) = (Vec::new(), false);
            if !tables.has_lease(worker) {
                return Ok(owned);
            }
            for id in endpoints {
                let Some(row) = tables.endpoints.get_mut(&id) else {
                    continue;
                };
                if row.unreadable {
                    unreadable = true;
                } else if row.disabled.is_none() && (row.owner.is_empty() || row.owner == worker) {
                    row.owner = worker.to_owned();
                    row.fence += 1;
                    owned.push(row.owned(id));
                }
            }
            // The other endpoints need not wait for the unreadable one.
            match unreadable && owned.is_empty() {
                true => Err(Broken),
                false => Ok(owned),
            }
        };
        self.call("acquire", acquire).await?
    }

    async fn release(&self, worker: &str, endpoints: Vec<(i64, Fence)>) -> Result<(), Broken> {
        self.call("release", |tables| {
            for (id, fence) in endpoints {
                if let Some(row) = tables.endpoints.get_mut(&id)
                    && row.owner == worker
                    && row.fence == fence.0
                {
                    row.owner.clear();
                }
            }
        })
        .await
    }

    async fn claim(&self, worker: &str, wanted: Vec<ClaimRequest>) -> Result<Claims, Broken> {
        self.call("claim", |tables| {
            let (now, mut claims) = (Instant::now(), Claims::default());
            let claimed = &mut claims.messages;
            let time = tables.time(now);
            if !tables.has_lease(worker) {
                return claims;
            }
            for wanted in wanted {
                let Some(row) = tables.endpoints.get_mut(&wanted.endpoint) else {
                    continue;
                };
                if row.owner != worker || row.fence != wanted.fence.0 || row.disabled.is_some() {
                    continue;
                }
                if row.revision != wanted.revision {
                    claims.changed.push(row.owned(wanted.endpoint));
                    continue;
                }
                let lost = row
                    .running
                    .iter()
                    .filter(|row| tables.rows[row].fence < wanted.fence.0);
                let lost: Vec<i64> = lost.take(wanted.most).copied().collect();
                let due = row.free(&tables.rows, now, wanted.most - lost.len(), wanted.first);
                for due in &due {
                    row.due.remove(due);
                    row.running.insert(due.1);
                }
                let fresh = due.into_iter().map(|(_, row)| (row, false));
                for (row, lost) in lost.into_iter().map(|row| (row, true)).chain(fresh) {
                    let began = tables.time(tables.rows[&row].began);
                    let message = tables.rows.get_mut(&row).unwrap();
                    message.fence = wanted.fence.0;
                    message.attempt += u32::from(!lost);
                    if !lost {
                        message.started = time;
                    }
                    claimed.push(Claimed {
                        row,
                        endpoint: wanted.endpoint,
                        fence: wanted.fence,
                        revision: wanted.revision,
                        id: message.id.clone(),
                        content_type: "application/json".to_owned(),
                        payload: match message.payload.len() {
                            _ if lost => Bytes::new(),
                            0..=INLINE => message.payload.clone(),
                            _ => Bytes::new(),
                        },
                        size: if lost { 0 } else { message.payload.len() },
                        attempt: message.attempt,
                        ordered: message.order.is_some(),
                        session: message.session.clone(),
                        began,
                        now: time,
                        started: message.started,
                        lost,
                    });
                }
            }
            claims
        })
        .await
    }

    async fn confirm(
        &self,
        worker: &str,
        attempts: Vec<ConfirmRequest>,
    ) -> Result<Vec<Option<Bytes>>, Broken> {
        self.call("confirm", |tables| {
            let one = |one: ConfirmRequest| {
                let (endpoint, row) = (
                    tables.endpoints.get(&one.endpoint)?,
                    tables.rows.get(&one.row)?,
                );
                let may = endpoint.running.contains(&one.row)
                    && (row.fence, endpoint.fence) == (one.fence.0, one.fence.0)
                    && endpoint.revision == one.revision
                    && endpoint.owner == worker
                    && endpoint.disabled.is_none();
                may.then(|| match one.payload {
                    true => row.payload.clone(),
                    false => Bytes::new(),
                })
            };
            attempts.into_iter().map(one).collect()
        })
        .await
    }

    async fn settle(&self, settled: Vec<Settled>) -> Result<Vec<bool>, Broken> {
        self.call("settle", |tables| {
            let now = Instant::now();
            let one = |settled: Settled| {
                let Some(endpoint) = tables.endpoints.get_mut(&settled.endpoint) else {
                    return false;
                };
                let row = tables.rows.get_mut(&settled.row).unwrap();
                let fence = settled.fence.0;
                let is = (endpoint.fence, row.fence, row.attempt);
                let fits = is == (fence, fence, settled.number)
                    && time(tables.origin, row.began) == settled.began;
                if !fits || !endpoint.running.remove(&settled.row) {
                    return false;
                }
                row.session = settled.session;
                row.records.extend(settled.attempt);
                if settled.next.is_unsent() {
                    row.attempt -= 1;
                    row.began += Duration::from_micros(1);
                }
                match settled.next {
                    AfterAttempt::Delivered => row.ended = Some(Ok(())),
                    AfterAttempt::Dead(reason) => row.ended = Some(Err(reason)),
                    AfterAttempt::Again(after) | AfterAttempt::Held(after, _) => {
                        row.due = now + after;
                        endpoint.due.insert((row.due, settled.row));
                    }
                    AfterAttempt::Unsent => {
                        endpoint.due.insert((row.due, settled.row));
                    }
                }
                if endpoint.revision == settled.revision {
                    if let Some(health) = settled.health {
                        endpoint.health = health;
                    }
                    if settled.disable.is_some() {
                        endpoint.disabled = settled.disable;
                    }
                }
                true
            };
            settled.into_iter().map(one).collect()
        })
        .await
    }

    async fn put_endpoint(&self, _: Endpoint) -> Result<(), Broken> {
        Err(Broken)
    }

    async fn replace_endpoint(&self, _: Endpoint, _: Option<i64>) -> Result<bool, Broken> {
        Err(Broken)
    }

    async fn delete_endpoint(&self, _: &str, _: &str, _: bool) -> Result<Deletion, Broken> {
        Err(Broken)
    }

    async fn endpoint(&self, _: &str, _: &str) -> Result<Option<EndpointStatus>, Broken> {
        Err(Broken)
    }

    async fn endpoints(
        &self,
        _: Option<(String, String)>,
        _: usize,
    ) -> Result<Vec<EndpointStatus>, Broken> {
        Err(Broken)
    }

    async fn set_activity(&self, _: &str, _: &str, _: Activity, _: &str) -> Result<bool, Broken> {
        Err(Broken)
    }

    async fn key_check(&self) -> Result<Option<String>, Broken> {
        Err(Broken)
    }

    async fn replace_key_check(&self, _: String, _: Option<String>) -> Result<bool, Broken> {
        Err(Broken)
    }

    async fn publish(&self, _: Vec<NewEvent>) -> Result<Vec<Published>, EnqueueError<Broken>> {
        Err(EnqueueError::Store(Broken))
    }

    async fn endpoints_needing_attention(&self, _: usize) -> Result<Vec<EndpointStatus>, Broken> {
        Err(Broken)
    }

    async fn recent(&self, _: &str, _: &str) -> Result<Option<Recent>, Broken> {
        Err(Broken)
    }

    async fn content(&self, _: &MessageId) -> Result<Option<Content>, Broken> {
        Err(Broken)
    }

    async fn send_now(&self, _: Filter) -> Result<u64, Broken> {
        Err(Broken)
    }

    async fn messages(&self, _: Filter, _: usize) -> Result<Vec<MessageStatus>, Broken> {
        Err(Broken)
    }

    async fn attempts(&self, _: &MessageId) -> Result<Vec<AttemptRecord>, Broken> {
        Err(Broken)
    }

    async fn resend(&self, _: Filter) -> Result<u64, Broken> {
        Err(Broken)
    }

    async fn cancel(&self, _: Filter) -> Result<u64, Broken> {
        Err(Broken)
    }

    async fn purge(&self, _: Duration, _: usize) -> Result<u64, Broken> {
        Err(Broken)
    }

    async fn summary(&self) -> Result<Summary, Broken> {
        Err(Broken)
    }
}
