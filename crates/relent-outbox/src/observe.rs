//! What workers tell while they run: metrics by the [`metrics`](https://docs.rs/metrics) facade with the feature
//! `metrics`, and events of `tracing` with the feature `tracing`. Both are off unless asked for.

use std::time::Duration;

/// Counter: attempts that are over, by [`RESULT`].
pub const ATTEMPTS: &str = "relent_outbox_attempts_total";
/// Histogram: from when a message was enqueued until it was acknowledged, in seconds.
pub const ACKNOWLEDGED_AFTER: &str = "relent_outbox_time_to_acknowledgement_seconds";
/// Histogram: how long attempts took, in seconds.
pub const ATTEMPT_TIME: &str = "relent_outbox_attempt_seconds";
/// Counter: messages that no attempt follows on.
pub const DEAD: &str = "relent_outbox_dead_letters_total";
/// Counter: endpoints that a worker has disabled.
pub const DISABLED: &str = "relent_outbox_endpoints_disabled_total";
/// Gauge: attempts that run.
pub const IN_FLIGHT: &str = "relent_outbox_in_flight";
/// Gauge: endpoints that the worker has.
pub const ENDPOINTS: &str = "relent_outbox_endpoints";
/// Counter: calls of the store that failed, by [`OPERATION`].
pub const STORE_ERRORS: &str = "relent_outbox_store_errors_total";
/// Counter: leases that were lost.
pub const LEASES_LOST: &str = "relent_outbox_leases_lost_total";

/// Counter: attempts that a relay has taken back since no deliverer had begun them.
pub const NOT_BEGUN: &str = "relent_outbox_not_begun_total";
/// Counter: what has kept a relay or a deliverer from NATS.
pub const NATS_ERRORS: &str = "relent_outbox_nats_errors_total";
/// Counter: what a relay or a deliverer was sent by NATS and has not taken, by [`REASON`].
pub const NATS_REFUSED: &str = "relent_outbox_nats_refused_total";
/// Counter: what a deliverer has done with what it took, by [`RESULT`].
pub const EXCHANGES: &str = "relent_outbox_exchanges_total";

/// Label: `unreadable`: not of this version of Relent, cut off, or with a number that cannot be; `unknown`: of an attempt that
/// the relay has not published; `not_begun`: an answer without leave to begin; `over`: an answer that was told before, which
/// happens when NATS has lost what was said to it, or that the relay does not wait for any more.
pub const REASON: &str = "reason";
/// Label: `acknowledged`, `failed`, or `lost` with the worker that made it. Of exchanges: `answered`; `failed` without an
/// answer; `withdrawn` by the relay before it began; `untold`, since the relay was gone when it had ended.
pub const RESULT: &str = "result";
/// Label: `find`, `acquire`, `claim`, `settle` or `release`.
pub const OPERATION: &str = "operation";

/// The target of the events.
#[cfg(feature = "tracing")]
pub const TARGET: &str = "relent";

#[cfg(feature = "metrics")]
fn count(name: &'static str, label: Option<(&'static str, &'static str)>) {
    match label {
        Some((key, value)) => metrics::counter!(name, key => value).increment(1),
        None => metrics::counter!(name).increment(1),
    }
}

pub(crate) fn attempt(result: &'static str, took: Duration) {
    #[cfg(feature = "metrics")]
    {
        count(ATTEMPTS, Some((RESULT, result)));
        metrics::histogram!(ATTEMPT_TIME).record(took.as_secs_f64());
    }
    let _ = (result, took);
}

pub(crate) fn acknowledged(after: Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!(ACKNOWLEDGED_AFTER).record(after.as_secs_f64());
    let _ = after;
}

pub(crate) fn dead(id: &str, reason: &str) {
    #[cfg(feature = "metrics")]
    count(DEAD, None);
    #[cfg(feature = "tracing")]
    tracing::warn!(target: TARGET, id, reason, "no attempt follows: a dead letter");
    let _ = (id, reason);
}

pub(crate) fn disabled(tenant: &str, endpoint: &str, reason: &str) {
    #[cfg(feature = "metrics")]
    count(DISABLED, None);
    #[cfg(feature = "tracing")]
    tracing::warn!(target: TARGET, tenant, endpoint, reason, "endpoint disabled");
    let _ = (tenant, endpoint, reason);
}

pub(crate) fn holding(endpoints: usize, in_flight: usize) {
    #[cfg(feature = "metrics")]
    {
        metrics::gauge!(ENDPOINTS).set(endpoints as f64);
        metrics::gauge!(IN_FLIGHT).set(in_flight as f64);
    }
    let _ = (endpoints, in_flight);
}

pub(crate) fn store_error(operation: &'static str, error: &str) {
    #[cfg(feature = "metrics")]
    count(STORE_ERRORS, Some((OPERATION, operation)));
    #[cfg(feature = "tracing")]
    tracing::warn!(target: TARGET, operation, error, "the store of the outbox fails");
    let _ = (operation, error);
}

#[cfg(feature = "nats")]
pub(crate) fn not_begun() {
    #[cfg(feature = "metrics")]
    count(NOT_BEGUN, None);
}

#[cfg(feature = "nats")]
pub(crate) fn nats_error(error: &str) {
    #[cfg(feature = "metrics")]
    count(NATS_ERRORS, None);
    #[cfg(feature = "tracing")]
    tracing::warn!(target: TARGET, error, "NATS fails");
    let _ = error;
}

#[cfg(feature = "nats")]
pub(crate) fn refused(reason: &'static str, error: &impl std::fmt::Display) {
    #[cfg(feature = "metrics")]
    count(NATS_REFUSED, Some((REASON, reason)));
    #[cfg(feature = "tracing")]
    tracing::warn!(target: TARGET, reason, %error, "refused what came by NATS");
    let _ = (reason, error);
}

#[cfg(feature = "nats")]
pub(crate) fn exchange(result: &'static str) {
    #[cfg(feature = "metrics")]
    count(EXCHANGES, Some((RESULT, result)));
    let _ = result;
}

pub(crate) fn lease_lost() {
    #[cfg(feature = "metrics")]
    count(LEASES_LOST, None);
    #[cfg(feature = "tracing")]
    tracing::warn!(target: TARGET, "the worker's lease is lost: its endpoints are given back");
}
