//! Bodies of requests that can be sent again (design rule 9).
//!
//! A body of known content is made anew for each attempt, whatever its size. Any other is kept while
//! it streams to the server, up to a cap; beyond the cap the attempt is committed: what was kept is
//! freed, the body goes on unharmed, and it cannot be sent again.

mod content;
mod kept;
mod known;
mod stream;

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};

pub use content::Content;
use kept::Kept;
pub use known::{ByType, Reopen};
use stream::Stream;

/// The error of bodies and services of any kind.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// What is kept of the body of a request, for the attempts to come. Each has a [`ReplayBody`].
///
/// Only the body of the latest attempt yields anything. A connection may still poll that of an
/// earlier one, which then fails with [`Superseded`]: to end it instead would make a whole request
/// of a half.
///
/// Dropping this frees what is kept; the body of the latest attempt goes on.
///
/// ```
/// use bytes::Bytes;
/// use http_body_util::{BodyExt, Full};
/// use relent_http::body::{ByType, Replay};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let (mut replay, first) = Replay::new(Full::<Bytes>::from("content"), &ByType, Replay::CAP);
/// assert_eq!(first.collect().await?.to_bytes(), "content");
/// // The attempt failed without an answer.
/// replay.take_back(false)?;
/// assert_eq!(replay.again(&ByType)?.collect().await?.to_bytes(), "content");
/// # Ok(())
/// # }
/// ```
pub struct Replay<B>(Source<B>);

enum Source<B> {
    Empty,
    Known { content: B, progress: Arc<Progress> },
    Streamed(Arc<Mutex<Stream<B>>>, u32),
}

/// The body of one attempt. See [`Replay`].
pub struct ReplayBody<B>(Turn<B>);

// `B` lies behind mutexes, so that the body is `Sync`, which some clients ask for, if `B` is `Send`.
enum Turn<B> {
    Empty,
    Known {
        body: Mutex<Pin<Box<B>>>,
        progress: Arc<Progress>,
        turn: u32,
    },
    Streamed(Arc<Mutex<Stream<B>>>, u32),
    /// All that an attempt beside this one has read. In a box, since few bodies are, and all are moved.
    Kept(Box<Kept>, Arc<Progress>),
}

/// Whether the body of an attempt has been read to its end, for one who has given the body away.
#[cfg(feature = "tower")]
pub(crate) struct Progressed<B>(Reading<B>);

#[cfg(feature = "tower")]
enum Reading<B> {
    Whole,
    Known(Arc<Progress>, u32),
    Streamed(Arc<Mutex<Stream<B>>>),
}

#[cfg(feature = "tower")]
impl<B> Progressed<B>
where
    B: Body<Error: Into<BoxError>>,
{
    pub(crate) fn is_whole(&self) -> bool {
        match &self.0 {
            Reading::Whole => true,
            Reading::Known(progress, turn) => {
                progress.whole.load(Ordering::Acquire) == turn.wrapping_add(1)
            }
            Reading::Streamed(stream) => lock(stream).is_whole(),
        }
    }

    /// Its attempt is over. One that streams is beaten, or has been read to its end.
    pub(crate) fn over(self) -> Sending {
        Sending(match self.0 {
            Reading::Known(progress, turn) => Some((progress, turn)),
            Reading::Whole | Reading::Streamed(_) => None,
        })
    }
}

/// The body of an attempt that is over, which its connection may still send. Dropping this fails the body,
/// so that the connection lets go of it.
#[cfg(feature = "tower")]
pub(crate) struct Sending(Option<(Arc<Progress>, u32)>);

#[cfg(feature = "tower")]
impl Sending {
    /// There is no such body, or [`Replay::take_back`] sees to it.
    pub(crate) const NOTHING: Self = Self(None);

    /// The response of the attempt is handed up, and the server may read on.
    pub(crate) fn goes_on(mut self) {
        self.0 = None;
    }
}

#[cfg(feature = "tower")]
impl Drop for Sending {
    fn drop(&mut self) {
        if let Some((progress, turn)) = self.0.take()
            && progress.turn.load(Ordering::Acquire) == turn
        {
            progress.next_turn();
        }
    }
}

/// How far the attempts of known content are.
#[derive(Default)]
struct Progress {
    /// The attempt whose body may read.
    turn: AtomicU32,
    /// One more than the last attempt whose body was read to its end.
    whole: AtomicU32,
    /// The task that waits for more of the body: its connection.
    waiting: Mutex<Option<Waker>>,
}

