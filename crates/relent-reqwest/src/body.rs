//! Bodies of requests that can be sent again (design rule 9).

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use http::StatusCode;
use http::header::LOCATION;
use http_body::Body as _;
use http_body_util::BodyExt;
use relent_http::attempt::{Turns, UnchangedFile, Upload};
use tokio::fs::File;
use tokio::io::AsyncReadExt;
use tokio::runtime::Handle;

use crate::streamed::Streamed;

/// The body of a request: bytes, a file that is opened anew for every attempt, or a stream that is
/// made anew for every attempt. A stream of reqwest's is kept while it goes out, up to
/// [`Client::body_cap`](crate::Client::body_cap), and sent again if that was all of it.
///
/// ```
/// use relent_reqwest::Body;
///
/// let request = http::Request::put("http://localhost/x").body(Body::from("hello"))?;
/// assert_eq!(request.body().len(), Some(5));
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Body(Source, Option<Turns>);

#[derive(Clone)]
enum Source {
    Bytes(Bytes),
    File(Arc<UnchangedFile>),
    Made(Arc<dyn Fn() -> reqwest::Body + Send + Sync>),
    /// A stream; `None` when a request has it.
    Once(Arc<Mutex<Option<reqwest::Body>>>),
    /// The same in a request, where it is kept while it goes out.
    Streamed(Streamed),
}

/// More bytes than this are handed to a connection piece by piece, as [`ReplayBody`] says.
///
/// [`ReplayBody`]: relent_http::body::ReplayBody
const SHORT: usize = 64 << 10;

/// What an attempt sends.
#[derive(Default)]
pub(crate) struct Opened {
    /// `None` is no body.
    body: Option<reqwest::Body>,
    /// Of bytes that are handed over in pieces.
    turns: Option<Turns>,
}

impl Opened {
    /// As it is, for one that wants to look at it.
    #[cfg(feature = "middleware")]
    pub(crate) fn into_body(self) -> Option<reqwest::Body> {
        self.body
    }

    /// Gives it to a request. With it, the request again if it must be followed by another that has the
    /// bytes in one piece: reqwest sends no other body on to where a 307 or 308 leads.
    #[inline]
    pub(crate) fn attach(self, request: &mut reqwest::Request) -> Option<Box<Redirected>> {
        *request.body_mut() = self.body;
        self.turns.and_then(|turns| Redirected::new(request, turns))
    }
}

/// The request of an attempt, for the case that it is redirected with its body.
pub(crate) struct Redirected {
    request: reqwest::Request,
    turns: Turns,
}

impl Redirected {
    #[inline(never)]
    fn new(request: &mut reqwest::Request, turns: Turns) -> Option<Box<Self>> {
        let again = request.try_clone()?;
        let pieces = turns.body(request.body_mut().take()?);
        *request.body_mut() = Some(reqwest::Body::wrap(pieces));
        Some(Box::new(Self {
            request: again,
            turns,
        }))
    }

    /// Whether this response leads elsewhere with the body.
    pub(crate) fn by(response: &reqwest::Response) -> bool {
        matches!(
            response.status(),
            StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT
        ) && response.headers().contains_key(LOCATION)
    }

    /// The request with a body that reqwest can send on. The connection of the first lets go of its own.
    pub(crate) fn into_request(self) -> reqwest::Request {
        self.turns.next();
        self.request
    }
}

impl Default for Source {
    fn default() -> Self {
        Self::Bytes(Bytes::new())
    }
}

impl Body {
    /// No body.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// The contents of a file, which must not change until the request is done: an attempt that
    /// finds it with another length or time of modification is not sent.
    ///
    /// # Errors
    /// When the file cannot be looked at, or is not a regular file: what comes out of a pipe cannot
    /// be sent again.
    pub fn file(path: impl Into<PathBuf>) -> io::Result<Self> {
        let file = UnchangedFile::see(path.into())?;
        Ok(Self::of(Source::File(Arc::new(file))))
    }

    /// What this makes, which it must make alike for every attempt: such as a stream.
    ///
    /// ```
    /// use relent_reqwest::Body;
    ///
    /// let body = Body::made_by(|| reqwest::Body::from("hello"));
    /// assert_eq!(body.len(), None);
    /// ```
    #[must_use]
    pub fn made_by(make: impl Fn() -> reqwest::Body + Send + Sync + 'static) -> Self {
        Self::of(Source::Made(Arc::new(make)))
    }

    /// The length in bytes, if it is known before the body is made.
    #[must_use]
    pub fn len(&self) -> Option<u64> {
        match &self.0 {
            Source::Bytes(bytes) => Some(bytes.len() as u64),
            Source::File(file) => Some(file.len()),
            Source::Made(_) | Source::Once(_) | Source::Streamed(_) => None,
        }
    }

