//! On PostgreSQL the work gets the transaction: what is the same for each crate that makes them.

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
use relent_core::claim::Lease;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::{Done, ExactlyOnce, ExactlyOnceError, Keyed, WorkError, end};
use crate::postgres::{CommitError, ConnectionError, Connections, Opened, connect, is_passing};
use crate::shares::Principal;
use crate::store::postgres::{Found, Mode, NONE_WRITTEN, PostgresError};
use crate::store::{Claimed, Postgres};

type Failed = ExactlyOnceError<PostgresError>;

/// A transaction that met another one, or whose connection is lost, is run again a few times.
static AGAIN: Policy = Policy::builder(Backoff::exponential(Duration::from_millis(10)))
    .max_delay(Duration::from_millis(500))
    .max_retries(8)
    .build_const();

/// A transaction of another process may have the key: so often a duplicate looks whether it is over. (Of the duplicates in
/// one process only one gets here: the layer lets the others wait.)
const LOOK: Duration = Duration::from_millis(50);

/// One that is run until it is known what came of it.
struct Run {
    keyed: Keyed,
    /// The same each time: a record with it is our own.
    owner: u128,
    /// Whether it has run before: then its own transaction may still have the key.
    again: AtomicBool,
    /// The answer of the last time, while it is not known whether that is committed.
    answer: Mutex<Option<Response<Bytes>>>,
    /// Until then its key is to be claimed, if there is such a limit.
    claim_until: Option<Instant>,
}

impl Run {
    fn keep(&self, response: Option<Response<Bytes>>) -> Option<Response<Bytes>> {
        let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *answer, response)
    }
}

/// Why it has to be run again, or not.
enum Ended {
    Done(Box<Done>),
    Failed(Failed),
}

/// How a transaction goes on when the key is claimed in it.
enum Begun {
    Run(Lease),
    /// It ends, and what it has written is committed.
    Noted(Done),
    /// It ends.
    Over(Done),
}

