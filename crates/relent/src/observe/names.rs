//! The metrics: names, types, units, labels and meanings.

/// The target of the events.
pub const TARGET: &str = "relent";

/// A row of a table of metrics, such as [`METRICS`]: the code records by it, [`describe`](super::describe) passes it
/// to an exporter, and `docs/observability.md` of the repository shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Metric {
    /// The name, as in dashboards and alerts.
    pub name: &'static str,
    /// The type.
    pub kind: MetricKind,
    /// The unit, such as `attempts` or `seconds`.
    pub unit: &'static str,
    /// The labels. Those of `relent` can have [`DESTINATION`] as well.
    pub labels: &'static [&'static str],
    /// The meaning, in one sentence.
    pub meaning: &'static str,
}

/// The type of a metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetricKind {
    /// It only rises.
    Counter,
    /// It rises and falls.
    Gauge,
    /// A distribution.
    Histogram,
}

impl MetricKind {
    /// The name of the type in Prometheus.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

impl Metric {
    /// A row of a table of metrics.
    #[must_use]
    pub const fn new(
        kind: MetricKind,
        name: &'static str,
        unit: &'static str,
        labels: &'static [&'static str],
        meaning: &'static str,
    ) -> Self {
        Self {
            name,
            kind,
            unit,
            labels,
            meaning,
        }
    }
}

/// Attempts.
pub const ATTEMPTS: Metric = Metric::new(
    MetricKind::Counter,
    "relent_attempts_total",
    "attempts",
    &[],
    "Attempts that started.",
);
/// Retries.
pub const RETRIES: Metric = Metric::new(
    MetricKind::Counter,
    "relent_retries_total",
    "attempts",
    &[],
    "Attempts that started after a failed one.",
);
/// Hedges.
pub const HEDGES: Metric = Metric::new(
    MetricKind::Counter,
    "relent_hedges_total",
    "attempts",
    &[],
    "Hedged attempts that started.",
);
/// Requests that a transport sent again by itself.
pub const RESENDS: Metric = Metric::new(
    MetricKind::Counter,
    "relent_resends_total",
    "requests",
    &[],
    "Requests that a service below sent again by itself, and counted as attempts of the call.",
);
/// Failures.
pub const FAILURES: Metric = Metric::new(
    MetricKind::Counter,
    "relent_failures_total",
    "attempts",
    &[KIND],
    "Attempts that failed.",
);
/// Delays before retries.
pub const WAIT: Metric = Metric::new(
    MetricKind::Histogram,
    "relent_wait_seconds",
    "seconds",
    &[HINT],
    "Delays before retries.",
);
/// Give-ups.
pub const STOPS: Metric = Metric::new(
    MetricKind::Counter,
    "relent_stops_total",
    "calls",
    &[REASON],
    "Calls that were given up.",
);
/// The balance of the retry budget.
pub const BUDGET_LEFT: Metric = Metric::new(
    MetricKind::Gauge,
    "relent_budget_left",
    "tokens",
    &[],
    "Tokens in the retry budget, when a request starts and after each failure.",
);
/// Queued requests.
pub const HELD_BACK: Metric = Metric::new(
    MetricKind::Gauge,
    "relent_held_back",
    "requests",
    &[BY],
    "Requests that are queued now.",
);
/// Time in the queue.
pub const HELD: Metric = Metric::new(
    MetricKind::Histogram,
    "relent_held_seconds",
    "seconds",
    &[BY],
    "Time in the queue, of requests that were released.",
);
/// Cooldowns.
pub const COOLDOWNS: Metric = Metric::new(
    MetricKind::Counter,
    "relent_cooldowns_total",
    "cooldowns",
    &[],
    "Cooldowns that started.",
);
/// State changes of circuit breakers.
pub const CIRCUIT_BREAKER_CHANGES: Metric = Metric::new(
    MetricKind::Counter,
    "relent_circuit_breaker_changes_total",
    "changes",
    &[STATE],
    "State changes of circuit breakers, by the new state.",
);
/// The rate limit.
pub const RATE_LIMIT: Metric = Metric::new(
    MetricKind::Gauge,
    "relent_rate_limit",
    "attempts per second",
    &[],
    "The current rate limit; infinite while there is none; only with `[rate_limit]`.",
);

/// All metrics of a client.
pub const METRICS: [Metric; 13] = [
    ATTEMPTS,
    RETRIES,
    HEDGES,
    RESENDS,
    FAILURES,
    WAIT,
    STOPS,
    BUDGET_LEFT,
    HELD_BACK,
    HELD,
    COOLDOWNS,
    CIRCUIT_BREAKER_CHANGES,
    RATE_LIMIT,
];

/// Label: the name of a [kind](relent_core::FailureKind) of failure.
pub const KIND: &str = "kind";
/// Label: the name of the [source](relent_core::HintSource) of the server's delay.
pub const HINT: &str = "hint";
/// Label: the name of a [reason](relent_core::StopReason).
pub const REASON: &str = "reason";
/// Label: the control that queues a request.
pub const BY: &str = "by";
/// Label: the state of a circuit breaker.
pub const STATE: &str = "state";
/// Label: the destination, only if its driver, client or layer has a label.
pub const DESTINATION: &str = "destination";

/// All labels, each with its values in Markdown.
pub const LABELS: [(&str, &str); 6] = [
    (
        KIND,
        "`not_processed`, `ambiguous`, `permanent`, `throttled`, `overloaded`",
    ),
    (
        HINT,
        "the source of the server's delay, such as `retry-after`; `none` if there was none",
    ),
    (
        REASON,
        "the [reason for giving up](#reasons-for-giving-up), such as `retries_exhausted`, `budget` or `deadline`",
    ),
    (
        BY,
        "`cooldown`, `circuit_breaker` or `rate_limit`; `circuit_breaker` also for a retry that waits because of an exhausted budget",
    ),
    (STATE, "`normal`, `limited` or `down`"),
    (
        DESTINATION,
        "on every client metric, if you set a label with `Client::label`, `RetryLayer::label` or `DriverBuilder::label`; neither the method `named` of a `Destination` nor the origin of a URL sets it",
    ),
];
