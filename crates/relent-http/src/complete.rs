//! Whether a body that has ended is whole.
//!
//! In HTTP/2 a server may reset a stream with NO_ERROR, and hyper ends the body then as if that were
//! its end, even short of its `Content-Length` (RFC 9113 §8.1 means it for requests whose body is not
//! needed). So an end is believed only if it is proved: by `END_STREAM`, which
//! [`is_end_stream`](http_body::Body::is_end_stream) tells after the end; by trailers, which only come
//! with it; or by as many bytes as were announced. In HTTP/1 hyper itself looks after lengths and
//! chunks.

use std::any::TypeId;
use std::error::Error;
use std::fmt;

use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Method, StatusCode, Version};

use crate::field::{digits, trim};

/// A body that ended before it was whole, though its connection did not fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Truncated {
    received: u64,
    announced: Option<u64>,
}

impl Truncated {
    /// The bytes that arrived.
    #[must_use]
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// The bytes that `Content-Length` announced, if it did.
    #[must_use]
    pub const fn announced(&self) -> Option<u64> {
        self.announced
    }
}

impl fmt::Display for Truncated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let received = self.received;
        match self.announced {
            Some(announced) => write!(
                f,
                "the body ended after {received} of {announced} bytes: the server reset the stream"
            ),
            None => write!(
                f,
                "the body ended after {received} bytes without its end: the server reset the stream"
            ),
        }
    }
}

impl Error for Truncated {}

/// Whether a response to such a request has content (RFC 9110 §6.4.1): none has one to HEAD, one with
/// 1xx, 204, 205 or 304.
pub(crate) fn has_content(method: &Method, status: StatusCode) -> bool {
    let none = status.is_informational()
        || matches!(
            status,
            StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED
        );
    method != Method::HEAD && !none
}

/// What proves that a body is whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proof {
    received: u64,
    announced: Option<u64>,
    trailers: bool,
    /// Whether the body tells its `END_STREAM`. Some that wrap others do not.
    tells: bool,
}

impl Proof {
    /// What a body of the type `B` has to prove under this head; `None` if hyper sees to it, or there
    /// is nothing to come.
    #[inline]
    pub(crate) fn needed<B: 'static>(
        method: &Method,
        status: StatusCode,
        version: Version,
        headers: &HeaderMap,
    ) -> Option<Self> {
        if version < Version::HTTP_2 {
            return None;
        }
        Self::over_streams(method, status, headers, tells_end::<B>())
    }

    /// The same for a response of reqwest.
    #[cfg(feature = "reqwest")]
    #[inline]
    pub(crate) fn of(method: &Method, response: &reqwest::Response) -> Option<Self> {
        let (status, version) = (response.status(), response.version());
        Self::needed::<reqwest::Body>(method, status, version, response.headers())
    }

    fn over_streams(
        method: &Method,
        status: StatusCode,
        headers: &HeaderMap,
        tells: bool,
    ) -> Option<Self> {
        has_content(method, status).then(|| Self {
            received: 0,
            announced: announced(headers),
            trailers: false,
            tells,
        })
    }

    /// So many bytes have arrived.
    #[inline]
    pub(crate) const fn data(&mut self, length: usize) {
        self.received = self.received.saturating_add(length as u64);
    }

    /// The trailers have arrived.
    #[inline]
    pub(crate) const fn trailers(&mut self) {
        self.trailers = true;
    }

    /// The body has ended. `end_stream`: what it says of itself now.
    ///
    /// # Errors
    /// When it is not proved to be whole.
    pub(crate) fn ended(&self, end_stream: bool) -> Result<(), Truncated> {
        let whole = end_stream
            || self.trailers
            || match self.announced {
                Some(announced) => self.received >= announced,
                None => !self.tells,
            };
        if whole {
            return Ok(());
        }
        Err(Truncated {
            received: self.received,
            announced: self.announced,
        })
    }
}

/// The bytes that the head announces. What decodes a body removes the length, as reqwest does.
fn announced(headers: &HeaderMap) -> Option<u64> {
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let length = digits(trim(values.next()?.as_bytes())).ok()?;
    values.next().is_none().then_some(length)
}

/// Whether bodies of this type are known to tell their `END_STREAM`.
fn tells_end<B: 'static>() -> bool {
    let body = TypeId::of::<B>();
    #[cfg(feature = "reqwest")]
    if body == TypeId::of::<reqwest::Body>() {
        return reqwest_tells_end();
    }
    body == TypeId::of::<hyper::body::Incoming>()
}

/// Whether reqwest passes on what hyper tells. It does unless it was built to decode: the body that
/// decodes, or would, does not (tower-http 0.6).
///
/// Any crate of a program can have asked for that. It shows in whether the builder has the method to
/// turn it on: if not, the one of the trait is called.
#[cfg(feature = "reqwest")]
fn reqwest_tells_end() -> bool {
    /// Stands for a builder that has no such method.
    struct Cannot;

    #[allow(unused, reason = "reqwest's own come before these, if it has them")]
    trait Decodes: Sized {
        fn gzip(self, _: bool) -> Cannot {
            Cannot
        }
        fn brotli(self, _: bool) -> Cannot {
            Cannot
        }
        fn zstd(self, _: bool) -> Cannot {
            Cannot
        }
        fn deflate(self, _: bool) -> Cannot {
            Cannot
        }
    }

    impl Decodes for reqwest::ClientBuilder {}

    fn returned<T: 'static>(_: fn(reqwest::ClientBuilder) -> T) -> TypeId {
        TypeId::of::<T>()
    }

    let cannot = TypeId::of::<Cannot>();
    returned(|builder| builder.gzip(true)) == cannot
        && returned(|builder| builder.brotli(true)) == cannot
        && returned(|builder| builder.zstd(true)) == cannot
        && returned(|builder| builder.deflate(true)) == cannot
}
