//! Connections to PostgreSQL, shared by whoever writes there.
//!
//! A pool of your own, with TLS, does as well: [`Pool`] is that of `deadpool-postgres`. Statements are prepared once
//! for each connection, so a pooler in between has to keep them (PgBouncer since 1.21, by
//! `max_prepared_statements`).
//!
//! With the feature `sqlx` a `PgPool` of sqlx does, too. It asks each connection whether it is there before it hands it
//! out, which is a round trip more: `PgPoolOptions::test_before_acquire(false)` saves it, since work whose connection is
//! lost is run again.

mod deadpool;
pub(crate) mod driver;
mod error;
#[cfg(feature = "sqlx")]
mod sqlx;

use std::error::Error;
use std::io;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, RecyclingMethod};
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Config, NoTls, Socket};

pub use deadpool_postgres::{Client, Pool, Transaction};
pub use tokio_postgres::IsolationLevel;

pub use self::driver::Connections;
pub(crate) use self::driver::{Columns, CommitError, Opened, Session, Value};
pub use self::error::ConnectionError;
#[cfg(feature = "sqlx")]
pub use self::sqlx::SqlxTransaction;

/// A pool of at most so many connections without TLS, to a database that is described in the words of libpq:
/// `host=/run/postgresql user=shop dbname=shop`.
///
/// # Errors
/// The words describe none.
pub fn pool(config: &str, connections: usize) -> Result<Pool, ConnectionError> {
    let config = config
        .parse()
        .map_err(|error: tokio_postgres::Error| ConnectionError::Config(error.into()))?;
    pool_of(config, NoTls, connections)
}

/// The same to a database that was described before, with this TLS.
///
/// # Errors
/// There can be no such pool.
pub fn pool_of<T>(config: Config, tls: T, connections: usize) -> Result<Pool, ConnectionError>
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send + Sync,
    T::TlsConnect: Send + Sync,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    let manager = ManagerConfig {
        recycling_method: RecyclingMethod::Fast,
    };
    let manager = Manager::from_config(config, tls, manager);
    let pool = Pool::builder(manager).max_size(connections).build();
    pool.map_err(|error| ConnectionError::Config(error.into()))
}

/// A connection of the pool, within this time.
pub(crate) async fn connect<C: Connections>(
    pool: &C,
    limit: Duration,
) -> Result<C::Connection, ConnectionError> {
    let connected = timeout(limit, pool.get()).await;
    connected.unwrap_or(Err(ConnectionError::TimedOut(limit)))
}

/// What came of work with this connection. One that has not answered in time may never do: the pool loses it.
pub(crate) fn in_time<C: Connections, T, E: From<ConnectionError>>(
    connection: C::Connection,
    limit: Duration,
    worked: Result<Result<T, E>, Elapsed>,
) -> Result<T, E> {
    worked.unwrap_or_else(|_| {
        C::discard(connection);
        Err(ConnectionError::TimedOut(limit).into())
    })
}

/// Whether a transaction that ended so may do better if it is run again: it met another one (40001, 40P01), or the
/// connection is lost or could not be made.
pub(crate) fn is_passing(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<tokio_postgres::Error>() {
            return match error.code() {
                Some(code) => passes(code.code()),
                None => {
                    error.is_closed() || error.source().is_some_and(<dyn Error>::is::<io::Error>)
                }
            };
        }
        #[cfg(feature = "sqlx")]
        if let Some(error) = error.downcast_ref::<::sqlx::Error>() {
            return match error {
                ::sqlx::Error::Io(_) => true,
                ::sqlx::Error::Database(error) => error.code().is_some_and(|code| passes(&code)),
                _ => false,
            };
        }
        next = error.source();
    }
    false
}

/// Whether what PostgreSQL refuses by this code may pass.
fn passes(code: &str) -> bool {
    let passing = [
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
    ];
    passing.iter().any(|state| state.code() == code)
}
