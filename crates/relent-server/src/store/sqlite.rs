//! Records in an SQLite database.

mod clock;
mod unknown;

use std::error::Error;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant as Monotonic, SystemTime, UNIX_EPOCH};

use relent_core::Instant;
use relent_core::claim::{ClaimConfig, Fingerprint, Lease, Record, Stage};
use rusqlite::{Connection, OptionalExtension, PrepFlags, Statement, params};

use self::clock::Clock;
use super::{
    Change, Claimed, Key, Resolution, ResolveError, Store, UnknownOutcome, WriteError, claimed,
};
use crate::sqlite::{Session, Writer, WriterError};

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
/// Of every 64 claims one removes expired records, at most 128 of them.
///
/// Its clock is that of the machine, and never goes back for this store: a step back stands still. A step forward, such as
/// after a sleep of the machine, ends no lease immediately: executions have as long as a lease lasts to renew theirs.
#[derive(Clone, Debug)]
pub struct Sqlite {
    pub(crate) writer: Writer,
    pub(crate) seen: Arc<Seen>,
}

/// What the store has seen.
#[derive(Debug)]
pub(crate) struct Seen {
    /// And when it was read last.
    clock: Mutex<(Clock, Monotonic)>,
    claims: AtomicU64,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            clock: Mutex::new((Clock::default(), Monotonic::now())),
            claims: AtomicU64::new(0),
        }
    }
}

/// Of so many claims one removes so many expired records: to look with each costs as much as to write its record.
const CLAIMS_A_BATCH: u64 = 64;
const BATCH: i64 = 128;

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

impl From<SqliteError> for ResolveError<SqliteError> {
    fn from(error: SqliteError) -> Self {
        Self::Store(error)
    }
}

impl From<WriterError> for ResolveError<SqliteError> {
    fn from(error: WriterError) -> Self {
        Self::Store(error.into())
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
    CREATE INDEX IF NOT EXISTS relent_idempotency_1_unknown ON relent_idempotency_1 (expires, key)
        WHERE stage IN (0, 3);
";

impl Sqlite {
    /// The records in this file, which is made if it is not there.
    ///
    /// # Errors
    /// The database cannot be opened, its tables cannot be made, or the file is
    /// [read-only](crate::sqlite::FileProblem::ReadOnly).
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
            seen: Arc::default(),
        })
    }

    /// Who writes into the database.
    #[must_use]
    pub const fn writer(&self) -> &Writer {
        &self.writer
    }
}

impl Seen {
    /// The time, and how long leases and records last by it.
    fn now(&self, config: &ClaimConfig) -> (Instant, ClaimConfig) {
        let mut held = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        let (clock, read) = &mut *held;
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let machine = Instant::ORIGIN.saturating_add(since.unwrap_or_default());
        let now = Monotonic::now();
        let passed = now.saturating_duration_since(*read);
        *read = now;
        clock.read(machine, passed, config)
    }

    /// As if the clock of the machine had been set forward a lease ago.
    #[cfg(test)]
    pub(crate) fn set_ahead(&self, ahead: Duration) {
        let (now, _) = self.now(&ClaimConfig::DEFAULT);
        let mut held = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        held.0.set(now.saturating_add(ahead));
    }

    /// The time of a claim. Expired records are removed now and then.
    pub(crate) fn claim(
        &self,
        records: &mut Records<'_>,
        config: &ClaimConfig,
    ) -> rusqlite::Result<(Instant, ClaimConfig)> {
        let (now, config) = self.now(config);
        if self.claims.fetch_add(1, Ordering::Relaxed) % CLAIMS_A_BATCH == CLAIMS_A_BATCH - 1 {
            records.remove_expired(now)?;
        }
        Ok((now, config))
    }
}

/// What a request with a key is to do, and what decided it.
pub(crate) struct Found {
    pub(crate) claimed: Claimed,
    /// The record that is there.
    pub(crate) before: Option<Record>,
    /// What is to be written in its place.
    pub(crate) change: Option<Record>,
}

/// A record, and its answer in bytes.
type Stored = (Record, Option<Vec<u8>>);

/// The records of a database, and the statements that read and write them, each prepared once it is needed: what is in
/// the database may be none of this store's.
pub(crate) struct Records<'c> {
    connection: &'c Connection,
    read: Option<Statement<'c>>,
    put: Option<Statement<'c>>,
    put_first: Option<Statement<'c>>,
    remove: Option<Statement<'c>>,
}

/// The statement that is held here.
fn held<'s, 'c>(
    place: &'s mut Option<Statement<'c>>,
    connection: &'c Connection,
    statement: &str,
) -> rusqlite::Result<&'s mut Statement<'c>> {
    match place {
        Some(held) => Ok(held),
        empty => {
            let flags = PrepFlags::SQLITE_PREPARE_PERSISTENT;
            Ok(empty.insert(connection.prepare_with_flags(statement, flags)?))
        }
    }
}

impl<'c> Records<'c> {
    pub(crate) const fn new(connection: &'c Connection) -> Self {
        Self {
            connection,
            read: None,
            put: None,
            put_first: None,
            remove: None,
        }
    }

    /// A request comes with this key: what it is to do. Nothing is written.
    pub(crate) fn find(
        &mut self,
        now: Instant,
        key: &Key,
        owner: u128,
        fingerprint: Fingerprint,
        config: &ClaimConfig,
    ) -> Result<Found, SqliteError> {
        let (before, answer) = self.read(key)?.unzip();
        let (claim, change) = Record::claim(before.as_ref(), now, config, owner, fingerprint);
        let claimed = claimed(claim, now, answer.flatten()).map_err(SqliteError::Record)?;
        Ok(Found {
            claimed,
            before,
            change,
        })
    }

