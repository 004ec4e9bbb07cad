//! Messages come in.

use std::collections::HashMap;

use relent_server::postgres::Transaction;

use super::{FOREVER, PostgresError, TIME, span};
use crate::message::{MessageId, NewMessage};
use crate::store::{EnqueueError, Enqueued, Refusal};

/// In a transaction that is undone if this fails.
pub(super) async fn enqueue(
    transaction: &Transaction<'_>,
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
    let find = transaction
        .prepare_cached(
            "SELECT e.id FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS i (tenant, name, n)
         LEFT JOIN relent_endpoint_1 AS e ON e.tenant = i.tenant AND e.name = i.name ORDER BY n",
        )
        .await?;
    let found = transaction.query(&find, &[&tenants, &names]).await?;
    let mut endpoints = Vec::<i64>::with_capacity(messages.len());
    for (index, row) in found.iter().enumerate() {
        match row.try_get(0)? {
            Some(endpoint) => endpoints.push(endpoint),
            None => return refused(index, Refusal::UnknownEndpoint),
        }
    }

    // Rows rise in the order of the messages; they are inserted in that of the events, so that two who enqueue the
    // same ones do not wait for each other.
    let insert = transaction.prepare_cached(&format!(
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
    )).await?;

    let ids: Vec<_> = messages.iter().map(|_| MessageId::new()).collect();
    let id_texts: Vec<_> = ids.iter().map(MessageId::as_str).collect();
    let payloads: Vec<_> = messages.iter().map(|one| one.payload.as_ref()).collect();
    let delays: Vec<_> = messages.iter().map(|one| span(one.delay)).collect();
    let orders: Vec<_> = messages.iter().map(|one| one.order.as_deref()).collect();
    let events = column(|one| &one.event);
    let new = transaction
        .query(
            &insert,
            &[
                &endpoints,
                &id_texts,
                &events,
                &column(|one| &one.topic),
                &column(|one| &one.content_type),
                &payloads,
                &delays,
                &orders,
            ],
        )
        .await?;
    let mut enqueued: Vec<_> = ids
        .into_iter()
        .map(|id| Enqueued {
            id,
            duplicate: true,
        })
        .collect();
    for row in new {
        let place = usize::try_from(row.try_get::<_, i64>(0)? - 1).unwrap_or_default();
        if let Some(new) = enqueued.get_mut(place) {
            new.duplicate = false;
        }
    }
    if enqueued.iter().any(|one| one.duplicate) {
        duplicates(transaction, messages, &endpoints, &mut enqueued).await?;
    }
    Ok(enqueued)
}

/// Some are there: whether as they are now.
async fn duplicates(
    transaction: &Transaction<'_>,
    messages: &[NewMessage],
    endpoints: &[i64],
    enqueued: &mut [Enqueued],
) -> Result<(), EnqueueError<PostgresError>> {
    let there = || (0..messages.len()).filter(|place| enqueued[*place].duplicate);
    let of: Vec<_> = there().map(|place| endpoints[place]).collect();
    let events: Vec<_> = there().map(|place| &messages[place].event[..]).collect();
    let find = transaction
        .prepare_cached(
            "SELECT m.endpoint, m.event, m.id, m.topic, m.content_type, m.payload, d.order_key
         FROM unnest($1::bigint[], $2::text[]) AS i (endpoint, event)
         JOIN relent_message_1 AS m ON m.endpoint = i.endpoint AND m.event = i.event
         JOIN relent_delivery_1 AS d ON d.row = m.row",
        )
        .await?;
    let rows = transaction.query(&find, &[&of, &events]).await?;
    let mut found = HashMap::new();
    for row in &rows {
        let key: (i64, &str) = (row.try_get(0)?, row.try_get(1)?);
        found.insert(key, row);
    }
    for (index, message) in messages.iter().enumerate() {
        if !enqueued[index].duplicate {
            continue;
        }
        let Some(row) = found.get(&(endpoints[index], &message.event[..])) else {
            return Err(PostgresError::Purged.into());
        };
        let id = super::read::message_id(row.try_get(2)?)?;
        let same = row.try_get::<_, &str>(3)? == message.topic
            && row.try_get::<_, &str>(4)? == message.content_type
            && row.try_get::<_, &[u8]>(5)? == message.payload
            && row.try_get::<_, Option<&str>>(6)? == message.order.as_deref();
        if !same {
            let refusal = Refusal::OtherPayload(id);
            return Err(EnqueueError::Refused { index, refusal });
        }
        enqueued[index].id = id;
    }
    Ok(())
}
