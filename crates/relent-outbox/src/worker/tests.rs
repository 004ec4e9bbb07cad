//! Tests of a worker in virtual time, with a store in memory and receivers that are functions.

mod able;
mod changes;
mod contract;
mod fair;
mod faults;
mod fleet;
mod held;
mod hints;
mod late;
mod lost;
mod memory;

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use relent_core::{Cause, Failure};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::attempt::{Job, Transport};
use super::{Drained, Worker, WorkerConfig};
use crate::endpoint::Endpoint;
use crate::guard::AddressGuard;
use crate::relay::Relay;
use crate::secrets::Secrets;
use crate::sender::{AttemptResult, Sender, SenderConfig};
use memory::{Fault, Memory};

const SECOND: Duration = Duration::from_secs(1);
/// A policy with ten attempts, a second apart.
const TEN: &str = r#"
max_retries = 9
jitter = "none"
attempt_timeout = "15s"
retry_on = ["5xx", "timeout", "network"]
backoff.constant = { delay = "1s" }
"#;

pub(super) fn sender() -> Sender {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    Sender::new(SenderConfig {
        guard: AddressGuard::new(),
        tls: Some(tls),
        ..SenderConfig::default()
    })
    .unwrap()
}

/// The behaviour of a receiver: duration and failure of an attempt.
type Receive = dyn Fn(&Job) -> (Duration, Option<Failure>) + Send + Sync;

/// The receivers, and counts of their attempts.
#[derive(Clone)]
struct Receivers {
    receive: Arc<Receive>,
    hits: Arc<Mutex<HashMap<String, usize>>>,
    by_endpoint: Arc<Mutex<HashMap<String, usize>>>,
    at_once: Arc<AtomicUsize>,
    most_at_once: Arc<AtomicUsize>,
}

impl Receivers {
    fn new(receive: impl Fn(&Job) -> (Duration, Option<Failure>) + Send + Sync + 'static) -> Self {
        Self {
            receive: Arc::new(receive),
            hits: Arc::default(),
            by_endpoint: Arc::default(),
            at_once: Arc::default(),
            most_at_once: Arc::default(),
        }
    }

    fn transport(&self) -> Transport {
        self.remote().in_process(|_| std::future::ready(true))
    }

    /// As the transport of a relay: other processes make the attempts.
    fn remote(&self) -> Transport {
        let this = self.clone();
        Transport::new(watch::channel(true).1, move |mut job| {
            let this = this.clone();
            async move {
                job.ready().await?;
                *this
                    .hits
                    .lock()
                    .unwrap()
                    .entry(job.id.to_string())
                    .or_default() += 1;
                *this
                    .by_endpoint
                    .lock()
                    .unwrap()
                    .entry(job.rules.endpoint.name.clone())
                    .or_default() += 1;
                let running = this.at_once.fetch_add(1, Ordering::Relaxed) + 1;
                this.most_at_once.fetch_max(running, Ordering::Relaxed);
                let began = Instant::now();
                let (takes, failure) = (this.receive)(&job);
                let in_time = timeout(job.limit, sleep(takes)).await.is_ok();
                this.at_once.fetch_sub(1, Ordering::Relaxed);
                let failure = match in_time {
                    true => failure,
                    false => Some(Failure::ambiguous().cause(Cause::Timeout)),
                };
                let mut sent =
                    AttemptResult::failed(Failure::ambiguous(), String::new(), began.elapsed());
                let is_gone = |failure: &Failure| failure.cause == Cause::Status(410);
                sent.disable = failure.filter(is_gone).map(|_| "it answered 410");
                sent.outcome = match failure {
                    None => Ok(()),
                    Some(failure) => Err(crate::acknowledgement::NotAcknowledged {
                        failure,
                        error: match in_time {
                            true => failure.cause.to_string(),
                            false => crate::sender::NO_ANSWER.to_owned(),
                        },
                        gone: is_gone(&failure),
                    }),
                };
                Ok(sent)
            }
        })
    }

    fn hits(&self) -> usize {
        self.hits.lock().unwrap().values().sum()
    }
}

fn config(name: &str) -> WorkerConfig {
    WorkerConfig {
        name: name.to_owned(),
        ..WorkerConfig::default()
    }
}

struct Running {
    stop: oneshot::Sender<()>,
    worker: JoinHandle<Drained>,
}

/// A transport in place of the network.
#[derive(Debug)]
struct InMemory(Transport);

impl Relay for InMemory {
    fn start(self: Box<Self>) -> Transport {
        self.0
    }
}

