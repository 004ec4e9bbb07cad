//! How a worker works, and what it leaves behind.

use std::time::Duration;

use crate::health::DisableAfter;

/// How a worker works.
///
/// A lease of less than 100 ms is one of 100 ms, a `poll` of less than 5 ms one of 5 ms, and what is longer than a hundred
/// years is as long as those.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct WorkerConfig {
    /// The name that the store knows it by, another one for each run: `worker-` and a UUID unless said otherwise.
    pub name: String,
    /// After so long without a sign of life its endpoints are taken over by others; 30 s unless said otherwise. It
    /// gives one three times as often.
    pub lease: Duration,
    /// How often it looks for work that it has got no [hint](super::Hint) of; 1 s unless said otherwise.
    pub poll: Duration,
    /// How many attempts run at once to endpoints that answer soon; 512 unless said otherwise.
    pub in_flight: usize,
    /// How many run at once, beside those, to endpoints that do not; 512 unless said otherwise. Attempts that take a tenth of
    /// [`slow_after`](Self::slow_after) give their slots to others, and up to eight times as many run beside them then. Each
    /// has a connection: the process needs file descriptors for all of them.
    pub slow_in_flight: usize,
    /// An endpoint is slow whose last attempt took so long; 1 s unless said otherwise. One that has not answered for as long
    /// gets one attempt at a time until it answers again.
    pub slow_after: Duration,
    /// How many bytes of payloads that are longer than [`INLINE`](crate::store::INLINE) attempts hold; 64 MiB unless said
    /// otherwise. Endpoints that are slow, or have not answered yet, hold half of them at most. A payload is loaded when
    /// its attempt starts, and counts until it is written to the connection. A longer one goes when it is the only one.
    pub body_bytes: usize,
    /// How long running attempts are waited for when the worker ends; 30 s unless said otherwise.
    pub drain: Duration,
    /// When an endpoint that fails is disabled.
    pub disable_after: DisableAfter,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            name: format!("worker-{}", uuid::Uuid::now_v7().simple()),
            lease: Duration::from_secs(30),
            poll: Duration::from_secs(1),
            in_flight: 512,
            slow_in_flight: 512,
            slow_after: Duration::from_secs(1),
            body_bytes: 64 << 20,
            drain: Duration::from_secs(30),
            disable_after: DisableAfter::DEFAULT,
        }
    }
}

/// What a worker that has ended leaves behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Drained {
    /// Attempts that were cut off because they ran for longer than [`WorkerConfig::drain`]. They count as failed.
    pub cut_off: usize,
    /// Attempts whose outcome could not be written. Whoever takes their endpoint over finds them lost, and repeats them.
    pub unsettled: usize,
}
