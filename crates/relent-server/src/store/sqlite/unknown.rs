//! Unknown outcomes in an SQLite database.

use relent_core::Instant;
use relent_core::idempotency::ClaimConfig;
use rusqlite::{Connection, params};

use super::error::SqliteError;
use super::records::{Records, nanos};
use crate::store::{Key, Resolution, ResolveError, UnknownOutcome};

const FIND: &str = "
    SELECT key FROM relent_idempotency_1
    WHERE stage IN (0, 3) AND (stage = 3 OR until <= ?1) AND expires > ?1 AND (expires, key) > (?2, ?3)
    ORDER BY expires, key LIMIT ?4";

pub(super) fn find(
    connection: &Connection,
    now: Instant,
    after: Option<&UnknownOutcome>,
    most: usize,
    config: &ClaimConfig,
) -> Result<Vec<UnknownOutcome>, SqliteError> {
    let mut select = connection.prepare_cached(FIND)?;
    let (expires, key) = after.map_or((-1, &[][..]), |after| {
        (nanos(after.record().expires), &after.key().0[..])
    });
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let keys = select.query_map(params![nanos(now), expires, key, most], |row| {
        Ok(Key(row.get(0)?))
    })?;
    let keys: Vec<_> = keys.collect::<Result<_, _>>()?;
    let (mut found, mut records) = (Vec::with_capacity(keys.len()), Records::new(connection));
    for key in keys {
        if let Some((record, _)) = records.read(&key)? {
            found.extend(UnknownOutcome::of(key, record, now, config));
        }
    }
    Ok(found)
}

pub(super) fn resolve(
    connection: &Connection,
    now: Instant,
    found: &UnknownOutcome,
    resolution: &Resolution,
    config: &ClaimConfig,
) -> Result<(), ResolveError<SqliteError>> {
    let mut records = Records::new(connection);
    let stored = records.read(found.key())?.map(|(record, _)| record);
    let record = resolution.make(stored.as_ref(), now, found, config)?;
    let answer = resolution.answer().map(|answer| answer.to_bytes());
    let put = records.put(found.key(), &record, answer.as_deref());
    Ok(put.map_err(SqliteError::from)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlite_finds_unknown_outcomes_by_index_in_order() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(super::super::TABLES).unwrap();
        let explain = format!("EXPLAIN QUERY PLAN {FIND}");
        let mut explain = connection.prepare(&explain).unwrap();
        let none: [u8; 0] = [];
        let plan = explain.query_map(params![5, 6, none, 7], |row| row.get::<_, String>(3));
        let plan: Vec<_> = plan.unwrap().map(Result::unwrap).collect();
        let [step] = &plan[..] else {
            panic!("{plan:?}");
        };
        assert!(
            step.contains("SEARCH") && step.contains("relent_idempotency_1_unknown"),
            "{step}"
        );
    }
}
