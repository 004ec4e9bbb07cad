//! A dispatcher, NATS workers and a nats-server that are killed.

use std::future::pending;
use std::process::Command;
use std::time::Duration;

use relent_outbox::endpoint::Endpoint;
use relent_outbox::message::NewMessage;
use relent_outbox::secrets::Secrets;
use relent_outbox::store::{MessageState, Sqlite, Store};
use relent_outbox::worker::Worker;
use rusqlite::Connection;

use crate::dying::Dying;
use crate::fleet::{self, NatsFleet};
use crate::killed::{
    DATABASE, FILE, Others, POLICY, config, count, kill_and_compare, spawn, sqlite, until,
};
use crate::poisoned;
use crate::support::{Receiver, Reply, local_sender, ok};

/// The process that is killed: a NATS worker, or the dispatcher of a database.
#[test]
fn child() {
    let Ok(argument) = std::env::var(DATABASE) else {
        return; // It is started by the tests below.
    };
    let (nats, database) = argument.split_once(' ').unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let Some(file) = database.strip_prefix("sqlite:") else {
            return fleet::deliver(nats).await;
        };
        let store = Dying(Sqlite::open(file).unwrap());
        let worker = Worker::new(store, local_sender(), Secrets::default(), config());
        let _ = worker.relay(fleet::queue(nats).await).run(pending()).await;
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn on_nats_kills_lose_nothing_and_repeat_only_running_attempts() {
    let Some(fleet) = NatsFleet::new(2) else {
        return;
    };
    let (store, database, _directory) = sqlite();
    kill_and_compare(store, &fleet.relay(&database), fleet).await;
}

/// A message that kills every NATS worker that sends it is dead after exactly its limit, while the dispatcher
/// continues.
#[tokio::test(flavor = "multi_thread")]
async fn on_nats_a_message_that_kills_nats_workers_is_dead_after_its_limit() {
    let Some(mut fleet) = NatsFleet::new(1) else {
        return;
    };
    let (store, database, _directory) = sqlite();
    let receiver = Receiver::new(|hit| match hit.path.as_str() {
        poisoned::PATH => Reply::Hang,
        _ => ok(),
    })
    .await;
    let policy = POLICY.replace("50", "1").replace("10s", "1500ms");
    poisoned::enqueue(&store, &receiver, &policy).await;
    let mut relay = spawn(&fleet.relay(&database), None);
    for times in 1..=2 {
        until(|| poisoned::hits(&receiver) == times).await;
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
    poisoned::is_dead_after(2, &store, &receiver).await;
}

/// A dispatcher is suspended while its attempts wait for their start. Another takes its endpoint over, and the attempts
/// that the first has published are never sent.
#[tokio::test(flavor = "multi_thread")]
async fn on_nats_a_suspended_dispatcher_causes_no_attempt() {
    let Some(mut fleet) = NatsFleet::new(0) else {
        return;
    };
    let (store, database, directory) = sqlite();
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
    {
        // The process is stopped while it does not write: SQLite lets no other process write before the end of a write.
        let lock = Connection::open(directory.path().join(FILE)).unwrap();
        lock.busy_timeout(Duration::from_secs(20)).unwrap();
        lock.execute_batch("BEGIN IMMEDIATE").unwrap();
        signal("STOP");
    }
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
