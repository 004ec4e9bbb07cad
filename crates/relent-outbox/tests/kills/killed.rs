//! Worker processes that are killed at named points, and the ledger of the receiver. Every message arrives; messages
//! that were running when their worker was killed may arrive twice, with the same identifier.

use std::collections::HashMap;
use std::future::Future;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use relent::random::{Random, SessionRandom};
use relent_outbox::endpoint::Endpoint;
use relent_outbox::message::NewMessage;
use relent_outbox::store::{Filter, MessageState, Sqlite, Store};
use relent_outbox::worker::WorkerConfig;

use crate::dying::{POINT, POINTS};
use crate::support::{Receiver, Reply, answer, ok};

pub(crate) const DATABASE: &str = "RELENT_OUTBOX_DATABASE";
/// Raised for a long run by `scripts/kills-outbox`.
const KILLS: &str = "RELENT_KILLS";
const MESSAGES: &str = "RELENT_MESSAGES";
const ENDPOINTS: &str = "RELENT_ENDPOINTS";
pub(crate) const POLICY: &str = r#"
max_retries = 50
jitter = "none"
attempt_timeout = "10s"
retry_on = ["5xx", "timeout", "network"]
backoff.constant = { delay = "10ms" }
"#;
/// The settings of a worker that is killed.
pub(crate) fn config() -> WorkerConfig {
    let mut config = WorkerConfig::default();
    config.poll = Duration::from_millis(100);
    config.lease = Duration::from_secs(1);
    config
}

/// Starts this program again, as the process that is killed: its test `workers::child`.
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

pub(crate) async fn until(mut over: impl FnMut() -> bool) {
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

pub(crate) async fn count(store: &impl Store, state: MessageState) -> usize {
    let filter = Filter {
        state: Some(state),
        ..Filter::default()
    };
    store.messages(filter, usize::MAX >> 1).await.unwrap().len()
}

pub(crate) async fn kill_and_compare(store: impl Store, database: &str, mut others: impl Others) {
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

/// The file name of a SQLite outbox.
pub(crate) const FILE: &str = "outbox.db";

pub(crate) fn sqlite() -> (Sqlite, String, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(FILE);
    let store = Sqlite::open(&file).unwrap();
    (store, format!("sqlite:{}", file.display()), directory)
}
