//! The events: what an operator has to see.

use super::TARGET;

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

pub(super) fn unknown() {
    tracing::warn!(
        target: TARGET,
        "a request with an idempotency key has ended without an answer: it may have had its effect, and is not run \
         again unless the takeover of its route says so"
    );
}

pub(super) fn resolved(resolution: &'static str) {
    tracing::info!(
        target: TARGET,
        { relent.resolution = resolution },
        "the unknown outcome of a request with an idempotency key was resolved"
    );
}

pub(super) fn lease_lost() {
    tracing::warn!(
        target: TARGET,
        "a request with an idempotency key lost its lease while it ran: it, or the store, was away for longer than the \
         lease"
    );
}

pub(super) fn store_failed(operation: &'static str) {
    tracing::error!(
        target: TARGET,
        { relent.operation = operation },
        "the store of the idempotency keys fails"
    );
}
