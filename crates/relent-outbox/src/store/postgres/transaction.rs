//! A transaction that needs few round trips.

use std::future::Future;
use std::pin::pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Waker};

use relent_server::postgres::Client;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row, Statement};

use crate::store::Hinted;

/// The tables are small now and large later, and a plan may be kept: none may read a table from end to end.
/// One that has to looks so expensive then that PostgreSQL would compile it (JIT), which takes longer than a lease may.
const BEGIN: &str =
    "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL enable_seqscan = off; SET LOCAL jit = off";

/// [`HINT`](super::Postgres::HINT) with a payload.
const TELL: &str = "SELECT pg_notify('relent_outbox', $1)";

/// Its beginning goes to the database together with the first statement, and statements that are polled together go
/// together, in that order: nobody waits for an answer that says nothing. Statements are prepared before. Undone when it
/// is dropped.
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

    /// Once it is committed, workers get this hint.
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

    /// Each of these is sent when it is polled for the first time.
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

    /// Commits what was begun; after a statement that failed it is undone. To be polled together with the last statement,
    /// after it, so that both need one round trip. A statement that follows begins another transaction.
    pub(super) async fn commit_now(&self) -> Result<(), Error> {
        let commit = self.client.batch_execute("COMMIT");
        if let Some(payload) = self.tells.get() {
            // In a transaction of its own, which writes nothing: one that does both would hold up all that commit.
            let hint = self.client.prepare_cached(TELL).await?;
            // That it fails is of no use to anybody: workers look all the same.
            let parameters: [&(dyn ToSql + Sync); 1] = [payload];
            let hint = self.client.execute(&hint, &parameters);
            let (committed, _) = tokio::join!(biased; commit, hint);
            committed?;
        } else {
            commit.await?;
        }
        self.begun.store(false, Relaxed);
        Ok(())
    }
}

impl Drop for Transaction<'_> {
    /// It is sent, and whoever has the connection next comes after it.
    fn drop(&mut self) {
        if self.begun.load(Relaxed) {
            let rollback = pin!(self.client.batch_execute("ROLLBACK"));
            let _ = rollback.poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}
