//! Changes by operators.

use rusqlite::{Connection, OptionalExtension};

use super::error::SqliteError;
use super::invariants::Touched;
use super::read;
use crate::endpoint::{Activity, Endpoint, OnDeadLetter};
use crate::store::{Deletion, MAX_TRANSACTION_ROWS, changes_url, text};

/// Whether attempts of the endpoint run, which may still start by the old rules.
pub(super) fn runs(connection: &Connection, endpoint: i64) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT 1 FROM relent_delivery_1 WHERE endpoint = ?1 AND state = 1")?
        .exists([endpoint])
}

/// Registers or replaces an endpoint. Returns whether it [`runs`].
pub(super) fn put_endpoint(
    connection: &Connection,
    endpoint: &Endpoint,
) -> Result<bool, SqliteError> {
    endpoint.check()?;
    let spec = serde_json::to_string(endpoint)
        .map_err(|error| SqliteError::Stored(format!("the endpoint is no JSON: {error}")))?;
    let names = (&endpoint.tenant, &endpoint.name);
    let mut before = connection.prepare_cached(
        "SELECT on_dead_letter, spec FROM relent_endpoint_1 WHERE tenant = ?1 AND name = ?2",
    )?;
    let before = before.query_row(names, |row| Ok((row.get(0)?, row.get(1)?)));
    let before: Option<(i64, String)> = before.optional()?;
    let moves = before
        .as_ref()
        .is_some_and(|(_, stored)| changes_url(stored, endpoint));
    let on_dead_letter = match endpoint.on_dead_letter {
        OnDeadLetter::Block => 0,
        OnDeadLetter::Skip => 1,
    };
    // The first revision is the time, so that it exceeds those of a deleted endpoint of the same name.
    let mut put = connection.prepare_cached(
        "INSERT INTO relent_endpoint_1 (tenant, name, spec, on_dead_letter, revision)
         VALUES (?1, ?2, ?3, ?4, CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))
         ON CONFLICT (tenant, name) DO UPDATE
         SET spec = excluded.spec, on_dead_letter = excluded.on_dead_letter, revision = revision + 1,
             health = iif(?5, x'', health)
         RETURNING id",
    )?;
    let values = (names.0, names.1, spec, on_dead_letter, moves);
    let id = put.query_row(values, |row| row.get(0))?;
    subscribe(connection, id, endpoint)?;
    if before.is_some_and(|(before, _)| before != on_dead_letter) {
        // Messages behind dead letters may become free, or the reverse.
        let mut keys = connection.prepare(
            "SELECT DISTINCT order_key FROM relent_delivery_1
             WHERE endpoint = ?1 AND order_key IS NOT NULL AND state = 3",
        )?;
        let mut touched = Touched::default();
        for key in keys.query_map([id], |row| row.get(0))? {
            touched.add(id, Some(key?));
        }
        touched.follow(connection)?;
    }
    Ok(runs(connection, id)?)
}

/// Stores the subscriptions of an endpoint.
fn subscribe(connection: &Connection, id: i64, endpoint: &Endpoint) -> rusqlite::Result<()> {
    connection
        .prepare_cached("DELETE FROM relent_subscription_1 WHERE endpoint = ?1")?
        .execute([id])?;
    let mut subscribe = connection.prepare_cached(
        "INSERT OR IGNORE INTO relent_subscription_1 (tenant, pattern, endpoint) VALUES (?1, ?2, ?3)",
    )?;
    for pattern in &endpoint.topics {
        subscribe.execute((&endpoint.tenant, pattern, id))?;
    }
    Ok(())
}

/// Replaces an endpoint. Returns whether it [`runs`]; `None` if its revision has changed.
pub(super) fn replace_endpoint(
    connection: &Connection,
    endpoint: &Endpoint,
    revision: Option<i64>,
) -> Result<Option<bool>, SqliteError> {
    let mut find = connection
        .prepare_cached("SELECT revision FROM relent_endpoint_1 WHERE tenant = ?1 AND name = ?2")?;
    let found = find.query_row((&endpoint.tenant, &endpoint.name), |row| row.get(0));
    match found.optional()? == revision {
        true => put_endpoint(connection, endpoint).map(Some),
        false => Ok(None),
    }
}

