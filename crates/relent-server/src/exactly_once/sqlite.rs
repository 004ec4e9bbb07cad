//! On SQLite the work is a closure on the thread that writes.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use rusqlite::Connection;
use uuid::Uuid;

use super::{Done, ExactlyOnce, ExactlyOnceError, Keyed, WorkError, end};
use crate::sqlite::WriterError;
use crate::store::sqlite::{claim, now, write};
use crate::store::{Claimed, Sqlite, SqliteError, WriteError};

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
        let latest = Arc::clone(&self.latest);
        let owner = Uuid::new_v4().as_u128();
        let job = move |connection: &Connection| {
            let Keyed {
                key,
                fingerprint,
                claim: config,
                ..
            } = keyed;
            let now = now(&latest);
            let claimed = claim(connection, now, &key, owner, fingerprint, &config)?;
            let Claimed::Run { lease, .. } = claimed else {
                return Ok(Done::Not(claimed));
            };
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
            match write(connection, now, &key, &lease, &end, &config) {
                Ok(_) => Ok(Done::Ran(response)),
                Err(WriteError::Store(error)) => Err(error.into()),
                // Else its effects would be there without the record, and come again.
                Err(WriteError::Lost | WriteError::Gone) => Err(Undone::Failed(
                    ExactlyOnceError::Work("the work has changed the record of its own key".into()),
                )),
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
