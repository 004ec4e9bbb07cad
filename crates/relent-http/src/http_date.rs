//! HTTP-date in its three forms (RFC 9110 §5.6.7).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::field::Malformed;

const WEEKDAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

/// The mean Gregorian year; close enough to determine a century.
const SECONDS_PER_YEAR: u64 = 31_556_952;

/// Reads an IMF-fixdate, an RFC 850 date or an asctime date.
///
/// `now` serves only to find the century of an RFC 850 date. A wrong weekday, a day that the month
/// does not have, another time zone than GMT, other capitals and dates before 1970 are malformed.
/// The leap second 23:59:60 is the second after 23:59:59.
///
/// # Errors
/// [`Malformed`] if it is none of the three.
pub fn parse(value: &[u8], now: SystemTime) -> Result<SystemTime, Malformed> {
    let text = std::str::from_utf8(value).map_err(|_| Malformed)?;
    if text.trim() != text {
        return Err(Malformed);
    }
    let leap = text.contains(" 23:59:60");
    let in_grammar = if leap {
        &text.replacen(":60", ":59", 1)
    } else {
        text
    };
    let with_century = with_century(in_grammar, now);
    let date = httpdate::parse_http_date(with_century.as_deref().unwrap_or(in_grammar))
        .map_err(|_| Malformed)?;
    date.checked_add(Duration::from_secs(u64::from(leap)))
        .ok_or(Malformed)
}

/// Converts an RFC 850 date to IMF-fixdate; `None` if it has another form.
///
/// A year that appears to be more than 50 years in the future is the latest year in the past with
/// the same last two digits (RFC 9110 §5.6.7): the years are counted, not the seconds.
fn with_century(text: &str, now: SystemTime) -> Option<String> {
    let (weekday, rest) = text.split_once(", ")?;
    if !WEEKDAYS.contains(&weekday) {
        return None;
    }
    let (date, time) = rest.split_once(' ')?;
    let (day_and_month, year) = date.rsplit_once('-')?;
    let (day, month) = day_and_month.split_once('-')?;
    let digits = year.as_bytes();
    if digits.len() != 2 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let last_two = year.parse::<u64>().ok()?;
    let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    // The century ends 50 years from now.
    let end = 1970 + since_epoch / SECONDS_PER_YEAR + 50;
    let year = end - (end - last_two) % 100;
    Some(format!("{}, {day} {month} {year:04} {time}", &weekday[..3]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sunday, 6 November 1994, 08:49:37: the example of RFC 9110.
    const EXAMPLE: u64 = 784_111_777;
    /// Wednesday, 21 October 2026, 00:00:00.
    const NOW: u64 = 1_792_540_800;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn read(text: &str) -> Result<u64, Malformed> {
        parse(text.as_bytes(), at(NOW))
            .map(|date| date.duration_since(UNIX_EPOCH).unwrap().as_secs())
    }

    #[test]
    fn the_three_date_forms_mean_the_same() {
        assert_eq!(read("Sun, 06 Nov 1994 08:49:37 GMT"), Ok(EXAMPLE));
        assert_eq!(read("Sunday, 06-Nov-94 08:49:37 GMT"), Ok(EXAMPLE));
        assert_eq!(read("Sun Nov  6 08:49:37 1994"), Ok(EXAMPLE));
    }

    #[test]
    fn a_two_digit_year_lies_at_most_50_years_ahead() {
        // 2076-11-06 is a Friday, 1977-11-06 a Sunday.
        assert_eq!(read("Friday, 06-Nov-76 08:49:37 GMT"), Ok(3_371_878_177));
        assert_eq!(read("Sunday, 06-Nov-77 08:49:37 GMT"), Ok(247_654_177));
        assert_eq!(read("Wednesday, 21-Oct-26 00:00:00 GMT"), Ok(NOW));
        // The same text in 2090 means 2126, a Monday.
        let in_2090 = at(3_800_000_000);
        assert_eq!(
            parse(b"Monday, 21-Oct-26 00:00:00 GMT", in_2090),
            Ok(at(4_948_214_400)),
        );
        assert_eq!(
            parse(b"Wednesday, 21-Oct-26 00:00:00 GMT", in_2090),
            Err(Malformed)
        );
    }

    #[test]
    fn a_date_that_does_not_exist_is_malformed() {
        for malformed in [
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "Monday, 06-Nov-94 08:49:37 GMT",
            "Mon Nov  6 08:49:37 1994",
            "Wed, 30 Feb 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:00:00 GMT",
            "Sun, 06 Nov 1994 08:49:60 GMT",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun, 06 Nov 1994 08:49:37 +0000",
            "Sun, 06 Nov 1994 08:49:37",
            "sun, 06 nov 1994 08:49:37 gmt",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 94 08:49:37 GMT",
            "Sunday, 06-Nov-1994 08:49:37 GMT",
            "Sunday, 06-Nov-+4 08:49:37 GMT",
            "Wed, 31 Dec 1969 23:59:59 GMT",
            "\u{b}Sun, 06 Nov 1994 08:49:37 GMT",
            "1994-11-06T08:49:37Z",
        ] {
            assert_eq!(read(malformed), Err(Malformed), "{malformed}");
        }
    }

    #[test]
    fn a_leap_second_is_the_second_after_the_last() {
        let midnight = read("Sun, 01 Jan 2017 00:00:00 GMT");
        assert_eq!(midnight, Ok(1_483_228_800));
        assert_eq!(read("Sat, 31 Dec 2016 23:59:60 GMT"), midnight);
        assert_eq!(read("Saturday, 31-Dec-16 23:59:60 GMT"), midnight);
        assert_eq!(read("Sat Dec 31 23:59:60 2016"), midnight);
    }

    proptest! {
        #[test]
        fn every_date_is_read_back(seconds in 0..253_402_300_800_u64) {
            let text = httpdate::fmt_http_date(at(seconds));
            prop_assert_eq!(read(&text), Ok(seconds));
        }

        #[test]
        fn no_text_panics(
            text in "[A-Z][a-z]{2,8},? ?[0-9]{0,2}[ -]?[A-Za-z]{3}[ -]?[0-9]{0,4} [0-9:]{0,8} ?(GMT)?",
            seconds: u64,
        ) {
            let now = UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(UNIX_EPOCH);
            let _ = parse(text.as_bytes(), now);
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = parse(&bytes, UNIX_EPOCH);
        }
    }
}
