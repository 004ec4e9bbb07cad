//! The body of the response that a call returns.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::{Method, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::complete::{Proof, reports_end_stream};
use crate::drained_body::Drained;
use crate::replay::BoxError;

pin_project! {
    /// The body of a response of [`RetryService`](super::RetryService): the body of the service, streamed through.
    ///
    /// In HTTP/2 a server can reset a response as if it were complete, and hyper reports the
    /// end. This body then ends with [`Truncated`](crate::body::Truncated) if it is shorter than its
    /// `Content-Length`, if it is a gRPC body without trailers, or if it is hyper's own body without
    /// `END_STREAM`. In HTTP/1 a transfer coding other than `chunked` is an error too:
    /// [`UnknownTransferCoding`](crate::body::UnknownTransferCoding).
    ///
    /// A rejected response is read during the delay before its retry, so that its connection can be used again. If
    /// the retry is then held until the call ends, the call returns the response with the part that was read.
    /// A circuit breaker, a cooldown, a rate or an unready service may hold it. The part is the whole body, or up to
    /// 256 KiB, and then the body ends with [`NotKept`](crate::body::NotKept).
    pub struct ResponseBody<R> {
        #[pin]
        source: Source<R>,
    }
}

pin_project! {
    #[project = SourceProjection]
    enum Source<R> {
        Service { #[pin] body: R },
        // A body whose end may be false, or whose bytes are not the content. The proof is boxed, as below.
        Stream { #[pin] body: R, proof: Box<Proof> },
        // Boxed, since most responses have none and are moved several times.
        Drained { body: Box<Drained> },
    }
}

impl<R> ResponseBody<R> {
    /// Wraps the body of the service.
    #[inline]
    pub(super) const fn of(body: R) -> Self {
        Self {
            source: Source::Service { body },
        }
    }

    /// Wraps the body of a response; `method` is that of its request, if known.
    #[inline]
    pub(super) fn under(method: Option<&Method>, response: Response<R>) -> Response<Self> {
        let (status, version) = (response.status(), response.version());
        let proof = Proof::needed(
            method,
            status,
            version,
            response.headers(),
            reports_end_stream::<R>,
        );
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

    /// Wraps a body that was drained.
    pub(super) fn drained(body: Drained) -> Self {
        Self {
            source: Source::Drained {
                body: Box::new(body),
            },
        }
    }

    /// Returns the body of the service; `None` if it was drained and returned because its retry
    /// was held.
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

/// Does not copy if the data are `Bytes`.
fn in_bytes<D: Buf>(frame: Frame<D>) -> Frame<Bytes> {
    frame.map_data(|mut data| data.copy_to_bytes(data.remaining()))
}

impl<R> fmt::Debug for ResponseBody<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").finish_non_exhaustive()
    }
}
