//! Where a call stands at its destination.

use core::mem;

use crate::decision::StopReason;
use crate::outbound::{Holding, Permit};
use crate::time::Instant;

/// The room that a [`Call`](super::Call) takes for where it stands at its destination: `()` for a call without one,
/// which has neither room nor instructions for it (design rule 10), else `Option<Entered>`.
pub trait Place: Default + sealed::Sealed {
    /// Where it stands, once it has been there.
    #[doc(hidden)]
    fn get(&self) -> Option<&Entered>;

    /// The same, to be changed.
    #[doc(hidden)]
    fn slot(&mut self) -> Option<&mut Option<Entered>>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for () {}
    impl Sealed for Option<super::Entered> {}
}

impl Place for () {
    #[inline]
    fn get(&self) -> Option<&Entered> {
        None
    }

    #[inline]
    fn slot(&mut self) -> Option<&mut Option<Entered>> {
        None
    }
}

impl Place for Option<Entered> {
    #[inline]
    fn get(&self) -> Option<&Entered> {
        self.as_ref()
    }

    #[inline]
    fn slot(&mut self) -> Option<&mut Option<Entered>> {
        Some(self)
    }
}

/// Where a call stands at a destination that it has come to.
#[derive(Debug)]
pub struct Entered {
    /// Its number there.
    pub(super) id: u64,
    pub(super) stage: Stage,
}

// The two of which the destination knows come first, so that one comparison tells them from the others.
#[derive(Debug)]
pub(super) enum Stage {
    /// It is held back.
    Waiting {
        by: Holding,
        since: Instant,
        /// When nobody waits for its answer any more, as it said when it joined the line: it is known there by
        /// this, whatever its environment says later.
        answer_by: Instant,
    },
    /// The attempt may start, or runs.
    Permitted(Permit),
    /// Nobody had to ask so far (design rule 10).
    Unasked,
    /// The next attempt has yet to ask.
    Outside,
    /// It has given up, for this reason, and may come back then; [`Instant::MAX`] if nothing says when.
    Stopped(StopReason, Instant),
}

impl Stage {
    /// The permit, if it is such a one.
    pub(super) fn take_permit(&mut self, wanted: impl FnOnce(&Permit) -> bool) -> Option<Permit> {
        match mem::replace(self, Self::Outside) {
            Self::Permitted(permit) if wanted(&permit) => Some(permit),
            other => {
                *self = other;
                None
            }
        }
    }
}
