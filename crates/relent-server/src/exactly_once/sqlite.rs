//! On SQLite the work is a closure on the thread that writes.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use relent_core::claim::LeaseLost;
use rusqlite::Connection;
use uuid::Uuid;

use super::{Done, ExactlyOnce, ExactlyOnceError, Keyed, WorkError, end};
use crate::sqlite::WriterError;
use crate::store::sqlite::{Found, find, put, put_first, read};
use crate::store::{Claimed, Sqlite, SqliteError};

/// Why a savepoint is rolled back.
enum Undone {
    /// The answer says so.
    Answered(Box<Response<Bytes>>),
    Failed(ExactlyOnceError<SqliteError>),
}

impl From<WriterError> for Undone {
    fn from(error: WriterError) -> Self {
        match error {
            // It will do so whenever it runs.
            WriterError::TransactionEnded => Self::Failed(ExactlyOnceError::Work(error.into())),
            error => SqliteError::from(error).into(),
        }
    }
}

impl From<SqliteError> for Undone {
    fn from(error: SqliteError) -> Self {
        Self::Failed(ExactlyOnceError::Store(error))
    }
}

impl Sqlite {
    /// Runs the work if the key is free, in the transaction that its record and its answer are written in. The work
    /// runs on the thread that writes, and everybody else waits for it: it had better be short.
    ///
    /// # Errors
    /// That of the work, or of the store.
    pub async fn exactly_once<B, E>(
        &self,
        keyed: Keyed,
        work: impl FnOnce(&Connection) -> Result<Response<B>, E> + Send + 'static,
    ) -> Result<Done, ExactlyOnceError<SqliteError>>
    where
        B: Into<Bytes> + 'static,
        E: Into<WorkError> + 'static,
    {
        let seen = Arc::clone(&self.seen);
        let owner = Uuid::new_v4().as_u128();
        let job = move |connection: &Connection| {
            let Keyed {
                key,
                fingerprint,
                claim: config,
                ..
            } = keyed;
            let now = seen.claim(connection).map_err(SqliteError::from)?;
            let Found {
                claimed,
                before,
                change,
            } = find(connection, now, &key, owner, fingerprint, &config)?;
            let (Claimed::Run { lease, .. }, Some(running)) = (&claimed, change.or(before)) else {
                if let Some(record) = change {
                    put(connection, &key, &record, None).map_err(SqliteError::from)?;
                }
                return Ok(Done::Not(claimed));
            };
            // Nobody else writes or sees this transaction, so that the key is claimed need not be written.
            let response = match work(connection) {
                Ok(response) => response.map(Into::into),
                Err(error) => {
                    return Err(Undone::Failed(ExactlyOnceError::Work(error.into())));
                }
            };
            let (response, end) = end(response, &keyed);
            let Some(end) = end else {
                return Err(Undone::Answered(Box::new(response)));
            };
            // By the time of the claim: nothing can have come in between.
            let recorded = match (end.make(&running, now, lease, &config), before) {
                (Err(LeaseLost), _) => Ok(false),
                (Ok((record, _)), None) => {
                    put_first(connection, &key, &record, end.answer().as_deref())
                }
                (Ok((record, _)), Some(before)) => {
                    let same = read(connection, &key)?.is_some_and(|(record, _)| record == before);
                    if same {
                        put(connection, &key, &record, end.answer().as_deref())
                            .map_err(SqliteError::from)?;
                    }
                    Ok(same)
                }
            };
            if recorded.map_err(SqliteError::from)? {
                Ok(Done::Ran(response))
            } else {
                // Else its effects would be there without the record, and come again.
                Err(Undone::Failed(ExactlyOnceError::Work(
                    "the work has changed the record of its own key".into(),
                )))
            }
        };
        match self.writer.run(job).await {
            Ok(done) => Ok(done),
            Err(Undone::Answered(response)) => Ok(Done::Ran(*response)),
            Err(Undone::Failed(error)) => Err(error),
        }
    }
}

impl ExactlyOnce<Sqlite> {
    /// Runs the work if the key is free, as [`Sqlite::exactly_once`]; the answer for the client, whether it
    /// ran, was replayed or is refused.
    ///
    /// # Errors
    /// That of the work, which is rolled back.
    pub async fn run<B, E>(
        &self,
        work: impl FnOnce(&Connection) -> Result<Response<B>, E> + Send + 'static,
    ) -> Result<Response<Full<Bytes>>, WorkError>
    where
        B: Into<Bytes> + 'static,
        E: Into<WorkError> + 'static,
    {
        self.set_used();
        self.respond(self.store.exactly_once(self.keyed, work).await)
    }
}
