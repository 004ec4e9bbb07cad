//! Operator changes in batches, so that workers and producers can write in between.

use rusqlite::Connection;

use super::error::SqliteError;
use super::operate::{Change, change_rows, delete_some};
use super::{Sqlite, read};
use crate::store::{
    Deletion, Filter, MAX_DELETION_ROWS, MAX_TRANSACTION_ROWS, batches, end_of_grants,
};

impl Sqlite {
    /// Deletes the last messages first, so that none is sent whose predecessor is deleted, except one that is enqueued
    /// during the deletion.
    pub(super) async fn delete_all(
        &self,
        tenant: &str,
        name: &str,
        discard: bool,
    ) -> Result<Deletion, SqliteError> {
        let (mut deleted, mut ran) = (0, false);
        loop {
            let names = (tenant.to_owned(), name.to_owned());
            let rows = self
                .read(move |connection, _| {
                    read::last_rows(connection, &names.0, &names.1, MAX_DELETION_ROWS)
                })
                .await?;
            for rows in batches(&rows) {
                let (tenant, name, rows) = (tenant.to_owned(), name.to_owned(), rows.to_vec());
                let some = self.write(move |connection, _| {
                    delete_some(connection, &tenant, &name, discard, &rows)
                });
                match some.await? {
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

    /// Changes all selected messages, the earliest first, in batches. Each is visited once, so that it ends even if
    /// workers undo its changes. Messages that ended after `ended_by`, in microseconds since 1970, stay.
    pub(super) async fn change_all(
        &self,
        filter: Filter,
        change: Change,
        ended_by: i64,
    ) -> Result<u64, SqliteError> {
        let ((statement, states), in_state) = (change(), filter.in_state());
        let (mut changed, mut after) = (0, 0);
        loop {
            let filter = filter.clone();
            let rows = move |connection: &Connection, _| {
                read::rows(
                    connection,
                    &filter,
                    states,
                    ended_by,
                    after,
                    MAX_TRANSACTION_ROWS,
                )
            };
            let rows = self.read(rows).await?;
            let Some(&last) = rows.last() else {
                return Ok(changed);
            };
            after = last;
            changed += self
                .write(move |connection, now| {
                    change_rows(connection, now, &rows, statement, in_state, ended_by)
                })
                .await?;
        }
    }
}
