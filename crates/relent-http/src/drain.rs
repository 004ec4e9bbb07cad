//! Reading what is left of a refused response, so that its connection can be used again.

use std::time::Duration;

#[cfg(feature = "tower")]
use std::pin::Pin;
#[cfg(feature = "tower")]
use std::task::{Context, Poll, ready};

#[cfg(feature = "tower")]
use bytes::Buf;
#[cfg(feature = "tower")]
use http_body::Body;
#[cfg(feature = "tower")]
use pin_project_lite::pin_project;

/// The longest that it may take: about what a new connection would cost anyway.
pub(crate) const TIME: Duration = Duration::from_millis(250);
/// The most bytes that are read: more than an error page has.
pub(crate) const BYTES: u64 = 256 << 10;

/// How long a response is read before the next attempt, which starts `after` so long and must start
/// within `room`: where that is short, no longer than the attempt waits anyway.
pub(crate) fn patience(after: Duration, room: Option<Duration>) -> Duration {
    match room {
        Some(room) if room < after.saturating_add(TIME) => after.min(TIME),
        _ => TIME,
    }
}

#[cfg(feature = "tower")]
pin_project! {
    /// A body that is read to its end and thrown away. Dropped before, its connection is closed.
    pub(crate) struct Drain<R> {
        #[pin]
        body: R,
        read: u64,
    }
}

#[cfg(feature = "tower")]
impl<R: Body> Drain<R> {
    /// `None` for a body that is known to be too long.
    pub(crate) fn new(body: R) -> Option<Self> {
        (body.size_hint().lower() <= BYTES).then_some(Self { body, read: 0 })
    }

    /// Ready when there is no more to read, or too much.
    pub(crate) fn poll_end(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        while let Some(Ok(frame)) = ready!(this.body.as_mut().poll_frame(context)) {
            let length = frame.data_ref().map_or(0, Buf::remaining);
            *this.read = this.read.saturating_add(length as u64);
            if *this.read > BYTES {
                break;
            }
        }
        Poll::Ready(())
    }
}
