//! Enqueuing of messages.

use std::collections::BTreeMap;

use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::error::SqliteError;
use super::invariants::Touched;
use crate::message::{MessageId, NewEvent, NewMessage};
use crate::store::hints::HintBuilder;
use crate::store::later;
use crate::store::{EnqueueError, Enqueued, FanOut, Hinted, Published, Refusal};
use crate::topic;

pub(super) const ENDPOINT: &str =
    "SELECT id FROM relent_endpoint_1 WHERE tenant = ?1 AND name = ?2";
pub(super) const MESSAGE: &str = "
    INSERT INTO relent_message_1 (id, endpoint, event, topic, content_type, payload, created)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (endpoint, event) DO NOTHING";
pub(super) const DELIVERY: &str = "
    INSERT INTO relent_delivery_1 (row, endpoint, state, due, began, order_key, written)
    VALUES (?1, ?2, ?3, ?4, ?4, ?6, ?5)";

/// Enqueues messages in a transaction that is rolled back if this fails. Returns the hint to send after the commit,
/// too.
pub(super) fn enqueue(
    connection: &Connection,
    now: i64,
    messages: &[NewMessage],
) -> Result<(Vec<Enqueued>, Option<Hinted>), EnqueueError<SqliteError>> {
    let mut batch = Batch {
        connection,
        now,
        endpoint: connection.prepare_cached(ENDPOINT)?,
        message: connection.prepare_cached(MESSAGE)?,
        delivery: connection.prepare_cached(DELIVERY)?,
        found: BTreeMap::new(),
        touched: Touched::default(),
        got: HintBuilder::default(),
    };
    let mut enqueued = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        match batch.enqueue(message)? {
            Ok(one) => enqueued.push(one),
            Err(refusal) => return Err(EnqueueError::Refused { index, refusal }),
        }
    }
    batch.touched.follow(connection)?;
    Ok((enqueued, batch.got.hinted()))
}

pub(super) const SUBSCRIBED: &str = "
    SELECT e.name FROM relent_endpoint_1 AS e WHERE e.id IN (
        SELECT endpoint FROM relent_subscription_1
        WHERE tenant = ?1 AND pattern IN (SELECT value FROM json_each(?2)))
    ORDER BY e.name";

/// Publishes events to their subscribers, in a transaction that is rolled back if this fails. Returns the hint, too.
pub(super) fn publish(
    connection: &Connection,
    now: i64,
    events: &[NewEvent],
) -> Result<(Vec<Published>, Option<Hinted>), EnqueueError<SqliteError>> {
    let mut fan_out = FanOut::default();
    let mut subscribed = connection.prepare_cached(SUBSCRIBED)?;
    for (index, event) in events.iter().enumerate() {
        let refused = |refusal| EnqueueError::Refused { index, refusal };
        event
            .check()
            .map_err(|invalid| refused(Refusal::Invalid(invalid)))?;
        let (tenant, topic) = event.subject();
        let patterns = serde_json::Value::from(topic::patterns(topic)).to_string();
        let mut rows = subscribed.query((tenant, patterns))?;
        while let Some(row) = rows.next()? {
            let endpoint: String = row.get(0)?;
            fan_out.add(index, event.to(&endpoint)).map_err(refused)?;
        }
    }
    let (enqueued, hinted) =
        enqueue(connection, now, &fan_out.messages).map_err(|error| fan_out.refused(error))?;
    Ok((fan_out.published(events.len(), enqueued), hinted))
}

/// Messages that are enqueued together, and the statements for them.
struct Batch<'c, 'm> {
    connection: &'c Connection,
    now: i64,
    endpoint: CachedStatement<'c>,
    message: CachedStatement<'c>,
    delivery: CachedStatement<'c>,
    /// The endpoints found so far, by tenant and name.
    found: BTreeMap<(&'m str, &'m str), i64>,
    touched: Touched,
    got: HintBuilder,
}

impl<'m> Batch<'_, 'm> {
    fn endpoint(&mut self, message: &'m NewMessage) -> rusqlite::Result<Option<i64>> {
        let names = (&message.tenant[..], &message.endpoint[..]);
        if let Some(found) = self.found.get(&names) {
            return Ok(Some(*found));
        }
        let found = self
            .endpoint
            .query_row(names, |row| row.get(0))
            .optional()?;
        if let Some(found) = found {
            self.found.insert(names, found);
        }
        Ok(found)
    }

    fn enqueue(
        &mut self,
        message: &'m NewMessage,
    ) -> Result<Result<Enqueued, Refusal>, EnqueueError<SqliteError>> {
        if let Err(invalid) = message.check() {
            return Ok(Err(Refusal::Invalid(invalid)));
        }
        let Some(endpoint) = self.endpoint(message)? else {
            return Ok(Err(Refusal::UnknownEndpoint));
        };
        let id = MessageId::new();
        let inserted = self.message.execute(params![
            id.as_str(),
            endpoint,
            message.event,
            message.topic,
            message.content_type,
            message.payload.as_ref(),
            self.now,
        ])?;
        if inserted == 0 {
            return duplicate(self.connection, endpoint, message);
        }
        self.got.add(endpoint, message.delay);
        let due = later(self.now, message.delay);
        // It is the last of its order key; `follow` finds out whether it is also the first.
        let state = if let Some(order) = &message.order {
            self.touched.add(endpoint, Some(order.clone()));
            5
        } else {
            self.touched.waits(endpoint, due);
            0
        };
        self.delivery.execute(params![
            self.connection.last_insert_rowid(),
            endpoint,
            state,
            due,
            self.now,
            message.order,
        ])?;
        Ok(Ok(Enqueued {
            id,
            duplicate: false,
        }))
    }
}

/// Checks that a duplicate equals the stored message.
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
