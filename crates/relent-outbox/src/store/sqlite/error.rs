//! Errors of an outbox in an SQLite database.

use std::error::Error;
use std::fmt;

use relent_server::sqlite::WriterError;

use crate::invalid_message::InvalidMessage;
use crate::store::EnqueueError;

/// The error of an operation of [`Sqlite`](super::Sqlite).
#[derive(Debug)]
#[non_exhaustive]
pub enum SqliteError {
    /// A read or write failed.
    Writer(WriterError),
    /// A name is invalid.
    Invalid(InvalidMessage),
    /// A stored value is not readable by this version, with a description.
    Stored(String),
    /// The database is in memory, where nothing is durable.
    NotAFile,
}

impl fmt::Display for SqliteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Writer(error) => error.fmt(f),
            Self::Invalid(invalid) => invalid.fmt(f),
            Self::Stored(what) => write!(f, "the outbox: {what}"),
            Self::NotAFile => f.write_str(
                "an outbox cannot be in memory, where messages are lost with the process: open a file",
            ),
        }
    }
}

impl Error for SqliteError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // `Display` already includes the text of the inner error.
        match self {
            Self::Writer(error) => error.source(),
            Self::Invalid(_) | Self::Stored(_) | Self::NotAFile => None,
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

impl From<InvalidMessage> for SqliteError {
    fn from(invalid: InvalidMessage) -> Self {
        Self::Invalid(invalid)
    }
}

impl From<WriterError> for EnqueueError<SqliteError> {
    fn from(error: WriterError) -> Self {
        Self::Store(error.into())
    }
}

impl From<rusqlite::Error> for EnqueueError<SqliteError> {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.into())
    }
}
