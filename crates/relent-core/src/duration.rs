//! Parsing and formatting of readable durations: `250ms`, `1.5s`, `2m`, `1h30m`.

use alloc::string::{String, ToString};
use core::fmt;
use core::time::Duration;

/// The error of a text that is not a duration. Displays as a sentence that shows the accepted
/// forms.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DurationError {
    text: String,
    problem: Problem,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Problem {
    Empty,
    NoUnit,
    Negative,
    NoNumber,
    UnknownUnit,
    TooLong,
}

impl DurationError {
    /// Whether the text is a duration, but exceeds the range of [`Duration`].
    #[must_use]
    pub const fn is_too_long(&self) -> bool {
        matches!(self.problem, Problem::TooLong)
    }
}

impl fmt::Display for DurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let problem = match self.problem {
            Problem::Empty => "is empty",
            Problem::NoUnit => "has no unit",
            Problem::Negative => "is negative",
            Problem::NoNumber => "does not begin with a number",
            Problem::UnknownUnit => "has an unknown unit (ns, us, ms, s, m, h and d are known)",
            Problem::TooLong => "is longer than 584 thousand million years",
        };
        write!(
            f,
            "duration {:?} {problem}: write it like 250ms, 1.5s, 2m or 1h30m",
            self.text
        )
    }
}

impl core::error::Error for DurationError {}

const NANOS_PER_SECOND: u128 = 1_000_000_000;

const UNITS: [(&str, u128); 9] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("µs", 1_000), // U+00B5, the micro sign
    ("μs", 1_000), // U+03BC, the Greek letter
    ("ns", 1),
];

/// Parses a duration such as `250ms`, `1.5s`, `2m`, `1h30m`, `51.2us` or `0`.
///
/// Units are `ns`, `us` (or `µs`), `ms`, `s`, `m`, `h` and `d`; parts add up. Every part may have a
/// decimal fraction, which is exact to the nanosecond and then truncated. Only zero may have no
/// unit.
///
/// # Errors
/// A text that is empty, negative, without a unit, with an unknown unit, or above
/// [`Duration::MAX`]. In a policy, durations above 584 years count as 584 years.
///
/// ```
/// use core::time::Duration;
/// use relent_core::parse_duration;
///
/// assert_eq!(parse_duration("1.5s")?, Duration::from_millis(1500));
/// assert_eq!(parse_duration("1h30m")?, Duration::from_secs(5400));
/// assert!(parse_duration("5").unwrap_err().to_string().contains("no unit"));
/// # Ok::<(), relent_core::DurationError>(())
/// ```
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    parse(text.trim())
        .and_then(|nanos| {
            let seconds = u64::try_from(nanos / NANOS_PER_SECOND).map_err(|_| Problem::TooLong)?;
            Ok(Duration::new(seconds, (nanos % NANOS_PER_SECOND) as u32))
        })
        .map_err(|problem| DurationError {
            text: text.to_string(),
            problem,
        })
}

fn parse(text: &str) -> Result<u128, Problem> {
    if text.is_empty() {
        return Err(Problem::Empty);
    }
    if text.starts_with(['-', '−']) {
        return Err(Problem::Negative);
    }
    if text == "0" {
        return Ok(0);
    }
    let mut rest = text;
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let number_end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or(Problem::NoUnit)?;
        let (number, after) = rest.split_at(number_end);
        let unit_end = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        let part = parse_part(number, unit.trim())?;
        total = total.checked_add(part).ok_or(Problem::TooLong)?;
        rest = next.trim_start();
    }
    Ok(total)
}

fn parse_part(number: &str, unit: &str) -> Result<u128, Problem> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(Problem::NoNumber);
    }
    let unit = UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .map(|(_, nanos)| *nanos)
        .ok_or(Problem::UnknownUnit)?;
    let whole: u128 = match whole {
        "" => 0,
        digits => digits.parse().map_err(|_| Problem::TooLong)?,
    };
    // At most 18 digits, so that a fraction of any length is exact and cannot overflow.
    let mut fraction_nanos: u128 = 0;
    let mut scale: u128 = 1;
    for digit in fraction.bytes().take(18) {
        scale *= 10;
        fraction_nanos = fraction_nanos * 10 + u128::from(digit - b'0');
    }
    let fraction_nanos = fraction_nanos * unit / scale;
    whole
        .checked_mul(unit)
        .and_then(|nanos| nanos.checked_add(fraction_nanos))
        .ok_or(Problem::TooLong)
}

/// Formats a duration in the shortest exact form that [`parse_duration`] accepts.
///
/// ```
/// use core::time::Duration;
/// use relent_core::format_duration;
///
/// assert_eq!(format_duration(Duration::from_millis(1500)), "1.5s");
/// assert_eq!(format_duration(Duration::from_secs(300)), "5m");
/// assert_eq!(format_duration(Duration::from_nanos(51_200)), "51.2us");
/// ```
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".to_string();
    }
    // Minutes, hours and days only if they are whole. Otherwise seconds ("90s", not "1m30s"), which
    // are easier to compare.
    for &(name, unit) in &UNITS[..3] {
        if nanos.is_multiple_of(unit) {
            return alloc::format!("{}{name}", nanos / unit);
        }
    }
    let (name, unit) = match nanos {
        1_000_000_000.. => ("s", 1_000_000_000),
        1_000_000.. => ("ms", 1_000_000),
        1_000.. => ("us", 1_000),
        _ => ("ns", 1),
    };
    let (whole, fraction) = (nanos / unit, nanos % unit);
    if fraction == 0 {
        return alloc::format!("{whole}{name}");
    }
    let width = unit.ilog10() as usize;
    let digits = alloc::format!("{fraction:0width$}");
    alloc::format!("{whole}.{}{name}", digits.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn common_notations_of_durations_are_accepted() {
        for (text, nanos) in [
            ("250ms", 250_000_000),
            ("1.5s", 1_500_000_000),
            (".5s", 500_000_000),
            ("2m", 120_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("1h 30m", 5_400_000_000_000),
            (" 5 s ", 5_000_000_000),
            ("51.2us", 51_200),
            ("51.2µs", 51_200),
            ("0", 0),
            ("0s", 0),
            ("0.0000000019s", 1),
            ("1d", 86_400_000_000_000),
        ] {
            assert_eq!(parse(text.trim()), Ok(nanos), "{text}");
        }
    }

    #[test]
    fn invalid_durations_get_a_helpful_error() {
        for (text, word) in [
            ("", "empty"),
            ("5", "no unit"),
            ("-1s", "negative"),
            ("s", "begin with a number"),
            (".s", "begin with a number"),
            ("1.2.3s", "begin with a number"),
            ("5 parsecs", "unknown unit"),
            ("1e3s", "unknown unit"),
            ("NaN", "begin with a number"),
            ("99999999999999999999s", "584 thousand million years"),
            ("18446744073709551616s", "584 thousand million years"),
        ] {
            let error = parse_duration(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
            assert!(error.contains("write it like"), "{error}");
        }
    }

    #[test]
    fn the_longest_duration_round_trips() {
        for duration in [Duration::MAX, Duration::from_secs(u64::MAX)] {
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
    }

    proptest! {
        #[test]
        fn any_text_parses_as_a_duration_or_fails_without_panic(text in ".{0,40}") {
            let _ = parse_duration(&text);
        }

        #[test]
        fn formatting_is_exact(nanos: u64, seconds: u64) {
            let duration = Duration::from_nanos(nanos);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
            let duration = Duration::new(seconds, (nanos % 1_000_000_000) as u32);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
    }
}
