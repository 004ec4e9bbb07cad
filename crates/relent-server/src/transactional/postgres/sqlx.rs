//! Transactional requests with transactions of sqlx.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Response;
use http_body_util::Full;
use sqlx::{Connection, PgPool};

use super::{Failed, Run};
use crate::postgres::{IsolationLevel, SqlxTransaction};
use crate::store::Postgres;
use crate::transactional::{Keyed, TransactionResult, Transactional, WorkError};

impl Postgres<PgPool> {
    /// Runs the work with a transaction of sqlx, otherwise like [`Postgres::transactional`].
    ///
    /// # Errors
    /// The error of the work, or of the store.
    pub async fn transactional<W, B, E>(
        &self,
        keyed: Keyed,
        work: W,
    ) -> Result<TransactionResult, Failed>
    where
        W: for<'t> Fn(&'t mut SqlxTransaction<'_>) -> BoxFuture<'t, Result<Response<B>, E>>,
        B: Into<Bytes>,
        E: Into<WorkError>,
    {
        self.once(keyed, &work).await
    }

    async fn once<W, B, E>(&self, keyed: Keyed, work: &W) -> Result<TransactionResult, Failed>
    where
        W: for<'t> Fn(&'t mut SqlxTransaction<'_>) -> BoxFuture<'t, Result<Response<B>, E>>,
        B: Into<Bytes>,
        E: Into<WorkError>,
    {
        self.run_until_known(keyed, async |run| self.attempt(&run, work).await)
            .await
    }

    async fn attempt<W, B, E>(&self, run: &Run, work: &W) -> Result<TransactionResult, Failed>
    where
        W: for<'t> Fn(&'t mut SqlxTransaction<'_>) -> BoxFuture<'t, Result<Response<B>, E>>,
        B: Into<Bytes>,
        E: Into<WorkError>,
    {
        let mut checkout = self.checkout();
        let begins = checkout.begins();
        let connection = self.connection(&mut checkout).await?;
        let transact = async {
            begins.store(true, Ordering::Relaxed);
            let begin = connection.begin_with(begin(self.isolation));
            let transaction = self.limit(begin).await?;
            begins.store(false, Ordering::Relaxed);
            self.transact(transaction, run, |transaction| work(transaction))
                .await
        };
        let done = transact.await;
        Self::settle(checkout, &done);
        done
    }
}

/// Returns the statement that begins a transaction.
const fn begin(isolation: IsolationLevel) -> &'static str {
    match isolation {
        IsolationLevel::ReadUncommitted => "BEGIN ISOLATION LEVEL READ UNCOMMITTED",
        IsolationLevel::RepeatableRead => "BEGIN ISOLATION LEVEL REPEATABLE READ",
        IsolationLevel::Serializable => "BEGIN ISOLATION LEVEL SERIALIZABLE",
        _ => "BEGIN ISOLATION LEVEL READ COMMITTED",
    }
}

impl Transactional<Postgres<PgPool>> {
    /// Runs the work if the key is free, like [`Postgres::transactional`], and otherwise waits for the key. Returns
    /// the response for the client: of the work, replayed, or a rejection.
    ///
    /// # Errors
    /// The error of the work, which is rolled back. [`AlreadyRun`](crate::transactional::AlreadyRun) for the second
    /// call in one request.
    pub async fn run<W, B, E>(&self, work: W) -> Result<Response<Full<Bytes>>, WorkError>
    where
        W: for<'t> Fn(&'t mut SqlxTransaction<'_>) -> BoxFuture<'t, Result<Response<B>, E>>,
        B: Into<Bytes>,
        E: Into<WorkError>,
    {
        self.run_when_free(|| self.store.once(self.keyed, &work))
            .await
    }
}
