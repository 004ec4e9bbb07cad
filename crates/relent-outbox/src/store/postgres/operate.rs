//! Changes by operators.

use std::collections::BTreeSet;

use tokio_postgres::types::ToSql;

use super::error::PostgresError;
use super::read;
use super::transaction::Transaction;
use super::values::{TIME, number};
use super::work::{advance, lock};
use crate::endpoint::{Activity, Endpoint, OnDeadLetter};
use crate::store::{Deletion, MAX_TRANSACTION_ROWS, changes_url, text};

type Result<T> = std::result::Result<T, PostgresError>;

/// The first revision of an endpoint: the time, so that it exceeds those of a deleted endpoint of the same name.
const FIRST_REVISION: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// Whether attempts of a locked endpoint run, which may still start by the old rules.
async fn runs(transaction: &Transaction<'_>, endpoint: i64) -> Result<bool> {
    let runs = transaction
        .prepare_cached(
            "SELECT EXISTS (SELECT FROM relent_delivery_1 WHERE endpoint = $1 AND state = 1)",
        )
        .await?;
    let row = transaction.query_one(&runs, &[&endpoint]).await?;
    Ok(row.try_get(0)?)
}

/// Registers or replaces an endpoint. Returns whether it [`runs`].
pub(super) async fn put_endpoint(
    transaction: &Transaction<'_>,
    endpoint: &Endpoint,
) -> Result<bool> {
    endpoint.check()?;
    let spec = serde_json::to_string(endpoint)
        .map_err(|error| PostgresError::Stored(format!("the endpoint is no JSON: {error}")))?;
    let on_dead_letter: i16 = match endpoint.on_dead_letter {
        OnDeadLetter::Block => 0,
        OnDeadLetter::Skip => 1,
    };
    let before = transaction.prepare_cached(
        "SELECT on_dead_letter, spec FROM relent_endpoint_1 WHERE tenant = $1 AND name = $2 FOR NO KEY UPDATE",
    ).await?;
    let before = transaction
        .query_opt(&before, &[&endpoint.tenant, &endpoint.name])
        .await?;
    let before: Option<(i16, String)> = match before {
        Some(row) => Some((row.try_get(0)?, row.try_get(1)?)),
        None => None,
    };
    let moves = before
        .as_ref()
        .is_some_and(|(_, stored)| changes_url(stored, endpoint));
    let put = transaction
        .prepare_cached(&format!(
            "INSERT INTO relent_endpoint_1 AS e (tenant, name, spec, on_dead_letter, revision)
         VALUES ($1, $2, $3, $4, {FIRST_REVISION})
         ON CONFLICT (tenant, name) DO UPDATE
         SET spec = excluded.spec, on_dead_letter = excluded.on_dead_letter, revision = e.revision + 1,
             health = CASE WHEN $5::boolean THEN '' ELSE e.health END
         RETURNING id"
        ))
        .await?;
    let row = transaction
        .query_one(
            &put,
            &[
                &endpoint.tenant,
                &endpoint.name,
                &spec,
                &on_dead_letter,
                &moves,
            ],
        )
        .await?;
    let id: i64 = row.try_get(0)?;
    subscribe(transaction, id, endpoint).await?;
    if before.is_some_and(|(before, _)| before != on_dead_letter) {
        // Messages behind dead letters may become free. For the reverse change each claim checks.
        let keys = transaction
            .prepare_cached(
                "SELECT DISTINCT order_key FROM relent_delivery_1
             WHERE endpoint = $1 AND order_key IS NOT NULL AND state = 3",
            )
            .await?;
        let rows = transaction.query(&keys, &[&id]).await?;
        let mut orders = BTreeSet::new();
        for row in rows {
            orders.insert((id, row.try_get(0)?));
        }
        advance(transaction, orders).await?;
    }
    runs(transaction, id).await
}

/// Replaces the key check if it still equals `before`. Returns whether it did.
pub(super) async fn replace_key_check(
    transaction: &Transaction<'_>,
    check: &str,
    before: Option<&str>,
) -> Result<bool> {
    let statement = match before {
        Some(_) => "UPDATE relent_key_1 SET checked = $1 WHERE checked = $2",
        // If two transactions store the first one, the second waits here and finds it.
        None => {
            "INSERT INTO relent_key_1 (checked) SELECT $1 WHERE $2::text IS NULL ON CONFLICT DO NOTHING"
        }
    };
    let statement = transaction.prepare_cached(statement).await?;
    Ok(transaction.execute(&statement, &[&check, &before]).await? > 0)
}

