//! What workers do.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use super::queue::{Touched, wake};
use super::read::{count, message_id, spec};
use super::{SqliteError, later, micros, system_time};
use crate::message::{InvalidMessage, MAX_NAME};
use crate::store::{Beat, Claimed, Fence, Next, Owned, Settled, Wanted, Work, text};

pub(super) fn beat(
    connection: &Connection,
    now: i64,
    worker: &str,
    lease: Duration,
) -> Result<Beat, SqliteError> {
    if worker.is_empty() || worker.len() > MAX_NAME || worker.contains('\0') {
        return Err(InvalidMessage::Name("name of a worker").into());
    }
    let kept = lives(connection, now, worker)?;
    let mut put = connection.prepare_cached(
        "INSERT INTO relent_worker_1 (id, until) VALUES (?1, ?2)
         ON CONFLICT (id) DO UPDATE SET until = excluded.until",
    )?;
    put.execute((worker, later(now, lease)))?;
    forget_expired(connection, now)?;
    let mut share = connection.prepare_cached(
        "SELECT (SELECT count(*) FROM relent_endpoint_1 WHERE activity = 0),
             (SELECT count(*) FROM relent_worker_1)",
    )?;
    let (active, workers) = share.query_row([], |row| Ok((count(row, 0)?, count(row, 1)?)))?;
    let share = active.div_ceil(workers.max(1));
    Ok(Beat {
        kept,
        share: usize::try_from(share).unwrap_or(usize::MAX),
    })
}

fn lives(connection: &Connection, now: i64, worker: &str) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT 1 FROM relent_worker_1 WHERE id = ?1 AND until > ?2")?
        .exists((worker, now))
}

/// The endpoints of workers whose lease has expired are nobody's.
fn forget_expired(connection: &Connection, now: i64) -> rusqlite::Result<()> {
    let mut expired =
        connection.prepare_cached("DELETE FROM relent_worker_1 WHERE until <= ?1 RETURNING id")?;
    let expired = expired.query_map([now], |row| row.get::<_, String>(0))?;
    for worker in expired.collect::<Result<Vec<_>, _>>()? {
        let mut free = connection.prepare_cached(
            "UPDATE relent_endpoint_1 SET owner = '' WHERE owner = ?1 AND owner <> '' RETURNING id",
        )?;
        let free = free.query_map([worker], |row| row.get(0))?;
        for endpoint in free.collect::<Result<Vec<_>, _>>()? {
            wake(connection, endpoint)?;
        }
    }
    Ok(())
}

/// What has work of each of these owners: nobody, and the worker.
pub(super) const FIND: &str = "SELECT id, fence, wake, revision FROM relent_endpoint_1
    WHERE activity = 0 AND owner = ?1 AND wake <= ?2 ORDER BY wake";

pub(super) fn find(
    connection: &Connection,
    now: i64,
    worker: &str,
    within: Duration,
    most: usize,
) -> Result<Vec<Work>, SqliteError> {
    let mut found = Vec::new();
    for owner in ["", worker] {
        let mut find = connection.prepare_cached(FIND)?;
        let rows = find.query_map((owner, later(now, within)), |row| {
            let fence = Fence(row.get(1)?);
            Ok(Work {
                endpoint: row.get(0)?,
                owned: (!owner.is_empty()).then_some(fence),
                due: Duration::from_micros(
                    row.get::<_, i64>(2)?
                        .saturating_sub(now)
                        .max(0)
                        .unsigned_abs(),
                ),
                revision: row.get(3)?,
            })
        })?;
        for work in rows.take(most) {
            found.push(work?);
        }
        if worker.is_empty() {
            break;
        }
    }
    found.sort_by_key(|work| work.due);
    found.truncate(most);
    Ok(found)
}

