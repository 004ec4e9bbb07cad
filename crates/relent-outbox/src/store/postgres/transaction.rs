//! Transactions with few round trips.

use std::future::Future;
use std::pin::pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Waker};

use relent_server::postgres::Client;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row, Statement};

use crate::store::Hinted;

/// Starts a transaction. Tables are small now and large later, and plans may be cached, so no plan may scan a whole
/// table. PostgreSQL estimates unavoidable scans as so expensive then that it would compile them (JIT), which can
/// exceed a lease.
const BEGIN: &str =
    "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL enable_seqscan = off; SET LOCAL jit = off";

/// [`HINT`](super::Postgres::HINT) with a payload.
const TELL: &str = "SELECT pg_notify('relent_outbox', $1)";

/// A transaction that starts with its first statement, in the same round trip. Statements that are polled together are
/// sent together, in that order. Statements are prepared before. It is rolled back on drop.
pub(super) struct Transaction<'a> {
    client: &'a Client,
    begun: AtomicBool,
    tells: OnceLock<String>,
}

impl<'a> Transaction<'a> {
    pub(super) const fn new(client: &'a Client) -> Self {
        Self {
            client,
            begun: AtomicBool::new(false),
            tells: OnceLock::new(),
        }
    }

    /// Sends this hint to workers after the commit.
    pub(super) fn tell(&self, hinted: &Hinted) {
        self.tells.get_or_init(|| hinted.write());
    }

    pub(super) async fn prepare_cached(&self, statement: &str) -> Result<Statement, Error> {
        self.client.prepare_cached(statement).await
    }

    pub(super) async fn query(
        &self,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        self.run(self.client.query(statement, parameters)).await
    }

    pub(super) async fn query_one(
        &self,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, Error> {
        self.run(self.client.query_one(statement, parameters)).await
    }

    pub(super) async fn query_opt(
        &self,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, Error> {
        self.run(self.client.query_opt(statement, parameters)).await
    }

    pub(super) async fn execute(
        &self,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Error> {
        self.run(self.client.execute(statement, parameters)).await
    }

    /// Runs statements without parameters.
    pub(super) async fn batch_execute(&self, statements: &str) -> Result<(), Error> {
        self.run(self.client.batch_execute(statements)).await
    }

    /// Runs a statement, which is sent when it is polled first.
    async fn run<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        if self.begun.swap(true, Relaxed) {
            return work.await;
        }
        let begin = self.client.batch_execute(BEGIN);
        let (begun, worked) = tokio::join!(biased; begin, work);
        begun?;
        worked
    }

    pub(super) async fn commit(self) -> Result<(), Error> {
        if !self.begun.load(Relaxed) {
            return Ok(());
        }
        self.commit_now().await
    }

    /// Commits the transaction; after a failed statement this rolls it back. Poll it together with the last statement,
    /// after it, so that both need one round trip. A later statement starts another transaction.
    pub(super) async fn commit_now(&self) -> Result<(), Error> {
        let commit = self.client.batch_execute("COMMIT");
        let committed = if let Some(payload) = self.tells.get() {
            // In a transaction of its own, which writes nothing: one that does both would block all other commits.
            let hint = self.client.prepare_cached(TELL).await?;
            // The error is of no use: workers also poll.
            let parameters: [&(dyn ToSql + Sync); 1] = [payload];
            let hint = self.client.execute(&hint, &parameters);
            let (committed, _) = tokio::join!(biased; commit, hint);
            committed
        } else {
            commit.await
        };
        // A failed commit ends the transaction, too.
        self.begun.store(false, Relaxed);
        committed
    }
}

impl Drop for Transaction<'_> {
    /// Sends the rollback. The next user's statements on this connection follow it.
    fn drop(&mut self) {
        if self.begun.load(Relaxed) {
            let rollback = pin!(self.client.batch_execute("ROLLBACK"));
            let _ = rollback.poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}
