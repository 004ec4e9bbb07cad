//! Worker processes that are killed at named points, and the ledger of the receiver. Every message arrives; messages
//! that were running when their worker was killed may arrive twice, with the same identifier.

use std::collections::HashMap;
use std::future::{Future, pending};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use relent::random::{Random, SessionRandom};
use relent_outbox::endpoint::Endpoint;
use relent_outbox::message::NewMessage;
use relent_outbox::secrets::Secrets;
use relent_outbox::store::{Filter, MessageState, Sqlite, Store};
use relent_outbox::worker::{Worker, WorkerConfig};

use crate::dying::{Dying, POINT, POINTS};
#[cfg(feature = "nats")]
use crate::fleet;
#[cfg(any(feature = "nats", feature = "postgres"))]
use crate::servers;
use crate::support::{Receiver, Reply, answer, local_sender, ok};

const DATABASE: &str = "RELENT_OUTBOX_DATABASE";
/// Raised for a long run by `scripts/kills-outbox`.
const KILLS: &str = "RELENT_KILLS";
const MESSAGES: &str = "RELENT_MESSAGES";
const ENDPOINTS: &str = "RELENT_ENDPOINTS";
const POLICY: &str = r#"
max_retries = 50
jitter = "none"
attempt_timeout = "10s"
retry_on = ["5xx", "timeout", "network"]
backoff.constant = { delay = "10ms" }
"#;
/// The endpoint of a message that kills each process that sends it.
const POISON: &str = "poison";

/// The process that is killed.
#[test]
fn child() {
    let Ok(database) = std::env::var(DATABASE) else {
        return; // It is started by the tests below.
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        // For a dispatcher, the address of NATS precedes the database.
        let (nats, database) = match database.split_once(' ') {
            Some((nats, database)) if nats.starts_with("nats:") => (Some(nats), database),
            _ => (None, &*database),
        };
        #[cfg(feature = "nats")]
        if let Some(nats) = nats.filter(|_| database == fleet::DELIVERER) {
            return fleet::deliver(nats).await;
        }
        let mut config = WorkerConfig::default();
        config.poll = Duration::from_millis(100);
        config.lease = Duration::from_secs(1);
        if let Some(file) = database.strip_prefix("sqlite:") {
            work(Sqlite::open(file).unwrap(), config, nats).await;
        } else {
            #[cfg(feature = "postgres")]
            work(postgres(database), config, nats).await;
        }
    });
}

#[cfg_attr(
    not(feature = "nats"),
    allow(unused_variables, reason = "nobody is a relay")
)]
async fn work(store: impl Store, config: WorkerConfig, nats: Option<&str>) {
    let worker = Worker::new(Dying(store), local_sender(), Secrets::default(), config);
    #[cfg(feature = "nats")]
    let worker = match nats {
        Some(nats) => worker.relay(fleet::queue(nats).await),
        None => worker,
    };
    let _ = worker.run(pending()).await;
}

#[cfg(feature = "postgres")]
fn postgres(database: &str) -> relent_outbox::store::Postgres {
    relent_outbox::store::Postgres::new(relent_server::postgres::pool(database, 4).unwrap())
}

pub(crate) fn spawn(database: &str, point: Option<&str>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "workers::child", "--nocapture"])
        .env(DATABASE, database)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if let Some(point) = point {
        command.env(POINT, point);
    }
    command.spawn().unwrap()
}

async fn until(mut over: impl FnMut() -> bool) {
    let waiting = async {
        while !over() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting)
        .await
        .unwrap();
}

async fn until_dead(child: &mut Child) {
    until(|| child.try_wait().unwrap().is_some()).await;
}

/// Other processes that are killed besides the worker.
pub(crate) trait Others {
    /// The processes that may be killed while an attempt waits for its response.
    fn processes(&self) -> Vec<u32>;
    /// Replaces the killed process at this index.
    fn replace(&mut self, place: usize) -> impl Future<Output = ()>;
}

