//! Prints the rate at which an outbox enqueues, claims and settles messages, next to a floor that only runs the
//! statements for the same rows: in SQLite through the same writer, in PostgreSQL by loops with `SKIP LOCKED`. With
//! `sqlite` or `postgresql` as its argument, for this store only.
//!
//! Batches of Relent and of the floor alternate, also in their order, and the ratio of the two counts, since other
//! work on the machine slows both. The medians of the batches are printed, and the lowest and highest ratio.
//! Arguments are made before the measurement, and results are dropped after it.

#[path = "outbox/postgres.rs"]
mod postgres;
#[path = "../../../crates/relent-server/src/servers.rs"]
mod servers;
#[path = "outbox/sqlite.rs"]
mod sqlite;

use std::error::Error;
use std::time::{Duration, Instant};

use relent_outbox::endpoint::Endpoint;
use relent_outbox::message::NewMessage;
use relent_outbox::store::{
    AfterAttempt, AttemptRecord, ClaimRequest, Claimed, Postgres, Settled, Sqlite, Store,
};
use relent_server::postgres::pool;
use relent_server::sqlite::Writer;
use rusqlite::config::DbConfig;

type Failed = Box<dyn Error + Send + Sync>;

const BATCHES: usize = 7;
const ENDPOINTS: i64 = 10;
/// Rounds in a batch.
const ROUNDS: u64 = 40;
/// Messages in a round of three commits.
const MESSAGES: i64 = 100;
const PAYLOAD: [u8; 500] = [b'x'; 500];
const WORKER: &str = "worker";

/// The floor: the same rows by their statements alone. Each of its operations is one durable commit.
trait Floor {
    /// The claimed rows.
    type Rows;

    async fn enqueue(&self, round: u64) -> Result<(), Failed>;
    async fn claim(&self) -> Result<Self::Rows, Failed>;
    /// Returns the number of settled messages.
    async fn settle(&self, rows: &Self::Rows) -> Result<usize, Failed>;
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let only = std::env::args().nth(1);
    let wanted = |engine: &str| only.as_deref().is_none_or(|only| only == engine);
    println!("| | Relent, messages a second | the floor | ratio | lowest, highest |");
    println!("|---|---|---|---|---|");
    if wanted("sqlite") {
        let directory = tempfile::tempdir()?;
        let store = Sqlite::open(directory.path().join("relent.db"))?;
        let set_up = |connection: &rusqlite::Connection| {
            // As in the store: no statement is prepared twice.
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
            Sqlite::create_tables(connection)
        };
        let floor = Writer::open(directory.path().join("floor.db"), set_up)?;
        compare("SQLite", &store, floor).await?;
    }
    if wanted("postgresql")
        && let Some(server) = servers::postgres(&[])
    {
        // Each in its own schema.
        let schema = async |name: &str| {
            let config = format!("{} options='-c search_path={name}'", server.config());
            let store = Postgres::new(pool(&config, 4)?);
            let client = store.pool().get().await?;
            client
                .batch_execute(&format!("CREATE SCHEMA {name}"))
                .await?;
            store.create_tables().await?;
            Ok::<_, Failed>((store, client))
        };
        let (store, _) = schema("relent").await?;
        let floor = postgres::Fenced::new(schema("floor").await?.1).await?;
        compare("PostgreSQL", &store, floor).await?;
        let (store, _) = schema("again").await?;
        let floor = postgres::Unfenced(schema("unfenced").await?.1);
        compare("PostgreSQL, unfenced floor", &store, floor).await?;
    }
    Ok(())
}

/// The durations of a batch: enqueue, claim and settle.
type Took = [Duration; 3];

