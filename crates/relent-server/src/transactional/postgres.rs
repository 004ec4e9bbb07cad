//! Transactional requests on PostgreSQL: code shared by the supported drivers.

mod deadpool;
#[cfg(feature = "sqlx")]
mod sqlx;

use std::error::Error;
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Response;
use http_body_util::Full;
use relent::{Backoff, Policy, retry};
use relent_core::idempotency::Lease;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::{Keyed, TransactionResult, Transactional, TransactionalError, WorkError, end};
use crate::fair_shares::Principal;
use crate::postgres::{
    Checkout, CommitError, ConnectionError, Connections, OfConnection, SqlTransaction, is_transient,
};
use crate::store::postgres::{Found, Mode, NONE_WRITTEN, PostgresError};
use crate::store::{Claimed, Postgres};

type Failed = TransactionalError<PostgresError>;

/// Retries a transaction after a conflict or a lost connection.
static TRANSACTION_RETRIES: Policy =
    Policy::builder(Backoff::exponential(Duration::from_millis(10)))
        .max_delay(Duration::from_millis(500))
        .max_retries(8)
        .build_const();

/// The interval at which a duplicate checks whether the transaction of another process has ended. (The layer lets
/// only one duplicate per process check.)
const KEY_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The time in which a connection has to be free after its request was dropped, or its work failed. A statement of the
/// work may run much longer. Shorter than a claim, so that the next request can wait for a new connection.
const DROPPED_LIMIT: Duration = Duration::from_millis(500);

/// A request that is repeated until its result is known.
struct Run {
    keyed: Keyed,
    /// Equal in each attempt: a record with this owner is our own.
    owner: u128,
    /// Whether an earlier attempt was made: its transaction may still hold the key.
    again: AtomicBool,
    /// Whether an attempt has claimed the key: from then on a transaction may be committed.
    claimed: AtomicBool,
    /// The response of the latest attempt, while its commit is in doubt.
    answer: Mutex<Option<Response<Bytes>>>,
    /// The result of the latest attempt that is repeated.
    latest: Mutex<Option<Result<TransactionResult, Failed>>>,
}

impl Run {
    fn keep(&self, response: Option<Response<Bytes>>) -> Option<Response<Bytes>> {
        let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *answer, response)
    }

    fn latest(&self) -> MutexGuard<'_, Option<Result<TransactionResult, Failed>>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Completes when the time for the claim is over. After a claim it never does: a transaction that may be committed
    /// is repeated until its result is known.
    async fn claim_expired(&self) {
        if let Some(limit) = self.keyed.claim_limit {
            sleep(limit).await;
            if !self.claimed.load(Ordering::Relaxed) {
                return;
            }
        }
        pending::<()>().await;
    }
}

/// The attempt is repeated; the request has its result.
struct Again;

/// The result of claiming the key in the transaction.
enum ClaimStep {
    Run(Lease),
    /// The transaction ends, and the change of the record is committed.
    Noted(TransactionResult),
    /// The transaction ends without a change.
    Over(TransactionResult),
}

impl<C: Connections> Postgres<C> {
    /// Makes attempts until the result of one is known.
    async fn run_until_known<F>(
        &self,
        keyed: Keyed,
        attempt: impl Fn(Arc<Run>) -> F,
    ) -> Result<TransactionResult, Failed>
    where
        F: Future<Output = Result<TransactionResult, Failed>>,
    {
        self.count_claim();
        let run = Arc::new(Run {
            keyed,
            owner: Uuid::new_v4().as_u128(),
            again: AtomicBool::new(false),
            claimed: AtomicBool::new(false),
            answer: Mutex::new(None),
            latest: Mutex::new(None),
        });
        let attempt = || async {
            let done = attempt(Arc::clone(&run)).await;
            let again = match &done {
                Err(failed) if is_transient_failure(failed) => {
                    run.again.store(true, Ordering::Relaxed);
                    true
                }
                // The transaction of the earlier attempt may still run, and may commit.
                Ok(TransactionResult::Not(Claimed::InFlight(_))) => {
                    run.again.load(Ordering::Relaxed)
                }
                _ => false,
            };
            if !again {
                return Ok(done);
            }
            *run.latest() = Some(done);
            Err(Again)
        };
        let ended = tokio::select! {
            biased;
            ended = retry(&TRANSACTION_RETRIES, attempt) => ended.ok(),
            () = run.claim_expired() => None,
        };
        ended.or_else(|| run.latest().take()).unwrap_or_else(|| {
            let limit = keyed.claim_limit.unwrap_or(self.max_wait);
            let error = ConnectionError::TimedOut(limit);
            Err(TransactionalError::Store(error.into()))
        })
    }

    /// Prepares to take a connection, which may be dropped while it runs a statement of the work.
    fn checkout(&self) -> Checkout<C> {
        Checkout::new(self.max_wait.min(DROPPED_LIMIT))
    }