    /// Whether there is no body, or one that is known to be of no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Whether there is a body for another attempt, however long it is. A stream has one only if it
    /// was short enough to be kept, which shows when it has gone out.
    #[must_use]
    pub const fn can_be_sent_again(&self) -> bool {
        !matches!(self.0, Source::Once(_) | Source::Streamed(_))
    }

    /// The same for one request, which keeps up to `cap` bytes of a stream. `length` is what a header
    /// says of it, if one does.
    pub(crate) fn kept(self, cap: usize, length: impl FnOnce() -> Option<u64>) -> Self {
        match &self.0 {
            Source::Once(stream) => {
                let stream = stream.lock().unwrap_or_else(PoisonError::into_inner).take();
                match stream {
                    Some(stream) => {
                        Self::of(Source::Streamed(Streamed::new(stream, cap, length())))
                    }
                    None => self,
                }
            }
            Source::File(_) | Source::Made(_) => Self(self.0, Some(Turns::default())),
            Source::Bytes(bytes) if bytes.len() > SHORT => Self(self.0, Some(Turns::default())),
            Source::Bytes(_) | Source::Streamed(_) => self,
        }
    }

    /// A stream that may have no more than `cap` bytes, all of them in memory: as bytes if so, else as a stream.
    pub(crate) fn at_hand(mut body: reqwest::Body, cap: usize) -> Self {
        let fits = body.size_hint().lower() <= cap as u64;
        // What reads a file needs a runtime.
        if !fits || Handle::try_current().is_err() {
            return body.into();
        }
        let mut context = Context::from_waker(Waker::noop());
        let (mut pieces, mut length, mut failed) = (Vec::new(), 0, None);
        while length <= cap {
            match Pin::new(&mut body).poll_frame(&mut context) {
                Poll::Ready(Some(Ok(frame))) => {
                    let piece = frame.into_data().unwrap_or_default();
                    length += piece.len();
                    pieces.push(piece);
                }
                Poll::Ready(None) => return pieces.concat().into(),
                Poll::Ready(Some(Err(error))) => {
                    failed = Some(error);
                    break;
                }
                Poll::Pending => break,
            }
        }
        let begun = pieces.into_iter().map(Ok).chain(failed.map(Err));
        let begun = stream::iter(begun);
        reqwest::Body::wrap_stream(begun.chain(body.into_data_stream())).into()
    }

    const fn of(source: Source) -> Self {
        Self(source, None)
    }

    /// The body of one attempt, so that it fails when the attempt is over: a connection that still waits
    /// for it would wait for ever. Short bytes are never waited for.
    fn turned(&self, body: reqwest::Body) -> Opened {
        let turns = self.1.as_ref();
        match body.as_bytes().map(<[u8]>::len) {
            None => Opened {
                body: Some(match turns {
                    Some(turns) => reqwest::Body::wrap(turns.body(body)),
                    None => body,
                }),
                turns: None,
            },
            length => Opened {
                body: Some(body),
                turns: turns.filter(|_| length > Some(SHORT)).cloned(),
            },
        }
    }

    /// The same for one of several attempts that run at once, each of which ends by itself.
    pub(crate) fn beside(&self) -> Self {
        Self(self.0.clone(), self.1.as_ref().map(|_| Turns::default()))
    }

    /// The attempt is over, and no other is to follow it: its connection lets go of the body.
    pub(crate) fn let_go(&self) {
        if let Some(turns) = &self.1 {
            turns.next();
        }
    }

    /// Whether an attempt that has failed leaves a body for another. `answered`: the server has sent
    /// a response. To be asked once for each attempt.
    pub(crate) fn take_back(&self, answered: bool) -> bool {
        match &self.0 {
            Source::Streamed(stream) => stream.take_back(answered),
            _ => {
                self.let_go();
                self.can_be_sent_again()
            }
        }
    }

    /// The body for one attempt; none for an empty one, which needs no framing.
    ///
    /// # Errors
    /// When it cannot be read again.
    pub(crate) async fn open(&self) -> io::Result<Opened> {
        match &self.0 {
            // Apart, since every request would be as large, and is moved.
            Source::File(file) if file.len() > 0 => {
                let file = Box::pin(file.open()).await?;
                Ok(self.turned(reqwest::Body::wrap_stream(read(file))))
            }
            _ => self.open_now(),
        }
    }

    /// What an attempt sends that may have it opened already.
    ///
    /// # Errors
    /// When it cannot be read again.
    pub(crate) async fn opened(&self, opened: Option<Opened>) -> io::Result<Opened> {
        match opened {
            Some(opened) => Ok(opened),
            None => self.open().await,
        }
    }

    /// Whether it need not be waited for.
    pub(crate) const fn is_at_hand(&self) -> bool {
        !matches!(self.0, Source::File(_))
    }

