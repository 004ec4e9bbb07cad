//! A body that is kept while it streams.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, SizeHint};

use super::error::{BoxError, NotReplayable, Superseded};
use super::frame::{PolledFrame, in_bytes};
use super::kept::Kept;

/// Default cap of the kept bytes of a body.
pub(super) const CAP: usize = 64 << 10;

/// The state that the bodies of all attempts share. At any time one of them has the turn. It reads
/// all kept data before it reads more from the source.
pub(super) struct Stream<B> {
    /// The number of the attempt whose body may read, from 0.
    turn: u32,
    source: Pin<Box<B>>,
    /// The task that waits for the source.
    waker: Option<Waker>,
    kept: KeptData,
    /// Index of the next kept part for the body with the turn.
    next: usize,
    trailers: Option<HeaderMap>,
    /// Whether the body with the turn has read the trailers.
    trailers_read: bool,
    /// Bytes read from the source, and its total length if it was declared at the start.
    read: u64,
    length: Option<u64>,
    state: State,
    /// No attempt follows the one with the turn.
    last: bool,
    /// The encoded [`Upload`](super::Upload).
    pub(super) upload: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The source has ended.
    Ended,
    Failed,
}

/// Copies of the data that was read. Not the frames themselves: each could keep a buffer of any size alive,
/// and a frame of one byte would cost more than the byte.
struct KeptData {
    /// Data from earlier attempts.
    parts: Vec<Bytes>,
    /// Data from the current attempt.
    tail: BytesMut,
    /// Remaining capacity in bytes.
    remaining_capacity: usize,
    /// False once the capacity is exceeded, or no attempt can follow.
    keeping: bool,
    /// Some data was read but not kept.
    lost: bool,
}

impl KeptData {
    fn keep(&mut self, data: &[u8]) {
        if self.keeping && data.len() <= self.remaining_capacity {
            self.remaining_capacity -= data.len();
            self.tail.extend_from_slice(data);
        } else if !data.is_empty() {
            self.lost = true;
            self.forget();
            // The body with the turn has read them, or there would be no new data.
            self.parts.clear();
        }
    }

    /// Stops keeping data. The parts may still have to be read.
    fn forget(&mut self) {
        self.keeping = false;
        self.tail = BytesMut::new();
    }
}

impl<B> Stream<B> {
    pub(super) const fn turn(&self) -> u32 {
        self.turn
    }

    /// Whether this turn has ended.
    pub(super) fn is_over(&self, turn: u32) -> bool {
        turn != self.turn || self.state == State::Failed
    }

    /// Like `is_over`; if `false`, the end of the turn wakes the task.
    pub(super) fn wait(&mut self, turn: u32, context: &Context<'_>) -> bool {
        let over = self.is_over(turn);
        if !over {
            match &mut self.waker {
                Some(waker) => waker.clone_from(context.waker()),
                None => self.waker = Some(context.waker().clone()),
            }
        }
        over
    }

    /// Whether no further attempt follows.
    pub(super) const fn is_last(&self) -> bool {
        self.last
    }

    /// Records that no further attempt follows.
    pub(super) fn forget(&mut self) {
        self.last = true;
        self.kept.forget();
        for read in self.kept.parts.iter_mut().take(self.next) {
            *read = Bytes::new();
        }
    }
}

