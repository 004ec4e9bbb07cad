//! Operations of workers.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};

use super::error::SqliteError;
use super::invariants::wake;
use super::read::{count, spec};
use crate::endpoint::Endpoint;
use crate::message::{InvalidMessage, is_name};
use crate::store::later;
use crate::store::{EndpointWork, Fence, Heartbeat, OwnedEndpoint};

pub(super) fn heartbeat(
    connection: &Connection,
    now: i64,
    worker: &str,
    lease: Duration,
    able: bool,
) -> Result<Heartbeat, SqliteError> {
    if !is_name(worker) {
        return Err(InvalidMessage::Name("name of a worker").into());
    }
    let kept = has_lease(connection, now, worker)?;
    let mut put = connection.prepare_cached(
        "INSERT INTO relent_worker_1 (id, until, heartbeat, able) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (id) DO UPDATE SET until = excluded.until, heartbeat = excluded.heartbeat, able = excluded.able",
    )?;
    put.execute((worker, later(now, lease), now, able))?;
    forget_expired(connection, now)?;
    let mut share = connection.prepare_cached(
        "SELECT (SELECT count(*) FROM relent_endpoint_1 WHERE activity = 0),
             count(*), count(*) FILTER (WHERE able) FROM relent_worker_1",
    )?;
    let share = share.query_row([], |row| {
        let [active, live, able_workers] = [count(row, 0)?, count(row, 1)?, count(row, 2)?];
        Ok(Heartbeat::share_of(active, live, able_workers, able))
    })?;
    Ok(Heartbeat { kept, share })
}

pub(super) fn has_lease(connection: &Connection, now: i64, worker: &str) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT 1 FROM relent_worker_1 WHERE id = ?1 AND until > ?2")?
        .exists((worker, now))
}

/// Deletes workers with expired leases, and releases their endpoints.
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

/// Finds endpoints with work by owner: none, or the worker.
pub(super) const FIND: &str = "SELECT id, fence, wake, revision FROM relent_endpoint_1
    WHERE activity = 0 AND owner = ?1 AND wake <= ?2 ORDER BY wake";

pub(super) fn find(
    connection: &Connection,
    now: i64,
    worker: &str,
    within: Duration,
    most: usize,
) -> Result<Vec<EndpointWork>, SqliteError> {
    let mut found = Vec::new();
    for owner in ["", worker] {
        let mut find = connection.prepare_cached(FIND)?;
        let rows = find.query_map((owner, later(now, within)), |row| {
            let fence = Fence(row.get(1)?);
            Ok(EndpointWork {
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
) -> Result<Vec<OwnedEndpoint>, SqliteError> {
    if !has_lease(connection, now, worker)? {
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
            // The other endpoints need not wait for a version that can read this one.
            Err(error) => {
                unreadable = Some(error);
                continue;
            }
        };
        owned.push(take.query_row((id, worker), |row| {
            Ok(OwnedEndpoint {
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

/// The current form of an endpoint that a worker owns, if it can be read.
pub(super) fn changed(
    connection: &Connection,
    id: i64,
) -> Result<Option<OwnedEndpoint>, SqliteError> {
    let mut select = connection.prepare_cached(
        "SELECT tenant, name, spec, fence, revision, health FROM relent_endpoint_1 WHERE id = ?1",
    )?;
    let (tenant, name, text, mut owned) = select.query_row([id], |row| {
        let text = |column| row.get::<_, String>(column);
        let owned = OwnedEndpoint {
            id,
            fence: Fence(row.get(3)?),
            endpoint: Endpoint::new("", ""),
            revision: row.get(4)?,
            health: row.get(5)?,
        };
        Ok((text(0)?, text(1)?, text(2)?, owned))
    })?;
    // Another version has written it: its messages are not claimed, but those of others are.
    let Ok(endpoint) = spec(&tenant, &name, &text) else {
        return Ok(None);
    };
    owned.endpoint = endpoint;
    Ok(Some(owned))
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
