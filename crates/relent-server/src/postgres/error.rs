//! Errors of PostgreSQL connections.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use deadpool_postgres::PoolError;
use tokio_postgres::error::SqlState;

/// The reason why a database operation failed, or its result is not known.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The connection string is invalid.
    Config(Box<dyn Error + Send + Sync>),
    /// The pool has no connection.
    Pool(PoolError),
    /// PostgreSQL rejected the operation, or the connection was lost.
    Postgres(tokio_postgres::Error),
    /// An error of sqlx: as above, or its pool has no connection.
    #[cfg(feature = "sqlx")]
    Sqlx(::sqlx::Error),
    /// The operation took longer than this.
    TimedOut(Duration),
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let database = match self {
            Self::Config(error) => return write!(f, "the database: {error}"),
            Self::TimedOut(limit) => {
                return write!(f, "PostgreSQL has not answered within {limit:?}");
            }
            Self::Pool(PoolError::Backend(error)) => {
                write!(f, "no connection to PostgreSQL: {error}")?;
                error
            }
            Self::Pool(error) => return write!(f, "no connection to PostgreSQL: {error}"),
            Self::Postgres(error) => {
                write!(f, "PostgreSQL: {error}")?;
                error
            }
            #[cfg(feature = "sqlx")]
            Self::Sqlx(error) => return write!(f, "PostgreSQL: {error}"),
        };
        // The text of the error itself says only "db error" or "error performing TLS handshake".
        match (database.as_db_error(), database.source()) {
            (Some(error), _) => write!(f, ": {}", error.message()),
            (None, Some(error)) => write!(f, ": {error}"),
            (None, None) => Ok(()),
        }
    }
}

impl Error for ConnectionError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // The text of the error itself is part of this text.
        match self {
            Self::Config(error) => error.source(),
            Self::Postgres(error) => error.source(),
            #[cfg(feature = "sqlx")]
            Self::Sqlx(error) => error.source(),
            Self::Pool(error) => error.source(),
            Self::TimedOut(_) => None,
        }
    }
}

impl From<PoolError> for ConnectionError {
    fn from(error: PoolError) -> Self {
        Self::Pool(error)
    }
}

impl From<tokio_postgres::Error> for ConnectionError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Postgres(error)
    }
}

#[cfg(feature = "sqlx")]
impl From<::sqlx::Error> for ConnectionError {
    fn from(error: ::sqlx::Error) -> Self {
        Self::Sqlx(error)
    }
}

impl ConnectionError {
    /// Returns the driver's error, for callers that use that driver.
    pub(crate) fn into_inner(self) -> Box<dyn Error + Send + Sync> {
        match self {
            Self::Postgres(error) => error.into(),
            #[cfg(feature = "sqlx")]
            Self::Sqlx(error) => error.into(),
            other => other.into(),
        }
    }

    /// Returns whether the connection has to leave its pool. After a timeout it may never respond. A read-only server
    /// was the primary before a failover, and keeps its connections open.
    #[doc(hidden)]
    #[must_use]
    pub fn invalidates_connection(&self) -> bool {
        matches!(self, Self::TimedOut(_))
            || self.refusal().as_deref() == Some(SqlState::READ_ONLY_SQL_TRANSACTION.code())
    }

    /// Returns PostgreSQL's error code; `None` if it has not rejected the operation, or the result is not known.
    pub(crate) fn refusal(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Postgres(error) => Some(error.code()?.code().into()),
            #[cfg(feature = "sqlx")]
            Self::Sqlx(error) => error.as_database_error()?.code(),
            _ => None,
        }
    }
}
