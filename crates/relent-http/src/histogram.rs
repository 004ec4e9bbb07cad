//! A histogram of attempts per call as a header field. It lets a server decide whether retries cause its load.
//!
//! ```text
//! relent-histogram = count *7( "," count )   ; white space around a comma is allowed
//! count            = 1*DIGIT                 ; saturates at 4294967295
//! ```
//!
//! The counts are those of [`Histogram::counts`](relent_core::Histogram::counts): of the calls that
//! took 1, 2, …, 7, and 8 or more attempts. Zeros at the end are left out, so most clients send a
//! single number, and none sends more than 94 bytes. `97, 2, 0, 1` are a hundred calls with one retry
//! in two of them and three retries in one.
//!
//! A client can send any numbers: use them only to tell this client not to retry.

use http::HeaderValue;
use relent_core::BUCKETS;

pub use crate::field::Malformed;
use crate::field::{digits, trim};

/// Reads a histogram field.
///
/// # Errors
/// [`Malformed`] if a count is missing or no number, or there are more than eight.
///
/// ```
/// use relent_http::histogram;
///
/// assert_eq!(histogram::parse(b"97, 2, 0, 1")?, [97, 2, 0, 1, 0, 0, 0, 0]);
/// assert!(histogram::parse(b"97, many").is_err());
/// # Ok::<(), histogram::Malformed>(())
/// ```
pub fn parse(value: &[u8]) -> Result<[u32; BUCKETS], Malformed> {
    let mut counts = [0; BUCKETS];
    let mut buckets = counts.iter_mut();
    for count in value.split(|byte| *byte == b',') {
        let bucket = buckets.next().ok_or(Malformed)?;
        *bucket = u32::try_from(digits(trim(count))?).unwrap_or(u32::MAX);
    }
    Ok(counts)
}

/// Formats a histogram field; `None` if every count is zero.
///
/// ```
/// use relent_http::histogram;
///
/// let value = histogram::format(&[97, 2, 0, 1, 0, 0, 0, 0]);
/// assert_eq!(value.as_ref().map(|value| value.as_bytes()), Some(&b"97, 2, 0, 1"[..]));
/// assert_eq!(histogram::format(&[0; 8]), None);
/// ```
#[must_use]
pub fn format(counts: &[u32; BUCKETS]) -> Option<HeaderValue> {
    let last = counts.iter().rposition(|count| *count > 0)?;
    let counts: Vec<String> = counts[..=last].iter().map(u32::to_string).collect();
    HeaderValue::try_from(counts.join(", ")).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_histogram_has_one_to_eight_counts() {
        assert_eq!(parse(b"5"), Ok([5, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(parse(b" 1,2 ,\t3,4,5,6,7,8 "), Ok([1, 2, 3, 4, 5, 6, 7, 8]));
        for malformed in [
            "",
            " ",
            ",",
            "1,",
            ",1",
            "1,,2",
            "-1",
            "+1",
            "1.5",
            "1;2",
            "1 2",
            "x",
            "\u{b2}",
            "1,2,3,4,5,6,7,8,9",
            "1,2,3,4,5,6,7,8,",
        ] {
            assert_eq!(parse(malformed.as_bytes()), Err(Malformed), "{malformed:?}");
        }
    }

    #[test]
    fn a_count_too_large_saturates() {
        assert_eq!(
            parse(b"4294967296,99999999999999999999").map(|counts| counts[..2].to_vec()),
            Ok(vec![u32::MAX; 2])
        );
        assert_eq!(
            parse(&[b'9'; 100_000]).map(|counts| counts[0]),
            Ok(u32::MAX)
        );
    }

    #[test]
    fn the_longest_field_has_94_bytes() {
        let longest = format(&[u32::MAX; BUCKETS]).unwrap();
        assert_eq!(longest.len(), 94);
    }

    proptest! {
        #[test]
        fn a_written_histogram_is_read_back(counts: [u32; BUCKETS]) {
            let parsed = format(&counts).map(|value| parse(value.as_bytes()));
            prop_assert_eq!(parsed, Some(Ok(counts)));
        }

        #[test]
        fn small_counts_and_zeros_are_read_too(counts in prop::array::uniform8(0..3_u32)) {
            let parsed = format(&counts).map_or(Ok([0; BUCKETS]), |value| parse(value.as_bytes()));
            prop_assert_eq!(parsed, Ok(counts));
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }
    }
}
