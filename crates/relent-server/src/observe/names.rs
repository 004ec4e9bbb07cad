//! The metrics: names, types, units, labels and meanings.

/// The target of the events.
pub const TARGET: &str = "relent";

pub use relent::observe::{Metric, MetricKind};

/// Admissions by the rate limits.
pub const RATE_ADMITTED: Metric = Metric::new(
    MetricKind::Counter,
    "relent_server_rate_admitted_total",
    "requests",
    &[TICKET],
    "Requests that the rate limits admitted.",
);
/// Rejections by the rate limits.
pub const RATE_REJECTED: Metric = Metric::new(
    MetricKind::Counter,
    "relent_server_rate_rejected_total",
    "requests",
    &[REASON, QUOTA],
    "Requests that the rate limits rejected, with the quota that rejected them.",
);
/// Decisions without Redis.
pub const RATE_LOCAL: Metric = Metric::new(
    MetricKind::Counter,
    "relent_server_rate_local_total",
    "requests",
    &[REDIS_DOWN],
    "Requests decided without Redis while Redis was unreachable; also counted as admitted or rejected.",
);
/// Admissions by the overload layer.
pub const ADMITTED: Metric = Metric::new(
    MetricKind::Counter,
    "relent_server_admitted_total",
    "requests",
    &[CRITICALITY],
    "Requests that the overload layer admitted: each got a slot.",
);
/// Rejections by the overload layer.
pub const SHED: Metric = Metric::new(
    MetricKind::Counter,
    "relent_server_shed_total",
    "requests",
    &[CRITICALITY, REASON],
    "Requests that the overload layer rejected (load shedding).",
);
/// Waits for a slot.
pub const WAIT: Metric = Metric::new(
    MetricKind::Histogram,
    "relent_server_wait_seconds",
    "seconds",
    &[CRITICALITY],
    "Time that requests waited for a slot, of those that waited and got one.",
);
/// The concurrency limit.
pub const LIMIT: Metric = Metric::new(
    MetricKind::Gauge,
    "relent_server_concurrency_limit",
    "requests",
    &[],
    "The current concurrency limit: the number of slots.",
);
/// Requests in flight.
pub const IN_FLIGHT: Metric = Metric::new(
    MetricKind::Gauge,
    "relent_server_in_flight",
    "requests",
    &[],
    "Requests that hold a slot.",
);
/// Waiting requests.
pub const WAITING: Metric = Metric::new(
    MetricKind::Gauge,
    "relent_server_waiting",
    "requests",
    &[],
    "Requests that wait for a slot.",
);
/// Requests with an idempotency key.
pub const IDEMPOTENT_REQUESTS: Metric = Metric::new(
    MetricKind::Counter,
    "relent_server_idempotent_requests_total",
    "requests",
    &[RESULT],
    "Requests with an idempotency key, and webhook deliveries.",
);
/// Webhook deliveries that were not verified.
pub const NOT_VERIFIED: Metric = Metric::new(
    MetricKind::Counter,
    "relent_server_webhooks_not_verified_total",
    "requests",
    &[REASON],
    "Webhook deliveries that were not verified.",
);
/// Waiting duplicates.
pub const IDEMPOTENT_WAITS: Metric = Metric::new(
    MetricKind::Counter,
    "relent_server_idempotent_waits_total",
    "requests",
    &[],
    "Duplicates that waited for the running request.",
);
/// Unknown outcomes.
pub const UNKNOWN: Metric = Metric::new(
    MetricKind::Counter,
    "relent_server_outcome_unknown_total",
    "executions",
    &[],
    "Executions with an unknown outcome (in doubt), except those that ended with their process or could not be recorded.",
);
/// Resolved outcomes.
pub const RESOLVED: Metric = Metric::new(
    MetricKind::Counter,
    "relent_server_outcome_resolved_total",
    "outcomes",
    &[RESOLUTION],
    "Unknown outcomes that were resolved.",
);
/// Lost leases.
pub const LEASE_LOST: Metric = Metric::new(
    MetricKind::Counter,
    "relent_server_lease_lost_total",
    "writes",
    &[],
    "Writes that failed because another execution had taken the key.",
);
/// Failures of the store.
pub const STORE_ERRORS: Metric = Metric::new(
    MetricKind::Counter,
    "relent_server_store_errors_total",
    "calls",
    &[OPERATION],
    "Store calls that failed; `claim` and `write` count once, after their last retry.",
);
/// Stored responses.
pub const ANSWER_BYTES: Metric = Metric::new(
    MetricKind::Histogram,
    "relent_server_answer_bytes",
    "bytes",
    &[],
    "Body length of stored responses.",
);

/// All metrics of a server.
pub const METRICS: [Metric; 17] = [
    RATE_ADMITTED,
    RATE_REJECTED,
    RATE_LOCAL,
    ADMITTED,
    SHED,
    WAIT,
    LIMIT,
    IN_FLIGHT,
    WAITING,
    IDEMPOTENT_REQUESTS,
    NOT_VERIFIED,
    IDEMPOTENT_WAITS,
    UNKNOWN,
    RESOLVED,
    LEASE_LOST,
    STORE_ERRORS,
    ANSWER_BYTES,
];

/// Label: the name of a [`Criticality`](relent_core::Criticality).
pub const CRITICALITY: &str = "criticality";
/// Label: whether the request came in its reserved slot.
pub const TICKET: &str = "ticket";
/// Label: the quota that rejected the request.
pub const QUOTA: &str = "quota";
/// Label: the reason for the rejection.
pub const REASON: &str = "reason";
/// Label: the behaviour while Redis is unreachable.
pub const REDIS_DOWN: &str = "redis_down";
/// Label: the result of a request with an idempotency key.
pub const RESULT: &str = "result";
/// Label: the resolution of an unknown outcome.
pub const RESOLUTION: &str = "resolution";
/// Label: the call of the store.
pub const OPERATION: &str = "operation";

/// All labels, each with its values in Markdown.
pub const LABELS: [(&str, &str); 8] = [
    (
        TICKET,
        "`true` for requests at their reserved time, else `false`",
    ),
    (
        REASON,
        "of rate limits: `limited`; `too_costly` (more than a whole burst); `expired` (the caller's deadline has \
         passed); `redis_down` (Redis was unreachable). Of the overload layer: `overloaded`; `do_not_retry` (overloaded, \
         and most attempts are retries); `expired`. Of webhooks: `missing` or `malformed` fields, `no_match` of the \
         signatures, `out_of_time`, `unknown_sender`",
    ),
    (
        QUOTA,
        "the quota that rejected the request; if several did, the one with the longest delay; empty if none did",
    ),
    (
        REDIS_DOWN,
        "the configured behaviour while Redis is unreachable: `open` (admit), `closed` (reject), `local` (limit alone)",
    ),
    (
        CRITICALITY,
        "`CRITICAL_PLUS`, `CRITICAL`, `SHEDDABLE_PLUS`, `SHEDDABLE`",
    ),
    (
        RESULT,
        "`run`; `taken_over` (the handler ran again, because an earlier execution was lost); `replayed` (a stored \
         response); or the `code` of the problem: `idempotency-in-flight`, `idempotency-key-reused`, \
         `idempotency-outcome-unknown`, `idempotency-store-failed` and so on; for webhooks `webhook-in-flight`, \
         `webhook-not-verified` and so on",
    ),
    (RESOLUTION, "`applied` or `not_applied`"),
    (
        OPERATION,
        "`claim`, `write`, `renew`; `give_back` of the key after a failed claim; `transaction` of a transactional handler",
    ),
];