fn worker(store: &Memory, transport: Transport, config: WorkerConfig) -> Worker<Memory> {
    Worker::new(store.clone(), sender(), Secrets::default(), config).relay(InMemory(transport))
}

fn start(store: &Memory, receivers: &Receivers, config: WorkerConfig) -> Running {
    run(worker(store, receivers.transport(), config))
}

fn run(worker: Worker<Memory>) -> Running {
    let (stop, stopped) = oneshot::channel();
    let worker = tokio::spawn(worker.run(async move {
        let _ = stopped.await;
    }));
    Running { stop, worker }
}

impl Running {
    async fn stop(self) -> Drained {
        let _ = self.stop.send(());
        timeout(Duration::from_secs(600), self.worker)
            .await
            .unwrap()
            .unwrap()
    }
}

async fn until_ended(store: &Memory) {
    until(|| store.unended() == 0).await;
}

async fn until(is_so: impl Fn() -> bool) {
    timeout(Duration::from_secs(3600), async {
        while !is_so() {
            sleep(Duration::from_millis(100)).await;
        }
    })
    .await
    .unwrap();
}

fn endpoint(name: usize) -> Endpoint {
    Endpoint::new(format!("e{name}"), "https://shop.example/").policy(TEN)
}

fn refused() -> Failure {
    Failure::ambiguous().cause(Cause::Status(500))
}

fn quick() -> Receivers {
    Receivers::new(|_| (Duration::from_millis(20), None))
}

