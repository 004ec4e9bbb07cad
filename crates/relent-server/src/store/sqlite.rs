//! Records in an SQLite database.

use std::error::Error;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use relent_core::Instant;
use relent_core::claim::{ClaimConfig, Fingerprint, Lease, Record, Stage};
use rusqlite::{Connection, OptionalExtension, params};

use super::{Change, Claimed, Key, Store, WriteError, claimed};
use crate::sqlite::{Writer, WriterError};

/// Records in an SQLite database: durable, with nothing else to be installed. For services whose processes share
/// a disk.
///
/// ```no_run
/// use relent_server::idempotency::IdempotencyLayer;
/// use relent_server::store::Sqlite;
///
/// let layer = IdempotencyLayer::anonymous(Sqlite::open("keys.db")?);
/// # Ok::<(), relent_server::sqlite::WriterError>(())
/// ```
///
/// Its clock is that of the machine, and never goes back for this store: a step back stands still.
#[derive(Clone, Debug)]
pub struct Sqlite {
    pub(crate) writer: Writer,
    /// The latest time that was seen, in nanoseconds since 1970.
    pub(crate) latest: Arc<AtomicU64>,
}

/// Why it fails.
#[derive(Debug)]
#[non_exhaustive]
pub enum SqliteError {
    /// It could not be written.
    Writer(WriterError),
    /// A record is not as this version writes it.
    Record(Box<dyn Error + Send + Sync>),
}

impl fmt::Display for SqliteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Writer(error) => error.fmt(f),
            Self::Record(error) => write!(f, "the record of an idempotency key: {error}"),
        }
    }
}

impl Error for SqliteError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Writer(error) => error.source(),
            Self::Record(error) => error.source(),
        }
    }
}

impl From<WriterError> for SqliteError {
    fn from(error: WriterError) -> Self {
        Self::Writer(error)
    }
}

impl From<rusqlite::Error> for SqliteError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Writer(error.into())
    }
}

impl From<SqliteError> for WriteError<SqliteError> {
    fn from(error: SqliteError) -> Self {
        Self::Store(error)
    }
}

impl From<WriterError> for WriteError<SqliteError> {
    fn from(error: WriterError) -> Self {
        Self::Store(error.into())
    }
}

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS relent_idempotency_1 (
        key         BLOB    NOT NULL PRIMARY KEY,
        fingerprint BLOB    NOT NULL,
        owner       BLOB    NOT NULL,
        fence       INTEGER NOT NULL,
        stage       INTEGER NOT NULL,  -- 0 running, 1 completed, 2 released, 3 unknown
        until       INTEGER NOT NULL,  -- of the lease, in nanoseconds since 1970
        step        INTEGER NOT NULL,
        repeated    INTEGER NOT NULL,
        expires     INTEGER NOT NULL,
        answer      BLOB
    );
    CREATE INDEX IF NOT EXISTS relent_idempotency_1_expires ON relent_idempotency_1 (expires);
";

impl Sqlite {
    /// The records in this file, which is made if it is not there.
    ///
    /// # Errors
    /// The database cannot be opened, or its tables cannot be made.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WriterError> {
        Self::open_with(path, |_| Ok(()))
    }

    /// The same in a database that has other tables, too, which `set_up` makes: those of the service, for what it does
    /// [exactly once](crate::exactly_once).
    ///
    /// # Errors
    /// The database cannot be opened, or its tables cannot be made.
    pub fn open_with(
        path: impl AsRef<Path>,
        set_up: impl FnOnce(&Connection) -> rusqlite::Result<()>,
    ) -> Result<Self, WriterError> {
        let writer = Writer::open(path, |connection| {
            connection.execute_batch(TABLES)?;
            set_up(connection)
        })?;
        Ok(Self {
            writer,
            latest: Arc::default(),
        })
    }

    /// Who writes into the database.
    #[must_use]
    pub const fn writer(&self) -> &Writer {
        &self.writer
    }
}

/// The time of the machine, or the latest that was seen if that is later.
pub(crate) fn now(latest: &AtomicU64) -> Instant {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = u64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX);
    let before = latest.fetch_max(nanos, Ordering::Relaxed);
    Instant::from_nanos(nanos.max(before))
}

/// A request comes with this key, in a transaction.
pub(crate) fn claim(
    connection: &Connection,
    now: Instant,
    key: &Key,
    owner: u128,
    fingerprint: Fingerprint,
    config: &ClaimConfig,
) -> Result<Claimed, SqliteError> {
    connection
        .prepare_cached(REMOVE_TWO)?
        .execute([nanos(now)])?;
    let stored = read(connection, key)?;
    let record = stored.as_ref().map(|(record, _)| record);
    let (claim, change) = Record::claim(record, now, config, owner, fingerprint);
    if let Some(record) = change {
        put(connection, key, &record, None)?;
    }
    let answer = stored.and_then(|(_, answer)| answer);
    claimed(claim, now, answer).map_err(SqliteError::Record)
}

/// An execution changes its record, in a transaction.
pub(crate) fn write(
    connection: &Connection,
    now: Instant,
    key: &Key,
    lease: &Lease,
    change: &Change,
    config: &ClaimConfig,
) -> Result<Lease, WriteError<SqliteError>> {
    let (record, _) = read(connection, key)?.ok_or(WriteError::Lost)?;
    let (record, lease) = change.make(&record, now, lease, config)?;
    let answer = match change {
        Change::Complete(answer) => Some(answer.to_bytes()),
        _ => None,
    };
    put(connection, key, &record, answer.as_deref()).map_err(SqliteError::from)?;
    Ok(lease)
}

