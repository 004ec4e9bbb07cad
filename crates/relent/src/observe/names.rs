//! The names of metrics and their labels.

/// The target of the events.
pub const TARGET: &str = "relent";

/// Counter: attempts that were started.
pub const ATTEMPTS: &str = "relent_attempts_total";
/// Counter: attempts that were started after a failed one.
pub const RETRIES: &str = "relent_retries_total";
/// Counter: hedges that were started.
pub const HEDGES: &str = "relent_hedges_total";
/// Counter: attempts that failed, by [`KIND`].
pub const FAILURES: &str = "relent_failures_total";
/// Histogram: waits before retries, in seconds, by [`HINT`].
pub const WAIT: &str = "relent_wait_seconds";
/// Counter: give-ups, by [`REASON`].
pub const STOPS: &str = "relent_stops_total";
/// Gauge: tokens in the retry budget, at the start of a request and after each failure.
pub const BUDGET_LEFT: &str = "relent_budget_left";
/// Gauge: requests that are currently held back, by [`BY`].
pub const HELD_BACK: &str = "relent_held_back";
/// Histogram: how long requests were held back, in seconds, by [`BY`]; only of requests that were
/// released.
pub const HELD: &str = "relent_held_seconds";
/// Counter: cooldowns that began.
pub const COOLDOWNS: &str = "relent_cooldowns_total";
/// Counter: state changes of circuit breakers, by the new [`STATE`].
pub const CIRCUIT_BREAKER_CHANGES: &str = "relent_circuit_breaker_changes_total";
/// Gauge: the rate limit in attempts per second, infinite while there is none; only for
/// destinations with a configured rate limit.
pub const REQUEST_RATE: &str = "relent_request_rate";

/// Label: the control that holds a request back: `cooldown`, `circuit_breaker` or `rate_limit`.
pub const BY: &str = "by";
/// Label: `normal`, `limited` or `down`.
pub const STATE: &str = "state";
/// Label: the name of a [kind](relent_core::FailureKind) of failure.
pub const KIND: &str = "kind";
/// Label: where the server named the time: the name of a [source](relent_core::HintSource), or
/// `none`.
pub const HINT: &str = "hint";
/// Label: the name of a [reason](relent_core::StopReason).
pub const REASON: &str = "reason";
/// Label: the destination, only if it has a name.
pub const DESTINATION: &str = "destination";
