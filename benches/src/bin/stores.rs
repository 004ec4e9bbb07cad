//! Prints the throughput of relent-server's stores, next to the tools of their databases with the same commands:
//! redis-benchmark, pgbench, and the same SQL at 100 rows per commit. With `redis`, `postgres` or `sqlite` as its
//! argument, for this store only. `sqlite relent N` and `sqlite floor N` run N transactions and print nothing, for
//! callgrind.
//!
//! It starts the servers itself. Batches of Relent and of the tool alternate, also in their order, and the ratio of
//! the two counts, since other work on the machine slows both. The medians of the batches are printed, and the lowest
//! and highest ratio.

#[path = "../../../crates/relent-server/src/servers.rs"]
mod servers;
#[path = "stores/sqlite.rs"]
mod sqlite;

use std::error::Error;
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::{HeaderMap, Response, StatusCode};
use redis::Value;
use relent_core::idempotency::{ClaimConfig, Fingerprint};
use relent_server::postgres::pool;
use relent_server::store::{Change, Claimed, Key, Postgres, Redis, Store, StoredResponse};
use relent_server::transactional::{Keyed, TransactionResult, WorkError};
use tokio::task::JoinSet;

type Failed = Box<dyn Error + Send + Sync>;

const BATCHES: usize = 7;
const OWNER: u128 = u128::from_be_bytes(*b"oooooooooooooooo");
const PRINT: Fingerprint = Fingerprint([b'f'; 32]);
const CONFIG: ClaimConfig = ClaimConfig::DEFAULT;
/// The duration of a batch of PostgreSQL or SQLite.
const BATCH: Duration = Duration::from_secs(3);

fn main() -> Result<(), Failed> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Runtime::new()?;
    if let [store, subject, times] = arguments.as_slice() {
        if store != "sqlite" {
            return Err(format!("stores sqlite relent|floor N: not {store:?}").into());
        }
        return runtime.block_on(sqlite::count(subject, times.parse()?));
    }
    let only = arguments.first();
    let wanted = |name| only.is_none_or(|only| only == name);
    println!("| | at once | Relent, per second | the tool, per second | ratio | lowest, highest |");
    println!("|---|---|---|---|---|---|");
    runtime.block_on(async {
        if wanted("redis") {
            redis().await?;
        }
        if wanted("postgres") {
            postgres().await?;
        }
        if wanted("sqlite") {
            sqlite::compare().await?;
        }
        Ok(())
    })
}

/// A key that ends in its number, with as many digits as redis-benchmark writes.
fn key(number: u64) -> Key {
    let mut key = [b'k'; 32];
    key[20..].copy_from_slice(format!("{number:012}").as_bytes());
    Key(key)
}

fn median(mut of: Vec<f64>) -> (f64, f64, f64) {
    of.sort_by(f64::total_cmp);
    (of[of.len() / 2], of[0], of[of.len() - 1])
}

/// The rates of Relent and of the tool, by batch.
#[derive(Default)]
struct Pairs(Vec<(f64, f64)>);

impl Pairs {
    fn print(&self, what: &str, at_once: usize) {
        let column = |of: fn(&(f64, f64)) -> f64| median(self.0.iter().map(of).collect());
        let (ours, theirs) = (column(|pair| pair.0).0, column(|pair| pair.1).0);
        let (ratio, lowest, highest) = column(|pair| pair.0 / pair.1);
        println!(
            "| {what} | {at_once} | {ours:.0} | {theirs:.0} | {ratio:.2} | {lowest:.2}, {highest:.2} |"
        );
    }
}