/// Measures both in turns.
async fn compare<S: Store>(what: &str, store: &S, floor: impl Floor) -> Result<(), Failed> {
    for endpoint in 0..ENDPOINTS {
        let endpoint = Endpoint::new(endpoint.to_string(), "https://shop.example/notify");
        store.put_endpoint(endpoint).await?;
    }
    store.enqueue(messages(u64::MAX)).await?;
    let lease = Duration::from_secs(3600);
    store.heartbeat(WORKER, lease, true).await?;
    let work = store.find_work(WORKER, Duration::ZERO, 1000).await?;
    let endpoints = work.iter().map(|work| work.endpoint).collect();
    let owned = store.acquire(WORKER, endpoints).await?;
    let wanted = owned.iter().map(|owned| ClaimRequest::of(owned, 100));
    let wanted: Vec<_> = wanted.collect();
    let claimed = store.claim(WORKER, wanted.clone()).await?.messages;
    let settled = store.settle(claimed.iter().map(delivered).collect());
    settled.await?;
    let mut pairs = Vec::new();
    for batch in 0..BATCHES as u64 {
        let rounds = || batch * ROUNDS..(batch + 1) * ROUNDS;
        let ours = async || {
            let mut took = Took::default();
            for round in rounds() {
                let messages = messages(round);
                timed(&mut took[0], store.enqueue(messages)).await?;
                let claimed = timed(&mut took[1], store.claim(WORKER, wanted.clone())).await?;
                let delivered = claimed.messages.iter().map(delivered).collect();
                let settled = timed(&mut took[2], store.settle(delivered)).await?;
                if settled.len() != MESSAGES as usize || settled.contains(&false) {
                    return Err("not all are delivered".into());
                }
            }
            Ok::<_, Failed>(took)
        };
        let theirs = async || {
            let mut took = Took::default();
            for round in rounds() {
                timed(&mut took[0], floor.enqueue(round)).await?;
                let claimed = timed(&mut took[1], floor.claim()).await?;
                let settled = timed(&mut took[2], floor.settle(&claimed)).await?;
                if settled != MESSAGES as usize {
                    return Err(format!("the floor has settled {settled}").into());
                }
            }
            Ok::<_, Failed>(took)
        };
        pairs.push(if batch % 2 == 0 {
            let ours = ours().await?;
            (ours, theirs().await?)
        } else {
            let theirs = theirs().await?;
            (ours().await?, theirs)
        });
    }
    print(what, &pairs, |took| took.iter().sum());
    print(&format!("{what}: enqueue"), &pairs, |took| took[0]);
    print(&format!("{what}: claim"), &pairs, |took| took[1]);
    print(&format!("{what}: settle"), &pairs, |took| took[2]);
    Ok(())
}

/// Runs this, and adds its duration.
async fn timed<T>(
    took: &mut Duration,
    work: impl Future<Output = Result<T, impl Into<Failed>>>,
) -> Result<T, Failed> {
    let began = Instant::now();
    let done = work.await;
    *took += began.elapsed();
    done.map_err(Into::into)
}

/// Prints the medians of the batches, for one part of them.
fn print(what: &str, pairs: &[(Took, Took)], part: impl Fn(&Took) -> Duration) {
    let rate = |took: &Took| (ROUNDS as f64 * MESSAGES as f64) / part(took).as_secs_f64();
    let sorted = |of: &dyn Fn(&(Took, Took)) -> f64| {
        let mut of: Vec<_> = pairs.iter().map(of).collect();
        of.sort_by(f64::total_cmp);
        (of[BATCHES / 2], of[0], of[BATCHES - 1])
    };
    let (ratio, lowest, highest) = sorted(&|pair| rate(&pair.0) / rate(&pair.1));
    let (ours, theirs) = (sorted(&|pair| rate(&pair.0)), sorted(&|pair| rate(&pair.1)));
    println!(
        "| {what} | {:.0} | {:.0} | {ratio:.2} | {lowest:.2}, {highest:.2} |",
        ours.0, theirs.0
    );
}

fn messages(round: u64) -> Vec<NewMessage> {
    let message = |number: i64| {
        let endpoint = (number % ENDPOINTS).to_string();
        NewMessage::new(endpoint, format!("{round}-{number}"), &PAYLOAD[..])
    };
    (0..MESSAGES).map(message).collect()
}

fn delivered(claimed: &Claimed) -> Settled {
    Settled {
        row: claimed.row,
        endpoint: claimed.endpoint,
        fence: claimed.fence,
        revision: claimed.revision,
        number: claimed.attempt,
        began: claimed.began,
        ordered: claimed.ordered,
        next: AfterAttempt::Delivered,
        session: vec![1; 50],
        attempt: Some(AttemptRecord {
            number: 1,
            started_ms: 1,
            duration_ms: 1,
            status: Some(200),
            error: String::new(),
            excerpt: "ok".to_owned(),
            address: "192.0.2.1:443".to_owned(),
            request: String::new(),
            response: String::new(),
        }),
        health: None,
        disable: None,
    }
}
