//! Reads the rest of a rejected response, so that its connection can be used again, and keeps
//! it, in case that it remains the last response.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BufMut};
use http::Response;
use http_body::{Body, Frame};
use pin_project_lite::pin_project;

use crate::complete::Proof;
use crate::drained_body::{Drained, End, NotKept};

/// Maximum time to drain a response: about the cost of a new connection.
pub const MAX_DRAIN_TIME: Duration = Duration::from_millis(250);
/// Maximum number of bytes that are read: more than an error page has.
pub const MAX_DRAIN_BYTES: usize = 256 << 10;

/// How long to drain a response before the next attempt, which starts `after` this delay and must start
/// within `room`. If `room` is short, draining takes no longer than the delay.
#[must_use]
pub fn drain_time(after: Duration, room: Option<Duration>) -> Duration {
    match room {
        Some(room) if room < after.saturating_add(MAX_DRAIN_TIME) => after.min(MAX_DRAIN_TIME),
        _ => MAX_DRAIN_TIME,
    }
}

pin_project! {
    /// A body that is read to its end, and kept. A body that is not read to its end is dropped, which closes
    /// its connection.
    #[derive(Debug)]
    pub struct Drain<R> {
        // `None` when reading has stopped.
        #[pin]
        body: Option<R>,
        proof: Option<Proof>,
        drained: Drained,
    }
}

impl<R> Drain<R>
where
    R: Body,
    R::Error: Into<Box<dyn Error + Send + Sync>>,
{
    /// Drains the body of the response with this head. A body that is known to be too long is not read.
    /// `reports_end_stream`: as for [`Proof::needed`].
    pub fn new<B>(head: &Response<B>, body: R, reports_end_stream: impl FnOnce() -> bool) -> Self {
        let (status, version) = (head.status(), head.version());
        let fits = body.size_hint().lower() <= MAX_DRAIN_BYTES as u64;
        Self {
            body: fits.then_some(body),
            proof: Proof::needed(None, status, version, head.headers(), reports_end_stream),
            drained: Drained::new(if fits { End::Whole } else { NotKept::TOO_LONG }),
        }
    }

    /// Ready when the body has ended, or has reached the maximum.
    pub fn poll_end(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let Drained {
            bytes,
            trailers,
            end,
        } = this.drained;
        while let Some(mut body) = this.body.as_mut().as_pin_mut() {
            let read = ready!(body.as_mut().poll_frame(context));
            let read = match this.proof {
                Some(proof) => proof.check(read, || body.is_end_stream()),
                None => read.map(|read| read.map_err(Into::into)),
            };
            let read = match read {
                Some(Ok(frame)) => frame.into_data().map_err(Frame::into_trailers),
                Some(Err(error)) => {
                    *end = End::Broke(error);
                    this.body.set(None);
                    break;
                }
                None => {
                    this.body.set(None);
                    break;
                }
            };
            match read {
                Ok(data) => {
                    let room = MAX_DRAIN_BYTES - bytes.len();
                    let fits = data.remaining() <= room;
                    // A copy: the frame could keep a buffer of any size alive.
                    bytes.put(data.take(room));
                    if !fits {
                        *end = NotKept::TOO_LONG;
                        this.body.set(None);
                    }
                }
                Err(Ok(more)) => *trailers = Some(more),
                Err(Err(_)) => {}
            }
        }
        Poll::Ready(())
    }

    /// Stops reading. If the body has not ended, it counts as too slow.
    pub fn end(self: Pin<&mut Self>) {
        let mut this = self.project();
        if this.body.is_some() {
            this.body.set(None);
            this.drained.end = NotKept::TOO_SLOW;
        }
    }

    /// Whether there is more to read.
    #[cfg(feature = "tower")]
    pub(crate) const fn is_reading(&self) -> bool {
        self.body.is_some()
    }

    /// Takes the part that was read; call it once.
    pub fn take(mut self: Pin<&mut Self>) -> Drained {
        self.as_mut().end();
        let mut drained = std::mem::take(self.project().drained);
        drained.bytes.shrink_to_fit();
        drained
    }
}
