//! A request with a key, and what comes of it.

use std::any::Any;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use relent_core::claim::{Fingerprint, Lease};

use super::body::Body;
use super::execution::Lead;
use super::problems::Refused;
use crate::overload::Held;
use crate::shares::{Principal, Share};
use crate::store::Key;

/// A request with a key, whose body is read.
pub(crate) struct KeyedRequest {
    pub(crate) parts: Parts,
    pub(crate) bytes: Bytes,
    pub(crate) key: Key,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) principal: Principal,
    /// What it takes of it, for as long as it is here.
    pub(crate) memory: Share,
}

/// A request with a key, and the service that is ready for it.
pub(super) struct Work<I> {
    pub(super) inner: I,
    pub(super) request: KeyedRequest,
    pub(super) owner: u128,
}

/// How far one look at the store has come.
pub(super) enum Tried<I, R, E> {
    Answered(Result<Response<Body<R>>, E>),
    Refused(Refused),
    Panicked(Box<dyn Any + Send>),
    /// Another process runs it, and its lease lasts so much longer.
    InFlight(Work<I>, Lead, Duration),
    /// The store fails, and the request is to go through as if it had no key.
    Open(Work<I>),
}

/// In the extensions of a request whose key a layer has claimed.
#[derive(Clone, Copy)]
pub(super) struct Guarded;

/// What an execution begins with.
pub(super) struct Begins {
    pub(super) lease: Lease,
    pub(super) step: u32,
    pub(super) repeated: bool,
    pub(super) permit: Share,
    pub(super) slot: Option<Held>,
}
