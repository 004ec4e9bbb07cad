//! On PostgreSQL the work gets the transaction.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Response;
use http_body_util::Full;
use relent::{Backoff, Policy, retry};
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::{Done, ExactlyOnce, ExactlyOnceError, Keyed, WorkError, end};
use crate::postgres::{Client, ConnectionError, Transaction, connect, is_passing};
use crate::store::postgres::{Found, PostgresError};
use crate::store::{Claimed, Postgres, WriteError};

type Failed = ExactlyOnceError<PostgresError>;

/// A transaction that met another one, or whose connection is lost, is run again a few times.
static AGAIN: Policy = Policy::builder(Backoff::exponential(Duration::from_millis(10)))
    .max_delay(Duration::from_millis(500))
    .max_retries(8)
    .build_const();

/// A transaction of another process may have the key: so often a duplicate looks whether it is over.
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

impl Postgres {
    /// Runs the work if the key is free, in the transaction that its record and its answer are written in. While it
    /// runs, others with this key hear so at once ([`Claimed::InFlight`]) and hold no connection: it has an advisory
    /// lock of its transaction, whose number is made of the key.
    ///
    /// The work may run again: see the [module](super).
    ///
    /// # Errors
    /// That of the work, or of the store.
    pub async fn exactly_once<W, B, E>(&self, keyed: Keyed, work: W) -> Result<Done, Failed>
    where
        W: for<'t> Fn(&'t Transaction<'_>) -> BoxFuture<'t, Result<Response<B>, E>>,
        B: Into<Bytes>,
        E: Into<WorkError>,
    {
        self.exactly_once_after(keyed, &|| {}, &work).await
    }

