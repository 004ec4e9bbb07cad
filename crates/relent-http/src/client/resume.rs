//! Asking for the rest of a response that was cut short (RFC 9110 §13.1.5 and §14).
//!
//! Bytes of two representations must never be mixed, so a response is resumed only if a strong
//! entity tag names its representation, and the answer is believed only if it repeats that tag and
//! tells the range that was asked for.

use http::header::{
    ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, IF_RANGE, RANGE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};

use crate::field::{digits, trim};

/// A representation that has begun to arrive, and of which the rest can be asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Representation {
    etag: HeaderValue,
    /// The length in bytes, if it was told.
    total: Option<u64>,
}

impl Representation {
    /// The representation in `head`, the response to a request without a range; `None` if it cannot
    /// be resumed.
    ///
    /// Resumed is a plain 200 to a GET, with a strong entity tag, without `Content-Encoding` (many
    /// servers encode while they send and leave the tag as it was), and without
    /// `Accept-Ranges: none`.
    pub(crate) fn of<B>(method: &Method, request: &HeaderMap, head: &Response<B>) -> Option<Self> {
        let headers = head.headers();
        let own_range = request.contains_key(RANGE) || request.contains_key(IF_RANGE);
        let refuses = headers
            .get_all(ACCEPT_RANGES)
            .iter()
            .any(|value| trim(value.as_bytes()).eq_ignore_ascii_case(b"none"));
        if method != Method::GET
            || own_range
            || head.status() != StatusCode::OK
            || headers.contains_key(CONTENT_ENCODING)
            || refuses
        {
            return None;
        }
        Some(Self {
            etag: strong_etag(headers)?.clone(),
            total: only(headers, &CONTENT_LENGTH).and_then(|value| number(trim(value.as_bytes()))),
        })
    }

    /// Turns a request into one for what follows the first `from` bytes.
    pub(crate) fn ask_for_rest(&self, from: u64, request: &mut HeaderMap) {
        // Digits and letters of ASCII: it always is a header value.
        if let Ok(range) = HeaderValue::try_from(format!("bytes={from}-")) {
            request.insert(RANGE, range);
            request.insert(IF_RANGE, self.etag.clone());
        }
    }

    /// Where the bytes of `head` end, exclusively, if it is the rest of this representation from
    /// `from` on. Learns the total if it was not known.
    pub(crate) fn continues<B>(&mut self, from: u64, head: &Response<B>) -> Option<u64> {
        let headers = head.headers();
        if head.status() != StatusCode::PARTIAL_CONTENT
            || headers.contains_key(CONTENT_ENCODING)
            || strong_etag(headers) != Some(&self.etag)
        {
            return None;
        }
        let range = content_range(only(headers, &CONTENT_RANGE)?.as_bytes())?;
        let same_total = self.total.is_none_or(|total| total == range.total);
        if range.first != from || !same_total {
            return None;
        }
        self.total = Some(range.total);
        Some(range.last + 1)
    }

    /// Whether `received` bytes are all of it; so they are if the length was never told.
    pub(crate) fn is_complete(&self, received: u64) -> bool {
        self.total.is_none_or(|total| total == received)
    }
}

/// `"…"`, not `W/"…"`, and only one of them.
fn strong_etag(headers: &HeaderMap) -> Option<&HeaderValue> {
    let value = only(headers, &ETAG)?;
    let tag = value.as_bytes().strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let is_tag = tag
        .iter()
        .all(|byte| matches!(byte, 0x21 | 0x23..=0x7e | 0x80..));
    is_tag.then_some(value)
}

/// The value of a field that is there once.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

/// A satisfied range of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ContentRange {
    first: u64,
    /// Inclusive, and below `total`.
    last: u64,
    total: u64,
}

/// `bytes 0-499/1234`. An unknown total (`*`) is not accepted: nothing would tell when the
/// representation is complete, or that it is the same one.
fn content_range(value: &[u8]) -> Option<ContentRange> {
    let value = trim(value);
    let unit = value.get(..6)?;
    if !unit.eq_ignore_ascii_case(b"bytes ") {
        return None;
    }
    let (range, total) = split(trim(&value[6..]), b'/')?;
    let (first, last) = split(range, b'-')?;
    let (first, last, total) = (number(first)?, number(last)?, number(total)?);
    (first <= last && last < total).then_some(ContentRange { first, last, total })
}

fn split(value: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let index = value.iter().position(|byte| *byte == at)?;
    Some((&value[..index], &value[index + 1..]))
}

