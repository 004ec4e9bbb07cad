//! SQLite next to one thread that runs the same statements on the same tables, with the same durability (write-ahead
//! log, `synchronous = FULL`), at 100 rows per commit.
//!
//! The floor waits for no other thread and hands nothing over. It opens no savepoint, so a failed row would undo
//! those before it. It draws no owner, reads no clock, and encodes its response once instead of for each row.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use http::Response;
use relent_server::sqlite::WriterError;
use relent_server::store::{Key, Sqlite};
use relent_server::transactional::{Keyed, TransactionResult, WorkError};
use rusqlite::{Connection, params};

use crate::{BATCH, BATCHES, CHARGE, Failed, OWNER, PRINT, Pairs, answer, callers, callers_for};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS charges (amount INTEGER NOT NULL)";
const CALLERS: usize = 128;
/// Rows in one commit of the tool.
const ROWS: u64 = 100;

/// The statements of the tool for each row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Statements {
    /// Those that the store runs.
    Same,
    /// A claim that is written, the effect, and a completion that replaces the claim if it is still there; the claim
    /// removes what has expired.
    ClaimAndComplete,
}

pub(crate) async fn compare() -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    for (statements, what) in [
        (Statements::Same, "SQLite, exactly once"),
        (
            Statements::ClaimAndComplete,
            "SQLite, exactly once, beside a claim, the effect and a completion",
        ),
    ] {
        let file = |name| {
            directory
                .path()
                .join(format!("{name}-{}.db", statements as u8))
        };
        let store = open(&file("relent"))?;
        let mut floor = Floor::new(file("floor"), statements)?;
        let next = Arc::new(AtomicU64::new(0));
        let mut pairs = Pairs::default();
        for batch in 0..BATCHES {
            let (store, next) = (store.clone(), Arc::clone(&next));
            let ours = callers_for(CALLERS, move |_| {
                pay(store.clone(), next.fetch_add(1, Ordering::Relaxed))
            });
            let mut theirs = || {
                let began = Instant::now();
                floor.run(|_| began.elapsed() < BATCH)
            };
            pairs.0.push(if batch % 2 == 0 {
                let ours = ours.await?;
                (ours, theirs()?)
            } else {
                let theirs = theirs()?;
                (ours.await?, theirs)
            });
        }
        pairs.print(what, CALLERS);
    }
    Ok(())
}

/// Runs this many transactions of the store or of the floor.
pub(crate) async fn count(subject: &str, times: u64) -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("counted.db");
    match subject {
        "relent" => {
            let store = open(&file)?;
            callers(CALLERS, times, move |number| pay(store.clone(), number)).await?;
        }
        "floor" => {
            Floor::new(file, Statements::Same)?.run(|rows| rows < times)?;
        }
        other => return Err(format!("there is no subject {other:?}").into()),
    }
    Ok(())
}

fn open(file: &Path) -> Result<Sqlite, WriterError> {
    Sqlite::open_with(file, |connection| connection.execute_batch(TABLE))
}

/// Keys in ascending order, like their expiry times.
fn key(number: u64) -> Key {
    let mut key = [b'k'; 32];
    key[24..].copy_from_slice(&number.to_be_bytes());
    Key(key)
}

async fn pay(store: Sqlite, number: u64) -> Result<(), Failed> {
    let done = store.transactional(Keyed::new(key(number), PRINT), |savepoint| {
        savepoint.prepare_cached(CHARGE)?.execute([])?;
        Ok::<_, WorkError>(Response::new("paid"))
    });
    match done.await? {
        TransactionResult::Ran(_) => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

/// The SQL on one thread without any waiting.
struct Floor {
    file: PathBuf,
    statements: Statements,
    next: u64,
}

impl Floor {
    fn new(file: PathBuf, statements: Statements) -> Result<Self, Failed> {
        // The same tables.
        drop(open(&file)?);
        Ok(Self {
            file,
            statements,
            next: 0,
        })
    }

    /// Commits rows until there are enough; how many in a second.
    fn run(&mut self, more: impl Fn(u64) -> bool) -> Result<f64, Failed> {
        let connection = Connection::open(&self.file)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        let claim_and_complete = self.statements == Statements::ClaimAndComplete;
        let (insert, most) = match self.statements {
            Statements::Same => ("INSERT", 128),
            Statements::ClaimAndComplete => ("INSERT OR REPLACE", 2),
        };
        let mut remove = connection.prepare(&format!(
            "DELETE FROM relent_idempotency_1 WHERE rowid IN (
                 SELECT rowid FROM relent_idempotency_1 WHERE expires <= ?1 LIMIT {most})"
        ))?;
        let mut read = connection.prepare(
            "SELECT fingerprint, owner, fence, stage, until, step, repeated, expires, answer
             FROM relent_idempotency_1 WHERE key = ?1",
        )?;
        let conflict = if claim_and_complete {
            ""
        } else {
            "ON CONFLICT (key) DO NOTHING"
        };
        let mut put = connection.prepare(&format!(
            "{insert} INTO relent_idempotency_1
             (key, fingerprint, owner, fence, stage, until, step, repeated, expires, answer)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) {conflict}"
        ))?;
        let mut charge = connection.prepare(CHARGE)?;
        let (began, first, answer) = (Instant::now(), self.next, answer().to_bytes());
        while more(self.next - first) {
            connection.execute_batch("BEGIN IMMEDIATE")?;
            for _ in 0..ROWS {
                let key = key(self.next).0;
                self.next += 1;
                let (owner, expires) = (OWNER.to_be_bytes(), (1 << 61) + self.next.cast_signed());
                if claim_and_complete || self.next.is_multiple_of(64) {
                    remove.execute([1])?;
                }
                let mut is_once = !read.exists([key])?;
                if claim_and_complete {
                    put.execute(params![
                        key,
                        PRINT.0,
                        owner,
                        1,
                        0,
                        expires,
                        0,
                        false,
                        expires,
                        None::<Vec<u8>>
                    ])?;
                }
                charge.execute([])?;
                if claim_and_complete {
                    is_once &= read.exists([key])?;
                }
                let written = put.execute(params![
                    key, PRINT.0, owner, 1, 1, 0, 0, false, expires, answer
                ])?;
                if !is_once || written != 1 {
                    return Err("the key is not new".into());
                }
            }
            connection.execute_batch("COMMIT")?;
        }
        Ok((self.next - first) as f64 / began.elapsed().as_secs_f64())
    }
}
