//! Metrics and events of workers: metrics by the [`metrics`](https://docs.rs/metrics) facade with the feature
//! `metrics`, and `tracing` events with the feature `tracing`. Both are off by default.

use std::time::Duration;

pub use relent::observe::MetricKind;

use crate::fault::{FaultKind, LocalFault};

/// A row of [`METRICS`], the single table of metrics: the code records by it, [`describe`] passes it to an exporter,
/// and `docs/observability.md` of the repository shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Metric {
    /// The name, as in dashboards and alerts.
    pub name: &'static str,
    /// The type. A counter is recorded as 0 as soon as its [part](Part) starts, so that the first event shows as an
    /// increase.
    pub kind: MetricKind,
    /// The unit, such as `attempts` or `seconds`.
    pub unit: &'static str,
    /// The label, if it has one.
    pub label: Option<Label>,
    /// The parts of a process that record it.
    pub parts: &'static [Part],
    /// The meaning, in one sentence.
    pub meaning: &'static str,
}

/// A label of a metric with its fixed set of values. No value comes from a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Label {
    /// The name.
    pub name: &'static str,
    /// All values.
    pub values: &'static [&'static str],
}

/// A part of a process that records metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Part {
    /// A [`Worker`](crate::worker::Worker).
    Worker,
    /// A worker that distributes its attempts by NATS.
    Dispatcher,
    /// A `NatsWorker`, which makes attempts for a dispatcher: `relent deliver worker`.
    NatsWorker,
    /// The HTTP API, if its metrics are enabled.
    Api,
}

