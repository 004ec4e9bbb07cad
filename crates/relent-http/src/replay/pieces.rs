//! Passes a long body to its connection in pieces.
//!
//! hyper polls a body only while its write buffer has space. If the server does not read, the buffer
//! stays full, and the connection never notices that its attempt has ended: the socket stays
//! open for as long as the kernel allows. So a connection gets one piece at a time, and the next one after that
//! is written. In between it polls the body, which can fail and so close the connection.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep};

use super::error::Superseded;
use super::frame::PolledFrame;

/// Bodies up to this many bytes are passed on as they come. The kernel of any server buffers as much, so they
/// are written even if the server reads nothing.
const UNPACED_MAX_BYTES: u64 = 64 << 10;
/// Maximum bytes of a piece. A prime, so that no piece ends exactly where an HTTP/2 window does: then the
/// connection would take the next piece and wait for the window.
const PIECE_MAX_BYTES: usize = 65_521;
/// Shorter pieces are not tracked: the many small messages of a stream are written together.
const TRACKED_MIN_BYTES: usize = 4 << 10;
/// Maximum time to write a piece, during its attempt and after it.
const PIECE_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the task yields before it waits for a piece by a timer: most pieces are written immediately.
const YIELDS_BEFORE_TIMER: u8 = 1;
/// Like `YIELDS_BEFORE_TIMER`, until the first piece is dropped. A reader that has not dropped one by then is assumed to
/// keep the data, such as a service that collects the body.
const YIELDS_BEFORE_FIRST_DROP: u8 = 100;

