//! Records in a PostgreSQL database.

mod error;
mod statements;
#[cfg(all(test, unix))]
mod tests;
mod unknown;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use relent_core::claim::{ClaimConfig, Fingerprint, Lease};
use tokio::time::timeout;

pub use self::error::PostgresError;
use self::statements::{CLOCK, Sql};
pub(crate) use self::statements::{Found, Mode, NONE_WRITTEN};
use super::{Change, Claimed, Key, Resolution, ResolveError, Store, UnknownOutcome, WriteError};
use crate::postgres::{Connections, IsolationLevel, Pool, Session, connect, in_time};
use crate::server_clock::ServerClock;

/// Records in a PostgreSQL database: durable, for services of many processes.
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
/// A claim is one statement, and so is each change; the time is that of the database. Of every 256 claims one has
/// expired records removed behind it, at most 512 of them, past those that others are at.
///
/// A claim says until when its caller waits, in the time of the database, which the process knows by the replies: one that
/// is executed later, by a database that was stopped, claims nothing. The first claim of a process takes a statement more.
///
/// What the database has confirmed survives its crash, unless `synchronous_commit` is `off` there; and a failover, if
/// the replica that takes over is a synchronous one.
///
/// With the feature `sqlx` the pool may be a `PgPool` of sqlx: then work that runs
/// [exactly once](crate::exactly_once) gets a transaction of sqlx.
#[derive(Clone)]
pub struct Postgres<C = Pool> {
    pub(crate) pool: C,
    pub(crate) isolation: IsolationLevel,
    pub(crate) patience: Duration,
    pub(crate) sql: Arc<Sql>,
    claims: Arc<AtomicU64>,
    clock: Arc<ServerClock>,
}

/// Of so many claims one has so many expired records removed.
const CLAIMS_A_BATCH: u64 = 256;
const BATCH: usize = 512;

/// Two processes that begin at once do not get in each other's way.
const CREATE: (&str, &str) = (
    "BEGIN; SELECT pg_advisory_xact_lock(7308604797129746);",
    "COMMIT;",
);

impl Postgres {
    /// The tables: for migrations of your own, instead of [`create_tables`](Self::create_tables). A version
    /// with other tables gives them another name, and leaves these as they are.
    pub const TABLES: &str = "
        CREATE TABLE IF NOT EXISTS relent_idempotency_1 (
            key         bytea    NOT NULL PRIMARY KEY,
            fingerprint bytea    NOT NULL,
            owner       bytea    NOT NULL,
            fence       bigint   NOT NULL,
            stage       smallint NOT NULL,  -- 0 running, 1 completed, 2 released, 3 unknown
            until       bigint   NOT NULL,  -- of the lease, in microseconds since 1970
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
    /// The records in the database of this pool. The tables have to be there.
    #[must_use]
    pub fn new(pool: C) -> Self {
        Self {
            pool,
            isolation: IsolationLevel::ReadCommitted,
            patience: Duration::from_secs(5),
            sql: Arc::new(Sql::new(CLOCK)),
            claims: Arc::default(),
            clock: Arc::default(),
        }
    }

    /// How long a connection or a statement of this store may take: 5 s by default. After that it is an error, and
    /// the connection is given up.
    #[must_use]
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The isolation of transactions that run [exactly once](crate::exactly_once): read committed by default.
    #[must_use]
    pub const fn isolation(mut self, isolation: IsolationLevel) -> Self {
        self.isolation = isolation;
        self
    }

    /// The pool.
    #[must_use]
    pub const fn pool(&self) -> &C {
        &self.pool
    }

    /// Makes the tables if they are not there.
    ///
    /// # Errors
    /// The database refuses, or is not reached.
    pub async fn create_tables(&self) -> Result<(), PostgresError> {
        let script = [CREATE.0, Postgres::TABLES, CREATE.1].concat();
        let mut connection = connect(&self.pool, self.patience).await?;
        let create = async { Ok(connection.script(&script).await?) };
        let created = timeout(self.patience, create).await;
        in_time::<C, _, _>(connection, self.patience, created)
    }

    /// Has expired records removed now and then.
    pub(crate) fn count_claim(&self) {
        if self.claims.fetch_add(1, Ordering::Relaxed) % CLAIMS_A_BATCH == CLAIMS_A_BATCH - 1 {
            let store = self.clone();
            // What fails is made up for by the next.
            tokio::spawn(async move { drop(store.remove_expired(BATCH).await) });
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
        let mut connection = connect(&self.pool, self.patience).await?;
        let sql = &self.sql;
        let claim = async {
            let mode = Mode::Until(&self.clock, Instant::now() + self.patience);
            let claim = sql.claim(&mut *connection, mode, key, owner, fingerprint, config);
            Ok::<_, PostgresError>(claim.await?.claimed)
        };
        let claimed = timeout(self.patience, claim).await;
        in_time::<C, _, _>(connection, self.patience, claimed)
    }

    async fn write(
        &self,
        key: &Key,
        lease: &Lease,
        change: Change,
        config: &ClaimConfig,
    ) -> Result<Lease, WriteError<PostgresError>> {
        let mut connection = connect(&self.pool, self.patience).await?;
        let write = self
            .sql
            .write(&mut *connection, key, lease, &change, config);
        let written = timeout(self.patience, write).await;
        in_time::<C, _, _>(connection, self.patience, written)
    }

    async fn find_unknown(
        &self,
        after: Option<&UnknownOutcome>,
        most: usize,
        config: &ClaimConfig,
    ) -> Result<Vec<UnknownOutcome>, PostgresError> {
        let mut connection = connect(&self.pool, self.patience).await?;
        let find = self.sql.find_unknown(&mut *connection, after, most, config);
        let found = timeout(self.patience, find).await;
        in_time::<C, _, _>(connection, self.patience, found)
    }

    async fn resolve(
        &self,
        found: &UnknownOutcome,
        resolution: Resolution,
        config: &ClaimConfig,
    ) -> Result<(), ResolveError<PostgresError>> {
        let mut connection = connect(&self.pool, self.patience).await?;
        let resolve = self
            .sql
            .resolve(&mut *connection, found, &resolution, config);
        let resolved = timeout(self.patience, resolve).await;
        in_time::<C, _, _>(connection, self.patience, resolved)
    }

    async fn remove_expired(&self, most: usize) -> Result<usize, PostgresError> {
        let mut connection = connect(&self.pool, self.patience).await?;
        let remove = self.sql.remove_expired(&mut *connection, most);
        let removed = timeout(self.patience, remove).await;
        in_time::<C, _, _>(connection, self.patience, removed)
    }
}

impl<C> fmt::Debug for Postgres<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres")
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}
