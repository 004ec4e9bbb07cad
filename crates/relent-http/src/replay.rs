//! Request bodies that can be sent again.
//!
//! A body of known content is made again for each attempt, whatever its size. Any other body is kept while
//! it streams to the server, up to a cap. Beyond the cap the attempt is committed: the kept data is
//! freed, the body continues unchanged, and it cannot be sent again.

mod content;
mod error;
mod frame;
mod kept;
mod known;
mod pieces;
mod stream;

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, SizeHint};

pub use content::Content;
pub use error::{BoxError, NotReplayable, Superseded};
use frame::{PolledFrame, in_bytes};
use kept::Kept;
pub use known::{ByType, Reopen};
use pieces::Pieces;
use stream::Stream;

/// Keeps the body of a request for later attempts. Each attempt has a [`ReplayBody`].
///
/// Only the body of the latest attempt yields data. A connection may still poll the body of an
/// earlier one, which then fails with [`Superseded`]: ending it instead would turn half a request
/// into a complete one.
///
/// Dropping a `Replay` frees the kept data; the body of the latest attempt continues.
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
/// // The attempt failed without a response.
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
///
/// A body of more than 64 KiB is passed to its connection in pieces, each after the previous one is
/// written. So a connection to a server that does not read notices that its attempt has ended, and closes.
/// That needs tokio; without it, frames are passed on as they come.
pub struct ReplayBody<B> {
    turn: BodySource<B>,
    pieces: Pieces,
}

// `B` is behind mutexes, so that the body is `Sync` if `B` is `Send`: some clients require `Sync`.
enum BodySource<B> {
    Empty,
    Known {
        body: Mutex<Pin<Box<B>>>,
        progress: Arc<Progress>,
        turn: u32,
    },
    Streamed(Arc<Mutex<Stream<B>>>, u32),
    /// A shared copy for a hedge of all that the running attempt has read. Boxed, since few bodies are.
    Kept(Box<Kept>, Arc<Progress>),
}

/// Reports whether the body of an attempt has been read to its end, after the body has been given away.
#[cfg(feature = "tower")]
pub(crate) struct ReadProgress<B>(ReadSource<B>);

#[cfg(feature = "tower")]
enum ReadSource<B> {
    Whole,
    Known(Arc<Progress>, u32),
    Streamed(Arc<Mutex<Stream<B>>>),
}

#[cfg(feature = "tower")]
impl<B> ReadProgress<B>
where
    B: Body<Error: Into<BoxError>>,
{
    pub(crate) fn is_whole(&self) -> bool {
        match &self.0 {
            ReadSource::Whole => true,
            ReadSource::Known(progress, turn) => {
                progress.whole.load(Ordering::Acquire) == turn.wrapping_add(1)
            }
            ReadSource::Streamed(stream) => lock(stream).is_whole(),
        }
    }

    /// The attempt has ended. A streaming body is superseded by `take_back`, or has been read to its end.
    pub(crate) fn over(self) -> UnfinishedUpload {
        UnfinishedUpload(match self.0 {
            ReadSource::Known(progress, turn) => Some((progress, turn)),
            ReadSource::Whole | ReadSource::Streamed(_) => None,
        })
    }
}

/// The body of an ended attempt, which its connection may still send. Dropping this fails the body,
/// so that the connection releases it.
#[cfg(feature = "tower")]
pub(crate) struct UnfinishedUpload(Option<(Arc<Progress>, u32)>);

#[cfg(feature = "tower")]
impl UnfinishedUpload {
    /// There is no such body, or [`Replay::take_back`] handles it.
    pub(crate) const NOTHING: Self = Self(None);

    /// The response of the attempt is returned, and the server may continue to read the body. No attempt follows.
    pub(crate) fn detach(mut self) {
        if let Some((progress, _)) = self.0.take() {
            // A hedge has a progress of its own, which the call's `Replay` does not know.
            progress.over.store(true, Ordering::Release);
        }
    }
}

#[cfg(feature = "tower")]
impl Drop for UnfinishedUpload {
    fn drop(&mut self) {
        if let Some((progress, turn)) = self.0.take()
            && progress.turn.load(Ordering::Acquire) == turn
        {
            progress.next_turn();
        }
    }
}

