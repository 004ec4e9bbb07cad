//! Recording of results by workers.

use std::collections::BTreeMap;

use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::error::SqliteError;
use super::invariants::Touched;
use crate::store::{AfterAttempt, AttemptRecord, Settled, forgotten, text};
use crate::store::{later, micros};

/// Whether the endpoint has no owner, and its fencing token.
pub(super) const ENDPOINT: &str = "SELECT owner = '', fence FROM relent_endpoint_1 WHERE id = ?1";

macro_rules! settle {
    ($order:literal) => {
        concat!(
            "UPDATE relent_delivery_1 SET state = ?6, due = coalesce(?7, due), ended = ?8, reason = ?9, session = ?10,
                 attempt = attempt - ?11, began = began + ?11, written = ?12
             WHERE row = ?1 AND endpoint = ?2 AND state = 1 AND fence = ?3 AND attempt = ?4 AND began = ?5
                 AND order_key IS ",
            $order
        )
    };
}

/// For messages without order key, the common case. Returning the key costs as much as the whole statement.
pub(super) const SETTLE: &str = settle!("NULL");
pub(super) const SETTLE_ORDERED: &str = settle!("NOT NULL RETURNING order_key");
pub(super) const ATTEMPT: &str = "
    INSERT INTO relent_attempt_1 (row, number, began, took, status, error, excerpt, address, request, response)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";

pub(super) fn settle(
    connection: &Connection,
    now: i64,
    settled: &[Settled],
) -> Result<Vec<bool>, SqliteError> {
    let mut batch = Batch {
        connection,
        now,
        settle: connection.prepare_cached(SETTLE)?,
        settle_ordered: connection.prepare_cached(SETTLE_ORDERED)?,
        attempt: connection.prepare_cached(ATTEMPT)?,
        endpoints: BTreeMap::new(),
        health: BTreeMap::new(),
        touched: Touched::default(),
    };
    let mut written = Vec::with_capacity(settled.len());
    for one in settled {
        written.push(batch.settle(one)?);
    }
    let mut health = connection.prepare_cached(
        "UPDATE relent_endpoint_1 SET health = ?3 WHERE id = ?1 AND revision = ?2",
    )?;
    for ((endpoint, revision), latest) in batch.health {
        health.execute((endpoint, revision, latest))?;
    }
    batch.touched.follow(connection)?;
    Ok(written)
}

/// Results that are settled together, and the statements for them.
struct Batch<'c, 's> {
    connection: &'c Connection,
    now: i64,
    settle: CachedStatement<'c>,
    settle_ordered: CachedStatement<'c>,
    attempt: CachedStatement<'c>,
    /// For each endpoint, whether it has no owner, and its fencing token. Settling changes neither.
    endpoints: BTreeMap<i64, Option<(bool, i64)>>,
    /// The latest health of each endpoint, by its revision.
    health: BTreeMap<(i64, i64), &'s [u8]>,
    touched: Touched,
}

impl<'s> Batch<'_, 's> {
    fn endpoint(&mut self, id: i64) -> rusqlite::Result<Option<(bool, i64)>> {
        if let Some(found) = self.endpoints.get(&id) {
            return Ok(*found);
        }
        let found = self
            .connection
            .prepare_cached(ENDPOINT)?
            .query_row([id], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        self.endpoints.insert(id, found);
        Ok(found)
    }

    /// Settles one attempt. Returns whether it was written.
    fn settle(&mut self, settled: &'s Settled) -> rusqlite::Result<bool> {
        let endpoint = settled.endpoint;
        let Some((nobodys, fence)) = self.endpoint(endpoint)? else {
            return Ok(false);
        };
        if fence != settled.fence.0 || !self.write(settled, nobodys)? {
            return Ok(false);
        }
        if let Some(attempt) = &settled.attempt {
            self.keep(settled.row, attempt)?;
        }
        if let Some(health) = &settled.health {
            self.health.insert((endpoint, settled.revision), health);
        }
        if let Some(reason) = &settled.disable {
            // An earlier deactivation keeps its reason.
            self.connection
                .prepare_cached(
                    "UPDATE relent_endpoint_1 SET activity = 1, reason = ?3
                     WHERE id = ?1 AND revision = ?2 AND activity = 0",
                )?
                .execute((endpoint, settled.revision, text(reason)))?;
        }
        Ok(true)
    }

    fn write(&mut self, settled: &Settled, nobodys: bool) -> rusqlite::Result<bool> {
        let (state, due, ended, reason) = match &settled.next {
            AfterAttempt::Delivered => (2, None, Some(self.now), String::new()),
            AfterAttempt::Again(wait) => (0, Some(later(self.now, *wait)), None, String::new()),
            AfterAttempt::Unsent => (0, None, None, String::new()),
            AfterAttempt::Held(wait, reason) => {
                (0, Some(later(self.now, *wait)), None, text(reason))
            }
            AfterAttempt::Dead(reason) => (3, None, Some(self.now), text(reason)),
        };
        let values = params![
            settled.row,
            settled.endpoint,
            settled.fence.0,
            settled.number,
            micros(settled.began),
            state,
            due,
            ended,
            reason,
            settled.session,
            settled.next.is_unsent(),
            self.now,
        ];
        if self.settle.execute(values)? > 0 {
            match (&settled.next, due) {
                // Under its current owner it was not counted as left running, so the wake-up stays valid.
                (AfterAttempt::Delivered | AfterAttempt::Dead(_), _) if !nobodys => {}
                (_, Some(due)) if !nobodys => self.touched.waits(settled.endpoint, due),
                _ => self.touched.add(settled.endpoint, None),
            }
            return Ok(true);
        }
        let order = self.settle_ordered.query_row(values, |row| row.get(0));
        let order: Option<String> = order.optional()?;
        let written = order.is_some();
        if written {
            self.touched.add(settled.endpoint, order);
        }
        Ok(written)
    }

    /// Records an attempt, and deletes old ones of a long schedule.
    fn keep(&mut self, row: i64, attempt: &AttemptRecord) -> rusqlite::Result<()> {
        self.attempt.execute(params![
            row,
            attempt.number,
            attempt.started_ms,
            attempt.duration_ms,
            attempt.status,
            text(&attempt.error),
            text(&attempt.excerpt),
            text(&attempt.address),
            text(&attempt.request),
            text(&attempt.response),
        ])?;
        if let Some(forgotten) = forgotten(attempt.number) {
            self.connection
                .prepare_cached(
                    "DELETE FROM relent_attempt_1 WHERE row = ?1 AND number BETWEEN ?2 AND ?3",
                )?
                .execute((row, forgotten.start(), forgotten.end()))?;
        }
        Ok(())
    }
}
