//! What requests with a key may take: time, executions and memory.

use std::time::Duration;

/// How much time, how many executions and how much memory requests with a key may take: for
/// [`IdempotencyLayer::limits`](super::IdempotencyLayer::limits) and `WebhookLayer::limits`. The table in
/// `docs/idempotency.md` of this crate says what happens when each is reached.
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
    /// How long the body of a request may take to arrive, in all: 2 min by default. A slower one is refused (408).
    pub read: Duration,
    /// How long the body of a request may take to go on: 30 s by default. A client that pauses for longer is refused
    /// (408).
    pub read_idle: Duration,
    /// How long a claim may take, with all its attempts and the wait for a connection: 1 s by default. After that the
    /// request is refused (503), and the claim is given back.
    pub claim: Duration,
    /// How long a handler may run, and its lease be renewed: 2 h by default. After that its outcome is unknown.
    pub execution: Duration,
    /// How long a handler may run when its client has gone: 60 s by default. After that its outcome is unknown.
    pub disconnected: Duration,
    /// How long the body of an answer may take from its head to its end: 60 s by default. A slower one is not stored:
    /// duplicates get 410, and the client gets it as it comes.
    pub answer: Duration,
    /// How long [`drain`](super::IdempotencyLayer::drain) waits: 30 s by default.
    pub drain: Duration,
    /// How many handlers of requests with a key may run concurrently: 1000 by default. Beyond that a new key is refused
    /// (503).
    pub executions: usize,
    /// How many duplicates may wait concurrently: 2000 by default. Beyond that they are refused without a wait (409).
    pub waiters: usize,
    /// How many bytes of requests may be in memory, for all requests with a key together: 128 MiB by default, and
    /// 16 KiB are counted for each request beside its body. Beyond that requests are refused (503).
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

/// A wait for longer is one of this length, so that no sum with the time overflows.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// How long the body of a request may take to arrive, and how long it may be.
#[derive(Clone, Copy)]
pub(crate) struct ReadLimits {
    pub(crate) total: Duration,
    pub(crate) idle: Duration,
    pub(crate) bytes: usize,
}
