//! Identity of a representation, needed to request the rest of it (RFC 9110 §8.8).
//!
//! Bytes of two representations must never be mixed. A response is therefore resumed only if it has a strong
//! validator.

use std::error::Error;
use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use http::header::{ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, DATE, ETAG, LAST_MODIFIED};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use relent_http::field::http_date;
use relent_http::field::{digits, trim};
use reqwest::Url;

/// Minimum age of a `Last-Modified` to be a strong validator, relative to its response. The representation can change
/// twice within one second, and the two times may come from different clocks. RFC 9110 §8.8.2.2 asks for "enough
/// difference"; RFC 7232 named this time.
const LAST_MODIFIED_MIN_AGE: Duration = Duration::from_secs(60);

/// Identity of a representation that can be resumed after a part of it has arrived.
///
/// It consists of the final URL of the response, after all redirects, and a strong validator. That is an entity tag,
/// or a `Last-Modified` at least 60 seconds older than the response (RFC 9110 §8.8). Bytes count as the rest only if
/// they come from the same URL with the same validator. The query of a signed URL may differ, if both responses
/// state the same total length.
///
/// A [`Sink`](crate::Sink) receives it before the first byte. To continue in another process, store its three parts
/// with the bytes and pass them to [`Download::resume`](crate::Download::resume).
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
    /// The value of `If-Range`: a strong entity tag or a date.
    pub(crate) validator: HeaderValue,
    pub(crate) total: Option<u64>,
}

/// Error of [`Resumable::new`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotResumable {
    /// The URL is invalid.
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
    /// Restores an identity from its stored parts. `total` is the total length in bytes, if the response stated it.
    ///
    /// # Errors
    /// If the URL is invalid or the validator is not a strong one.
    pub fn new(url: &str, validator: &str, total: Option<u64>) -> Result<Self, NotResumable> {
        let url = Url::parse(url).map_err(|_| NotResumable::Url)?;
        let validator = HeaderValue::from_str(validator).map_err(|_| NotResumable::Validator)?;
        if !is_strong_tag(&validator) && !is_date(&validator) {
            return Err(NotResumable::Validator);
        }
        Ok(Self {
            url: without_fragment_and_user(&url),
            validator,
            total,
        })
    }

    /// Whether the rest of this response may be requested with `Range` if it is cut short.
    ///
    /// It may for a plain 200 to a GET, without `Accept-Ranges: none`. A strong validator must still prove that the
    /// rest belongs to the same representation, or the caller must declare it
    /// ([`Download::assume_unchanged`](crate::Download::assume_unchanged)). With a `Content-Encoding` only the
    /// declaration counts: many servers encode the body while sending and do not change the tag.
    #[must_use]
    pub fn allows_ranges<B>(method: &Method, head: &Response<B>) -> bool {
        method == Method::GET
            && head.status() == StatusCode::OK
            && !accepts(head.headers(), b"none")
    }

    /// The representation of `head`, the response from `url` to a request without a range. `None` if it cannot be
    /// resumed: it has no strong validator, ranges are not allowed, or it is encoded and not `declared` unchanged.
    pub(crate) fn of<B>(
        method: &Method,
        url: &Url,
        head: &Response<B>,
        declared: bool,
    ) -> Option<Self> {
        let allowed =
            Self::allows_ranges(method, head) && (declared || codings(head.headers()).is_empty());
        let validator = strong_validator(head.headers()).filter(|_| allowed)?;
        Some(Self {
            url: without_fragment_and_user(url),
            validator: validator.clone(),
            total: length(head.headers()),
        })
    }

    /// The final URL of the response, without fragment, user name and password.
    #[must_use]
    pub fn url(&self) -> &str {
        self.url.as_str()
    }

    /// The strong validator: an entity tag with its quotes, or the date of `Last-Modified`.
    #[must_use]
    pub fn validator(&self) -> &str {
        // An entity tag may contain non-ASCII bytes (RFC 9110 §8.8.3). It cannot be stored then.
        self.validator.to_str().unwrap_or_default()
    }

    /// The total length in bytes, if the server stated it.
    #[must_use]
    pub const fn total(&self) -> Option<u64> {
        self.total
    }

    /// Whether a response from `url` can be of this representation. Another query may be another signature: it counts
    /// as the same if the server states the same total. If the caller declares it unchanged (`states`), either the
    /// path or the total is enough: a redirect may lead to another mirror each time.
    pub(crate) fn can_be_at(&self, url: &Url, total: Option<u64>, states: bool) -> bool {
        let same_resource = || self.url.origin() == url.origin() && self.url.path() == url.path();
        let same_total = || self.total.is_some() && self.total == total;
        self.url == without_fragment_and_user(url)
            || match states {
                true => same_resource() || same_total(),
                false => same_resource() && same_total(),
            }
    }

    /// Whether these header fields contain the same validator.
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
    /// Omits the query, which can contain a secret.
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

