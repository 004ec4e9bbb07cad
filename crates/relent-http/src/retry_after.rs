//! `Retry-After` (RFC 9110 §10.2.3): a number of seconds, or a date.
//!
//! | value | read as |
//! |---|---|
//! | `5`, `005`, ` 5 ` | 5 s; optional white space is trimmed |
//! | `99999999999999999999` | the longest time that can be stored; it saturates |
//! | `Sun, 06 Nov 1994 08:49:37 GMT` | that date |
//! | `Sunday, 06-Nov-94 08:49:37 GMT` | that date, in the century that ends 50 years from now |
//! | `Sun Nov  6 08:49:37 1994` | that date |
//! | a date that is past | no delay |
//! | empty, `+5`, `-1`, `5.0`, `5s`, `1e300`, `inf`, `²` | malformed: not `1*DIGIT` |
//! | `Mon, 06 Nov 1994 08:49:37 GMT` | malformed: it was a Sunday |
//! | `5, 5` | malformed: a list is not in the grammar |
//! | two fields that mean the same | that value, since intermediaries repeat fields |
//! | two fields that differ | malformed: neither can be trusted |
//!
//! A malformed field is ignored, and noted in the trace.
//!
//! [`set`] and [`set_millis`] write it, for a server: whole seconds, or whole milliseconds in a separate
//! field. They round up and never write 0, so that no client comes back early or immediately.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue};

use crate::field::{self, MILLIS, SECONDS, digits, rounded_up, single, trim};
use crate::headers::{RETRY_AFTER, RETRY_AFTER_MS};
use crate::{http_date, server_clock};

pub use field::Malformed;

/// The value of a `Retry-After` field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetryAfter {
    /// Wait this long from the moment the response arrived.
    Delay(Duration),
    /// Come back at this instant of the server's clock.
    At(SystemTime),
}

/// Reads the value of one `Retry-After` field.
///
/// `now` serves only to find the century of an RFC 850 date; see the table of
/// [this module](self) for what is accepted.
///
/// # Errors
/// [`Malformed`] for everything else.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use relent_http::retry_after::{Malformed, RetryAfter, parse};
///
/// let now = SystemTime::now();
/// assert_eq!(parse(b"120", now), Ok(RetryAfter::Delay(Duration::from_secs(120))));
/// assert_eq!(parse(b"+5", now), Err(Malformed));
/// ```
pub fn parse(value: &[u8], now: SystemTime) -> Result<RetryAfter, Malformed> {
    let value = trim(value);
    match digits(value) {
        Ok(seconds) => Ok(RetryAfter::Delay(Duration::from_secs(seconds))),
        Err(Malformed) => http_date::parse(value, now).map(RetryAfter::At),
    }
}

/// The delay that the response asks for; `None` if it asks for none.
pub(crate) fn delay(headers: &HeaderMap, now: SystemTime) -> Result<Option<Duration>, Malformed> {
    let retry_after = single(headers, &RETRY_AFTER, |value| parse(value, now))?;
    Ok(retry_after.map(|retry_after| match retry_after {
        RetryAfter::Delay(delay) => delay,
        RetryAfter::At(date) => server_clock::until(date, server_clock::time(headers, now)),
    }))
}

/// Writes `Retry-After` in whole seconds: rounded up, at least 1, at most 584 years. An existing field is
/// replaced.
///
/// ```
/// use std::time::Duration;
/// use relent_http::retry_after;
///
/// let mut headers = http::HeaderMap::new();
/// retry_after::set(&mut headers, Duration::from_millis(1001));
/// assert_eq!(headers["retry-after"], "2");
/// ```
pub fn set(headers: &mut HeaderMap, delay: Duration) {
    let seconds = rounded_up(delay, SECONDS).max(1);
    headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
}

