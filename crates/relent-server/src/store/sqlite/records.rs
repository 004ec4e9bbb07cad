//! The records of a database, with the statements that read and write them.

use std::time::Duration;

use relent_core::Instant;
use relent_core::idempotency::{ClaimConfig, ClaimStage, Fingerprint, Lease, Record};
use rusqlite::{Connection, OptionalExtension, PrepFlags, Statement, params};

use super::error::SqliteError;
use crate::store::{Change, Claimed, Key, WriteError, claimed};

/// The number of expired records that are removed together.
const EXPIRED_BATCH: i64 = 128;

/// The decision on a request with a key.
pub(crate) struct Found {
    pub(crate) claimed: Claimed,
    /// The stored record.
    pub(crate) before: Option<Record>,
    /// The record to write instead.
    pub(crate) change: Option<Record>,
}

/// A record and its encoded response.
type Stored = (Record, Option<Vec<u8>>);

/// The records of a database, with their statements. Each is prepared on first use, since the database may have no
/// tables of this store.
pub(crate) struct Records<'c> {
    connection: &'c Connection,
    read: Option<Statement<'c>>,
    put: Option<Statement<'c>>,
    put_first: Option<Statement<'c>>,
    remove: Option<Statement<'c>>,
}

/// Returns the prepared statement, and prepares it on first use.
fn held<'s, 'c>(
    place: &'s mut Option<Statement<'c>>,
    connection: &'c Connection,
    statement: &str,
) -> rusqlite::Result<&'s mut Statement<'c>> {
    match place {
        Some(held) => Ok(held),
        empty => {
            let flags = PrepFlags::SQLITE_PREPARE_PERSISTENT;
            Ok(empty.insert(connection.prepare_with_flags(statement, flags)?))
        }
    }
}

impl<'c> Records<'c> {
    pub(crate) const fn new(connection: &'c Connection) -> Self {
        Self {
            connection,
            read: None,
            put: None,
            put_first: None,
            remove: None,
        }
    }

    /// Decides on a request with this key, without writing.
    pub(crate) fn find(
        &mut self,
        now: Instant,
        key: &Key,
        owner: u128,
        fingerprint: Fingerprint,
        config: &ClaimConfig,
    ) -> Result<Found, SqliteError> {
        let (before, answer) = self.read(key)?.unzip();
        let (claim, change) = Record::claim(before.as_ref(), now, config, owner, fingerprint);
        let claimed = claimed(claim, now, answer.flatten()).map_err(SqliteError::Record)?;
        Ok(Found {
            claimed,
            before,
            change,
        })
    }

    /// Applies a change of an execution to its record. The clock of the store is to advance by `behind` at once.
    pub(super) fn write(
        &mut self,
        now: Instant,
        behind: Duration,
        key: &Key,
        lease: &Lease,
        change: &Change,
        config: &ClaimConfig,
    ) -> Result<Lease, WriteError<SqliteError>> {
        let stored = self.read(key)?.map(|(record, _)| record);
        let record = stored
            .filter(|record| !record.is_expired(now))
            .ok_or(WriteError::Gone)?;
        let (mut record, lease) = change.make(&record, now, lease, config)?;
        if let ClaimStage::Unknown { since } = &mut record.stage
            && *since == now
        {
            // Otherwise the outcome would be older than it is when the clock advances.
            *since = since.saturating_add(behind);
        }
        self.put(key, &record, change.answer().as_deref())
            .map_err(SqliteError::from)?;
        Ok(lease)
    }