/// Stores the subscriptions of an endpoint. It is locked, so concurrent registrations are serialized.
async fn subscribe(transaction: &Transaction<'_>, id: i64, endpoint: &Endpoint) -> Result<()> {
    let forget = transaction
        .prepare_cached("DELETE FROM relent_subscription_1 WHERE endpoint = $1")
        .await?;
    transaction.execute(&forget, &[&id]).await?;
    if endpoint.topics.is_empty() {
        return Ok(());
    }
    let subscribe = transaction
        .prepare_cached(
            "INSERT INTO relent_subscription_1 (tenant, pattern, endpoint)
             SELECT DISTINCT $1::text, pattern, $3::bigint FROM unnest($2::text[]) AS i (pattern)",
        )
        .await?;
    transaction
        .execute(&subscribe, &[&endpoint.tenant, &endpoint.topics, &id])
        .await?;
    Ok(())
}

/// Replaces an endpoint. Returns whether it [`runs`]; `None` if its revision has changed.
pub(super) async fn replace_endpoint(
    transaction: &Transaction<'_>,
    endpoint: &Endpoint,
    revision: Option<i64>,
) -> Result<Option<bool>> {
    endpoint.check()?;
    let names: [&(dyn ToSql + Sync); 2] = [&endpoint.tenant, &endpoint.name];
    let is_same = if let Some(revision) = revision {
        let find = transaction.prepare_cached(
            "SELECT revision FROM relent_endpoint_1 WHERE tenant = $1 AND name = $2 FOR NO KEY UPDATE",
        ).await?;
        let found = transaction.query_opt(&find, &names).await?;
        found.map(|row| row.try_get(0)).transpose()? == Some(revision)
    } else {
        // If two transactions register it concurrently, the second waits here and finds it.
        let add = transaction.prepare_cached(&format!(
            "INSERT INTO relent_endpoint_1 (tenant, name, spec, on_dead_letter, revision) VALUES ($1, $2, '', 0, {FIRST_REVISION})
             ON CONFLICT DO NOTHING"
        )).await?;
        transaction.execute(&add, &names).await? > 0
    };
    match is_same {
        true => put_endpoint(transaction, endpoint).await.map(Some),
        false => Ok(None),
    }
}

