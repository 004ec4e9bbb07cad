//! Metrics and events of workers: metrics by the [`metrics`](https://docs.rs/metrics) facade with the feature
//! `metrics`, and `tracing` events with the feature `tracing`. Both are off by default.

use std::time::Duration;

pub use relent::observe::{Metric, MetricKind};

use crate::fault::{FaultKind, LocalFault};

/// Completed attempts.
pub const ATTEMPTS: Metric = Metric::new(
    MetricKind::Counter,
    "relent_outbox_attempts_total",
    "attempts",
    &["result"],
    "Attempts that ended, with their result; a `lost` attempt ended with its process, and has no known outcome.",
);
/// Time from when a message is first due to its acknowledgement.
pub const ACKNOWLEDGED_AFTER: Metric = Metric::new(
    MetricKind::Histogram,
    "relent_outbox_time_to_acknowledgement_seconds",
    "seconds",
    &[],
    "Time from when a message was first due until it was acknowledged.",
);
/// Duration of attempts.
pub const ATTEMPT_TIME: Metric = Metric::new(
    MetricKind::Histogram,
    "relent_outbox_attempt_seconds",
    "seconds",
    &[],
    "Time that attempts took.",
);
/// Messages that became dead letters.
pub const DEAD: Metric = Metric::new(
    MetricKind::Counter,
    "relent_outbox_dead_letters_total",
    "messages",
    &[],
    "Messages that became dead letters: no attempt follows.",
);
/// Endpoints that this worker has disabled.
pub const DISABLED: Metric = Metric::new(
    MetricKind::Counter,
    "relent_outbox_endpoints_disabled_total",
    "endpoints",
    &[],
    "Endpoints that this process disabled, after a 410 or after long failure; each disabling counts once.",
);
/// Times that a local fault has held an endpoint's messages.
pub const LOCAL_FAULTS: Metric = Metric::new(
    MetricKind::Counter,
    "relent_outbox_local_faults_total",
    "times",
    &["fault"],
    "Attempts that a fault of this process or machine prevented, by the kind of fault; each try counts.",
);
/// Endpoints of the worker whose messages a local fault holds.
pub const ENDPOINTS_FAULTY: Metric = Metric::new(
    MetricKind::Gauge,
    "relent_outbox_endpoints_with_local_fault",
    "endpoints",
    &[],
    "Endpoints whose messages wait because of a fault of this process or machine, as of the last poll; at least 1 while it is not able to make attempts.",
);
/// Running attempts.
pub const IN_FLIGHT: Metric = Metric::new(
    MetricKind::Gauge,
    "relent_outbox_in_flight",
    "attempts",
    &[],
    "Attempts that run, as of the last poll.",
);
/// Endpoints that the worker owns.
pub const ENDPOINTS: Metric = Metric::new(
    MetricKind::Gauge,
    "relent_outbox_endpoints",
    "endpoints",
    &[],
    "Endpoints that this process serves, as of the last poll.",
);
/// Store calls that failed.
pub const STORE_ERRORS: Metric = Metric::new(
    MetricKind::Counter,
    "relent_outbox_store_errors_total",
    "calls",
    &["operation"],
    "Calls of the store that failed; for each one of `api`, the API responded with 503.",
);
/// Leases that were lost.
pub const LEASES_LOST: Metric = Metric::new(
    MetricKind::Counter,
    "relent_outbox_leases_lost_total",
    "leases",
    &[],
    "Times that other processes could take the endpoints of this process, because its heartbeat was late.",
);
/// Messages of the whole outbox.
pub const MESSAGES: Metric = Metric::new(
    MetricKind::Gauge,
    "relent_outbox_messages",
    "messages",
    &["state"],
    "Messages of the whole outbox.",
);
/// Age of the oldest due message.
pub const LAG: Metric = Metric::new(
    MetricKind::Gauge,
    "relent_outbox_lag_seconds",
    "seconds",
    &[],
    "Time for which the oldest message that may be attempted has been due; 0 if none is.",
);
/// Disabled endpoints of the whole outbox.
pub const ENDPOINTS_DISABLED: Metric = Metric::new(
    MetricKind::Gauge,
    "relent_outbox_endpoints_disabled",
    "endpoints",
    &[],
    "Endpoints of the whole outbox that are disabled.",
);

/// All metrics of an outbox without NATS. A counter starts at 0 when its worker starts, so that the first event shows as an
/// increase.
pub const METRICS: [Metric; 14] = [
    MESSAGES,
    LAG,
    ENDPOINTS_DISABLED,
    ATTEMPTS,
    ACKNOWLEDGED_AFTER,
    ATTEMPT_TIME,
    DEAD,
    DISABLED,
    LOCAL_FAULTS,
    ENDPOINTS_FAULTY,
    IN_FLIGHT,
    ENDPOINTS,
    STORE_ERRORS,
    LEASES_LOST,
];

/// All labels, each with its values. No value comes from a message.
pub const LABELS: [(&str, &[&str]); 4] = [
    ("result", &["acknowledged", "failed", "lost"]),
    ("fault", &FaultKind::NAMES),
    (
        "operation",
        &[
            "find",
            "acquire",
            "claim",
            "confirm",
            "settle",
            "release",
            "heartbeat",
            "api",
            "summary",
        ],
    ),
    ("state", &["pending", "running", "dead"]),
];

