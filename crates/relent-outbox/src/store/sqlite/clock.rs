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

use crate::store::micros;

/// The time of the store stands still for so long at most, in microseconds.
pub(super) const TOLERANCE: i64 = 5_000_000;

/// Tells the time, in microseconds since 1970.
pub(super) struct Clock {
    machine: Box<dyn Fn() -> i64 + Send + Sync>,
    /// The latest time that was given out since the machine was last set back.
    latest: AtomicI64,
    /// How often it was set back, and once for what other processes saw.
    pub(super) steps: AtomicU64,
    /// For how many of these the times of the store are corrected.
    pub(super) corrected: AtomicU64,
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
