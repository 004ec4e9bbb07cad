//! Requests for admission, and their results.

use core::time::Duration;

use super::permit::Permit;
use crate::call::stop::Stop;
use crate::destination::circuit_breaker::{AttemptKind, Waiter};
use crate::time::Instant;

/// A request for permission to make an attempt.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AdmissionRequest {
    /// Distinguishes the requests to one destination; chosen by the driver.
    pub id: u64,
    /// When the request was made, or last made progress. The max queue time counts from it.
    pub since: Instant,
    /// No attempt may start later than this; [`Instant::MAX`] for no limit.
    pub last_start: Instant,
    /// When the request no longer needs a response; [`Instant::MAX`] for no limit.
    pub answer_by: Instant,
    /// The longest wait for a slot of the rate limit that the caller accepts: the policy's `max_hint`.
    pub longest: Duration,
    /// The jitter after a cooldown, as a share of its length: the policy's `retry_after_jitter`.
    pub jitter: f64,
    /// The kind of attempt: the first one, or a retry, and whether the budget has paid for it.
    pub kind: AttemptKind,
    /// Whether it is queued by the circuit breaker without limit: the max queue time does not apply,
    /// and it makes no late first attempt.
    pub waits_without_limit: bool,
    /// Whether only the rate limit applies to it: for a policy with retries off, which turns off
    /// everything that comes with retries.
    pub rate_limit_only: bool,
    /// Whether it may wait. A request that may not gets [`Admission::Stop`] where it would have to wait, and joins no
    /// queue.
    pub may_wait: bool,
}

impl AdmissionRequest {
    /// The waiter in the queue of the circuit breaker. Its fields may not change while it waits.
    #[inline]
    #[must_use]
    pub const fn waiter(&self) -> Waiter {
        Waiter {
            until: self.answer_by,
            since: self.since,
            id: self.id,
        }
    }
}

/// Result of a request for admission.
#[derive(Debug)]
pub enum Admission {
    /// Make the attempt.
    Start(Permit),
    /// Wait, and request again when woken, at this instant at the latest. The second value is the
    /// reason.
    Wait(Instant, BlockedBy),
    /// Give up. The caller is no longer in the queue.
    Stop(Stop),
    /// Its [`last_start`](AdmissionRequest::last_start) has passed while it waited. It is no longer in the queue.
    TooLate,
}

/// The reason why a caller has to wait.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum BlockedBy {
    /// The destination has asked all callers to stay away for a while.
    Cooldown,
    /// The rate limit has no slot yet.
    RateLimit,
    /// The circuit breaker has queued the request.
    CircuitBreaker,
}

impl BlockedBy {
    /// Its name in metrics and traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cooldown => "cooldown",
            Self::RateLimit => "rate_limit",
            Self::CircuitBreaker => "circuit_breaker",
        }
    }
}
