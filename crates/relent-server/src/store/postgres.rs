//! Records in a PostgreSQL database.

mod error;
mod statements;
#[cfg(all(test, unix))]
mod tests;
mod unknown;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use relent_core::idempotency::{ClaimConfig, Fingerprint, Lease};
use tokio::time::timeout;

pub use self::error::PostgresError;
use self::statements::{CLOCK, Sql};
pub(crate) use self::statements::{Found, Mode, NONE_WRITTEN};
use super::{Change, Claimed, Key, Resolution, ResolveError, Store, UnknownOutcome, WriteError};
use crate::postgres::{Checkout, Connections, IsolationLevel, Pool, SqlSession};
use crate::server_clock::{ServerClock, end_of_wait};

/// A store in a PostgreSQL database: durable, for services of many processes.
///
/// ```no_run
/// use relent_server::idempotency::IdempotencyLayer;
/// use relent_server::store::Postgres;
///
/// # async fn service() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = relent_server::postgres::pool("host=/run/postgresql user=shop dbname=shop", 16)?;
/// let store = Postgres::new(pool);
/// store.create_tables().await?;
/// let layer = IdempotencyLayer::anonymous(store);
/// # Ok(())
/// # }
/// ```
///
/// A claim is one statement, and so is each change; the clock is that of the database. One in 256 claims triggers the
/// removal of up to 512 expired records, except locked ones.
///
/// A claim contains the time until which its caller waits, by the clock of the database. If a stalled database
/// executes it later, it claims nothing. The process learns that clock from replies, so its first claim takes one
/// more statement.
///
/// A connection leaves the pool if it has timed out, or if its server has become read-only: after a failover the pool
/// connects again, to the new primary if the name leads there. With `target_session_attrs=read-write` in the
/// connection string, it connects to no other. A connection also leaves the pool if it still runs a statement 500 ms
/// after its [transactional](crate::transactional) request was dropped, or its work has failed.
///
/// A confirmed write survives a crash, unless `synchronous_commit` is `off`. It survives a failover if the replica
/// that takes over is synchronous.
///
/// With the feature `sqlx` the pool may be a `PgPool` of sqlx. Then [transactional](crate::transactional) work gets a
/// transaction of sqlx.
#[derive(Clone)]
pub struct Postgres<C = Pool> {
    pub(crate) pool: C,
    pub(crate) isolation: IsolationLevel,
    pub(crate) max_wait: Duration,
    pub(crate) sql: Arc<Sql>,
    claims: Arc<AtomicU64>,
    clock: Arc<ServerClock>,
}

/// One claim out of this number triggers the removal of up to `EXPIRED_BATCH` expired records.
const CLAIMS_PER_CLEANUP: u64 = 256;
const EXPIRED_BATCH: usize = 512;

/// Serializes concurrent starts of several processes. It begins a script, which is a transaction by itself: unlike
/// after a `BEGIN`, an error leaves no transaction open on the connection.
const LOCK_CREATION: &str = "SELECT pg_advisory_xact_lock(7308604797129746);";

impl Postgres {
    /// The tables, for your own migrations instead of [`create_tables`](Self::create_tables). A version with
    /// different tables will use another name, and leave these unchanged.
    pub const TABLES: &str = "
        CREATE TABLE IF NOT EXISTS relent_idempotency_1 (
            key         bytea    NOT NULL PRIMARY KEY,
            fingerprint bytea    NOT NULL,
            owner       bytea    NOT NULL,
            fence       bigint   NOT NULL,
            stage       smallint NOT NULL,  -- 0 running, 1 completed, 2 released, 3 unknown
            until       bigint   NOT NULL,  -- end of the lease or of an unknown execution, in microseconds since 1970
            step        bigint   NOT NULL,
            repeated    boolean  NOT NULL,
            expires     bigint   NOT NULL,
            answer      bytea
        );
        CREATE INDEX IF NOT EXISTS relent_idempotency_1_expires ON relent_idempotency_1 (expires);
        CREATE INDEX IF NOT EXISTS relent_idempotency_1_unknown ON relent_idempotency_1 (expires, key)
            WHERE stage IN (0, 3);
    ";
}

impl<C: Connections> Postgres<C> {
    /// Creates a store in the database of this pool. The tables must exist.
    #[must_use]
    pub fn new(pool: C) -> Self {
        Self {
            pool,
            isolation: IsolationLevel::ReadCommitted,
            max_wait: Duration::from_secs(5),
            sql: Arc::new(Sql::new(CLOCK)),
            claims: Arc::default(),
            clock: Arc::default(),
        }
    }

