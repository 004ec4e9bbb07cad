//! Read statements.

use relent_server::postgres::Client;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::error::PostgresError;
use super::values::{TIME, number};
use crate::endpoint::{Activity, Endpoint};
use crate::message::MessageId;
use crate::store::{
    AttemptRecord, Content, EndpointStatus, FAILING, Filter, MessageState, MessageStatus, RECENT,
    RECENT_ATTEMPTS, Recent, Summary,
};
use crate::topic;

type Result<T> = std::result::Result<T, PostgresError>;

pub(super) fn message_id(id: String) -> Result<MessageId> {
    let invalid = |_| PostgresError::Stored("it has a message whose identifier is none".to_owned());
    MessageId::try_from(id).map_err(invalid)
}

pub(super) fn count(row: &Row, column: usize) -> Result<u64> {
    Ok(u64::try_from(row.try_get::<_, i64>(column)?).unwrap_or_default())
}

/// The stored key check.
pub(super) async fn key_check(client: &Client) -> Result<Option<String>> {
    let select = client
        .prepare_cached("SELECT checked FROM relent_key_1")
        .await?;
    let row = client.query_opt(&select, &[]).await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

/// Parses a registered endpoint.
pub(super) fn spec(tenant: &str, name: &str, text: &str) -> Result<Endpoint> {
    let unreadable = |error| PostgresError::Stored(crate::store::unreadable(tenant, name, &error));
    serde_json::from_str(text).map_err(unreadable)
}

const ENDPOINT: &str = "SELECT tenant, name, spec, activity, reason, owner, health,
        (SELECT count(*) FROM relent_delivery_1 WHERE endpoint = e.id AND state = 0)
            + (SELECT count(*) FROM relent_delivery_1 WHERE endpoint = e.id AND state = 1)
            + (SELECT count(*) FROM relent_delivery_1 WHERE endpoint = e.id AND state = 5),
        (SELECT count(*) FROM relent_delivery_1 WHERE endpoint = e.id AND state = 3),
        now - (SELECT min(due) FROM relent_delivery_1 WHERE endpoint = e.id AND state = 0),
        revision
    FROM time, relent_endpoint_1 AS e";

fn status(row: &Row) -> Result<EndpointStatus> {
    let activity = match row.try_get(3)? {
        0_i16 => Activity::Active,
        _ => Activity::Disabled,
    };
    Ok(EndpointStatus {
        endpoint: spec(row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)?,
        revision: row.try_get(10)?,
        activity,
        reason: row.try_get(4)?,
        worker: row.try_get(5)?,
        health: row.try_get(6)?,
        pending: count(row, 7)?,
        dead: count(row, 8)?,
        lag_ms: lag(row.try_get(9)?),
    })
}

/// Converts to milliseconds; `None` if nothing is due.
fn lag(micros: Option<i64>) -> Option<u64> {
    let micros = u64::try_from(micros?).ok()?;
    Some(micros / 1000)
}

pub(super) async fn endpoint(
    client: &Client,
    tenant: &str,
    name: &str,
) -> Result<Option<EndpointStatus>> {
    let one = format!("WITH {TIME} {ENDPOINT} WHERE tenant = $1 AND name = $2");
    let select = client.prepare_cached(&one).await?;
    let row = client.query_opt(&select, &[&tenant, &name]).await?;
    row.as_ref().map(status).transpose()
}

pub(super) async fn endpoints(
    client: &Client,
    after: Option<(String, String)>,
    most: usize,
) -> Result<Vec<EndpointStatus>> {
    let first = after.is_none();
    let (tenant, name) = after.unwrap_or_default();
    let some = format!(
        "WITH {TIME} {ENDPOINT} WHERE $3 OR (tenant, name) > ($1, $2) ORDER BY tenant, name LIMIT $4::bigint"
    );
    let select = client.prepare_cached(&some).await?;
    let rows = client
        .query(&select, &[&tenant, &name, &first, &number(most)])
        .await?;
    rows.iter().map(status).collect()
}

pub(super) async fn needing_attention(client: &Client, most: usize) -> Result<Vec<EndpointStatus>> {
    let failing = FAILING.replace("NONE", r"'\xffffffffffffffff'::bytea");
    let some = format!(
        "WITH {TIME} {ENDPOINT} WHERE activity = 1 OR {failing}
             OR EXISTS (SELECT FROM relent_delivery_1 WHERE endpoint = e.id AND state = 3)
         ORDER BY activity DESC, tenant, name LIMIT $1::bigint"
    );
    let select = client.prepare_cached(&some).await?;
    let rows = client.query(&select, &[&number(most)]).await?;
    rows.iter().map(status).collect()
}

pub(super) async fn recent(client: &Client, tenant: &str, name: &str) -> Result<Option<Recent>> {
    let find = client
        .prepare_cached(&format!(
            "WITH {TIME} SELECT e.id, now / 1000, (
                 SELECT began FROM relent_attempt_1
                 WHERE id <= (SELECT max(id) FROM relent_attempt_1) - $3::bigint + 1 ORDER BY id DESC LIMIT 1)
             FROM time, relent_endpoint_1 AS e WHERE e.tenant = $1 AND e.name = $2"
        ))
        .await?;
    let most = number(RECENT_ATTEMPTS);
    let Some(row) = client.query_opt(&find, &[&tenant, &name, &most]).await? else {
        return Ok(None);
    };
    let (endpoint, now): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    let from = now - i64::try_from(RECENT.as_millis()).unwrap_or(i64::MAX);
    // The window starts later if it has more attempts than are considered.
    let from = row.try_get::<_, Option<i64>>(2)?.unwrap_or(from).max(from);
    let select = client
        .prepare_cached(
            "SELECT a.took, a.error = '' FROM relent_attempt_1 AS a JOIN relent_delivery_1 AS d ON d.row = a.row
             WHERE a.id > (SELECT max(id) FROM relent_attempt_1) - $1::bigint AND a.began >= $2::bigint AND d.endpoint = $3",
        )
        .await?;
    let rows = client.query(&select, &[&most, &from, &endpoint]).await?;
    let attempts: Result<Vec<_>> = rows
        .iter()
        .map(|row| Ok((count(row, 0)?, row.try_get(1)?)))
        .collect();
    Ok(Some(Recent::of(now, from, &attempts?)))
}

