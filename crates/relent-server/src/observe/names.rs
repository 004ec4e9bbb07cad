//! The names of metrics and their labels.

/// The target of the events.
pub const TARGET: &str = "relent";

/// Counter: requests that the rate limits let in, by [`TICKET`].
pub const RATE_ADMITTED: &str = "relent_server_rate_admitted_total";
/// Counter: requests that the rate limits refused, by [`REASON`] and [`QUOTA`].
pub const RATE_REFUSED: &str = "relent_server_rate_refused_total";
/// Counter: requests that were judged without Redis while it was away, by [`AWAY`]; they count in
/// [`RATE_ADMITTED`] or [`RATE_REFUSED`], too.
pub const RATE_ALONE: &str = "relent_server_rate_alone_total";
/// Counter: requests that got a slot, by [`CRITICALITY`].
pub const ADMITTED: &str = "relent_server_admitted_total";
/// Counter: requests that were turned away, by [`CRITICALITY`] and [`REASON`].
pub const TURNED_AWAY: &str = "relent_server_turned_away_total";
/// Histogram: how long requests waited for a slot in seconds, by [`CRITICALITY`]; of those that got one.
pub const WAIT: &str = "relent_server_wait_seconds";
/// Gauge: requests that may be served at once.
pub const LIMIT: &str = "relent_server_concurrency_limit";
/// Gauge: requests that are served at the moment.
pub const IN_FLIGHT: &str = "relent_server_in_flight";
/// Gauge: requests that wait for a slot at the moment.
pub const WAITING: &str = "relent_server_waiting";
/// Counter: what became of requests with an idempotency key, by [`RESULT`].
pub const KEYED: &str = "relent_server_keyed_total";
/// Counter: duplicates that waited for the request that ran.
pub const KEYED_WAITS: &str = "relent_server_keyed_waits_total";
/// Counter: executions of which nobody knows whether they had an effect.
pub const UNKNOWN: &str = "relent_server_outcome_unknown_total";
/// Counter: unknown outcomes that were resolved, by [`RESOLUTION`].
pub const RESOLVED: &str = "relent_server_outcome_resolved_total";
/// Counter: executions that found that another had taken their key.
pub const LEASE_LOST: &str = "relent_server_lease_lost_total";
/// Counter: calls of the store that failed, each with all its attempts, by [`OPERATION`].
pub const STORE_ERRORS: &str = "relent_server_store_errors_total";
/// Histogram: the bodies of the answers that were stored, in bytes.
pub const ANSWER_BYTES: &str = "relent_server_answer_bytes";

/// Counter: deliveries of webhooks that were not believed, by [`REASON`].
pub const NOT_VERIFIED: &str = "relent_server_webhooks_not_verified_total";

/// Label: the word of a [`Criticality`](relent_core::Criticality).
pub const CRITICALITY: &str = "criticality";
/// Label: `true` for a request that came in the slot that was reserved for it, else `false`.
pub const TICKET: &str = "ticket";
/// Label: the name of the quota that refused, the furthest if several did; empty if none of them did.
pub const QUOTA: &str = "quota";
/// Label: `overloaded`, `do_not_retry` or `expired`; of rate limits `limited`, `too_costly`, `expired`, or `away` if
/// Redis could not be asked; of webhooks `missing` or `malformed` fields, `no_match` of the signatures, `out_of_time`, or
/// `unknown_sender`.
pub const REASON: &str = "reason";
/// Label: what happens while Redis is away: `open`, `closed` or `local`.
pub const AWAY: &str = "away";
/// Label: `run`, `taken_over`, `replayed`, or the code of the problem that it got, such as
/// `idempotency-in-flight` or `webhook-in-flight`.
pub const RESULT: &str = "result";
/// Label: `applied` or `not_applied`.
pub const RESOLUTION: &str = "resolution";
/// Label: `claim`, `write`, `renew` or `give_back`; of a handler that runs exactly once `transaction`.
pub const OPERATION: &str = "operation";
