//! Claiming of messages by workers.

use std::error::Error;
use std::ops::Range;

use bytes::Bytes;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, Rows};

use super::error::SqliteError;
use super::invariants::{Touched, set_wake};
use super::work::{changed, has_lease};
use crate::message::MessageId;
use crate::store::{
    ClaimOrder, ClaimRequest, Claimed, Claims, ConfirmRequest, INLINE, micros, system_time,
    unreadable_message,
};

/// Finds the endpoint if the worker owns it with this fencing token and it is active.
pub(super) const OWNED: &str = "SELECT wake, revision FROM relent_endpoint_1
    WHERE id = ?1 AND owner = ?2 AND fence = ?3 AND activity = 0";
/// Messages that an earlier owner has left running. They are due at any time.
pub(super) const LOST: &str = "
    SELECT d.row, 0, d.attempt, d.session, d.began, d.order_key IS NOT NULL, m.id, m.content_type, x'', 0, d.started
    FROM relent_delivery_1 AS d LEFT JOIN relent_message_1 AS m ON m.row = d.row
    WHERE d.endpoint = ?1 AND d.state = 1 AND d.fence < ?2";
macro_rules! waiting {
    ($where:literal) => {
        concat!(
            "SELECT d.row, d.due, d.attempt, d.session, d.began, d.order_key IS NOT NULL, m.id, m.content_type,
                 CASE WHEN d.due <= ?2 AND length(m.payload) <= ?3 THEN m.payload END,
                 CASE WHEN d.due <= ?2 THEN length(m.payload) END, d.started
             FROM relent_delivery_1 AS d LEFT JOIN relent_message_1 AS m ON m.row = d.row
             WHERE ",
            $where
        )
    };
}

macro_rules! fresh {
    ($order:literal) => {
        concat!(
            "SELECT row FROM (
                 SELECT row, attempt, session FROM relent_delivery_1
                 WHERE endpoint = ?1 AND state = 0 AND due <= ?2 ORDER BY due ",
            $order,
            " LIMIT 10000)
             WHERE attempt = 0 AND session = x''"
        )
    };
}

/// Pending messages, including those that are not due: the first of these sets the next wake-up. Its payload is not
/// read.
///
/// The statements have no limit: SQLite would prepare them again for each number.
pub(super) const DUE: &str = waiting!("d.endpoint = ?1 AND d.state = 0 ORDER BY d.due");
/// A single pending message, by its row.
pub(super) const ONE: &str = waiting!("d.row = ?1");
/// Messages that have never failed.
pub(super) const FRESH: &str = fresh!("ASC");
pub(super) const NEWEST: &str = fresh!("DESC");
/// Messages whose due time is not a number, which sort behind all numbers.
pub(super) const NO_TIME: &str = "SELECT row, typeof(due) FROM relent_delivery_1 WHERE endpoint = ?1 AND state = 0 AND due >= ''";
pub(super) const TAKE: &str =
    "UPDATE relent_delivery_1 SET state = 1, fence = ?2, attempt = ?3, started = ?4 WHERE row = ?1";

pub(super) fn claim(
    connection: &Connection,
    now: i64,
    worker: &str,
    wanted: &[ClaimRequest],
) -> Result<Claims, SqliteError> {
    if !has_lease(connection, now, worker)? {
        return Ok(Claims::default());
    }
    let mut owned = connection.prepare_cached(OWNED)?;
    let mut lost = connection.prepare_cached(LOST)?;
    let mut due = connection.prepare_cached(DUE)?;
    let mut no_time = connection.prepare_cached(NO_TIME)?;
    let mut take = connection.prepare_cached(TAKE)?;
    let mut found = Found::default();
    let mut touched = Touched::default();
    let mut claims = Claims::default();
    for wanted in wanted {
        let (endpoint, fence) = (wanted.endpoint, wanted.fence);
        let woken = owned.query_row((endpoint, worker, fence.0), |row| {
            Ok((row.get(0)?, row.get::<_, i64>(1)?))
        });
        let Some((woken, revision)) = woken.optional()? else {
            continue;
        };
        if revision != wanted.revision {
            claims.changed.extend(changed(connection, endpoint)?);
            continue;
        }
        if wanted.most == 0 {
            continue;
        }
        let (before, all) = (found.claimed.len(), found.len());
        let one = |lost| One { wanted, now, lost };
        let mut rows = no_time.query([endpoint])?;
        while let Some(row) = rows.next()? {
            let why = format!(
                "its due time is no number but of the type {}",
                row.get::<_, String>(1)?
            );
            found.unreadable.push((row.get(0)?, why));
        }
        for (row, why) in found.unreadable.drain(..) {
            mark_dead(connection, now, row, &why, &mut touched)?;
        }
        let rows = lost.query((endpoint, fence.0))?;
        let lost_left = found.add(rows, &one(true), wanted.most)?;
        let most = wanted.most - (found.len() - all);
        let fresh = match wanted.first {
            ClaimOrder::Due => None,
            ClaimOrder::Fresh => Some(FRESH),
            ClaimOrder::Newest => Some(NEWEST),
        };
        let fresh_from = found.claimed.len();
        if let Some(fresh) = fresh {
            let mut fresh = connection.prepare_cached(fresh)?;
            let rows = fresh.query_map((endpoint, now), |row| row.get(0))?;
            let rows: Vec<i64> = rows.take(most).collect::<Result<_, _>>()?;
            let mut get = connection.prepare_cached(ONE)?;
            for row in rows {
                found.add(get.query((row, now, inline()))?, &one(false), 1)?;
            }
        }
        let most = wanted.most - (found.len() - all);
        found.fresh = fresh_from..found.claimed.len();
        let due_left = found.add(due.query((endpoint, now, inline()))?, &one(false), most)?;
        for claimed in &found.claimed[before..] {
            take.execute((
                claimed.row,
                fence.0,
                claimed.attempt,
                micros(claimed.started),
            ))?;
        }
        set_wake(connection, endpoint, woken, lost_left.or(due_left))?;
        for (row, why) in found.unreadable.drain(..) {
            mark_dead(connection, now, row, &why, &mut touched)?;
        }
    }
    touched.follow(connection)?;
    claims.messages = found.claimed;
    Ok(claims)
}

