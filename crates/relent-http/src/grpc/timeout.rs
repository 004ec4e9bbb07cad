//! `grpc-timeout`: the time limit that a caller sets for a call.

use std::time::Duration;

use http::HeaderMap;
#[cfg(all(feature = "tower", feature = "grpc"))]
use http::HeaderValue;

use crate::field::{Malformed, digits, single};
use crate::headers::GRPC_TIMEOUT;

/// The maximum number of digits in the protocol.
const DIGITS: usize = 8;

/// Each unit with its length in nanoseconds, longest last.
const UNITS: [(u8, u64); 6] = [
    (b'n', 1),
    (b'u', 1_000),
    (b'm', 1_000_000),
    (b'S', 1_000_000_000),
    (b'M', 60_000_000_000),
    (b'H', 3_600_000_000_000),
];

/// The timeout of the request; `None` if there is none, if several contradict each other, or if it is unreadable.
/// Rejecting an unreadable one is up to the server.
pub(crate) fn read(headers: &HeaderMap) -> Option<Duration> {
    let time = |value: &[u8]| parse(value).ok_or(Malformed);
    single(headers, &GRPC_TIMEOUT, time).ok().flatten()
}

fn parse(value: &[u8]) -> Option<Duration> {
    let (unit, number) = value.split_last()?;
    if number.len() > DIGITS {
        return None;
    }
    let number = digits(number).ok()?;
    let (_, nanos) = UNITS.iter().find(|(letter, _)| letter == unit)?;
    let nanos = u128::from(number) * u128::from(*nanos);
    // At most 11 416 years.
    let seconds = u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX);
    Some(Duration::new(seconds, (nanos % 1_000_000_000) as u32))
}

/// Lowers the timeout of a request to the time that remains. A request with a shorter timeout or none stays
/// as it is.
#[cfg(all(feature = "tower", feature = "grpc"))]
pub(crate) fn lower(headers: &mut HeaderMap, remaining: Duration) {
    if read(headers).is_some_and(|given| given > remaining) {
        headers.insert(GRPC_TIMEOUT, write(remaining));
    }
}

/// Formats the time, rounded down, in the finest unit that fits in 8 digits.
#[cfg(all(feature = "tower", feature = "grpc"))]
fn write(time: Duration) -> HeaderValue {
    let nanos = time.as_nanos();
    let fits =
        |nanos_per_unit: u64| nanos / u128::from(nanos_per_unit) < 10_u128.pow(DIGITS as u32);
    let (unit, nanos_per_unit) = UNITS
        .into_iter()
        .find(|(_, nanos_per_unit)| fits(*nanos_per_unit))
        .unwrap_or(UNITS[UNITS.len() - 1]);
    let number = (nanos / u128::from(nanos_per_unit)).min(99_999_999);
    let text = format!("{number}{}", char::from(unit));
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("0n"))
}

#[cfg(test)]
mod tests {
    #[cfg(all(feature = "tower", feature = "grpc"))]
    use proptest::prelude::*;

    use super::*;

    fn headers(text: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(GRPC_TIMEOUT, text.parse().unwrap());
        headers
    }

    #[test]
    fn a_timeout_is_up_to_eight_digits_and_a_unit() {
        for (text, nanos) in [
            ("1n", 1),
            ("20u", 20_000),
            ("300m", 300_000_000),
            ("5S", 5_000_000_000),
            ("2M", 120_000_000_000),
            ("1H", 3_600_000_000_000),
        ] {
            assert_eq!(read(&headers(text)), Some(Duration::from_nanos(nanos)));
        }
        for unreadable in ["", "5", "S", "5s", "123456789S", "-1S", "1.5S"] {
            assert_eq!(read(&headers(unreadable)), None, "{unreadable}");
        }
        assert_eq!(read(&HeaderMap::new()), None);
        let mut twice = headers("5S");
        twice.append(GRPC_TIMEOUT, "5000m".parse().unwrap());
        assert_eq!(read(&twice), Some(Duration::from_secs(5)));
        twice.append(GRPC_TIMEOUT, "1H".parse().unwrap());
        assert_eq!(read(&twice), None);
    }

    #[cfg(all(feature = "tower", feature = "grpc"))]
    #[test]
    fn only_the_rest_of_a_grpc_timeout_is_sent() {
        let mut request = headers("5S");
        lower(&mut request, Duration::from_secs(9));
        assert_eq!(request[GRPC_TIMEOUT], "5S");
        lower(&mut request, Duration::from_millis(1_500));
        assert_eq!(request[GRPC_TIMEOUT], "1500000u");
        let mut without = HeaderMap::new();
        lower(&mut without, Duration::from_secs(9));
        assert!(without.is_empty());
    }

    #[cfg(all(feature = "tower", feature = "grpc"))]
    proptest! {
        #[test]
        fn a_written_grpc_timeout_is_never_longer(nanos in 0..u64::MAX) {
            let time = Duration::from_nanos(nanos);
            let mut headers = HeaderMap::new();
            headers.insert(GRPC_TIMEOUT, write(time));
            let read = read(&headers).unwrap();
            prop_assert!(read <= time);
            // At a change of unit, eight digits lose at most a ten-millionth, within minutes.
            prop_assert!(time - read <= time / 1000 + Duration::from_nanos(1));
        }
    }
}
