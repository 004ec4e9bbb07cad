//! The lease of an execution, as it is at the moment.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use relent_core::claim::{Fingerprint, Lease};
use tokio::sync::watch;

use crate::store::Key;

/// What an execution has of its key, and what is known of it beside the store: that may forget.
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

    /// The key was claimed again.
    pub(super) fn set(&self, lease: Lease) {
        *self.lease.lock().unwrap_or_else(PoisonError::into_inner) = lease;
    }

    /// This step is done for good.
    pub(super) fn done(&self, step: u32) {
        self.step.fetch_max(step, Ordering::Relaxed);
    }

    /// The last step that is done for good; 0 for none.
    pub(super) fn step(&self) -> u32 {
        self.step.load(Ordering::Relaxed)
    }

    /// Whether something is done already: by an execution before, or in a step of this one.
    pub(super) fn may_have_had_effect(&self) -> bool {
        self.repeated || self.step() > 0
    }

    /// Another has the key.
    pub(super) fn set_lost(&self) {
        self.lost.send_replace(true);
    }

    pub(super) fn is_lost(&self) -> bool {
        *self.lost.borrow()
    }

    /// Until it is known to be lost.
    pub(super) async fn lost(&self) {
        let mut lost = self.lost.subscribe();
        // The sender is this one, so it is there.
        drop(lost.wait_for(|lost| *lost).await);
    }
}
