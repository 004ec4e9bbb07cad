//! The error of a run with too many events.

use std::fmt;

/// More events than any useful run has: some policies never let time pass.
pub(crate) const MAX_EVENTS: u64 = 200_000_000;

/// The run was given up: the policy makes so many attempts that it would not end in reasonable time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyEvents;

impl fmt::Display for TooManyEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "given up after {MAX_EVENTS} events: the policy makes too many attempts"
        )
    }
}

impl std::error::Error for TooManyEvents {}
