//! Events and metrics of the layers: `tracing` events with the feature `tracing`, and metrics of the
//! [`metrics`](https://docs.rs/metrics) facade with the feature `metrics`. This module defines every name;
//! `docs/observability.md` of the repository lists them in one table.
//!
//! Both features are off by default. No label value comes from a request.

#[cfg(feature = "tracing")]
mod events;
#[cfg(feature = "metrics")]
mod meters;
mod names;

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use relent_core::admission::{Admitted, ConcurrencyLimiter, Rejected, Shed};
use relent_core::{Advice, Criticality};

#[cfg(feature = "metrics")]
pub use meters::describe;
pub use names::*;

#[cfg(feature = "redis")]
use crate::store::StoreFailureKind;
use crate::store::{Key, StoreFailure};

/// The rate limits admitted a request.
pub(crate) fn rate_admitted(admitted: Admitted) {
    let ticket = if admitted.reserved_slot {
        "true"
    } else {
        "false"
    };
    #[cfg(feature = "metrics")]
    meters::count((RATE_ADMITTED.name, TICKET, ticket), None);
    let _ = ticket;
}

/// The rate limits rejected a request because of this quota.
pub(crate) fn rate_rejected(rejected: &Rejected, quota: Option<&Arc<str>>) {
    let reason = match rejected {
        Rejected::Limited { .. } => "limited",
        Rejected::TooCostly { .. } => "too_costly",
        Rejected::Expired => "expired",
        Rejected::Shed(_) => "overloaded",
    };
    #[cfg(feature = "metrics")]
    meters::rate_rejected(reason, quota);
    let _ = (reason, quota);
}

/// A request was rejected because Redis is unreachable.
#[cfg(feature = "redis")]
pub(crate) fn rate_limits_down() {
    #[cfg(feature = "metrics")]
    meters::rate_rejected("redis_down", None);
}

/// Redis has started to fail, so the rate limits are no longer shared.
#[cfg(feature = "redis")]
#[cold]
pub(crate) fn rate_failed((kind, code): (StoreFailureKind, Option<String>)) {
    #[cfg(feature = "tracing")]
    events::rate_failed(kind.name(), code.as_deref());
    let _ = (kind, code);
}

/// The process decided about a request without Redis.
#[cfg(feature = "redis")]
pub(crate) fn rate_local(fallback: &'static str) {
    #[cfg(feature = "metrics")]
    meters::count((RATE_LOCAL.name, REDIS_DOWN, fallback), None);
    let _ = fallback;
}

/// A request got a slot after this wait.
#[inline]
pub(crate) fn admitted(class: Criticality, waited: Duration) {
    #[cfg(feature = "metrics")]
    meters::admitted(class, waited);
    let _ = (class, waited);
}

/// A request was rejected by the overload layer.
#[inline]
pub(crate) fn shed(class: Criticality, rejected: &Rejected) {
    let reason = match rejected {
        Rejected::Expired => "expired",
        Rejected::Shed(Shed {
            advice: Advice::DoNotRetry,
            ..
        }) => "do_not_retry",
        _ => "overloaded",
    };
    #[cfg(feature = "metrics")]
    meters::count((SHED.name, REASON, reason), Some(class));
    let _ = (class, reason);
}

/// The state of the slots has changed.
#[inline]
pub(crate) fn slots<W>(slots: &ConcurrencyLimiter<W>) {
    #[cfg(feature = "metrics")]
    meters::slots(slots.limit(), slots.in_flight(), slots.waiting());
    let _ = slots;
}

/// A layer for requests with a key was created.
pub(crate) fn starts() {
    #[cfg(feature = "metrics")]
    meters::start_counters();
}

/// The result of a request with a key.
pub(crate) fn keyed(result: &'static str) {
    #[cfg(feature = "metrics")]
    meters::count((IDEMPOTENT_REQUESTS.name, RESULT, result), None);
    let _ = result;
}

/// A webhook delivery was not verified.
#[cfg(feature = "webhook")]
pub(crate) fn not_verified(reason: &'static str) {
    #[cfg(feature = "metrics")]
    meters::count((NOT_VERIFIED.name, REASON, reason), None);
    #[cfg(feature = "tracing")]
    events::not_verified(reason);
    let _ = reason;
}

/// A duplicate starts to wait.
pub(crate) fn idempotent_wait() {
    #[cfg(feature = "metrics")]
    meters::count((IDEMPOTENT_WAITS.name, "", ""), None);
}

/// A response was replayed; `original` is the `traceparent` of its request.
pub(crate) fn replayed(original: Option<&str>) {
    keyed("replayed");
    #[cfg(feature = "tracing")]
    events::replayed(original);
    let _ = original;
}

/// An execution has ended with an unknown outcome; `status`: that of its response, if there is one.
#[cold]
pub(crate) fn unknown(key: &Key, status: Option<StatusCode>) {
    #[cfg(feature = "metrics")]
    meters::count((UNKNOWN.name, "", ""), None);
    #[cfg(feature = "tracing")]
    events::unknown(key, status);
    let _ = (key, status);
}

/// An unknown outcome was resolved.
pub(crate) fn resolved(key: &Key, resolution: &'static str) {
    #[cfg(feature = "metrics")]
    meters::count((RESOLVED.name, RESOLUTION, resolution), None);
    #[cfg(feature = "tracing")]
    events::resolved(key, resolution);
    let _ = (key, resolution);
}

/// An execution still runs, and another one has its key.
#[cold]
pub(crate) fn lease_lost(key: &Key) {
    #[cfg(feature = "metrics")]
    meters::count((LEASE_LOST.name, "", ""), None);
    #[cfg(feature = "tracing")]
    events::lease_lost(key);
    let _ = key;
}

/// The store has failed.
#[cold]
pub(crate) fn store_failed(failure: &StoreFailure) {
    #[cfg(feature = "metrics")]
    meters::count((STORE_ERRORS.name, OPERATION, failure.operation), None);
    #[cfg(feature = "tracing")]
    events::store_failed(failure);
    let _ = failure;
}

/// A response with a body of this length was stored.
pub(crate) fn stored(bytes: usize) {
    #[cfg(feature = "metrics")]
    meters::stored(bytes);
    let _ = bytes;
}
