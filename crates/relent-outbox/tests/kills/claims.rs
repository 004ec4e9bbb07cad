//! A process that produces and delivers loses nothing when it is killed at any moment, and repeats only its running
//! attempt.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use relent_outbox::endpoint::Endpoint;
use relent_outbox::message::NewMessage;
use relent_outbox::store::{
    AfterAttempt, ClaimRequest, Claimed, EnqueueError, Filter, MessageState, Settled, Sqlite,
    SqliteError, Store,
};
use rusqlite::Connection;

const DIRECTORY: &str = "RELENT_OUTBOX_CRASH";
const POINTS: &str = "RELENT_OUTBOX_CRASH_POINTS";
const KILLS: u32 = 40;

/// Kills the process, as by `kill -9`, at the point of this number.
#[derive(Clone)]
struct Death(Arc<AtomicU32>);

impl Death {
    fn may_come(&self) {
        if self.0.fetch_sub(1, Ordering::Relaxed) == 1 {
            std::process::abort();
        }
    }
}

fn open(directory: &Path) -> Sqlite {
    let orders = "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)";
    let set_up = |connection: &Connection| connection.execute_batch(orders);
    Sqlite::open_with(directory.join("shop.db"), set_up).unwrap()
}

/// Inserts an order and its message in the same transaction.
async fn sell(store: &Sqlite, death: &Death) {
    let inside = death.clone();
    let sold = store.writer().run(move |connection| {
        inside.may_come();
        connection.execute("INSERT INTO orders DEFAULT VALUES", [])?;
        inside.may_come();
        let event = connection.last_insert_rowid().to_string();
        let message = NewMessage::new("shop", event, "{}");
        let enqueued = Sqlite::enqueue_in(connection, &[message]);
        inside.may_come();
        enqueued
    });
    let sold: Result<_, EnqueueError<SqliteError>> = sold.await;
    sold.unwrap();
}

/// Sends a due message, recorded in the ledger, and settles it. A lost one is due again.
async fn deliver(store: &Sqlite, directory: &Path, death: &Death) -> bool {
    store
        .heartbeat("worker", Duration::from_secs(60), true)
        .await
        .unwrap();
    let work = store.find_work("worker", Duration::ZERO, 10).await.unwrap();
    let endpoints = work.iter().map(|work| work.endpoint).collect();
    let owned = store.acquire("worker", endpoints).await.unwrap();
    death.may_come();
    let wanted = owned.iter().map(|owned| ClaimRequest::of(owned, 1));
    let claimed = store
        .claim("worker", wanted.collect())
        .await
        .unwrap()
        .messages;
    death.may_come();
    let Some(claimed) = claimed.first() else {
        return false;
    };
    let next = if claimed.lost {
        AfterAttempt::Again(Duration::ZERO)
    } else {
        send(directory, claimed);
        AfterAttempt::Delivered
    };
    death.may_come();
    let settled = Settled {
        row: claimed.row,
        endpoint: claimed.endpoint,
        fence: claimed.fence,
        revision: claimed.revision,
        number: claimed.attempt,
        began: claimed.began,
        ordered: claimed.ordered,
        next,
        session: Vec::new(),
        attempt: None,
        health: None,
        disable: None,
    };
    assert_eq!(store.settle(vec![settled]).await.unwrap(), [true]);
    death.may_come();
    true
}

fn send(directory: &Path, claimed: &Claimed) {
    let ledger = OpenOptions::new().create(true).append(true).clone();
    let mut ledger = ledger.open(directory.join("ledger")).unwrap();
    writeln!(ledger, "{} {}", claimed.id, claimed.attempt).unwrap();
}

/// The process that is killed.
#[tokio::test]
async fn child() {
    let Some(directory) = std::env::var_os(DIRECTORY) else {
        return; // It is started by the test below.
    };
    let directory = Path::new(&directory);
    let points = std::env::var(POINTS).unwrap().parse().unwrap();
    let death = Death(Arc::new(AtomicU32::new(points)));
    let store = open(directory);
    let shop = Endpoint::new("shop", "https://shop.example/notify");
    store.put_endpoint(shop).await.unwrap();
    loop {
        sell(&store, &death).await;
        deliver(&store, directory, &death).await;
    }
}

#[tokio::test]
async fn a_killed_process_loses_nothing_and_repeats_only_running_attempts() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    for points in 1..=KILLS {
        let killed = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "claims::child"])
            .env(DIRECTORY, directory)
            .env(POINTS, points.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        assert!(!killed.unwrap().success());
    }
    let store = open(directory);
    let never = Death(Arc::new(AtomicU32::new(u32::MAX)));
    while deliver(&store, directory, &never).await {}

    let messages = store.messages(Filter::default(), 10_000).await.unwrap();
    let connection = Connection::open(directory.join("shop.db")).unwrap();
    let mut orders = connection
        .prepare("SELECT id FROM orders ORDER BY id DESC")
        .unwrap();
    let orders = orders.query_map([], |row| row.get::<_, i64>(0)).unwrap();
    let orders: Vec<_> = orders.map(|order| order.unwrap().to_string()).collect();
    let told: Vec<_> = messages.iter().map(|one| one.event.clone()).collect();
    assert_eq!(
        told, orders,
        "an order and its message are both there or neither"
    );
    assert!(orders.len() > KILLS as usize);

    let ledger = fs::read_to_string(directory.join("ledger")).unwrap();
    let mut sent = HashMap::<_, Vec<u32>>::new();
    for line in ledger.lines() {
        let (id, attempt) = line.split_once(' ').unwrap();
        sent.entry(id).or_default().push(attempt.parse().unwrap());
    }
    let mut repeats = 0;
    for message in &messages {
        assert_eq!(message.state, MessageState::Delivered);
        let attempts = &sent[message.id.as_str()];
        // No attempt is sent twice, and every sent attempt is counted.
        assert!(attempts.is_sorted_by(|a, b| a < b), "{attempts:?}");
        assert_eq!(attempts.last(), Some(&message.attempts));
        repeats += attempts.len() - 1;
    }
    assert_eq!(sent.len(), messages.len());
    assert!(repeats > 0 && repeats <= KILLS as usize, "{repeats}");
}
