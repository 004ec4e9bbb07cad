//! Enqueuing of messages.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::driver::{Array, Columns, Savepoints, SqlTransaction};
use super::error::PostgresError;
use super::values::{MAX_TIME, TIME, number, span};
use crate::message::{MessageId, NewEvent, NewMessage};
use crate::store::hints::HintBuilder;
use crate::store::{EnqueueError, Enqueued, FanOut, Hinted, Published, Refusal};
use crate::topic;

/// Enqueues messages in the caller's transaction, which continues without them if this fails.
pub(super) async fn enqueue_in<T: Savepoints>(
    transaction: &mut T,
    messages: &[NewMessage],
) -> Result<Vec<Enqueued>, EnqueueError<PostgresError>> {
    transaction.script(BEGIN).await?;
    let enqueued = enqueue(transaction, messages).await;
    let ended = transaction.script(end(&enqueued)).await;
    let (enqueued, _) = enqueued?;
    ended?;
    Ok(enqueued)
}

const BEGIN: &str = "SAVEPOINT relent_enqueue";

fn end<T, E>(enqueued: &Result<T, E>) -> &'static str {
    match enqueued {
        Ok(_) => "RELEASE relent_enqueue",
        Err(_) => "ROLLBACK TO relent_enqueue; RELEASE relent_enqueue",
    }
}

/// Publishes events in the caller's transaction, which continues without them if this fails.
pub(super) async fn publish_in<T: Savepoints>(
    transaction: &mut T,
    events: &[NewEvent],
) -> Result<Vec<Published>, EnqueueError<PostgresError>> {
    transaction.script(BEGIN).await?;
    let published = publish(transaction, events).await;
    let ended = transaction.script(end(&published)).await;
    let (published, _) = published?;
    ended?;
    Ok(published)
}

/// Publishes events to their subscribers, in a transaction that is rolled back if this fails. Returns the hint to send
/// after the commit, too.
pub(super) async fn publish<T: SqlTransaction>(
    transaction: &mut T,
    events: &[NewEvent],
) -> Result<(Vec<Published>, Option<Hinted>), EnqueueError<PostgresError>> {
    let refused = |index, refusal| EnqueueError::Refused { index, refusal };
    let (mut tenants, mut patterns, mut indices) = (Vec::new(), Vec::new(), Vec::new());
    for (index, event) in events.iter().enumerate() {
        event
            .check()
            .map_err(|invalid| refused(index, Refusal::Invalid(invalid)))?;
        let (tenant, topic) = event.subject();
        for pattern in topic::patterns(topic) {
            tenants.push(tenant);
            patterns.push(pattern);
            indices.push(number(index));
        }
    }
    let patterns: Vec<_> = patterns.iter().map(String::as_str).collect();
    // The lock keeps these endpoints until their messages are inserted. The order of locks is that of `enqueue`.
    let find = "SELECT i.n, e.name FROM unnest($1::text[], $2::text[], $3::bigint[]) AS i (tenant, pattern, n)
         JOIN relent_subscription_1 AS s ON s.tenant = i.tenant AND s.pattern = i.pattern
         JOIN relent_endpoint_1 AS e ON e.id = s.endpoint
         ORDER BY e.id FOR KEY SHARE OF e";
    let parameters = [
        Array::Text(&tenants),
        Array::Text(&patterns),
        Array::Long(&indices),
    ];
    let rows = transaction.query(find, &parameters).await?;
    let mut subscribed = BTreeSet::new();
    for row in &rows {
        let index = usize::try_from(row.long(0)?).unwrap_or(usize::MAX);
        subscribed.insert((index, row.text(1)?.unwrap_or_default()));
    }
    let mut fan_out = FanOut::default();
    for (index, endpoint) in subscribed {
        if let Some(event) = events.get(index) {
            fan_out
                .add(index, event.to(endpoint))
                .map_err(|refusal| refused(index, refusal))?;
        }
    }
    let enqueued = enqueue(transaction, &fan_out.messages).await;
    let (enqueued, hinted) = enqueued.map_err(|error| fan_out.refused(error))?;
    Ok((fan_out.published(events.len(), enqueued), hinted))
}

