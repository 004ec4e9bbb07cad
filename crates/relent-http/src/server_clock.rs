//! The current time by the clock of the responding server.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use relent_core::ServerTime;

use crate::field::{Malformed, digits, single, trim};
use crate::headers::{AGE, DATE};
use crate::http_date;

/// The server's own time when the response arrived: `Date` + `Age`. `now`, the local time, is used only
/// if `Date` is missing or malformed. `Age` is not added to it: the `Age` of a response lies in its past.
pub(crate) fn time(headers: &HeaderMap, now: SystemTime) -> ServerTime {
    match single(headers, &DATE, |value| http_date::parse(value, now)) {
        Ok(Some(date)) => ServerTime::told(since_1970(date), age(headers)),
        Ok(None) | Err(Malformed) => ServerTime::local(since_1970(now)),
    }
}

/// The seconds that a response has spent in caches. Of a list the first member counts; a malformed value is
/// ignored (RFC 9111 §5.1). Saturates at 2³¹ s (RFC 9111 §1.2.2).
fn age(headers: &HeaderMap) -> u64 {
    let value = headers
        .get(AGE)
        .map_or(&b""[..], http::HeaderValue::as_bytes);
    let first = value.split(|byte| *byte == b',').next().unwrap_or_default();
    digits(trim(first)).unwrap_or(0).min(1 << 31)
}

/// How long to wait for `instant` if it is now `time`.
pub(crate) fn until(instant: SystemTime, time: ServerTime) -> Duration {
    time.until(since_1970(instant))
}

/// Time since 1970; zero for an earlier time.
fn since_1970(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: &str = "Wed, 21 Oct 2026 12:00:00 GMT";

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn noon() -> SystemTime {
        at(1_792_584_000)
    }

    /// Converts to a type that can be compared.
    fn is(time: SystemTime) -> ServerTime {
        ServerTime::local(since_1970(time))
    }

    fn time_of(fields: &[(http::HeaderName, &str)]) -> ServerTime {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name, value.parse().unwrap());
        }
        time(&headers, at(7))
    }

    #[test]
    fn date_plus_age_is_the_time_of_the_server() {
        assert_eq!(time_of(&[(DATE, NOON)]), is(noon()));
        assert_eq!(
            time_of(&[(DATE, NOON), (AGE, "90")]),
            is(noon() + Duration::from_secs(90))
        );
        assert_eq!(time_of(&[(DATE, NOON), (DATE, NOON)]), is(noon()));
    }

    #[test]
    fn the_local_clock_is_for_a_missing_or_malformed_date_only() {
        assert_eq!(time_of(&[]), is(at(7)));
        assert_eq!(time_of(&[(AGE, "90")]), is(at(7)));
        assert_eq!(
            time_of(&[(DATE, "Thu, 21 Oct 2026 12:00:00 GMT")]),
            is(at(7))
        );
        assert_eq!(
            time_of(&[(DATE, NOON), (DATE, "Wed, 21 Oct 2026 12:00:01 GMT")]),
            is(at(7))
        );
    }

    #[test]
    fn the_first_age_counts_and_a_malformed_one_is_ignored() {
        assert_eq!(
            time_of(&[(DATE, NOON), (AGE, " 5 , 9")]),
            is(noon() + Duration::from_secs(5))
        );
        assert_eq!(
            time_of(&[(DATE, NOON), (AGE, "5"), (AGE, "9")]),
            is(noon() + Duration::from_secs(5))
        );
        for malformed in ["", "-5", "soon", "1.5"] {
            assert_eq!(
                time_of(&[(DATE, NOON), (AGE, malformed)]),
                is(noon()),
                "{malformed}"
            );
        }
    }

    #[test]
    fn an_age_too_large_saturates() {
        let latest = "Fri, 31 Dec 9999 23:59:59 GMT";
        assert_eq!(
            time_of(&[(DATE, latest), (AGE, "99999999999999999999")]),
            is(at(253_402_300_799 + (1 << 31))),
        );
    }

    #[test]
    fn a_wait_for_an_instant_covers_the_whole_seconds_of_both() {
        assert_eq!(until(at(10), is(at(7))), Duration::from_secs(4));
        assert_eq!(until(at(7), is(at(7))), Duration::from_secs(1));
        assert_eq!(
            until(at(7), is(at(7) + Duration::from_millis(300))),
            Duration::from_millis(700)
        );
        assert_eq!(until(at(7), is(at(8))), Duration::ZERO);
        assert_eq!(until(at(7), is(at(700))), Duration::ZERO);
    }
}
