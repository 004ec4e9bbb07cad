//! Operations of workers.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use bytes::Bytes;
use relent_server::postgres::Client;
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::error::Severity;
use tokio_postgres::types::{FromSql, ToSql};

use super::error::PostgresError;
use super::read::{count, message_id, spec};
use super::transaction::Transaction;
use super::values::{MAX_TIME, TIME, number, span};
use crate::message::{InvalidMessage, is_name};
use crate::store::{
    AfterAttempt, AttemptRecord, ClaimOrder, ClaimRequest, Claimed, Claims, ConfirmRequest,
    EndpointWork, Fence, Heartbeat, INLINE, OwnedEndpoint, Settled, forgotten, micros, system_time,
    text, unreadable_message,
};

type Result<T> = std::result::Result<T, PostgresError>;

pub(super) async fn heartbeat(
    transaction: &Transaction<'_>,
    worker: &str,
    lease: Duration,
    able: bool,
) -> Result<Heartbeat> {
    if !is_name(worker) {
        return Err(InvalidMessage::Name("name of a worker").into());
    }
    // A lock against a concurrent deletion of this worker.
    let kept = transaction.prepare_cached(&format!(
        "WITH {TIME} SELECT until > now FROM relent_worker_1, time WHERE id = $1 FOR UPDATE OF relent_worker_1"
    )).await?;
    let kept = transaction.query_opt(&kept, &[&worker]).await?;
    let kept = match kept {
        Some(row) => row.try_get(0)?,
        None => false,
    };
    let put = transaction
        .prepare_cached(&format!(
            "WITH {TIME} INSERT INTO relent_worker_1 (id, until, able)
         SELECT $1, least(now + $2::bigint, {MAX_TIME}), $3::boolean FROM time
         ON CONFLICT (id) DO UPDATE SET until = excluded.until, able = excluded.able"
        ))
        .await?;
    let lease = span(lease);
    transaction.execute(&put, &[&worker, &lease, &able]).await?;
    forget_expired(transaction).await?;
    let share = transaction.prepare_cached(
        "SELECT (SELECT count(*) FROM relent_endpoint_1 WHERE activity = 0), count(*), count(*) FILTER (WHERE able)
         FROM relent_worker_1",
    ).await?;
    let row = transaction.query_one(&share, &[]).await?;
    let [active, live, able_workers] = [count(&row, 0)?, count(&row, 1)?, count(&row, 2)?];
    Ok(Heartbeat {
        kept,
        share: Heartbeat::share_of(active, live, able_workers, able),
    })
}

/// Deletes workers with expired leases, and releases their endpoints. Endpoints are locked and changed by two
/// statements: a single one would see old versions of locked rows, where other transactions may wait.
async fn forget_expired(transaction: &Transaction<'_>) -> Result<()> {
    let forget = transaction.prepare_cached(&format!(
        "WITH {TIME} DELETE FROM relent_worker_1 WHERE id IN (
             SELECT id FROM relent_worker_1, time WHERE until <= now FOR UPDATE OF relent_worker_1 SKIP LOCKED)
         RETURNING id"
    )).await?;
    let expired = transaction.query(&forget, &[]).await?;
    if expired.is_empty() {
        return Ok(());
    }
    let expired: Vec<String> = first_column(&expired)?;
    let theirs = transaction.prepare_cached(
        "SELECT id FROM relent_endpoint_1 WHERE owner = ANY($1::text[]) ORDER BY id FOR NO KEY UPDATE",
    ).await?;
    let theirs: Vec<i64> = first_column(&transaction.query(&theirs, &[&expired]).await?)?;
    let free = transaction
        .prepare_cached("UPDATE relent_endpoint_1 SET owner = '' WHERE id = ANY($1::bigint[])")
        .await?;
    transaction.execute(&free, &[&theirs]).await?;
    Ok(())
}

