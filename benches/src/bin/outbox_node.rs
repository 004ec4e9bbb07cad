//! Prints the rate at which one process delivers messages end to end, and the processor time for each: enqueued in
//! batches of 100 by one caller, sent over the loopback to 100 endpoints in a separate process, acknowledged,
//! written; with SQLite and with PostgreSQL, and a worker with default settings. Then the same with a NATS dispatcher
//! and two NATS workers, each with its own connection to a nats-server on this machine.
//!
//! `outbox_node MESSAGES RUNS`: by default 20000 and 5. The median of the runs counts. The processor time covers
//! enqueuing, working and delivering in this process, but not the receivers and the servers of PostgreSQL and NATS.

#[path = "../../../crates/relent-server/src/servers.rs"]
mod servers;

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use relent_benches::receivers::{Failed, Receivers, SERVE, processor_seconds, sender, serve};
use relent_outbox::endpoint::Endpoint;
use relent_outbox::message::NewMessage;
use relent_outbox::secrets::Secrets;
use relent_outbox::store::{Postgres, Sqlite, Store};
use relent_outbox::worker::{Worker, WorkerConfig};
use relent_outbox_nats::{NatsWorker, NatsWorkerConfig, Queue, QueueName, async_nats};
use relent_server::postgres::pool;
use tokio::sync::watch;

const ENDPOINTS: usize = 100;
const BATCH: usize = 100;
const DELIVERERS: usize = 2;

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.peek().is_some_and(|argument| argument == SERVE) {
        return serve().await;
    }
    let mut number = |default| arguments.next().map_or(Ok(default), |text| text.parse());
    let (messages, runs) = (number(20_000_usize)?, number(5_usize)?);
    let receivers = Receivers::start()?;
    println!("| store | messages per second | lowest, highest | processor time per message, µs |");
    println!("|---|---|---|---|");
    let directory = tempfile::tempdir()?;
    let database = servers::postgres(&[]);
    let nats = servers::nats();
    let mut ways = vec![None];
    ways.extend(nats.as_ref().map(|nats| Some(nats.url())));
    for (number, nats) in ways.iter().enumerate() {
        let nats = nats.as_deref();
        let store = Sqlite::open(directory.path().join(format!("{number}.db")))?;
        measure("SQLite", store, nats, &receivers, messages, runs).await?;
        if let Some(server) = &database {
            let store = Postgres::new(pool(&server.config(), 8)?);
            store.create_tables().await?;
            measure("PostgreSQL", store, nats, &receivers, messages, runs).await?;
        }
    }
    Ok(())
}

/// The queue, with its own connection.
async fn queue(url: &str) -> Result<Queue, Failed> {
    let client = async_nats::connect(url).await?;
    Ok(Queue::new(client, QueueName::default()))
}

async fn measure<S: Store>(
    store_name: &str,
    store: S,
    nats: Option<&str>,
    receivers: &Receivers,
    messages: usize,
    runs: usize,
) -> Result<(), Failed> {
    let eight = NonZeroU32::new(8).ok_or("eight")?;
    for endpoint in 0..ENDPOINTS {
        let url = format!("http://e{endpoint}.test:{}/well", receivers.port);
        let endpoint = Endpoint::new(endpoint.to_string(), url).concurrency(eight);
        store.put_endpoint(endpoint).await?;
    }
    let mut worker = Worker::new(
        store.clone(),
        sender()?,
        Secrets::default(),
        WorkerConfig::default(),
    );
    let stop = watch::Sender::new(());
    let stopped = || {
        let mut stop = stop.subscribe();
        async move { drop(stop.changed().await) }
    };
    let mut delivering = Vec::new();
    let mut what = store_name.to_owned();
    if let Some(nats) = nats {
        worker = worker.relay(queue(nats).await?);
        for _ in 0..DELIVERERS {
            let config = NatsWorkerConfig::default();
            let deliverer = NatsWorker::new(queue(nats).await?, sender()?, config);
            delivering.push(tokio::spawn(deliverer.run(stopped())));
        }
        what += " and NATS";
    }
    let working = tokio::spawn(worker.run(stopped()));
    // Warm-up: connections are opened, and statements prepared.
    deliver(&store, &format!("warm {what}"), 2000).await?;
    let mut rates = Vec::new();
    let mut times = Vec::new();
    for run in 0..runs {
        let (began, used) = (Instant::now(), processor_seconds()?);
        deliver(&store, &format!("{run} {what}"), messages).await?;
        rates.push(messages as f64 / began.elapsed().as_secs_f64());
        times.push((processor_seconds()? - used) / messages as f64 * 1e6);
    }
    drop(stop);
    let _ = working.await?;
    for deliverer in delivering {
        deliverer.await?;
    }
    rates.sort_by(f64::total_cmp);
    times.sort_by(f64::total_cmp);
    println!(
        "| {what} | {:.0} | {:.0}, {:.0} | {:.0} |",
        rates[runs / 2],
        rates[0],
        rates[runs - 1],
        times[runs / 2]
    );
    Ok(())
}

/// Enqueues this many messages, and waits until all are acknowledged.
async fn deliver<S: Store>(store: &S, run: &str, messages: usize) -> Result<(), Failed> {
    for first in (0..messages).step_by(BATCH) {
        let message = |number: usize| {
            let to = (number % ENDPOINTS).to_string();
            NewMessage::new(to, format!("{run}-{number}"), &[b'x'; 500][..])
        };
        store
            .enqueue((first..first + BATCH).map(message).collect())
            .await?;
    }
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        let summary = store.summary().await?;
        if summary.dead > 0 || Instant::now() > until {
            return Err(format!("not all are delivered: {summary:?}").into());
        }
        if summary.pending + summary.running == 0 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