pub(super) fn acquire(
    connection: &Connection,
    now: i64,
    worker: &str,
    endpoints: &[i64],
) -> Result<Vec<Owned>, SqliteError> {
    if !lives(connection, now, worker)? {
        return Ok(Vec::new());
    }
    forget_expired(connection, now)?;
    let mut select = connection.prepare_cached(
        "SELECT tenant, name, spec FROM relent_endpoint_1
         WHERE id = ?1 AND activity = 0 AND owner IN ('', ?2)",
    )?;
    let mut take = connection.prepare_cached(
        "UPDATE relent_endpoint_1 SET owner = ?2, fence = fence + 1 WHERE id = ?1
         RETURNING fence, health, revision",
    )?;
    let (mut owned, mut unreadable) = (Vec::new(), None);
    for &id in endpoints {
        let texts = select.query_row((id, worker), |row| {
            let text = |column| row.get::<_, String>(column);
            Ok((text(0)?, text(1)?, text(2)?))
        });
        let Some((tenant, name, text)) = texts.optional()? else {
            continue;
        };
        let endpoint = match spec(&tenant, &name, &text) {
            Ok(endpoint) => endpoint,
            // The others need not wait for a version that can read it.
            Err(error) => {
                unreadable = Some(error);
                continue;
            }
        };
        owned.push(take.query_row((id, worker), |row| {
            Ok(Owned {
                id,
                fence: Fence(row.get(0)?),
                endpoint,
                revision: row.get(2)?,
                health: row.get(1)?,
            })
        })?);
        wake(connection, id)?;
    }
    match unreadable {
        Some(error) if owned.is_empty() => Err(error),
        _ => Ok(owned),
    }
}

pub(super) fn release(
    connection: &Connection,
    worker: &str,
    endpoints: &[(i64, Fence)],
) -> Result<(), SqliteError> {
    let mut release = connection.prepare_cached(
        "UPDATE relent_endpoint_1 SET owner = '' WHERE id = ?1 AND owner = ?2 AND fence = ?3",
    )?;
    for &(endpoint, fence) in endpoints {
        if release.execute((endpoint, worker, fence.0))? > 0 {
            wake(connection, endpoint)?;
        }
    }
    Ok(())
}

pub(super) const CLAIM_LOST: &str =
    "SELECT row FROM relent_delivery_1 WHERE endpoint = ?1 AND state = 1 AND fence < ?2";
pub(super) const CLAIM_DUE: &str = "SELECT row FROM relent_delivery_1
    WHERE endpoint = ?1 AND state = 0 AND due <= ?2 ORDER BY due";

pub(super) fn claim(
    connection: &Connection,
    now: i64,
    worker: &str,
    wanted: &[Wanted],
) -> Result<Vec<Claimed>, SqliteError> {
    let mut claimed = Vec::new();
    if !lives(connection, now, worker)? {
        return Ok(claimed);
    }
    let mut owned = connection.prepare_cached(
        "SELECT 1 FROM relent_endpoint_1 WHERE id = ?1 AND owner = ?2 AND fence = ?3 AND activity = 0",
    )?;
    for wanted in wanted {
        let (endpoint, fence) = (wanted.endpoint, wanted.fence);
        if wanted.most == 0 || !owned.exists((endpoint, worker, fence.0))? {
            continue;
        }
        // As many as are wanted, without a limit in the statement: SQLite would prepare it anew for each number.
        let rows = |select: &str, limit: i64, most: usize| {
            let mut select = connection.prepare_cached(select)?;
            let rows = select.query_map((endpoint, limit), |row| row.get(0))?;
            rows.take(most).collect::<Result<Vec<i64>, _>>()
        };
        let lost = rows(CLAIM_LOST, fence.0, wanted.most)?;
        let due = rows(CLAIM_DUE, now, wanted.most - lost.len())?;
        if lost.is_empty() && due.is_empty() {
            continue;
        }
        for (row, lost) in lost
            .iter()
            .map(|row| (*row, true))
            .chain(due.iter().map(|row| (*row, false)))
        {
            claimed.push(claim_one(connection, now, row, endpoint, fence, lost)?);
        }
        wake(connection, endpoint)?;
    }
    Ok(claimed)
}

