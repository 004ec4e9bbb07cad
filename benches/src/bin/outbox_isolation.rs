//! Prints the time from enqueuing a message to a healthy endpoint until its acknowledgement is written, with and
//! without unhealthy endpoints: over sockets, with SQLite and a worker with default settings.
//!
//! `outbox_isolation ENDPOINTS RATE`: by default 10000 and 500. 10 % of the endpoints refuse connections or respond
//! with 500, and 10 % take 10 s. Each has its own host name, and so its own connections. Messages go to the endpoints
//! in turn, at this rate over all; in the runs without unhealthy ones the others get theirs at the same times. The
//! time of the first round over all endpoints, and 5 s more, do not count; the 20 s after that do. Runs with and
//! without are paired, and the median of five ratios counts.

use std::time::{Duration, Instant};

use relent_benches::receivers::{
    Failed, Receivers, SERVE, memory, processor_seconds, sender, serve,
};
use relent_outbox::endpoint::Endpoint;
use relent_outbox::message::NewMessage;
use relent_outbox::secrets::Secrets;
use relent_outbox::store::{Sqlite, Store};
use relent_outbox::worker::{Worker, WorkerConfig};
use tokio::sync::oneshot;
use tokio::time::sleep_until;

const PAIRS: usize = 5;
const COUNTED: Duration = Duration::from_secs(20);
/// The interval between batches of messages.
const STEP: Duration = Duration::from_millis(20);
/// Retries often enough for the whole run.
const POLICY: &str = "max_retries = 100\njitter = \"none\"\nretry_on = [\"5xx\", \"network\", \"timeout\"]\n\
                      attempt_timeout = \"20s\"\nbackoff.constant = { delay = \"5s\" }";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.peek().is_some_and(|argument| argument == SERVE) {
        return serve().await;
    }
    let mut number = |default| arguments.next().map_or(Ok(default), |text| text.parse());
    let (endpoints, rate) = (number(10_000_usize)?, number(500_usize)?);
    println!("# outbox_isolation: {endpoints} endpoints, {rate} messages per second");
    println!(
        "| pair | | messages | p50, ms | p99, ms | p99.9, ms | not acknowledged | processor, % | MiB |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut ratios = Vec::new();
    for pair in 0..PAIRS {
        let (with, without) = if pair % 2 == 0 {
            let without = run(pair, endpoints, rate, false).await?;
            (run(pair, endpoints, rate, true).await?, without)
        } else {
            let with = run(pair, endpoints, rate, true).await?;
            (with, run(pair, endpoints, rate, false).await?)
        };
        ratios.push(with / without);
    }
    ratios.sort_by(f64::total_cmp);
    let (lowest, highest) = (ratios[0], ratios[PAIRS - 1]);
    println!(
        "p99 with the others / without: {:.2} ({lowest:.2} to {highest:.2})",
        ratios[PAIRS / 2]
    );
    Ok(())
}

const fn is_well(endpoint: usize) -> bool {
    endpoint % 10 > 1
}

fn url(endpoint: usize, receivers: &Receivers) -> String {
    let (port, path) = match (endpoint % 10, endpoint % 20) {
        (1, _) => (receivers.port, "slow"),
        (_, 0) => (receivers.port, "fails"),
        (0, _) => (receivers.closed, "refuses"),
        _ => (receivers.port, "well"),
    };
    format!("http://e{endpoint}.test:{port}/{path}")
}

/// Returns the 99th percentile, in milliseconds.
async fn run(pair: usize, endpoints: usize, rate: usize, with: bool) -> Result<f64, Failed> {
    let receivers = Receivers::start()?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("outbox.db");
    let store = Sqlite::open(&path)?;
    for endpoint in 0..endpoints {
        let url = url(endpoint, &receivers);
        store
            .put_endpoint(Endpoint::new(endpoint.to_string(), url).policy(POLICY))
            .await?;
    }
    let worker = Worker::new(
        store.clone(),
        sender()?,
        Secrets::default(),
        WorkerConfig::default(),
    );
    let (stop, stopped) = oneshot::channel::<()>();
    let working = tokio::spawn(worker.run(async move { drop(stopped.await) }));
    let (began, used) = (Instant::now(), processor_seconds()?);
    let warm = Duration::from_secs((endpoints / rate + 5) as u64);
    let mut next = 0;
    while began.elapsed() < warm + COUNTED {
        let until = (began.elapsed().as_secs_f64() * rate as f64) as usize;
        // As many steps as endpoints reach each of them once, in a scattered order.
        let due = (next..until).map(|event| (event, event.wrapping_mul(7919) % endpoints));
        let due: Vec<_> = due
            .filter(|(_, endpoint)| with || is_well(*endpoint))
            .map(|(event, endpoint)| {
                NewMessage::new(endpoint.to_string(), event.to_string(), &b"{}"[..])
            })
            .collect();
        next = until.max(next);
        store.enqueue(due).await?;
        sleep_until((Instant::now() + STEP).into()).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let used = (processor_seconds()? - used) / began.elapsed().as_secs_f64() * 100.0;
    let (now, _) = memory()?;
    drop(stop);
    // Slow deliveries do not matter any more.
    working.abort();
    drop(working.await);
    let (mut lags, missing) = lags(&path, warm)?;
    lags.sort_by(f64::total_cmp);
    let at = |share: f64| {
        lags.get((lags.len() as f64 * share) as usize)
            .copied()
            .unwrap_or(f64::NAN)
    };
    let what = if with { "with" } else { "without" };
    println!(
        "| {pair} | {what} | {} | {:.1} | {:.1} | {:.1} | {missing} | {used:.0} | {now:.0} |",
        lags.len(),
        at(0.5),
        at(0.99),
        at(0.999),
    );
    Ok(at(0.99))
}

/// The times from enqueuing until the acknowledgement is written, in milliseconds, and the number of messages without
/// one, for messages to healthy endpoints after the warm-up.
fn lags(path: &std::path::Path, warm: Duration) -> Result<(Vec<f64>, usize), Failed> {
    let database = rusqlite::Connection::open(path)?;
    let mut select = database.prepare(
        "SELECT CASE WHEN d.state = 2 THEN d.ended - m.created END
         FROM relent_message_1 AS m JOIN relent_delivery_1 AS d USING (row) JOIN relent_endpoint_1 AS e ON e.id = m.endpoint
         WHERE CAST(e.name AS INTEGER) % 10 > 1 AND m.created >= ?1 + (SELECT min(created) FROM relent_message_1)",
    )?;
    let warm = i64::try_from(warm.as_micros())?;
    let (mut lags, mut missing) = (Vec::new(), 0);
    for lag in select.query_map([warm], |row| row.get::<_, Option<i64>>(0))? {
        match lag? {
            Some(micros) => lags.push(micros as f64 / 1000.0),
            None => missing += 1,
        }
    }
    Ok((lags, missing))
}
