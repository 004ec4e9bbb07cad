//! Conversion of times and numbers for statements.

use std::time::Duration;

/// The current time in microseconds since 1970, evaluated once per statement.
pub(super) const TIME: &str = "time AS MATERIALIZED (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now)";
/// The latest time that is stored, in the year 36812, so that additions cannot overflow.
pub(super) const MAX_TIME: i64 = 1 << 60;

/// Converts a duration to microseconds, rounded up.
pub(super) fn span(span: Duration) -> i64 {
    let micros = i64::try_from(span.as_nanos().div_ceil(1000));
    micros.map_or(MAX_TIME, |micros| micros.min(MAX_TIME))
}

/// Converts a number: PostgreSQL has no unsigned integers.
pub(super) fn number(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
