//! The events for an operator.

use http::StatusCode;

use super::TARGET;
use crate::store::{Key, StoreFailure};

pub(super) fn replayed(original: Option<&str>) {
    tracing::debug!(
        target: TARGET,
        { relent.original_traceparent = original },
        "the answer of an earlier request was replayed"
    );
}

#[cfg(feature = "webhook")]
pub(super) fn not_verified(reason: &'static str) {
    tracing::info!(
        target: TARGET,
        { relent.reason = reason },
        "a delivery of a webhook was not believed"
    );
}

pub(super) fn unknown(key: &Key, status: Option<StatusCode>) {
    tracing::warn!(
        target: TARGET,
        {
            relent.key = %key,
            http.response.status_code = status.map(|status| i64::from(status.as_u16()))
        },
        "the outcome of a request with an idempotency key is unknown: it may have taken effect, and is not run again \
         unless the takeover of its route says so"
    );
}

pub(super) fn resolved(key: &Key, resolution: &'static str) {
    tracing::info!(
        target: TARGET,
        { relent.resolution = resolution, relent.key = %key },
        "the unknown outcome of a request with an idempotency key was resolved"
    );
}

pub(super) fn lease_lost(key: &Key) {
    tracing::warn!(
        target: TARGET,
        { relent.key = %key },
        "a request with an idempotency key lost its lease while it ran: it, or the store, was away for longer than the \
         lease"
    );
}

pub(super) fn store_failed(failure: &StoreFailure) {
    tracing::error!(
        target: TARGET,
        {
            relent.operation = failure.operation,
            relent.kind = failure.kind.name(),
            relent.code = failure.code.as_deref(),
            relent.key = %failure.key
        },
        "the store of the idempotency keys fails: {}",
        failure.message
    );
}

#[cfg(feature = "redis")]
pub(super) fn rate_failed(kind: &'static str, code: Option<&str>) {
    tracing::warn!(
        target: TARGET,
        { relent.kind = kind, relent.code = code },
        "the rate limits are not shared, since Redis fails"
    );
}