fn first_column<'r, T: FromSql<'r>>(rows: &'r [Row]) -> Result<Vec<T>> {
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Finds work by one lookup in each of two indices per endpoint that has no owner or is the worker's. Due times are not
/// stored with the endpoint: producers would block each other there.
pub(super) async fn find(
    transaction: &Transaction<'_>,
    worker: &str,
    within: Duration,
    most: usize,
) -> Result<Vec<EndpointWork>> {
    let find = transaction.prepare_cached(&format!(
        "WITH {TIME}
         SELECT e.id, CASE WHEN e.owner <> '' THEN e.fence END, greatest(d.due - now, 0), e.revision
         FROM time, relent_endpoint_1 AS e, LATERAL (
             SELECT CASE
                 WHEN EXISTS (SELECT FROM relent_delivery_1
                     WHERE endpoint = e.id AND state = 1 AND fence < e.fence + (e.owner = '')::integer) THEN 0
                 ELSE (SELECT due FROM relent_delivery_1 WHERE endpoint = e.id AND state = 0 ORDER BY due, row LIMIT 1)
                 END AS due) AS d
         WHERE e.activity = 0 AND e.owner IN ('', $1) AND d.due <= now + $2::bigint
         ORDER BY d.due LIMIT $3::bigint"
    )).await?;
    let (within, most) = (span(within), number(most));
    let rows = transaction.query(&find, &[&worker, &within, &most]).await?;
    let work = |row: &Row| {
        let due: i64 = row.try_get(2)?;
        Ok(EndpointWork {
            endpoint: row.try_get(0)?,
            owned: row.try_get::<_, Option<i64>>(1)?.map(Fence),
            due: Duration::from_micros(due.unsigned_abs()),
            revision: row.try_get(3)?,
        })
    };
    rows.iter().map(work).collect()
}

pub(super) async fn acquire(
    transaction: &Transaction<'_>,
    worker: &str,
    endpoints: &[i64],
) -> Result<Vec<OwnedEndpoint>> {
    forget_expired(transaction).await?;
    // The lock keeps the worker's row until its endpoints are assigned. Otherwise they could stay assigned for ever.
    let free = transaction.prepare_cached(&format!(
        "WITH {TIME},
         live AS MATERIALIZED (
             SELECT id FROM relent_worker_1, time WHERE id = $1 AND until > now FOR KEY SHARE OF relent_worker_1)
         SELECT id FROM relent_endpoint_1
         WHERE id = ANY($2::bigint[]) AND activity = 0 AND owner IN ('', $1) AND EXISTS (SELECT FROM live)
         ORDER BY id FOR NO KEY UPDATE SKIP LOCKED"
    )).await?;
    let free: Vec<i64> = first_column(&transaction.query(&free, &[&worker, &endpoints]).await?)?;
    let acquire = transaction
        .prepare_cached(
            "UPDATE relent_endpoint_1 SET owner = $1, fence = fence + 1 WHERE id = ANY($2::bigint[])
             RETURNING id, fence, tenant, name, spec, revision, health",
        )
        .await?;
    let rows = transaction.query(&acquire, &[&worker, &free]).await?;
    let (mut owned, mut unreadable, mut error) = (Vec::new(), Vec::new(), None);
    for row in rows {
        let (id, fence) = (row.try_get(0)?, Fence(row.try_get(1)?));
        match spec(row.try_get(2)?, row.try_get(3)?, row.try_get(4)?) {
            Ok(endpoint) => owned.push(OwnedEndpoint {
                id,
                fence,
                endpoint,
                revision: row.try_get(5)?,
                health: row.try_get(6)?,
            }),
            // The other endpoints need not wait for a version that can read this one.
            Err(failed) => {
                unreadable.push((id, fence));
                error = Some(failed);
            }
        }
    }
    release(transaction, worker, &unreadable).await?;
    match error {
        Some(error) if owned.is_empty() => Err(error),
        _ => Ok(owned),
    }
}

pub(super) async fn release(
    transaction: &Transaction<'_>,
    worker: &str,
    endpoints: &[(i64, Fence)],
) -> Result<()> {
    if endpoints.is_empty() {
        return Ok(());
    }
    let (ids, fences): (Vec<_>, Vec<_>) =
        endpoints.iter().map(|(id, fence)| (*id, fence.0)).unzip();
    lock(transaction, &ids.iter().copied().collect()).await?;
    let release = transaction
        .prepare_cached(
            "UPDATE relent_endpoint_1 AS e SET owner = '' FROM unnest($2::bigint[], $3::bigint[]) AS r (id, fence)
             WHERE r.id = e.id AND r.fence = e.fence AND e.owner = $1",
        )
        .await?;
    transaction
        .execute(&release, &[&worker, &ids, &fences])
        .await?;
    Ok(())
}

/// Locks endpoints. Until the end of the transaction no other changes them or their messages, except by enqueuing.
/// Dependent statements must follow separately: a statement sees no changes that others commit while it waits for a
/// lock.
const LOCK: &str =
    "SELECT FROM relent_endpoint_1 WHERE id = ANY($1::bigint[]) ORDER BY id FOR NO KEY UPDATE";

/// Locks these endpoints, and thereby the states of their messages.
pub(super) async fn lock(transaction: &Transaction<'_>, endpoints: &BTreeSet<i64>) -> Result<()> {
    let endpoints: Vec<_> = endpoints.iter().copied().collect();
    let lock = transaction.prepare_cached(LOCK).await?;
    transaction.execute(&lock, &[&endpoints]).await?;
    Ok(())
}

/// Claims from the earliest due messages: as many as are wanted, or `$5` if that is more. Of an order key only the
/// first message is claimed, and none while one runs. Others are put behind (state 5), where no claim looks again, so
/// that a long queue is scanned once. The statement that ends a message must [`advance`] its queue.
pub(super) const CLAIM: &str = "
    wanted AS MATERIALIZED (
        SELECT e.id, e.fence, w.most,
            CASE e.on_dead_letter WHEN 0 THEN '{0,3,5}'::smallint[] ELSE '{0,5}' END AS before, e.revision = w.revision AS same
        FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $6::bigint[]) AS w (id, fence, most, revision)
        JOIN relent_endpoint_1 AS e ON e.id = w.id AND e.fence = w.fence
        WHERE e.owner = $1 AND e.activity = 0 AND EXISTS (SELECT FROM relent_worker_1, time WHERE id = $1 AND until > now)),
    own AS MATERIALIZED (SELECT * FROM wanted WHERE same),
    lost AS MATERIALIZED (
        SELECT own.id, own.fence, l.row FROM own, LATERAL (
            SELECT row FROM relent_delivery_1
            WHERE endpoint = own.id AND state = 1 AND fence < own.fence ORDER BY fence LIMIT own.most) AS l),
    looked AS MATERIALIZED (
        SELECT own.id, own.fence, own.before, r.room, d.row, d.due, d.order_key, d.rank
        FROM time, own, LATERAL (
            SELECT own.most - count(*) AS room FROM lost WHERE lost.id = own.id) AS r, LATERAL ({looked}) AS d),
    first AS MATERIALIZED (
        SELECT k.id, k.order_key, CASE WHEN NOT EXISTS (
            SELECT FROM relent_delivery_1 WHERE endpoint = k.id AND order_key = k.order_key AND state = 1) THEN (
            SELECT min((SELECT min(row) FROM relent_delivery_1
                WHERE endpoint = k.id AND order_key = k.order_key AND state = s.state))
            FROM unnest(k.before) AS s (state)) END AS row
        FROM (SELECT DISTINCT id, order_key, before FROM looked WHERE order_key IS NOT NULL) AS k),
    due AS MATERIALIZED (
        SELECT l.id, l.fence, l.room, l.row, l.due, l.rank, l.order_key IS NOT NULL AND first.row IS DISTINCT FROM l.row AS is_behind
        FROM looked AS l LEFT JOIN first ON first.id = l.id AND first.order_key = l.order_key),
    free AS (
        SELECT row, fence FROM (
            SELECT row, fence, room, row_number() OVER (PARTITION BY id ORDER BY rank, due, row) AS n
            FROM due WHERE NOT is_behind) AS f
        WHERE n <= room),
    put_behind AS (
        UPDATE relent_delivery_1 SET state = 5 WHERE row IN (SELECT row FROM due WHERE is_behind) RETURNING row),
    claimed AS (
        UPDATE relent_delivery_1 AS d SET state = 1, fence = c.fence, attempt = attempt + (NOT c.lost)::integer,
            started = CASE WHEN c.lost THEN started ELSE now END
        FROM time, (SELECT row, fence, false AS lost FROM free UNION ALL SELECT row, fence, true FROM lost) AS c
        WHERE d.row = c.row
        RETURNING d.row, d.endpoint, d.fence, d.attempt, d.session, d.began, d.due, d.order_key IS NOT NULL AS ordered, d.started, c.lost)
    SELECT now, (SELECT count(*) FROM put_behind), (SELECT array_agg(id) FROM wanted WHERE NOT same), c.*
    FROM time LEFT JOIN (
        SELECT claimed.row, claimed.endpoint, fence, attempt, session, began, ordered, lost, id, content_type,
            CASE WHEN lost OR octet_length(payload) > $7::bigint THEN '' ELSE payload END AS payload,
            CASE WHEN lost THEN 0 ELSE octet_length(payload)::bigint END AS size, started, due
        FROM claimed LEFT JOIN relent_message_1 AS m ON m.row = claimed.row) AS c ON true
    ORDER BY c.endpoint, c.lost DESC, c.due, c.row";

