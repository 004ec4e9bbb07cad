//! What names a representation, so that the rest of it can be asked for (RFC 9110 §8.8).
//!
//! Bytes of two representations must never be mixed. So a response is resumed only if a strong
//! validator names its representation.

use std::error::Error;
use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use http::header::{ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, DATE, ETAG, LAST_MODIFIED};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use relent_http::field::http_date;
use relent_http::field::{digits, trim};
use reqwest::Url;

/// How much older than its response a `Last-Modified` must be to be a strong validator: within the
/// same second the representation can have changed twice, and two clocks may have been read.
/// RFC 9110 §8.8.2.2 asks for "enough difference"; RFC 7232 named this time.
const SETTLED: Duration = Duration::from_secs(60);

/// A representation of which the rest can be asked for, when a part of it has arrived.
///
/// It names the representation by the final URL of its response, after all redirects, and by a strong
/// validator: an entity tag, or a `Last-Modified` that is at least 60 seconds older than the response
/// (RFC 9110 §8.8). Bytes are taken for the rest only if they come from the same URL and under the
/// same validator. The query of the URL may differ, as that of a signed URL does, if both responses
/// state the same total length.
///
/// A [`Sink`](crate::Sink) is given it before the first byte. To go on in another process, store the
/// three parts beside the bytes, and give them to [`Download::resume`](crate::Download::resume).
///
/// ```
/// use relent_reqwest::Resumable;
///
/// let stored = Resumable::new("https://example.com/large", "\"v1\"", Some(1 << 31))?;
/// assert_eq!(stored.url(), "https://example.com/large");
/// assert_eq!(stored.validator(), "\"v1\"");
/// assert_eq!(stored.total(), Some(1 << 31));
/// # Ok::<(), relent_reqwest::NotResumable>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Resumable {
    pub(crate) url: Url,
    /// What `If-Range` says: a strong entity tag or a date.
    pub(crate) validator: HeaderValue,
    pub(crate) total: Option<u64>,
}

/// Why parts do not name a representation that can be resumed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotResumable {
    /// The URL is none.
    Url,
    /// The validator is neither a strong entity tag, such as `"v1"`, nor a date in the form of
    /// `Sun, 06 Nov 1994 08:49:37 GMT`.
    Validator,
}

impl fmt::Display for NotResumable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Url => "the URL of what is to be resumed cannot be read",
            Self::Validator => {
                "the validator of what is to be resumed is neither a strong entity tag in double \
                 quotes nor a date such as Sun, 06 Nov 1994 08:49:37 GMT"
            }
        })
    }
}

impl Error for NotResumable {}

impl Resumable {
    /// From its parts, as they were stored. `total` is the length of all of it in bytes, if it was
    /// told.
    ///
    /// # Errors
    /// When the URL cannot be read, or the validator is no strong one.
    pub fn new(url: &str, validator: &str, total: Option<u64>) -> Result<Self, NotResumable> {
        let url = Url::parse(url).map_err(|_| NotResumable::Url)?;
        let validator = HeaderValue::from_str(validator).map_err(|_| NotResumable::Validator)?;
        if !is_strong_tag(&validator) && !is_date(&validator) {
            return Err(NotResumable::Validator);
        }
        Ok(Self {
            url: bare(&url),
            validator,
            total,
        })
    }

    /// Whether the rest of this response may be requested by `Range`, if it is cut short.
    ///
    /// It may for a plain 200 to a GET, without `Content-Encoding` (many servers encode while they send
    /// and leave the tag as it was), and without `Accept-Ranges: none`. Whether the rest belongs to
    /// the same representation is for a strong validator to prove, or for the caller to state
    /// ([`Download::assume_unchanged`](crate::Download::assume_unchanged)).
    #[must_use]
    pub fn allows_ranges<B>(method: &Method, head: &Response<B>) -> bool {
        let headers = head.headers();
        method == Method::GET
            && head.status() == StatusCode::OK
            && !headers.contains_key(CONTENT_ENCODING)
            && !accepts(headers, b"none")
    }

    /// The representation in `head`, the response from `url` to a request without a range; `None` if
    /// it cannot be resumed: without a strong validator, or where no range may be requested.
    pub(crate) fn of<B>(method: &Method, url: &Url, head: &Response<B>) -> Option<Self> {
        let validator = strong_validator(head.headers());
        let validator = validator.filter(|_| Self::allows_ranges(method, head))?;
        Some(Self {
            url: bare(url),
            validator: validator.clone(),
            total: length(head.headers()),
        })
    }

    /// The final URL of the response, without a fragment and without name and password.
    #[must_use]
    pub fn url(&self) -> &str {
        self.url.as_str()
    }