/// Registers descriptions and units of the metrics with the installed recorder. Call it once, after installing a
/// recorder.
#[cfg(feature = "metrics")]
pub fn describe() {
    relent::observe::describe_metrics(&METRICS);
}

#[cfg(feature = "tracing")]
pub use relent::observe::TARGET;

/// Sets the counters of these metrics to 0 for each value in `labels`, when the part of the process starts that records
/// them. Does nothing without the feature `metrics`.
pub fn start_counters(metrics: &[Metric], labels: &[(&'static str, &'static [&'static str])]) {
    #[cfg(feature = "metrics")]
    for metric in metrics {
        if metric.kind != MetricKind::Counter {
            continue;
        }
        let values = labels.iter().find(|(name, _)| metric.labels.contains(name));
        for value in values.map_or(&[""][..], |(_, values)| values) {
            counter(metric, value).increment(0);
        }
    }
    let _ = (metrics, labels);
}

/// Counts an event by this counter. `value`: the value of its label; empty if it has none. Does nothing without the
/// feature `metrics`.
pub fn count(metric: &Metric, value: &'static str) {
    #[cfg(feature = "metrics")]
    counter(metric, value).increment(1);
    let _ = (metric, value);
}

#[cfg(feature = "metrics")]
fn counter(metric: &Metric, value: &'static str) -> metrics::Counter {
    match metric.labels.first() {
        Some(&label) => metrics::counter!(metric.name, label => value),
        None => metrics::counter!(metric.name),
    }
}

/// Sets a gauge with this label value, which is empty if it has no label.
#[cfg(feature = "metrics")]
pub(crate) fn gauge(metric: &Metric, value: &'static str, number: f64) {
    match metric.labels.first() {
        Some(&label) => metrics::gauge!(metric.name, label => value).set(number),
        None => metrics::gauge!(metric.name).set(number),
    }
}

pub(crate) fn attempt(result: &'static str, took: Duration) {
    #[cfg(feature = "metrics")]
    {
        count(&ATTEMPTS, result);
        metrics::histogram!(ATTEMPT_TIME.name).record(took.as_secs_f64());
    }
    let _ = (result, took);
}

pub(crate) fn acknowledged(after: Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!(ACKNOWLEDGED_AFTER.name).record(after.as_secs_f64());
    let _ = after;
}

pub(crate) fn dead(id: &str, reason: &str) {
    count(&DEAD, "");
    #[cfg(feature = "tracing")]
    tracing::warn!(target: TARGET, id, reason, "no attempt follows: a dead letter");
    let _ = (id, reason);
}

pub(crate) fn disabled(tenant: &str, endpoint: &str, reason: &str) {
    count(&DISABLED, "");
    #[cfg(feature = "tracing")]
    tracing::warn!(target: TARGET, tenant, endpoint, reason, "endpoint disabled");
    let _ = (tenant, endpoint, reason);
}

/// Records that a local fault holds messages; `new`: they were not held before.
pub(crate) fn local_fault(tenant: &str, endpoint: &str, fault: &LocalFault, new: bool) {
    let LocalFault { kind, error } = fault;
    count(&LOCAL_FAULTS, kind.name());
    #[cfg(feature = "tracing")]
    if new {
        let (fault, error) = (kind.name(), error.as_str());
        tracing::warn!(target: TARGET, tenant, endpoint, fault, error, "messages are held by a local fault");
    }
    let _ = (tenant, endpoint, kind, error, new);
}

/// Records that the fault is fixed.
pub(crate) fn fault_fixed(tenant: &str, endpoint: &str) {
    #[cfg(feature = "tracing")]
    tracing::info!(target: TARGET, tenant, endpoint, "messages are no longer held by a local fault");
    let _ = (tenant, endpoint);
}

/// Records whether this process is able to make attempts.
pub(crate) fn able(able: bool) {
    #[cfg(feature = "tracing")]
    match able {
        true => tracing::info!(target: TARGET, "this process is able to make attempts again"),
        false => tracing::warn!(
            target: TARGET,
            "this process has local faults only, and leaves its endpoints to others that are able to make attempts"
        ),
    }
    let _ = able;
}

pub(crate) fn holding(endpoints: usize, in_flight: usize, faulty: usize) {
    #[cfg(feature = "metrics")]
    {
        gauge(&ENDPOINTS, "", endpoints as f64);
        gauge(&IN_FLIGHT, "", in_flight as f64);
        gauge(&ENDPOINTS_FAULTY, "", faulty as f64);
    }
    let _ = (endpoints, in_flight, faulty);
}

pub(crate) fn store_error(operation: &'static str, error: &str) {
    count(&STORE_ERRORS, operation);
    #[cfg(feature = "tracing")]
    tracing::warn!(target: TARGET, operation, error, "the store of the outbox fails");
    let _ = (operation, error);
}

pub(crate) fn lease_lost() {
    count(&LEASES_LOST, "");
    #[cfg(feature = "tracing")]
    tracing::warn!(target: TARGET, "the worker's lease is lost: its endpoints are given back");
}
