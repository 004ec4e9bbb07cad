//! A transaction that needs few round trips.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Waker};

use relent_server::postgres::Client;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row, Statement};

use super::Postgres;

/// The tables are small now and large later, and a plan may be kept: none may read a table from end to end.
/// One that has to looks so expensive then that PostgreSQL would compile it (JIT), which takes longer than a lease may.
const BEGIN: &str =
    "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL enable_seqscan = off; SET LOCAL jit = off";

/// Its beginning goes to the database together with the first statement, and statements that are polled together go
/// together, in that order: nobody waits for an answer that says nothing. Statements are prepared before. Undone when it
/// is dropped.
pub(super) struct Transaction<'a> {
    client: &'a Client,
    begun: AtomicBool,
    tells: AtomicBool,
}

impl<'a> Transaction<'a> {
    pub(super) const fn new(client: &'a Client) -> Self {
        Self {
            client,
            begun: AtomicBool::new(false),
            tells: AtomicBool::new(false),
        }
    }

    /// Once it is committed workers are told that there may be work.
    pub(super) fn tell(&self) {
        self.tells.store(true, Relaxed);
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
        let commit = self.client.batch_execute("COMMIT");
        if self.tells.load(Relaxed) {
            // In a transaction of its own, which writes nothing: one that does both would hold up all that commit.
            let hint = self.client.prepare_cached(Postgres::HINT).await?;
            // That it fails is of no use to anybody: workers look all the same.
            let (committed, _) = tokio::join!(biased; commit, self.client.execute(&hint, &[]));
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