/// No other processes.
impl Others for () {
    fn processes(&self) -> Vec<u32> {
        Vec::new()
    }

    async fn replace(&mut self, _: usize) {}
}

async fn count(store: &impl Store, state: MessageState) -> usize {
    let filter = Filter {
        state: Some(state),
        ..Filter::default()
    };
    store.messages(filter, usize::MAX >> 1).await.unwrap().len()
}

async fn kill_and_compare(store: impl Store, database: &str, mut others: impl Others) {
    let least = |name, short| std::env::var(name).map_or(short, |least| least.parse().unwrap());
    let (kills, messages, endpoints) = (
        least(KILLS, 20),
        least(MESSAGES, 8000),
        least(ENDPOINTS, 20),
    );
    // The number of requests until a kill, counted down; and the process to kill.
    let countdown = Arc::new(AtomicUsize::new(usize::MAX));
    let victim: Arc<Mutex<Option<u32>>> = Arc::default();
    let (counting, killing) = (Arc::clone(&countdown), Arc::clone(&victim));
    let receiver = Receiver::new(move |_| {
        let is_last = counting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            left.checked_sub(1)
        }) == Ok(1);
        if is_last {
            counting.store(usize::MAX, Ordering::Relaxed);
        }
        if is_last {
            // The attempt is waiting for its response.
            if let Some(process) = killing.lock().unwrap().take() {
                let _ = Command::new("kill")
                    .args(["-s", "KILL", &process.to_string()])
                    .status();
            }
            return Reply::Late(Duration::from_millis(20), answer("200 OK", "", ""));
        }
        ok()
    })
    .await;
    for number in 0..endpoints {
        let name = number.to_string();
        let endpoint = Endpoint::new(&name, receiver.url(&name))
            .policy(POLICY)
            .hold(false);
        store.put_endpoint(endpoint).await.unwrap();
    }
    for batch in 0..messages / 500 {
        let batch = (batch * 500..(batch + 1) * 500).map(|event| {
            NewMessage::new(
                (event % endpoints).to_string(),
                format!("event-{event}"),
                "{}",
            )
        });
        store.enqueue(batch.collect()).await.unwrap();
    }
    let mut random = SessionRandom::with_seed(1);
    let (mut on_their_way, mut killed) = (0, 0);
    let hit = |process: u32, after: u64| {
        *victim.lock().unwrap() = Some(process);
        countdown.store(1 + (after % 100) as usize, Ordering::Relaxed);
    };
    for round in 0.. {
        if killed >= kills {
            break;
        }
        // Each round handles its share of the messages, so that some are left for the last one.
        let times = random.next_u64() % 4;
        let processes = others.processes();
        let turn = round % (POINTS.len() + 1 + processes.len());
        let point = POINTS.get(turn);
        let mut child = spawn(
            database,
            point.map(|point| format!("{point}@{times}")).as_deref(),
        );
        if let Some(place) = turn.checked_sub(POINTS.len() + 1) {
            // The worker continues.
            hit(processes[place], random.next_u64());
            until(|| victim.lock().unwrap().is_none()).await;
            on_their_way += count(&store, MessageState::Running).await;
            killed += 1;
            others.replace(place).await;
        }
        if point.is_none() {
            hit(child.id(), random.next_u64());
        }
        until_dead(&mut child).await;
        on_their_way += count(&store, MessageState::Running).await;
        killed += 1;
    }
    let left = count(&store, MessageState::Pending).await;
    assert!(left > 0, "the messages ran out before the kills");
    let mut child = spawn(database, None);
    let waiting = async {
        while count(&store, MessageState::Pending).await
            + count(&store, MessageState::Running).await
            > 0
        {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(900), waiting)
        .await
        .unwrap();
    child.kill().unwrap();
    child.wait().unwrap();

    assert_eq!(
        count(&store, MessageState::Delivered).await,
        messages,
        "none is lost or dead"
    );
    let mut arrived: HashMap<String, usize> = HashMap::new();
    for hit in receiver.hits() {
        *arrived.entry(hit.id().to_owned()).or_default() += 1;
    }
    assert_eq!(arrived.len(), messages, "each under one identifier");
    let repeats: usize = arrived.values().map(|times| times - 1).sum();
    println!(
        "{killed} kills, {messages} messages: {on_their_way} were on their way, {repeats} arrived again"
    );
    assert!(
        repeats <= on_their_way,
        "{repeats} repeats of {on_their_way}"
    );
    assert!(repeats > 0, "no kill hit anything");
}

