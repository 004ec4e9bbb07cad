//! Request and response bodies of the layer.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};

/// A body that passes through the layer: bytes already read, the rest of a stream, and trailers already read.
///
/// The body of a request with a key is read completely for comparison. So is a response that is stored.
#[derive(Debug)]
pub struct Body<B> {
    whole: Option<Bytes>,
    rest: Option<Pin<Box<B>>>,
    trailers: Option<HeaderMap>,
}

impl<B> Body<B> {
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self::new(bytes, None)
    }

    pub(super) fn with_trailers(bytes: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self {
            trailers,
            ..Self::whole(bytes)
        }
    }

    pub(super) fn streamed(body: B) -> Self {
        Self::new(Bytes::new(), Some(Box::pin(body)))
    }

    /// Creates a body from the bytes already read and the rest.
    pub(super) fn new(bytes: Bytes, rest: Option<Pin<Box<B>>>) -> Self {
        let whole = Some(bytes).filter(|bytes| !bytes.is_empty());
        Self {
            whole,
            rest,
            trailers: None,
        }
    }
}

impl<B: http_body::Body<Data = Bytes>> http_body::Body for Body<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if let Some(whole) = self.whole.take() {
            return Poll::Ready(Some(Ok(Frame::data(whole))));
        }
        let Some(rest) = &mut self.rest else {
            return Poll::Ready(self.trailers.take().map(Frame::trailers).map(Ok));
        };
        let frame = ready!(rest.as_mut().poll_frame(context));
        if frame.is_none() {
            self.rest = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let rest = self.rest.as_ref();
        let over = rest.is_none_or(http_body::Body::is_end_stream);
        self.whole.is_none() && over && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let whole = self.whole.as_ref().map_or(0, Bytes::len) as u64;
        let rest = match (&self.rest, &self.trailers) {
            (Some(rest), _) => rest.size_hint(),
            (None, None) => SizeHint::with_exact(0),
            // With an exact length HTTP/1 sends no trailers.
            (None, Some(_)) => SizeHint::new(),
        };
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(whole));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(whole));
        }
        hint
    }
}
