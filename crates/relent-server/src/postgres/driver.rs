//! What this crate asks of whoever talks to PostgreSQL.

use std::fmt;
use std::future::Future;
use std::ops::DerefMut;

use super::error::ConnectionError;

/// A pool of connections to PostgreSQL: [`Pool`](super::Pool) of `deadpool-postgres`, or with the feature `sqlx` its
/// `PgPool`. It cannot be implemented elsewhere.
pub trait Connections: Clone + fmt::Debug + Send + Sync + 'static {
    /// One of them. It goes back to the pool when it is dropped.
    type Connection: DerefMut<Target: Session + Sized> + Send;

    /// Waits for one, for as long as the pool does.
    fn get(&self) -> impl Future<Output = Result<Self::Connection, ConnectionError>> + Send;

    /// This one may never answer again, so the pool loses it.
    fn discard(connection: Self::Connection);
}

/// A connection, or a transaction on it.
pub trait Session: Send {
    /// What a statement returns.
    type Row: Columns + Send;

    /// The first row, if there is one. The statement is prepared once for each connection.
    fn query(
        &mut self,
        statement: &str,
        parameters: &[Value<'_>],
    ) -> impl Future<Output = Result<Option<Self::Row>, ConnectionError>> + Send;

    /// All rows.
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

/// A transaction. It is rolled back when it is dropped.
pub(crate) trait Opened: Session {
    /// Commits it.
    fn commit(self) -> impl Future<Output = Result<(), ConnectionError>> + Send;

    /// Runs a statement and commits behind it, which may take one round trip. What the statement returns does not
    /// matter: it fails if nothing is to be committed, and then nothing is.
    fn commit_with(
        self,
        statement: &str,
        parameters: &[Value<'_>],
    ) -> impl Future<Output = Result<(), CommitError>> + Send;

    /// Rolls it back, and hears that it is.
    fn rollback(self) -> impl Future<Output = Result<(), ConnectionError>> + Send;
}

/// Why a transaction is not committed, or not known to be.
pub(crate) enum CommitError {
    /// The statement before the commit has failed; if that is since the connection is lost, it may be committed.
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

/// A row, by the numbers of its columns from 0.
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
