//! What time it is for the store, and what happens to times that turn out to be wrong.
//!
//! The time is that of the machine. It may be set back. By a little, as when it is adjusted, the time of the store stands
//! still until that of the machine has come up. By more than [`TOLERANCE`] it follows: then the machine was ahead, and
//! what was written meanwhile, when something is due and until when a lease holds, counts from now: nothing waits longer
//! than it would have had to. A step forward is followed at once: what is due goes, and leases end, of which the fences
//! take care.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::SystemTime;

use rusqlite::{Connection, OptionalExtension};

use super::queue::Touched;
use super::{Sqlite, SqliteError};
use crate::store::{BATCH, micros};

/// The time of the store stands still for so long at most, in microseconds.
pub(super) const TOLERANCE: i64 = 5_000_000;
/// So many are corrected with one beat, so that the next does not come too late.
const WITH_A_BEAT: usize = 50_000;

/// Tells the time, in microseconds since 1970.
pub(super) struct Clock {
    machine: Box<dyn Fn() -> i64 + Send + Sync>,
    /// The latest time that was given out since the machine was last set back.
    latest: AtomicI64,
    /// How often it was set back, and once for what other processes saw.
    steps: AtomicU64,
    /// For how many of these the times of the store are corrected.
    corrected: AtomicU64,
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock")
            .field("latest", &self.latest)
            .field("steps", &self.steps)
            .field("corrected", &self.corrected)
            .finish_non_exhaustive()
    }
}

impl Clock {
    pub(super) fn of_the_machine() -> Self {
        Self::new(|| micros(SystemTime::now()))
    }

    pub(super) fn new(machine: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        Self {
            machine: Box::new(machine),
            latest: AtomicI64::new(0),
            steps: AtomicU64::new(1),
            corrected: AtomicU64::new(0),
        }
    }

    pub(super) fn now(&self) -> i64 {
        loop {
            // In this order: the time that was given out was read from the machine before it is read here.
            let latest = self.latest.load(Ordering::Acquire);
            let machine = (self.machine)();
            if machine >= latest.saturating_sub(TOLERANCE) {
                return machine.max(self.latest.fetch_max(machine, Ordering::AcqRel));
            }
            let back =
                self.latest
                    .compare_exchange(latest, machine, Ordering::AcqRel, Ordering::Relaxed);
            if back.is_ok() {
                self.steps.fetch_add(1, Ordering::Relaxed);
                return machine;
            }
        }
    }
}

impl Sqlite {
    /// Corrects the times of the store if the machine was set back, or may have been before it was opened.
    pub(super) async fn correct_times(&self) -> Result<(), SqliteError> {
        // It is noticed now at the latest.
        self.clock.now();
        let steps = self.clock.steps.load(Ordering::Relaxed);
        if self.clock.corrected.load(Ordering::Relaxed) >= steps {
            return Ok(());
        }
        self.write(correct_leases).await?;
        let ahead = self.read(ahead).await?;
        for batch in ahead.chunks(BATCH) {
            let batch = batch.to_vec();
            self.write(move |connection, now| correct(connection, now, &batch))
                .await?;
        }
        if ahead.len() < WITH_A_BEAT {
            self.clock.corrected.fetch_max(steps, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// A worker that has died is found as late after the step as it would have been without.
fn correct_leases(connection: &Connection, now: i64) -> Result<(), SqliteError> {
    let mut correct = connection.prepare_cached(
        "UPDATE relent_worker_1 SET until = until - (beat - ?1), beat = ?1 WHERE beat > ?2",
    )?;
    correct.execute((now, now.saturating_add(TOLERANCE)))?;
    Ok(())
}

/// Some of those that wait since a time that is still to come. They are due later still.
fn ahead(connection: &Connection, now: i64) -> Result<Vec<i64>, SqliteError> {
    let mut select = connection.prepare_cached(
        "SELECT row FROM relent_delivery_1 WHERE state = 0 AND due > ?1 AND written > ?1
         UNION ALL SELECT row FROM relent_delivery_1 WHERE state = 5 AND written > ?1",
    )?;
    let rows = select.query_map([now.saturating_add(TOLERANCE)], |row| row.get(0))?;
    Ok(rows.take(WITH_A_BEAT).collect::<Result<_, _>>()?)
}

fn correct(connection: &Connection, now: i64, rows: &[i64]) -> Result<(), SqliteError> {
    let mut touched = Touched::default();
    let mut correct = connection.prepare_cached(
        "UPDATE relent_delivery_1 SET due = due - (written - ?2), began = min(began, ?2), written = ?2
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
