//! Times and durations in whole microseconds, as Redis and PostgreSQL store them.

use std::time::Duration;

use relent_core::Instant;

/// The latest time, in microseconds since 1970: in the year 2255. A Lua number is exact up to it.
pub(super) const MAX_MICROS: i64 = (1 << 53) - 1;

/// Rounds up, so that a lease is never shorter than requested.
pub(super) fn span(span: Duration) -> i64 {
    let micros = span.as_nanos().div_ceil(1000);
    i64::try_from(micros).map_or(MAX_MICROS, |micros| micros.min(MAX_MICROS))
}

pub(super) fn instant(micros: i64) -> Instant {
    let micros = u64::try_from(micros).unwrap_or_default();
    Instant::from_nanos(micros.saturating_mul(1000))
}

pub(super) fn of(instant: Instant) -> i64 {
    let micros = i64::try_from(instant.as_nanos().div_ceil(1000));
    micros.map_or(MAX_MICROS, |micros| micros.min(MAX_MICROS))
}
