//! Settings of a worker, and its state after shutdown.

use std::time::Duration;

use crate::health::DisableAfter;

/// Settings of a worker.
///
/// A lease below 100 ms counts as 100 ms, a `poll` below 5 ms as 5 ms. Durations are limited to a hundred years.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct WorkerConfig {
    /// The name in the store, unique for each run: `worker-` and a UUID by default.
    pub name: String,
    /// Other workers take over its endpoints after this time without a heartbeat; 30 s by default. It sends three
    /// heartbeats in this time.
    pub lease: Duration,
    /// The interval at which it looks for work without a [hint](super::Hint); 1 s by default.
    pub poll: Duration,
    /// The largest number of concurrent attempts to fast endpoints; 512 by default.
    pub in_flight: usize,
    /// The largest number of concurrent attempts to slow endpoints, in addition; 512 by default. An attempt that takes
    /// a tenth of [`slow_after`](Self::slow_after) gives its slot to another; up to eight times as many may then run in
    /// addition. Each has a connection: the process needs file descriptors for all of them.
    pub slow_in_flight: usize,
    /// An endpoint is slow if its last attempt took at least this time; 1 s by default. An endpoint that has not
    /// responded for as long gets one attempt at a time until it responds.
    pub slow_after: Duration,
    /// The total size of payloads above [`INLINE`](crate::store::INLINE) that attempts hold, in bytes; 64 MiB by
    /// default. Endpoints that are slow, or have not responded yet, hold at most half of it. A payload is loaded when
    /// its attempt starts, and counts until it is written to the connection. A payload above the limit is sent alone.
    pub body_bytes: usize,
    /// The time for running attempts to end at shutdown; 30 s by default.
    pub drain: Duration,
    /// The failures after which an endpoint is disabled.
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

/// The state of a worker after shutdown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Drained {
    /// Attempts aborted because they ran longer than [`WorkerConfig::drain`]. They count as failed.
    pub aborted: usize,
    /// Attempts whose result could not be written. The next owner of their endpoint finds them lost, and repeats them.
    pub unsettled: usize,
}
