//! Read statements, which do not block writes.

use bytes::Bytes;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, params_from_iter};

use super::error::SqliteError;
use crate::endpoint::{Activity, Endpoint};
use crate::message::MessageId;
use crate::store::{
    AttemptRecord, Content, EndpointStatus, FAILING, Filter, MessageState, MessageStatus, RECENT,
    RECENT_ATTEMPTS, Recent, Summary,
};
use crate::topic;

pub(super) fn message_id(id: String) -> Result<MessageId, SqliteError> {
    let invalid = |_| SqliteError::Stored("it has a message whose identifier is none".to_owned());
    MessageId::try_from(id).map_err(invalid)
}

/// Converts any stored value to a text for display.
fn readable(row: &Row<'_>, column: usize) -> rusqlite::Result<String> {
    Ok(match row.get_ref(column)? {
        ValueRef::Null => String::new(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => number.to_string(),
        ValueRef::Text(text) | ValueRef::Blob(text) => String::from_utf8_lossy(text).into_owned(),
    })
}

pub(super) fn count(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(u64::try_from(row.get::<_, i64>(column)?).unwrap_or_default())
}

/// The stored key check.
pub(super) fn key_check(connection: &Connection) -> Result<Option<String>, SqliteError> {
    let mut select = connection.prepare_cached("SELECT checked FROM relent_key_1")?;
    Ok(select.query_row([], |row| row.get(0)).optional()?)
}

/// Parses a registered endpoint.
pub(super) fn spec(tenant: &str, name: &str, text: &str) -> Result<Endpoint, SqliteError> {
    let unreadable = |error| SqliteError::Stored(crate::store::unreadable(tenant, name, &error));
    serde_json::from_str(text).map_err(unreadable)
}

const ENDPOINT: &str = "SELECT spec, activity, reason, owner, health, tenant, name,
        (SELECT count(*) FROM relent_delivery_1 WHERE endpoint = e.id AND state = 0)
            + (SELECT count(*) FROM relent_delivery_1 WHERE endpoint = e.id AND state = 1)
            + (SELECT count(*) FROM relent_delivery_1 WHERE endpoint = e.id AND state = 5),
        (SELECT count(*) FROM relent_delivery_1 WHERE endpoint = e.id AND state = 3),
        (SELECT min(due) FROM relent_delivery_1 WHERE endpoint = e.id AND state = 0),
        revision
    FROM relent_endpoint_1 AS e";

/// A row whose `spec` is parsed later: only SQLite errors can be returned while reading a row.
type Status = (String, String, String, EndpointStatus);

fn status(row: &Row<'_>, now: i64) -> rusqlite::Result<Status> {
    let activity = match row.get(1)? {
        0_i64 => Activity::Active,
        _ => Activity::Disabled,
    };
    let status = EndpointStatus {
        endpoint: Endpoint::new("", ""),
        revision: row.get(10)?,
        activity,
        reason: row.get(2)?,
        worker: row.get(3)?,
        health: row.get(4)?,
        pending: count(row, 7)?,
        dead: count(row, 8)?,
        lag_ms: lag(row.get(9).unwrap_or_default(), now),
    };
    Ok((row.get(5)?, row.get(6)?, row.get(0)?, status))
}

fn read_spec((tenant, name, text, mut status): Status) -> Result<EndpointStatus, SqliteError> {
    status.endpoint = spec(&tenant, &name, &text)?;
    Ok(status)
}

/// The time since `due`, in milliseconds; `None` if that is in the future.
fn lag(due: Option<i64>, now: i64) -> Option<u64> {
    let since = now.checked_sub(due?)?;
    u64::try_from(since).ok().map(|micros| micros / 1000)
}

pub(super) fn endpoint(
    connection: &Connection,
    now: i64,
    tenant: &str,
    name: &str,
) -> Result<Option<EndpointStatus>, SqliteError> {
    let one = format!("{ENDPOINT} WHERE tenant = ?1 AND name = ?2");
    let mut select = connection.prepare_cached(&one)?;
    let found = select.query_row((tenant, name), |row| status(row, now));
    found.optional()?.map(read_spec).transpose()
}

pub(super) fn endpoints(
    connection: &Connection,
    now: i64,
    after: Option<(String, String)>,
    most: usize,
) -> Result<Vec<EndpointStatus>, SqliteError> {
    let first = after.is_none();
    let (tenant, name) = after.unwrap_or_default();
    let some = format!("{ENDPOINT} WHERE ?3 OR (tenant, name) > (?1, ?2) ORDER BY tenant, name");
    let mut select = connection.prepare_cached(&some)?;
    let found = select.query_map((tenant, name, first), |row| status(row, now))?;
    found.take(most).map(|found| read_spec(found?)).collect()
}

pub(super) fn needing_attention(
    connection: &Connection,
    now: i64,
    most: usize,
) -> Result<Vec<EndpointStatus>, SqliteError> {
    let failing = FAILING.replace("NONE", "x'ffffffffffffffff'");
    let some = format!(
        "{ENDPOINT} WHERE activity = 1 OR {failing}
             OR EXISTS (SELECT 1 FROM relent_delivery_1 WHERE endpoint = e.id AND state = 3)
         ORDER BY activity DESC, tenant, name"
    );
    let mut select = connection.prepare_cached(&some)?;
    let found = select.query_map([], |row| status(row, now))?;
    found.take(most).map(|found| read_spec(found?)).collect()
}

pub(super) fn recent(
    connection: &Connection,
    now: i64,
    tenant: &str,
    name: &str,
) -> Result<Option<Recent>, SqliteError> {
    let mut find = connection
        .prepare_cached("SELECT id FROM relent_endpoint_1 WHERE tenant = ?1 AND name = ?2")?;
    let found = find.query_row((tenant, name), |row| row.get(0));
    let Some(endpoint) = found.optional()? else {
        return Ok(None);
    };
    let endpoint: i64 = endpoint;
    let now = now / 1000;
    let from = now - i64::try_from(RECENT.as_millis()).unwrap_or(i64::MAX);
    let most = i64::try_from(RECENT_ATTEMPTS).unwrap_or(i64::MAX);
    let mut first = connection.prepare_cached(
        "SELECT began FROM relent_attempt_1 WHERE id <= (SELECT max(id) FROM relent_attempt_1) - ?1 + 1
         ORDER BY id DESC",
    )?;
    // The window starts later if it has more attempts than are considered.
    let first = first.query_row([most], |row| row.get(0)).optional()?;
    let from = first.unwrap_or(from).max(from);
    let mut select = connection.prepare_cached(
        "SELECT a.took, a.error = '' FROM relent_attempt_1 AS a JOIN relent_delivery_1 AS d ON d.row = a.row
         WHERE a.id > (SELECT max(id) FROM relent_attempt_1) - ?1 AND a.began >= ?2 AND d.endpoint = ?3",
    )?;
    let rows = select.query_map((most, from, endpoint), |row| {
        Ok((count(row, 0)?, row.get(1)?))
    })?;
    let attempts = rows.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(Some(Recent::of(now, from, &attempts)))
}

/// The SQL conditions of a filter, and their values.
fn conditions(filter: &Filter) -> (String, Vec<Value>) {
    let (mut text, mut values) = ("true".to_owned(), Vec::new());
    let mut add = |words: &str, value: Value| {
        values.push(value);
        let place = format!("?{}", values.len());
        text.push_str(" AND ");
        text.push_str(&words.replace('?', &place));
    };
    if let Some(id) = &filter.id {
        add("m.id = ?", Value::Text(id.to_string()));
    }
    if let Some(tenant) = &filter.tenant {
        add(
            "m.endpoint IN (SELECT id FROM relent_endpoint_1 WHERE tenant = ?)",
            Value::Text(tenant.clone()),
        );
    }
    if let Some(name) = &filter.endpoint {
        add(
            "m.endpoint IN (SELECT id FROM relent_endpoint_1 WHERE name = ?)",
            Value::Text(name.clone()),
        );
    }
    if let Some(event) = &filter.event {
        // The index begins with the endpoint.
        add(
            "m.endpoint IN (SELECT id FROM relent_endpoint_1) AND m.event = ?",
            Value::Text(event.clone()),
        );
    }
    if let Some(search) = filter.search.as_ref().filter(|search| !search.is_empty()) {
        // A prefix search by indices.
        add(
            "m.row IN (SELECT row FROM relent_message_1 WHERE id BETWEEN ? AND ? || char(1114111)
                 UNION ALL SELECT row FROM relent_message_1 WHERE endpoint IN (SELECT id FROM relent_endpoint_1)
                     AND event BETWEEN ? AND ? || char(1114111))",
            Value::Text(search.clone()),
        );
    }
    if let Some(topic) = &filter.topic {
        match topic::prefix(topic) {
            Some(prefix) => add(
                "substr(m.topic, 1, length(?)) = ?",
                Value::Text(prefix.to_owned()),
            ),
            None => add("m.topic = ?", Value::Text(topic.clone())),
        }
    }
    for (condition, time) in [
        ("m.created >= ?", filter.enqueued_from_ms),
        ("m.created < ?", filter.enqueued_until_ms),
        ("d.ended >= ?", filter.ended_from_ms),
        ("d.ended < ?", filter.ended_until_ms),
    ] {
        if let Some(ms) = time {
            add(condition, Value::Integer(ms.saturating_mul(1000)));
        }
    }
    if let Some(before) = &filter.before {
        add("m.row < ?", Value::Integer(*before));
    }
    text.push_str(filter.in_state());
    (text, values)
}

