//! Connections of tokio-postgres in a pool of `deadpool-postgres`.

use std::mem;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use deadpool_postgres::{Client, ClientWrapper, Pool, StatementCache, Transaction};
use futures_util::future::{Either, join, ready};
use futures_util::poll;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use super::ConnectionError;
use super::driver::{Columns, CommitError, Connections, SqlSession, SqlTransaction, Value};

impl Connections for Pool {
    type Connection = Client;

    async fn get(&self) -> Result<Client, ConnectionError> {
        Ok(Self::get(self).await?)
    }

    fn discard(connection: Client) {
        drop(Client::take(connection));
    }
}

fn parameters<'a>(values: &'a [Value<'_>]) -> Vec<&'a (dyn ToSql + Sync)> {
    let parameter = |value: &'a Value<'_>| -> &'a (dyn ToSql + Sync) {
        match value {
            Value::Bytes(value) => value,
            Value::Long(value) => value,
            Value::Short(value) => value,
            Value::Flag(value) => value,
        }
    };
    values.iter().map(parameter).collect()
}

impl SqlSession for ClientWrapper {
    type Row = Row;

    async fn query(
        &mut self,
        statement: &str,
        values: &[Value<'_>],
    ) -> Result<Option<Row>, ConnectionError> {
        let statement = self.prepare_cached(statement).await?;
        Ok(self.query_opt(&statement, &parameters(values)).await?)
    }

    async fn query_all(
        &mut self,
        statement: &str,
        values: &[Value<'_>],
    ) -> Result<Vec<Row>, ConnectionError> {
        let statement = self.prepare_cached(statement).await?;
        Ok(tokio_postgres::Client::query(self, &statement, &parameters(values)).await?)
    }

    async fn script<'a>(&'a mut self, statements: &'a str) -> Result<(), ConnectionError> {
        Ok(self.batch_execute(statements).await?)
    }
}

impl SqlSession for Transaction<'_> {
    type Row = Row;

    async fn query(
        &mut self,
        statement: &str,
        values: &[Value<'_>],
    ) -> Result<Option<Row>, ConnectionError> {
        let statement = self.prepare_cached(statement).await?;
        Ok(self.query_opt(&statement, &parameters(values)).await?)
    }

    async fn query_all(
        &mut self,
        statement: &str,
        values: &[Value<'_>],
    ) -> Result<Vec<Row>, ConnectionError> {
        let statement = self.prepare_cached(statement).await?;
        Ok(tokio_postgres::Transaction::query(self, &statement, &parameters(values)).await?)
    }

    async fn script<'a>(&'a mut self, statements: &'a str) -> Result<(), ConnectionError> {
        Ok(self.batch_execute(statements).await?)
    }
}

impl SqlTransaction for Transaction<'_> {
    async fn commit(self) -> Result<(), ConnectionError> {
        Ok(Self::commit(self).await?)
    }

    async fn commit_with(self, statement: &str, values: &[Value<'_>]) -> Result<(), CommitError> {
        let failed = |error: Error| CommitError::Statement(error.into());
        let prepared = self.prepare_cached(statement).await.map_err(failed)?;
        let (ran, committed) = {
            let values = parameters(values);
            // The first poll sends the statement or fails; after a failure COMMIT must not be sent.
            let mut run = pin!(self.execute(&prepared, &values));
            let ran = match poll!(&mut run) {
                Poll::Ready(ran) => Either::Left(ready(Ok(ran.map_err(failed)?))),
                Poll::Pending => Either::Right(run),
            };
            join(ran, self.batch_execute("COMMIT")).await
        };
        forget(self);
        // If the statement failed, PostgreSQL has executed COMMIT as ROLLBACK.
        ran.map_err(failed)?;
        committed.map_err(|error| CommitError::Commit(error.into()))
    }

    async fn rollback(self) -> Result<(), ConnectionError> {
        Ok(Self::rollback(self).await?)
    }
}

/// Forgets an ended transaction. Its drop would roll back, and PostgreSQL would log a warning each time.
fn forget(mut transaction: Transaction<'_>) {
    // It owns only a reference to the statement cache of its connection. A cache that is never freed replaces it.
    static NEVER_FREED: OnceLock<Arc<StatementCache>> = OnceLock::new();
    let never_freed = NEVER_FREED.get_or_init(|| Arc::clone(&transaction.statement_cache));
    transaction.statement_cache = Arc::clone(never_freed);
    mem::forget(transaction);
}

impl Columns for Row {
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
