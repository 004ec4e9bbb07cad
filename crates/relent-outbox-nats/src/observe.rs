//! Metrics and events of dispatchers and NATS workers: metrics by the [`metrics`](https://docs.rs/metrics) facade with
//! the feature `metrics`, and `tracing` events with the feature `tracing`. Both are off by default.
//!
//! A dispatcher also records [those of its worker](relent_outbox::observe).

use std::fmt::Display;

use relent_outbox::observe::{Metric, MetricKind, count, start_counters};

/// Attempts that a dispatcher withdrew because no NATS worker had started them.
pub const ATTEMPTS_WITHDRAWN: Metric = Metric::new(
    MetricKind::Counter,
    "relent_outbox_attempts_withdrawn_total",
    "attempts",
    &[],
    "Attempts that `serve` withdrew, because no `relent deliver worker` had started them.",
);
/// Errors that kept a dispatcher or a NATS worker from NATS.
pub const NATS_ERRORS: Metric = Metric::new(
    MetricKind::Counter,
    "relent_outbox_nats_errors_total",
    "errors",
    &[],
    "Errors that kept this process from using NATS.",
);
/// NATS messages that a dispatcher or a NATS worker has refused. `unreadable`: of another version of Relent, truncated,
/// or with an impossible number; `unknown`: about an attempt that the dispatcher has not published; `not_granted`: a
/// result without a grant; `over`: a repeated result, after NATS has lost the confirmation, or one that the dispatcher
/// no longer waits for.
pub const NATS_REFUSED: Metric = Metric::new(
    MetricKind::Counter,
    "relent_outbox_nats_refused_total",
    "messages",
    &["reason"],
    "NATS messages that this process refused.",
);
/// Results of the attempts that a NATS worker took: `answered`; `failed` without a response; `cancelled` by the
/// dispatcher before the start; `unreported` because the dispatcher was gone at the end.
pub const WORKER_ATTEMPTS: Metric = Metric::new(
    MetricKind::Counter,
    "relent_outbox_worker_attempts_total",
    "attempts",
    &["result"],
    "Attempts that `relent deliver worker` took from NATS.",
);

/// All metrics of dispatchers and NATS workers.
pub const METRICS: [Metric; 4] = [
    ATTEMPTS_WITHDRAWN,
    NATS_ERRORS,
    NATS_REFUSED,
    WORKER_ATTEMPTS,
];

/// All labels, each with its values. No value comes from a message.
pub const LABELS: [(&str, &[&str]); 2] = [
    ("reason", &["unreadable", "unknown", "not_granted", "over"]),
    ("result", &["answered", "failed", "cancelled", "unreported"]),
];

/// Registers descriptions and units of the metrics with the installed recorder. Call it once, after installing a
/// recorder.
#[cfg(feature = "metrics")]
pub fn describe() {
    relent::observe::describe_metrics(&METRICS);
}

pub(crate) fn dispatcher_starts() {
    start_counters(&[ATTEMPTS_WITHDRAWN, NATS_ERRORS, NATS_REFUSED], &LABELS);
}

pub(crate) fn nats_worker_starts() {
    start_counters(&[NATS_ERRORS, NATS_REFUSED, WORKER_ATTEMPTS], &LABELS);
}

pub(crate) fn attempt_withdrawn() {
    count(&ATTEMPTS_WITHDRAWN, "");
}

pub(crate) fn nats_error(error: &str) {
    count(&NATS_ERRORS, "");
    #[cfg(feature = "tracing")]
    tracing::warn!(target: relent::observe::TARGET, error, "NATS fails");
    let _ = error;
}

pub(crate) fn refused(reason: &'static str, error: &impl Display) {
    count(&NATS_REFUSED, reason);
    #[cfg(feature = "tracing")]
    {
        let error = relent_outbox::text::escape_bidi(&error.to_string());
        tracing::warn!(target: relent::observe::TARGET, reason, %error, "refused what came by NATS");
    }
    let _ = error;
}

pub(crate) fn worker_attempt(result: &'static str) {
    count(&WORKER_ATTEMPTS, result);
}