pub(super) fn messages(
    connection: &Connection,
    filter: &Filter,
    most: usize,
) -> Result<Vec<MessageStatus>, SqliteError> {
    let (conditions, values) = conditions(filter);
    let mut select = connection.prepare_cached(&format!(
        "SELECT m.id, e.tenant, e.name, m.event, m.topic, d.order_key, d.state, d.reason,
             (SELECT error FROM relent_attempt_1 WHERE row = m.row ORDER BY id DESC LIMIT 1),
             d.attempt, m.created, d.due, d.ended, m.row,
             CASE WHEN d.state IN (0, 5) AND d.order_key IS NOT NULL AND e.on_dead_letter = 0 THEN (
                 SELECT id FROM relent_message_1 WHERE row = (
                     SELECT min(row) FROM relent_delivery_1 AS b
                     WHERE b.endpoint = d.endpoint AND b.order_key = d.order_key AND b.state = 3 AND b.row < d.row)) END,
             d.state = 5, CASE WHEN e.activity = 1 THEN e.reason END
         FROM relent_message_1 AS m JOIN relent_delivery_1 AS d USING (row)
             JOIN relent_endpoint_1 AS e ON e.id = m.endpoint
         WHERE {conditions} ORDER BY m.row DESC"
    ))?;
    let mut rows = select.query(params_from_iter(values))?;
    let mut found = Vec::new();
    while found.len() < most
        && let Some(row) = rows.next()?
    {
        found.push(message(row)?);
    }
    Ok(found)
}

