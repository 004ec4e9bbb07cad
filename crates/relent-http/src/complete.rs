//! Detects bodies that end before they are complete.
//!
//! In HTTP/2 a server may reset a stream with NO_ERROR. hyper then ends the body normally,
//! even short of its `Content-Length` (RFC 9113 §8.1 means it for requests whose body is not
//! needed). So an end must be proved: by `END_STREAM`, which
//! [`is_end_stream`](http_body::Body::is_end_stream) reports after the end; by trailers, which come only
//! with it; or by the announced number of bytes. In HTTP/1 hyper itself checks lengths and
//! chunks. It passes on any other transfer coding as if it were content, which is an error here.

#[cfg(feature = "tower")]
use std::any::type_name;
use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version};
use http_body::Frame;
use http_body::{Body, SizeHint};
use pin_project_lite::pin_project;

use crate::field::{digits, trim};
use crate::grpc::is_grpc;
use crate::headers::GRPC_STATUS;
use crate::replay::BoxError;

/// Error: a body ended before it was complete, though its connection did not fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Truncated {
    received: u64,
    announced: Option<u64>,
}

impl Truncated {
    /// The number of bytes that arrived.
    #[must_use]
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// The number of bytes that `Content-Length` announced, if any.
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

/// Error: a body has a transfer coding that is not `chunked` (RFC 9112 §6.1), so its bytes are not the content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownTransferCoding {
    codings: Box<str>,
}

impl UnknownTransferCoding {
    /// The value of `Transfer-Encoding`, such as `gzip, chunked`.
    #[must_use]
    pub fn codings(&self) -> &str {
        &self.codings
    }

    /// The unknown coding of an HTTP/1 response with content, if there is one. `identity`, of RFC 2616, counts as
    /// known by itself; with a `Content-Length` it does not define where the body ends.
    #[inline(never)]
    fn of(headers: &HeaderMap) -> Option<Self> {
        let fields = headers.get_all(TRANSFER_ENCODING).iter();
        let fields: Vec<_> = fields
            .map(|field| String::from_utf8_lossy(field.as_bytes()))
            .collect();
        let mut codings = fields
            .iter()
            .flat_map(|field| field.split(','))
            .map(|coding| coding.trim_matches([' ', '\t']))
            .filter(|coding| !coding.is_empty());
        let (first, more) = (codings.next(), codings.next());
        let is = |known: &str| first.is_some_and(|coding| coding.eq_ignore_ascii_case(known));
        let known = is("chunked") || is("identity") && !headers.contains_key(CONTENT_LENGTH);
        (!known || more.is_some()).then(|| Self {
            codings: fields.join(", ").into(),
        })
    }
}

impl fmt::Display for UnknownTransferCoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let codings = &self.codings;
        write!(
            f,
            "the body has the transfer coding {codings:?}, and only \"chunked\" can be read"
        )
    }
}

impl Error for UnknownTransferCoding {}

/// Whether a response to a request with this method has content (RFC 9110 §6.4.1): responses to HEAD,
/// and those with 1xx, 204, 205 or 304, have none.
#[must_use]
pub fn has_content(method: &Method, status: StatusCode) -> bool {
    let none = status.is_informational()
        || matches!(
            status,
            StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED
        );
    method != Method::HEAD && !none
}

/// Tracks whether a body is proved to be complete.
#[derive(Clone, Debug, Default)]
pub struct Proof {
    received: u64,
    announced: Option<u64>,
    /// The trailers have arrived.
    trailers: bool,
    /// Only trailers prove it: they contain the status of a gRPC call.
    trailers_only: bool,
    /// Whether the body reports its `END_STREAM`. Some wrappers do not.
    reports_end: bool,
    /// Whether the request may have been a HEAD.
    maybe_head: bool,
    /// The unknown transfer coding, if any: then no bytes are content.
    unknown: Option<UnknownTransferCoding>,
}

impl Proof {
    /// The proof that a body needs under this head; `method` is that of its request, if known. `None`
    /// if hyper checks the body, or it is empty. `reports_end_stream`: whether the body is known to report
    /// its `END_STREAM` by `is_end_stream`, once it has ended.
    #[inline]
    pub fn needed(
        method: Option<&Method>,
        status: StatusCode,
        version: Version,
        headers: &HeaderMap,
        reports_end_stream: impl FnOnce() -> bool,
    ) -> Option<Self> {
        if version >= Version::HTTP_2 {
            return Self::of_stream(method, status, headers, reports_end_stream());
        }
        // Few responses have this field, and almost all of those are `chunked`.
        if !headers.contains_key(TRANSFER_ENCODING)
            || !has_content(method.unwrap_or(&Method::GET), status)
        {
            return None;
        }
        Some(Self {
            unknown: Some(UnknownTransferCoding::of(headers)?),
            ..Self::default()
        })
    }

    #[inline(never)]
    fn of_stream(
        method: Option<&Method>,
        status: StatusCode,
        headers: &HeaderMap,
        reports_end: bool,
    ) -> Option<Self> {
        has_content(method.unwrap_or(&Method::GET), status).then(|| Self {
            received: 0,
            announced: announced(headers),
            trailers: false,
            trailers_only: is_open_grpc(headers),
            reports_end,
            maybe_head: method.is_none(),
            unknown: None,
        })
    }