    pub(crate) fn read(&mut self, key: &Key) -> Result<Option<Stored>, SqliteError> {
        let select =
            "SELECT fingerprint, owner, fence, stage, until, step, repeated, expires, answer
             FROM relent_idempotency_1 WHERE key = ?1";
        let select = held(&mut self.read, self.connection, select)?;
        let row = select.query_row([key.0], |row| {
            let until = instant(row.get(4)?);
            let stage = match row.get(3)? {
                0_u8 => Some(ClaimStage::Running { until }),
                1 => Some(ClaimStage::Completed),
                2 => Some(ClaimStage::Released),
                3 => Some(ClaimStage::Unknown { since: until }),
                _ => None,
            };
            let record = stage.map(|stage| {
                Ok::<_, rusqlite::Error>(Record {
                    fingerprint: Fingerprint(row.get(0)?),
                    owner: u128::from_be_bytes(row.get(1)?),
                    fence: row.get::<_, i64>(2)?.cast_unsigned(),
                    stage,
                    step: row.get(5)?,
                    repeated: row.get(6)?,
                    expires: instant(row.get(7)?),
                })
            });
            Ok((record.transpose()?, row.get(8)?))
        });
        match row.optional()? {
            None => Ok(None),
            Some((Some(record), answer)) => Ok(Some((record, answer))),
            Some((None, _)) => Err(SqliteError::Record(
                "it is in a stage that this version does not know".into(),
            )),
        }
    }

    /// Inserts or replaces a record.
    pub(crate) fn put(
        &mut self,
        key: &Key,
        record: &Record,
        answer: Option<&[u8]>,
    ) -> rusqlite::Result<()> {
        let insert = "INSERT OR REPLACE INTO relent_idempotency_1
             (key, fingerprint, owner, fence, stage, until, step, repeated, expires, answer)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
        let insert = held(&mut self.put, self.connection, insert)?;
        insert_by(insert, key, record, answer).map(drop)
    }

    /// Inserts the first record of a key; returns false if there was one.
    pub(crate) fn put_first(
        &mut self,
        key: &Key,
        record: &Record,
        answer: Option<&[u8]>,
    ) -> rusqlite::Result<bool> {
        let insert = "INSERT INTO relent_idempotency_1
             (key, fingerprint, owner, fence, stage, until, step, repeated, expires, answer)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT (key) DO NOTHING";
        let insert = held(&mut self.put_first, self.connection, insert)?;
        Ok(insert_by(insert, key, record, answer)? == 1)
    }

    /// Removes expired records. The limit is part of the text: SQLite prepares a statement with a bound limit again
    /// for each run.
    pub(super) fn remove_expired(&mut self, now: Instant) -> rusqlite::Result<usize> {
        let delete = held(&mut self.remove, self.connection, &delete(EXPIRED_BATCH))?;
        delete.execute([nanos(now)])
    }
}

/// Returns the statement that removes up to `most` expired records.
pub(super) fn delete(most: i64) -> String {
    format!(
        "DELETE FROM relent_idempotency_1 WHERE rowid IN (
             SELECT rowid FROM relent_idempotency_1 WHERE expires <= ?1 LIMIT {most})"
    )
}

/// Runs the insert, and returns the number of written records.
fn insert_by(
    insert: &mut Statement<'_>,
    key: &Key,
    record: &Record,
    answer: Option<&[u8]>,
) -> rusqlite::Result<usize> {
    let (stage, until) = match record.stage {
        ClaimStage::Running { until } => (0_u8, until),
        ClaimStage::Completed => (1, Instant::ORIGIN),
        ClaimStage::Released => (2, Instant::ORIGIN),
        ClaimStage::Unknown { since } => (3, since),
        // Stages added to the enum later are stored as 3, which is never runnable.
        _ => (3, Instant::ORIGIN),
    };
    insert.execute(params![
        key.0,
        record.fingerprint.0,
        record.owner.to_be_bytes(),
        record.fence.cast_signed(),
        stage,
        nanos(until),
        record.step,
        record.repeated,
        nanos(record.expires),
        answer,
    ])
}

/// SQLite integers are signed, so times are valid until 2262.
pub(super) fn nanos(instant: Instant) -> i64 {
    i64::try_from(instant.as_nanos()).unwrap_or(i64::MAX)
}

fn instant(nanos: i64) -> Instant {
    match u64::try_from(nanos) {
        Ok(nanos) if nanos < i64::MAX.cast_unsigned() => Instant::from_nanos(nanos),
        Ok(_) => Instant::MAX,
        Err(_) => Instant::ORIGIN,
    }
}
