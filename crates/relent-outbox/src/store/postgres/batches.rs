//! Operator changes in batches, so that workers and producers can write in between.

use std::time::Duration;

use tokio::time::timeout;

use super::error::PostgresError;
use super::operate::{Change, change_rows, delete_some, purge, purgeable};
use super::transaction::Transaction;
use super::values::span;
use super::{Postgres, read};
use crate::store::{
    Deletion, Filter, MAX_DELETION_ROWS, MAX_TRANSACTION_ROWS, batches, end_of_grants,
};

type Result<T> = std::result::Result<T, PostgresError>;

impl Postgres {
    /// Deletes the last messages first, so that none is sent whose predecessor is deleted, except one that is enqueued
    /// during the deletion.
    pub(super) async fn delete_all(
        &self,
        tenant: &str,
        name: &str,
        discard: bool,
    ) -> Result<Deletion> {
        let (mut deleted, mut ran) = (0, false);
        loop {
            let rows: Result<Vec<i64>> =
                read!(self, client => read::last_rows(client, tenant, name, MAX_DELETION_ROWS));
            for rows in batches(&rows?) {
                let some: Result<_> = transact!(
                    self,
                    transaction => delete_some(transaction, tenant, name, discard, rows)
                );
                match some? {
                    (Deletion::Deleted { messages }, is_end, runs) => {
                        deleted += messages;
                        ran |= runs;
                        if is_end {
                            end_of_grants(ran).await;
                            return Ok(Deletion::Deleted { messages: deleted });
                        }
                    }
                    (other, ..) => return Ok(other),
                }
            }
        }
    }
}

impl Postgres {
    /// Changes all selected messages, the earliest first, in batches. Each is visited once, so that it ends even if
    /// workers undo its changes. Messages that ended after `ended_by`, in microseconds since 1970, stay.
    pub(super) async fn change_all(
        &self,
        filter: &Filter,
        change: &Change,
        ended_by: i64,
    ) -> Result<u64> {
        let (mut changed, mut after) = (0, 0);
        loop {
            let rows: Result<Vec<i64>> = read!(self, client => read::rows(client, filter, change.states, ended_by, after, MAX_TRANSACTION_ROWS));
            let rows = rows?;
            let Some(&last) = rows.last() else {
                return Ok(changed);
            };
            after = last;
            let in_state = filter.in_state();
            let done: Result<u64> = transact!(
                self,
                transaction => change_rows(transaction, &rows, change, in_state, ended_by)
            );
            changed += done?;
        }
    }

    /// Searches once: a search reads all dead letters that are kept.
    pub(super) async fn purge_all(&self, age: Duration, most: usize) -> Result<u64> {
        let age = span(age);
        let rows: Result<Vec<i64>> =
            transact!(self, transaction => purgeable(transaction, age, most));
        let mut purged = 0;
        for batch in rows?.chunks(MAX_TRANSACTION_ROWS) {
            let done: Result<u64> = transact!(self, transaction => purge(transaction, age, batch));
            purged += done?;
        }
        Ok(purged)
    }
}
