//! Notice for a caller that an attempt has to wait at its destination.

use core::fmt;
use core::time::Duration;

use crate::duration::format_duration;

/// The control of a destination that holds an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum QueuedBy {
    /// The circuit breaker: the destination is down, or has little headroom.
    CircuitBreaker,
    /// The retry budget is exhausted, so the retry waits until the destination has headroom.
    Budget,
    /// The destination has asked all its callers to stay away for a while.
    Cooldown,
    /// The rate limit has no slot yet.
    RateLimit,
}

impl QueuedBy {
    /// Its name in events, such as `circuit_breaker`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CircuitBreaker => "circuit_breaker",
            Self::Budget => "budget",
            Self::Cooldown => "cooldown",
            Self::RateLimit => "rate_limit",
        }
    }
}

/// A phrase for people, such as "the circuit breaker".
impl fmt::Display for QueuedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CircuitBreaker => "the circuit breaker",
            Self::Budget => "the exhausted retry budget",
            Self::Cooldown => "the cooldown that the destination asked for",
            Self::RateLimit => "the rate limit",
        })
    }
}

/// An attempt is held by its destination: by which control, and for how long at most. Displays as a
/// log line.
///
/// ```
/// use core::time::Duration;
/// use relent_core::call::{Queued, QueuedBy};
///
/// let at_most = Some(Duration::from_millis(29_800));
/// let queued = Queued { attempt: 6, by: QueuedBy::CircuitBreaker, at_most };
/// let line = "attempt 6 is held by the circuit breaker for at most 29.8s";
/// assert_eq!(queued.to_string(), line);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Queued {
    /// The number of the attempt that is held; 1 for the first.
    pub attempt: u32,
    /// The control that it waits for. Another one may follow.
    pub by: QueuedBy,
    /// The longest wait before the call gives up; `None` if no limit is known.
    pub at_most: Option<Duration>,
}

impl fmt::Display for Queued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attempt {} is held by {}", self.attempt, self.by)?;
        let Some(at_most) = self.at_most else {
            return Ok(());
        };
        // Whole milliseconds are enough for people.
        let millis = at_most.as_millis().try_into().unwrap_or(u64::MAX);
        let at_most = Duration::from_millis(millis);
        write!(f, " for at most {}", format_duration(at_most))
    }
}
