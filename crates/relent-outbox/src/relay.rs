//! Relays: other processes make the attempts of a worker, as with `relent-outbox-nats`.
//!
//! A [worker](crate::worker::Worker) with a [relay](crate::worker::Worker::relay) decides as before: claims, fencing
//! tokens, schedules, circuit breakers and dead letters. The relay gets a [`Job`] for each attempt:
//!
//! 1. [`Job::request`] waits for permission, and returns the signed [`JobRequest`].
//! 2. Any process sends it once, by [`Sender::exchange`](crate::sender::Sender::exchange), while the
//!    [`StartPermission`] lasts.
//! 3. [`JobRequest::judge`] evaluates the [`Exchange`]. The result is the [`AttemptEnd`].
//!
//! Signing keys stay in the process of the worker.

use std::fmt;

pub use crate::sender::{Exchange, Received};
pub use crate::worker::attempt::{AttemptEnd, Job, JobRequest, NoResult, Transport};
pub use crate::worker::permission::StartPermission;

/// Makes the attempts of a worker by other processes.
pub trait Relay: fmt::Debug + Send + Sync {
    /// Starts the relay, within the tokio runtime of its worker. Everything that it has started ends when the transport
    /// is dropped.
    fn start(self: Box<Self>) -> Transport;
}
