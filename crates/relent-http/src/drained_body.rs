//! The body of a rejected response that remained the last one, as far as it was read.

use std::error::Error;
use std::fmt;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

/// The read part of a body, as a body. If it is incomplete, it ends with an error.
#[derive(Debug, Default)]
pub struct Drained {
    pub(crate) bytes: Vec<u8>,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) end: End,
}

/// What follows after the bytes.
#[derive(Debug, Default)]
pub(crate) enum End {
    #[default]
    Whole,
    NotKept(NotKept),
    /// The body failed while it was read.
    Broke(Box<dyn Error + Send + Sync>),
}

/// Error: a body was read only in part, before an attempt that was not made.
///
/// A response that will be retried is read up to 256 KiB and 250 ms, so that its connection can be
/// used again. If a circuit breaker, a cooldown or a rate then holds the retry for as long as it may wait,
/// the call returns this response with the part that was read.
///
/// ```
/// use std::error::Error;
/// use relent_http::body::NotKept;
///
/// /// Whether an error of a body means that the body is incomplete.
/// fn is_not_kept(mut error: &(dyn Error + 'static)) -> bool {
///     loop {
///         if error.is::<NotKept>() {
///             return true;
///         }
///         match error.source() {
///             Some(source) => error = source,
///             None => return false,
///         }
///     }
/// }
/// # let _ = is_not_kept(&std::fmt::Error);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotKept {
    why: &'static str,
}

impl NotKept {
    pub(crate) const TOO_LONG: End = End::NotKept(Self {
        why: "it is longer than 256 KiB",
    });
    pub(crate) const TOO_SLOW: End = End::NotKept(Self {
        why: "it took too long",
    });
}

impl fmt::Display for NotKept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { why } = self;
        write!(
            f,
            "this response was to be retried, and its body was not read to its end: {why}"
        )
    }
}

impl Error for NotKept {}

impl Drained {
    pub(crate) const fn new(end: End) -> Self {
        Self {
            bytes: Vec::new(),
            trailers: None,
            end,
        }
    }
}

impl Body for Drained {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(if !self.bytes.is_empty() {
            Some(Ok(Frame::data(mem::take(&mut self.bytes).into())))
        } else if let Some(trailers) = self.trailers.take() {
            Some(Ok(Frame::trailers(trailers)))
        } else {
            match mem::take(&mut self.end) {
                End::Whole => None,
                End::NotKept(error) => Some(Err(error.into())),
                End::Broke(error) => Some(Err(error)),
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty() && self.trailers.is_none() && matches!(self.end, End::Whole)
    }

    fn size_hint(&self) -> SizeHint {
        let length = self.bytes.len() as u64;
        let mut hint = SizeHint::new();
        hint.set_lower(length);
        if matches!(self.end, End::Whole) {
            hint.set_upper(length);
        }
        hint
    }
}
