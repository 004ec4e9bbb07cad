//! Transactional requests on PostgreSQL: code shared by the supported drivers.

mod deadpool;
#[cfg(feature = "sqlx")]
mod sqlx;

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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
use crate::postgres::{
    Checkout, CommitError, ConnectionError, Connections, OfConnection, SqlTransaction, is_transient,
};
use crate::shares::Principal;
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
    /// The response of the latest attempt, while its commit is in doubt.
    answer: Mutex<Option<Response<Bytes>>>,
    /// The time limit for claiming the key, if any.
    claim_until: Option<Instant>,
}

impl Run {
    fn keep(&self, response: Option<Response<Bytes>>) -> Option<Response<Bytes>> {
        let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *answer, response)
    }
}

/// The result of an attempt that is repeated.
enum AttemptFailure {
    TransactionResult(Box<TransactionResult>),
    Failed(Failed),
}

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
            answer: Mutex::new(None),
            claim_until: keyed.claim_limit.map(|limit| Instant::now() + limit),
        });
        let attempt = || async {
            match attempt(Arc::clone(&run)).await {
                Err(failed) if is_transient_failure(&failed) => {
                    run.again.store(true, Ordering::Relaxed);
                    Err(AttemptFailure::Failed(failed))
                }
                // The transaction of the earlier attempt may still run, and may commit.
                Ok(TransactionResult::Not(Claimed::InFlight(left)))
                    if run.again.load(Ordering::Relaxed) =>
                {
                    let done = TransactionResult::Not(Claimed::InFlight(left));
                    Err(AttemptFailure::TransactionResult(Box::new(done)))
                }
                ended => Ok(ended),
            }
        };
        match retry(&TRANSACTION_RETRIES, attempt).await {
            Ok(ended) => ended,
            Err(gave_up) => match gave_up.into_error() {
                Some(AttemptFailure::TransactionResult(done)) => Ok(*done),
                Some(AttemptFailure::Failed(failed)) => Err(failed),
                None => Err(TransactionalError::Store(PostgresError::Contended)),
            },
        }
    }

    /// Returns the limit for a step before the work starts. After the first attempt it is no longer the limit of the
    /// claim.
    fn claim_timeout(&self, run: &Run) -> Duration {
        match run.claim_until {
            Some(until) if !run.again.load(Ordering::Relaxed) => {
                self.max_wait.min(until.duration_since(Instant::now()))
            }
            _ => self.max_wait,
        }
    }

    /// Prepares to take a connection, which may be dropped while it runs a statement of the work.
    fn checkout(&self) -> Checkout<C> {
        Checkout::new(self.max_wait.min(DROPPED_LIMIT))
    }

    async fn connection<'c>(
        &self,
        checkout: &'c mut Checkout<C>,
        run: &Run,
    ) -> Result<&'c mut C::Connection, Failed> {
        let connected = checkout.connect_within(&self.pool, self.claim_timeout(run));
        let connected = connected.await;
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
                self.limit(self.max_wait, transaction.commit()).await?;
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
            self.limit(self.max_wait, transaction.rollback()).await?;
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
        let limit = self.claim_timeout(run);
        let Found { claimed, owner } = self.limit(limit, claim).await?;
        Ok(match claimed {
            Claimed::Run { lease, .. } => ClaimStep::Run(lease),
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
        limit: Duration,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Failed> {
        let done = match timeout(limit, work).await {
            Ok(done) => done.map_err(Into::into),
            Err(_) => Err(ConnectionError::TimedOut(limit).into()),
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
