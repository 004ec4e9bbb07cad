//! Transactional requests with transactions of tokio-postgres.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Response;
use http_body_util::Full;

use super::{Failed, Run};
use crate::postgres::Transaction;
use crate::store::Postgres;
use crate::transactional::{Keyed, TransactionResult, Transactional, WorkError};

impl Postgres {
    /// Runs the work if the key is free, in the transaction of its record and response. Meanwhile other requests with
    /// this key immediately get [`Claimed::InFlight`](crate::store::Claimed::InFlight), and hold no connection. This
    /// uses an advisory lock of the transaction, with a number derived from the key.
    ///
    /// The work may run again: see the [module](crate::transactional).
    ///
    /// # Errors
    /// The error of the work, or of the store.
    pub async fn transactional<W, B, E>(
        &self,
        keyed: Keyed,
        work: W,
    ) -> Result<TransactionResult, Failed>
    where
        W: for<'t> Fn(&'t Transaction<'_>) -> BoxFuture<'t, Result<Response<B>, E>>,
        B: Into<Bytes>,
        E: Into<WorkError>,
    {
        self.once(keyed, &work).await
    }

    async fn once<W, B, E>(&self, keyed: Keyed, work: &W) -> Result<TransactionResult, Failed>
    where
        W: for<'t> Fn(&'t Transaction<'_>) -> BoxFuture<'t, Result<Response<B>, E>>,
        B: Into<Bytes>,
        E: Into<WorkError>,
    {
        self.run_until_known(keyed, async |run| self.attempt(&run, work).await)
            .await
    }

    async fn attempt<W, B, E>(&self, run: &Run, work: &W) -> Result<TransactionResult, Failed>
    where
        W: for<'t> Fn(&'t Transaction<'_>) -> BoxFuture<'t, Result<Response<B>, E>>,
        B: Into<Bytes>,
        E: Into<WorkError>,
    {
        let mut checkout = self.checkout();
        let client = self.connection(&mut checkout).await?;
        let transact = async {
            let begin = client.build_transaction().isolation_level(self.isolation);
            let transaction = self.limit(begin.start()).await?;
            self.transact(transaction, run, |transaction| work(transaction))
                .await
        };
        let done = transact.await;
        Self::settle(checkout, &done);
        done
    }
}

impl Transactional<Postgres> {
    /// Runs the work if the key is free, like [`Postgres::transactional`], and otherwise waits for the key. Returns
    /// the response for the client: of the work, replayed, or a rejection.
    ///
    /// # Errors
    /// The error of the work, which is rolled back. [`AlreadyRun`](crate::transactional::AlreadyRun) for the second
    /// call in one request.
    pub async fn run<W, B, E>(&self, work: W) -> Result<Response<Full<Bytes>>, WorkError>
    where
        W: for<'t> Fn(&'t Transaction<'_>) -> BoxFuture<'t, Result<Response<B>, E>>,
        B: Into<Bytes>,
        E: Into<WorkError>,
    {
        self.run_when_free(|| self.store.once(self.keyed, &work))
            .await
    }
}
