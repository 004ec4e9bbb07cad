//! Times and numbers as statements have them.

use std::time::Duration;

/// When it is now, in microseconds since 1970. A statement asks once.
pub(super) const TIME: &str = "time AS MATERIALIZED (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now)";
/// The latest time that is written, in the year 36812: there is room above it.
pub(super) const FOREVER: i64 = 1 << 60;

/// A span in microseconds, rounded up.
pub(super) fn span(span: Duration) -> i64 {
    let micros = i64::try_from(span.as_nanos().div_ceil(1000));
    micros.map_or(FOREVER, |micros| micros.min(FOREVER))
}

/// A number for PostgreSQL, which has none without a sign.
pub(super) fn number(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