fn message(row: &Row<'_>) -> Result<MessageStatus, SqliteError> {
    let state = match row.get(6)? {
        0_i64 | 5 => MessageState::Pending,
        1 => MessageState::Running,
        2 => MessageState::Delivered,
        3 => MessageState::Dead,
        4 => MessageState::Cancelled,
        other => {
            return Err(SqliteError::Stored(format!(
                "it has a message in the state {other}, which this version of relent-outbox does not know"
            )));
        }
    };
    // The due time may be invalid.
    let due: i64 = row.get(11).unwrap_or_default();
    let ended: Option<i64> = row.get(12)?;
    let text = |column| readable(row, column);
    let ordered = row.get_ref(5)? != ValueRef::Null;
    Ok(MessageStatus {
        // Also show a message that no claim can read.
        id: MessageId::stored(text(0)?),
        place: row.get(13)?,
        tenant: text(1)?,
        endpoint: text(2)?,
        event: text(3)?,
        topic: text(4)?,
        order: ordered.then(|| text(5)).transpose()?,
        blocked_by: row.get::<_, Option<String>>(14)?.map(MessageId::stored),
        is_behind: row.get(15)?,
        disabled: row.get(16)?,
        state,
        reason: text(7)?,
        last_error: text(8)?,
        attempts: row.get(9).unwrap_or_default(),
        created_ms: row.get::<_, i64>(10)? / 1000,
        due_ms: (state == MessageState::Pending).then_some(due / 1000),
        ended_ms: ended.map(|ended| ended / 1000),
    })
}

/// The latest end of a message.
pub(super) fn latest_end(connection: &Connection) -> Result<i64, SqliteError> {
    let mut select = connection.prepare_cached(
        "SELECT coalesce(max(ended), 0) FROM relent_delivery_1 WHERE ended IS NOT NULL",
    )?;
    Ok(select.query_row([], |row| row.get(0))?)
}

/// The rows of selected messages in these states, after this row, the earliest first. None that ended after `ended_by`;
/// that condition must not make a plan use the index of ends.
pub(super) fn rows(
    connection: &Connection,
    filter: &Filter,
    states: &str,
    ended_by: i64,
    after: i64,
    most: usize,
) -> Result<Vec<i64>, SqliteError> {
    let (conditions, mut values) = conditions(filter);
    values.push(Value::Integer(after));
    values.push(Value::Integer(ended_by));
    let (from, end) = (values.len() - 1, values.len());
    let mut select = connection.prepare_cached(&format!(
        "SELECT m.row FROM relent_message_1 AS m JOIN relent_delivery_1 AS d USING (row)
         WHERE {conditions} AND d.state IN ({states}) AND coalesce(d.ended, 0) <= ?{end} AND m.row > ?{from}
         ORDER BY m.row"
    ))?;
    let rows = select.query_map(params_from_iter(values), |row| row.get(0))?;
    Ok(rows.take(most).collect::<Result<_, _>>()?)
}

