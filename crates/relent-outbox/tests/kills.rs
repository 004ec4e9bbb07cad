//! Processes with a worker that are killed at named points, and the ledger of the receiver: every message arrives, those
//! that were on their way when their worker was killed perhaps twice, and with the same identifier.
#![cfg(all(unix, feature = "sqlite"))]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests may"
)]

#[path = "support/dying.rs"]
mod dying;
#[cfg(feature = "postgres")]
#[path = "../../relent-server/tests/support/servers.rs"]
mod servers;
mod support;

use std::collections::HashMap;
use std::future::pending;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dying::{Dying, POINT, POINTS};
use relent::random::{Random, SessionRandom};
use relent_outbox::endpoint::Endpoint;
use relent_outbox::message::NewMessage;
use relent_outbox::secrets::Secrets;
use relent_outbox::store::{Filter, Sqlite, State, Store};
use relent_outbox::worker::{Worker, WorkerConfig};
use support::{Receiver, Reply, answer, local_sender, ok};

const DATABASE: &str = "RELENT_OUTBOX_DATABASE";
/// Raised for a long run, by `scripts/kills-outbox`.
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
/// To this endpoint goes a message that kills whoever sends it.
const POISON: &str = "poison";

/// The process that is killed.
#[test]
fn child() {
    let Ok(database) = std::env::var(DATABASE) else {
        return; // It is played by the test below.
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut config = WorkerConfig::default();
        config.poll = Duration::from_millis(100);
        config.lease = Duration::from_secs(1);
        if let Some(file) = database.strip_prefix("sqlite:") {
            work(Sqlite::open(file).unwrap(), config).await;
        } else {
            #[cfg(feature = "postgres")]
            work(postgres(&database), config).await;
        }
    });
}

async fn work(store: impl Store, config: WorkerConfig) {
    let worker = Worker::new(Dying(store), local_sender(), Secrets::default(), config);
    let _ = worker.run(pending()).await;
}

#[cfg(feature = "postgres")]
fn postgres(database: &str) -> relent_outbox::store::Postgres {
    relent_outbox::store::Postgres::new(relent_server::postgres::pool(database, 4).unwrap())
}

fn spawn(database: &str, point: Option<String>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child", "--nocapture"])
        .env(DATABASE, database)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if let Some(point) = point {
        command.env(POINT, point);
    }
    command.spawn().unwrap()
}

async fn until_dead(child: &mut Child) {
    let waiting = async {
        while child.try_wait().unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting)
        .await
        .unwrap();
}

async fn count(store: &impl Store, state: State) -> usize {
    let filter = Filter {
        state: Some(state),
        ..Filter::default()
    };
    store.messages(filter, usize::MAX >> 1).await.unwrap().len()
}

async fn kill_and_compare(store: impl Store, database: &str) {
    let least = |name, short| std::env::var(name).map_or(short, |least| least.parse().unwrap());
    let (kills, messages, endpoints) = (
        least(KILLS, 20),
        least(MESSAGES, 8000),
        least(ENDPOINTS, 20),
    );
    // The hit at which the process is killed, counted down; and whom that kills.
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
            // While the attempt waits for its answer.
            if let Some(process) = *killing.lock().unwrap() {
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
            .park(false);
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
    let mut on_their_way = 0;
    for kill in 0..kills {
        // Each takes about its part of the messages, so that there are some for the last.
        let times = random.next_u64() % 4;
        let point = POINTS.get(kill % (POINTS.len() + 1));
        let point = point.map(|point| format!("{point}@{times}"));
        let by_hit = point.is_none();
        let mut child = spawn(database, point);
        *victim.lock().unwrap() = Some(child.id());
        if by_hit {
            countdown.store(1 + (random.next_u64() % 100) as usize, Ordering::Relaxed);
        }
        until_dead(&mut child).await;
        *victim.lock().unwrap() = None;
        countdown.store(usize::MAX, Ordering::Relaxed);
        on_their_way += count(&store, State::Running).await;
    }
    let left = count(&store, State::Pending).await;
    assert!(left > 0, "the messages ran out before the kills");
    let mut child = spawn(database, None);
    let waiting = async {
        while count(&store, State::Pending).await + count(&store, State::Running).await > 0 {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(900), waiting)
        .await
        .unwrap();
    child.kill().unwrap();
    child.wait().unwrap();

    assert_eq!(
        count(&store, State::Delivered).await,
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
        "{kills} kills, {messages} messages: {on_their_way} were on their way, {repeats} arrived again"
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
            // The others are through by then: what was on its way would be lost as well.
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
            .park(false);
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
                if count(&store, State::Dead).await == 1 {
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
            POISON => (State::Dead, 5),
            _ => (State::Delivered, 1),
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
async fn on_sqlite_nothing_is_lost_and_little_repeated_whoever_is_killed() {
    let (store, database, _directory) = sqlite();
    kill_and_compare(store, &database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite_what_kills_its_worker_is_dead_after_exactly_its_limit() {
    let (store, database, _directory) = sqlite();
    poison(store, &database).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_nothing_is_lost_and_little_repeated_whoever_is_killed() {
    let Some(server) = servers::postgres(&["fsync=off", "log_min_messages=fatal"]) else {
        return;
    };
    let store = postgres(&server.config());
    store.create_tables().await.unwrap();
    kill_and_compare(store, &server.config()).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_what_kills_its_worker_is_dead_after_exactly_its_limit() {
    let Some(server) = servers::postgres(&["fsync=off", "log_min_messages=fatal"]) else {
        return;
    };
    let store = postgres(&server.config());
    store.create_tables().await.unwrap();
    poison(store, &server.config()).await;
}