/// Deletes these messages of an endpoint. Without any, deletes the endpoint and the rest of its messages, unless that is
/// more than a batch. Returns the number of messages, whether that was the end, and whether the endpoint [`runs`].
pub(super) async fn delete_some(
    transaction: &Transaction<'_>,
    tenant: &str,
    name: &str,
    discard: bool,
    rows: &[i64],
) -> Result<(Deletion, bool, bool)> {
    // This lock and those of producers exclude each other.
    let find = transaction
        .prepare_cached(
            "SELECT id FROM relent_endpoint_1 WHERE tenant = $1 AND name = $2 FOR UPDATE",
        )
        .await?;
    let Some(found) = transaction.query_opt(&find, &[&tenant, &name]).await? else {
        return Ok((Deletion::Unknown, true, false));
    };
    let id: i64 = found.try_get(0)?;
    if !discard {
        let count = transaction
            .prepare_cached(
                "SELECT (SELECT count(*) FROM relent_delivery_1 WHERE endpoint = $1 AND state = 0)
                 + (SELECT count(*) FROM relent_delivery_1 WHERE endpoint = $1 AND state = 1)
                 + (SELECT count(*) FROM relent_delivery_1 WHERE endpoint = $1 AND state = 5),
             (SELECT count(*) FROM relent_delivery_1 WHERE endpoint = $1 AND state = 3)",
            )
            .await?;
        let counted = transaction.query_one(&count, &[&id]).await?;
        let (pending, dead) = (read::count(&counted, 0)?, read::count(&counted, 1)?);
        if pending + dead > 0 {
            return Ok((Deletion::Refused { pending, dead }, true, false));
        }
    }
    let runs = runs(transaction, id).await?;
    let is_rest = rows.is_empty();
    let rows = match is_rest {
        true => rest(transaction, id).await?,
        false => rows.to_vec(),
    };
    let is_end = is_rest && rows.len() < MAX_TRANSACTION_ROWS;
    if is_rest && !is_end {
        // So many were enqueued since the search: the next one finds them, the latest first.
        return Ok((Deletion::Deleted { messages: 0 }, false, runs));
    }
    // Deliveries first, because a purge locks them before it deletes.
    let orders_of = transaction
        .prepare_cached(
            "SELECT order_key FROM relent_delivery_1 WHERE row = ANY($2::bigint[]) AND endpoint = $1 FOR UPDATE",
        )
        .await?;
    let mut orders = BTreeSet::new();
    for row in transaction.query(&orders_of, &[&id, &rows]).await? {
        if let Some(order) = row.try_get(0)? {
            orders.insert((id, order));
        }
    }
    let delete = transaction
        .prepare_cached(
            "WITH deliveries AS (DELETE FROM relent_delivery_1 WHERE row = ANY($2::bigint[]) AND endpoint = $1),
             attempts AS (DELETE FROM relent_attempt_1 WHERE row = ANY($2::bigint[]))
             DELETE FROM relent_message_1 WHERE row = ANY($2::bigint[]) AND endpoint = $1",
        )
        .await?;
    let messages = transaction.execute(&delete, &[&id, &rows]).await?;
    if is_end {
        for delete in [
            "DELETE FROM relent_subscription_1 WHERE endpoint = $1",
            "DELETE FROM relent_endpoint_1 WHERE id = $1",
        ] {
            let delete = transaction.prepare_cached(delete).await?;
            transaction.execute(&delete, &[&id]).await?;
        }
    } else {
        // A resent message may have waited for a deleted one that was enqueued later.
        advance(transaction, orders).await?;
    }
    Ok((Deletion::Deleted { messages }, is_end, runs))
}