/// A record, and its answer in bytes.
type Stored = (Record, Option<Vec<u8>>);

fn read(connection: &Connection, key: &Key) -> Result<Option<Stored>, SqliteError> {
    let mut select = connection.prepare_cached(
        "SELECT fingerprint, owner, fence, stage, until, step, repeated, expires, answer
         FROM relent_idempotency_1 WHERE key = ?1",
    )?;
    let row = select.query_row([key.0], |row| {
        let until = instant(row.get(4)?);
        let stage = match row.get(3)? {
            0_u8 => Some(Stage::Running { until }),
            1 => Some(Stage::Completed),
            2 => Some(Stage::Released),
            3 => Some(Stage::Unknown),
            _ => None,
        };
        let record = stage.map(|stage| {
            Ok::<_, rusqlite::Error>(Record {
                fingerprint: Fingerprint(row.get(0)?),
                owner: u128::from_be_bytes(row.get(1)?),
                fence: row.get::<_, i64>(2)?.cast_unsigned(),
                stage,
                step: row.get(5)?,
                repeated: row.get(6)?,
                expires: instant(row.get(7)?),
            })
        });
        Ok((record.transpose()?, row.get(8)?))
    });
    match row.optional()? {
        None => Ok(None),
        Some((Some(record), answer)) => Ok(Some((record, answer))),
        Some((None, _)) => Err(SqliteError::Record(
            "it is in a stage that this version does not know".into(),
        )),
    }
}

fn put(
    connection: &Connection,
    key: &Key,
    record: &Record,
    answer: Option<&[u8]>,
) -> rusqlite::Result<()> {
    let (stage, until) = match record.stage {
        Stage::Running { until } => (0_u8, until),
        Stage::Completed => (1, Instant::ORIGIN),
        Stage::Released => (2, Instant::ORIGIN),
        // A stage to come is not to be taken for one that may run.
        _ => (3, Instant::ORIGIN),
    };
    let mut insert = connection.prepare_cached(
        "INSERT OR REPLACE INTO relent_idempotency_1
         (key, fingerprint, owner, fence, stage, until, step, repeated, expires, answer)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
    )?;
    insert.execute(params![
        key.0,
        record.fingerprint.0,
        record.owner.to_be_bytes(),
        record.fence.cast_signed(),
        stage,
        nanos(until),
        record.step,
        record.repeated,
        nanos(record.expires),
        answer,
    ])?;
    Ok(())
}

/// With every claim. The number is part of the text: SQLite prepares a statement anew for each limit that is bound.
const REMOVE_TWO: &str = "DELETE FROM relent_idempotency_1 WHERE rowid IN (
    SELECT rowid FROM relent_idempotency_1 WHERE expires <= ?1 LIMIT 2)";

fn remove_expired(connection: &Connection, now: Instant, most: usize) -> rusqlite::Result<usize> {
    let mut delete = connection.prepare_cached(
        "DELETE FROM relent_idempotency_1 WHERE rowid IN (
             SELECT rowid FROM relent_idempotency_1 WHERE expires <= ?1 LIMIT ?2)",
    )?;
    delete.execute(params![nanos(now), i64::try_from(most).unwrap_or(i64::MAX)])
}

/// SQLite has signed integers: times are good until 2262.
fn nanos(instant: Instant) -> i64 {
    i64::try_from(instant.as_nanos()).unwrap_or(i64::MAX)
}

fn instant(nanos: i64) -> Instant {
    match u64::try_from(nanos) {
        Ok(nanos) if nanos < i64::MAX.cast_unsigned() => Instant::from_nanos(nanos),
        Ok(_) => Instant::MAX,
        Err(_) => Instant::ORIGIN,
    }
}

impl Store for Sqlite {
    type Error = SqliteError;

    async fn claim(
        &self,
        key: &Key,
        owner: u128,
        fingerprint: Fingerprint,
        config: &ClaimConfig,
    ) -> Result<Claimed, SqliteError> {
        let (key, config, latest) = (*key, *config, Arc::clone(&self.latest));
        let claim = move |connection: &Connection| {
            claim(connection, now(&latest), &key, owner, fingerprint, &config)
        };
        self.writer.run(claim).await
    }

    async fn write(
        &self,
        key: &Key,
        lease: &Lease,
        change: Change,
        config: &ClaimConfig,
    ) -> Result<Lease, WriteError<SqliteError>> {
        let (key, lease, config) = (*key, *lease, *config);
        let latest = Arc::clone(&self.latest);
        let write = move |connection: &Connection| {
            write(connection, now(&latest), &key, &lease, &change, &config)
        };
        self.writer.run(write).await
    }

    async fn remove_expired(&self, most: usize) -> Result<usize, SqliteError> {
        let latest = Arc::clone(&self.latest);
        let remove =
            move |connection: &Connection| Ok(remove_expired(connection, now(&latest), most)?);
        self.writer.run(remove).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_stands_still_while_that_of_the_machine_is_behind_and_follows_it_forward() {
        let latest = AtomicU64::new(0);
        let began = now(&latest);
        assert!(began > Instant::ORIGIN && now(&latest) >= began);
        // The machine's clock is set back by a century.
        let ahead = began.as_nanos() + 100 * 365 * 24 * 3600 * 1_000_000_000;
        latest.store(ahead, Ordering::Relaxed);
        assert_eq!(now(&latest), Instant::from_nanos(ahead));
        assert_eq!(now(&latest), Instant::from_nanos(ahead));
    }
}