    /// Sets the limit for getting a connection, and for a statement: 5 s by default. After that the call fails, and
    /// the connection is discarded.
    #[must_use]
    pub const fn max_wait(mut self, patience: Duration) -> Self {
        self.max_wait = patience;
        self
    }

    /// Sets the isolation level of [transactional](crate::transactional) requests: read committed by default.
    #[must_use]
    pub const fn isolation(mut self, isolation: IsolationLevel) -> Self {
        self.isolation = isolation;
        self
    }

    /// Returns the pool.
    #[must_use]
    pub const fn pool(&self) -> &C {
        &self.pool
    }

    /// Creates the tables if they do not exist.
    ///
    /// # Errors
    /// The database rejects it, or is unreachable.
    pub async fn create_tables(&self) -> Result<(), PostgresError> {
        let script = [LOCK_CREATION, Postgres::TABLES].concat();
        let mut checkout = Checkout::new(self.max_wait);
        let session = &mut **checkout.connect(&self.pool).await?;
        let missing = crate::postgres::missing(Postgres::TABLES);
        let create = async {
            if session.query(&missing, &[]).await?.is_some() {
                session.script(&script).await?;
            }
            Ok(())
        };
        let created = timeout(self.max_wait, create).await;
        checkout.in_time(created)
    }

    /// Counts a claim, and sometimes removes expired records.
    pub(crate) fn count_claim(&self) {
        if self.claims.fetch_add(1, Ordering::Relaxed) % CLAIMS_PER_CLEANUP
            == CLAIMS_PER_CLEANUP - 1
        {
            let store = self.clone();
            // After a failure the next removal makes up for it.
            tokio::spawn(async move { drop(store.remove_expired(EXPIRED_BATCH).await) });
        }
    }
}

impl<C: Connections> Store for Postgres<C> {
    type Error = PostgresError;

    async fn claim(
        &self,
        key: &Key,
        owner: u128,
        fingerprint: Fingerprint,
        config: &ClaimConfig,
    ) -> Result<Claimed, PostgresError> {
        self.count_claim();
        let mut checkout = Checkout::new(self.max_wait);
        let session = &mut **checkout.connect(&self.pool).await?;
        let sql = &self.sql;
        let claim = async {
            let mode = Mode::Until(&self.clock, end_of_wait(self.max_wait));
            let claim = sql.claim(session, mode, key, owner, fingerprint, config);
            Ok::<_, PostgresError>(claim.await?.claimed)
        };
        let claimed = timeout(self.max_wait, claim).await;
        checkout.in_time(claimed)
    }

    async fn write(
        &self,
        key: &Key,
        lease: &Lease,
        change: Change,
        config: &ClaimConfig,
    ) -> Result<Lease, WriteError<PostgresError>> {
        let mut checkout = Checkout::new(self.max_wait);
        let session = &mut **checkout.connect(&self.pool).await?;
        let write = self.sql.write(session, key, lease, &change, config);
        let written = timeout(self.max_wait, write).await;
        checkout.in_time(written)
    }

    async fn find_unknown(
        &self,
        after: Option<&UnknownOutcome>,
        most: usize,
        _: &ClaimConfig,
    ) -> Result<Vec<UnknownOutcome>, PostgresError> {
        let mut checkout = Checkout::new(self.max_wait);
        let session = &mut **checkout.connect(&self.pool).await?;
        let find = self.sql.find_unknown(session, after, most);
        let found = timeout(self.max_wait, find).await;
        checkout.in_time(found)
    }

    async fn resolve(
        &self,
        found: &UnknownOutcome,
        resolution: Resolution,
        config: &ClaimConfig,
    ) -> Result<(), ResolveError<PostgresError>> {
        let mut checkout = Checkout::new(self.max_wait);
        let session = &mut **checkout.connect(&self.pool).await?;
        let resolve = self.sql.resolve(session, found, &resolution, config);
        let resolved = timeout(self.max_wait, resolve).await;
        checkout.in_time(resolved)
    }

    async fn remove_expired(&self, most: usize) -> Result<usize, PostgresError> {
        let mut checkout = Checkout::new(self.max_wait);
        let session = &mut **checkout.connect(&self.pool).await?;
        let remove = self.sql.remove_expired(session, most);
        let removed = timeout(self.max_wait, remove).await;
        checkout.in_time(removed)
    }
}

impl<C> fmt::Debug for Postgres<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres")
            .field("max_wait", &self.max_wait)
            .finish_non_exhaustive()
    }
}
