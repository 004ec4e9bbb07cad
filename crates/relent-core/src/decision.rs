//! What a session answers.

use core::fmt;
use core::time::Duration;

use crate::time::Instant;

/// What a session answers to a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Attempt again, this long after the failure. Zero means at once, without a timer.
    Retry {
        /// The wait.
        after: Duration,
    },
    /// Give up; the last real outcome stands.
    Stop(Stop),
}

impl Decision {
    /// The stop, if it is one.
    #[must_use]
    pub const fn stop(&self) -> Option<Stop> {
        match self {
            Self::Retry { .. } => None,
            Self::Stop(stop) => Some(*stop),
        }
    }
}

/// Why a session gave up, and when the server said that coming back makes sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stop {
    /// Why.
    pub reason: StopReason,
    /// The server's own instant, on the driver's time line, if the last failure carried one.
    pub retry_at: Option<Instant>,
}

/// Why a session gave up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StopReason {
    /// The allowed number of retries is used up, or retries are off.
    RetriesExhausted,
    /// The next attempt would start after `max_elapsed`.
    MaxElapsed,
    /// The next attempt would start at or after the deadline, or the deadline cut an attempt off.
    Deadline,
    /// Repeating cannot help.
    Permanent,
    /// The attempt may have taken effect, and the operation may not run twice.
    NotRepeatable,
    /// The server's answer is the one that it would give if an earlier attempt had taken effect, and
    /// one may have: whether the operation was done is unknown, and perhaps it was.
    OutcomeUnknown,
    /// What was sent cannot be sent again.
    NotReplayable,
    /// The server said so.
    DoNotRetry,
    /// The destination's shared allowance is used up.
    Budget,
    /// The destination is judged to be down.
    Gate,
    /// The server's own time lies beyond the limits; [`Stop::retry_at`] says when.
    RetryLater,
    /// The destination, or a layer below it, is overloaded and asked not to be retried.
    Overloaded,
    /// The policy hedges at a percentile, and there is no destination that remembers how long successes
    /// take. No attempt was made.
    NoDestination,
    /// The caller went away.
    Cancelled,
}

impl StopReason {
    /// The word for this reason in traces, such as `retries_exhausted`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RetriesExhausted => "retries_exhausted",
            Self::MaxElapsed => "max_elapsed",
            Self::Deadline => "deadline",
            Self::Permanent => "permanent",
            Self::NotRepeatable => "not_repeatable",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::NotReplayable => "not_replayable",
            Self::DoNotRetry => "do_not_retry",
            Self::Budget => "budget",
            Self::Gate => "gate",
            Self::RetryLater => "retry_later",
            Self::Overloaded => "overloaded",
            Self::NoDestination => "no_destination",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A phrase for people, such as "the retries are used up".
impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RetriesExhausted => "the retries are used up",
            Self::MaxElapsed => "the time for retries is used up",
            Self::Deadline => "the deadline leaves no time",
            Self::Permanent => "repeating cannot help",
            Self::NotRepeatable => "it may have taken effect, and repeating it is not safe",
            Self::OutcomeUnknown => {
                "the outcome is unknown: an earlier attempt may have done it already"
            }
            Self::NotReplayable => "what was sent cannot be sent again",
            Self::DoNotRetry => "the server said not to retry",
            Self::Budget => "the retry budget of the destination is used up",
            Self::Gate => "the destination is down",
            Self::RetryLater => "the server said to come back later than the limits allow",
            Self::Overloaded => "the destination is overloaded and asked not to be retried",
            Self::NoDestination => {
                "hedging at a percentile needs a destination: give it one, or a fixed delay to [hedge]"
            }
            Self::Cancelled => "it was cancelled",
        })
    }
}
