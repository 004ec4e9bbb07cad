//! Messages come in.

use rusqlite::{Connection, OptionalExtension, params};

use super::queue::Touched;
use super::{SqliteError, later};
use crate::message::{MessageId, NewMessage};
use crate::store::{EnqueueError, Enqueued, Refusal};

/// In a transaction that is undone if this fails.
pub(super) fn enqueue(
    connection: &Connection,
    now: i64,
    messages: &[NewMessage],
) -> Result<Vec<Enqueued>, EnqueueError<SqliteError>> {
    let mut touched = Touched::default();
    let mut enqueued = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        match enqueue_one(connection, now, message, &mut touched)? {
            Ok(one) => enqueued.push(one),
            Err(refusal) => return Err(EnqueueError::Refused { index, refusal }),
        }
    }
    touched.follow(connection)?;
    Ok(enqueued)
}

fn enqueue_one(
    connection: &Connection,
    now: i64,
    message: &NewMessage,
    touched: &mut Touched,
) -> Result<Result<Enqueued, Refusal>, EnqueueError<SqliteError>> {
    if let Err(invalid) = message.check() {
        return Ok(Err(Refusal::Invalid(invalid)));
    }
    let mut find = connection
        .prepare_cached("SELECT id FROM relent_endpoint_1 WHERE tenant = ?1 AND name = ?2")?;
    let names = (&message.tenant, &message.endpoint);
    let Some(endpoint) = find
        .query_row(names, |row| row.get::<_, i64>(0))
        .optional()?
    else {
        return Ok(Err(Refusal::UnknownEndpoint));
    };
    let id = MessageId::new();
    let mut insert = connection.prepare_cached(
        "INSERT INTO relent_message_1 (id, endpoint, event, topic, content_type, payload, created)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (endpoint, event) DO NOTHING",
    )?;
    let inserted = insert.execute(params![
        id.as_str(),
        endpoint,
        message.event,
        message.topic,
        message.content_type,
        message.payload.as_ref(),
        now,
    ])?;
    if inserted == 0 {
        return duplicate(connection, endpoint, message);
    }
    // It is the last of its order key: whether it is the first, too, is found out with the others.
    let state = if message.order.is_some() { 5 } else { 0 };
    let mut insert = connection.prepare_cached(
        "INSERT INTO relent_delivery_1 (row, endpoint, state, due, began, order_key)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?;
    insert.execute(params![
        connection.last_insert_rowid(),
        endpoint,
        state,
        later(now, message.delay),
        now,
        message.order,
    ])?;
    touched.add(endpoint, message.order.clone());
    Ok(Ok(Enqueued {
        id,
        duplicate: false,
    }))
}

/// The message is there: whether as it is now.
fn duplicate(
    connection: &Connection,
    endpoint: i64,
    message: &NewMessage,
) -> Result<Result<Enqueued, Refusal>, EnqueueError<SqliteError>> {
    let mut find = connection.prepare_cached(
        "SELECT id, topic = ?3 AND content_type = ?4 AND payload = ?5 AND order_key IS ?6
         FROM relent_message_1 JOIN relent_delivery_1 USING (row)
         WHERE relent_message_1.endpoint = ?1 AND event = ?2",
    )?;
    let (id, same): (String, bool) = find.query_row(
        params![
            endpoint,
            message.event,
            message.topic,
            message.content_type,
            message.payload.as_ref(),
            message.order,
        ],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    let id = super::read::message_id(id)?;
    Ok(if same {
        Ok(Enqueued {
            id,
            duplicate: true,
        })
    } else {
        Err(Refusal::OtherPayload(id))
    })
}