pub(super) async fn content(client: &Client, id: &MessageId) -> Result<Option<Content>> {
    let select = client
        .prepare_cached("SELECT content_type, payload FROM relent_message_1 WHERE id = $1")
        .await?;
    let row = client.query_opt(&select, &[&id.as_str()]).await?;
    let content = |row: Row| {
        Ok(Content {
            content_type: row.try_get(0)?,
            payload: row.try_get::<_, Vec<u8>>(1)?.into(),
        })
    };
    row.map(content).transpose()
}

type Value = Box<dyn ToSql + Sync + Send>;

/// The SQL conditions of a filter, and their values.
fn conditions(filter: &Filter) -> (String, Vec<Value>) {
    let (mut words, mut values) = ("true".to_owned(), Vec::<Value>::new());
    let mut add = |more: &str, value: Value| {
        values.push(value);
        let place = format!("${}", values.len());
        words.push_str(" AND ");
        words.push_str(&more.replace('?', &place));
    };
    if let Some(id) = &filter.id {
        add("m.id = ?", Box::new(id.to_string()));
    }
    if let Some(tenant) = &filter.tenant {
        add("e.tenant = ?", Box::new(tenant.clone()));
    }
    if let Some(name) = &filter.endpoint {
        add("e.name = ?", Box::new(name.clone()));
    }
    if let Some(event) = &filter.event {
        // The index begins with the endpoint, which the join provides.
        add("m.event = ?", Box::new(event.clone()));
    }
    if let Some(search) = filter.search.as_ref().filter(|search| !search.is_empty()) {
        // A prefix search by indices.
        add(
            "m.row IN (SELECT row FROM relent_message_1 WHERE id BETWEEN ?::text AND ?::text || chr(1114111)
                 UNION ALL SELECT f.row FROM relent_endpoint_1 AS of, LATERAL (
                     SELECT row FROM relent_message_1
                     WHERE endpoint = of.id AND event BETWEEN ?::text AND ?::text || chr(1114111)) AS f)",
            Box::new(search.clone()),
        );
    }
    if let Some(topic) = &filter.topic {
        match topic::prefix(topic) {
            Some(prefix) => add("starts_with(m.topic, ?::text)", Box::new(prefix.to_owned())),
            None => add("m.topic = ?", Box::new(topic.clone())),
        }
    }
    for (condition, time) in [
        ("m.created >= ?::bigint", filter.enqueued_from_ms),
        ("m.created < ?::bigint", filter.enqueued_until_ms),
        ("d.ended >= ?::bigint", filter.ended_from_ms),
        ("d.ended < ?::bigint", filter.ended_until_ms),
    ] {
        if let Some(ms) = time {
            add(condition, Box::new(ms.saturating_mul(1000)));
        }
    }
    if let Some(before) = &filter.before {
        add("m.row < ?::bigint", Box::new(*before));
    }
    words.push_str(filter.in_state());
    (words, values)
}

