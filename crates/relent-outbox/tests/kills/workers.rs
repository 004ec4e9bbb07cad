//! Workers of SQLite and PostgreSQL that are killed.

use std::future::pending;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use relent_outbox::secrets::Secrets;
use relent_outbox::store::{MessageState, Sqlite, Store};
use relent_outbox::worker::Worker;

use crate::dying::Dying;
use crate::killed::{DATABASE, POLICY, config, count, kill_and_compare, spawn, sqlite};
use crate::poisoned;
#[cfg(feature = "postgres")]
use crate::servers;
use crate::support::{Receiver, Reply, local_sender, ok};

/// The process that is killed.
#[test]
fn child() {
    let Ok(database) = std::env::var(DATABASE) else {
        return; // It is started by the tests below.
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        if let Some(file) = database.strip_prefix("sqlite:") {
            work(Sqlite::open(file).unwrap()).await;
        } else {
            #[cfg(feature = "postgres")]
            work(postgres(&database)).await;
        }
    });
}

async fn work(store: impl Store) {
    let worker = Worker::new(Dying(store), local_sender(), Secrets::default(), config());
    let _ = worker.run(pending()).await;
}

#[cfg(feature = "postgres")]
fn postgres(database: &str) -> relent_outbox::store::Postgres {
    relent_outbox::store::Postgres::new(relent_server::postgres::pool(database, 4).unwrap())
}

/// A message that kills every worker that sends it is dead after exactly its limit, and the others are delivered.
async fn poison(store: impl Store, database: &str) {
    let victim: Arc<Mutex<Option<u32>>> = Arc::default();
    let killing = Arc::clone(&victim);
    let receiver = Receiver::new(move |hit| {
        if hit.path != poisoned::PATH {
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
    poisoned::enqueue(&store, &receiver, &policy).await;
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
    poisoned::is_dead_after(5, &store, &receiver).await;
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