/// Progress of the attempts of known content.
#[derive(Default)]
struct Progress {
    /// The number of the attempt whose body may read.
    turn: AtomicU32,
    /// One more than the number of the last attempt whose body was read to its end.
    whole: AtomicU32,
    /// The task that waits for more of the body: the connection's.
    waiting: Mutex<Option<Waker>>,
    /// The call has ended: no attempt follows.
    over: AtomicBool,
    /// The encoded [`Upload`].
    upload: AtomicU32,
}

impl Progress {
    /// Passes the turn to the next attempt. Wakes the reader of the previous body, which then fails.
    fn next_turn(&self) {
        self.turn.fetch_add(1, Ordering::AcqRel);
        let waiting = self.waiting.lock();
        let waker = waiting.unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Registers the task that waits for the body of this turn. Returns whether it still has the turn; a later
    /// change of turn wakes the task.
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

/// How much of the request body the connection has taken: distinguishes a silent server
/// from one that is still reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Upload {
    /// The connection waits for the body to yield more.
    WaitsForBody,
    /// The number of pieces taken, modulo 2^31.
    Taken(u32),
}

impl Upload {
    const WAITS: u32 = 1 << 31;

    const fn of(stored: u32) -> Self {
        if stored & Self::WAITS != 0 {
            Self::WaitsForBody
        } else {
            Self::Taken(stored)
        }
    }

    /// The value to store after a poll of the body. `is_out`: a piece that was taken is not written yet.
    const fn next(stored: u32, is_ready: bool, is_out: bool) -> u32 {
        let taken = stored & !Self::WAITS;
        match (is_ready, is_out) {
            (true, _) => taken.wrapping_add(1) & !Self::WAITS,
            (false, true) => taken,
            (false, false) => taken | Self::WAITS,
        }
    }
}

/// Tracks the attempts of a body that the caller makes again for each attempt. The call has ended when all clones
/// are dropped.
#[derive(Clone, Default)]
pub struct BodyTurns(Arc<Owned>);

#[derive(Default)]
struct Owned(Arc<Progress>);

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Release);
    }
}

impl BodyTurns {
    /// Wraps the body of the current attempt, which fails when [the next one](Self::next) starts.
    pub fn body<B>(&self, body: B) -> ReplayBody<B> {
        let progress = &self.0.0;
        let turn = progress.turn.load(Ordering::Acquire);
        ReplayBody::known(body, progress.clone(), turn).for_hyper()
    }

    /// How much of the body of the current attempt has been taken.
    #[must_use]
    pub fn upload(&self) -> Upload {
        Upload::of(self.0.0.upload.load(Ordering::Relaxed))
    }

    /// Ends the attempt, so that its connection releases the body.
    pub fn next(&self) {
        self.0.0.next_turn();
    }
}

impl Replay<()> {
    /// Default cap of the kept bytes of a body: 64 KiB.
    pub const CAP: usize = stream::CAP;
}

