//! Driver of the transaction that messages are written in: tokio-postgres, or sqlx with the feature `sqlx`. The
//! statements are the same.

use std::future::Future;

use relent_server::postgres::Transaction as CallerTransaction;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::error::PostgresError;
use super::transaction::Transaction;

/// A transaction that runs statements.
pub(super) trait SqlTransaction: Send {
    /// A row of a result.
    type Row: Columns + Send + Sync;

    /// Runs a statement and returns its rows. The statement is prepared once per connection.
    fn query(
        &mut self,
        statement: &str,
        parameters: &[Array<'_>],
    ) -> impl Future<Output = Result<Vec<Self::Row>, PostgresError>> + Send;
}

/// A transaction that can continue after a rollback to a savepoint.
pub(super) trait Savepoints: SqlTransaction {
    /// Runs statements without parameters.
    fn script(
        &mut self,
        statements: &'static str,
    ) -> impl Future<Output = Result<(), PostgresError>> + Send;
}

/// A parameter: one value per message.
#[derive(Clone, Copy)]
pub(super) enum Array<'a> {
    /// `bigint[]`
    Long(&'a [i64]),
    /// `text[]`
    Text(&'a [&'a str]),
    /// `text[]`, with nulls
    Maybe(&'a [Option<&'a str>]),
    /// `bytea[]`
    Bytes(&'a [&'a [u8]]),
}

/// A row; columns are numbered from 0.
pub(super) trait Columns {
    /// `bigint`, not null
    fn long(&self, column: usize) -> Result<i64, PostgresError>;

    /// `bigint`
    fn maybe_long(&self, column: usize) -> Result<Option<i64>, PostgresError>;

    /// `text`
    fn text(&self, column: usize) -> Result<Option<&str>, PostgresError>;

    /// `bytea`, not null
    fn bytes(&self, column: usize) -> Result<&[u8], PostgresError>;
}

fn bound<'a>(parameters: &'a [Array<'_>]) -> Vec<&'a (dyn ToSql + Sync)> {
    let bound = |array: &'a Array<'_>| -> &'a (dyn ToSql + Sync) {
        match array {
            Array::Long(values) => values,
            Array::Text(values) => values,
            Array::Maybe(values) => values,
            Array::Bytes(values) => values,
        }
    };
    parameters.iter().map(bound).collect()
}

impl SqlTransaction for &CallerTransaction<'_> {
    type Row = Row;

    async fn query(
        &mut self,
        statement: &str,
        parameters: &[Array<'_>],
    ) -> Result<Vec<Row>, PostgresError> {
        let statement = self.prepare_cached(statement).await?;
        let parameters = bound(parameters);
        Ok(tokio_postgres::Transaction::query(self, &statement, &parameters).await?)
    }
}

impl Savepoints for &CallerTransaction<'_> {
    async fn script(&mut self, statements: &'static str) -> Result<(), PostgresError> {
        Ok(self.batch_execute(statements).await?)
    }
}

impl SqlTransaction for &Transaction<'_> {
    type Row = Row;

    async fn query(
        &mut self,
        statement: &str,
        parameters: &[Array<'_>],
    ) -> Result<Vec<Row>, PostgresError> {
        let statement = self.prepare_cached(statement).await?;
        Ok(Transaction::query(self, &statement, &bound(parameters)).await?)
    }
}

impl Columns for Row {
    fn long(&self, column: usize) -> Result<i64, PostgresError> {
        Ok(self.try_get(column)?)
    }

    fn maybe_long(&self, column: usize) -> Result<Option<i64>, PostgresError> {
        Ok(self.try_get(column)?)
    }

    fn text(&self, column: usize) -> Result<Option<&str>, PostgresError> {
        Ok(self.try_get(column)?)
    }

    fn bytes(&self, column: usize) -> Result<&[u8], PostgresError> {
        Ok(self.try_get(column)?)
    }
}

#[cfg(feature = "sqlx")]
mod of_sqlx {
    use std::future::Future;

    use sqlx::postgres::{PgConnection, PgRow};
    use sqlx::{Executor, Row};

    use super::{Array, Columns, PostgresError, Savepoints, SqlTransaction};

    impl SqlTransaction for PgConnection {
        type Row = PgRow;

        async fn query(
            &mut self,
            statement: &str,
            parameters: &[Array<'_>],
        ) -> Result<Vec<PgRow>, PostgresError> {
            let query =
                parameters
                    .iter()
                    .fold(sqlx::query(statement), |query, array| match *array {
                        Array::Long(values) => query.bind(values),
                        Array::Text(values) => query.bind(values),
                        Array::Maybe(values) => query.bind(values),
                        Array::Bytes(values) => query.bind(values),
                    });
            Ok(query.fetch_all(self).await?)
        }
    }

    impl Savepoints for PgConnection {
        fn script(
            &mut self,
            statements: &'static str,
        ) -> impl Future<Output = Result<(), PostgresError>> + Send {
            // Not an `async fn`: the compiler could not prove that its future is `Send`.
            let run = Executor::execute(self, sqlx::raw_sql(statements));
            async move {
                run.await?;
                Ok(())
            }
        }
    }

    impl Columns for PgRow {
        fn long(&self, column: usize) -> Result<i64, PostgresError> {
            Ok(self.try_get(column)?)
        }

        fn maybe_long(&self, column: usize) -> Result<Option<i64>, PostgresError> {
            Ok(self.try_get(column)?)
        }

        fn text(&self, column: usize) -> Result<Option<&str>, PostgresError> {
            Ok(self.try_get(column)?)
        }

        fn bytes(&self, column: usize) -> Result<&[u8], PostgresError> {
            Ok(self.try_get(column)?)
        }
    }
}
