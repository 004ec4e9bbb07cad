//! Clock of the store, which tolerates changes of the machine's clock.
//!
//! The clock is that of the machine, which may be set back. If it is set back a little, as in an adjustment, the
//! store's time stands still until the machine has caught up. Beyond [`TOLERANCE`] it follows: the machine was ahead,
//! and due times and leases written meanwhile count from now, so that nothing waits longer than intended. A step
//! forward takes effect immediately: messages become due and leases expire, which fencing tokens make safe.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::SystemTime;

use crate::store::micros;

/// The longest time for which the store's time stands still, in microseconds.
pub(super) const TOLERANCE: i64 = 5_000_000;

/// Returns the time, in microseconds since 1970.
pub(super) struct Clock {
    machine: Box<dyn Fn() -> i64 + Send + Sync>,
    /// The latest time returned since the machine's clock was last set back.
    latest: AtomicI64,
    /// The number of times it was set back, plus one for changes that other processes may have seen.
    pub(super) steps: AtomicU64,
    /// The number of these for which the times in the store have been corrected.
    pub(super) corrected: AtomicU64,
    /// Held by the running correction.
    pub(super) correcting: tokio::sync::Mutex<()>,
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
            correcting: tokio::sync::Mutex::new(()),
        }
    }

    pub(super) fn now(&self) -> i64 {
        loop {
            // The order matters: every returned time was read from the machine before this reads it.
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
