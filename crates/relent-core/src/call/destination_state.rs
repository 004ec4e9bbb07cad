//! State of a call at its destination.

use core::mem;

use crate::call::stop::StopReason;
use crate::destination::outbound::{BlockedBy, Permit};
use crate::time::Instant;

/// Storage for the state of a [`Call`](super::Call) at its destination. `()` for a call without one,
/// which costs no memory and no instructions; otherwise `Option<DestinationState>`.
pub trait DestinationSlot: Default + sealed::Sealed {
    /// The state, once the call has reached the destination.
    #[doc(hidden)]
    fn get(&self) -> Option<&DestinationState>;

    /// The state, mutable.
    #[doc(hidden)]
    fn slot(&mut self) -> Option<&mut Option<DestinationState>>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for () {}
    impl Sealed for Option<super::DestinationState> {}
}

impl DestinationSlot for () {
    #[inline]
    fn get(&self) -> Option<&DestinationState> {
        None
    }

    #[inline]
    fn slot(&mut self) -> Option<&mut Option<DestinationState>> {
        None
    }
}

impl DestinationSlot for Option<DestinationState> {
    #[inline]
    fn get(&self) -> Option<&DestinationState> {
        self.as_ref()
    }

    #[inline]
    fn slot(&mut self) -> Option<&mut Option<DestinationState>> {
        Some(self)
    }
}

/// State of a call at a destination that it has reached.
#[derive(Debug)]
pub struct DestinationState {
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