/// The source of the body.
pub(super) trait Source {
    /// The next frame, whatever its length.
    fn poll(&mut self, context: &mut Context<'_>) -> PolledFrame;

    /// Whether nothing is left to poll.
    fn is_end(&self) -> bool;

    /// The size of the rest.
    fn hint(&self) -> SizeHint;

    /// Whether its attempt has ended, and another has the turn.
    fn is_over(&self) -> bool;

    /// Like `is_over`; if `false`, the end of the attempt wakes the task.
    fn wait(&self, context: &Context<'_>) -> bool;

    /// Whether the call has ended, with this attempt as its last.
    fn is_last(&self) -> bool;

    /// Records that the whole body has been passed on.
    fn handed_over(&self);
}

/// Progress of passing on a body.
#[derive(Default)]
pub(super) struct Pieces {
    handed: u64,
    /// The reader is known to drop the data that it has written.
    pub(super) drops: bool,
    // Boxed: few bodies are long, but all are moved.
    long: Option<Box<LongBody>>,
}

struct LongBody {
    /// Data that was read but not passed on yet.
    rest: Bytes,
    flight: Arc<Flight>,
    yields: u8,
    /// The reader keeps the data, so it gets the rest as it comes.
    pass_through: bool,
    stall: Option<Pin<Box<Sleep>>>,
}

/// The piece that is being written; the connection drops it afterwards.
#[derive(Default)]
struct Flight {
    is_out: AtomicBool,
    /// Whether any piece has been dropped.
    any_dropped: AtomicBool,
    waiting: Mutex<Option<Waker>>,
}

struct Piece {
    bytes: Bytes,
    flight: Arc<Flight>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.flight.any_dropped.store(true, Ordering::Release);
        self.flight.is_out.store(false, Ordering::Release);
        let waiting = self.flight.waiting.lock();
        let waker = waiting.unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Flight {
    /// Whether a piece is being written; if so, its drop wakes the task.
    fn is_out(&self, context: &Context<'_>) -> bool {
        if !self.is_out.load(Ordering::Acquire) {
            return false;
        }
        let waiting = self.waiting.lock();
        *waiting.unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
        self.is_out.load(Ordering::Acquire)
    }
}

impl Pieces {
    /// The next frame for the connection.
    #[inline]
    pub(super) fn poll(
        &mut self,
        source: &mut impl Source,
        context: &mut Context<'_>,
    ) -> PolledFrame {
        if let Some(long) = &mut self.long {
            return long.poll(source, self.drops, context);
        }
        let frame = match ready!(source.poll(context)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Poll::Ready(Some(Err(error))),
            None => {
                source.handed_over();
                return Poll::Ready(None);
            }
        };
        let length = frame.data_ref().map_or(0, Bytes::len) as u64;
        self.handed = self.handed.saturating_add(length);
        let known = self.handed.saturating_add(source.hint().lower());
        // Outside tokio there is no timer to limit the wait for a piece.
        if length > 0 && known > UNPACED_MAX_BYTES && Handle::try_current().is_ok() {
            let long = self
                .long
                .insert(LongBody::new(frame.into_data().unwrap_or_default()));
            return long.next(source);
        }
        if source.is_end() {
            source.handed_over();
        }
        Poll::Ready(Some(Ok(frame)))
    }

    /// Whether a piece is being written.
    pub(super) fn is_out(&self) -> bool {
        let is_out =
            |long: &LongBody| !long.pass_through && long.flight.is_out.load(Ordering::Acquire);
        self.long.as_deref().is_some_and(is_out)
    }

    /// Whether all data that was read has been passed on.
    pub(super) fn is_empty(&self) -> bool {
        self.long.as_ref().is_none_or(|long| long.rest.is_empty())
    }

    /// The size of the data that is not passed on yet, plus the rest of the body.
    pub(super) fn hint(&self, left: SizeHint) -> SizeHint {
        let Some(long) = &self.long else {
            return left;
        };
        let rest = long.rest.len() as u64;
        let mut hint = SizeHint::new();
        hint.set_lower(left.lower().saturating_add(rest));
        if let Some(upper) = left.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}

impl LongBody {
    fn new(rest: Bytes) -> Box<Self> {
        Box::new(Self {
            rest,
            flight: Arc::default(),
            yields: 0,
            pass_through: false,
            stall: None,
        })
    }

    fn poll(
        &mut self,
        source: &mut impl Source,
        drops: bool,
        context: &mut Context<'_>,
    ) -> PolledFrame {
        while !self.pass_through && self.flight.is_out(context) {
            if source.wait(context) {
                return superseded();
            }
            let drops_some = drops || self.flight.any_dropped.load(Ordering::Acquire);
            let yields = if drops_some {
                YIELDS_BEFORE_TIMER
            } else {
                YIELDS_BEFORE_FIRST_DROP
            };
            if self.yields < yields {
                self.yields += 1;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if drops_some {
                let stall = self
                    .stall
                    .get_or_insert_with(|| Box::pin(sleep(PIECE_TIMEOUT)));
                ready!(stall.as_mut().poll(context));
                self.stall = None;
                if source.is_last() {
                    return superseded();
                }
            }
            // A reader that keeps the pieces would otherwise wait forever.
            self.pass_through = !drops;
        }
        (self.stall, self.yields) = (None, 0);
        while self.rest.is_empty() {
            match ready!(source.poll(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(frame) => {
                        source.handed_over();
                        return Poll::Ready(Some(Ok(frame)));
                    }
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    source.handed_over();
                    return Poll::Ready(None);
                }
            }
        }
        self.next(source)
    }

    /// The next piece of the data that was read. The last byte of the body is sent separately: the connection
    /// takes it only after all data before it is written, and polls nothing afterwards.
    fn next(&mut self, source: &impl Source) -> PolledFrame {
        if source.is_over() {
            return superseded();
        }
        let is_end = source.is_end();
        let mut length = self.rest.len();
        if !self.pass_through {
            length = length.min(PIECE_MAX_BYTES);
            if is_end && length == self.rest.len() && length > 1 {
                length -= 1;
            }
        }
        let bytes = self.rest.split_to(length);
        if is_end && self.rest.is_empty() {
            source.handed_over();
        }
        if self.pass_through || length < TRACKED_MIN_BYTES {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        let flight = self.flight.clone();
        flight.is_out.store(true, Ordering::Release);
        let piece = Bytes::from_owner(Piece { bytes, flight });
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

/// Another attempt has the turn, or the server has stopped reading.
fn superseded() -> PolledFrame {
    Poll::Ready(Some(Err(Superseded.into())))
}