/// A URL without the parts that are not sent to the server: fragment, user name and password.
pub(crate) fn without_fragment_and_user(url: &Url) -> Url {
    let mut without_fragment_and_user = url.clone();
    without_fragment_and_user.set_fragment(None);
    // Fails only for a URL that cannot have them.
    let _ = (
        without_fragment_and_user.set_username(""),
        without_fragment_and_user.set_password(None),
    );
    without_fragment_and_user
}

/// The strong validator of a response. A date counts only if there is no entity tag (RFC 9110 §13.1.5).
pub(crate) fn strong_validator(headers: &HeaderMap) -> Option<&HeaderValue> {
    if headers.contains_key(ETAG) {
        strong_etag(headers)
    } else {
        strong_last_modified(headers)
    }
}

/// A `Last-Modified` that is old enough by the clock of the server.
pub(crate) fn strong_last_modified(headers: &HeaderMap) -> Option<&HeaderValue> {
    let value = only(headers, &LAST_MODIFIED)?;
    let (modified, sent) = (date(value)?, date(only(headers, &DATE)?)?);
    let age = sent.duration_since(modified).ok()?;
    (age >= LAST_MODIFIED_MIN_AGE).then_some(value)
}

/// Parses a date only in the one form that servers may generate, so that the server recognizes its own date.
pub(crate) fn date(value: &HeaderValue) -> Option<std::time::SystemTime> {
    const FORM: usize = "Sun, 06 Nov 1994 08:49:37 GMT".len();
    let value = value.as_bytes();
    if value.len() != FORM {
        return None;
    }
    // This form has a four-digit year, so the current time does not matter.
    http_date(value, UNIX_EPOCH).ok()
}

pub(crate) fn is_date(value: &HeaderValue) -> bool {
    date(value).is_some()
}

/// A strong entity tag (`"…"`, not `W/"…"`), if there is exactly one.
pub(crate) fn strong_etag(headers: &HeaderMap) -> Option<&HeaderValue> {
    only(headers, &ETAG).filter(|value| is_strong_tag(value))
}

/// Whether the server announces byte ranges.
pub(crate) fn announces_ranges(headers: &HeaderMap) -> bool {
    accepts(headers, b"bytes")
}

fn accepts(headers: &HeaderMap, unit: &[u8]) -> bool {
    let mut units = headers.get_all(ACCEPT_RANGES).iter();
    units.any(|value| trim(value.as_bytes()).eq_ignore_ascii_case(unit))
}

/// The content codings of a body.
pub(crate) fn codings(headers: &HeaderMap) -> Vec<HeaderValue> {
    let values = headers.get_all(CONTENT_ENCODING).iter();
    let codings = values.filter(|value| {
        let coding = trim(value.as_bytes());
        !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity")
    });
    codings.cloned().collect()
}

/// The total length in bytes, as stated by the response to a request without a range.
pub(crate) fn length(headers: &HeaderMap) -> Option<u64> {
    only(headers, &CONTENT_LENGTH).and_then(|value| number(trim(value.as_bytes())))
}

/// The opaque part of an entity tag, for a weak comparison (RFC 9110 §8.8.3.2).
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

/// The value of a field that occurs exactly once.
pub(crate) fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

/// Parses digits. A number that saturates is not a length.
pub(crate) fn number(value: &[u8]) -> Option<u64> {
    digits(value).ok().filter(|number| *number != u64::MAX)
}