/// The part `looked`: the earliest due messages.
const DUE: &str = "
            SELECT row, order_key, due, 0 AS rank FROM relent_delivery_1
            WHERE endpoint = own.id AND state = 0 AND due <= now
            ORDER BY due, row LIMIT greatest(r.room, $5::bigint)";
/// The part `looked` if some claims want [fresh](ClaimOrder) messages first, as `$8` says. A message found twice gets its
/// lower rank.
const FRESH: &str = "
            SELECT row, order_key, due, min(rank) AS rank FROM (
                (SELECT row, order_key, due, 0 AS rank FROM (
                    SELECT row, order_key, due, attempt, session FROM relent_delivery_1
                    WHERE endpoint = own.id AND state = 0 AND due <= now
                    ORDER BY due, row LIMIT CASE own.first WHEN 1 THEN 10000 ELSE 0 END) AS f
                WHERE attempt = 0 AND session = '' ORDER BY due, row LIMIT greatest(r.room, $5::bigint))
                UNION ALL
                (SELECT row, order_key, due, row_number() OVER (ORDER BY due DESC, row DESC) - 1000000 AS rank FROM (
                    SELECT row, order_key, due, attempt, session FROM relent_delivery_1
                    WHERE endpoint = own.id AND state = 0 AND due <= now
                    ORDER BY due DESC, row DESC LIMIT CASE own.first WHEN 2 THEN 10000 ELSE 0 END) AS f
                WHERE attempt = 0 AND session = '' ORDER BY due DESC, row DESC LIMIT greatest(r.room, $5::bigint))
                UNION ALL
                (SELECT row, order_key, due, 1 AS rank FROM relent_delivery_1
                WHERE endpoint = own.id AND state = 0 AND due <= now
                ORDER BY due, row LIMIT greatest(r.room, $5::bigint))) AS d
            GROUP BY row, order_key, due";

