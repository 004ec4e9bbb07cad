//! Errors of the SQLite store.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::sqlite::WriterError;
use crate::store::{ResolveError, WriteError};

/// An error of the SQLite store.
#[derive(Debug)]
#[non_exhaustive]
pub enum SqliteError {
    /// The record could not be written.
    Writer(WriterError),
    /// A record is not in the format of this version.
    Record(Box<dyn Error + Send + Sync>),
    /// A transactional request has waited this long for the writer, and is not run.
    TimedOut(Duration),
}

impl fmt::Display for SqliteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Writer(error) => error.fmt(f),
            Self::Record(error) => write!(f, "the record of an idempotency key: {error}"),
            Self::TimedOut(limit) => write!(f, "SQLite has not begun the work within {limit:?}"),
        }
    }
}

impl Error for SqliteError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Writer(error) => error.source(),
            Self::Record(error) => error.source(),
            Self::TimedOut(_) => None,
        }
    }
}

impl From<WriterError> for SqliteError {
    fn from(error: WriterError) -> Self {
        Self::Writer(error)
    }
}

impl From<rusqlite::Error> for SqliteError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Writer(error.into())
    }
}

impl From<SqliteError> for WriteError<SqliteError> {
    fn from(error: SqliteError) -> Self {
        Self::Store(error)
    }
}

impl From<SqliteError> for ResolveError<SqliteError> {
    fn from(error: SqliteError) -> Self {
        Self::Store(error)
    }
}

impl From<WriterError> for ResolveError<SqliteError> {
    fn from(error: WriterError) -> Self {
        Self::Store(error.into())
    }
}

impl From<WriterError> for WriteError<SqliteError> {
    fn from(error: WriterError) -> Self {
        Self::Store(error.into())
    }
}
