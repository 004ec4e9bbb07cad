//! Why a session stops.

use core::fmt;

use crate::failure::Failure;
use crate::time::Instant;

/// Why a session gave up, and when the server allows another attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stop {
    /// The reason for giving up.
    pub reason: StopReason,
    /// The instant at which an attempt may start, on the driver's time line: that of the server's
    /// `Retry-After`, or with [`StopReason::RetryLater`] also that of the next slot of the rate limit.
    pub retry_at: Option<Instant>,
}

impl Stop {
    /// A stop with the instant of the `Retry-After` of this failure, if it has one.
    pub(crate) fn after(now: Instant, failure: &Failure, reason: StopReason) -> Self {
        let retry_at = failure.hint.delay().map(|delay| now.saturating_add(delay));
        Self { reason, retry_at }
    }

    /// A stop without an instant.
    pub(crate) const fn because(reason: StopReason) -> Self {
        Self {
            reason,
            retry_at: None,
        }
    }
}

/// The reason for giving up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StopReason {
    /// The allowed number of retries is used up, or retries are off.
    RetriesExhausted,
    /// The next attempt would start after `max_elapsed`.
    MaxElapsed,
    /// The next attempt would start at or after the deadline, or the deadline cut an attempt off.
    Deadline,
    /// The failure is permanent: a retry cannot help.
    Permanent,
    /// The attempt may have taken effect, and the operation may not run twice.
    NotRepeatable,
    /// The outcome is unknown (in doubt). The last response, such as a 412, can be the result of an
    /// earlier attempt that took effect.
    OutcomeUnknown,
    /// The body of the request cannot be sent again, or a download cannot start over.
    NotReplayable,
    /// The server asked not to retry.
    DoNotRetry,
    /// The retry budget of the destination is exhausted.
    Budget,
    /// The circuit breaker did not admit the attempt in time: the destination is down, or has rejected
    /// many attempts (such as with 429) and its rate is limited.
    CircuitBreaker,
    /// The server's `Retry-After`, or the next slot of the policy's `[rate_limit]`, exceeds the limits;
    /// [`Stop::retry_at`] has the instant.
    RetryLater,
    /// The server asked not to retry because of overload.
    Overloaded,
    /// Adaptive throttling (`[throttle]` in the policy) rejected the call in this process, since the
    /// destination rejected many recent requests. No attempt was made.
    Throttle,
    /// The policy hedges at a percentile, but the call has no destination that records latencies. No
    /// attempt was made.
    NoDestination,
    /// The caller cancelled the call.
    Cancelled,
}

impl StopReason {
    /// Its name in traces, such as `retries_exhausted`.
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
            Self::CircuitBreaker => "circuit_breaker",
            Self::RetryLater => "retry_later",
            Self::Overloaded => "overloaded",
            Self::Throttle => "throttle",
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
            Self::MaxElapsed => "the next attempt would start after max_elapsed, the time limit for retries",
            Self::Deadline => "the deadline leaves no time",
            Self::Permanent => "repeating cannot help",
            Self::NotRepeatable => "it may have taken effect, and repeating it is not safe",
            Self::OutcomeUnknown => {
                "the outcome is unknown: an earlier attempt may have done it already"
            }
            Self::NotReplayable => {
                "the request body or the download cannot start again: use bytes or a file instead of a stream"
            },
            Self::DoNotRetry => "the server said not to retry",
            Self::Budget => "the retry budget of the destination is used up",
            Self::CircuitBreaker => {
                "the destination is down or accepts only some calls, and its circuit breaker did not admit \
                 this one in time"
            },
            Self::RetryLater => {
                "the server's Retry-After, or the next slot of the rate limit of this process, exceeds the limits"
            },
            Self::Overloaded => "the server is overloaded and said not to retry",
            Self::Throttle => {
                "the throttle of this process rejected it, because the destination rejected many requests"
            }
            Self::NoDestination => {
                "hedging at a percentile needs a destination: give it one, or a fixed delay to [hedge]"
            }
            Self::Cancelled => "it was cancelled",
        })
    }
}
