//! The body of the response that a call ends with.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::{Method, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::complete::{Proof, tells_end};
use crate::drained::Drained;
use crate::replay::BoxError;

pin_project! {
    /// The body of a response of [`Retry`](super::Retry): that of the service, passed on as it comes.
    ///
    /// In HTTP/2 a server can reset a response as if it were at its end, which hyper passes on as the
    /// end. Such a body ends with [`Truncated`](crate::body::Truncated): one that is shorter than its
    /// `Content-Length`, one of gRPC without its trailers, and one of hyper itself without
    /// `END_STREAM`. In HTTP/1 a transfer coding that is not `chunked` is an error as well:
    /// [`UnknownTransferCoding`](crate::body::UnknownTransferCoding).
    ///
    /// A refused response is read while its retry waits, so that its connection can be used again. If
    /// the retry is then held back to the end of the call, by a gate, a cooldown, a rate or a service
    /// that is not ready, the response is returned with what was read. That is all of it, or up to
    /// 256 KiB, and the body ends with [`NotKept`](crate::body::NotKept).
    pub struct ResponseBody<R> {
        #[pin]
        source: Source<R>,
    }
}

pin_project! {
    #[project = SourceProjection]
    enum Source<R> {
        Service { #[pin] body: R },
        // One whose end may be none, or whose bytes are no content. The proof is apart, as below.
        Stream { #[pin] body: R, proof: Box<Proof> },
        // In a box, since most responses have none and are moved several times.
        Drained { body: Box<Drained> },
    }
}

impl<R> ResponseBody<R> {
    /// That of the service.
    #[inline]
    pub(super) const fn of(body: R) -> Self {
        Self {
            source: Source::Service { body },
        }
    }

    /// The same under its head, after a request by this method if it is known.
    #[inline]
    pub(super) fn under(method: Option<&Method>, response: Response<R>) -> Response<Self> {
        let (status, version) = (response.status(), response.version());
        let proof = Proof::needed(method, status, version, response.headers(), tells_end::<R>);
        response.map(|body| match proof {
            None => Self::of(body),
            Some(proof) => Self::proved(body, proof),
        })
    }

    #[inline(never)]
    fn proved(body: R, proof: Proof) -> Self {
        let proof = Box::new(proof);
        Self {
            source: Source::Stream { body, proof },
        }
    }

    /// What was read of it.
    pub(super) fn drained(body: Drained) -> Self {
        Self {
            source: Source::Drained {
                body: Box::new(body),
            },
        }
    }

    /// The body of the service, unless it was read: `None` for what is returned because its retry
    /// was held back.
    pub fn into_inner(self) -> Option<R> {
        match self.source {
            Source::Service { body } | Source::Stream { body, .. } => Some(body),
            Source::Drained { .. } => None,
        }
    }
}

impl<R> Body for ResponseBody<R>
where
    R: Body<Error: Into<BoxError>>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.project().source.project() {
            SourceProjection::Service { body } => body
                .poll_frame(context)
                .map(|read| read.map(|read| read.map(in_bytes).map_err(Into::into))),
            SourceProjection::Stream { mut body, proof } => {
                let read = ready!(body.as_mut().poll_frame(context));
                let read = proof.check(read, || body.is_end_stream());
                Poll::Ready(read.map(|read| read.map(in_bytes)))
            }
            SourceProjection::Drained { body } => Pin::new(&mut **body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Service { body } | Source::Stream { body, .. } => body.is_end_stream(),
            Source::Drained { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Service { body } | Source::Stream { body, .. } => body.size_hint(),
            Source::Drained { body } => body.size_hint(),
        }
    }
}

/// No copy where the data are `Bytes`.
fn in_bytes<D: Buf>(frame: Frame<D>) -> Frame<Bytes> {
    frame.map_data(|mut data| data.copy_to_bytes(data.remaining()))
}

impl<R> fmt::Debug for ResponseBody<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").finish_non_exhaustive()
    }
}