impl<B> Stream<B>
where
    B: Body<Error: Into<BoxError>>,
{
    pub(super) fn new(body: B, cap: usize) -> Self {
        let hint = body.size_hint();
        let fits = |length: u64| usize::try_from(length).is_ok_and(|length| length <= cap);
        // A declared length is only a claim, for a forwarded request that of a peer. Larger capacity is
        // allocated only for data that has arrived.
        let declared = hint.exact().filter(|length| fits(*length)).unwrap_or(0);
        let expected = declared.min(CAP as u64);
        Self {
            turn: 0,
            source: Box::pin(body),
            waker: None,
            kept: KeptData {
                parts: Vec::new(),
                tail: BytesMut::with_capacity(usize::try_from(expected).unwrap_or(0)),
                remaining_capacity: cap,
                // A body that is known to be too long is not kept at all.
                keeping: fits(hint.lower()),
                lost: false,
            },
            next: 0,
            trailers: None,
            trailers_read: false,
            read: 0,
            length: hint.exact(),
            state: State::Open,
            last: false,
            upload: 0,
        }
    }

    pub(super) fn announce(&mut self, length: u64) {
        self.length.get_or_insert(length);
    }

    pub(super) fn poll(&mut self, turn: u32, context: &mut Context<'_>) -> PolledFrame {
        if self.is_over(turn) {
            return Poll::Ready(Some(Err(Superseded.into())));
        }
        if let Some(part) = self.kept.parts.get_mut(self.next) {
            self.next += 1;
            let part = if self.kept.keeping {
                part.clone()
            } else {
                std::mem::take(part)
            };
            return Poll::Ready(Some(Ok(http_body::Frame::data(part))));
        }
        if self.state == State::Ended {
            let rest = self.trailers.clone().filter(|_| !self.trailers_read);
            self.trailers_read = true;
            return Poll::Ready(rest.map(|trailers| Ok(http_body::Frame::trailers(trailers))));
        }
        match self.source.as_mut().poll_frame(context) {
            Poll::Pending => {
                self.wait(turn, context);
                Poll::Pending
            }
            Poll::Ready(None) => {
                self.state = State::Ended;
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => {
                self.state = State::Failed;
                self.kept.forget();
                self.kept.parts.clear();
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Ready(Some(Ok(frame))) => {
                let frame = in_bytes(frame);
                if let Some(data) = frame.data_ref() {
                    self.read = self.read.saturating_add(data.len() as u64);
                    self.kept.keep(data);
                    if self.kept.parts.is_empty() {
                        self.next = 0;
                    }
                } else if let Some(trailers) = frame.trailers_ref() {
                    self.trailers = Some(trailers.clone());
                    self.trailers_read = true;
                    self.state = State::Ended;
                }
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }

    pub(super) fn is_end(&self, turn: u32) -> bool {
        let read = self.kept.parts.len() <= self.next;
        let ended = match self.state {
            State::Open => self.source.is_end_stream(),
            State::Ended => self.trailers.is_none() || self.trailers_read,
            State::Failed => false,
        };
        turn == self.turn && read && ended
    }

    pub(super) fn size_hint(&self, turn: u32) -> SizeHint {
        if self.is_over(turn) {
            return SizeHint::default();
        }
        let parts = self.kept.parts.iter().skip(self.next);
        let kept: u64 = parts.map(|part| part.len() as u64).sum();
        let source = match self.state {
            State::Open => self.source.size_hint(),
            _ => SizeHint::with_exact(0),
        };
        let mut hint = SizeHint::new();
        hint.set_lower(source.lower().saturating_add(kept));
        if self.may_tell_length(!self.trailers_read)
            && let Some(upper) = source.upper()
        {
            hint.set_upper(upper.saturating_add(kept));
        }
        hint
    }

    /// Whether the length may be reported although it was not declared at the start: over HTTP/1.1 a body with a
    /// declared length has no trailers (RFC 9112 section 6.3).
    const fn may_tell_length(&self, trailers_follow: bool) -> bool {
        self.length.is_some() || self.trailers.is_none() || !trailers_follow
    }

    /// Whether all data has been read from the source.
    pub(super) fn is_whole(&self) -> bool {
        match self.state {
            State::Open => {
                self.source.is_end_stream() || self.length.is_some_and(|length| self.read >= length)
            }
            State::Ended => true,
            State::Failed => false,
        }
    }

    /// The complete body, after it has been read to its end, if it was kept. The turn does not change.
    pub(super) fn kept(&mut self) -> Option<Kept> {
        if self.state == State::Failed || self.kept.lost || !self.is_whole() {
            return None;
        }
        if !self.kept.tail.is_empty() {
            // The body with the turn has already read the data that just came from the source.
            self.kept.parts.push(self.kept.tail.split().freeze());
            self.next = self.kept.parts.len();
        }
        let (parts, trailers) = (self.kept.parts.clone(), self.trailers.clone());
        Some(Kept::new(parts, trailers, self.may_tell_length(true)))
    }

    /// Passes the turn to the next attempt, from the beginning. Returns the waker of the waiting task.
    pub(super) fn take_back(&mut self, answered: bool) -> Result<Option<Waker>, NotReplayable> {
        if self.state == State::Failed || self.kept.lost || answered && !self.is_whole() {
            return Err(NotReplayable);
        }
        self.turn = self.turn.wrapping_add(1);
        if !self.kept.tail.is_empty() {
            let part = self.kept.tail.split().freeze();
            self.kept.parts.push(part);
        }
        self.next = 0;
        self.trailers_read = false;
        Ok(self.waker.take())
    }
}