/// Deletes these messages of an endpoint. Without any, deletes the endpoint and the rest of its messages, unless that is
/// more than a batch. Returns the number of messages, whether that was the end, and whether the endpoint [`runs`].
pub(super) fn delete_some(
    connection: &Connection,
    tenant: &str,
    name: &str,
    discard: bool,
    rows: &[i64],
) -> Result<(Deletion, bool, bool), SqliteError> {
    let mut find = connection
        .prepare_cached("SELECT id FROM relent_endpoint_1 WHERE tenant = ?1 AND name = ?2")?;
    let found = find.query_row((tenant, name), |row| row.get(0));
    let Some(id) = found.optional()? else {
        return Ok((Deletion::Unknown, true, false));
    };
    let id: i64 = id;
    if !discard {
        let mut counts = connection.prepare_cached(
            "SELECT (SELECT count(*) FROM relent_delivery_1 WHERE endpoint = ?1 AND state = 0)
                 + (SELECT count(*) FROM relent_delivery_1 WHERE endpoint = ?1 AND state = 1)
                 + (SELECT count(*) FROM relent_delivery_1 WHERE endpoint = ?1 AND state = 5),
             (SELECT count(*) FROM relent_delivery_1 WHERE endpoint = ?1 AND state = 3)",
        )?;
        let counts = counts.query_row([id], |row| Ok((read::count(row, 0)?, read::count(row, 1)?)));
        let (pending, dead) = counts?;
        if pending + dead > 0 {
            return Ok((Deletion::Refused { pending, dead }, true, false));
        }
    }
    let runs = runs(connection, id)?;
    let is_rest = rows.is_empty();
    let rows = match is_rest {
        true => read::last_rows(connection, tenant, name, MAX_TRANSACTION_ROWS)?,
        false => rows.to_vec(),
    };
    let is_end = is_rest && rows.len() < MAX_TRANSACTION_ROWS;
    let mut of_endpoint = connection
        .prepare_cached("DELETE FROM relent_message_1 WHERE row = ?1 AND endpoint = ?2")?;
    let mut delivery = connection
        .prepare_cached("DELETE FROM relent_delivery_1 WHERE row = ?1 RETURNING order_key")?;
    let mut attempts = connection.prepare_cached("DELETE FROM relent_attempt_1 WHERE row = ?1")?;
    let (mut touched, mut messages) = (Touched::default(), 0);
    for row in rows {
        if of_endpoint.execute((row, id))? > 0 {
            let order = delivery.query_row([row], |row| Ok(row.get(0).unwrap_or_default()));
            touched.add(id, order.optional()?.flatten());
            attempts.execute([row])?;
            messages += 1;
        }
    }
    if is_end {
        for delete in [
            "DELETE FROM relent_subscription_1 WHERE endpoint = ?1",
            "DELETE FROM relent_endpoint_1 WHERE id = ?1",
        ] {
            connection.prepare_cached(delete)?.execute([id])?;
        }
    } else {
        // A resent message may have waited for a deleted one that was enqueued later.
        touched.follow(connection)?;
    }
    Ok((Deletion::Deleted { messages }, is_end, runs))
}

/// Replaces the key check if it still equals `before`. Returns whether it did.
pub(super) fn replace_key_check(
    connection: &Connection,
    check: &str,
    before: Option<&str>,
) -> Result<bool, SqliteError> {
    if read::key_check(connection)?.as_deref() != before {
        return Ok(false);
    }
    connection.execute(
        "INSERT INTO relent_key_1 (one, checked) VALUES (1, ?1)
         ON CONFLICT (one) DO UPDATE SET checked = excluded.checked",
        [check],
    )?;
    Ok(true)
}

