//! State of a call at its destination.

use core::mem;

use crate::call::stop::StopReason;
use crate::destination::outbound::{BlockedBy, Permit};
use crate::time::Instant;

/// State of a call at a destination that it has reached.
#[derive(Debug)]
pub(super) struct DestinationState {
    /// Its id there.
    pub(super) id: u64,
    pub(super) stage: Stage,
}

// The two stages known to the destination come first, so that one comparison distinguishes them.
#[derive(Debug)]
pub(super) enum Stage {
    /// The attempt is held or queued.
    Waiting {
        by: BlockedBy,
        since: Instant,
        /// The deadline as of joining the queue. It identifies the waiter there, whatever the
        /// environment returns later.
        answer_by: Instant,
        /// Whether the first response of the destination would let the call wait longer than its notice says.
        may_wait_longer: bool,
        /// Whether the backoff restarts when the wait ends. Until then, `Session::since` identifies the
        /// waiter.
        resets: bool,
    },
    /// The attempt may start, or runs.
    Permitted(Permit),
    /// No admission was needed so far.
    NotRequired,
    /// The next attempt has not requested admission yet.
    Idle,
    /// It has given up for this reason, and may retry at this instant; [`Instant::MAX`] if unknown.
    Stopped(StopReason, Instant),
}

impl Stage {
    /// Takes the permit, if there is one and `wanted` accepts it.
    pub(super) fn take_permit(&mut self, wanted: impl FnOnce(&Permit) -> bool) -> Option<Permit> {
        match mem::replace(self, Self::Idle) {
            Self::Permitted(permit) if wanted(&permit) => Some(permit),
            other => {
                *self = other;
                None
            }
        }
    }
}