/// The complete statement of a claim.
fn claim_statement(with_fresh: bool) -> String {
    let claim = match with_fresh {
        false => CLAIM.replace("{looked}", DUE),
        true => CLAIM
            .replace("{looked}", FRESH)
            .replace(
                "$6::bigint[]) AS w (id, fence, most, revision)",
                "$6::bigint[], $8::bigint[]) AS w (id, fence, most, revision, first)",
            )
            .replace("w.most,", "w.most, w.first,"),
    };
    format!("WITH {TIME}, {claim}")
}

/// The number of messages examined at a time once some were put behind, and the number of repetitions in one claim, and
/// the time in which they begin. The rest of a longer queue is left to the next claim.
const EXAMINED_ROWS: i64 = 1000;
const MAX_EXAMINATIONS: usize = 10;
const EXAMINATION_TIME: Duration = Duration::from_secs(1);

pub(super) async fn claim(
    transaction: &Transaction<'_>,
    worker: &str,
    wanted: &[ClaimRequest],
) -> Result<Claims> {
    // Of an endpoint that is named twice, the last request counts.
    let wanted: BTreeMap<_, _> = wanted.iter().map(|one| (one.endpoint, one)).collect();
    let ids: Vec<_> = wanted.keys().copied().collect();
    let fences: Vec<_> = wanted.values().map(|one| one.fence.0).collect();
    let revisions: Vec<_> = wanted.values().map(|one| one.revision).collect();
    let mut most: Vec<_> = wanted.values().map(|one| number(one.most)).collect();
    let first: Vec<_> = wanted.values().map(|one| one.first as i64).collect();
    let with_fresh = wanted.values().any(|one| one.first != ClaimOrder::Due);
    let inline = number(INLINE);
    let lock = transaction.prepare_cached(LOCK).await?;
    let claim = transaction
        .prepare_cached(&claim_statement(with_fresh))
        .await?;

    let (mut claims, mut unreadable) = (Claims::default(), Vec::<Unreadable>::new());
    let mut changed = BTreeSet::new();
    let until = Instant::now() + EXAMINATION_TIME;
    // A failed message must not replace a fresh one that was put behind.
    let first_look = if with_fresh { EXAMINED_ROWS } else { 0 };
    for look in std::iter::once(first_look).chain([EXAMINED_ROWS; MAX_EXAMINATIONS]) {
        let parameters: [&(dyn ToSql + Sync); 8] = [
            &worker, &ids, &fences, &most, &look, &revisions, &inline, &first,
        ];
        let parameters = &parameters[..if with_fresh { 8 } else { 7 }];
        // Each round is a transaction, so that claimed messages are returned even if the next round fails. Otherwise the
        // attempts of this round would count, although none is made.
        let locked: [&(dyn ToSql + Sync); 1] = [&ids];
        let (locked, rows, committed) = tokio::join!(
            biased;
            transaction.execute(&lock, &locked),
            transaction.query(&claim, parameters),
            transaction.commit_now(),
        );
        let rows = match locked.and(rows) {
            Ok(rows) => rows,
            // The server has rolled this round back. After a lost connection, of which a connection pooler reports a
            // fatal error, it may have claimed messages. They return as lost if the worker gives its endpoints up.
            Err(error) if is_rolled_back(&error) && !claims.messages.is_empty() => break,
            Err(error) => return Err(error.into()),
        };
        committed?;
        let mut put_behind = 0_i64;
        for row in &rows {
            put_behind = row.try_get(1)?;
            changed.extend(row.try_get::<_, Option<Vec<i64>>>(2)?.unwrap_or_default());
            let Some(number) = row.try_get::<_, Option<i64>>(3)? else {
                continue;
            };
            let place = ids.binary_search(&row.try_get(4)?);
            if let Ok(place) = place {
                most[place] -= 1;
            }
            let revision = place.ok().and_then(|place| revisions.get(place));
            match read_claimed(row, revision.copied().unwrap_or_default()) {
                Ok(one) => claims.messages.push(one),
                Err(error) => unreadable.push(Unreadable {
                    row: number,
                    endpoint: row.try_get(4)?,
                    fence: row.try_get(5)?,
                    why: unreadable_message(&error.to_string()),
                }),
            }
        }
        // Messages that were put behind have taken places of others.
        if put_behind == 0 || most.iter().all(|most| *most == 0) || Instant::now() >= until {
            break;
        }
    }
    mark_dead(transaction, unreadable).await?;
    if !changed.is_empty() {
        match read_changed(transaction, &changed).await {
            Ok(changed) => claims.changed = changed,
            Err(error) if claims.messages.is_empty() => return Err(error),
            // The next claim returns them.
            Err(_) => {}
        }
    }
    Ok(claims)
}