fn claim_one(
    connection: &Connection,
    now: i64,
    row: i64,
    endpoint: i64,
    fence: Fence,
    lost: bool,
) -> Result<Claimed, SqliteError> {
    let mut update = connection.prepare_cached(
        "UPDATE relent_delivery_1 SET state = 1, fence = ?2, attempt = attempt + ?3 WHERE row = ?1
         RETURNING attempt, session, began, order_key IS NOT NULL",
    )?;
    let (attempt, session, began, ordered) = update.query_row((row, fence.0, !lost), |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
    })?;
    let mut message = connection.prepare_cached(
        "SELECT id, content_type, CASE WHEN ?2 THEN x'' ELSE payload END FROM relent_message_1 WHERE row = ?1",
    )?;
    let (id, content_type, payload): (_, _, Vec<u8>) = message.query_row((row, lost), |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
    })?;
    Ok(Claimed {
        row,
        endpoint,
        fence,
        id: message_id(id)?,
        content_type,
        payload: payload.into(),
        attempt,
        ordered,
        session,
        began: system_time(began),
        now: system_time(now),
        lost,
    })
}

pub(super) fn settle(
    connection: &Connection,
    now: i64,
    settled: &[Settled],
) -> Result<Vec<bool>, SqliteError> {
    let mut touched = Touched::default();
    let mut written = Vec::with_capacity(settled.len());
    for one in settled {
        written.push(settle_one(connection, now, one, &mut touched)?);
    }
    touched.follow(connection)?;
    Ok(written)
}

fn settle_one(
    connection: &Connection,
    now: i64,
    settled: &Settled,
    touched: &mut Touched,
) -> Result<bool, SqliteError> {
    let (state, due, ended, reason) = match &settled.next {
        Next::Delivered => (2, None, Some(now), String::new()),
        Next::Again(wait) => (0, Some(later(now, *wait)), None, String::new()),
        Next::Unsent => (0, None, None, String::new()),
        Next::Dead(reason) => (3, None, Some(now), text(reason)),
    };
    let mut update = connection.prepare_cached(
        "UPDATE relent_delivery_1 SET state = ?5, due = coalesce(?6, due), ended = ?7, reason = ?8, session = ?9,
             attempt = attempt - ?10, began = began + ?10
         WHERE row = ?1 AND endpoint = ?2 AND state = 1 AND fence = ?3 AND attempt = ?4 AND began = ?11
             AND EXISTS (SELECT 1 FROM relent_endpoint_1 WHERE id = ?2 AND fence = ?3)
         RETURNING order_key",
    )?;
    let order = update.query_row(
        params![
            settled.row,
            settled.endpoint,
            settled.fence.0,
            settled.number,
            state,
            due,
            ended,
            reason,
            settled.session,
            settled.next == Next::Unsent,
            micros(settled.began),
        ],
        |row| row.get(0),
    );
    let Some(order) = order.optional()? else {
        return Ok(false);
    };
    touched.add(settled.endpoint, order);
    if let Some(attempt) = &settled.attempt {
        let mut insert = connection.prepare_cached(
            "INSERT INTO relent_attempt_1 (row, number, began, took, status, error, excerpt, address)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?;
        insert.execute(params![
            settled.row,
            attempt.number,
            attempt.began_ms,
            attempt.took_ms,
            attempt.status,
            text(&attempt.error),
            text(&attempt.excerpt),
            text(&attempt.address),
        ])?;
    }
    if let Some(health) = &settled.health {
        connection
            .prepare_cached("UPDATE relent_endpoint_1 SET health = ?2 WHERE id = ?1")?
            .execute((settled.endpoint, health))?;
    }
    if let Some(reason) = &settled.disable {
        // Who disabled it before had a reason.
        connection
            .prepare_cached(
                "UPDATE relent_endpoint_1 SET activity = 1, reason = ?2 WHERE id = ?1 AND activity = 0",
            )?
            .execute((settled.endpoint, text(reason)))?;
    }
    Ok(true)
}
