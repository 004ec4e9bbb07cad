//! A request with a key, and its result.

use std::any::Any;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use relent_core::idempotency::{Fingerprint, Lease};
use tokio::time::Instant;

use super::body::Body;
use super::execution::Leader;
use super::problems::Rejection;
use crate::fair_shares::{Principal, Share};
use crate::overload::HeldSlot;
use crate::store::Key;

/// A request with a key, after its body was read.
pub(crate) struct KeyedRequest {
    pub(crate) parts: Parts,
    pub(crate) bytes: Bytes,
    pub(crate) key: Key,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) principal: Principal,
    /// Its share of the memory limit, held while the request is in memory.
    pub(crate) memory: Share,
    /// The time of its head. The caller's deadline counts from it.
    pub(crate) arrived: Instant,
}

/// A request with a key, and its service, which is not ready yet.
pub(super) struct Work<I> {
    pub(super) inner: I,
    pub(super) request: KeyedRequest,
    pub(super) owner: u128,
}

/// The result of one attempt to claim and run.
pub(super) enum RunResult<I, R, E> {
    Answered(Result<Response<Body<R>>, E>),
    Rejection(Rejection),
    Panicked(Box<dyn Any + Send>),
    /// Another process runs the request; its lease lasts this much longer.
    InFlight(Work<I>, Leader, Duration),
    /// The store fails, and the request passes as if it had no key.
    Open(Work<I>),
}

/// In the extensions of a request whose key a layer has claimed.
#[derive(Clone, Copy)]
pub(super) struct KeyClaimed;

/// The data to start an execution with.
pub(super) struct ExecutionStart {
    pub(super) lease: Lease,
    pub(super) step: u32,
    pub(super) repeated: bool,
    pub(super) permit: Share,
    pub(super) slot: Option<HeldSlot>,
}