#[tokio::test(start_paused = true)]
async fn a_failing_store_call_loses_no_message_and_repeats_no_attempt() {
    for call in ["heartbeat", "find", "acquire", "claim", "settle", "release"] {
        for fault in [Fault::Before, Fault::After, Fault::Panic, Fault::Hang] {
            println!("{call} {fault:?}");
            let store = Memory::new((0..3).map(endpoint));
            let rows: Vec<i64> = (0..30)
                .map(|message| store.add(1 + message % 3, "x"))
                .collect();
            store.fail(call, &[fault, fault]);
            let receivers = quick();
            let running = start(&store, &receivers, config("one"));
            until_ended(&store).await;
            let drained = running.stop().await;
            assert_eq!(drained.unsettled, 0, "{call} {fault:?}");
            for row in rows {
                store.row(row, |row| {
                    assert_eq!(row.ended, Some(Ok(())), "{call} {fault:?}");
                });
            }
            // A failed claim sends nothing, and a failed settle is repeated.
            assert_eq!(receivers.hits(), 30, "{call} {fault:?}");
            assert!(
                store.owners().iter().all(String::is_empty) || call == "release",
                "{call} {fault:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn results_are_written_when_a_failed_store_recovers() {
    let store = Memory::new([endpoint(0)]);
    let row = store.add(1, "x");
    store.fail("settle", &[Fault::Before; 20]);
    let receivers = quick();
    let running = start(&store, &receivers, config("one"));
    until_ended(&store).await;
    assert_eq!(receivers.hits(), 1);
    store.row(row, |row| {
        assert_eq!((row.attempt, row.records.len()), (1, 1));
    });
    let _ = running.stop().await;
}

/// A delayed result is written after a later one.
#[tokio::test(start_paused = true)]
async fn a_delayed_result_does_not_overwrite_newer_health() {
    let store = Memory::new([endpoint(0)]);
    let fails_first = AtomicUsize::new(0);
    let receivers = Receivers::new(move |job| match &job.payload[..] {
        b"fails" if fails_first.fetch_add(1, Ordering::Relaxed) == 0 => (SECOND, Some(refused())),
        b"fails" => (3600 * SECOND, None),
        b"succeeds" => (2 * SECOND, None),
        _ => (Duration::ZERO, None),
    });
    let running = start(&store, &receivers, config("one"));
    store.add(1, "makes it known");
    until_ended(&store).await;
    store.fail("settle", &[Fault::Hang]);
    for payload in ["fails", "succeeds"] {
        store.add(1, payload);
    }
    // The first is written when the call times out, after half a minute.
    sleep(33 * SECOND).await;
    assert_eq!(receivers.hits(), 4);
    assert_eq!(store.health(1).failing_since(), None);
    let _ = running.stop().await;
}

/// A hint asks for a search at once, which the pause of a failing store postpones.
#[tokio::test(start_paused = true)]
async fn a_worker_sleeps_until_it_may_call_a_failing_store_again() {
    let store = Memory::new([endpoint(0)]);
    store.fail("find", &[Fault::Before; 500]);
    let worker = worker(&store, quick().transport(), config("one"));
    let hint = worker.hint();
    let running = run(worker);
    sleep(20 * SECOND).await;
    let metrics = tokio::runtime::Handle::current().metrics();
    let before = metrics.worker_park_count(0);
    for _ in 0..200 {
        hint.wake();
        sleep(SECOND / 10).await;
    }
    let parks = metrics.worker_park_count(0) - before;
    assert!(parks < 2000, "{parks} in 20 s");
    running.worker.abort();
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_a_lease_claims_nothing() {
    let store = Memory::new((0..4).map(endpoint));
    for message in 0..40 {
        store.add(1 + message % 4, "x");
    }
    // Attempts take long enough to run when the lease is lost.
    let receivers = Receivers::new(|_| (2 * SECOND, None));
    let one = start(&store, &receivers, config("one"));
    sleep(SECOND).await;
    store.expire("one");
    let two = start(&store, &receivers, config("two"));
    until_ended(&store).await;
    let hits = receivers.hits.lock().unwrap().clone();
    assert_eq!(hits.len(), 40);
    // Only the attempts that ran at that time, one per endpoint, are repeated once.
    assert!(hits.values().sum::<usize>() <= 44, "{hits:?}");
    let _ = (one.stop().await, two.stop().await);
}

/// As after a suspension of the process: a response about ownership arrives when it is no longer true.
#[tokio::test(start_paused = true)]
async fn an_endpoint_owned_by_another_worker_meanwhile_is_served_again() {
    let store = Memory::new([endpoint(0)]);
    store.add(1, "x");
    store.fail("acquire", &[Fault::Late]);
    let receivers = quick();
    let running = start(&store, &receivers, config("one"));
    sleep(SECOND).await;
    store.expire("one");
    store.pass_on(1);
    timeout(120 * SECOND, until_ended(&store)).await.unwrap();
    assert_eq!(receivers.hits(), 1);
    let _ = running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn extreme_configured_times_are_accepted() {
    for time in [Duration::ZERO, Duration::MAX] {
        let store = Memory::new([endpoint(0)]);
        store.add(1, "x");
        let receivers = quick();
        let mut config = config("one");
        (config.lease, config.poll) = (time, time);
        (config.drain, config.slow_after) = (time, time);
        let running = start(&store, &receivers, config);
        until_ended(&store).await;
        assert_eq!(running.stop().await.unsettled, 0);
    }
}

/// The next worker to start has all endpoints as its share immediately.
#[tokio::test(start_paused = true)]
async fn a_stopped_worker_releases_its_lease() {
    let store = Memory::new([endpoint(0)]);
    store.add(1, "x");
    let receivers = quick();
    let running = start(&store, &receivers, config("one"));
    until_ended(&store).await;
    assert_eq!(store.leases(), 1);
    let _ = running.stop().await;
    assert_eq!(store.leases(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_new_worker_gets_its_share_of_the_endpoints() {
    let store = Memory::new((0..40).map(endpoint));
    let receivers = quick();
    let one = start(&store, &receivers, config("one"));
    let all = |store: &Memory| {
        for endpoint in 1..=40 {
            store.add(endpoint, "x");
        }
    };
    all(&store);
    sleep(5 * SECOND).await;
    assert!(store.owners().iter().all(|owner| owner == "one"));
    let two = start(&store, &receivers, config("two"));
    for _ in 0..60 {
        all(&store);
        sleep(SECOND).await;
    }
    let owners = store.owners();
    let twos = owners.iter().filter(|owner| *owner == "two").count();
    assert!((15..=25).contains(&twos), "{twos} of 40");
    until_ended(&store).await;
    let hits = receivers.hits.lock().unwrap().clone();
    assert!(
        hits.values().all(|hits| *hits == 1),
        "moving repeats nothing"
    );
    let _ = (one.stop().await, two.stop().await);
}

#[tokio::test(start_paused = true)]
async fn the_concurrency_limit_of_an_endpoint_holds() {
    let two = NonZeroU32::new(2).unwrap();
    let store = Memory::new([endpoint(0).concurrency(two)]);
    for _ in 0..20 {
        store.add(1, "x");
    }
    let receivers = Receivers::new(|_| (Duration::from_millis(100), None));
    let running = start(&store, &receivers, config("one"));
    until_ended(&store).await;
    assert_eq!(receivers.most_at_once.load(Ordering::Relaxed), 2);
    let _ = running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn messages_held_while_an_endpoint_is_down_use_no_attempts() {
    let attempts = |hold: bool| async move {
        let store = Memory::new([endpoint(0).hold(hold)]);
        let up = Instant::now() + 120 * SECOND;
        let receivers = Receivers::new(move |_| {
            let failure = (Instant::now() < up).then(refused);
            (Duration::from_millis(20), failure)
        });
        let running = start(&store, &receivers, config("one"));
        let mut rows = Vec::new();
        for _ in 0..100 {
            rows.push(store.add(1, "x"));
            sleep(SECOND).await;
        }
        until_ended(&store).await;
        let delivered = rows
            .iter()
            .filter(|row| store.row(**row, |row| row.ended == Some(Ok(()))));
        let delivered = delivered.count();
        let _ = running.stop().await;
        (delivered, receivers.hits())
    };
    let (delivered, hits) = attempts(true).await;
    assert_eq!(delivered, 100, "{hits} attempts");
    assert!(hits < 200, "{hits} attempts for 100 messages");
    // Without holding, each message makes its ten attempts, and is dead before the endpoint recovers.
    let (delivered, hits) = attempts(false).await;
    assert!(
        delivered < 20 && hits > 800,
        "{delivered} delivered, {hits} attempts"
    );
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_fails_for_days_is_disabled() {
    let store = Memory::new([endpoint(0)
        .policy(
            "max_retries = \"unlimited\"\nbackoff.constant = { delay = \"1h\" }\njitter = \"none\"",
        )
        .hold(false)]);
    store.add(1, "x");
    let receivers = Receivers::new(|_| (SECOND, Some(refused())));
    let mut rarely = config("one");
    (rarely.poll, rarely.lease) = (60 * SECOND, 600 * SECOND);
    let running = start(&store, &receivers, rarely);
    sleep(4 * 24 * 3600 * SECOND).await;
    assert_eq!(store.disabled(1), None);
    sleep(26 * 3600 * SECOND).await;
    assert!(store.disabled(1).unwrap().contains("5 days"));
    let _ = running.stop().await;
}

/// The 99th percentile of the time from enqueuing a message for a healthy endpoint to the start of its attempt, in
/// microseconds.
async fn healthy_p99_lag_micros(endpoints: usize, with_failing_endpoints: bool) -> u128 {
    let store = Memory::new(
        (0..endpoints)
            .map(|number| Endpoint::new(number.to_string(), "https://shop.example/").policy(TEN)),
    );
    let lags: Arc<Mutex<Vec<u128>>> = Arc::default();
    let noted = Arc::clone(&lags);
    let began = Instant::now();
    let receivers = Receivers::new(move |job| {
        let number: usize = job.rules.endpoint.name.parse().unwrap();
        match number % 10 {
            0 => (3600 * SECOND, None),
            1 => (10 * SECOND, None),
            _ => {
                let enqueued: u64 = std::str::from_utf8(&job.payload).unwrap().parse().unwrap();
                let now = u64::try_from(began.elapsed().as_micros()).unwrap();
                noted.lock().unwrap().push(u128::from(now - enqueued));
                (Duration::from_millis(20), None)
            }
        }
    });
    // So that the lag does not include the poll interval.
    let mut often = config("one");
    often.poll = Duration::from_millis(20);
    // Few enough slots that the failing endpoints could occupy them all.
    (often.in_flight, often.slow_in_flight) = (endpoints / 16, endpoints / 16);
    let running = start(&store, &receivers, often);
    // Each endpoint gets a message every ten seconds.
    let each = 10 * SECOND / u32::try_from(endpoints).unwrap();
    for message in 0..4 * endpoints {
        let number = (message * 7919) % endpoints;
        if with_failing_endpoints || number % 10 > 1 {
            let now = began.elapsed().as_micros().to_string();
            store.add(i64::try_from(number).unwrap() + 1, now);
        }
        if message % 10 == 0 {
            sleep(10 * each).await;
        }
    }
    sleep(3 * SECOND).await;
    let _ = running.stop.send(());
    running.worker.abort();
    let mut lags = std::mem::take(&mut *lags.lock().unwrap());
    assert!(lags.len() > endpoints * 3, "{} of the healthy", lags.len());
    lags.sort_unstable();
    lags[lags.len() * 99 / 100]
}

#[tokio::test(start_paused = true)]
async fn dead_and_slow_endpoints_do_not_delay_healthy_ones() {
    // Set 10000 for the published figure, which takes longer.
    let endpoints =
        std::env::var("RELENT_ENDPOINTS").map_or(1000, |number| number.parse().unwrap());
    let without = healthy_p99_lag_micros(endpoints, false).await;
    let with = healthy_p99_lag_micros(endpoints, true).await;
    println!("p99 lag of the healthy: {without} us without the others, {with} us with them");
    assert!(
        with * 10 <= without * 11,
        "{with} us with the others, {without} us without"
    );
}