    /// Passes on a frame, or replaces an unproved end by an error. `end_stream`: the body's
    /// `is_end_stream` after its end.
    pub fn check<D: Buf, E: Into<BoxError>>(
        &mut self,
        read: Option<Result<Frame<D>, E>>,
        end_stream: impl FnOnce() -> bool,
    ) -> Option<Result<Frame<D>, BoxError>> {
        if let Some(unknown) = &self.unknown {
            return Some(Err(unknown.clone().into()));
        }
        match &read {
            Some(Ok(frame)) => match frame.data_ref() {
                Some(data) => self.received = self.received.saturating_add(data.remaining() as u64),
                None => self.trailers |= frame.is_trailers(),
            },
            Some(Err(_)) => {}
            None => {
                return self
                    .ended(end_stream())
                    .err()
                    .map(|error| Err(error.into()));
            }
        }
        read.map(|read| read.map_err(Into::into))
    }

    fn ended(&mut self, end_stream: bool) -> Result<(), Truncated> {
        let unproved = match self.announced {
            _ if self.trailers => false,
            _ if self.trailers_only => true,
            _ if end_stream => false,
            Some(_) if self.received == 0 && self.maybe_head && !self.reports_end => false,
            Some(announced) => self.received < announced,
            None => self.reports_end,
        };
        // Return the error only once.
        self.trailers = true;
        if !unproved {
            return Ok(());
        }
        Err(Truncated {
            received: self.received,
            announced: self.announced,
        })
    }
}

/// Whether the status of a gRPC call comes in the trailers. gRPC-Web puts them into the body.
fn is_open_grpc(headers: &HeaderMap) -> bool {
    let is_web = |kind: &HeaderValue| kind.as_bytes().starts_with(b"application/grpc-web");
    is_grpc(headers)
        && !headers.get(CONTENT_TYPE).is_some_and(is_web)
        && !headers.contains_key(GRPC_STATUS)
}

pin_project! {
    /// Body wrapper that returns an error at an unproved end.
    #[derive(Debug)]
    pub struct Complete<B> {
        #[pin]
        body: B,
        proof: Proof,
    }
}

impl<B> Complete<B> {
    /// Wraps a body that must satisfy this proof.
    pub const fn new(body: B, proof: Proof) -> Self {
        Self { body, proof }
    }
}

impl<B> Body for Complete<B>
where
    B: Body<Error: Into<BoxError>>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let mut this = self.project();
        let read = ready!(this.body.as_mut().poll_frame(context));
        Poll::Ready(this.proof.check(read, || this.body.is_end_stream()))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The bytes that the head announces. Decoders remove the length, as reqwest does.
fn announced(headers: &HeaderMap) -> Option<u64> {
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let length = digits(trim(values.next()?.as_bytes())).ok()?;
    values.next().is_none().then_some(length)
}

/// Whether bodies of this type are known to report their `END_STREAM`: those of hyper.
#[cfg(feature = "tower")]
pub(crate) fn reports_end_stream<B>() -> bool {
    // By name, since a body need not be `'static`. At worst the type is not recognised.
    type_name::<B>() == type_name::<hyper::body::Incoming>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proof(version: Version, fields: &[(&str, &str)]) -> Option<Proof> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            let name: http::HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        Proof::needed(
            Some(&Method::GET),
            StatusCode::OK,
            version,
            &headers,
            || false,
        )
    }

    #[test]
    fn a_transfer_coding_other_than_chunked_is_an_error() {
        const TE: &str = "transfer-encoding";
        let length = ("content-length", "5");
        let known: [&[(&str, &str)]; 6] = [
            &[],
            &[length],
            &[(TE, "chunked")],
            &[(TE, " Chunked\t"), length],
            &[(TE, ", chunked,")],
            &[(TE, "identity")],
        ];
        for fields in known {
            assert!(proof(Version::HTTP_11, fields).is_none(), "{fields:?}");
        }
        let unknown: [&[(&str, &str)]; 10] = [
            &[(TE, "gzip")],
            &[(TE, "gzip, chunked")],
            &[(TE, "chunked, identity")],
            &[(TE, "identity, chunked")],
            &[(TE, "chunked, chunked")],
            &[(TE, "chunked"), (TE, "chunked")],
            &[(TE, "gzip"), (TE, "chunked")],
            &[(TE, "chunked;q=1")],
            &[(TE, "")],
            &[(TE, "identity"), length],
        ];
        for fields in unknown {
            let mut proof = proof(Version::HTTP_11, fields).unwrap();
            // No read returns content, however often the body is polled.
            for read in [Some(Ok(Frame::data(&b"xy"[..]))), None, None] {
                let read: Option<Result<_, BoxError>> = read;
                let error = proof.check(read, || true).unwrap().unwrap_err();
                let unknown: &UnknownTransferCoding = error.downcast_ref().unwrap();
                assert!(
                    fields
                        .iter()
                        .any(|(_, value)| unknown.codings().contains(value))
                );
            }
        }
    }

    #[test]
    fn the_coding_of_a_response_without_content_is_ignored() {
        let mut headers = HeaderMap::new();
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("gzip"));
        let needed = |method: &Method, status| {
            Proof::needed(Some(method), status, Version::HTTP_11, &headers, || false).is_some()
        };
        assert!(needed(&Method::GET, StatusCode::OK));
        assert!(!needed(&Method::HEAD, StatusCode::OK));
        assert!(!needed(&Method::GET, StatusCode::NO_CONTENT));
        assert!(!needed(&Method::GET, StatusCode::NOT_MODIFIED));
    }
}
