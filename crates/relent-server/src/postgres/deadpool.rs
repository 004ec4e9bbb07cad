//! Connections of tokio-postgres, in a pool of `deadpool-postgres`.

use deadpool_postgres::{Client, ClientWrapper, Pool, Transaction};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::ConnectionError;
use super::driver::{Columns, Connections, Opened, Session, Value};

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

impl Session for ClientWrapper {
    type Row = Row;

    async fn query(
        &mut self,
        statement: &str,
        values: &[Value<'_>],
    ) -> Result<Option<Row>, ConnectionError> {
        let statement = self.prepare_cached(statement).await?;
        Ok(self.query_opt(&statement, &parameters(values)).await?)
    }

    async fn script<'a>(&'a mut self, statements: &'a str) -> Result<(), ConnectionError> {
        Ok(self.batch_execute(statements).await?)
    }
}

impl Session for Transaction<'_> {
    type Row = Row;

    async fn query(
        &mut self,
        statement: &str,
        values: &[Value<'_>],
    ) -> Result<Option<Row>, ConnectionError> {
        let statement = self.prepare_cached(statement).await?;
        Ok(self.query_opt(&statement, &parameters(values)).await?)
    }

    async fn script<'a>(&'a mut self, statements: &'a str) -> Result<(), ConnectionError> {
        Ok(self.batch_execute(statements).await?)
    }
}

impl Opened for Transaction<'_> {
    async fn commit(self) -> Result<(), ConnectionError> {
        Ok(Self::commit(self).await?)
    }

    async fn rollback(self) -> Result<(), ConnectionError> {
        Ok(Self::rollback(self).await?)
    }
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
