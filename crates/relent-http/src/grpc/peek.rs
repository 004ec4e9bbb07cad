//! Reads the first frame of a response body: a message, or the trailers with the status.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

/// Future that reads the first frame of a body, and yields a body that still returns all frames.
///
/// A failure that a server reports in its trailers can be retried only while nothing of the response
/// has been returned to the caller. A message commits the call. Empty data frames are no message and are
/// dropped.
///
/// ```
/// use relent_http::grpc::{First, Peek};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let body = tonic::body::Body::empty();
/// let peeked = Peek::new(body).await;
/// assert!(matches!(peeked.first(), First::End));
/// # }
/// ```
pub struct Peek<B> {
    body: Option<B>,
}

impl<B> Peek<B> {
    /// Creates the future for this body.
    pub const fn new(body: B) -> Self {
        Self { body: Some(body) }
    }
}

impl<B: Body + Unpin> Future for Peek<B> {
    type Output = Peeked<B>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Peeked<B>> {
        // A poll after completion: there is nothing to return.
        let Some(mut body) = self.body.take() else {
            return Poll::Pending;
        };
        loop {
            match Pin::new(&mut body).poll_frame(context) {
                Poll::Pending => {
                    self.body = Some(body);
                    return Poll::Pending;
                }
                Poll::Ready(Some(Ok(frame)))
                    if frame.data_ref().is_some_and(|data| !data.has_remaining()) => {}
                Poll::Ready(first) => {
                    return Poll::Ready(Peeked {
                        ended: first.is_none(),
                        first,
                        body: Some(body),
                    });
                }
            }
        }
    }
}

impl<B> fmt::Debug for Peek<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peek").finish_non_exhaustive()
    }
}

pin_project! {
    /// A body whose first frame may have been read already; it still yields all frames.
    pub struct Peeked<B: Body> {
        first: Option<Result<Frame<B::Data>, B::Error>>,
        // The inner body has ended and must not be polled again.
        ended: bool,
        #[pin]
        body: Option<B>,
    }
}

/// The first frame of a body.
#[derive(Debug)]
pub enum First<'b, E> {
    /// The beginning of a message.
    Message,
    /// The trailers.
    Trailers(&'b HeaderMap),
    /// The body has no frames.
    End,
    /// An error.
    Error(&'b E),
    /// The first frame has not been read, or was consumed since.
    Unseen,
}

impl<B: Body> Peeked<B> {
    /// Wraps a body whose first frame has not been read.
    pub const fn unseen(body: B) -> Self {
        Self {
            first: None,
            ended: false,
            body: Some(body),
        }
    }

    /// The body of a response without one.
    #[cfg(feature = "tower")]
    pub(crate) const fn empty() -> Self {
        Self {
            first: None,
            ended: true,
            body: None,
        }
    }

    /// Returns the error if the first frame is one.
    #[cfg(feature = "tower")]
    pub(crate) fn into_error(self) -> Result<Self, B::Error> {
        match self.first {
            Some(Err(error)) => Err(error),
            first => Ok(Self { first, ..self }),
        }
    }

    /// The first frame, if it has been read.
    pub fn first(&self) -> First<'_, B::Error> {
        match &self.first {
            Some(Ok(frame)) => match frame.trailers_ref() {
                Some(trailers) => First::Trailers(trailers),
                None => First::Message,
            },
            Some(Err(error)) => First::Error(error),
            None if self.ended => First::End,
            None => First::Unseen,
        }
    }
}

impl<B: Body> Body for Peeked<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        if let Some(first) = this.first.take() {
            return Poll::Ready(Some(first));
        }
        let Some(body) = this.body.as_pin_mut().filter(|_| !*this.ended) else {
            return Poll::Ready(None);
        };
        let frame = ready!(body.poll_frame(context));
        *this.ended = frame.is_none();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let rest = self.body.as_ref().filter(|_| !self.ended);
        self.first.is_none() && rest.is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let seen = match &self.first {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Buf::remaining) as u64,
            _ => 0,
        };
        let rest = self.body.as_ref().filter(|_| !self.ended);
        let rest = rest.map_or(SizeHint::with_exact(0), Body::size_hint);
        let mut hint = SizeHint::new();
        // Set the upper bound first: it must not be below the lower one.
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(seen)) {
            hint.set_upper(upper);
        }
        hint.set_lower(rest.lower().saturating_add(seen));
        hint
    }
}

