//! Records in an SQLite database.

mod clock;
mod error;
mod records;
mod unknown;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant as Monotonic, SystemTime, UNIX_EPOCH};

use relent_core::Instant;
use relent_core::idempotency::{ClaimConfig, Fingerprint, Lease};
use rusqlite::Connection;

pub use error::SqliteError;
pub(crate) use records::{Found, Records};

use self::clock::Clock;
use self::records::{delete, nanos};
use super::{Change, Claimed, Key, Resolution, ResolveError, Store, UnknownOutcome, WriteError};
use crate::sqlite::{Writer, WriterError, WriterSession};

/// A store in an SQLite database: durable, with nothing else to install. For services whose processes share a disk.
///
/// ```no_run
/// use relent_server::idempotency::IdempotencyLayer;
/// use relent_server::store::Sqlite;
///
/// let layer = IdempotencyLayer::anonymous(Sqlite::open("keys.db")?);
/// # Ok::<(), relent_server::sqlite::WriterError>(())
/// ```
///
/// One in 64 claims removes up to 128 expired records.
///
/// The clock is that of the machine, and never goes back: if it is set back, the store's time stands still. If it
/// jumps forward, such as after a suspend, no lease expires immediately. Executions have the duration of a lease to
/// renew theirs.
#[derive(Clone, Debug)]
pub struct Sqlite {
    pub(crate) writer: Writer,
    pub(crate) seen: Arc<Seen>,
}

/// The state of the store in this process.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The clock, and the time of its last reading.
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

/// One claim out of this number removes expired records, since the search costs as much as writing a record.
const CLAIMS_PER_CLEANUP: u64 = 64;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS relent_idempotency_1 (
        key         BLOB    NOT NULL PRIMARY KEY,
        fingerprint BLOB    NOT NULL,
        owner       BLOB    NOT NULL,
        fence       INTEGER NOT NULL,
        stage       INTEGER NOT NULL,  -- 0 running, 1 completed, 2 released, 3 unknown
        until       INTEGER NOT NULL,  -- end of the lease or of an unknown execution, in nanoseconds since 1970
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
    /// Opens the store in this file, and creates the file if necessary.
    ///
    /// # Errors
    /// The database cannot be opened, its tables cannot be created, or the file is
    /// [read-only](crate::sqlite::FileProblem::ReadOnly).
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WriterError> {
        Self::open_with(path, |_| Ok(()))
    }

    /// Opens the store in a database with other tables, which `set_up` creates: those of the service, for
    /// [transactional](crate::transactional) requests.
    ///
    /// # Errors
    /// The database cannot be opened, or its tables cannot be created.
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

    /// Returns the writer thread of the database.
    #[must_use]
    pub const fn writer(&self) -> &Writer {
        &self.writer
    }
}

impl Seen {
    /// Returns the time, and the configuration with durations by that clock.
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

    /// Simulates that the machine's clock was set forward one lease ago.
    #[cfg(test)]
    pub(crate) fn set_ahead(&self, ahead: Duration) {
        let (now, _) = self.now(&ClaimConfig::DEFAULT);
        let mut held = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        held.0.set(now.saturating_add(ahead));
    }

    /// Returns the time of a claim, and sometimes removes expired records.
    pub(crate) fn claim(
        &self,
        records: &mut Records<'_>,
        config: &ClaimConfig,
    ) -> rusqlite::Result<(Instant, ClaimConfig)> {
        let (now, config) = self.now(config);
        if self.claims.fetch_add(1, Ordering::Relaxed) % CLAIMS_PER_CLEANUP
            == CLAIMS_PER_CLEANUP - 1
        {
            records.remove_expired(now)?;
        }
        Ok((now, config))
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
        let claim = move |session: &mut WriterSession<'_>| {
            // The caller gave up while the claim was queued, so nothing would run.
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
        let write = move |session: &mut WriterSession<'_>| {
            let records = &mut session.records;
            let (now, by_clock) = seen.now(&config);
            let behind = by_clock.retention.saturating_sub(config.retention);
            records.write(now, behind, &key, &lease, &change, &by_clock)
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
            unknown::find(connection, now, after.as_ref(), most)
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
