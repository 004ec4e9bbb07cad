//! Correction of times that were written while the machine's clock was ahead.

use std::sync::atomic::Ordering;

use rusqlite::{Connection, OptionalExtension};

use super::Sqlite;
use super::clock::TOLERANCE;
use super::error::SqliteError;
use super::invariants::Touched;
use crate::store::MAX_TRANSACTION_ROWS;

/// The number of corrections with one heartbeat, so that the next heartbeat is not late.
const MAX_CORRECTIONS: usize = 50_000;

impl Sqlite {
    /// Corrects the times of the store if the machine's clock was set back, or may have been before the store was
    /// opened.
    pub(super) async fn correct_times(&self) -> Result<(), SqliteError> {
        // A heartbeat does not wait for the correction that an earlier one has begun.
        let Ok(_correcting) = self.clock.correcting.try_lock() else {
            return Ok(());
        };
        // Detects a step back that no other call has detected.
        self.clock.now();
        let steps = self.clock.steps.load(Ordering::Relaxed);
        if self.clock.corrected.load(Ordering::Relaxed) >= steps {
            return Ok(());
        }
        self.write(correct_leases).await?;
        let ahead = self.read_for_worker(ahead).await?;
        for batch in ahead.chunks(MAX_TRANSACTION_ROWS) {
            let batch = batch.to_vec();
            self.write(move |connection, now| correct(connection, now, &batch))
                .await?;
        }
        if ahead.len() < MAX_CORRECTIONS {
            self.clock.corrected.fetch_max(steps, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// A dead worker is detected as late after the step as it would have been without the step.
fn correct_leases(connection: &Connection, now: i64) -> Result<(), SqliteError> {
    let mut correct = connection.prepare_cached(
        "UPDATE relent_worker_1 SET until = until - (heartbeat - ?1), heartbeat = ?1 WHERE heartbeat > ?2",
    )?;
    correct.execute((now, now.saturating_add(TOLERANCE)))?;
    Ok(())
}

/// Some of the messages that were written at a future time and are due even later.
fn ahead(connection: &Connection, now: i64) -> Result<Vec<i64>, SqliteError> {
    let mut select = connection.prepare_cached(
        "SELECT row FROM relent_delivery_1 WHERE state = 0 AND due > ?1 AND written > ?1
         UNION ALL SELECT row FROM relent_delivery_1 WHERE state = 5 AND written > ?1",
    )?;
    let rows = select.query_map([now.saturating_add(TOLERANCE)], |row| row.get(0))?;
    Ok(rows.take(MAX_CORRECTIONS).collect::<Result<_, _>>()?)
}

fn correct(connection: &Connection, now: i64, rows: &[i64]) -> Result<(), SqliteError> {
    let mut touched = Touched::default();
    let mut correct = connection.prepare_cached(
        "UPDATE relent_delivery_1 SET due = due - (written - ?2),
             began = iif(began > written, began - (written - ?2), min(began, ?2)), written = ?2
         WHERE row = ?1 AND state IN (0, 5) AND written > ?3 RETURNING endpoint",
    )?;
    for row in rows {
        let endpoint =
            correct.query_row((row, now, now.saturating_add(TOLERANCE)), |row| row.get(0));
        if let Some(endpoint) = endpoint.optional()? {
            touched.add(endpoint, None);
        }
    }
    Ok(touched.follow(connection)?)
}