/// The current form of the worker's endpoints. Endpoints written by another version are omitted, and not claimed.
async fn read_changed(
    transaction: &Transaction<'_>,
    endpoints: &BTreeSet<i64>,
) -> Result<Vec<OwnedEndpoint>> {
    let read = transaction
        .prepare_cached(
            "SELECT id, fence, tenant, name, spec, revision, health FROM relent_endpoint_1 WHERE id = ANY($1::bigint[])",
        )
        .await?;
    let endpoints: Vec<_> = endpoints.iter().copied().collect();
    let mut changed = Vec::new();
    for row in transaction.query(&read, &[&endpoints]).await? {
        if let Ok(endpoint) = spec(row.try_get(2)?, row.try_get(3)?, row.try_get(4)?) {
            changed.push(OwnedEndpoint {
                id: row.try_get(0)?,
                fence: Fence(row.try_get(1)?),
                endpoint,
                revision: row.try_get(5)?,
                health: row.try_get(6)?,
            });
        }
    }
    Ok(changed)
}

/// Whether attempts may start, with their payloads.
pub(super) async fn confirm(
    client: &Client,
    worker: &str,
    attempts: &[ConfirmRequest],
) -> Result<Vec<Option<Bytes>>> {
    let of = |column: fn(&ConfirmRequest) -> i64| attempts.iter().map(column).collect();
    let [rows, endpoints, fences, revisions]: [Vec<i64>; 4] = [
        of(|one| one.row),
        of(|one| one.endpoint),
        of(|one| one.fence.0),
        of(|one| one.revision),
    ];
    let payloads: Vec<_> = attempts.iter().map(|one| one.payload).collect();
    let confirm = client
        .prepare_cached(
            "SELECT n, CASE WHEN i.payload THEN (SELECT payload FROM relent_message_1 AS m WHERE m.row = d.row) ELSE '' END
             FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::boolean[]) WITH ORDINALITY
                 AS i (row, endpoint, fence, revision, payload, n)
             JOIN relent_delivery_1 AS d ON d.row = i.row AND d.endpoint = i.endpoint AND d.state = 1 AND d.fence = i.fence
             JOIN relent_endpoint_1 AS e ON e.id = i.endpoint AND e.fence = i.fence AND e.revision = i.revision
                 AND e.owner = $1 AND e.activity = 0",
        )
        .await?;
    let found = client
        .query(
            &confirm,
            &[&worker, &rows, &endpoints, &fences, &revisions, &payloads],
        )
        .await?;
    let mut confirmed = vec![None; attempts.len()];
    for row in found {
        let n = usize::try_from(row.try_get::<_, i64>(0)?).unwrap_or_default();
        let place = n.checked_sub(1).and_then(|n| confirmed.get_mut(n));
        if let Some(place) = place {
            *place = row.try_get::<_, Option<Vec<u8>>>(1)?.map(Bytes::from);
        }
    }
    Ok(confirmed)
}

