//! The body of the response that a call ends with.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::drained::Drained;
use crate::replay::BoxError;

pin_project! {
    /// The body of a response of [`Retry`](super::Retry): that of the service, passed on as it comes.
    ///
    /// A refused response is read while its retry waits, so that its connection can be used again. If
    /// the retry is then held back to the end of the call, by a gate, a cooldown, a rate or a service
    /// that is not ready, the response is returned with what was read. That is all of it, or up to
    /// 256 KiB, and the body ends with [`NotKept`](crate::NotKept).
    pub struct ResponseBody<R> {
        #[pin]
        source: Source<R>,
    }
}

pin_project! {
    #[project = SourceProjection]
    enum Source<R> {
        Service { #[pin] body: R },
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
            Source::Service { body } => Some(body),
            Source::Drained { .. } => None,
        }
    }
}

impl<R> Body for ResponseBody<R>
where
    R: Body,
    R::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.project().source.project() {
            // No copy where the data are `Bytes`.
            SourceProjection::Service { body } => body.poll_frame(context).map(|frame| {
                let bytes = |mut data: R::Data| data.copy_to_bytes(data.remaining());
                frame.map(|read| read.map(|frame| frame.map_data(bytes)).map_err(Into::into))
            }),
            SourceProjection::Drained { body } => Pin::new(&mut **body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Service { body } => body.is_end_stream(),
            Source::Drained { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Service { body } => body.size_hint(),
            Source::Drained { body } => body.size_hint(),
        }
    }
}

impl<R> fmt::Debug for ResponseBody<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").finish_non_exhaustive()
    }
}
