//! The names of metrics and their labels.

/// The target of the events.
pub const TARGET: &str = "relent";

/// Counter: attempts that were started.
pub const ATTEMPTS: &str = "relent_attempts_total";
/// Counter: attempts after the first that were started when one had failed.
pub const RETRIES: &str = "relent_retries_total";
/// Counter: hedges that were started.
pub const HEDGES: &str = "relent_hedges_total";
/// Counter: attempts that failed, by [`KIND`].
pub const FAILURES: &str = "relent_failures_total";
/// Histogram: waits before retries in seconds, by [`HINT`].
pub const WAIT: &str = "relent_wait_seconds";
/// Counter: give-ups, by [`REASON`].
pub const STOPS: &str = "relent_stops_total";
/// Gauge: tokens in the budget, when a request begins and after each failure.
pub const BUDGET_LEFT: &str = "relent_budget_left";
/// Gauge: requests that are held back at the moment, by [`BY`].
pub const HELD_BACK: &str = "relent_held_back";
/// Histogram: how long requests were held back in seconds, by [`BY`]; of those that are let go.
pub const HELD: &str = "relent_held_seconds";
/// Counter: cooldowns that began.
pub const COOLDOWNS: &str = "relent_cooldowns_total";
/// Counter: what gates have become, by [`STATE`].
pub const GATE_CHANGES: &str = "relent_gate_changes_total";
/// Gauge: attempts per second that may be made, infinite while there is no limit; only if the
/// destination has a request rate.
pub const REQUEST_RATE: &str = "relent_request_rate";

/// Label: what holds a request back: `cooldown`, `gate` or `request_rate`.
pub const BY: &str = "by";
/// Label: `open`, `limited` or `closed`.
pub const STATE: &str = "state";
/// Label: the name of a [kind](relent_core::Kind) of failure.
pub const KIND: &str = "kind";
/// Label: where the server named the time, the name of a [source](relent_core::HintSource), or `none`.
pub const HINT: &str = "hint";
/// Label: the name of a [reason](relent_core::StopReason).
pub const REASON: &str = "reason";
/// Label: the destination, only if it was given a name.
pub const DESTINATION: &str = "destination";
