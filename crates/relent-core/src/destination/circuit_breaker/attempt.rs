//! An attempt, as the circuit breaker sees it: the waiting request, its permit and its outcome.

use crate::time::Instant;

/// A request that waits for permission to make an attempt. Among queued requests, the one with the
/// earliest deadline goes first, then the one that has waited longest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Waiter {
    /// When the request no longer needs a response; [`Instant::MAX`] for never.
    pub until: Instant,
    /// When the request was made.
    pub since: Instant,
    /// Distinguishes the requests at one breaker; chosen by the driver.
    pub id: u64,
}

/// The kind of attempt for which permission is requested.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AttemptKind {
    /// The first attempt of a request. It would also be made with retries disabled.
    First,
    /// A retry that the budget has paid for, or that needs no payment.
    FundedRetry,
    /// A retry that an exhausted budget could not pay for. It goes only where the breaker finds
    /// headroom. See
    /// [`BudgetConfig::queue_when_exhausted`](crate::BudgetConfig::queue_when_exhausted).
    UnfundedRetry,
}

/// Permit for one attempt. Return it with [`CircuitBreaker::on_end`](super::CircuitBreaker::on_end) when the attempt is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BreakerPermit {
    pub(super) started: Instant,
    pub(super) probe: bool,
}

impl BreakerPermit {
    /// A permit for an attempt that starts now: without a breaker, or when something else delayed the
    /// attempt after the breaker had admitted it.
    #[must_use]
    pub const fn new(started: Instant, probe: bool) -> Self {
        Self { started, probe }
    }

    /// When the permit was issued, which is when the attempt starts.
    #[must_use]
    pub const fn started(&self) -> Instant {
        self.started
    }

    /// Whether the attempt is a probe of a destination that is down.
    #[must_use]
    pub const fn is_probe(&self) -> bool {
        self.probe
    }
}

/// Outcome of an attempt, as far as the breaker is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BreakerOutcome {
    /// The destination did the work, or reported a permanent failure: it is up.
    Answered,
    /// It failed with an error that is neither overload nor a timeout.
    Failed,
    /// The destination rejected it because of overload.
    Overloaded,
    /// It timed out.
    TimedOut,
    /// Rejected with a `Retry-After`. Not counted as overload, because the server controls its own
    /// load.
    Deferred,
    /// No information: the attempt was cancelled.
    Unknown,
}