/// Messages of a locked endpoint, at most a batch. In any order, so that no plan reads those of other endpoints.
async fn rest(transaction: &Transaction<'_>, endpoint: i64) -> Result<Vec<i64>> {
    let rest = transaction
        .prepare_cached("SELECT row FROM relent_message_1 WHERE endpoint = $1 LIMIT $2::bigint")
        .await?;
    let most = number(MAX_TRANSACTION_ROWS);
    let rows = transaction.query(&rest, &[&endpoint, &most]).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Enables or disables an endpoint. Returns whether it [`runs`]; `None` if there is none.
pub(super) async fn set_activity(
    transaction: &Transaction<'_>,
    tenant: &str,
    name: &str,
    activity: Activity,
    reason: &str,
) -> Result<Option<bool>> {
    let (activity, reason) = match activity {
        Activity::Active => (0_i16, String::new()),
        Activity::Disabled => (1, text(reason)),
    };
    let set = transaction.prepare_cached(
        "UPDATE relent_endpoint_1
         SET activity = $3, reason = $4, health = CASE WHEN activity = 1 AND $3 = 0::smallint THEN '' ELSE health END,
             revision = revision + (activity = 1 AND $3 = 0::smallint)::integer
         WHERE tenant = $1 AND name = $2 RETURNING id",
    ).await?;
    let set = transaction
        .query_opt(&set, &[&tenant, &name, &activity, &reason])
        .await?;
    match set {
        Some(row) => runs(transaction, row.try_get(0)?).await.map(Some),
        None => Ok(None),
    }
}

/// A change to each selected message.
pub(super) struct Change {
    /// The states that it applies to.
    pub(super) states: &'static str,
    /// The assignments, which may use `now`.
    set: &'static str,
}

/// Restarts the schedule. The session is a marker and no schedule, so that the message is not fresh. Claims check
/// whether earlier messages of its order key are pending.
pub(super) const RESEND: Change = Change {
    states: "2, 3, 4",
    set: "state = 0, due = now, began = now, attempt = 0, session = '\\x72', ended = NULL, reason = ''",
};
/// Messages that are already due stay so.
pub(super) const SEND_NOW: Change = Change {
    states: "0, 5",
    set: "due = least(due, now), began = least(began, now)",
};
pub(super) const CANCEL: Change = Change {
    states: "0, 3, 5",
    set: "state = 4, ended = now, reason = CASE state WHEN 3 THEN reason ELSE 'cancelled by an operator' END",
};

/// Locks the endpoints of those of these rows that meet an additional SQL condition.
async fn lock_endpoints_of(
    transaction: &Transaction<'_>,
    rows: &[i64],
    condition: &str,
) -> Result<()> {
    let select = transaction
        .prepare_cached(&format!(
            "SELECT DISTINCT endpoint FROM relent_delivery_1 WHERE row = ANY($1::bigint[]){condition}"
        ))
        .await?;
    let mut endpoints = BTreeSet::new();
    for row in transaction.query(&select, &[&rows]).await? {
        endpoints.insert(row.try_get(0)?);
    }
    lock(transaction, &endpoints).await
}

/// Changes those of these rows that are still in this state, and did not end after `ended_by`: another operator or a
/// worker may have changed them since they were selected.
pub(super) async fn change_rows(
    transaction: &Transaction<'_>,
    rows: &[i64],
    change: &Change,
    in_state: &str,
    ended_by: i64,
) -> Result<u64> {
    lock_endpoints_of(transaction, rows, "").await?;
    let Change { states, set } = change;
    let update = transaction
        .prepare_cached(&format!(
            "WITH {TIME} UPDATE relent_delivery_1 AS d SET {set} FROM time
         WHERE row = ANY($1::bigint[]) AND state IN ({states}){in_state} AND coalesce(ended, 0) <= $2::bigint
         RETURNING endpoint, order_key"
        ))
        .await?;
    let changed = transaction.query(&update, &[&rows, &ended_by]).await?;
    let mut orders = BTreeSet::new();
    for row in &changed {
        if let Some(order) = row.try_get(1)? {
            orders.insert((row.try_get(0)?, order));
        }
    }
    advance(transaction, orders).await?;
    Ok(changed.len() as u64)
}

/// SQL condition for a delivery `d` that ended at least `$1` microseconds ago. Dead letters that block later messages of
/// their order key are kept.
const PURGEABLE: &str =
    "ended <= (SELECT now - $1::bigint FROM time) AND NOT (d.state = 3 AND d.order_key IS NOT NULL
    AND EXISTS (SELECT FROM relent_endpoint_1 WHERE id = d.endpoint AND on_dead_letter = 0)
    AND EXISTS (SELECT FROM relent_delivery_1 AS next
        WHERE next.endpoint = d.endpoint AND next.order_key = d.order_key AND next.row > d.row
            AND next.state IN (0, 5)))";

/// Finds messages to purge.
pub(super) async fn purgeable(
    transaction: &Transaction<'_>,
    age: i64,
    most: usize,
) -> Result<Vec<i64>> {
    let old = transaction
        .prepare_cached(&format!(
            "WITH {TIME} SELECT row FROM relent_delivery_1 AS d WHERE {PURGEABLE} ORDER BY ended LIMIT $2::bigint"
        ))
        .await?;
    let rows = transaction.query(&old, &[&age, &number(most)]).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Purges those of these messages that may still be purged.
pub(super) async fn purge(transaction: &Transaction<'_>, age: i64, rows: &[i64]) -> Result<u64> {
    // A claim that puts a message behind one of these is either earlier and visible, or runs after the deletion.
    lock_endpoints_of(transaction, rows, " AND order_key IS NOT NULL").await?;
    let purge = transaction
        .prepare_cached(&format!(
            "WITH {TIME}, old AS MATERIALIZED (
                 SELECT row FROM relent_delivery_1 AS d WHERE row = ANY($2::bigint[]) AND {PURGEABLE}
                 FOR UPDATE OF d SKIP LOCKED),
             deliveries AS (DELETE FROM relent_delivery_1 WHERE row IN (SELECT row FROM old)),
             attempts AS (DELETE FROM relent_attempt_1 WHERE row IN (SELECT row FROM old))
             DELETE FROM relent_message_1 WHERE row IN (SELECT row FROM old)"
        ))
        .await?;
    Ok(transaction.execute(&purge, &[&age, &rows]).await?)
}