impl<B: Body> fmt::Debug for Peeked<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peeked")
            .field("seen", &self.first.is_some())
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::task::Waker;

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    enum Step {
        Wait,
        Data(Vec<u8>),
        Trailers,
        Fail,
    }

    /// Body that yields these steps, reports the remaining bytes, and panics if polled after its end.
    struct Scripted {
        steps: VecDeque<Step>,
        ended: bool,
    }

    impl Scripted {
        fn new(steps: impl IntoIterator<Item = Step>) -> Self {
            Self {
                steps: steps.into_iter().collect(),
                ended: false,
            }
        }
    }

    impl Body for Scripted {
        type Data = Bytes;
        type Error = &'static str;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
            assert!(!self.ended, "polled after its end");
            Poll::Ready(match self.steps.pop_front() {
                None => {
                    self.ended = true;
                    None
                }
                Some(Step::Wait) => {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Some(Step::Data(data)) => Some(Ok(Frame::data(data.into()))),
                Some(Step::Trailers) => Some(Ok(Frame::trailers(trailers()))),
                Some(Step::Fail) => Some(Err("broken")),
            })
        }

        fn size_hint(&self) -> SizeHint {
            let bytes = |step: &Step| match step {
                Step::Data(data) => data.len() as u64,
                _ => 0,
            };
            SizeHint::with_exact(self.steps.iter().map(bytes).sum())
        }
    }

    fn trailers() -> HeaderMap {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", 14.into());
        trailers
    }

    fn data(data: &[u8]) -> Step {
        Step::Data(data.to_vec())
    }

    fn peek(steps: impl IntoIterator<Item = Step>) -> Peeked<Scripted> {
        let mut peek = Peek::new(Scripted::new(steps));
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(peeked) = Pin::new(&mut peek).poll(&mut context) {
                return peeked;
            }
        }
    }

    /// Everything that a body yields, without waits and empty frames.
    fn read<B>(mut body: B) -> Vec<Step>
    where
        B: Body<Data = Bytes, Error = &'static str> + Unpin,
    {
        let mut seen = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        loop {
            match Pin::new(&mut body).poll_frame(&mut context) {
                Poll::Pending => {}
                Poll::Ready(None) => return seen,
                Poll::Ready(Some(Err(_))) => seen.push(Step::Fail),
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(bytes) if bytes.is_empty() => {}
                    Ok(bytes) => seen.push(Step::Data(bytes.to_vec())),
                    Err(_) => seen.push(Step::Trailers),
                },
            }
        }
    }

    #[test]
    fn peek_reports_the_first_frame() {
        let first = |steps: Vec<Step>| match peek(steps).first() {
            First::Message => "message",
            First::Trailers(fields) if *fields == trailers() => "trailers",
            First::End => "end",
            First::Error(&"broken") => "error",
            other => panic!("{other:?}"),
        };
        assert_eq!(first(vec![Step::Wait, Step::Wait, data(b"x")]), "message");
        assert_eq!(first(vec![data(b"x"), Step::Trailers]), "message");
        assert_eq!(first(vec![Step::Wait, Step::Trailers]), "trailers");
        assert_eq!(
            first(vec![data(b""), data(b""), Step::Trailers]),
            "trailers"
        );
        assert_eq!(first(vec![data(b""), data(b"x")]), "message");
        assert_eq!(first(vec![Step::Wait]), "end");
        assert_eq!(first(vec![Step::Fail]), "error");
    }

    #[test]
    fn an_unpeeked_body_is_unchanged() {
        let body = Peeked::unseen(Scripted::new([data(b"ab"), Step::Trailers]));
        assert!(matches!(body.first(), First::Unseen));
        assert_eq!(body.size_hint().exact(), Some(2));
        assert_eq!(read(body), [data(b"ab"), Step::Trailers]);
    }

    #[test]
    fn the_end_of_a_peeked_body_is_polled_once() {
        let mut ended = peek([]);
        assert!(ended.is_end_stream());
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..2 {
            let polled = Pin::new(&mut ended).poll_frame(&mut context);
            assert!(matches!(polled, Poll::Ready(None)));
        }
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            Just(Step::Wait),
            Just(Step::Fail),
            Just(Step::Trailers),
            proptest::collection::vec(any::<u8>(), 0..4).prop_map(Step::Data),
        ];
        proptest::collection::vec(step, 0..8)
    }

    proptest! {
        #[test]
        fn a_peeked_body_loses_no_frame_and_its_size_is_exact(steps in steps()) {
            let plain = Scripted::new(steps.clone());
            let whole = plain.size_hint().exact();
            let peeked = peek(steps);
            prop_assert_eq!(peeked.size_hint().exact(), whole);
            prop_assert_eq!(read(peeked), read(plain));
        }
    }
}
