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
            found.extend(UnknownOutcome::of(key, record, now));
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
    use std::time::Duration;

    use relent_core::idempotency::Fingerprint;

    use super::*;
    use crate::store::{Change, Claimed};

    /// After a jump of the machine's clock, see `Clock`.
    #[test]
    fn an_outcome_does_not_age_while_the_clock_of_the_store_catches_up() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(super::super::TABLES).unwrap();
        let (now, hour) = (Instant::from_nanos(1_000), Duration::from_secs(3600));
        let (key, config) = (Key([1; 32]), ClaimConfig::DEFAULT);
        let mut records = Records::new(&connection);
        let found = records.find(now, &key, 7, Fingerprint([2; 32]), &config);
        let found = found.unwrap();
        let Claimed::Run { lease, .. } = found.claimed else {
            panic!("the key is new");
        };
        records.put(&key, &found.change.unwrap(), None).unwrap();
        let ended = records.write(now, hour, &key, &lease, &Change::GiveUp, &config);
        ended.unwrap();
        for (passed, age) in [(0, 0), (3600, 0), (3660, 60)] {
            let now = now.saturating_add(Duration::from_secs(passed));
            let found = find(&connection, now, None, 10).unwrap();
            assert_eq!(found[0].age(), Duration::from_secs(age));
        }
    }

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