/// Messages with their endpoints.
const MESSAGES: &str = "relent_message_1 AS m JOIN relent_delivery_1 AS d ON d.row = m.row
    JOIN relent_endpoint_1 AS e ON e.id = m.endpoint";

fn references(values: &[Value]) -> Vec<&(dyn ToSql + Sync)> {
    values.iter().map(|value| &**value as _).collect()
}

pub(super) async fn messages(
    client: &Client,
    filter: &Filter,
    most: usize,
) -> Result<Vec<MessageStatus>> {
    let (conditions, mut values) = conditions(filter);
    values.push(Box::new(number(most)));
    let place = values.len();
    let select = client.prepare_cached(&format!(
        "SELECT m.id, e.tenant, e.name, m.event, m.topic, d.order_key, d.state, d.reason,
             (SELECT error FROM relent_attempt_1 AS a WHERE a.row = m.row ORDER BY a.id DESC LIMIT 1),
             d.attempt, m.created, d.due, d.ended, m.row,
             CASE WHEN d.state IN (0, 5) AND d.order_key IS NOT NULL AND e.on_dead_letter = 0 THEN (
                 SELECT id FROM relent_message_1 WHERE row = (
                     SELECT min(row) FROM relent_delivery_1 AS b
                     WHERE b.endpoint = d.endpoint AND b.order_key = d.order_key AND b.state = 3 AND b.row < d.row)) END,
             d.state = 5, CASE WHEN e.activity = 1 THEN e.reason END
         FROM {MESSAGES} WHERE {conditions} ORDER BY m.row DESC LIMIT ${place}::bigint"
    )).await?;
    let rows = client.query(&select, &references(&values)).await?;
    rows.iter().map(message).collect()
}

fn message(row: &Row) -> Result<MessageStatus> {
    let state = match row.try_get(6)? {
        0_i16 | 5 => MessageState::Pending,
        1 => MessageState::Running,
        2 => MessageState::Delivered,
        3 => MessageState::Dead,
        4 => MessageState::Cancelled,
        other => {
            return Err(PostgresError::Stored(format!(
                "it has a message in the state {other}, which this version of relent-outbox does not know"
            )));
        }
    };
    let due: i64 = row.try_get(11)?;
    let ended: Option<i64> = row.try_get(12)?;
    Ok(MessageStatus {
        id: MessageId::stored(row.try_get(0)?),
        place: row.try_get(13)?,
        tenant: row.try_get(1)?,
        endpoint: row.try_get(2)?,
        event: row.try_get(3)?,
        topic: row.try_get(4)?,
        order: row.try_get(5)?,
        blocked_by: row.try_get::<_, Option<String>>(14)?.map(MessageId::stored),
        is_behind: row.try_get(15)?,
        disabled: row.try_get(16)?,
        state,
        reason: row.try_get(7)?,
        last_error: row.try_get::<_, Option<_>>(8)?.unwrap_or_default(),
        attempts: u32::try_from(row.try_get::<_, i64>(9)?).unwrap_or(u32::MAX),
        created_ms: row.try_get::<_, i64>(10)? / 1000,
        due_ms: (state == MessageState::Pending).then_some(due / 1000),
        ended_ms: ended.map(|ended| ended / 1000),
    })
}