/// Completed attempts.
pub const ATTEMPTS: Metric = Metric {
    name: "relent_outbox_attempts_total",
    kind: MetricKind::Counter,
    unit: "attempts",
    label: Some(Label {
        name: "result",
        values: &["acknowledged", "failed", "lost"],
    }),
    parts: &[Part::Worker],
    meaning: "Attempts that ended, with their result; a `lost` attempt ended with its process, and has no known outcome.",
};
/// Time from enqueuing a message to its acknowledgement.
pub const ACKNOWLEDGED_AFTER: Metric = Metric {
    name: "relent_outbox_time_to_acknowledgement_seconds",
    kind: MetricKind::Histogram,
    unit: "seconds",
    label: None,
    parts: &[Part::Worker],
    meaning: "Time from when a message was enqueued until it was acknowledged.",
};
/// Duration of attempts.
pub const ATTEMPT_TIME: Metric = Metric {
    name: "relent_outbox_attempt_seconds",
    kind: MetricKind::Histogram,
    unit: "seconds",
    label: None,
    parts: &[Part::Worker],
    meaning: "Time that attempts took.",
};
/// Messages that became dead letters.
pub const DEAD: Metric = Metric {
    name: "relent_outbox_dead_letters_total",
    kind: MetricKind::Counter,
    unit: "messages",
    label: None,
    parts: &[Part::Worker],
    meaning: "Messages that became dead letters: no attempt follows.",
};
/// Endpoints that this worker has disabled.
pub const DISABLED: Metric = Metric {
    name: "relent_outbox_endpoints_disabled_total",
    kind: MetricKind::Counter,
    unit: "endpoints",
    label: None,
    parts: &[Part::Worker],
    meaning: "Endpoints that this process disabled, after a 410 or after long failure; each disabling counts once.",
};
/// Times that a local fault has held an endpoint's messages.
pub const LOCAL_FAULTS: Metric = Metric {
    name: "relent_outbox_local_faults_total",
    kind: MetricKind::Counter,
    unit: "times",
    label: Some(Label {
        name: "fault",
        values: &FaultKind::NAMES,
    }),
    parts: &[Part::Worker],
    meaning: "Tries to send that a fault of this process or machine prevented, by the kind of fault; each try counts.",
};
/// Endpoints of the worker whose messages a local fault holds.
pub const ENDPOINTS_FAULTY: Metric = Metric {
    name: "relent_outbox_endpoints_with_local_fault",
    kind: MetricKind::Gauge,
    unit: "endpoints",
    label: None,
    parts: &[Part::Worker],
    meaning: "Endpoints whose messages wait because of a fault of this process or machine, as of the last poll.",
};
/// Running attempts.
pub const IN_FLIGHT: Metric = Metric {
    name: "relent_outbox_in_flight",
    kind: MetricKind::Gauge,
    unit: "attempts",
    label: None,
    parts: &[Part::Worker],
    meaning: "Attempts that run, as of the last poll.",
};
/// Endpoints that the worker owns.
pub const ENDPOINTS: Metric = Metric {
    name: "relent_outbox_endpoints",
    kind: MetricKind::Gauge,
    unit: "endpoints",
    label: None,
    parts: &[Part::Worker],
    meaning: "Endpoints that this process serves, as of the last poll.",
};
/// Store calls that failed.
pub const STORE_ERRORS: Metric = Metric {
    name: "relent_outbox_store_errors_total",
    kind: MetricKind::Counter,
    unit: "calls",
    label: Some(Label {
        name: "operation",
        values: &[
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
    }),
    parts: &[Part::Worker, Part::Api],
    meaning: "Calls of the store that failed; after each `api` one, the API responded with 503.",
};
/// Leases that were lost.
pub const LEASES_LOST: Metric = Metric {
    name: "relent_outbox_leases_lost_total",
    kind: MetricKind::Counter,
    unit: "leases",
    label: None,
    parts: &[Part::Worker],
    meaning: "Times that other processes could take the endpoints of this process, since its heartbeat was late.",
};
/// Offers of a dispatcher that expired because no NATS worker started the attempt.
pub const OFFERS_EXPIRED: Metric = Metric {
    name: "relent_outbox_offers_expired_total",
    kind: MetricKind::Counter,
    unit: "attempts",
    label: None,
    parts: &[Part::Dispatcher],
    meaning: "Attempts that `serve` withdrew, since no `relent deliver worker` had begun them.",
};
/// Errors that kept a dispatcher or a NATS worker from NATS.
pub const NATS_ERRORS: Metric = Metric {
    name: "relent_outbox_nats_errors_total",
    kind: MetricKind::Counter,
    unit: "errors",
    label: None,
    parts: &[Part::Dispatcher, Part::NatsWorker],
    meaning: "Errors that kept this process from using NATS.",
};
/// NATS messages that a dispatcher or a NATS worker has refused. `unreadable`: of another version of Relent, truncated,
/// or with an impossible number; `unknown`: about an attempt that the dispatcher has not published; `not_granted`: a
/// result without a grant; `over`: a repeated result, after NATS has lost the confirmation, or one that the dispatcher
/// no longer waits for.
pub const NATS_REFUSED: Metric = Metric {
    name: "relent_outbox_nats_refused_total",
    kind: MetricKind::Counter,
    unit: "messages",
    label: Some(Label {
        name: "reason",
        values: &["unreadable", "unknown", "not_granted", "over"],
    }),
    parts: &[Part::Dispatcher, Part::NatsWorker],
    meaning: "Messages of NATS that were refused.",
};
/// Results of the attempts that a NATS worker took: `answered`; `failed` without a response; `cancelled` by the
/// dispatcher before the start; `unreported` because the dispatcher was gone at the end.
pub const EXCHANGES: Metric = Metric {
    name: "relent_outbox_exchanges_total",
    kind: MetricKind::Counter,
    unit: "attempts",
    label: Some(Label {
        name: "result",
        values: &["answered", "failed", "cancelled", "unreported"],
    }),
    parts: &[Part::NatsWorker],
    meaning: "Attempts that `relent deliver worker` took from NATS.",
};
/// Messages of the whole outbox.
pub const MESSAGES: Metric = Metric {
    name: "relent_outbox_messages",
    kind: MetricKind::Gauge,
    unit: "messages",
    label: Some(Label {
        name: "state",
        values: &["pending", "running", "dead"],
    }),
    parts: &[Part::Api],
    meaning: "Messages of the whole outbox.",
};
/// Age of the oldest due message.
pub const LAG: Metric = Metric {
    name: "relent_outbox_lag_seconds",
    kind: MetricKind::Gauge,
    unit: "seconds",
    label: None,
    parts: &[Part::Api],
    meaning: "Time for which the oldest message that may be attempted has been due; 0 if none is.",
};
/// Disabled endpoints of the whole outbox.
pub const ENDPOINTS_DISABLED: Metric = Metric {
    name: "relent_outbox_endpoints_disabled",
    kind: MetricKind::Gauge,
    unit: "endpoints",
    label: None,
    parts: &[Part::Api],
    meaning: "Endpoints of the whole outbox that are disabled.",
};

/// All metrics of an outbox.
pub const METRICS: [Metric; 18] = [
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
    OFFERS_EXPIRED,
    NATS_ERRORS,
    NATS_REFUSED,
    EXCHANGES,
];

/// Describes the metrics and their units to the installed recorder. Call it once, after installing the recorder.
#[cfg(feature = "metrics")]
pub fn describe() {
    for metric in METRICS {
        let unit = match metric.unit {
            "seconds" => metrics::Unit::Seconds,
            _ => metrics::Unit::Count,
        };
        match metric.kind {
            MetricKind::Counter => metrics::describe_counter!(metric.name, unit, metric.meaning),
            MetricKind::Gauge => metrics::describe_gauge!(metric.name, unit, metric.meaning),
            MetricKind::Histogram => {
                metrics::describe_histogram!(metric.name, unit, metric.meaning);
            }
        }
    }
}

/// The target of the events.
#[cfg(feature = "tracing")]
pub const TARGET: &str = "relent";

/// Sets the counters of a part to 0 when it starts.
pub(crate) fn begin(part: Part) {
    #[cfg(feature = "metrics")]
    for metric in METRICS {
        if metric.kind != MetricKind::Counter || !metric.parts.contains(&part) {
            continue;
        }
        let values = metric.label.map_or(&[""][..], |label| label.values);
        for value in values {
            counter(&metric, value).increment(0);
        }
    }
    let _ = part;
}

/// The counter of this metric with this label value, which is empty if it has no label.
#[cfg(feature = "metrics")]
fn counter(metric: &Metric, value: &'static str) -> metrics::Counter {
    match metric.label {
        Some(label) => metrics::counter!(metric.name, label.name => value),
        None => metrics::counter!(metric.name),
    }
}

#[cfg(feature = "metrics")]
fn count(metric: &Metric, value: &'static str) {
    counter(metric, value).increment(1);
}

/// Sets a gauge with this label value, which is empty if it has no label.
#[cfg(feature = "metrics")]
pub(crate) fn gauge(metric: &Metric, label: &'static str, value: f64) {
    match metric.label {
        Some(Label { name, .. }) => metrics::gauge!(metric.name, name => label).set(value),
        None => metrics::gauge!(metric.name).set(value),
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
    #[cfg(feature = "metrics")]
    count(&DEAD, "");
    #[cfg(feature = "tracing")]
    tracing::warn!(target: TARGET, id, reason, "no attempt follows: a dead letter");
    let _ = (id, reason);
}

pub(crate) fn disabled(tenant: &str, endpoint: &str, reason: &str) {
    #[cfg(feature = "metrics")]
    count(&DISABLED, "");
    #[cfg(feature = "tracing")]
    tracing::warn!(target: TARGET, tenant, endpoint, reason, "endpoint disabled");
    let _ = (tenant, endpoint, reason);
}

/// Records that a local fault holds messages; `new`: they were not held before.
pub(crate) fn local_fault(tenant: &str, endpoint: &str, fault: &LocalFault, new: bool) {
    let LocalFault { kind, error } = fault;
    #[cfg(feature = "metrics")]
    count(&LOCAL_FAULTS, kind.name());
    #[cfg(feature = "tracing")]
    if new {
        let (fault, error) = (kind.name(), error.as_str());
        tracing::warn!(target: TARGET, tenant, endpoint, fault, error, "messages are held by a fault of this side");
    }
    let _ = (tenant, endpoint, kind, error, new);
}

/// Records that the fault is fixed.
pub(crate) fn fault_fixed(tenant: &str, endpoint: &str) {
    #[cfg(feature = "tracing")]
    tracing::info!(target: TARGET, tenant, endpoint, "messages are no longer held by a fault of this side");
    let _ = (tenant, endpoint);
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
    #[cfg(feature = "metrics")]
    count(&STORE_ERRORS, operation);
    #[cfg(feature = "tracing")]
    tracing::warn!(target: TARGET, operation, error, "the store of the outbox fails");
    let _ = (operation, error);
}

#[cfg(feature = "nats")]
pub(crate) fn offers_expired() {
    #[cfg(feature = "metrics")]
    count(&OFFERS_EXPIRED, "");
}

#[cfg(feature = "nats")]
pub(crate) fn nats_error(error: &str) {
    #[cfg(feature = "metrics")]
    count(&NATS_ERRORS, "");
    #[cfg(feature = "tracing")]
    tracing::warn!(target: TARGET, error, "NATS fails");
    let _ = error;
}

#[cfg(feature = "nats")]
pub(crate) fn refused(reason: &'static str, error: &impl std::fmt::Display) {
    #[cfg(feature = "metrics")]
    count(&NATS_REFUSED, reason);
    #[cfg(feature = "tracing")]
    {
        let error = crate::text::escape_bidi(&error.to_string());
        tracing::warn!(target: TARGET, reason, %error, "refused what came by NATS");
    }
    let _ = (reason, error);
}

#[cfg(feature = "nats")]
pub(crate) fn exchange(result: &'static str) {
    #[cfg(feature = "metrics")]
    count(&EXCHANGES, result);
    let _ = result;
}

pub(crate) fn lease_lost() {
    #[cfg(feature = "metrics")]
    count(&LEASES_LOST, "");
    #[cfg(feature = "tracing")]
    tracing::warn!(target: TARGET, "the worker's lease is lost: its endpoints are given back");
}
