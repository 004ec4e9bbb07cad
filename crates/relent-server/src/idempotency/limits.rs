//! Limits of time, executions and memory for requests with a key.

use std::time::Duration;

/// Limits of time, executions and memory for requests with a key, for
/// [`IdempotencyLayer::limits`](super::IdempotencyLayer::limits) and `WebhookLayer::limits`. `docs/idempotency.md` of
/// this crate lists what happens when each limit is reached.
///
/// ```
/// use std::time::Duration;
/// use relent_server::idempotency::{IdempotencyLayer, Limits};
/// use relent_server::store::Memory;
///
/// let limits = Limits { executions: 200, ..Limits::DEFAULT };
/// let layer = IdempotencyLayer::anonymous(Memory::new()).limits(limits);
/// ```
///
/// # Default
/// [`Limits::DEFAULT`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The time for a request body to arrive completely: 2 min by default. A slower one is rejected with 408.
    pub read: Duration,
    /// The longest pause of a client within a request body: 30 s by default. A longer one is rejected with 408.
    pub read_idle: Duration,
    /// The time for a claim, including all attempts and the wait for a connection: 1 s by default. After that the
    /// request is rejected with 503, and the claim is given back. A [transactional](crate::transactional) request has
    /// this time until its work begins.
    pub claim: Duration,
    /// The time for a handler, whose lease is renewed meanwhile: 2 h by default. After that its outcome is unknown. If
    /// its service never became ready, the request is rejected with 503.
    pub execution: Duration,
    /// The time for a handler after its client has disconnected: 60 s by default. After that its outcome is unknown.
    pub disconnected: Duration,
    /// The time for a response body, from its head to its end: 60 s by default. A slower one is not stored.
    /// Duplicates get 410, and the client gets the body as it comes. An event stream (`text/event-stream`) is never
    /// waited for.
    pub answer: Duration,
    /// The time that [`drain`](super::IdempotencyLayer::drain) waits: 30 s by default.
    pub drain: Duration,
    /// Handlers that may run concurrently for requests with a key: 1000 by default. Beyond that a new key is rejected
    /// with 503.
    pub executions: usize,
    /// Duplicates that may wait concurrently: 2000 by default. Beyond that they are rejected with 409 immediately.
    pub waiters: usize,
    /// Bytes of all requests with a key in memory: 128 MiB by default. Each request counts 16 KiB besides its body.
    /// Beyond that requests are rejected with 503.
    pub buffered: usize,
}

impl Limits {
    /// 2 min, 30 s, 1 s, 2 h, 60 s, 60 s, 30 s; 1000, 2000, 128 MiB.
    pub const DEFAULT: Self = Self {
        read: Duration::from_secs(120),
        read_idle: Duration::from_secs(30),
        claim: Duration::from_secs(1),
        execution: Duration::from_secs(2 * 3600),
        disconnected: Duration::from_secs(60),
        answer: Duration::from_secs(60),
        drain: Duration::from_secs(30),
        executions: 1000,
        waiters: 2000,
        buffered: 128 << 20,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The longest wait, which prevents an overflow of time sums: a year.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Limits of time and length for a request body.
#[derive(Clone, Copy)]
pub(crate) struct ReadLimits {
    pub(crate) total: Duration,
    pub(crate) idle: Duration,
    pub(crate) bytes: usize,
}