    async fn connection<'c>(
        &self,
        checkout: &'c mut Checkout<C>,
    ) -> Result<&'c mut C::Connection, Failed> {
        let connected = checkout.connect_within(&self.pool, self.max_wait).await;
        connected.map_err(|error| TransactionalError::Store(error.into()))
    }

    /// Ends with the result of a transaction. A connection that is of no more use leaves the pool.
    fn settle(checkout: Checkout<C>, done: &Result<TransactionResult, Failed>) {
        match done {
            // The work may have given up on a statement that still runs.
            Err(TransactionalError::Work(_)) => drop(checkout),
            Err(TransactionalError::Store(error)) => checkout.end(error.connection_error()),
            Ok(_) => checkout.end(None),
        }
    }

    /// Runs one transaction. If it is dropped early, it is rolled back.
    async fn transact<T, W, B, E>(
        &self,
        mut transaction: T,
        run: &Run,
        work: W,
    ) -> Result<TransactionResult, Failed>
    where
        T: SqlTransaction,
        W: for<'t> FnOnce(&'t mut T) -> BoxFuture<'t, Result<Response<B>, E>>,
        B: Into<Bytes>,
        E: Into<WorkError>,
    {
        let lease = match self.begin(&mut transaction, run).await? {
            ClaimStep::Run(lease) => lease,
            ClaimStep::Noted(done) => {
                self.limit(transaction.commit()).await?;
                return Ok(done);
            }
            ClaimStep::Over(done) => return Ok(done),
        };
        let response = match work(&mut transaction).await {
            Ok(response) => response.map(Into::into),
            Err(error) => return Err(TransactionalError::Work(error.into())),
        };
        let (response, end) = end(response, &run.keyed);
        let Some(end) = end else {
            // Roll back explicitly, so that the next request with this key does not wait for our lock.
            self.limit(transaction.rollback()).await?;
            return Ok(TransactionResult::Ran(response));
        };
        run.keep(Some(response));
        let Keyed { key, claim, .. } = &run.keyed;
        let commit = self
            .sql
            .write_and_commit(transaction, key, &lease, &end, claim);
        match timeout(self.max_wait, commit).await {
            Ok(Ok(())) => Ok(run.keep(None).map_or(
                TransactionResult::Not(Claimed::Unknown),
                TransactionResult::Ran,
            )),
            // A deferred constraint failed at the commit.
            Ok(Err(CommitError::Commit(error))) if error.refusal().is_some() => {
                Err(TransactionalError::Work(error.into_inner()))
            }
            // The work has changed the record.
            Ok(Err(CommitError::Statement(error)))
                if error.refusal().as_deref() == Some(NONE_WRITTEN) =>
            {
                Err(TransactionalError::Store(PostgresError::Contended))
            }
            // Includes work that continued after a failed statement.
            Ok(Err(CommitError::Statement(error) | CommitError::Commit(error))) => {
                Err(TransactionalError::Store(error.into()))
            }
            Err(_) => {
                let error = ConnectionError::TimedOut(self.max_wait);
                Err(TransactionalError::Store(error.into()))
            }
        }
    }

    /// Claims the key in the transaction.
    async fn begin(
        &self,
        transaction: &mut impl SqlTransaction,
        run: &Run,
    ) -> Result<ClaimStep, Failed> {
        let Keyed {
            key,
            fingerprint,
            claim: config,
            ..
        } = &run.keyed;
        let claim = self.sql.claim(
            transaction,
            Mode::Locked,
            key,
            run.owner,
            *fingerprint,
            config,
        );
        let Found { claimed, owner } = self.limit(claim).await?;
        Ok(match claimed {
            Claimed::Run { lease, .. } => {
                run.claimed.store(true, Ordering::Relaxed);
                ClaimStep::Run(lease)
            }
            Claimed::Replay(answer) if owner == Some(run.owner) => {
                ClaimStep::Over(match run.keep(None) {
                    Some(response) => TransactionResult::Ran(response),
                    None => TransactionResult::Not(Claimed::Replay(answer)),
                })
            }
            // The claim may have just recorded the outcome as unknown, for `find_unknown`.
            Claimed::Unknown => ClaimStep::Noted(TransactionResult::Not(Claimed::Unknown)),
            other => ClaimStep::Over(TransactionResult::Not(other)),
        })
    }

    async fn limit<T, E: Into<PostgresError>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Failed> {
        let done = match timeout(self.max_wait, work).await {
            Ok(done) => done.map_err(Into::into),
            Err(_) => Err(ConnectionError::TimedOut(self.max_wait).into()),
        };
        done.map_err(TransactionalError::Store)
    }
}

/// Returns whether the failure is transient.
fn is_transient_failure(failed: &Failed) -> bool {
    match failed {
        TransactionalError::Work(error) => is_transient(&**error as &(dyn Error + 'static)),
        TransactionalError::Store(error) => is_transient(error),
    }
}

impl<C: Connections> Transactional<Postgres<C>> {
    /// Runs the request, and waits while another one has the key.
    async fn run_when_free<F>(
        &self,
        run: impl Fn() -> F,
    ) -> Result<Response<Full<Bytes>>, WorkError>
    where
        F: Future<Output = Result<TransactionResult, Failed>>,
    {
        self.begin()?;
        let mut waits = None;
        loop {
            let done = run().await;
            let now = Instant::now();
            if !matches!(done, Ok(TransactionResult::Not(Claimed::InFlight(_))))
                || now >= self.until
            {
                return self.respond(done);
            }
            if waits.is_none() {
                waits = self.common.waiters.take(&Principal::default(), 1);
            }
            if waits.is_none() {
                return self.respond(done);
            }
            sleep(KEY_POLL_INTERVAL.min(self.until - now)).await;
        }
    }
}