impl<C: Connections> Postgres<C> {
    /// Makes attempts until it is known what came of one.
    async fn run_until_known<F>(
        &self,
        keyed: Keyed,
        attempt: impl Fn(Arc<Run>) -> F,
    ) -> Result<Done, Failed>
    where
        F: Future<Output = Result<Done, Failed>>,
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
                Err(failed) if passes(&failed) => {
                    run.again.store(true, Ordering::Relaxed);
                    Err(Ended::Failed(failed))
                }
                // The transaction before may still be there, and may be committed.
                Ok(Done::Not(Claimed::InFlight(left))) if run.again.load(Ordering::Relaxed) => {
                    let done = Done::Not(Claimed::InFlight(left));
                    Err(Ended::Done(Box::new(done)))
                }
                ended => Ok(ended),
            }
        };
        match retry(&AGAIN, attempt).await {
            Ok(ended) => ended,
            Err(gave_up) => match gave_up.into_error() {
                Some(Ended::Done(done)) => Ok(*done),
                Some(Ended::Failed(failed)) => Err(failed),
                None => Err(ExactlyOnceError::Store(PostgresError::Contended)),
            },
        }
    }

    /// How long a step may take before the work begins. Nothing has happened until then, unless it has run before.
    fn patience_to_claim(&self, run: &Run) -> Duration {
        match run.claim_until {
            Some(until) if !run.again.load(Ordering::Relaxed) => {
                self.patience.min(until.duration_since(Instant::now()))
            }
            _ => self.patience,
        }
    }

    async fn connection(&self, run: &Run) -> Result<C::Connection, Failed> {
        let connected = connect(&self.pool, self.patience_to_claim(run)).await;
        connected.map_err(|error| ExactlyOnceError::Store(error.into()))
    }

    /// What came of a transaction on this connection.
    fn settle(connection: C::Connection, done: Result<Done, Failed>) -> Result<Done, Failed> {
        if let Err(ExactlyOnceError::Store(PostgresError::Connection(ConnectionError::TimedOut(
            _,
        )))) = done
        {
            // It may never answer.
            C::discard(connection);
        }
        done
    }

    /// One transaction that has begun. If it is left early, it is rolled back.
    async fn transact<T, W, B, E>(
        &self,
        mut transaction: T,
        run: &Run,
        work: W,
    ) -> Result<Done, Failed>
    where
        T: Opened,
        W: for<'t> FnOnce(&'t mut T) -> BoxFuture<'t, Result<Response<B>, E>>,
        B: Into<Bytes>,
        E: Into<WorkError>,
    {
        let lease = match self.begin(&mut transaction, run).await? {
            Begun::Run(lease) => lease,
            Begun::Noted(done) => {
                self.limit(self.patience, transaction.commit()).await?;
                return Ok(done);
            }
            Begun::Over(done) => return Ok(done),
        };
        let response = match work(&mut transaction).await {
            Ok(response) => response.map(Into::into),
            Err(error) => return Err(ExactlyOnceError::Work(error.into())),
        };
        let (response, end) = end(response, &run.keyed);
        let Some(end) = end else {
            // Whoever comes next need not meet it.
            self.limit(self.patience, transaction.rollback()).await?;
            return Ok(Done::Ran(response));
        };
        run.keep(Some(response));
        let Keyed { key, claim, .. } = &run.keyed;
        let commit = self
            .sql
            .write_and_commit(transaction, key, &lease, &end, claim);
        match timeout(self.patience, commit).await {
            Ok(Ok(())) => Ok(run
                .keep(None)
                .map_or(Done::Not(Claimed::Unknown), Done::Ran)),
            // A constraint that is looked at last.
            Ok(Err(CommitError::Commit(error))) if error.refusal().is_some() => {
                Err(ExactlyOnceError::Work(error.into_inner()))
            }
            // The work has changed the record.
            Ok(Err(CommitError::Statement(error)))
                if error.refusal().as_deref() == Some(NONE_WRITTEN) =>
            {
                Err(ExactlyOnceError::Store(PostgresError::Contended))
            }
            // Also if the work has gone on after a statement that failed.
            Ok(Err(CommitError::Statement(error) | CommitError::Commit(error))) => {
                Err(ExactlyOnceError::Store(error.into()))
            }
            Err(_) => {
                let error = ConnectionError::TimedOut(self.patience);
                Err(ExactlyOnceError::Store(error.into()))
            }
        }
    }

    /// Claims the key in the transaction.
    async fn begin(&self, transaction: &mut impl Opened, run: &Run) -> Result<Begun, Failed> {
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
        let limit = self.patience_to_claim(run);
        let Found { claimed, owner } = self.limit(limit, claim).await?;
        Ok(match claimed {
            Claimed::Run { lease, .. } => Begun::Run(lease),
            Claimed::Replay(answer) if owner == Some(run.owner) => {
                Begun::Over(match run.keep(None) {
                    Some(response) => Done::Ran(response),
                    None => Done::Not(Claimed::Replay(answer)),
                })
            }
            // It may have been written down as such just now, for whoever looks for those.
            Claimed::Unknown => Begun::Noted(Done::Not(Claimed::Unknown)),
            other => Begun::Over(Done::Not(other)),
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
        done.map_err(ExactlyOnceError::Store)
    }
}

/// Whether it may do better if it is run again.
fn passes(failed: &Failed) -> bool {
    match failed {
        ExactlyOnceError::Work(error) => is_passing(&**error as &(dyn Error + 'static)),
        ExactlyOnceError::Store(error) => is_passing(error),
    }
}

impl<C: Connections> ExactlyOnce<Postgres<C>> {
    /// Runs it, and waits for another one that has the key.
    async fn run_in_turn<F>(&self, run: impl Fn() -> F) -> Result<Response<Full<Bytes>>, WorkError>
    where
        F: Future<Output = Result<Done, Failed>>,
    {
        self.begin()?;
        let mut waits = None;
        loop {
            let done = run().await;
            let now = Instant::now();
            if !matches!(done, Ok(Done::Not(Claimed::InFlight(_)))) || now >= self.until {
                return self.respond(done);
            }
            if waits.is_none() {
                waits = self.common.waiters.take(&Principal::default(), 1);
            }
            if waits.is_none() {
                return self.respond(done);
            }
            sleep(LOOK.min(self.until - now)).await;
        }
    }
}