impl Progress {
    /// The next attempt has the turn. Who waits for the body of the last one learns that it fails.
    fn next_turn(&self) {
        self.turn.fetch_add(1, Ordering::AcqRel);
        let waiting = self.waiting.lock();
        let waker = waiting.unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The body of this turn has nothing to give at the moment. Whether it still has the turn: what
    /// takes it from now on wakes the task.
    fn wait(&self, turn: u32, context: &Context<'_>) -> bool {
        let waiting = self.waiting.lock();
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        match &mut *waiting {
            Some(waker) => waker.clone_from(context.waker()),
            None => *waiting = Some(context.waker().clone()),
        }
        drop(waiting);
        self.turn.load(Ordering::Acquire) == turn
    }
}

/// The attempts of a body that is made anew for each by somebody else.
#[derive(Clone, Default)]
pub struct Turns(Arc<Progress>);

impl Turns {
    /// The body of the current attempt, which fails when there is [another](Self::next).
    pub fn body<B>(&self, body: B) -> ReplayBody<B> {
        let turn = self.0.turn.load(Ordering::Acquire);
        ReplayBody::known(body, self.0.clone(), turn)
    }

    /// The attempt is over, and its connection is to let go of the body.
    pub fn next(&self) {
        self.0.next_turn();
    }
}

/// The body cannot be sent again: it was too long to be kept, it failed, or the server answered
/// before it was read to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotReplayable;

impl fmt::Display for NotReplayable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body of the request cannot be sent again")
    }
}

impl Error for NotReplayable {}

/// The error of a body whose content a later attempt has taken over, or which has failed before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superseded;

impl fmt::Display for Superseded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the rest of this body is no longer to be sent")
    }
}

impl Error for Superseded {}

impl Replay<()> {
    /// The default for the most bytes that are kept of a body: 64 KiB.
    pub const CAP: usize = 64 << 10;
}

impl<B> Replay<B>
where
    B: Body<Error: Into<BoxError>>,
{
    /// Keeps up to `cap` bytes of a body, unless its content is known to `reopen`; with the body of
    /// the first attempt.
    ///
    /// Memory: the buffer doubles as it grows, so less than twice the cap, whatever the number and
    /// size of frames; a body that says at the start that it is longer than the cap is not kept.
    #[inline]
    pub fn new(mut body: B, reopen: &impl Reopen<B>, cap: usize) -> (Self, ReplayBody<B>) {
        if body.is_end_stream() {
            return (Self(Source::Empty), ReplayBody(Turn::Empty));
        }
        if let Some(first) = reopen.reopen(&mut body) {
            let progress = Arc::new(Progress::default());
            let replay = Self(Source::Known {
                content: body,
                progress: progress.clone(),
            });
            return (replay, ReplayBody::known(first, progress, 0));
        }
        let stream = Arc::new(Mutex::new(Stream::new(body, cap)));
        let replay = Self(Source::Streamed(stream.clone(), 0));
        (replay, ReplayBody(Turn::Streamed(stream, 0)))
    }

    /// Whether it is kept while it streams.
    #[cfg(feature = "tower")]
    pub(crate) const fn is_streamed(&self) -> bool {
        matches!(self.0, Source::Streamed(..))
    }

    /// The length that the request announces by other means, such as a `Content-Length` that the
    /// caller has set: a client stops reading there, and does not ask whether there is more.
    pub fn announce(&mut self, length: u64) {
        if let Source::Streamed(stream, _) = &self.0 {
            lock(stream).announce(length);
        }
    }

    /// Takes the content back from the last attempt, which has failed: its body yields nothing from
    /// now on. `answered`: the server has sent a response.
    ///
    /// # Errors
    /// [`NotReplayable`], and the body goes on as it was. A response to a body that has not been
    /// read to its end has beaten it: what is left has never been read, and reading it now could
    /// wait forever.
    pub fn take_back(&mut self, answered: bool) -> Result<(), NotReplayable> {
        match &mut self.0 {
            Source::Empty => {}
            Source::Known { progress, .. } => {
                progress.next_turn();
            }
            Source::Streamed(stream, turn) => {
                let waker;
                {
                    let mut stream = lock(stream);
                    waker = stream.take_back(answered)?;
                    *turn = stream.turn();
                }
                // The connection of the last attempt learns of it and lets go.
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        }
        Ok(())
    }

    /// The body for the next attempt, after [`take_back`](Self::take_back).
    ///
    /// # Errors
    /// When `reopen` cannot make known content again.
    pub fn again(&mut self, reopen: &impl Reopen<B>) -> Result<ReplayBody<B>, NotReplayable> {
        Ok(match &mut self.0 {
            Source::Empty => ReplayBody(Turn::Empty),
            Source::Known { content, progress } => {
                let body = reopen.reopen(content).ok_or(NotReplayable)?;
                let turn = progress.turn.load(Ordering::Acquire);
                ReplayBody::known(body, progress.clone(), turn)
            }
            Source::Streamed(stream, turn) => ReplayBody(Turn::Streamed(stream.clone(), *turn)),
        })
    }

    /// The body for an attempt beside the one that runs, which keeps its own: for a hedge.
    ///
    /// # Errors
    /// When the content is not known: neither to `reopen`, nor because the running attempt has read
    /// it to its end and all of it was kept.
    pub fn beside(&mut self, reopen: &impl Reopen<B>) -> Result<ReplayBody<B>, NotReplayable> {
        Ok(match &mut self.0 {
            Source::Empty => ReplayBody(Turn::Empty),
            Source::Known { content, .. } => {
                let body = reopen.reopen(content).ok_or(NotReplayable)?;
                ReplayBody::known(body, Arc::default(), 0)
            }
            Source::Streamed(stream, _) => {
                let kept = lock(stream).kept().ok_or(NotReplayable)?;
                ReplayBody(Turn::Kept(Box::new(kept), Arc::default()))
            }
        })
    }

    /// Whether the body of the last attempt was read to its end. If it was not and there is an
    /// answer, the connection is still busy with it.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        match &self.0 {
            Source::Empty => true,
            Source::Known { progress, .. } => {
                let turn = progress.turn.load(Ordering::Acquire);
                progress.whole.load(Ordering::Acquire) == turn.wrapping_add(1)
            }
            Source::Streamed(stream, _) => lock(stream).is_whole(),
        }
    }
}