impl<B> Replay<B>
where
    B: Body<Error: Into<BoxError>>,
{
    /// Keeps up to `cap` bytes of a body, unless `reopen` knows its content. Also returns the body of
    /// the first attempt.
    ///
    /// Memory: the buffer doubles as it grows, so it uses less than twice the cap, whatever the number and
    /// size of frames. A body whose size hint exceeds the cap is not kept.
    #[inline]
    pub fn new(mut body: B, reopen: &impl Reopen<B>, cap: usize) -> (Self, ReplayBody<B>) {
        if body.is_end_stream() {
            return (Self(Source::Empty), ReplayBody::of(BodySource::Empty));
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
        (replay, ReplayBody::of(BodySource::Streamed(stream, 0)))
    }

    /// Whether the body is kept while it streams.
    #[cfg(feature = "tower")]
    pub(crate) const fn is_streamed(&self) -> bool {
        matches!(self.0, Source::Streamed(..))
    }

    /// Sets the length that the request announces elsewhere, such as in a `Content-Length` of the
    /// caller: a client stops reading there, and does not poll for more.
    pub fn announce(&mut self, length: u64) {
        if let Source::Streamed(stream, _) = &self.0 {
            lock(stream).announce(length);
        }
    }

    /// Takes the content back from the last attempt, which has failed: its body yields nothing
    /// more. `answered`: the server has sent a response.
    ///
    /// # Errors
    /// [`NotReplayable`]; the body then continues as before. This also happens if the server responded before the
    /// body was read to its end: the rest has never been read, and reading it now could
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
                // Wakes the connection of the last attempt, so that it releases the body.
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        }
        Ok(())
    }

    /// Creates the body for the next attempt, after [`take_back`](Self::take_back).
    ///
    /// # Errors
    /// [`NotReplayable`] if `reopen` cannot make the known content again.
    pub fn again(&mut self, reopen: &impl Reopen<B>) -> Result<ReplayBody<B>, NotReplayable> {
        Ok(match &mut self.0 {
            Source::Empty => ReplayBody::of(BodySource::Empty),
            Source::Known { content, progress } => {
                let body = reopen.reopen(content).ok_or(NotReplayable)?;
                let turn = progress.turn.load(Ordering::Acquire);
                ReplayBody::known(body, progress.clone(), turn)
            }
            Source::Streamed(stream, turn) => {
                ReplayBody::of(BodySource::Streamed(stream.clone(), *turn))
            }
        })
    }

    /// Creates the body for a hedge, which runs beside the current attempt and its body.
    ///
    /// # Errors
    /// [`NotReplayable`] if the content is not known: `reopen` does not know it, and the running attempt has not
    /// read it to its end with all of it kept.
    pub fn beside(&mut self, reopen: &impl Reopen<B>) -> Result<ReplayBody<B>, NotReplayable> {
        Ok(match &mut self.0 {
            Source::Empty => ReplayBody::of(BodySource::Empty),
            Source::Known { content, .. } => {
                let body = reopen.reopen(content).ok_or(NotReplayable)?;
                ReplayBody::known(body, Arc::default(), 0)
            }
            Source::Streamed(stream, _) => {
                let kept = lock(stream).kept().ok_or(NotReplayable)?;
                ReplayBody::of(BodySource::Kept(Box::new(kept), Arc::default()))
            }
        })
    }

    /// How much of the body of the last attempt has been taken.
    #[must_use]
    pub fn upload(&self) -> Upload {
        match &self.0 {
            Source::Empty => Upload::Taken(0),
            Source::Known { progress, .. } => Upload::of(progress.upload.load(Ordering::Relaxed)),
            Source::Streamed(stream, _) => Upload::of(lock(stream).upload),
        }
    }

    /// Whether the body of the last attempt was read to its end. If it was not and there is a
    /// response, the connection is still busy with the body.
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
        match &self.0 {
            Source::Empty => {}
            Source::Known { progress, .. } => progress.over.store(true, Ordering::Release),
            Source::Streamed(stream, _) => lock(stream).forget(),
        }
    }
}

/// Locks the stream; it is valid after every statement, so a poisoned lock has lost nothing.
fn lock<B>(stream: &Mutex<Stream<B>>) -> std::sync::MutexGuard<'_, Stream<B>> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<B> ReplayBody<B> {
    #[cfg(feature = "tower")]
    pub(crate) fn read_progress(&self) -> ReadProgress<B> {
        ReadProgress(match &self.turn {
            BodySource::Empty => ReadSource::Whole,
            BodySource::Known { progress, turn, .. } => ReadSource::Known(progress.clone(), *turn),
            BodySource::Kept(_, progress) => ReadSource::Known(progress.clone(), 0),
            BodySource::Streamed(stream, _) => ReadSource::Streamed(stream.clone()),
        })
    }

    fn known(body: B, progress: Arc<Progress>, turn: u32) -> Self {
        Self::of(BodySource::Known {
            body: Mutex::new(Box::pin(body)),
            progress,
            turn,
        })
    }

    fn of(turn: BodySource<B>) -> Self {
        let pieces = Pieces::default();
        Self { turn, pieces }
    }

    /// Marks the body as one for hyper, which drops the data that it has written. A reader that keeps it
    /// would wait forever.
    const fn for_hyper(mut self) -> Self {
        self.pieces.drops = true;
        self
    }
}

