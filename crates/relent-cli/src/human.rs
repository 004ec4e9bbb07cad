//! Durations in a form for people.

use std::time::Duration;

use relent::policy::format_duration;

/// Formats a duration with two or three digits: `340ms`, `2.3s`, `45s`, `1m 5s`, `2h 10m`, `3d 4h`. Rounds
/// down, so that a countdown never shows more than the time left.
pub(crate) fn human(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 if duration < Duration::from_micros(1) => format_duration(duration),
        0 if duration < Duration::from_millis(1) => format!("{}us", duration.as_micros()),
        0 => format!("{}ms", duration.as_millis()),
        1..10 => match duration.subsec_millis() / 100 {
            0 => format!("{seconds}s"),
            tenths => format!("{seconds}.{tenths}s"),
        },
        10..60 => format!("{seconds}s"),
        60..3600 => two(seconds, 60, "m", 1, "s"),
        3600..86400 => two(seconds, 3600, "h", 60, "m"),
        _ => two(seconds, 86400, "d", 3600, "h"),
    }
}

fn two(seconds: u64, large: u64, large_name: &str, small: u64, small_name: &str) -> String {
    let whole = seconds / large;
    match seconds % large / small {
        0 => format!("{whole}{large_name}"),
        rest => format!("{whole}{large_name} {rest}{small_name}"),
    }
}

/// Formats a duration for a table: to the microsecond below a second, and to the millisecond below a minute. Longer
/// ones are cut off: `1m 30.5s`, `24h 4m`, and from two days on `3d 11h 8m`.
pub(crate) fn tabular(duration: Duration) -> String {
    let unit = if duration < Duration::from_secs(1) {
        1_000
    } else {
        1_000_000
    };
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    // Durations that round to zero microseconds are shown exactly.
    let rounded = match (nanos.saturating_add(unit / 2)) / unit * unit {
        0 => nanos,
        rounded => rounded,
    };
    let duration = Duration::from_nanos(rounded);
    let seconds = duration.as_secs();
    let tenths = duration.subsec_millis() / 100;
    let (days, hours) = match seconds {
        0..60 => return format_duration(duration),
        60..TWO_DAYS => (0, seconds / 3600),
        _ => (seconds / 86400, seconds / 3600 % 24),
    };
    let mut parts = Vec::new();
    for (count, unit) in [(days, "d"), (hours, "h"), (seconds / 60 % 60, "m")] {
        if count > 0 {
            parts.push(format!("{count}{unit}"));
        }
    }
    match (days, hours, seconds % 60, tenths) {
        (0, 0, rest, 1..) => parts.push(format!("{rest}.{tenths}s")),
        (0, _, rest @ 1.., _) => parts.push(format!("{rest}s")),
        _ => {}
    }
    parts.join(" ")
}

/// Two days, in seconds: from here on, days are shown.
const TWO_DAYS: u64 = 2 * 86400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn human_durations_have_two_or_three_digits() {
        for (nanos, text) in [
            (0, "0s"),
            (51_200, "51us"),
            (340_900_000, "340ms"),
            (1_000_000_000, "1s"),
            (2_399_000_000, "2.3s"),
            (45_900_000_000, "45s"),
            (60_000_000_000, "1m"),
            (65_000_000_000, "1m 5s"),
            (7_800_000_000_000, "2h 10m"),
            (273_600_000_000_000, "3d 4h"),
        ] {
            assert_eq!(human(Duration::from_nanos(nanos)), text);
        }
        assert!(human(Duration::MAX).ends_with('h'));
    }

    #[test]
    fn table_durations_are_rounded_by_magnitude() {
        for (nanos, text) in [
            (0, "0s"),
            (300, "300ns"),
            (51_200, "51us"),
            (1_687_500_000, "1.688s"),
            (60_000_000_000, "1m"),
            (86_640_000_000_000, "24h 4m"),
            (3_601_000_000_000, "1h 1s"),
            (3_601_000_000_001, "1h 1s"),
            (90_500_000_000, "1m 30.5s"),
            (60_040_000_000, "1m"),
            (3_660_900_000_000, "1h 1m"),
            (299_315_500_000_000, "3d 11h 8m"),
            (172_800_000_000_000, "2d"),
            (500_000_000, "500ms"),
            (123_456_789, "123.457ms"),
        ] {
            assert_eq!(tabular(Duration::from_nanos(nanos)), text);
        }
        assert!(tabular(Duration::MAX).contains("d "));
    }
}