/// A message that kills every worker that sends it is dead after exactly its limit, and the others are delivered.
async fn poison(store: impl Store, database: &str) {
    let victim: Arc<Mutex<Option<u32>>> = Arc::default();
    let killing = Arc::clone(&victim);
    let receiver = Receiver::new(move |hit| {
        if hit.path != "/poison" {
            return ok();
        }
        let process = *killing.lock().unwrap();
        std::thread::spawn(move || {
            // The other messages have ended by then: running ones would also be lost.
            std::thread::sleep(Duration::from_millis(500));
            let process = process.unwrap_or_default().to_string();
            let _ = Command::new("kill").args(["-s", "KILL", &process]).status();
        });
        Reply::Hang
    })
    .await;
    let policy = POLICY.replace("50", "4");
    for name in [POISON, "others"] {
        let endpoint = Endpoint::new(name, receiver.url(name))
            .policy(policy.as_str())
            .hold(false);
        store.put_endpoint(endpoint).await.unwrap();
        store
            .enqueue(vec![NewMessage::new(name, "event", "{}")])
            .await
            .unwrap();
    }
    let ended = async {
        loop {
            let mut child = spawn(database, None);
            *victim.lock().unwrap() = Some(child.id());
            loop {
                if child.try_wait().unwrap().is_some() {
                    break;
                }
                if count(&store, MessageState::Dead).await == 1 {
                    child.kill().unwrap();
                    child.wait().unwrap();
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(120), ended)
        .await
        .unwrap();
    let hits = receiver.hits();
    assert_eq!(hits.iter().filter(|hit| hit.path == "/poison").count(), 5);
    for status in store.messages(Filter::default(), 10).await.unwrap() {
        let (state, attempts) = match status.endpoint.as_str() {
            POISON => (MessageState::Dead, 5),
            _ => (MessageState::Delivered, 1),
        };
        assert_eq!(
            (status.state, status.attempts),
            (state, attempts),
            "{status:?}"
        );
    }
}

fn sqlite() -> (Sqlite, String, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("outbox.db");
    let store = Sqlite::open(&file).unwrap();
    (store, format!("sqlite:{}", file.display()), directory)
}

#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite_kills_lose_nothing_and_repeat_only_running_attempts() {
    let (store, database, _directory) = sqlite();
    kill_and_compare(store, &database, ()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite_a_message_that_kills_workers_is_dead_after_its_limit() {
    let (store, database, _directory) = sqlite();
    poison(store, &database).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_kills_lose_nothing_and_repeat_only_running_attempts() {
    let Some(server) = servers::postgres(&["fsync=off", "log_min_messages=fatal"]) else {
        return;
    };
    let store = postgres(&server.config());
    store.create_tables().await.unwrap();
    kill_and_compare(store, &server.config(), ()).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_a_message_that_kills_workers_is_dead_after_its_limit() {
    let Some(server) = servers::postgres(&["fsync=off", "log_min_messages=fatal"]) else {
        return;
    };
    let store = postgres(&server.config());
    store.create_tables().await.unwrap();
    poison(store, &server.config()).await;
}

#[cfg(feature = "nats")]
#[tokio::test(flavor = "multi_thread")]
async fn on_nats_kills_lose_nothing_and_repeat_only_running_attempts() {
    let Some(fleet) = fleet::NatsFleet::new(2) else {
        return;
    };
    let (store, database, _directory) = sqlite();
    kill_and_compare(store, &fleet.relay(&database), fleet).await;
}

/// A message that kills every NATS worker that sends it is dead after exactly its limit, while the dispatcher
/// continues.
#[cfg(feature = "nats")]
#[tokio::test(flavor = "multi_thread")]
async fn on_nats_a_message_that_kills_nats_workers_is_dead_after_its_limit() {
    let Some(mut fleet) = fleet::NatsFleet::new(1) else {
        return;
    };
    let (store, database, _directory) = sqlite();
    let receiver = Receiver::new(|hit| match hit.path.as_str() {
        "/poison" => Reply::Hang,
        _ => ok(),
    })
    .await;
    let policy = POLICY.replace("50", "1").replace("10s", "1500ms");
    for name in [POISON, "others"] {
        let endpoint = Endpoint::new(name, receiver.url(name))
            .policy(policy.as_str())
            .hold(false);
        store.put_endpoint(endpoint).await.unwrap();
        let message = NewMessage::new(name, "event", "{}");
        store.enqueue(vec![message]).await.unwrap();
    }
    let mut relay = spawn(&fleet.relay(&database), None);
    for times in 1..=2 {
        let poisoned = || {
            let hits = receiver.hits();
            hits.iter().filter(|hit| hit.path == "/poison").count() == times
        };
        until(poisoned).await;
        // The other message has been delivered by then.
        tokio::time::sleep(Duration::from_millis(300)).await;
        fleet.kill(0);
        fleet.replace(0).await;
    }
    let dead = async {
        while count(&store, MessageState::Dead).await == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), dead)
        .await
        .unwrap();
    relay.kill().unwrap();
    relay.wait().unwrap();
    assert_eq!(receiver.hits().len(), 3);
    for status in store.messages(Filter::default(), 10).await.unwrap() {
        let (state, attempts) = match status.endpoint.as_str() {
            POISON => (MessageState::Dead, 2),
            _ => (MessageState::Delivered, 1),
        };
        assert_eq!(
            (status.state, status.attempts),
            (state, attempts),
            "{status:?}"
        );
    }
}

/// A dispatcher is suspended while its attempts wait for their start. Another takes its endpoint over, and the attempts
/// that the first has published are never sent.
#[cfg(feature = "nats")]
#[tokio::test(flavor = "multi_thread")]
async fn on_nats_a_suspended_dispatcher_causes_no_attempt() {
    let Some(mut fleet) = fleet::NatsFleet::new(0) else {
        return;
    };
    let (store, database, _directory) = sqlite();
    let receiver = Receiver::new(|_| ok()).await;
    let endpoint = Endpoint::new("a", receiver.url("a")).policy(POLICY);
    store.put_endpoint(endpoint).await.unwrap();
    let messages = (0..3).map(|event| NewMessage::new("a", format!("event-{event}"), "{}"));
    store.enqueue(messages.collect()).await.unwrap();
    let mut stopped = spawn(&fleet.relay(&database), None);
    let signal = |signal: &str| {
        let process = stopped.id().to_string();
        let _ = Command::new("kill").args(["-s", signal, &process]).status();
    };
    while count(&store, MessageState::Running).await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // It has published the attempts by then.
    tokio::time::sleep(Duration::from_millis(300)).await;
    signal("STOP");
    fleet.add();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(receiver.hits().len(), 0, "it gives no leave");
    let mut other = spawn(&fleet.relay(&database), None);
    let delivered = async {
        while count(&store, MessageState::Delivered).await < 3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), delivered)
        .await
        .unwrap();
    signal("CONT");
    // NATS offers the published attempts again every second.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(receiver.hits().len(), 3);
    for relay in [&mut stopped, &mut other] {
        relay.kill().unwrap();
        relay.wait().unwrap();
    }
}
