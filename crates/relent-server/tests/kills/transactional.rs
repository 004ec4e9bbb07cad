//! Tests with processes that are killed while several requests run concurrently for each key: each confirmed key has
//! one effect, and no effect lacks a response.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use http::{Response, StatusCode};
use relent::random::SessionRandom;
use relent_core::Random;
use relent_core::idempotency::Fingerprint;
use relent_server::postgres::pool;
use relent_server::sqlite::WriterError;
use relent_server::store::{Claimed, Key, Postgres, Sqlite};
use relent_server::transactional::{Keyed, TransactionResult, WorkError};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use crate::servers;

const DATABASE: &str = "RELENT_EXACTLY_ONCE";
/// Environment variables for the least number of kills and of confirmed keys; `scripts/kills` raises them for a long
/// run.
const KILLS: &str = "RELENT_KILLS";
const KEYS: &str = "RELENT_KEYS";
/// The concurrent requests for each key, and the concurrent keys.
const DUPLICATES: usize = 3;
const CONCURRENT_KEYS: usize = 6;

#[derive(Clone)]
enum Ledger {
    Sqlite(Sqlite),
    Postgres(Postgres),
    Sqlx(Postgres<PgPool>),
}

fn keyed(number: u32) -> Keyed {
    let mut key = [0; 32];
    key[..4].copy_from_slice(&number.to_be_bytes());
    Keyed::new(Key(key), Fingerprint([0; 32]))
}

/// Simulates a kill.
fn die_at_random() {
    if SessionRandom::new().next_u64().is_multiple_of(600) {
        std::process::abort();
    }
}

const CREATE: &str = "CREATE TABLE IF NOT EXISTS charges (number BIGINT NOT NULL)";
const CHARGE: &str = "INSERT INTO charges VALUES ($1)";
const CHARGES: &str = "SELECT number FROM charges";

impl Ledger {
    async fn open(database: &str) -> Self {
        if let Some(file) = database.strip_prefix("sqlite:") {
            let create = |connection: &rusqlite::Connection| connection.execute_batch(CREATE);
            return Self::Sqlite(Sqlite::open_with(file, create).unwrap());
        }
        if let Some(directory) = database.strip_prefix("sqlx:") {
            let options = PgConnectOptions::new().socket(directory);
            let options = options.username("relent").database("postgres");
            let pool = PgPoolOptions::new().max_connections(8);
            let store = Postgres::new(pool.connect_with(options).await.unwrap());
            store.create_tables().await.unwrap();
            sqlx::query(CREATE).execute(store.pool()).await.unwrap();
            return Self::Sqlx(store);
        }
        let store = Postgres::new(pool(database, 8).unwrap());
        store.create_tables().await.unwrap();
        let client = store.pool().get().await.unwrap();
        client.batch_execute(CREATE).await.unwrap();
        drop(client);
        Self::Postgres(store)
    }

    /// Charges once, and returns the final response. Two processes never run concurrently, but the transaction of a
    /// killed one may last for a moment.
    async fn charge(&self, number: u32) -> String {
        loop {
            let done = match self {
                Self::Sqlite(store) => {
                    let done = store.transactional(keyed(number), move |savepoint| {
                        die_at_random();
                        savepoint.execute(CHARGE, [i64::from(number)])?;
                        die_at_random();
                        Ok::<_, WorkError>(Response::new(number.to_string()))
                    });
                    done.await.map_err(|error| error.to_string())
                }
                Self::Postgres(store) => {
                    let done = store.transactional(keyed(number), move |transaction| {
                        Box::pin(async move {
                            die_at_random();
                            transaction.execute(CHARGE, &[&i64::from(number)]).await?;
                            die_at_random();
                            Ok::<_, WorkError>(Response::new(number.to_string()))
                        })
                    });
                    done.await.map_err(|error| error.to_string())
                }
                Self::Sqlx(store) => {
                    let done = store.transactional(keyed(number), move |transaction| {
                        Box::pin(async move {
                            die_at_random();
                            let charge = sqlx::query(CHARGE).bind(i64::from(number));
                            charge.execute(&mut **transaction).await?;
                            die_at_random();
                            Ok::<_, WorkError>(Response::new(number.to_string()))
                        })
                    });
                    done.await.map_err(|error| error.to_string())
                }
            };
            let body = match done.unwrap() {
                TransactionResult::Ran(response) => {
                    assert_eq!(response.status(), StatusCode::OK);
                    response.into_body()
                }
                TransactionResult::Not(Claimed::Replay(answer)) => answer.body.unwrap(),
                TransactionResult::Not(Claimed::InFlight(_)) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                }
                other => panic!("{other:?}"),
            };
            return String::from_utf8(body.to_vec()).unwrap();
        }
    }

    async fn charges(&self) -> Vec<i64> {
        match self {
            Self::Sqlite(store) => {
                let charges = store.writer().run(|savepoint| {
                    let mut select = savepoint.prepare(CHARGES)?;
                    let numbers = select.query_map([], |row| row.get(0))?;
                    numbers.collect::<Result<_, _>>().map_err(WriterError::from)
                });
                charges.await.unwrap()
            }
            Self::Postgres(store) => {
                let client = store.pool().get().await.unwrap();
                let rows = client.query(CHARGES, &[]).await.unwrap();
                rows.iter().map(|row| row.get(0)).collect()
            }
            Self::Sqlx(store) => {
                let charges = sqlx::query_scalar(CHARGES);
                charges.fetch_all(store.pool()).await.unwrap()
            }
        }
    }
}

