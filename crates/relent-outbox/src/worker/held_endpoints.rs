//! Endpoints whose messages a worker holds back, with the reason, for operators.

use std::fmt;
use std::time::SystemTime;

use relent_core::destination::BlockedBy;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

/// The number of requests that may wait; further callers wait until there is space.
const MAX_WAITING_REQUESTS: usize = 16;

/// An endpoint of a worker whose due messages wait.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HeldEndpoint {
    /// The owner of the endpoint.
    pub tenant: String,
    /// The name of the endpoint.
    pub name: String,
    /// The reason.
    pub hold_reason: HoldReason,
    /// When the worker checks again, by the clock of this machine; `None` if it checks when an attempt ends.
    pub until: Option<SystemTime>,
    /// The number of its running attempts.
    pub running: usize,
    /// The description of the local fault and its remedy; empty unless the reason is
    /// [`LocalFault`](HoldReason::LocalFault).
    pub error: String,
}

impl HeldEndpoint {
    /// Whether a [local fault](crate::fault) holds its messages, which an operator has to repair.
    #[must_use]
    pub const fn is_faulty(&self) -> bool {
        matches!(self.hold_reason, HoldReason::LocalFault)
    }
}

/// The reason that due messages are not sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum HoldReason {
    /// The endpoint is down: its circuit breaker sends only probes.
    Down,
    /// The endpoint is recovering: its circuit breaker gradually raises the rate.
    Recovering,
    /// The endpoint has requested a pause, such as by `Retry-After`.
    Cooldown,
    /// The `[rate_limit]` of its policy is exhausted.
    RateLimit,
    /// As many of its attempts run as its concurrency allows.
    Concurrency,
    /// As many attempts to all endpoints run as the worker allows.
    Slots,
    /// A [local fault](crate::fault), such as an unavailable signing key.
    LocalFault,
}

impl HoldReason {
    /// Converts the block reason of a waiter; `closed`: the circuit breaker is down.
    pub(super) const fn of(blocked_by: BlockedBy, closed: bool) -> Self {
        match blocked_by {
            BlockedBy::Cooldown => Self::Cooldown,
            BlockedBy::CircuitBreaker if closed => Self::Down,
            BlockedBy::CircuitBreaker => Self::Recovering,
            _ => Self::RateLimit,
        }
    }
}

impl fmt::Display for HoldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Down => "the endpoint is down, and is probed now and then",
            Self::Recovering => "the endpoint comes back, and gets more and more attempts",
            Self::Cooldown => "the endpoint has asked for a pause",
            Self::RateLimit => "the rate limit of its policy allows no more",
            Self::Concurrency => "as many of its attempts run as its concurrency allows",
            Self::Slots => "the worker makes as many attempts as it may, to all endpoints",
            Self::LocalFault => "a local fault, which the operator has to repair",
        })
    }
}

/// A handle that shows which endpoints a worker holds back.
#[derive(Clone, Debug)]
pub struct HoldMonitor {
    name: String,
    asked: mpsc::Sender<oneshot::Sender<Vec<HeldEndpoint>>>,
}

/// The receiver of these requests.
pub(super) type HeldRequests = mpsc::Receiver<oneshot::Sender<Vec<HeldEndpoint>>>;

impl HoldMonitor {
    pub(super) fn new(name: String) -> (Self, HeldRequests) {
        let (asked, answers) = mpsc::channel(MAX_WAITING_REQUESTS);
        (Self { name, asked }, answers)
    }

    /// The name of the worker in the store.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the worker's endpoints whose due messages wait, in no order. Empty if the worker has ended; before it
    /// [runs](super::Worker::run) this waits. The list is computed on request, and costs nothing otherwise.
    pub async fn held(&self) -> Vec<HeldEndpoint> {
        let (answer, held) = oneshot::channel();
        match self.asked.send(answer).await {
            Ok(()) => held.await.unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }
}