/// Enqueues messages in a transaction that is rolled back if this fails. Returns the hint to send after the commit,
/// too.
pub(super) async fn enqueue<T: SqlTransaction>(
    transaction: &mut T,
    messages: &[NewMessage],
) -> Result<(Vec<Enqueued>, Option<Hinted>), EnqueueError<PostgresError>> {
    let refused = |index, refusal| Err(EnqueueError::Refused { index, refusal });
    for (index, message) in messages.iter().enumerate() {
        if let Err(invalid) = message.check() {
            return refused(index, Refusal::Invalid(invalid));
        }
    }
    if messages.is_empty() {
        return Ok((Vec::new(), None));
    }
    let column = |of: fn(&NewMessage) -> &str| messages.iter().map(of).collect::<Vec<_>>();
    // Look up each endpoint once.
    let mut named = BTreeMap::new();
    for message in messages {
        named.insert((&message.tenant[..], &message.endpoint[..]), 0);
    }
    for (n, place) in (1..).zip(named.values_mut()) {
        *place = n;
    }
    let (tenants, names): (Vec<_>, Vec<_>) = named.keys().copied().unzip();
    let place = |one: &NewMessage| named.get(&(&one.tenant[..], &one.endpoint[..])).copied();
    let places: Vec<i64> = messages.iter().filter_map(place).collect();

    // The lock keeps an endpoint while a message for it is inserted. Row numbers rise in the order of the messages, but
    // rows are inserted in the order of the events, so that two transactions with the same events cannot deadlock. The
    // name of the sequence is resolved once. Messages without an endpoint stay in the input: for an input of a single
    // row the planner would otherwise choose the other join, and scan all for each.
    let insert = format!(
        "WITH {TIME},
         place AS MATERIALIZED (
             SELECT p.n, e.id FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS p (tenant, name, n)
             JOIN relent_endpoint_1 AS e ON e.tenant = p.tenant AND e.name = p.name
             ORDER BY e.id FOR KEY SHARE OF e),
         input AS MATERIALIZED (
             SELECT nextval((SELECT pg_get_serial_sequence('relent_message_1', 'row')::regclass)) AS row, i.*
             FROM (SELECT place.id AS endpoint, i.*
                 FROM unnest($3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bytea[], $9::bigint[],
                     $10::text[])
                 WITH ORDINALITY AS i (place, id, event, topic, content_type, payload, delay, order_key, n)
                 LEFT JOIN place ON place.n = i.place ORDER BY i.n) AS i),
         new AS (
             INSERT INTO relent_message_1 (row, id, endpoint, event, topic, content_type, payload, created)
             SELECT row, id, endpoint, event, topic, content_type, payload, now FROM input, time
             WHERE endpoint IS NOT NULL ORDER BY endpoint, event, n
             ON CONFLICT (endpoint, event) DO NOTHING RETURNING row),
         delivery AS (
             INSERT INTO relent_delivery_1 (row, endpoint, due, began, order_key)
             SELECT row, endpoint, due, due, order_key
             FROM new JOIN input USING (row), time, least(now + delay, {MAX_TIME}) AS due)
         SELECT n, endpoint, new.row FROM input LEFT JOIN new USING (row)"
    );
    let ids: Vec<_> = messages.iter().map(|_| MessageId::new()).collect();
    let id_texts: Vec<_> = ids.iter().map(MessageId::as_str).collect();
    let payloads: Vec<_> = messages.iter().map(|one| one.payload.as_ref()).collect();
    let delays: Vec<_> = messages.iter().map(|one| span(one.delay)).collect();
    let orders: Vec<_> = messages.iter().map(|one| one.order.as_deref()).collect();
    let events = column(|one| &one.event);
    let (topics, types) = (column(|one| &one.topic), column(|one| &one.content_type));
    let parameters = [
        Array::Text(&tenants),
        Array::Text(&names),
        Array::Long(&places),
        Array::Text(&id_texts),
        Array::Text(&events),
        Array::Text(&topics),
        Array::Text(&types),
        Array::Bytes(&payloads),
        Array::Long(&delays),
        Array::Maybe(&orders),
    ];
    let inserted = transaction.query(&insert, &parameters).await?;
    let mut endpoints = vec![None; messages.len()];
    let mut enqueued: Vec<_> = ids
        .into_iter()
        .map(|id| Enqueued {
            id,
            duplicate: true,
        })
        .collect();
    for row in &inserted {
        let n = usize::try_from(row.long(0)? - 1).unwrap_or(usize::MAX);
        if let (Some(endpoint), Some(one)) = (endpoints.get_mut(n), enqueued.get_mut(n)) {
            *endpoint = row.maybe_long(1)?;
            one.duplicate = row.maybe_long(2)?.is_none();
        }
    }
    let Some(endpoints) = endpoints.iter().copied().collect::<Option<Vec<i64>>>() else {
        let index = endpoints.iter().take_while(|found| found.is_some()).count();
        return refused(index, Refusal::UnknownEndpoint);
    };
    if enqueued.iter().any(|one| one.duplicate) {
        duplicates(transaction, messages, &endpoints, &mut enqueued).await?;
    }
    let mut got = HintBuilder::default();
    let new = endpoints.iter().zip(messages).zip(&enqueued);
    for ((endpoint, message), _) in new.filter(|(_, one)| !one.duplicate) {
        got.add(*endpoint, message.delay);
    }
    Ok((enqueued, got.hinted()))
}

/// Checks that duplicates equal the stored messages.
async fn duplicates<T: SqlTransaction>(
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
