//! The names of metrics and their labels.

/// The target of the events.
pub const TARGET: &str = "relent";

/// Counter: requests that the rate limits admitted, by [`TICKET`].
pub const RATE_ADMITTED: &str = "relent_server_rate_admitted_total";
/// Counter: requests that the rate limits rejected, by [`REASON`] and [`QUOTA`].
pub const RATE_REFUSED: &str = "relent_server_rate_refused_total";
/// Counter: decisions of the process alone while Redis is unreachable, by [`AWAY`]. They also count in
/// [`RATE_ADMITTED`] or [`RATE_REFUSED`].
pub const RATE_LOCAL: &str = "relent_server_rate_local_total";
/// Counter: requests that got a slot, by [`CRITICALITY`].
pub const ADMITTED: &str = "relent_server_admitted_total";
/// Counter: requests that the overload layer rejected, by [`CRITICALITY`] and [`REASON`].
pub const TURNED_AWAY: &str = "relent_server_turned_away_total";
/// Histogram: seconds that requests waited for a slot, of those that waited and got one, by [`CRITICALITY`].
pub const WAIT: &str = "relent_server_wait_seconds";
/// Gauge: the concurrency limit.
pub const LIMIT: &str = "relent_server_concurrency_limit";
/// Gauge: requests that hold a slot.
pub const IN_FLIGHT: &str = "relent_server_in_flight";
/// Gauge: requests that wait for a slot.
pub const WAITING: &str = "relent_server_waiting";
/// Counter: requests with an idempotency key, by [`RESULT`].
pub const IDEMPOTENT_REQUESTS: &str = "relent_server_idempotent_requests_total";
/// Counter: duplicates that waited for a running request.
pub const IDEMPOTENT_WAITS: &str = "relent_server_idempotent_waits_total";
/// Counter: executions that ended with an unknown outcome.
pub const UNKNOWN: &str = "relent_server_outcome_unknown_total";
/// Counter: unknown outcomes that were resolved, by [`RESOLUTION`].
pub const RESOLVED: &str = "relent_server_outcome_resolved_total";
/// Counter: executions that lost their key to another one.
pub const LEASE_LOST: &str = "relent_server_lease_lost_total";
/// Counter: store calls that failed after all attempts, by [`OPERATION`].
pub const STORE_ERRORS: &str = "relent_server_store_errors_total";
/// Histogram: body length of stored responses, in bytes.
pub const ANSWER_BYTES: &str = "relent_server_answer_bytes";

/// Counter: webhook deliveries that were not verified, by [`REASON`].
pub const NOT_VERIFIED: &str = "relent_server_webhooks_not_verified_total";

/// Label: the name of a [`Criticality`](relent_core::Criticality).
pub const CRITICALITY: &str = "criticality";
/// Label: `true` if the request came in its reserved slot, else `false`.
pub const TICKET: &str = "ticket";
/// Label: the quota that rejected the request, the one with the longest delay if several did; empty if none.
pub const QUOTA: &str = "quota";
/// Label: `overloaded`, `do_not_retry` or `expired`. For rate limits: `limited`, `too_costly`, `expired`, or `away`
/// if Redis is unreachable. For webhooks: `missing` or `malformed` header fields, `no_match` of the signatures,
/// `out_of_time`, or `unknown_sender`.
pub const REASON: &str = "reason";
/// Label: the behaviour while Redis is unreachable: `open`, `closed` or `local`.
pub const AWAY: &str = "away";
/// Label: `run`, `taken_over`, `replayed`, or the code of the problem, such as `idempotency-in-flight` or
/// `webhook-in-flight`.
pub const RESULT: &str = "result";
/// Label: `applied` or `not_applied`.
pub const RESOLUTION: &str = "resolution";
/// Label: `claim`, `write`, `renew` or `give_back`; `transaction` for a transactional handler.
pub const OPERATION: &str = "operation";