/// The latest end of a message.
pub(super) async fn latest_end(client: &Client) -> Result<i64> {
    let select = client
        .prepare_cached("SELECT coalesce(max(ended), 0) FROM relent_delivery_1")
        .await?;
    Ok(client.query_one(&select, &[]).await?.try_get(0)?)
}

/// The rows of selected messages in these states, after this row, the earliest first. None that ended after `ended_by`;
/// that condition must not make a plan use the index of ends.
pub(super) async fn rows(
    client: &Client,
    filter: &Filter,
    states: &str,
    ended_by: i64,
    after: i64,
    most: usize,
) -> Result<Vec<i64>> {
    let (conditions, mut values) = conditions(filter);
    values.push(Box::new(after));
    values.push(Box::new(number(most)));
    values.push(Box::new(ended_by));
    let [from, limit, end] = [2, 1, 0].map(|before| values.len() - before);
    let select = client.prepare_cached(&format!(
        "SELECT m.row FROM {MESSAGES}
         WHERE {conditions} AND d.state IN ({states}) AND coalesce(d.ended, 0) <= ${end}::bigint AND m.row > ${from}
         ORDER BY m.row LIMIT ${limit}::bigint"
    )).await?;
    let rows = client.query(&select, &references(&values)).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// The rows of messages of an endpoint, the latest first.
pub(super) async fn last_rows(
    client: &Client,
    tenant: &str,
    name: &str,
    most: usize,
) -> Result<Vec<i64>> {
    let select = client
        .prepare_cached(
            "SELECT row FROM relent_message_1
             WHERE endpoint = (SELECT id FROM relent_endpoint_1 WHERE tenant = $1 AND name = $2)
             ORDER BY row DESC LIMIT $3::bigint",
        )
        .await?;
    let rows = client
        .query(&select, &[&tenant, &name, &number(most)])
        .await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

pub(super) async fn attempts(client: &Client, id: &MessageId) -> Result<Vec<AttemptRecord>> {
    let select = client
        .prepare_cached(
            "SELECT number, began, took, status, error, excerpt, address, request, response FROM relent_attempt_1
         WHERE row = (SELECT row FROM relent_message_1 WHERE id = $1) ORDER BY id",
        )
        .await?;
    let rows = client.query(&select, &[&id.as_str()]).await?;
    let attempt = |row: &Row| {
        Ok(AttemptRecord {
            number: u32::try_from(row.try_get::<_, i64>(0)?).unwrap_or(u32::MAX),
            started_ms: row.try_get(1)?,
            duration_ms: u32::try_from(row.try_get::<_, i64>(2)?).unwrap_or(u32::MAX),
            status: row
                .try_get::<_, Option<i32>>(3)?
                .and_then(|status| u16::try_from(status).ok()),
            error: row.try_get(4)?,
            excerpt: row.try_get(5)?,
            address: row.try_get(6)?,
            request: row.try_get(7)?,
            response: row.try_get(8)?,
        })
    };
    rows.iter().map(attempt).collect()
}

pub(super) async fn summary(client: &Client) -> Result<Summary> {
    let select = client.prepare_cached(&format!(
        "WITH {TIME}
         SELECT (SELECT count(*) FROM relent_delivery_1 WHERE state = 0)
                 + (SELECT count(*) FROM relent_delivery_1 WHERE state = 5),
             (SELECT count(*) FROM relent_delivery_1 WHERE state = 1),
             (SELECT count(*) FROM relent_delivery_1 WHERE state = 3),
             now - (SELECT min((SELECT min(due) FROM relent_delivery_1 WHERE endpoint = e.id AND state = 0))
                 FROM relent_endpoint_1 AS e WHERE activity = 0),
             (SELECT count(*) FROM relent_endpoint_1 WHERE activity = 1)
         FROM time"
    )).await?;
    let row = client.query_one(&select, &[]).await?;
    Ok(Summary {
        pending: count(&row, 0)?,
        running: count(&row, 1)?,
        dead: count(&row, 2)?,
        lag_ms: lag(row.try_get(3)?),
        disabled: count(&row, 4)?,
    })
}