/// The rows of messages of an endpoint, the latest first.
pub(super) fn last_rows(
    connection: &Connection,
    tenant: &str,
    name: &str,
    most: usize,
) -> Result<Vec<i64>, SqliteError> {
    let mut select = connection.prepare_cached(
        "SELECT row FROM relent_message_1
         WHERE endpoint = (SELECT id FROM relent_endpoint_1 WHERE tenant = ?1 AND name = ?2)
         ORDER BY row DESC",
    )?;
    let rows = select.query_map((tenant, name), |row| row.get(0))?;
    Ok(rows.take(most).collect::<Result<_, _>>()?)
}

pub(super) fn content(
    connection: &Connection,
    id: &MessageId,
) -> Result<Option<Content>, SqliteError> {
    let mut select = connection
        .prepare_cached("SELECT content_type, payload FROM relent_message_1 WHERE id = ?1")?;
    let found = select.query_row([id.as_str()], |row| {
        // Also show a message that no claim can read.
        let payload = match row.get_ref(1)? {
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Bytes::copy_from_slice(bytes),
            _ => Bytes::new(),
        };
        Ok(Content {
            content_type: readable(row, 0)?,
            payload,
        })
    });
    Ok(found.optional()?)
}

pub(super) fn attempts(
    connection: &Connection,
    id: &MessageId,
) -> Result<Vec<AttemptRecord>, SqliteError> {
    let mut select = connection.prepare_cached(
        "SELECT number, began, took, status, error, excerpt, address, request, response FROM relent_attempt_1
         WHERE row = (SELECT row FROM relent_message_1 WHERE id = ?1) ORDER BY id",
    )?;
    let attempts = select.query_map([id.as_str()], |row| {
        Ok(AttemptRecord {
            number: row.get(0)?,
            started_ms: row.get(1)?,
            duration_ms: row.get(2)?,
            status: row.get(3)?,
            error: row.get(4)?,
            excerpt: row.get(5)?,
            address: row.get(6)?,
            request: row.get(7)?,
            response: row.get(8)?,
        })
    })?;
    Ok(attempts.collect::<Result<_, _>>()?)
}

/// SQL condition for a delivery `d` and the time `?1`. Dead letters that block others are kept.
pub(super) const PURGEABLE: &str = "d.ended <= ?1 AND NOT (d.state = 3 AND d.order_key IS NOT NULL
    AND EXISTS (SELECT 1 FROM relent_endpoint_1 WHERE id = d.endpoint AND on_dead_letter = 0)
    AND EXISTS (SELECT 1 FROM relent_delivery_1 AS next
        WHERE next.endpoint = d.endpoint AND next.order_key = d.order_key AND next.row > d.row AND next.state = 5))";

pub(super) fn purgeable(
    connection: &Connection,
    until: i64,
    most: usize,
) -> Result<Vec<i64>, SqliteError> {
    let mut select = connection.prepare_cached(&format!(
        "SELECT row FROM relent_delivery_1 AS d WHERE {PURGEABLE} ORDER BY ended"
    ))?;
    let rows = select.query_map([until], |row| row.get(0))?;
    Ok(rows.take(most).collect::<Result<_, _>>()?)
}

pub(super) fn summary(connection: &Connection, now: i64) -> Result<Summary, SqliteError> {
    let mut select = connection.prepare_cached(
        "SELECT (SELECT count(*) FROM relent_delivery_1 WHERE state = 0)
                 + (SELECT count(*) FROM relent_delivery_1 WHERE state = 5),
             (SELECT count(*) FROM relent_delivery_1 WHERE state = 1),
             (SELECT count(*) FROM relent_delivery_1 WHERE state = 3),
             (SELECT min((SELECT min(due) FROM relent_delivery_1 WHERE endpoint = e.id AND state = 0))
                 FROM relent_endpoint_1 AS e WHERE activity = 0),
             (SELECT count(*) FROM relent_endpoint_1 WHERE activity = 1)",
    )?;
    let summary = select.query_row([], |row| {
        Ok(Summary {
            pending: count(row, 0)?,
            running: count(row, 1)?,
            dead: count(row, 2)?,
            lag_ms: lag(row.get(3).unwrap_or_default(), now),
            disabled: count(row, 4)?,
        })
    })?;
    Ok(summary)
}
