//! Transactional requests on SQLite: the work is a closure that runs on the writer thread.

use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use rusqlite::Connection;
use tokio::sync::oneshot;
use tokio::time::timeout;
use uuid::Uuid;

use super::{Keyed, TransactionResult, Transactional, TransactionalError, WorkError, end};
use crate::sqlite::{WriterError, WriterSession};
use crate::store::sqlite::Found;
use crate::store::{Claimed, Sqlite, SqliteError};

/// The reason why a savepoint is rolled back.
enum Undone {
    /// The response is not final.
    Answered(Box<Response<Bytes>>),
    Failed(TransactionalError<SqliteError>),
}

impl From<WriterError> for Undone {
    fn from(error: WriterError) -> Self {
        match error {
            // The work will fail again whenever it runs.
            WriterError::TransactionEnded => Self::Failed(TransactionalError::Work(error.into())),
            error => SqliteError::from(error).into(),
        }
    }
}

impl From<SqliteError> for Undone {
    fn from(error: SqliteError) -> Self {
        Self::Failed(TransactionalError::Store(error))
    }
}

impl Sqlite {
    /// Runs the work if the key is free, in the transaction of its record and response. It runs on the writer thread
    /// and blocks all other writers, so keep it short. If the future is dropped before the thread begins, nothing runs;
    /// afterwards the transaction completes.
    ///
    /// # Errors
    /// The error of the work, or of the store.
    pub async fn transactional<B, E>(
        &self,
        keyed: Keyed,
        work: impl FnOnce(&Connection) -> Result<Response<B>, E> + Send + 'static,
    ) -> Result<TransactionResult, TransactionalError<SqliteError>>
    where
        B: Into<Bytes> + 'static,
        E: Into<WorkError> + 'static,
    {
        let seen = Arc::clone(&self.seen);
        let owner = Uuid::new_v4().as_u128();
        let limit = keyed.claim_limit;
        let until = limit.map(|limit| Instant::now() + limit);
        // Either the job begins, or its caller gives up: a value cannot be sent after the receiver is closed.
        let (begin, mut begun) = oneshot::channel();
        let job = move |session: &mut WriterSession<'_>| {
            let is_late = until.is_some_and(|until| Instant::now() >= until);
            if is_late || begin.send(()).is_err() {
                return Err(SqliteError::TimedOut(limit.unwrap_or_default()).into());
            }
            let Keyed {
                key,
                fingerprint,
                claim: config,
                ..
            } = keyed;
            let records = &mut session.records;
            let claim = seen.claim(records, &config);
            let (now, config) = claim.map_err(SqliteError::from)?;
            let Found {
                claimed,
                before,
                change,
            } = records.find(now, &key, owner, fingerprint, &config)?;
            let (Claimed::Run { lease, .. }, Some(running)) = (&claimed, change.or(before)) else {
                if let Some(record) = change {
                    records
                        .put(&key, &record, None)
                        .map_err(SqliteError::from)?;
                }
                return Ok(TransactionResult::Not(claimed));
            };
            // No other connection sees this transaction, so the claim itself need not be written.
            let (response, end) = session.savepoint(|connection| {
                let response = work(connection)
                    .map_err(|error| Undone::Failed(TransactionalError::Work(error.into())))?;
                match end(response.map(Into::into), &keyed) {
                    (response, Some(end)) => Ok((response, end)),
                    (response, None) => Err(Undone::Answered(Box::new(response))),
                }
            })?;
            // An error from here on rolls the whole transaction back. Otherwise the effects would be committed
            // without the record, and a duplicate would repeat them.
            let records = &mut session.records;
            let mut recorded = || {
                // At the time of the claim: no other change can have come in between.
                let Ok((record, _)) = end.make(&running, now, lease, &config) else {
                    return Ok(false);
                };
                let answer = end.answer();
                match before {
                    None => Ok(records.put_first(&key, &record, answer.as_deref())?),
                    Some(before) => {
                        let same = records
                            .read(&key)?
                            .is_some_and(|(record, _)| record == before);
                        if same {
                            records.put(&key, &record, answer.as_deref())?;
                        }
                        Ok::<_, SqliteError>(same)
                    }
                }
            };
            match recorded() {
                Ok(true) => Ok(TransactionResult::Ran(response)),
                Ok(false) => {
                    session.undo();
                    Err(Undone::Failed(TransactionalError::Work(
                        "the work has changed the record of its own key".into(),
                    )))
                }
                Err(error) => {
                    session.undo();
                    Err(error.into())
                }
            }
        };
        let mut run = pin!(self.writer.run_in(job));
        let ended = match limit {
            Some(limit) => match timeout(limit, &mut run).await {
                Ok(ended) => ended,
                Err(_) => {
                    begun.close();
                    if begun.try_recv().is_err() {
                        return Err(TransactionalError::Store(SqliteError::TimedOut(limit)));
                    }
                    // It may be committed.
                    run.await
                }
            },
            None => run.await,
        };
        match ended {
            Ok(done) => Ok(done),
            Err(Undone::Answered(response)) => Ok(TransactionResult::Ran(*response)),
            Err(Undone::Failed(error)) => Err(error),
        }
    }
}

impl Transactional<Sqlite> {
    /// Runs the work if the key is free, like [`Sqlite::transactional`]. Returns the response for the client: of the
    /// work, replayed, or a rejection.
    ///
    /// # Errors
    /// The error of the work, which is rolled back. [`AlreadyRun`](super::AlreadyRun) for the second call in one
    /// request.
    pub async fn run<B, E>(
        &self,
        work: impl FnOnce(&Connection) -> Result<Response<B>, E> + Send + 'static,
    ) -> Result<Response<Full<Bytes>>, WorkError>
    where
        B: Into<Bytes> + 'static,
        E: Into<WorkError> + 'static,
    {
        self.begin()?;
        self.respond(self.store.transactional(self.keyed, work).await)
    }
}