impl<B> pieces::Source for BodySource<B>
where
    B: Body<Error: Into<BoxError>>,
{
    fn poll(&mut self, context: &mut Context<'_>) -> PolledFrame {
        match self {
            Self::Empty => Poll::Ready(None),
            Self::Known {
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
                Poll::Ready(frame.map(|frame| frame.map(in_bytes).map_err(Into::into)))
            }
            Self::Streamed(stream, turn) => lock(stream).poll(*turn, context),
            Self::Kept(kept, _) => Poll::Ready(kept.next().map(Ok)),
        }
    }

    fn is_end(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Known { body, .. } => {
                let body = body.lock().unwrap_or_else(PoisonError::into_inner);
                body.is_end_stream()
            }
            Self::Streamed(stream, turn) => lock(stream).is_end(*turn),
            Self::Kept(kept, _) => kept.is_end(),
        }
    }

    fn hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Known { body, .. } => {
                let body = body.lock().unwrap_or_else(PoisonError::into_inner);
                body.size_hint()
            }
            Self::Streamed(stream, turn) => lock(stream).size_hint(*turn),
            Self::Kept(kept, _) => kept.size_hint(),
        }
    }

    fn is_over(&self) -> bool {
        match self {
            Self::Empty | Self::Kept(..) => false,
            Self::Known { progress, turn, .. } => progress.turn.load(Ordering::Acquire) != *turn,
            Self::Streamed(stream, turn) => lock(stream).is_over(*turn),
        }
    }

    fn wait(&self, context: &Context<'_>) -> bool {
        match self {
            Self::Empty => false,
            Self::Known { progress, turn, .. } => !progress.wait(*turn, context),
            Self::Streamed(stream, turn) => lock(stream).wait(*turn, context),
            Self::Kept(_, progress) => !progress.wait(0, context),
        }
    }

    fn is_last(&self) -> bool {
        match self {
            Self::Empty => false,
            Self::Known { progress, .. } | Self::Kept(_, progress) => {
                progress.over.load(Ordering::Acquire)
            }
            Self::Streamed(stream, _) => lock(stream).is_last(),
        }
    }

    fn handed_over(&self) {
        let (progress, turn) = match self {
            Self::Known { progress, turn, .. } => (progress, *turn),
            Self::Kept(_, progress) => (progress, 0),
            Self::Empty | Self::Streamed(..) => return,
        };
        progress
            .whole
            .store(turn.wrapping_add(1), Ordering::Release);
    }
}

impl<B> Body for ReplayBody<B>
where
    B: Body<Error: Into<BoxError>>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> PolledFrame {
        let Self { turn, pieces } = &mut *self;
        let polled = pieces.poll(turn, context);
        let (is_ready, is_out) = (polled.is_ready(), pieces.is_out());
        match turn {
            BodySource::Empty => {}
            BodySource::Known { progress, .. } | BodySource::Kept(_, progress) => {
                // Only this body writes it.
                let upload = progress.upload.load(Ordering::Relaxed);
                let next = Upload::next(upload, is_ready, is_out);
                progress.upload.store(next, Ordering::Relaxed);
            }
            BodySource::Streamed(stream, _) => {
                let mut stream = lock(stream);
                stream.upload = Upload::next(stream.upload, is_ready, is_out);
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty() && pieces::Source::is_end(&self.turn)
    }

    fn size_hint(&self) -> SizeHint {
        self.pieces.hint(pieces::Source::hint(&self.turn))
    }
}

impl fmt::Debug for BodyTurns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BodyTurns")
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
        f.write_str(match self.turn {
            BodySource::Empty => "ReplayBody(empty)",
            BodySource::Known { .. } => "ReplayBody(known)",
            BodySource::Streamed(..) => "ReplayBody(streamed)",
            BodySource::Kept(..) => "ReplayBody(kept)",
        })
    }
}