/// Enables or disables an endpoint. Returns whether it [`runs`]; `None` if there is none.
pub(super) fn set_activity(
    connection: &Connection,
    tenant: &str,
    name: &str,
    activity: Activity,
    reason: &str,
) -> Result<Option<bool>, SqliteError> {
    let (activity, reason) = match activity {
        Activity::Active => (0, String::new()),
        Activity::Disabled => (1, text(reason)),
    };
    let mut set = connection.prepare_cached(
        "UPDATE relent_endpoint_1
         SET activity = ?3, reason = ?4, health = iif(activity = 1 AND ?3 = 0, x'', health),
             revision = revision + (activity = 1 AND ?3 = 0)
         WHERE tenant = ?1 AND name = ?2 RETURNING id",
    )?;
    let set = set.query_row((tenant, name, activity, reason), |row| row.get(0));
    let runs = |endpoint| runs(connection, endpoint);
    Ok(set.optional()?.map(runs).transpose()?)
}

/// Restarts the schedule, behind earlier messages of the order key. The session is a marker and no schedule, so that
/// the message is not fresh.
const RESEND: &str = "UPDATE relent_delivery_1 AS d
    SET state = iif(order_key IS NULL, 0, 5), due = ?2, began = ?2, written = ?2, attempt = 0, session = x'72', ended = NULL, reason = ''
    WHERE row = ?1 AND state IN (2, 3, 4) RETURNING endpoint, order_key";
const CANCEL: &str = "UPDATE relent_delivery_1 AS d
    SET reason = iif(state = 3, reason, 'cancelled by an operator'), state = 4, ended = ?2
    WHERE row = ?1 AND state IN (0, 3, 5) RETURNING endpoint, order_key";

/// Messages that are already due stay so.
const SEND_NOW: &str =
    "UPDATE relent_delivery_1 AS d SET due = min(due, ?2), began = min(began, ?2), written = ?2
    WHERE row = ?1 AND state IN (0, 5) RETURNING endpoint, order_key";

/// The statement of a change to each selected message, and the states that it applies to.
pub(super) type Change = fn() -> (&'static str, &'static str);

pub(super) fn resend() -> (&'static str, &'static str) {
    (RESEND, "2, 3, 4")
}

pub(super) fn cancel() -> (&'static str, &'static str) {
    (CANCEL, "0, 3, 5")
}

pub(super) fn send_now() -> (&'static str, &'static str) {
    (SEND_NOW, "0, 5")
}

/// Changes those of these rows that are still in this state, and did not end after `ended_by`: another operator or a
/// worker may have changed them since they were selected.
pub(super) fn change_rows(
    connection: &Connection,
    now: i64,
    rows: &[i64],
    statement: &str,
    in_state: &str,
    ended_by: i64,
) -> Result<u64, SqliteError> {
    let (mut touched, mut changed) = (Touched::default(), 0);
    let still = format!("{in_state} AND coalesce(ended, 0) <= ?3 RETURNING");
    let statement = statement.replace("RETURNING", &still);
    let mut update = connection.prepare_cached(&statement)?;
    for row in rows {
        let found = update.query_row((row, now, ended_by), |row| Ok((row.get(0)?, row.get(1)?)));
        if let Some((endpoint, order)) = found.optional()? {
            touched.add(endpoint, order);
            changed += 1;
        }
    }
    touched.follow(connection)?;
    Ok(changed)
}

/// Purges those of these rows that may still be purged.
pub(super) fn purge(connection: &Connection, until: i64, rows: &[i64]) -> Result<u64, SqliteError> {
    let purgeable = format!(
        "DELETE FROM relent_delivery_1 AS d WHERE row = ?2 AND {}",
        read::PURGEABLE
    );
    let mut purge = connection.prepare_cached(&purgeable)?;
    let mut purged = 0;
    for row in rows {
        if purge.execute((until, row))? > 0 {
            for table in ["relent_attempt_1", "relent_message_1"] {
                connection
                    .prepare_cached(&format!("DELETE FROM {table} WHERE row = ?1"))?
                    .execute([row])?;
            }
            purged += 1;
        }
    }
    Ok(purged)
}
