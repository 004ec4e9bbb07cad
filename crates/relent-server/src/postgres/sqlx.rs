//! Connections and transactions of sqlx.

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::{Executor, PgPool, Row};

use super::ConnectionError;
use super::driver::{Columns, CommitError, Connections, SqlSession, SqlTransaction, Value};

/// A transaction of sqlx on PostgreSQL.
pub type SqlxTransaction<'c> = sqlx::Transaction<'c, sqlx::Postgres>;

impl Connections for PgPool {
    type Connection = PoolConnection<sqlx::Postgres>;

    async fn get(&self) -> Result<Self::Connection, ConnectionError> {
        Ok(self.acquire().await?)
    }

    fn discard(connection: Self::Connection) {
        drop(connection.detach());
    }
}

type Query<'a> = sqlx::query::Query<'a, sqlx::Postgres, PgArguments>;

fn query<'a>(statement: &'a str, values: &[Value<'a>]) -> Query<'a> {
    let query = sqlx::query(statement);
    values.iter().fold(query, |query, value| match *value {
        Value::Bytes(value) => query.bind(value),
        Value::Long(value) => query.bind(value),
        Value::Short(value) => query.bind(value),
        Value::Flag(value) => query.bind(value),
    })
}

impl SqlSession for PgConnection {
    type Row = PgRow;

    async fn query(
        &mut self,
        statement: &str,
        values: &[Value<'_>],
    ) -> Result<Option<PgRow>, ConnectionError> {
        Ok(query(statement, values).fetch_optional(self).await?)
    }

    async fn query_all(
        &mut self,
        statement: &str,
        values: &[Value<'_>],
    ) -> Result<Vec<PgRow>, ConnectionError> {
        Ok(query(statement, values).fetch_all(self).await?)
    }

    fn script<'a>(
        &'a mut self,
        statements: &'a str,
    ) -> impl Future<Output = Result<(), ConnectionError>> + Send + 'a {
        // Not an `async fn`: the compiler cannot prove that its future is `Send`.
        let run = Executor::execute(self, sqlx::raw_sql(statements));
        async move {
            run.await?;
            Ok(())
        }
    }
}

impl SqlSession for SqlxTransaction<'_> {
    type Row = PgRow;

    async fn query(
        &mut self,
        statement: &str,
        values: &[Value<'_>],
    ) -> Result<Option<PgRow>, ConnectionError> {
        SqlSession::query(&mut **self, statement, values).await
    }

    async fn query_all(
        &mut self,
        statement: &str,
        values: &[Value<'_>],
    ) -> Result<Vec<PgRow>, ConnectionError> {
        SqlSession::query_all(&mut **self, statement, values).await
    }

    async fn script<'a>(&'a mut self, statements: &'a str) -> Result<(), ConnectionError> {
        SqlSession::script(&mut **self, statements).await
    }
}

impl SqlTransaction for SqlxTransaction<'_> {
    async fn commit(self) -> Result<(), ConnectionError> {
        Ok(Self::commit(self).await?)
    }

    async fn commit_with(
        mut self,
        statement: &str,
        parameters: &[Value<'_>],
    ) -> Result<(), CommitError> {
        let ran = self.query(statement, parameters).await;
        ran.map_err(CommitError::Statement)?;
        SqlTransaction::commit(self)
            .await
            .map_err(CommitError::Commit)
    }

    async fn rollback(self) -> Result<(), ConnectionError> {
        Ok(Self::rollback(self).await?)
    }
}

impl Columns for PgRow {
    fn bytes(&self, column: usize) -> Result<Option<&[u8]>, ConnectionError> {
        Ok(self.try_get(column)?)
    }

    fn long(&self, column: usize) -> Result<i64, ConnectionError> {
        Ok(self.try_get(column)?)
    }

    fn short(&self, column: usize) -> Result<i16, ConnectionError> {
        Ok(self.try_get(column)?)
    }

    fn flag(&self, column: usize) -> Result<bool, ConnectionError> {
        Ok(self.try_get(column)?)
    }
}
