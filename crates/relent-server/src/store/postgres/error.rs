//! Errors of the PostgreSQL store.

use std::error::Error;
use std::fmt;

use crate::postgres::{ConnectionError, OfConnection};
use crate::store::{ResolveError, WriteError};

/// An error of the PostgreSQL store.
#[derive(Debug)]
#[non_exhaustive]
pub enum PostgresError {
    /// A database operation failed, or its result is not known.
    Connection(ConnectionError),
    /// A record is not in the format of this version.
    Record(Box<dyn Error + Send + Sync>),
    /// Concurrent changes of the record exhausted all attempts.
    Contended,
}

impl fmt::Display for PostgresError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(error) => error.fmt(f),
            Self::Record(error) => write!(f, "the record of an idempotency key: {error}"),
            Self::Contended => {
                f.write_str("others change the record of this idempotency key all the time")
            }
        }
    }
}

impl Error for PostgresError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // The error itself, not its source, so that callers can find the database error in the chain.
            Self::Connection(ConnectionError::Postgres(error)) => Some(error),
            #[cfg(feature = "sqlx")]
            Self::Connection(ConnectionError::Sqlx(error)) => Some(error),
            Self::Connection(error) => error.source(),
            Self::Record(error) => error.source(),
            Self::Contended => None,
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

impl From<PostgresError> for WriteError<PostgresError> {
    fn from(error: PostgresError) -> Self {
        Self::Store(error)
    }
}

impl From<PostgresError> for ResolveError<PostgresError> {
    fn from(error: PostgresError) -> Self {
        Self::Store(error)
    }
}

impl From<ConnectionError> for ResolveError<PostgresError> {
    fn from(error: ConnectionError) -> Self {
        Self::Store(error.into())
    }
}

impl From<ConnectionError> for WriteError<PostgresError> {
    fn from(error: ConnectionError) -> Self {
        Self::Store(error.into())
    }
}

impl OfConnection for PostgresError {
    fn connection_error(&self) -> Option<&ConnectionError> {
        match self {
            Self::Connection(error) => Some(error),
            _ => None,
        }
    }
}

impl OfConnection for WriteError<PostgresError> {
    fn connection_error(&self) -> Option<&ConnectionError> {
        match self {
            Self::Store(error) => error.connection_error(),
            Self::Lost | Self::Gone => None,
        }
    }
}

impl OfConnection for ResolveError<PostgresError> {
    fn connection_error(&self) -> Option<&ConnectionError> {
        match self {
            Self::Store(error) => error.connection_error(),
            Self::Refused(_) => None,
        }
    }
}