impl<B> Drop for Replay<B> {
    #[inline]
    fn drop(&mut self) {
        if let Source::Streamed(stream, _) = &self.0 {
            lock(stream).forget();
        }
    }
}

/// A stream is valid after every statement, so a poisoned lock has lost nothing.
fn lock<B>(stream: &Mutex<Stream<B>>) -> std::sync::MutexGuard<'_, Stream<B>> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<B> ReplayBody<B> {
    #[cfg(feature = "tower")]
    pub(crate) fn progressed(&self) -> Progressed<B> {
        Progressed(match &self.0 {
            Turn::Empty => Reading::Whole,
            Turn::Known { progress, turn, .. } => Reading::Known(progress.clone(), *turn),
            Turn::Kept(_, progress) => Reading::Known(progress.clone(), 0),
            Turn::Streamed(stream, _) => Reading::Streamed(stream.clone()),
        })
    }

    fn known(body: B, progress: Arc<Progress>, turn: u32) -> Self {
        Self(Turn::Known {
            body: Mutex::new(Box::pin(body)),
            progress,
            turn,
        })
    }
}

/// The frame with its data as `Bytes`, which is a copy unless they are already.
fn in_bytes<D: Buf>(frame: Frame<D>) -> Frame<Bytes> {
    frame.map_data(|mut data| data.copy_to_bytes(data.remaining()))
}

type Polled = Poll<Option<Result<Frame<Bytes>, BoxError>>>;

impl<B> Body for ReplayBody<B>
where
    B: Body<Error: Into<BoxError>>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        match &mut self.0 {
            Turn::Empty => Poll::Ready(None),
            Turn::Known {
                body,
                progress,
                turn,
            } => {
                if progress.turn.load(Ordering::Acquire) != *turn {
                    return Poll::Ready(Some(Err(Superseded.into())));
                }
                let body = body.get_mut().unwrap_or_else(PoisonError::into_inner);
                let Poll::Ready(frame) = body.as_mut().poll_frame(context) else {
                    if progress.wait(*turn, context) {
                        return Poll::Pending;
                    }
                    return Poll::Ready(Some(Err(Superseded.into())));
                };
                if frame.is_none() || body.is_end_stream() {
                    progress
                        .whole
                        .store(turn.wrapping_add(1), Ordering::Release);
                }
                Poll::Ready(frame.map(|frame| frame.map(in_bytes).map_err(Into::into)))
            }
            Turn::Streamed(stream, turn) => lock(stream).poll(*turn, context),
            Turn::Kept(kept, progress) => {
                let frame = kept.next();
                if kept.is_end() {
                    progress.whole.store(1, Ordering::Release);
                }
                Poll::Ready(frame.map(Ok))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Turn::Empty => true,
            Turn::Known { body, .. } => {
                let body = body.lock().unwrap_or_else(PoisonError::into_inner);
                body.is_end_stream()
            }
            Turn::Streamed(stream, turn) => lock(stream).is_end(*turn),
            Turn::Kept(kept, _) => kept.is_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Turn::Empty => SizeHint::with_exact(0),
            Turn::Known { body, .. } => {
                let body = body.lock().unwrap_or_else(PoisonError::into_inner);
                body.size_hint()
            }
            Turn::Streamed(stream, turn) => lock(stream).size_hint(*turn),
            Turn::Kept(kept, _) => kept.size_hint(),
        }
    }
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Turns")
    }
}

impl<B> fmt::Debug for Replay<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Source::Empty => "Replay(empty)",
            Source::Known { .. } => "Replay(known)",
            Source::Streamed(..) => "Replay(streamed)",
        })
    }
}

impl<B> fmt::Debug for ReplayBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Turn::Empty => "ReplayBody(empty)",
            Turn::Known { .. } => "ReplayBody(known)",
            Turn::Streamed(..) => "ReplayBody(streamed)",
            Turn::Kept(..) => "ReplayBody(kept)",
        })
    }
}
