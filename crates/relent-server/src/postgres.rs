//! Connections to PostgreSQL, shared by whoever writes there.
//!
//! A pool of your own, with TLS, does as well: [`Pool`] is that of `deadpool-postgres`. Statements are prepared once
//! for each connection, so a pooler in between has to keep them (PgBouncer since 1.21, by
//! `max_prepared_statements`).

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, PoolError, RecyclingMethod};
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tokio_postgres::NoTls;
use tokio_postgres::error::SqlState;

pub use deadpool_postgres::{Client, Pool, Transaction};
pub use tokio_postgres::IsolationLevel;

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
            Self::Pool(error) => {
                write!(f, "no connection to PostgreSQL: {error}")?;
                error.source().and_then(|source| source.downcast_ref())
            }
            Self::Postgres(error) => {
                write!(f, "PostgreSQL: {error}")?;
                Some(error)
            }
        };
        // The text of the error says no more than "db error".
        match database.and_then(tokio_postgres::Error::as_db_error) {
            Some(error) => write!(f, ": {}", error.message()),
            None => Ok(()),
        }
    }
}

impl Error for ConnectionError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // The text of the error itself is in this one.
        match self {
            Self::Config(error) => error.source(),
            Self::Postgres(error) => error.source(),
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

/// A pool of at most so many connections without TLS, to a database that is described in the words of libpq:
/// `host=/run/postgresql user=shop dbname=shop`.
///
/// # Errors
/// The words describe none.
pub fn pool(config: &str, connections: usize) -> Result<Pool, ConnectionError> {
    let invalid = |error: Box<dyn Error + Send + Sync>| ConnectionError::Config(error);
    let config = config
        .parse()
        .map_err(|error: tokio_postgres::Error| invalid(error.into()))?;
    let manager = ManagerConfig {
        recycling_method: RecyclingMethod::Fast,
    };
    let manager = Manager::from_config(config, NoTls, manager);
    let pool = Pool::builder(manager).max_size(connections).build();
    pool.map_err(|error| invalid(error.into()))
}

/// A connection of the pool, within this time.
pub(crate) async fn connect(pool: &Pool, limit: Duration) -> Result<Client, ConnectionError> {
    match timeout(limit, pool.get()).await {
        Ok(client) => Ok(client?),
        Err(_) => Err(ConnectionError::TimedOut(limit)),
    }
}

/// What came of work with this connection. One that has not answered in time may never do: the pool loses it.
pub(crate) fn in_time<T, E: From<ConnectionError>>(
    client: Client,
    limit: Duration,
    worked: Result<Result<T, E>, Elapsed>,
) -> Result<T, E> {
    worked.unwrap_or_else(|_| {
        drop(Client::take(client));
        Err(ConnectionError::TimedOut(limit).into())
    })
}

/// Whether a transaction that ended so may do better if it is run again: it met another one (40001, 40P01), or the
/// connection is lost or could not be made.
pub(crate) fn is_passing(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<tokio_postgres::Error>() {
            let passing = [
                SqlState::T_R_SERIALIZATION_FAILURE,
                SqlState::T_R_DEADLOCK_DETECTED,
                SqlState::ADMIN_SHUTDOWN,
                SqlState::CRASH_SHUTDOWN,
                SqlState::CANNOT_CONNECT_NOW,
            ];
            return match error.code() {
                Some(code) => passing.contains(code),
                None => {
                    error.is_closed() || error.source().is_some_and(<dyn Error>::is::<io::Error>)
                }
            };
        }
        next = error.source();
    }
    false
}
