//! Whether a body that has ended is whole.
//!
//! In HTTP/2 a server may reset a stream with NO_ERROR, and hyper ends the body then as if that were
//! its end, even short of its `Content-Length` (RFC 9113 §8.1 means it for requests whose body is not
//! needed). So an end is believed only if it is proved: by `END_STREAM`, which
//! [`is_end_stream`](http_body::Body::is_end_stream) tells after the end; by trailers, which only come
//! with it; or by as many bytes as were announced. In HTTP/1 hyper itself looks after lengths and
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

/// A body under a transfer coding that is not `chunked` (RFC 9112 §6.1): its bytes are no content.
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

    /// That of a response of HTTP/1 with content, if there is one. `identity`, of RFC 2616, is none by itself; with a
    /// `Content-Length` it leaves open where the body ends.
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

/// Whether a response to such a request has content (RFC 9110 §6.4.1): none has one to HEAD, one with
/// 1xx, 204, 205 or 304.
#[must_use]
pub fn has_content(method: &Method, status: StatusCode) -> bool {
    let none = status.is_informational()
        || matches!(
            status,
            StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED
        );
    method != Method::HEAD && !none
}

/// What proves that a body is whole.
#[derive(Clone, Debug, Default)]
pub struct Proof {
    received: u64,
    announced: Option<u64>,
    /// The trailers have arrived.
    trailers: bool,
    /// Only they prove it: the status of a gRPC call is in them.
    trailers_only: bool,
    /// Whether the body tells its `END_STREAM`. Some that wrap others do not.
    tells: bool,
    /// Whether the request may have been a HEAD.
    maybe_head: bool,
    /// Nothing of it is content.
    unknown: Option<UnknownTransferCoding>,
}

impl Proof {
    /// What a body has to prove under this head, after a request by this method if it is known; `None`
    /// if hyper sees to it, or there is nothing to come. `tells_end`: whether the body is known to tell
    /// its `END_STREAM` by `is_end_stream`, once it has ended.
    #[inline]
    pub fn needed(
        method: Option<&Method>,
        status: StatusCode,
        version: Version,
        headers: &HeaderMap,
        tells_end: impl FnOnce() -> bool,
    ) -> Option<Self> {
        if version >= Version::HTTP_2 {
            return Self::of_stream(method, status, headers, tells_end());
        }
        // Few responses have one, and hardly any another than `chunked`.
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
        tells: bool,
    ) -> Option<Self> {
        has_content(method.unwrap_or(&Method::GET), status).then(|| Self {
            received: 0,
            announced: announced(headers),
            trailers: false,
            trailers_only: is_open_grpc(headers),
            tells,
            maybe_head: method.is_none(),
            unknown: None,
        })
    }

    /// Passes on what was read of the body, or says that its end is none. `end_stream`: what the body
    /// says of itself after its end.
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
            Some(_) if self.received == 0 && self.maybe_head && !self.tells => false,
            Some(announced) => self.received < announced,
            None => self.tells,
        };
        // It is said once.
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

/// Whether the status of a gRPC call is to come in the trailers. Those of gRPC-Web are in the body.
fn is_open_grpc(headers: &HeaderMap) -> bool {
    let is_web = |kind: &HeaderValue| kind.as_bytes().starts_with(b"application/grpc-web");
    is_grpc(headers)
        && !headers.get(CONTENT_TYPE).is_some_and(is_web)
        && !headers.contains_key(GRPC_STATUS)
}

pin_project! {
    /// A body whose end is an error unless it is proved.
    #[derive(Debug)]
    pub struct Complete<B> {
        #[pin]
        body: B,
        proof: Proof,
    }
}

impl<B> Complete<B> {
    /// This body, which has to prove this.
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

/// The bytes that the head announces. What decodes a body removes the length, as reqwest does.
fn announced(headers: &HeaderMap) -> Option<u64> {
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let length = digits(trim(values.next()?.as_bytes())).ok()?;
    values.next().is_none().then_some(length)
}

/// Whether bodies of this type are known to tell their `END_STREAM`: those of hyper.
#[cfg(feature = "tower")]
pub(crate) fn tells_end<B>() -> bool {
    // By name, since a body need not be `'static`. At worst one is not known.
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
    fn a_transfer_coding_that_is_not_chunked_is_an_error_and_no_content() {
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
            // However often it is asked, nothing passes for content.
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
    fn a_response_without_content_has_no_coding_that_matters() {
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
