//! Errors of an outbox in a PostgreSQL database.

use std::error::Error;
use std::fmt;

use relent_server::postgres::{ConnectionError, OfConnection};

use crate::invalid_message::InvalidMessage;
use crate::store::EnqueueError;

/// The error of an operation of [`Postgres`](super::Postgres).
#[derive(Debug)]
#[non_exhaustive]
pub enum PostgresError {
    /// A read or write failed, or its outcome is unknown.
    Connection(ConnectionError),
    /// A name is invalid.
    Invalid(InvalidMessage),
    /// A stored value is not readable by this version, with a description.
    Stored(String),
    /// A message was purged during the operation.
    Purged,
}

impl fmt::Display for PostgresError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(error) => error.fmt(f),
            Self::Invalid(invalid) => invalid.fmt(f),
            Self::Stored(what) => write!(f, "the outbox: {what}"),
            Self::Purged => f.write_str(
                "a message with the same event was purged in this moment: enqueue it again",
            ),
        }
    }
}

impl Error for PostgresError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // The error itself rather than its source, so that callers can find the error of the database.
            Self::Connection(ConnectionError::Postgres(error)) => Some(error),
            #[cfg(feature = "sqlx")]
            Self::Connection(ConnectionError::Sqlx(error)) => Some(error),
            Self::Connection(error) => error.source(),
            Self::Invalid(_) | Self::Stored(_) | Self::Purged => None,
        }
    }
}

impl From<ConnectionError> for PostgresError {
    fn from(error: ConnectionError) -> Self {
        Self::Connection(error)
    }
}

impl From<tokio_postgres::Error> for PostgresError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Connection(error.into())
    }
}

#[cfg(feature = "sqlx")]
impl From<sqlx::Error> for PostgresError {
    fn from(error: sqlx::Error) -> Self {
        Self::Connection(error.into())
    }
}

impl From<InvalidMessage> for PostgresError {
    fn from(invalid: InvalidMessage) -> Self {
        Self::Invalid(invalid)
    }
}

impl OfConnection for PostgresError {
    fn connection_error(&self) -> Option<&ConnectionError> {
        match self {
            Self::Connection(error) => Some(error),
            Self::Invalid(_) | Self::Stored(_) | Self::Purged => None,
        }
    }
}

impl OfConnection for EnqueueError<PostgresError> {
    fn connection_error(&self) -> Option<&ConnectionError> {
        match self {
            Self::Store(error) => error.connection_error(),
            Self::Refused { .. } => None,
        }
    }
}

impl From<ConnectionError> for EnqueueError<PostgresError> {
    fn from(error: ConnectionError) -> Self {
        Self::Store(error.into())
    }
}

impl From<tokio_postgres::Error> for EnqueueError<PostgresError> {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Store(error.into())
    }
}