/// Writes `retry-after-ms` in whole milliseconds: rounded up, at least 1, at most 584 years. An existing
/// field is replaced. It outranks `Retry-After`, which belongs beside it for clients that do not know it.
///
/// ```
/// use std::time::Duration;
/// use relent_http::retry_after;
///
/// let mut headers = http::HeaderMap::new();
/// retry_after::set_millis(&mut headers, Duration::from_nanos(1));
/// assert_eq!(headers["retry-after-ms"], "1");
/// ```
pub fn set_millis(headers: &mut HeaderMap, delay: Duration) {
    let millis = rounded_up(delay, MILLIS).max(1);
    headers.insert(RETRY_AFTER_MS, HeaderValue::from(millis));
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use proptest::prelude::*;

    use super::*;
    use crate::headers::{AGE, DATE};

    fn seconds(seconds: u64) -> Result<RetryAfter, Malformed> {
        Ok(RetryAfter::Delay(Duration::from_secs(seconds)))
    }

    fn read(value: &str) -> Result<RetryAfter, Malformed> {
        parse(value.as_bytes(), UNIX_EPOCH)
    }

    #[test]
    fn seconds_are_digits_and_nothing_else() {
        assert_eq!(read("5"), seconds(5));
        assert_eq!(read("0"), seconds(0));
        assert_eq!(read("005"), seconds(5));
        assert_eq!(read(" \t5 "), seconds(5));
        for malformed in [
            "", " ", "+5", "-1", "-0", "5.0", "5,0", "5, 5", "5 5", "5s", "0x5", "1e300", "inf",
            "NaN", "soon", "²", "٥", "\u{a0}5",
        ] {
            assert_eq!(read(malformed), Err(Malformed), "{malformed}");
        }
    }

    #[test]
    fn twenty_digits_saturate() {
        assert_eq!(read("18446744073709551615"), seconds(u64::MAX));
        assert_eq!(read("18446744073709551616"), seconds(u64::MAX));
        assert_eq!(read("99999999999999999999"), seconds(u64::MAX));
        assert_eq!(read("00000000000000000005"), seconds(5));
    }

    #[test]
    fn a_date_in_any_form_is_an_instant() {
        let at = Ok(RetryAfter::At(
            UNIX_EPOCH + Duration::from_secs(784_111_777),
        ));
        assert_eq!(read(" Sun, 06 Nov 1994 08:49:37 GMT "), at);
        assert_eq!(read("Sunday, 06-Nov-94 08:49:37 GMT"), at);
        assert_eq!(read("Sun Nov  6 08:49:37 1994"), at);
        assert_eq!(read("Mon, 06 Nov 1994 08:49:37 GMT"), Err(Malformed));
    }

    /// The delay that a response asks for; the client's clock shows 2000-01-01T00:00:00Z.
    fn delay_of(fields: &[(http::HeaderName, &str)]) -> Result<Option<u64>, Malformed> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name, value.parse().unwrap());
        }
        let now = UNIX_EPOCH + Duration::from_secs(946_684_800);
        delay(&headers, now).map(|delay| delay.map(|delay| delay.as_secs()))
    }

    #[test]
    fn a_date_counts_from_the_servers_own_clock() {
        const DATED: (http::HeaderName, &str) = (DATE, "Wed, 21 Oct 2026 12:00:00 GMT");
        let in_30_seconds = (RETRY_AFTER, "Wed, 21 Oct 2026 12:00:30 GMT");
        assert_eq!(delay_of(&[DATED, in_30_seconds.clone()]), Ok(Some(31)));
        assert_eq!(
            delay_of(&[DATED, in_30_seconds.clone(), (AGE, "10")]),
            Ok(Some(21))
        );
        assert_eq!(
            delay_of(&[DATED, in_30_seconds.clone(), (AGE, "99")]),
            Ok(Some(0))
        );
        assert_eq!(delay_of(&[DATED, DATED, in_30_seconds]), Ok(Some(31)));
        let past = (RETRY_AFTER, "Wed, 21 Oct 2026 11:59:00 GMT");
        assert_eq!(delay_of(&[DATED, past]), Ok(Some(0)));
        // Seconds count from the arrival of the response, whatever its age.
        assert_eq!(
            delay_of(&[DATED, (AGE, "10"), (RETRY_AFTER, "30")]),
            Ok(Some(30))
        );
    }

    #[test]
    fn a_date_counts_from_the_local_clock_only_without_a_date_field() {
        let in_30_seconds = (RETRY_AFTER, "Sat, 01 Jan 2000 00:00:30 GMT");
        assert_eq!(
            delay_of(&[(DATE, "today"), in_30_seconds.clone()]),
            Ok(Some(31))
        );
        assert_eq!(delay_of(&[in_30_seconds]), Ok(Some(31)));
        assert_eq!(
            delay_of(&[(RETRY_AFTER, "Fri, 31 Dec 1999 23:59:59 GMT")]),
            Ok(Some(0))
        );
    }

    #[test]
    fn duplicates_that_agree_are_one_and_others_are_ignored() {
        assert_eq!(delay_of(&[]), Ok(None));
        assert_eq!(
            delay_of(&[(RETRY_AFTER, "5"), (RETRY_AFTER, "5")]),
            Ok(Some(5))
        );
        assert_eq!(
            delay_of(&[(RETRY_AFTER, "5"), (RETRY_AFTER, " 05")]),
            Ok(Some(5))
        );
        assert_eq!(
            delay_of(&[(RETRY_AFTER, "5"), (RETRY_AFTER, "6")]),
            Err(Malformed)
        );
        assert_eq!(
            delay_of(&[(RETRY_AFTER, "5"), (RETRY_AFTER, "soon")]),
            Err(Malformed)
        );
        assert_eq!(
            delay_of(&[(RETRY_AFTER, "soon"), (RETRY_AFTER, "5")]),
            Err(Malformed)
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, seconds: u32) {
            let _ = parse(&bytes, UNIX_EPOCH + Duration::from_secs(seconds.into()));
        }

        #[test]
        fn every_number_of_seconds_is_read_back(number: u64) {
            prop_assert_eq!(read(&number.to_string()), seconds(number));
        }
    }
}