/// Digits that fit; one that saturates is no length of anything.
fn number(value: &[u8]) -> Option<u64> {
    digits(value).ok().filter(|number| *number != u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TAG: (&str, &str) = ("etag", "\"v1\"");
    const LENGTH: (&str, &str) = ("content-length", "100");

    fn head(status: u16, fields: &[(&str, &str)]) -> Response<()> {
        let mut response = Response::builder().status(status);
        for (name, value) in fields {
            response = response.header(*name, *value);
        }
        response.body(()).unwrap()
    }

    fn of(fields: &[(&str, &str)]) -> Option<Representation> {
        Representation::of(&Method::GET, &HeaderMap::new(), &head(200, fields))
    }

    fn begun() -> Representation {
        of(&[TAG, LENGTH]).unwrap()
    }

    #[test]
    fn a_plain_200_with_a_strong_etag_can_be_resumed() {
        assert!(of(&[TAG, LENGTH]).is_some());
        assert!(of(&[TAG]).is_some(), "the length may be unknown");
        assert!(of(&[TAG, ("accept-ranges", "bytes")]).is_some());
    }

    #[test]
    fn anything_else_is_not() {
        assert_eq!(of(&[LENGTH]), None);
        for tag in ["W/\"v1\"", "v1", "\"v1", "\"", "\"a\"b\"", "\"a b\"", ""] {
            assert_eq!(of(&[("etag", tag), LENGTH]), None, "{tag}");
        }
        assert_eq!(of(&[TAG, ("etag", "\"v2\"")]), None);
        assert_eq!(of(&[TAG, ("content-encoding", "gzip")]), None);
        assert_eq!(of(&[TAG, ("accept-ranges", "none")]), None);
        let none = HeaderMap::new();
        for status in [201, 203, 206, 404] {
            let head = head(status, &[TAG, LENGTH]);
            assert_eq!(Representation::of(&Method::GET, &none, &head), None);
        }
        assert_eq!(
            Representation::of(&Method::POST, &none, &head(200, &[TAG, LENGTH])),
            None
        );
        let ranged: HeaderMap = [(RANGE, HeaderValue::from_static("bytes=5-"))]
            .into_iter()
            .collect();
        assert_eq!(
            Representation::of(&Method::GET, &ranged, &head(200, &[TAG, LENGTH])),
            None
        );
    }

    #[test]
    fn the_rest_is_asked_for_under_the_tag() {
        let mut request = HeaderMap::new();
        begun().ask_for_rest(40, &mut request);
        assert_eq!(request[RANGE], "bytes=40-");
        assert_eq!(request[IF_RANGE], "\"v1\"");
    }

    #[test]
    fn an_answer_continues_only_with_the_same_tag_start_and_total() {
        let range = |value| ("content-range", value);
        let after = |fields: &[_]| begun().continues(40, &head(206, fields));
        assert_eq!(after(&[TAG, range("bytes 40-99/100")]), Some(100));
        assert_eq!(
            after(&[TAG, range("bytes 40-59/100")]),
            Some(60),
            "a part of the rest continues too"
        );
        for wrong in [
            "bytes 41-99/100",
            "bytes 0-99/100",
            "bytes 40-99/101",
            "bytes 40-99/*",
            "bytes 40-100/100",
            "bytes 40-39/100",
            "bytes */100",
            "items 40-99/100",
            "bytes 40-/100",
            "bytes=40-99/100",
            "bytes +40-99/100",
            "",
        ] {
            assert_eq!(after(&[TAG, range(wrong)]), None, "{wrong}");
        }
        let right = range("bytes 40-99/100");
        assert_eq!(after(&[right]), None, "no tag");
        assert_eq!(after(&[("etag", "\"v2\""), right]), None);
        assert_eq!(after(&[("etag", "W/\"v1\""), right]), None);
        assert_eq!(after(&[TAG, right, right]), None, "two ranges");
        assert_eq!(after(&[TAG]), None, "multipart/byteranges");
        assert_eq!(after(&[TAG, right, ("content-encoding", "gzip")]), None);
        assert_eq!(begun().continues(40, &head(200, &[TAG, right])), None);
    }

    #[test]
    fn an_unknown_total_is_learned() {
        let mut begun = of(&[TAG]).unwrap();
        let part = |range| head(206, &[TAG, ("content-range", range)]);
        assert_eq!(begun.continues(40, &part("bytes 40-59/100")), Some(60));
        assert!(!begun.is_complete(60));
        assert_eq!(begun.continues(60, &part("bytes 60-99/200")), None);
        assert_eq!(begun.continues(60, &part("bytes 60-99/100")), Some(100));
        assert!(begun.is_complete(100));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(value: Vec<u8>) {
            let _ = content_range(&value);
        }

        #[test]
        fn every_satisfied_range_is_read_back(first in 0..1_u64 << 40, more in 0..1_u64 << 40, rest in 1..1_u64 << 40) {
            let (last, total) = (first + more, first + more + rest);
            let value = format!("bytes {first}-{last}/{total}");
            prop_assert_eq!(content_range(value.as_bytes()), Some(ContentRange { first, last, total }));
        }
    }
}