/// The killed process. It first repeats keys of its predecessors, as their clients would.
#[test]
fn child() {
    let Ok(database) = std::env::var(DATABASE) else {
        return; // The tests below start this as a process.
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let ledger = Ledger::open(&database).await;
        let highest = ledger.charges().await.into_iter().max().unwrap_or_default();
        let next = Arc::new(AtomicU32::new((highest as u32).saturating_sub(30)));
        let workers = (0..CONCURRENT_KEYS).map(|_| {
            let (ledger, next) = (ledger.clone(), Arc::clone(&next));
            tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let duplicates = (0..DUPLICATES).map(|_| {
                        let ledger = ledger.clone();
                        tokio::spawn(async move {
                            assert_eq!(ledger.charge(number).await, number.to_string());
                            println!("told {number}");
                        })
                    });
                    for told in join_all(duplicates).await {
                        told.unwrap();
                    }
                }
            })
        });
        join_all(workers).await;
    });
}

fn kill_and_compare(database: &str) {
    let least = |name, short| std::env::var(name).map_or(short, |least| least.parse().unwrap());
    let (least_kills, least_keys) = (least(KILLS, 15), least(KEYS, 15));
    let mut random = SessionRandom::with_seed(1);
    let mut told = HashSet::new();
    let mut kills = 0;
    while kills < least_kills || told.len() < least_keys {
        kills += 1;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "transactional::child", "--nocapture"])
            .env(DATABASE, database)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // After this number of responses the child is killed during others, unless it has died before.
        let stop_at = random.next_u64() % 600;
        let (mut seen, mut panicked) = (0, None);
        let mut killed = stop_at == 0;
        if killed {
            child.kill().unwrap();
        }
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if let Some(number) = line.strip_prefix("told ") {
                told.insert(number.parse::<u32>().unwrap());
                seen += 1;
            } else if line.contains("FAILED") {
                panicked = Some(line);
            }
            if seen >= stop_at && !killed {
                killed = true;
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert_eq!(panicked, None, "the child may be killed only");
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let ledger = Ledger::open(database).await;
        let mut charges = HashMap::<i64, u32>::new();
        for number in ledger.charges().await {
            *charges.entry(number).or_default() += 1;
        }
        assert!(
            charges.values().all(|&times| times == 1),
            "nobody is charged twice"
        );
        for number in &told {
            assert_eq!(
                charges.get(&i64::from(*number)),
                Some(&1),
                "{number} was told and is not there"
            );
        }
        // Each charge has its response, even if no client got it; a repetition does not charge.
        for number in charges.keys() {
            let number = u32::try_from(*number).unwrap();
            assert_eq!(ledger.charge(number).await, number.to_string());
        }
        assert_eq!(ledger.charges().await.len(), charges.len());
        println!(
            "{kills} kills, {} keys charged, {} told",
            charges.len(),
            told.len()
        );
        assert!(told.len() > kills, "{} answers", told.len());
    });
}

#[test]
fn on_sqlite_kills_leave_one_effect_for_each_key() {
    let directory = tempfile::tempdir().unwrap();
    kill_and_compare(&format!(
        "sqlite:{}",
        directory.path().join("shop.db").display()
    ));
}

#[test]
fn on_postgres_kills_leave_one_effect_for_each_key() {
    let Some(server) = servers::postgres(&["fsync=off", "log_min_messages=fatal"]) else {
        return;
    };
    kill_and_compare(&server.config());
}

#[test]
fn with_sqlx_kills_leave_one_effect_for_each_key() {
    let Some(server) = servers::postgres(&["fsync=off", "log_min_messages=fatal"]) else {
        return;
    };
    let directory = server.server.directory();
    kill_and_compare(&format!("sqlx:{}", directory.display()));
}
