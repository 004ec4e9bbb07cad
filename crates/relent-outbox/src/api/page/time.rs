//! Display and parsing of times and durations.

use std::time::SystemTime;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use maud::{Markup, html};

use crate::store::millis;

/// The current time in milliseconds since 1970.
fn now() -> i64 {
    millis(SystemTime::now())
}

/// Whether the time is in the past.
pub(super) fn is_past(ms: i64) -> bool {
    ms <= now()
}

/// Shows a time in UTC as a tooltip, with its distance from now as text.
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

/// Renders a text about a time, with the time as a tooltip.
fn element(at: Timestamp, text: &str) -> Markup {
    let zulu = at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
    html! { time datetime=(at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()) title=(zulu) { (text) } }
}

/// Shows the duration since this time.
pub(super) fn lasting(ms: i64) -> Markup {
    let Ok(at) = Timestamp::from_millisecond(ms) else {
        return html! { (ms) };
    };
    element(
        at,
        &long(u64::try_from(now().saturating_sub(ms)).unwrap_or_default()),
    )
}

/// Shows a time in UTC, for searching logs, and its distance from now.
pub(super) fn exact(ms: i64) -> Markup {
    let at =
        Timestamp::from_millisecond(ms).map(|at| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string());
    html! { div { (at.unwrap_or_default()) } div.note { (time(ms)) } }
}

/// Formats a duration with at most two units, rounded down.
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

/// Parses a time of a form, in UTC, to milliseconds since 1970; `None` if it is empty.
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