/// Runs `one` `times` times, from `at_once` concurrent callers; returns the rate per second.
async fn callers<F>(
    at_once: usize,
    times: u64,
    one: impl Fn(u64) -> F + Clone + Send + 'static,
) -> Result<f64, Failed>
where
    F: Future<Output = Result<(), Failed>> + Send,
{
    let (next, began) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let mut tasks = JoinSet::new();
    for _ in 0..at_once {
        let (next, one) = (Arc::clone(&next), one.clone());
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= times {
                    return Ok::<_, Failed>(());
                }
                one(number).await?;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(times as f64 / began.elapsed().as_secs_f64())
}

/// Runs `one` from concurrent callers for the duration of a batch.
async fn callers_for<F>(
    at_once: usize,
    one: impl Fn(u64) -> F + Clone + Send + 'static,
) -> Result<f64, Failed>
where
    F: Future<Output = Result<(), Failed>> + Send,
{
    let (done, began) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let counted = Arc::clone(&done);
    let one = move |number| {
        let (work, counted) = (one(number), Arc::clone(&counted));
        async move {
            work.await?;
            counted.fetch_add(1, Ordering::Relaxed);
            if began.elapsed() > BATCH {
                Err("over".into())
            } else {
                Ok(())
            }
        }
    };
    match callers(at_once, u64::MAX, one).await {
        Err(over) if over.to_string() == "over" => {
            Ok(done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64())
        }
        other => other,
    }
}

/// A claim and its completion.
async fn complete<S: Store>(store: &S, number: u64, change: Change) -> Result<(), Failed> {
    let claimed = store.claim(&key(number), OWNER, PRINT, &CONFIG).await?;
    let Claimed::Run { lease, .. } = claimed else {
        return Err(format!("the key is not new: {claimed:?}").into());
    };
    let written = store.write(&key(number), &lease, change, &CONFIG).await;
    written.map_err(|error| format!("{error:?}"))?;
    Ok(())
}

fn answer() -> Arc<StoredResponse> {
    let body = Some("paid".into());
    Arc::new(StoredResponse::from_parts(
        StatusCode::OK,
        HeaderMap::new(),
        body,
        None,
    ))
}

async fn redis() -> Result<(), Failed> {
    let settings = "--appendonly yes --appendfsync everysec --auto-aof-rewrite-percentage 0 --slowlog-log-slower-than 0";
    let settings: Vec<_> = settings.split(' ').collect();
    let Some(server) = servers::redis(&settings) else {
        return Ok(());
    };
    let client = redis::Client::open(server.url())?;
    let store = Redis::connect(client.clone()).await?;
    let paid = Change::Complete(answer());
    complete(&store, 0, paid.clone()).await?;
    let [write, claim] = scripts(&client).await?;
    // Records that redis-benchmark can complete any number of times.
    let claimed = 20_000;
    let populate = store.clone();
    let populated = callers(50, claimed, move |number| {
        let store = populate.clone();
        async move {
            store.claim(&key(number), OWNER, PRINT, &CONFIG).await?;
            Ok(())
        }
    });
    populated.await?;
    let next = AtomicU64::new(claimed);
    for at_once in [1, 16, 50, 128] {
        let times = if at_once == 1 { 4_000 } else { 30_000 };
        let benchmark = |range: u64, script: &str, arguments: &[&str]| {
            let mut command = Command::new("redis-benchmark");
            command.arg("-s").arg(server.socket());
            command.args(["-c", &at_once.to_string(), "-n", &times.to_string()]);
            command.args(["-r", &range.to_string(), "--csv", "-x"]);
            let name = format!("relent:{}__rand_int__", "k".repeat(20));
            command
                .args(["EVALSHA", script, "1", &name])
                .args(arguments);
            command
        };
        let (lease, keep) = (
            CONFIG.lease.as_micros().to_string(),
            CONFIG.retention.as_micros().to_string(),
        );
        let (owner, print) = ("o".repeat(16), "f".repeat(32));
        let claim = || {
            per_second(
                benchmark(1 << 39, &claim, &[&owner, &print, &lease, &keep]),
                b"refuse",
            )
        };
        let complete_arguments = [&owner, "1", "complete", &lease, &keep, "0"];
        let write = || {
            per_second(
                benchmark(claimed, &write, &complete_arguments),
                &answer().to_bytes(),
            )
        };
        let mut pairs = Pairs::default();
        for batch in 0..BATCHES {
            let (store, paid) = (store.clone(), paid.clone());
            let first = next.fetch_add(times, Ordering::Relaxed);
            let ours = callers(at_once, times, move |number| {
                let (store, paid) = (store.clone(), paid.clone());
                async move { complete(&store, first + number, paid).await }
            });
            let theirs = || Ok::<_, Failed>(1.0 / (1.0 / claim()? + 1.0 / write()?));
            pairs.0.push(if batch % 2 == 0 {
                let ours = ours.await?;
                (ours, theirs()?)
            } else {
                let theirs = theirs()?;
                (ours.await?, theirs)
            });
        }
        pairs.print("Redis, claim and complete", at_once);
    }
    Ok(())
}

/// The scripts that the server has run last, the latest first.
async fn scripts(client: &redis::Client) -> Result<[String; 2], Failed> {
    let mut connection = client.get_multiplexed_async_connection().await?;
    let log: Vec<Vec<Value>> = redis::cmd("SLOWLOG")
        .arg("GET")
        .arg(20)
        .query_async(&mut connection)
        .await?;
    let commands = log.into_iter().filter_map(|mut entry| {
        let command: Vec<Vec<u8>> = redis::from_redis_value(entry.swap_remove(3)).ok()?;
        let script = String::from_utf8(command.get(1)?.clone()).ok()?;
        (command[0] == b"EVALSHA").then_some(script)
    });
    let mut scripts: Vec<_> = commands.collect();
    scripts.dedup();
    redis::cmd("CONFIG")
        .arg(&["SET", "slowlog-log-slower-than", "-1"])
        .query_async::<()>(&mut connection)
        .await?;
    scripts
        .try_into()
        .map_err(|scripts| format!("not two scripts: {scripts:?}").into())
}

/// The rate that redis-benchmark prints, with `last` as the last argument.
fn per_second(mut command: Command, last: &[u8]) -> Result<f64, Failed> {
    let file = tempfile::NamedTempFile::new()?;
    fs::write(&file, last)?;
    let output = command.stdin(file.reopen()?).output()?;
    let output = String::from_utf8(output.stdout)?;
    let row = output.lines().last().unwrap_or_default();
    // The command contains commas, but not between these.
    let rate = row.rsplit("\",\"").nth(6);
    let rate = rate.and_then(|rate| rate.trim_matches('"').parse().ok());
    rate.ok_or_else(|| format!("redis-benchmark: {output}").into())
}

const CHARGE: &str = "INSERT INTO charges (amount) VALUES (5)";

async fn postgres() -> Result<(), Failed> {
    let Some(server) = servers::postgres(&["max_connections=200"]) else {
        return Ok(());
    };
    let Some(pgbench) = servers::postgres_program("pgbench") else {
        return Ok(());
    };
    let directory = tempfile::tempdir()?;
    let script = directory.path().join("exactly-once.sql");
    let next = Arc::new(AtomicU64::new(0));
    for at_once in [1, 16, 64] {
        let store = Postgres::new(pool(&server.config(), at_once)?);
        store.create_tables().await?;
        let client = store.pool().get().await?;
        client
            .batch_execute("CREATE TABLE IF NOT EXISTS charges (amount integer NOT NULL)")
            .await?;
        drop(client);
        let (shared, numbers) = (store.clone(), Arc::clone(&next));
        let one = move |_| {
            let (store, number) = (shared.clone(), numbers.fetch_add(1, Ordering::Relaxed));
            async move {
                let done = store.transactional(Keyed::new(key(number), PRINT), |transaction| {
                    Box::pin(async move {
                        let charge = transaction.prepare_cached(CHARGE).await?;
                        transaction.execute(&charge, &[]).await?;
                        Ok::<_, WorkError>(Response::new("paid"))
                    })
                });
                match done.await? {
                    TransactionResult::Ran(_) => Ok(()),
                    other => Err(format!("{other:?}").into()),
                }
            }
        };
        // Warm-up of all connections and their prepared statements.
        callers(at_once, 200, one.clone()).await?;
        fs::write(&script, transaction(&store).await?)?;
        let tool = || {
            let mut command = Command::new(&pgbench);
            command.args([
                "-n",
                "-M",
                "prepared",
                "-c",
                &at_once.to_string(),
                "-j",
                &at_once.min(2).to_string(),
            ]);
            command
                .args(["-T", &BATCH.as_secs().to_string(), "-U", "relent", "-f"])
                .arg(&script);
            command
                .arg("-h")
                .arg(server.server.directory())
                .arg("postgres");
            transactions(&mut command)
        };
        let mut pairs = Pairs::default();
        for batch in 0..BATCHES {
            let ours = callers_for(at_once, one.clone());
            pairs.0.push(if batch % 2 == 0 {
                let ours = ours.await?;
                (ours, tool()?)
            } else {
                let theirs = tool()?;
                (ours.await?, theirs)
            });
        }
        pairs.print("PostgreSQL, exactly once", at_once);
    }
    Ok(())
}

/// The same transaction for pgbench: the statements that the connections of the pool have prepared.
async fn transaction(store: &Postgres) -> Result<String, Failed> {
    let client = store.pool().get().await?;
    let rows = client
        .query("SELECT statement FROM pg_prepared_statements", &[])
        .await?;
    let statement = |sign: &str, values: &[&str]| {
        let mut statements = rows.iter().map(|row| row.get::<_, String>(0));
        let statement = statements
            .find(|statement| statement.contains(sign) && !statement.contains("pg_prepared"));
        let mut statement = statement.ok_or_else(|| format!("no statement with {sign}"))?;
        for (place, value) in values.iter().enumerate().rev() {
            statement = statement.replace(&format!("${}", place + 1), value);
        }
        Ok::<_, Failed>(statement)
    };
    let hex = |bytes: &[u8]| {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("'\\x{digits}'")
    };
    let number = "int8send(:number)";
    let (owner, print, answer) = (
        hex(&OWNER.to_be_bytes()),
        hex(&PRINT.0),
        hex(&answer().to_bytes()),
    );
    let (lease, keep) = (
        CONFIG.lease.as_micros().to_string(),
        CONFIG.retention.as_micros().to_string(),
    );
    let claim = statement(
        "pg_try_advisory",
        &[number, &print, &owner, &lease, &keep, ":number"],
    )?;
    let write = statement(
        "RETURNING until",
        &[
            number,
            &owner,
            "1",
            "1::smallint",
            &lease,
            &keep,
            "0",
            &answer,
        ],
    )?;
    Ok(format!(
        "\\set number random(1, 9000000000000000)\nBEGIN;\n{claim};\n{CHARGE};\n{write};\nCOMMIT;\n"
    ))
}

/// The rate that pgbench prints.
fn transactions(command: &mut Command) -> Result<f64, Failed> {
    let output = command.output()?;
    let text = String::from_utf8(output.stdout)?;
    let rate = text
        .lines()
        .find_map(|line| line.strip_prefix("tps = ")?.split(' ').next());
    let rate = rate.and_then(|rate| rate.parse().ok());
    rate.ok_or_else(|| format!("pgbench: {text}{}", String::from_utf8_lossy(&output.stderr)).into())
}
