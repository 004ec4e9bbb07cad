//! The interface to the PostgreSQL drivers.

use std::fmt;
use std::future::Future;
use std::ops::DerefMut;

use super::error::ConnectionError;

/// A pool of PostgreSQL connections: [`Pool`](super::Pool) of `deadpool-postgres`, or with the feature `sqlx` its
/// `PgPool`. It cannot be implemented outside this crate.
pub trait Connections: Clone + fmt::Debug + Send + Sync + 'static {
    /// A connection, which returns to the pool on drop.
    type Connection: DerefMut<Target: SqlSession + Sized> + Send + 'static;

    /// Waits for a connection, up to the limit of the pool.
    fn get(&self) -> impl Future<Output = Result<Self::Connection, ConnectionError>> + Send;

    /// Removes a connection that may never respond from the pool.
    fn discard(connection: Self::Connection);
}

/// A connection, or a transaction on it.
pub trait SqlSession: Send {
    /// A row that a statement returns.
    type Row: Columns + Send;

    /// Returns the first row, if any. The statement is prepared once for each connection.
    fn query(
        &mut self,
        statement: &str,
        parameters: &[Value<'_>],
    ) -> impl Future<Output = Result<Option<Self::Row>, ConnectionError>> + Send;

    /// Returns all rows.
    fn query_all(
        &mut self,
        statement: &str,
        parameters: &[Value<'_>],
    ) -> impl Future<Output = Result<Vec<Self::Row>, ConnectionError>> + Send;

    /// Runs statements without parameters.
    fn script<'a>(
        &'a mut self,
        statements: &'a str,
    ) -> impl Future<Output = Result<(), ConnectionError>> + Send + 'a;
}

/// A transaction, which is rolled back on drop.
pub(crate) trait SqlTransaction: SqlSession {
    /// Commits the transaction.
    fn commit(self) -> impl Future<Output = Result<(), ConnectionError>> + Send;

    /// Runs a statement and commits, possibly in one round trip. The rows of the statement are ignored. If the
    /// statement fails, nothing is committed.
    fn commit_with(
        self,
        statement: &str,
        parameters: &[Value<'_>],
    ) -> impl Future<Output = Result<(), CommitError>> + Send;

    /// Rolls the transaction back, and waits for the confirmation.
    fn rollback(self) -> impl Future<Output = Result<(), ConnectionError>> + Send;
}

/// The reason why a transaction is not known to be committed.
pub(crate) enum CommitError {
    /// The statement before the commit has failed; if the connection was lost, the transaction may be committed.
    Statement(ConnectionError),
    Commit(ConnectionError),
}

/// A parameter of a statement.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// `bytea`
    Bytes(Option<&'a [u8]>),
    /// `bigint`
    Long(i64),
    /// `smallint`
    Short(i16),
    /// `boolean`
    Flag(bool),
}

/// A row, with columns counted from 0.
pub trait Columns {
    /// `bytea`
    fn bytes(&self, column: usize) -> Result<Option<&[u8]>, ConnectionError>;

    /// `bigint`, not null
    fn long(&self, column: usize) -> Result<i64, ConnectionError>;

    /// `smallint`, not null
    fn short(&self, column: usize) -> Result<i16, ConnectionError>;

    /// `boolean`, not null
    fn flag(&self, column: usize) -> Result<bool, ConnectionError>;
}