    /// The strong validator: an entity tag with its quotes, or the date of `Last-Modified`.
    #[must_use]
    pub fn validator(&self) -> &str {
        // An entity tag may have bytes beyond ASCII (RFC 9110 §8.8.3), and then is not to be stored.
        self.validator.to_str().unwrap_or_default()
    }

    /// The length of all of it in bytes, if the server told it.
    #[must_use]
    pub const fn total(&self) -> Option<u64> {
        self.total
    }

    /// Whether a response from `url` can be of this representation. Another query is that of another
    /// signature, if the server states the same total or the caller `states` that nothing has changed.
    pub(crate) fn can_be_at(&self, url: &Url, total: Option<u64>, states: bool) -> bool {
        let same_resource = || self.url.origin() == url.origin() && self.url.path() == url.path();
        let same_total = || self.total.is_some() && self.total == total;
        self.url == bare(url) || same_resource() && (states || same_total())
    }

    /// Whether these fields name the same representation.
    pub(crate) fn is_named_by(&self, headers: &HeaderMap) -> bool {
        let named = if is_strong_tag(&self.validator) {
            strong_etag(headers)
        } else {
            only(headers, &LAST_MODIFIED)
        };
        named == Some(&self.validator)
    }
}

impl fmt::Debug for Resumable {
    /// Leaves out the query, which can hold a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut url = self.url.clone();
        url.set_query(None);
        f.debug_struct("Resumable")
            .field("url", &url.as_str())
            .field("validator", &self.validator)
            .field("total", &self.total)
            .finish()
    }
}

/// A URL without what is not sent to its server as an address.
pub(crate) fn bare(url: &Url) -> Url {
    let mut bare = url.clone();
    bare.set_fragment(None);
    // A URL that cannot have them has none.
    let _ = (bare.set_username(""), bare.set_password(None));
    bare
}

/// The validator by which the representation can be resumed. A date is one only where there is no
/// entity tag (RFC 9110 §13.1.5).
pub(crate) fn strong_validator(headers: &HeaderMap) -> Option<&HeaderValue> {
    if headers.contains_key(ETAG) {
        strong_etag(headers)
    } else {
        strong_last_modified(headers)
    }
}

/// A `Last-Modified` that is old enough by the server's own clock.
pub(crate) fn strong_last_modified(headers: &HeaderMap) -> Option<&HeaderValue> {
    let value = only(headers, &LAST_MODIFIED)?;
    let (modified, sent) = (date(value)?, date(only(headers, &DATE)?)?);
    let age = sent.duration_since(modified).ok()?;
    (age >= SETTLED).then_some(value)
}

/// A date in the one form that may be generated, so that the server finds its own again.
pub(crate) fn date(value: &HeaderValue) -> Option<std::time::SystemTime> {
    const FORM: usize = "Sun, 06 Nov 1994 08:49:37 GMT".len();
    let value = value.as_bytes();
    if value.len() != FORM {
        return None;
    }
    // The time by which a century is told is not asked for in this form.
    http_date(value, UNIX_EPOCH).ok()
}

pub(crate) fn is_date(value: &HeaderValue) -> bool {
    date(value).is_some()
}

/// `"…"`, not `W/"…"`, and only one of them.
pub(crate) fn strong_etag(headers: &HeaderMap) -> Option<&HeaderValue> {
    only(headers, &ETAG).filter(|value| is_strong_tag(value))
}

/// Whether the server says that it knows ranges.
pub(crate) fn announces_ranges(headers: &HeaderMap) -> bool {
    accepts(headers, b"bytes")
}

fn accepts(headers: &HeaderMap, unit: &[u8]) -> bool {
    let mut units = headers.get_all(ACCEPT_RANGES).iter();
    units.any(|value| trim(value.as_bytes()).eq_ignore_ascii_case(unit))
}

/// The total length in bytes that the response to a request without a range states.
pub(crate) fn length(headers: &HeaderMap) -> Option<u64> {
    only(headers, &CONTENT_LENGTH).and_then(|value| number(trim(value.as_bytes())))
}

/// What remains of an entity tag in a weak comparison (RFC 9110 §8.8.3.2).
pub(crate) fn opaque(tag: &HeaderValue) -> &[u8] {
    let tag = tag.as_bytes();
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

pub(crate) fn is_strong_tag(value: &HeaderValue) -> bool {
    let value = value.as_bytes();
    let tag = value
        .strip_prefix(b"\"")
        .and_then(|value| value.strip_suffix(b"\""));
    tag.is_some_and(|tag| {
        tag.iter()
            .all(|byte| matches!(byte, 0x21 | 0x23..=0x7e | 0x80..))
    })
}

/// The value of a field that is there once.
pub(crate) fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

/// Digits that fit; one that saturates is no length of anything.
pub(crate) fn number(value: &[u8]) -> Option<u64> {
    digits(value).ok().filter(|number| *number != u64::MAX)
}