    /// `begin` is called when the key is claimed, before the work.
    async fn exactly_once_after<W, B, E>(
        &self,
        keyed: Keyed,
        begin: &(dyn Fn() + Sync),
        work: &W,
    ) -> Result<Done, Failed>
    where
        W: for<'t> Fn(&'t Transaction<'_>) -> BoxFuture<'t, Result<Response<B>, E>>,
        B: Into<Bytes>,
        E: Into<WorkError>,
    {
        self.count_claim();
        let run = Run {
            keyed,
            owner: Uuid::new_v4().as_u128(),
            again: AtomicBool::new(false),
            answer: Mutex::new(None),
        };
        let attempt = || async {
            match self.attempt(&run, begin, work).await {
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

    async fn attempt<W, B, E>(
        &self,
        run: &Run,
        begin: &(dyn Fn() + Sync),
        work: &W,
    ) -> Result<Done, Failed>
    where
        W: for<'t> Fn(&'t Transaction<'_>) -> BoxFuture<'t, Result<Response<B>, E>>,
        B: Into<Bytes>,
        E: Into<WorkError>,
    {
        let connected = connect(&self.pool, self.patience).await;
        let mut client = connected.map_err(|error| ExactlyOnceError::Store(error.into()))?;
        let done = self.transact(&mut client, run, begin, work).await;
        if let Err(ExactlyOnceError::Store(PostgresError::Connection(ConnectionError::TimedOut(
            _,
        )))) = done
        {
            // It may never answer.
            drop(Client::take(client));
        }
        done
    }

    /// One transaction. If it is left early, it is rolled back.
    async fn transact<W, B, E>(
        &self,
        client: &mut Client,
        run: &Run,
        begin: &(dyn Fn() + Sync),
        work: &W,
    ) -> Result<Done, Failed>
    where
        W: for<'t> Fn(&'t Transaction<'_>) -> BoxFuture<'t, Result<Response<B>, E>>,
        B: Into<Bytes>,
        E: Into<WorkError>,
    {
        let Keyed {
            key,
            fingerprint,
            claim: config,
            max_answer,
        } = run.keyed;
        let (key, config) = (&key, &config);
        let statements = self.sql.prepare(client, true);
        let statements = self.limit(statements).await?;
        let start = client.build_transaction().isolation_level(self.isolation);
        let transaction = self.limit(start.start()).await?;
        let claim = statements.claim(transaction.client(), key, run.owner, fingerprint, config);
        let Found { claimed, owner } = self.limit(claim).await?;
        let lease = match claimed {
            Claimed::Run { lease, .. } => lease,
            Claimed::Replay(answer) if owner == Some(run.owner) => {
                return Ok(match run.keep(None) {
                    Some(response) => Done::Ran(response),
                    None => Done::Not(Claimed::Replay(answer)),
                });
            }
            Claimed::Unknown => {
                // It may have been written down as such just now, for whoever looks for those.
                let commit = async { transaction.commit().await.map_err(PostgresError::from) };
                self.limit(commit).await?;
                return Ok(Done::Not(Claimed::Unknown));
            }
            other => return Ok(Done::Not(other)),
        };
        begin();
        let response = match work(&transaction).await {
            Ok(response) => response.map(Into::into),
            Err(error) => return Err(ExactlyOnceError::Work(error.into())),
        };
        let (response, end) = end(response, max_answer);
        let Some(end) = end else {
            // Whoever comes next need not meet it.
            self.limit(transaction.rollback()).await?;
            return Ok(Done::Ran(response));
        };
        // If the work has gone on after a statement that failed, this one fails, too.
        let write = async {
            let client = transaction.client();
            match statements.write(client, key, &lease, &end, config).await {
                Ok(_) => Ok(()),
                Err(WriteError::Store(error)) => Err(error),
                // The work has changed the record.
                Err(WriteError::Lost | WriteError::Gone) => Err(PostgresError::Contended),
            }
        };
        self.limit(write).await?;
        run.keep(Some(response));
        let commit = async { transaction.commit().await.map_err(PostgresError::from) };
        match self.limit(commit).await {
            Ok(()) => Ok(run
                .keep(None)
                .map_or(Done::Not(Claimed::Unknown), Done::Ran)),
            // A constraint that is looked at last.
            Err(ExactlyOnceError::Store(PostgresError::Connection(ConnectionError::Postgres(
                error,
            )))) if error.as_db_error().is_some() => Err(ExactlyOnceError::Work(error.into())),
            Err(failed) => Err(failed),
        }
    }

    async fn limit<T, E: Into<PostgresError>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Failed> {
        let done = match timeout(self.patience, work).await {
            Ok(done) => done.map_err(Into::into),
            Err(_) => Err(ConnectionError::TimedOut(self.patience).into()),
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

impl ExactlyOnce<Postgres> {
    /// Runs the work if the key is free, as [`Postgres::exactly_once`], and waits for another one that has the
    /// key; the answer for the client, whether it ran, was replayed or is refused.
    ///
    /// # Errors
    /// That of the work, which is rolled back.
    pub async fn run<W, B, E>(&self, work: W) -> Result<Response<Full<Bytes>>, WorkError>
    where
        W: for<'t> Fn(&'t Transaction<'_>) -> BoxFuture<'t, Result<Response<B>, E>>,
        B: Into<Bytes>,
        E: Into<WorkError>,
    {
        self.set_used();
        let key = self.keyed.key;
        let running = Mutex::new(None);
        // From then on duplicates in this process are told when it is over.
        let begin = || {
            let begun = self.common.running.begin(key);
            *running.lock().unwrap_or_else(PoisonError::into_inner) = Some(begun);
        };
        let mut waits = None;
        loop {
            let done = self.store.exactly_once_after(self.keyed, &begin, &work);
            let done = done.await;
            drop(
                running
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take(),
            );
            let now = Instant::now();
            if !matches!(done, Ok(Done::Not(Claimed::InFlight(_)))) || now >= self.until {
                return self.respond(done);
            }
            if waits.is_none() {
                waits = self.common.waiters.try_acquire().ok();
            }
            if waits.is_none() {
                return self.respond(done);
            }
            tokio::select! {
                () = self.common.running.over(&key) => {}
                () = sleep(LOOK.min(self.until - now)) => {}
            }
        }
    }
}