    /// The same as [`open`](Self::open) for one that need not be waited for.
    #[inline]
    pub(crate) fn open_now(&self) -> io::Result<Opened> {
        let body = match &self.0 {
            Source::Bytes(bytes) if bytes.is_empty() => None,
            Source::Bytes(bytes) => return Ok(self.turned(bytes.clone().into())),
            Source::Made(make) => return Ok(self.turned(make())),
            Source::Streamed(stream) => Some(stream.open()?),
            Source::Once(stream) => {
                let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
                let gone = "it is a stream, which has gone out and cannot be read again";
                Some(stream.take().ok_or_else(|| io::Error::other(gone))?)
            }
            Source::File(_) => None,
        };
        Ok(Opened { body, turns: None })
    }

    /// What has gone out of it in the current attempt. Short bytes need no time.
    pub(crate) fn upload(&self) -> Upload {
        match (&self.0, &self.1) {
            (Source::Streamed(stream), _) => stream.upload(),
            (_, Some(turns)) => turns.upload(),
            _ => Upload::Taken(0),
        }
    }

    /// The length that must be told in a header, because the opened body does not know it.
    pub(crate) fn told_length(&self) -> Option<u64> {
        match &self.0 {
            Source::File(file) => Some(file.len()),
            _ => None,
        }
    }
}

/// The contents of a file, in pieces that are worth a write each.
fn read(file: File) -> impl stream::Stream<Item = io::Result<Bytes>> {
    stream::try_unfold(file, |mut file| async move {
        let mut piece = BytesMut::with_capacity(SHORT);
        let length = file.read_buf(&mut piece).await?;
        Ok((length > 0).then(|| (piece.freeze(), file)))
    })
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // What is sent can be a secret.
            Self::Bytes(bytes) => write!(f, "Bytes({} bytes)", bytes.len()),
            Self::File(file) => f.debug_tuple("File").field(file).finish(),
            Self::Made(_) => f.write_str("Made"),
            Self::Once(_) => f.write_str("Once"),
            Self::Streamed(_) => f.write_str("Streamed"),
        }
    }
}

/// Bytes can be sent again, a stream if it could be kept.
impl From<reqwest::Body> for Body {
    fn from(mut body: reqwest::Body) -> Self {
        Self::of(match bytes_of(&mut body) {
            Some(bytes) => Source::Bytes(bytes),
            None => Source::Once(Arc::new(Mutex::new(Some(body)))),
        })
    }
}

/// The bytes of a body that holds some. They are to be had, uncopied, only by reading it.
fn bytes_of(body: &mut reqwest::Body) -> Option<Bytes> {
    if body.as_bytes()?.is_empty() {
        return Some(Bytes::new());
    }
    let mut context = Context::from_waker(Waker::noop());
    match Pin::new(body).poll_frame(&mut context) {
        Poll::Ready(Some(Ok(frame))) => frame.into_data().ok(),
        _ => None,
    }
}

impl From<()> for Body {
    fn from((): ()) -> Self {
        Self::empty()
    }
}

macro_rules! from_bytes {
    ($($source:ty),*) => {
        $(impl From<$source> for Body {
            fn from(bytes: $source) -> Self {
                Self::of(Source::Bytes(bytes.into()))
            }
        })*
    };
}

from_bytes!(Bytes, Vec<u8>, String, &'static [u8], &'static str);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_changed_is_not_sent() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "one").unwrap();
        let body = Body::file(file.path()).unwrap();
        assert_eq!(body.len(), Some(3));
        assert!(body.open().await.unwrap().body.is_some());

        std::fs::write(file.path(), "other").unwrap();
        let error = body.open().await.err().unwrap().to_string();
        assert!(error.contains("changed since the first attempt"), "{error}");
    }

    #[tokio::test]
    async fn a_stream_of_reqwests_goes_out_once_and_its_bytes_as_often_as_needed() {
        let stream = || reqwest::Body::wrap(reqwest::Body::from("streamed"));
        let once = Body::from(stream());
        assert!(!once.can_be_sent_again());
        assert!(once.clone().open().await.unwrap().body.is_some());
        let error = once.open().await.err().unwrap().to_string();
        assert!(error.contains("cannot be read again"), "{error}");

        for body in [
            Body::from(reqwest::Body::from("bytes")),
            Body::made_by(stream),
        ] {
            assert!(body.can_be_sent_again());
            for _ in 0..2 {
                assert!(body.open().await.unwrap().body.is_some());
            }
        }
    }

    #[test]
    fn what_cannot_be_read_twice_is_no_body() {
        assert!(Body::file("/dev/zero").is_err());
        assert!(Body::file("/no/such/file").is_err());
    }
}