/// A claimed message that cannot be read.
struct Unreadable {
    row: i64,
    endpoint: i64,
    fence: i64,
    why: String,
}

/// Marks unreadable messages as dead, so that they neither block others nor are claimed again and again. The claim is
/// committed, so another worker or an operator may have changed them since.
async fn mark_dead(transaction: &Transaction<'_>, unreadable: Vec<Unreadable>) -> Result<()> {
    if unreadable.is_empty() {
        return Ok(());
    }
    lock(
        transaction,
        &unreadable.iter().map(|one| one.endpoint).collect(),
    )
    .await?;
    let mark_dead = transaction
        .prepare_cached(&format!(
            "WITH {TIME}
             UPDATE relent_delivery_1 AS d SET state = 3, ended = now, reason = i.reason
             FROM time, unnest($1::bigint[], $2::bigint[], $3::text[]) AS i (row, fence, reason)
             WHERE d.row = i.row AND d.state = 1 AND d.fence = i.fence RETURNING endpoint, order_key"
        ))
        .await?;
    let rows: Vec<_> = unreadable.iter().map(|one| one.row).collect();
    let fences: Vec<_> = unreadable.iter().map(|one| one.fence).collect();
    let reasons: Vec<_> = unreadable.iter().map(|one| &one.why[..]).collect();
    let dead = transaction
        .query(&mark_dead, &[&rows, &fences, &reasons])
        .await?;
    let mut orders = BTreeSet::new();
    for row in dead {
        if let Some(order) = row.try_get(1)? {
            orders.insert((row.try_get(0)?, order));
        }
    }
    advance(transaction, orders).await
}

fn read_claimed(row: &Row, revision: i64) -> Result<Claimed> {
    let micros = |column| {
        let micros: i64 = row.try_get(column)?;
        Ok::<_, PostgresError>(system_time(micros))
    };
    Ok(Claimed {
        now: micros(0)?,
        row: row.try_get(3)?,
        endpoint: row.try_get(4)?,
        fence: Fence(row.try_get(5)?),
        revision,
        attempt: u32::try_from(row.try_get::<_, i64>(6)?).unwrap_or(u32::MAX),
        session: row.try_get(7)?,
        began: micros(8)?,
        ordered: row.try_get(9)?,
        lost: row.try_get(10)?,
        id: message_id(row.try_get(11)?)?,
        content_type: row.try_get(12)?,
        payload: row.try_get::<_, Vec<u8>>(13)?.into(),
        size: usize::try_from(row.try_get::<_, i64>(14)?).unwrap_or_default(),
        started: micros(15)?,
    })
}

/// Settles attempts whose fencing token is the current one of the locked endpoint. Only the owner changes a running
/// delivery, so an earlier snapshot of it is still valid.
///
/// The running state is compared with a column, so that rows are found by number. The index of running ones is full of
/// dead entries.
const SETTLE: &str = "
    i AS MATERIALIZED (
        SELECT *, 1::smallint AS running
        FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::smallint[], $8::bigint[],
                $9::text[], $10::bytea[], $11::boolean[], $12::bigint[], $13::bigint[], $14::bigint[], $15::integer[],
                $16::text[], $17::text[], $18::text[], $19::text[], $20::text[]) WITH ORDINALITY
            AS i (row, endpoint, fence, number, schedule, state, wait, reason, session, unsent, attempt, began, took,
                status, error, excerpt, address, request, response, n)),
    own AS MATERIALIZED (
        SELECT id, fence FROM relent_endpoint_1 WHERE id = ANY($1::bigint[]) ORDER BY id FOR NO KEY UPDATE),
    written AS (
        UPDATE relent_delivery_1 AS d SET state = i.state, due = least(coalesce(now + i.wait, d.due), {MAX_TIME}),
            ended = CASE WHEN i.state IN (2, 3) THEN now END, reason = i.reason, session = i.session,
            attempt = d.attempt - i.unsent::integer, began = d.began + i.unsent::integer
        FROM time, i JOIN own ON own.id = i.endpoint AND own.fence = i.fence
        WHERE d.row = i.row AND d.endpoint = i.endpoint AND d.state = i.running AND d.fence = i.fence
            AND d.attempt = i.number AND d.began = i.schedule
        RETURNING d.order_key, i.*),
    attempts AS (
        INSERT INTO relent_attempt_1 (row, number, began, took, status, error, excerpt, address, request, response)
        SELECT row, attempt, began, took, status, error, excerpt, address, request, response FROM written
        WHERE attempt IS NOT NULL ORDER BY n)
    SELECT n, endpoint, order_key FROM written";

