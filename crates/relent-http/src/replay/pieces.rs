//! A long body that is handed to its connection piece by piece.
//!
//! hyper asks for more of a body only while its buffer has room. A buffer that is full because the server
//! does not read stays full, and the connection never learns that its attempt is over: the socket stays
//! open for as long as the kernel allows. So a connection gets one piece at a time, and the next when that
//! is written. Between the two it waits for the body, which can fail and so close the connection.

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
use super::frame::Polled;

/// A body of no more bytes than this is handed over as it comes. Any server's kernel takes as much, so that
/// it is written even if the server reads nothing.
const SHORT: u64 = 64 << 10;
/// The most bytes of a piece. It is a prime, so that no piece ends where a window of HTTP/2 does: the next
/// would be taken from here then, and wait for the window.
const PIECE: usize = 65_521;
/// What is shorter is not waited for: the many small messages of a stream are written together.
const SMALL: usize = 4 << 10;
/// The longest that a piece may take to be written while its attempt runs, and after it.
const STALL: Duration = Duration::from_secs(30);
/// How often the task runs again before a piece is waited for by a timer: most are written at once.
const YIELDS: u8 = 1;
/// The same while no piece was dropped yet. A reader that has not dropped one by then is taken for one that
/// keeps what it reads, such as a service that collects the body.
const YIELDS_AT_FIRST: u8 = 100;

/// Whose body it is.
pub(super) trait Source {
    /// The next frame, whatever its length.
    fn poll(&mut self, context: &mut Context<'_>) -> Polled;

    /// Whether there is nothing more to poll for.
    fn is_end(&self) -> bool;

    /// What is left to poll for.
    fn hint(&self) -> SizeHint;

    /// Whether its attempt is over, and another has the turn.
    fn is_over(&self) -> bool;

    /// The same, and if not, what ends the attempt wakes the task.
    fn wait(&self, context: &Context<'_>) -> bool;

    /// Whether the call is over, with this attempt as its last.
    fn is_last(&self) -> bool;

    /// All of it has been handed over.
    fn handed_over(&self);
}

/// How far a body has been handed over.
#[derive(Default)]
pub(super) struct Pieces {
    handed: u64,
    /// The reader is known to drop what it has written.
    pub(super) drops: bool,
    // Few bodies are long, and all are moved.
    long: Option<Box<Long>>,
}

struct Long {
    /// What was read and is not handed over yet.
    rest: Bytes,
    flight: Arc<Flight>,
    yields: u8,
    /// The reader keeps what it reads: it gets the rest as it comes.
    at_once: bool,
    stall: Option<Pin<Box<Sleep>>>,
}

/// The piece that is on its way, and which the connection drops when it is written.
#[derive(Default)]
struct Flight {
    is_out: AtomicBool,
    /// Whether any piece was dropped.
    lands: AtomicBool,
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
        self.flight.lands.store(true, Ordering::Release);
        self.flight.is_out.store(false, Ordering::Release);
        let waiting = self.flight.waiting.lock();
        let waker = waiting.unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Flight {
    /// Whether a piece is on its way: what drops it wakes the task.
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
    pub(super) fn poll(&mut self, source: &mut impl Source, context: &mut Context<'_>) -> Polled {
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
        // Without its timer nothing would bound the wait for a piece.
        if length > 0 && known > SHORT && Handle::try_current().is_ok() {
            let long = self
                .long
                .insert(Long::new(frame.into_data().unwrap_or_default()));
            return long.next(source);
        }
        if source.is_end() {
            source.handed_over();
        }
        Poll::Ready(Some(Ok(frame)))
    }

    /// Whether a piece is on its way.
    pub(super) fn is_out(&self) -> bool {
        let is_out = |long: &Long| !long.at_once && long.flight.is_out.load(Ordering::Acquire);
        self.long.as_deref().is_some_and(is_out)
    }

    /// Whether all has been handed over that was read.
    pub(super) fn is_empty(&self) -> bool {
        self.long.as_ref().is_none_or(|long| long.rest.is_empty())
    }

    /// What has been read and is to be handed over, before what is left of the body.
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

impl Long {
    fn new(rest: Bytes) -> Box<Self> {
        Box::new(Self {
            rest,
            flight: Arc::default(),
            yields: 0,
            at_once: false,
            stall: None,
        })
    }

    fn poll(&mut self, source: &mut impl Source, drops: bool, context: &mut Context<'_>) -> Polled {
        while !self.at_once && self.flight.is_out(context) {
            if source.wait(context) {
                return superseded();
            }
            let drops_some = drops || self.flight.lands.load(Ordering::Acquire);
            let yields = if drops_some { YIELDS } else { YIELDS_AT_FIRST };
            if self.yields < yields {
                self.yields += 1;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if drops_some {
                let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(STALL)));
                ready!(stall.as_mut().poll(context));
                self.stall = None;
                if source.is_last() {
                    return superseded();
                }
            }
            // One that keeps the pieces after all would wait for ever.
            self.at_once = !drops;
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

    /// The next piece of what was read. The last byte of the body goes by itself: after it the connection
    /// asks for nothing more, and all before it is written by then.
    fn next(&mut self, source: &impl Source) -> Polled {
        if source.is_over() {
            return superseded();
        }
        let is_end = source.is_end();
        let mut length = self.rest.len();
        if !self.at_once {
            length = length.min(PIECE);
            if is_end && length == self.rest.len() && length > 1 {
                length -= 1;
            }
        }
        let bytes = self.rest.split_to(length);
        if is_end && self.rest.is_empty() {
            source.handed_over();
        }
        if self.at_once || length < SMALL {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        let flight = self.flight.clone();
        flight.is_out.store(true, Ordering::Release);
        let piece = Bytes::from_owner(Piece { bytes, flight });
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

/// Another attempt has the turn, or nobody takes the rest.
fn superseded() -> Polled {
    Poll::Ready(Some(Err(Superseded.into())))
}
