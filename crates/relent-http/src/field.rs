//! Grammars that several header fields share.

use std::fmt;
use std::time::Duration;

use http::{HeaderMap, HeaderName};

pub use crate::http_date::parse as http_date;

/// Error: a field value does not follow its grammar. Readers ignore such a field and note it in the trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the field value does not follow its grammar")
    }
}

impl std::error::Error for Malformed {}

/// The body length according to `Content-Length`; `None` if absent or malformed.
#[must_use]
pub fn content_length(headers: &HeaderMap) -> Option<u64> {
    let length = headers.get(http::header::CONTENT_LENGTH)?;
    length.to_str().ok()?.parse().ok()
}

/// Milliseconds, for [`decimal`].
pub(crate) const MILLIS: u32 = 1_000_000;
/// Seconds, for [`decimal`].
pub(crate) const SECONDS: u32 = 1_000_000_000;

/// The value without optional white space around it (RFC 9110 §5.6.3).
#[must_use]
pub fn trim(value: &[u8]) -> &[u8] {
    let is_text = |byte: &u8| !matches!(byte, b' ' | b'\t');
    let start = value.iter().position(is_text).unwrap_or(value.len());
    let end = value
        .iter()
        .rposition(is_text)
        .map_or(start, |last| last + 1);
    &value[start..end]
}

/// `1*DIGIT`, saturating.
///
/// # Errors
/// [`Malformed`] if it is anything else.
pub fn digits(value: &[u8]) -> Result<u64, Malformed> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(Malformed);
    }
    Ok(value.iter().fold(0, |sum: u64, digit| {
        sum.saturating_mul(10)
            .saturating_add(u64::from(digit - b'0'))
    }))
}

/// `1*DIGIT [ "." 1*DIGIT ]` counted in `nanos_per_unit`, a power of ten; saturating. No sign, no
/// exponent, no names of numbers. Digits below a nanosecond are dropped.
pub(crate) fn decimal(value: &[u8], nanos_per_unit: u32) -> Result<Duration, Malformed> {
    let mut parts = value.splitn(2, |byte| *byte == b'.');
    let whole = digits(parts.next().unwrap_or_default())?;
    let mut nanos = u128::from(whole) * u128::from(nanos_per_unit);
    if let Some(fraction) = parts.next() {
        digits(fraction)?;
        let mut unit = nanos_per_unit;
        for digit in fraction {
            unit /= 10;
            nanos += u128::from(unit) * u128::from(digit - b'0');
        }
    }
    let (seconds, rest) = (nanos / u128::from(SECONDS), nanos % u128::from(SECONDS));
    Ok(u64::try_from(seconds).map_or(Duration::MAX, |seconds| Duration::new(seconds, rest as u32)))
}

/// The delay in whole units, rounded up so that no waiter is early. At most 584 years.
pub(crate) fn rounded_up(delay: Duration, nanos_per_unit: u32) -> u64 {
    let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
    nanos.div_ceil(u64::from(nanos_per_unit))
}

/// A field that may occur only once. Repetitions with the same meaning are accepted, because
/// intermediaries create them; contradictory repetitions are malformed.
pub(crate) fn single<T: PartialEq>(
    headers: &HeaderMap,
    name: &HeaderName,
    parse: impl Fn(&[u8]) -> Result<T, Malformed>,
) -> Result<Option<T>, Malformed> {
    let mut found = None;
    for value in headers.get_all(name) {
        let value = parse(trim(value.as_bytes()))?;
        match &found {
            None => found = Some(value),
            Some(first) if *first == value => {}
            Some(_) => return Err(Malformed),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_optional_white_space_is_trimmed() {
        assert_eq!(trim(b" \t5 \t"), b"5");
        assert_eq!(trim(b"5 6"), b"5 6");
        assert_eq!(trim(b" \t"), b"");
        assert_eq!(trim(b"\x0b5"), b"\x0b5");
    }

    #[test]
    fn a_decimal_has_digits_on_both_sides_of_its_point() {
        assert_eq!(
            decimal(b"1500.5", MILLIS),
            Ok(Duration::from_micros(1_500_500))
        );
        assert_eq!(decimal(b"0.000001", MILLIS), Ok(Duration::from_nanos(1)));
        assert_eq!(
            decimal(b"1.9999999999", SECONDS),
            Ok(Duration::new(1, 999_999_999))
        );
        for malformed in [
            "", ".", ".5", "5.", "1.5.2", "1e3", "-1", "+1", "inf", "NaN", "\u{b2}",
        ] {
            assert_eq!(
                decimal(malformed.as_bytes(), MILLIS),
                Err(Malformed),
                "{malformed}"
            );
        }
    }

    #[test]
    fn a_number_too_large_saturates() {
        assert_eq!(digits(b"99999999999999999999"), Ok(u64::MAX));
        assert_eq!(
            decimal(b"99999999999999999999.9", SECONDS),
            Ok(Duration::new(u64::MAX, 900_000_000)),
        );
        assert!(decimal(&[b'9'; 10_000], MILLIS).is_ok());
    }

    proptest! {
        #[test]
        fn a_number_is_read_as_written(number: u64) {
            prop_assert_eq!(digits(number.to_string().as_bytes()), Ok(number));
            prop_assert_eq!(
                decimal(format!("{number}.25").as_bytes(), MILLIS),
                Ok(Duration::from_millis(number) + Duration::from_micros(250)),
            );
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = (digits(trim(&bytes)), decimal(&bytes, MILLIS), decimal(&bytes, SECONDS));
        }
    }
}
