//! Connection pools for PostgreSQL.
//!
//! You may also pass your own pool, with TLS: [`Pool`] is that of `deadpool-postgres`. Statements are prepared once
//! for each connection, so a pooler in between must support prepared statements (PgBouncer since 1.21, with
//! `max_prepared_statements`).
//!
//! With the feature `sqlx` you may pass a `PgPool` of sqlx. It pings each connection before use, which costs a round
//! trip. `PgPoolOptions::test_before_acquire(false)` avoids that; work whose connection is lost runs again anyway.

mod deadpool;
pub(crate) mod driver;
mod error;
#[cfg(feature = "sqlx")]
mod sqlx;

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, RecyclingMethod};
use tokio::runtime::Handle;
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Config, NoTls, Socket};

pub use deadpool_postgres::{Client, Pool, Transaction};
pub use tokio_postgres::IsolationLevel;

pub use self::driver::Connections;
pub(crate) use self::driver::{Columns, CommitError, SqlSession, SqlTransaction, Value};
pub use self::error::ConnectionError;
#[cfg(feature = "sqlx")]
pub use self::sqlx::SqlxTransaction;

/// Creates a pool without TLS, of at most `connections`, from a libpq connection string:
/// `host=/run/postgresql user=shop dbname=shop`.
///
/// # Errors
/// The connection string is invalid.
pub fn pool(config: &str, connections: usize) -> Result<Pool, ConnectionError> {
    let config = config
        .parse()
        .map_err(|error: tokio_postgres::Error| ConnectionError::Config(error.into()))?;
    pool_of(config, NoTls, connections)
}

/// Creates a pool from a parsed configuration, with this TLS connector.
///
/// # Errors
/// The pool cannot be created.
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

/// A statement with a row if one of the tables and indexes is missing that these statements create. Their creation would
/// wait for all running transactions, also if they exist, and hold up those that follow.
#[doc(hidden)] // For relent-outbox, as is `Checkout`.
#[must_use]
pub fn missing(creations: &str) -> String {
    let names = creations.split("IF NOT EXISTS ").skip(1);
    let names: Vec<_> = names.filter_map(|name| name.split(' ').next()).collect();
    format!(
        "SELECT 1 FROM unnest('{{{}}}'::text[]) AS name
         WHERE to_regclass(quote_ident(current_schema()) || '.' || name) IS NULL LIMIT 1",
        names.join(",")
    )
}

/// An error of a store that may come from a connection.
#[doc(hidden)]
pub trait OfConnection: From<ConnectionError> {
    /// Returns the error of the connection; `None` if the error has another origin.
    fn connection_error(&self) -> Option<&ConnectionError>;
}

/// A connection that is checked out of its pool for one call. The caller may drop the call, since it waits no longer
/// than it likes. Then no caller learns whether the server is dead, and the next caller would get the connection. So it
/// returns to the pool after a reply to a further statement, or is discarded. Until then it counts in the size of the
/// pool.
#[doc(hidden)]
pub struct Checkout<C: Connections> {
    /// `None` before the call and after its reply.
    connection: Option<C::Connection>,
    limit: Duration,
    /// Whether the server may have begun a transaction of which the driver does not know.
    begins: Arc<AtomicBool>,
}

impl<C: Connections> Checkout<C> {
    /// For a call that waits for at most `limit`, as do its connection and the further statement.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self {
            connection: None,
            limit,
            begins: Arc::default(),
        }
    }

    /// To be `true` while a driver waits for the reply to `BEGIN`: sqlx does not end the transaction if the call is
    /// dropped then.
    #[cfg(feature = "sqlx")]
    pub(crate) fn begins(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.begins)
    }

    /// Takes a connection from the pool.
    ///
    /// # Errors
    /// There is none within the limit.
    pub async fn connect(&mut self, pool: &C) -> Result<&mut C::Connection, ConnectionError> {
        self.connect_within(pool, self.limit).await
    }

    /// Takes a connection from the pool within another limit than that of the further statement.
    ///
    /// # Errors
    /// There is none within the limit.
    pub(crate) async fn connect_within(
        &mut self,
        pool: &C,
        limit: Duration,
    ) -> Result<&mut C::Connection, ConnectionError> {
        let connected = timeout(limit, pool.get()).await;
        let connection = connected.unwrap_or(Err(ConnectionError::TimedOut(limit)))?;
        Ok(self.connection.insert(connection))
    }

    /// Returns the result of the call, for which the caller waited until its limit. A connection that is of no more use
    /// leaves the pool.
    ///
    /// # Errors
    /// The call failed or timed out.
    pub fn in_time<T, E: OfConnection>(
        self,
        called: Result<Result<T, E>, Elapsed>,
    ) -> Result<T, E> {
        let called = called.unwrap_or_else(|_| Err(ConnectionError::TimedOut(self.limit).into()));
        self.end(called.as_ref().err().and_then(E::connection_error));
        called
    }

    /// Ends a call that has its reply, or this error. A connection that is of no more use leaves the pool.
    pub(crate) fn end(mut self, error: Option<&ConnectionError>) {
        if let Some(connection) = self.connection.take()
            && error.is_some_and(ConnectionError::invalidates_connection)
        {
            C::discard(connection);
        }
    }
}

impl<C: Connections> fmt::Debug for Checkout<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkout")
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

impl<C: Connections> Drop for Checkout<C> {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        let Ok(runtime) = Handle::try_current() else {
            return C::discard(connection);
        };
        let limit = self.limit;
        let further = match self.begins.load(Ordering::Relaxed) {
            true => "ROLLBACK",
            false => "SELECT 1",
        };
        runtime.spawn(async move {
            let answered = timeout(limit, connection.script(further)).await;
            if !matches!(answered, Ok(Ok(()))) {
                C::discard(connection);
            }
        });
    }
}

/// Returns whether the failure is transient: a conflict with another transaction (40001, 40P01), or a lost or failed
/// connection.
pub(crate) fn is_transient(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<tokio_postgres::Error>() {
            return match error.code() {
                Some(code) => is_transient_code(code.code()),
                None => {
                    error.is_closed() || error.source().is_some_and(<dyn Error>::is::<io::Error>)
                }
            };
        }
        #[cfg(feature = "sqlx")]
        if let Some(error) = error.downcast_ref::<::sqlx::Error>() {
            return match error {
                ::sqlx::Error::Io(_) => true,
                ::sqlx::Error::Database(error) => {
                    error.code().is_some_and(|code| is_transient_code(&code))
                }
                _ => false,
            };
        }
        next = error.source();
    }
    false
}

/// Returns whether PostgreSQL's error code is transient.
fn is_transient_code(code: &str) -> bool {
    let passing = [
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
    ];
    passing.iter().any(|state| state.code() == code)
}
