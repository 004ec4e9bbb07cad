//! Messages come in.

use std::collections::HashMap;

use super::driver::{Array, Columns, Session};
use super::{FOREVER, PostgresError, TIME, span};
use crate::message::{MessageId, NewMessage};
use crate::store::{EnqueueError, Enqueued, Refusal};

/// In a transaction of the caller, which goes on without them if this fails.
pub(super) async fn enqueue_in<T: Session>(
    transaction: &mut T,
    messages: &[NewMessage],
) -> Result<Vec<Enqueued>, EnqueueError<PostgresError>> {
    transaction.script("SAVEPOINT relent_enqueue").await?;
    let enqueued = enqueue(transaction, messages).await;
    let end = match &enqueued {
        Ok(_) => "RELEASE relent_enqueue",
        Err(_) => "ROLLBACK TO relent_enqueue; RELEASE relent_enqueue",
    };
    let ended = transaction.script(end).await;
    let enqueued = enqueued?;
    ended?;
    Ok(enqueued)
}

/// In a transaction that is undone if this fails.
pub(super) async fn enqueue<T: Session>(
    transaction: &mut T,
    messages: &[NewMessage],
) -> Result<Vec<Enqueued>, EnqueueError<PostgresError>> {
    let refused = |index, refusal| Err(EnqueueError::Refused { index, refusal });
    for (index, message) in messages.iter().enumerate() {
        if let Err(invalid) = message.check() {
            return refused(index, Refusal::Invalid(invalid));
        }
    }
    if messages.is_empty() {
        return Ok(Vec::new());
    }
    let column = |of: fn(&NewMessage) -> &str| messages.iter().map(of).collect::<Vec<_>>();
    let (tenants, names) = (column(|one| &one.tenant), column(|one| &one.endpoint));
    // Nobody deletes an endpoint while a message to it is on its way into the table.
    let find =
        "SELECT n, e.id FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS i (tenant, name, n)
         JOIN relent_endpoint_1 AS e ON e.tenant = i.tenant AND e.name = i.name FOR KEY SHARE OF e";
    let found = transaction
        .query(find, &[Array::Text(&tenants), Array::Text(&names)])
        .await?;
    let mut endpoints = vec![None; messages.len()];
    for row in &found {
        let endpoint = row.long(1)?;
        if let Some(found) = endpoints.get_mut(place(row)?) {
            *found = Some(endpoint);
        }
    }
    let Some(endpoints) = endpoints.iter().copied().collect::<Option<Vec<i64>>>() else {
        let index = endpoints.iter().take_while(|found| found.is_some()).count();
        return refused(index, Refusal::UnknownEndpoint);
    };

    // Rows rise in the order of the messages; they are inserted in that of the events, so that two who enqueue the
    // same ones do not wait for each other.
    let insert = format!(
        "WITH {TIME},
         input AS MATERIALIZED (
             SELECT nextval(pg_get_serial_sequence('relent_message_1', 'row')) AS row, i.*
             FROM (SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[],
                     $7::bigint[], $8::text[])
                 WITH ORDINALITY AS i (endpoint, id, event, topic, content_type, payload, delay, order_key, n)
                 ORDER BY n) AS i),
         new AS (
             INSERT INTO relent_message_1 (row, id, endpoint, event, topic, content_type, payload, created)
             SELECT row, id, endpoint, event, topic, content_type, payload, now FROM input, time
             ORDER BY endpoint, event, n
             ON CONFLICT (endpoint, event) DO NOTHING RETURNING row),
         delivery AS (
             INSERT INTO relent_delivery_1 (row, endpoint, due, began, order_key)
             SELECT row, endpoint, least(now + delay, {FOREVER}), now, order_key
             FROM new JOIN input USING (row), time)
         SELECT n FROM new JOIN input USING (row)"
    );
    let ids: Vec<_> = messages.iter().map(|_| MessageId::new()).collect();
    let id_texts: Vec<_> = ids.iter().map(MessageId::as_str).collect();
    let payloads: Vec<_> = messages.iter().map(|one| one.payload.as_ref()).collect();
    let delays: Vec<_> = messages.iter().map(|one| span(one.delay)).collect();
    let orders: Vec<_> = messages.iter().map(|one| one.order.as_deref()).collect();
    let events = column(|one| &one.event);
    let (topics, types) = (column(|one| &one.topic), column(|one| &one.content_type));
    let parameters = [
        Array::Long(&endpoints),
        Array::Text(&id_texts),
        Array::Text(&events),
        Array::Text(&topics),
        Array::Text(&types),
        Array::Bytes(&payloads),
        Array::Long(&delays),
        Array::Maybe(&orders),
    ];
    let new = transaction.query(&insert, &parameters).await?;
    let mut enqueued: Vec<_> = ids
        .into_iter()
        .map(|id| Enqueued {
            id,
            duplicate: true,
        })
        .collect();
    for row in &new {
        if let Some(new) = enqueued.get_mut(place(row)?) {
            new.duplicate = false;
        }
    }
    if enqueued.iter().any(|one| one.duplicate) {
        duplicates(transaction, messages, &endpoints, &mut enqueued).await?;
    }
    Ok(enqueued)
}

/// The place of a message among the others, from 0; its number, from 1, is in the first column.
fn place(row: &impl Columns) -> Result<usize, PostgresError> {
    Ok(usize::try_from(row.long(0)? - 1).unwrap_or(usize::MAX))
}

/// Some are there: whether as they are now.
async fn duplicates<T: Session>(
    transaction: &mut T,
    messages: &[NewMessage],
    endpoints: &[i64],
    enqueued: &mut [Enqueued],
) -> Result<(), EnqueueError<PostgresError>> {
    let there = || (0..messages.len()).filter(|place| enqueued[*place].duplicate);
    let of: Vec<_> = there().map(|place| endpoints[place]).collect();
    let events: Vec<_> = there().map(|place| &messages[place].event[..]).collect();
    let find = "SELECT m.endpoint, m.event, m.id, m.topic, m.content_type, m.payload, d.order_key
         FROM unnest($1::bigint[], $2::text[]) AS i (endpoint, event)
         JOIN relent_message_1 AS m ON m.endpoint = i.endpoint AND m.event = i.event
         JOIN relent_delivery_1 AS d ON d.row = m.row";
    let rows = transaction
        .query(find, &[Array::Long(&of), Array::Text(&events)])
        .await?;
    let mut found = HashMap::new();
    for row in &rows {
        found.insert((row.long(0)?, row.text(1)?.unwrap_or_default()), row);
    }
    for (index, message) in messages.iter().enumerate() {
        if !enqueued[index].duplicate {
            continue;
        }
        let Some(row) = found.get(&(endpoints[index], &message.event[..])) else {
            return Err(PostgresError::Purged.into());
        };
        let id = row.text(2)?.unwrap_or_default().to_owned();
        let id = super::read::message_id(id)?;
        let same = row.text(3)? == Some(&message.topic)
            && row.text(4)? == Some(&message.content_type)
            && row.bytes(5)? == message.payload
            && row.text(6)? == message.order.as_deref();
        if !same {
            let refusal = Refusal::OtherPayload(id);
            return Err(EnqueueError::Refused { index, refusal });
        }
        enqueued[index].id = id;
    }
    Ok(())
}
