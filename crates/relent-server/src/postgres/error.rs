//! Why something is not written into a PostgreSQL database.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use deadpool_postgres::PoolError;

/// Why something is not written, or not known to be.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The words that describe the database are none.
    Config(Box<dyn Error + Send + Sync>),
    /// There is no connection.
    Pool(PoolError),
    /// PostgreSQL refuses it, or the connection is lost.
    Postgres(tokio_postgres::Error),
    /// The same as sqlx says it, or there is no connection in its pool.
    #[cfg(feature = "sqlx")]
    Sqlx(::sqlx::Error),
    /// It took longer than this.
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
        // The text of the error says no more than "db error", or "error performing TLS handshake".
        match (database.as_db_error(), database.source()) {
            (Some(error), _) => write!(f, ": {}", error.message()),
            (None, Some(error)) => write!(f, ": {error}"),
            (None, None) => Ok(()),
        }
    }
}

impl Error for ConnectionError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // The text of the error itself is in this one.
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
    /// The error as the crate has made it, for whoever knows that crate.
    pub(crate) fn into_inner(self) -> Box<dyn Error + Send + Sync> {
        match self {
            Self::Postgres(error) => error.into(),
            #[cfg(feature = "sqlx")]
            Self::Sqlx(error) => error.into(),
            other => other.into(),
        }
    }

    /// The code by which PostgreSQL has refused; `None` if it has not, or nobody knows.
    pub(crate) fn refusal(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Postgres(error) => Some(error.code()?.code().into()),
            #[cfg(feature = "sqlx")]
            Self::Sqlx(error) => error.as_database_error()?.code(),
            _ => None,
        }
    }
}
