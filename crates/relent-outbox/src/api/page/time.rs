//! Times and durations, as the page shows and reads them.

use std::time::SystemTime;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use maud::{Markup, html};

use crate::store::millis;

/// In milliseconds since 1970.
fn now() -> i64 {
    millis(SystemTime::now())
}

/// Whether it has been: [`time`] says how long ago.
pub(super) fn is_past(ms: i64) -> bool {
    ms <= now()
}

/// A time in UTC, and how long ago it was or in how long it will be.
pub(super) fn time(ms: i64) -> Markup {
    let Ok(at) = Timestamp::from_millisecond(ms) else {
        return html! { (ms) };
    };
    let distance = now().saturating_sub(ms);
    let long = long(distance.unsigned_abs());
    element(
        at,
        &match distance {
            0.. => format!("{long} ago"),
            _ => format!("in {long}"),
        },
    )
}

/// A text about a time, which says itself when that is.
fn element(at: Timestamp, text: &str) -> Markup {
    let zulu = at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
    html! { time datetime=(at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()) title=(zulu) { (text) } }
}

/// For how long something has been so since then.
pub(super) fn lasting(ms: i64) -> Markup {
    let Ok(at) = Timestamp::from_millisecond(ms) else {
        return html! { (ms) };
    };
    element(
        at,
        &long(u64::try_from(now().saturating_sub(ms)).unwrap_or_default()),
    )
}

/// A time in UTC as it is, to be found in a log, and how long ago it was.
pub(super) fn exact(ms: i64) -> Markup {
    let at =
        Timestamp::from_millisecond(ms).map(|at| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string());
    html! { div { (at.unwrap_or_default()) } div.note { (time(ms)) } }
}

/// A duration to two units at most, cut off.
pub(super) fn long(ms: u64) -> String {
    let seconds = ms / 1000;
    let two = |large: u64, large_name: &str, small: u64, small_name: &str| match seconds % large
        / small
    {
        0 => format!("{} {large_name}", seconds / large),
        rest => format!("{} {large_name} {rest} {small_name}", seconds / large),
    };
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{seconds} s"),
        60..3600 => two(60, "min", 1, "s"),
        3600..86400 => two(3600, "h", 60, "min"),
        _ => two(86400, "d", 3600, "h"),
    }
}

/// A time of a form, in UTC, in milliseconds since 1970; `None` if it was left empty.
pub(super) fn read(text: &str) -> Result<Option<i64>, jiff::Error> {
    if text.is_empty() {
        return Ok(None);
    }
    let at: DateTime = text.parse()?;
    Ok(Some(
        at.to_zoned(TimeZone::UTC)?.timestamp().as_millisecond(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_a_form_is_utc() {
        assert_eq!(read("").unwrap(), None);
        assert_eq!(read("1970-01-02T00:00").unwrap(), Some(86_400_000));
        assert_eq!(read("1970-01-01T00:00:01").unwrap(), Some(1000));
        assert!(read("tomorrow").is_err());
    }

    #[test]
    fn a_duration_has_two_units() {
        for (ms, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (59_999, "59 s"),
            (60_000, "1 min"),
            (3_661_000, "1 h 1 min"),
            (93_600_000, "1 d 2 h"),
        ] {
            assert_eq!(long(ms), text);
        }
    }
}