    /// An execution changes its record.
    fn write(
        &mut self,
        now: Instant,
        key: &Key,
        lease: &Lease,
        change: &Change,
        config: &ClaimConfig,
    ) -> Result<Lease, WriteError<SqliteError>> {
        let stored = self.read(key)?.map(|(record, _)| record);
        let record = stored
            .filter(|record| !record.is_expired(now))
            .ok_or(WriteError::Gone)?;
        let (record, lease) = change.make(&record, now, lease, config)?;
        self.put(key, &record, change.answer().as_deref())
            .map_err(SqliteError::from)?;
        Ok(lease)
    }

    pub(crate) fn read(&mut self, key: &Key) -> Result<Option<Stored>, SqliteError> {
        let select =
            "SELECT fingerprint, owner, fence, stage, until, step, repeated, expires, answer
             FROM relent_idempotency_1 WHERE key = ?1";
        let select = held(&mut self.read, self.connection, select)?;
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

    /// Writes a record, also in the place of another.
    pub(crate) fn put(
        &mut self,
        key: &Key,
        record: &Record,
        answer: Option<&[u8]>,
    ) -> rusqlite::Result<()> {
        let insert = "INSERT OR REPLACE INTO relent_idempotency_1
             (key, fingerprint, owner, fence, stage, until, step, repeated, expires, answer)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
        let insert = held(&mut self.put, self.connection, insert)?;
        insert_by(insert, key, record, answer).map(drop)
    }

    /// Writes the first record of a key; whether there was none.
    pub(crate) fn put_first(
        &mut self,
        key: &Key,
        record: &Record,
        answer: Option<&[u8]>,
    ) -> rusqlite::Result<bool> {
        let insert = "INSERT INTO relent_idempotency_1
             (key, fingerprint, owner, fence, stage, until, step, repeated, expires, answer)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT (key) DO NOTHING";
        let insert = held(&mut self.put_first, self.connection, insert)?;
        Ok(insert_by(insert, key, record, answer)? == 1)
    }

    /// Removes some that have expired. How many is in the text: a statement whose limit is bound is prepared anew at
    /// each run.
    fn remove_expired(&mut self, now: Instant) -> rusqlite::Result<usize> {
        let delete = held(&mut self.remove, self.connection, &delete(BATCH))?;
        delete.execute([nanos(now)])
    }
}

/// Removes at most so many records that have expired.
fn delete(most: i64) -> String {
    format!(
        "DELETE FROM relent_idempotency_1 WHERE rowid IN (
             SELECT rowid FROM relent_idempotency_1 WHERE expires <= ?1 LIMIT {most})"
    )
}

/// How many records it has written.
fn insert_by(
    insert: &mut Statement<'_>,
    key: &Key,
    record: &Record,
    answer: Option<&[u8]>,
) -> rusqlite::Result<usize> {
    let (stage, until) = match record.stage {
        Stage::Running { until } => (0_u8, until),
        Stage::Completed => (1, Instant::ORIGIN),
        Stage::Released => (2, Instant::ORIGIN),
        // A stage to come is not to be taken for one that may run.
        _ => (3, Instant::ORIGIN),
    };
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
    ])
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
        let (key, config, seen) = (*key, *config, Arc::clone(&self.seen));
        let caller = Arc::new(());
        let waits = Arc::downgrade(&caller);
        let claim = move |session: &mut Session<'_>| {
            // It has given up while this was in the queue: nothing would run.
            if waits.strong_count() == 0 {
                return Err(WriterError::Undone.into());
            }
            let records = &mut session.records;
            let (now, config) = seen.claim(records, &config)?;
            let found = records.find(now, &key, owner, fingerprint, &config)?;
            if let Some(record) = found.change {
                records.put(&key, &record, None)?;
            }
            Ok(found.claimed)
        };
        let claimed = self.writer.run_in(claim).await;
        drop(caller);
        claimed
    }

    async fn write(
        &self,
        key: &Key,
        lease: &Lease,
        change: Change,
        config: &ClaimConfig,
    ) -> Result<Lease, WriteError<SqliteError>> {
        let (key, lease, config) = (*key, *lease, *config);
        let seen = Arc::clone(&self.seen);
        let write = move |session: &mut Session<'_>| {
            let records = &mut session.records;
            let (now, config) = seen.now(&config);
            records.write(now, &key, &lease, &change, &config)
        };
        self.writer.run_in(write).await
    }

    async fn find_unknown(
        &self,
        after: Option<&UnknownOutcome>,
        most: usize,
        config: &ClaimConfig,
    ) -> Result<Vec<UnknownOutcome>, SqliteError> {
        let (after, config) = (after.copied(), *config);
        let seen = Arc::clone(&self.seen);
        let find = move |connection: &Connection| {
            let (now, _) = seen.now(&config);
            unknown::find(connection, now, after.as_ref(), most, &config)
        };
        self.writer.run(find).await
    }

    async fn resolve(
        &self,
        found: &UnknownOutcome,
        resolution: Resolution,
        config: &ClaimConfig,
    ) -> Result<(), ResolveError<SqliteError>> {
        let (found, config) = (*found, *config);
        let seen = Arc::clone(&self.seen);
        let resolve = move |connection: &Connection| {
            let (now, config) = seen.now(&config);
            unknown::resolve(connection, now, &found, &resolution, &config)
        };
        self.writer.run(resolve).await
    }

    async fn remove_expired(&self, most: usize) -> Result<usize, SqliteError> {
        let seen = Arc::clone(&self.seen);
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let remove = move |connection: &Connection| {
            let (now, _) = seen.now(&ClaimConfig {
                lease: Duration::ZERO,
                ..ClaimConfig::DEFAULT
            });
            Ok(connection.execute(&delete(most), [nanos(now)])?)
        };
        self.writer.run(remove).await
    }
}
