//! The current lease of an execution.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use relent_core::idempotency::{Fingerprint, Lease};
use tokio::sync::watch;

use crate::store::Key;

/// The lease of an execution, and its state outside the store, which may lose records.
pub(super) struct HeldLease {
    pub(super) key: Key,
    pub(super) fingerprint: Fingerprint,
    lease: Mutex<Lease>,
    repeated: bool,
    step: AtomicU32,
    lost: watch::Sender<bool>,
}

impl HeldLease {
    pub(super) fn new(
        key: Key,
        fingerprint: Fingerprint,
        lease: Lease,
        step: u32,
        repeated: bool,
    ) -> Self {
        Self {
            key,
            fingerprint,
            lease: Mutex::new(lease),
            repeated,
            step: AtomicU32::new(step),
            lost: watch::Sender::new(false),
        }
    }

    pub(super) fn get(&self) -> Lease {
        *self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the lease after the key was claimed again.
    pub(super) fn set(&self, lease: Lease) {
        *self.lease.lock().unwrap_or_else(PoisonError::into_inner) = lease;
    }

    /// Records a completed step.
    pub(super) fn done(&self, step: u32) {
        self.step.fetch_max(step, Ordering::Relaxed);
    }

    /// Returns the last completed step; 0 for none.
    pub(super) fn step(&self) -> u32 {
        self.step.load(Ordering::Relaxed)
    }

    /// Returns whether an earlier execution, or a step of this one, may have had an effect.
    pub(super) fn may_have_had_effect(&self) -> bool {
        self.repeated || self.step() > 0
    }

    /// Another execution has the key.
    pub(super) fn set_lost(&self) {
        self.lost.send_replace(true);
    }

    pub(super) fn is_lost(&self) -> bool {
        *self.lost.borrow()
    }

    /// Completes when the lease is known to be lost.
    pub(super) async fn lost(&self) {
        let mut lost = self.lost.subscribe();
        // `self` owns the sender, so the channel is open.
        drop(lost.wait_for(|lost| *lost).await);
    }
}