pub(super) async fn settle(
    transaction: &Transaction<'_>,
    settled: &[Settled],
) -> Result<Vec<bool>> {
    let endpoints: BTreeSet<_> = settled.iter().map(|one| one.endpoint).collect();
    let endpoints: Vec<_> = endpoints.into_iter().collect();
    // Of two results of the same attempt, the first is written.
    let mut seen = HashSet::new();
    let first: Vec<_> = settled
        .iter()
        .enumerate()
        .filter(|(_, one)| seen.insert((one.row, one.endpoint, one.fence, one.number, one.began)))
        .collect();
    let next = |one: &Settled| match &one.next {
        AfterAttempt::Delivered => (2_i16, None, String::new()),
        AfterAttempt::Again(wait) => (0, Some(span(*wait)), String::new()),
        AfterAttempt::Unsent => (0, None, String::new()),
        AfterAttempt::Held(wait, reason) => (0, Some(span(*wait)), text(reason)),
        AfterAttempt::Dead(reason) => (3, None, text(reason)),
    };
    let nexts: Vec<_> = first.iter().map(|(_, one)| next(one)).collect();
    let reasons: Vec<_> = nexts.iter().map(|next| &next.2[..]).collect();
    let of = |column: fn(&Settled) -> i64| first.iter().map(|(_, one)| column(one)).collect();
    let [rows, of_endpoints, fences, numbers, schedules]: [Vec<_>; 5] = [
        of(|one| one.row),
        of(|one| one.endpoint),
        of(|one| one.fence.0),
        of(|one| i64::from(one.number)),
        of(|one| micros(one.began)),
    ];
    let states: Vec<_> = nexts.iter().map(|next| next.0).collect();
    let waits: Vec<_> = nexts.iter().map(|next| next.1).collect();
    let sessions: Vec<_> = first.iter().map(|(_, one)| &one.session[..]).collect();
    let unsent: Vec<_> = first.iter().map(|(_, one)| one.next.is_unsent()).collect();
    let attempts = || first.iter().map(|(_, one)| one.attempt.as_ref());
    let long = |column: fn(&AttemptRecord) -> i64| attempts().map(|one| one.map(column)).collect();
    let [attempt_numbers, began, took]: [Vec<_>; 3] = [
        long(|one| i64::from(one.number)),
        long(|one| one.started_ms),
        long(|one| i64::from(one.duration_ms)),
    ];
    let status = |one: &AttemptRecord| one.status.map(i32::from);
    let statuses: Vec<_> = attempts().map(|one| one.and_then(status)).collect();
    let words = |column: fn(&AttemptRecord) -> &str| {
        attempts()
            .map(|one| one.map(|one| text(column(one))))
            .collect()
    };
    let [errors, excerpts, addresses, requests, responses]: [Vec<_>; 5] = [
        words(|one| &one.error),
        words(|one| &one.excerpt),
        words(|one| &one.address),
        words(|one| &one.request),
        words(|one| &one.response),
    ];
    let settle = SETTLE.replace("{MAX_TIME}", &MAX_TIME.to_string());
    let settle = transaction
        .prepare_cached(&format!("WITH {TIME}, {settle}"))
        .await?;
    let parameters: [&(dyn ToSql + Sync); 20] = [
        &endpoints,
        &rows,
        &of_endpoints,
        &fences,
        &numbers,
        &schedules,
        &states,
        &waits,
        &reasons,
        &sessions,
        &unsent,
        &attempt_numbers,
        &began,
        &took,
        &statuses,
        &errors,
        &excerpts,
        &addresses,
        &requests,
        &responses,
    ];
    // Most need no further statement, and commit in the same round trip.
    let rows = if settled.iter().all(is_plain) {
        let (rows, committed) = tokio::join!(
            biased;
            transaction.query(&settle, &parameters),
            transaction.commit_now(),
        );
        let rows = rows?;
        committed?;
        rows
    } else {
        transaction.query(&settle, &parameters).await?
    };
    let (mut written, mut orders) = (vec![false; settled.len()], BTreeSet::new());
    for row in rows {
        let n = usize::try_from(row.try_get::<_, i64>(0)?).unwrap_or_default();
        if let Some((place, _)) = n.checked_sub(1).and_then(|n| first.get(n)) {
            written[*place] = true;
        }
        if let Some(order) = row.try_get(2)? {
            orders.insert((row.try_get(1)?, order));
        }
    }
    advance(transaction, orders).await?;
    forget(transaction, settled, &written).await?;
    let of_written = settled
        .iter()
        .zip(&written)
        .filter(|(_, written)| **written);
    write_endpoints(transaction, of_written.map(|(one, _)| one)).await?;
    Ok(written)
}