fn inline() -> i64 {
    i64::try_from(INLINE).unwrap_or(i64::MAX)
}

/// Whether attempts may start, with their payloads.
pub(super) fn confirm(
    connection: &Connection,
    worker: &str,
    attempts: &[ConfirmRequest],
) -> Result<Vec<Option<Bytes>>, SqliteError> {
    let mut confirm = connection.prepare_cached(CONFIRM)?;
    let one = |attempt: &ConfirmRequest| {
        let ConfirmRequest {
            row,
            endpoint,
            fence,
            revision,
            payload,
        } = *attempt;
        let payload = confirm
            .query_row((row, endpoint, fence.0, revision, worker, payload), |row| {
                Ok(Bytes::copy_from_slice(row.get_ref(0)?.as_bytes()?))
            });
        Ok(payload.optional()?)
    };
    attempts.iter().map(one).collect()
}

pub(super) const CONFIRM: &str = "
    SELECT iif(?6, (SELECT payload FROM relent_message_1 AS m WHERE m.row = d.row), x'')
    FROM relent_delivery_1 AS d JOIN relent_endpoint_1 AS e ON e.id = d.endpoint
    WHERE d.row = ?1 AND d.endpoint = ?2 AND d.state = 1 AND d.fence = ?3
        AND e.fence = ?3 AND e.revision = ?4 AND e.owner = ?5 AND e.activity = 0";

/// The messages to claim.
#[derive(Default)]
struct Found {
    claimed: Vec<Claimed>,
    /// The range of `claimed` with fresh messages of this endpoint, which occur again among all due ones.
    fresh: Range<usize>,
    /// Rows that cannot be read, with the reason.
    unreadable: Vec<(i64, String)>,
}

impl Found {
    fn len(&self) -> usize {
        self.claimed.len() + self.unreadable.len()
    }

    /// Adds up to `most` of these. Returns when the first of the remaining ones is due.
    fn add(
        &mut self,
        mut rows: Rows<'_>,
        one: &One<'_>,
        most: usize,
    ) -> rusqlite::Result<Option<i64>> {
        let full = self.len() + most;
        while let Some(row) = rows.next()? {
            // A fraction is an invalid time, too, but sorts among the others.
            let due = match row.get_ref(1)? {
                ValueRef::Real(due) => due as i64,
                due => due.as_i64()?,
            };
            let number: i64 = row.get(0)?;
            let fresh = self.claimed.get(self.fresh.clone()).unwrap_or_default();
            if fresh.iter().any(|fresh| fresh.row == number) {
                continue;
            }
            if due > one.now || self.len() == full {
                return Ok(Some(due));
            }
            match one.claimed(row) {
                Ok(claimed) => self.claimed.push(claimed),
                Err(why) => self.unreadable.push((number, why.to_string())),
            }
        }
        Ok(None)
    }
}

/// The parameters of a claim.
struct One<'w> {
    wanted: &'w ClaimRequest,
    now: i64,
    lost: bool,
}

impl One<'_> {
    fn claimed(&self, row: &Row<'_>) -> Result<Claimed, Box<dyn Error>> {
        let before: u32 = row.get(2)?;
        let _due: i64 = row.get(1)?;
        let size = usize::try_from(row.get::<_, i64>(9)?)?;
        let payload = match size {
            0..=INLINE => Bytes::copy_from_slice(row.get_ref(8)?.as_bytes()?),
            _ => Bytes::new(),
        };
        let started = match self.lost {
            true => row.get(10)?,
            false => self.now,
        };
        Ok(Claimed {
            row: row.get(0)?,
            endpoint: self.wanted.endpoint,
            fence: self.wanted.fence,
            revision: self.wanted.revision,
            id: MessageId::try_from(row.get::<_, String>(6)?)?,
            content_type: row.get(7)?,
            payload,
            size,
            attempt: before.saturating_add((!self.lost).into()),
            ordered: row.get(5)?,
            session: row.get(3)?,
            began: system_time(row.get(4)?),
            now: system_time(self.now),
            started: system_time(started),
            lost: self.lost,
        })
    }
}

/// Marks an unreadable message as dead, so that it neither blocks others nor is claimed again and again.
fn mark_dead(
    connection: &Connection,
    now: i64,
    row: i64,
    why: &str,
    touched: &mut Touched,
) -> rusqlite::Result<()> {
    let mut mark_dead = connection.prepare_cached(
        "UPDATE relent_delivery_1 SET state = 3, ended = ?2, reason = ?3 WHERE row = ?1
         RETURNING endpoint, order_key",
    )?;
    let (endpoint, order) = mark_dead.query_row((row, now, unreadable_message(why)), |row| {
        Ok((row.get(0)?, row.get(1).unwrap_or_default()))
    })?;
    touched.add(endpoint, order);
    Ok(())
}