/// Whether only the delivery and its attempt are written.
fn is_plain(settled: &Settled) -> bool {
    let kept = settled.attempt.as_ref();
    !settled.ordered
        && settled.health.is_none()
        && settled.disable.is_none()
        && kept.is_none_or(|kept| forgotten(kept.number).is_none())
}

/// Deletes old attempts of schedules without an end.
async fn forget(
    transaction: &Transaction<'_>,
    settled: &[Settled],
    written: &[bool],
) -> Result<()> {
    let (mut rows, mut from, mut to) = (Vec::new(), Vec::new(), Vec::new());
    for (one, written) in settled.iter().zip(written) {
        let kept = one.attempt.as_ref().filter(|_| *written);
        if let Some(forgotten) = kept.and_then(|kept| forgotten(kept.number)) {
            rows.push(one.row);
            from.push(i64::from(*forgotten.start()));
            to.push(i64::from(*forgotten.end()));
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    let forget = transaction
        .prepare_cached(
            "DELETE FROM relent_attempt_1 AS a
             USING unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS i (row, from_number, to_number)
             WHERE a.row = i.row AND a.number BETWEEN i.from_number AND i.to_number",
        )
        .await?;
    transaction.execute(&forget, &[&rows, &from, &to]).await?;
    Ok(())
}

/// Writes the health and the deactivation of endpoints.
async fn write_endpoints(
    transaction: &Transaction<'_>,
    settled: impl Iterator<Item = &Settled>,
) -> Result<()> {
    let mut endpoints = BTreeMap::<(i64, i64), (Option<&[u8]>, Option<String>)>::new();
    for one in settled.filter(|one| one.health.is_some() || one.disable.is_some()) {
        let (health, disable) = endpoints.entry((one.endpoint, one.revision)).or_default();
        *health = one.health.as_deref().or(*health);
        if disable.is_none() {
            *disable = one.disable.as_deref().map(text);
        }
    }
    if endpoints.is_empty() {
        return Ok(());
    }
    // An earlier deactivation keeps its reason.
    let write = transaction.prepare_cached(
        "UPDATE relent_endpoint_1 AS e SET health = coalesce(i.health, e.health),
             reason = CASE WHEN activity = 0 THEN coalesce(i.disable, reason) ELSE reason END,
             activity = CASE WHEN i.disable IS NULL THEN activity ELSE 1 END
         FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::text[]) AS i (id, revision, health, disable)
         WHERE e.id = i.id AND e.revision = i.revision",
    ).await?;
    let (ids, revisions): (Vec<_>, Vec<_>) = endpoints.keys().copied().unzip();
    let (healths, disables): (Vec<_>, Vec<_>) = endpoints.into_values().unzip();

    transaction
        .execute(&write, &[&ids, &revisions, &healths, &disables])
        .await?;
    Ok(())
}

/// Releases the first message of each order key, unless one of the key is running. The endpoints must be locked.
pub(super) async fn advance(
    transaction: &Transaction<'_>,
    orders: BTreeSet<(i64, String)>,
) -> Result<()> {
    if orders.is_empty() {
        return Ok(());
    }
    let first = |state: &str| {
        format!(
            "(SELECT min(row) FROM relent_delivery_1 WHERE endpoint = k.endpoint AND order_key = k.order_key AND state = {state})"
        )
    };
    let advance = transaction
        .prepare_cached(&format!(
            "UPDATE relent_delivery_1 SET state = 0 WHERE state = 5 AND row IN (
             SELECT least({}, {}, CASE WHEN e.on_dead_letter = 0 THEN {} END)
             FROM unnest($1::bigint[], $2::text[]) AS k (endpoint, order_key)
             JOIN relent_endpoint_1 AS e ON e.id = k.endpoint
             WHERE {} IS NULL)",
            first("0"),
            first("5"),
            first("3"),
            first("1"),
        ))
        .await?;
    let (endpoints, keys): (Vec<_>, Vec<_>) = orders.into_iter().unzip();
    transaction.execute(&advance, &[&endpoints, &keys]).await?;
    Ok(())
}

/// Whether the server has refused a statement, and with it the transaction.
fn is_rolled_back(error: &tokio_postgres::Error) -> bool {
    error
        .as_db_error()
        .is_some_and(|error| error.parsed_severity() == Some(Severity::Error))
}
