//! Request bodies that can be sent again.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use http::{Method, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;
use relent_http::attempt::{BodyTurns, UnchangedFile, Upload};
use tokio::fs::File;
use tokio::io::AsyncReadExt;
use tokio::runtime::Handle;

use crate::redirects::{CurrentRequest, is_unfollowed_for_its_body};
use crate::streamed::Streamed;

/// Request body: bytes, or a file or stream that each attempt opens again.
///
/// A reqwest stream can be read only once. It is kept while it is sent, up to
/// [`Client::body_cap`](crate::Client::body_cap), and sent again if all of it was kept.
///
/// ```
/// use relent_reqwest::Body;
///
/// let request = http::Request::put("http://localhost/x").body(Body::from("hello"))?;
/// assert_eq!(request.body().len(), Some(5));
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Body(Source, Option<BodyTurns>);

#[derive(Clone)]
enum Source {
    Bytes(Bytes),
    File(Arc<UnchangedFile>),
    FromFn(Arc<dyn Fn() -> reqwest::Body + Send + Sync>),
    /// A stream; `None` after a request has taken it.
    Once(Arc<Mutex<Option<reqwest::Body>>>),
    /// A stream in a request, which is kept while it is sent.
    Streamed(Streamed),
}

/// Longer bodies are given to a connection piece by piece; see [`ReplayBody`].
///
/// [`ReplayBody`]: relent_http::body::ReplayBody
const ONE_PIECE_MAX_BYTES: usize = 64 << 10;

/// The opened body of one attempt.
#[derive(Default)]
pub(crate) struct OpenedBody {
    /// `None` if there is no body.
    body: Option<reqwest::Body>,
    /// Set for bytes that are handed over in pieces.
    turns: Option<BodyTurns>,
}

impl OpenedBody {
    /// The plain body, for a middleware that inspects it.
    #[cfg(feature = "middleware")]
    pub(crate) fn into_body(self) -> Option<reqwest::Body> {
        self.body
    }

    /// Sets the body of a request. Returns a copy of the request for a 307 or 308 if the body goes out in pieces:
    /// on these redirects reqwest sends only a body that is in one piece.
    #[inline]
    pub(crate) fn attach(self, request: &mut reqwest::Request) -> Option<Box<RedirectedRequest>> {
        *request.body_mut() = self.body;
        self.turns
            .and_then(|turns| RedirectedRequest::new(request, turns))
    }
}

/// Copy of the request of an attempt, for a redirect that keeps the body.
pub(crate) struct RedirectedRequest {
    request: reqwest::Request,
    turns: BodyTurns,
}

impl RedirectedRequest {
    #[inline(never)]
    fn new(request: &mut reqwest::Request, turns: BodyTurns) -> Option<Box<Self>> {
        let again = request.try_clone()?;
        let pieces = turns.body(request.body_mut().take()?);
        *request.body_mut() = Some(reqwest::Body::wrap(pieces));
        Some(Box::new(Self {
            request: again,
            turns,
        }))
    }

    /// Whether this response is a redirect that keeps the body, and that reqwest can follow with a body in one piece. 301
    /// and 302 make a GET of a POST only.
    ///
    /// After a redirect that was followed, reqwest has dropped the body, and the first server may have processed it.
    pub(crate) fn by(&self, response: &reqwest::Response) -> bool {
        let keeps = match response.status() {
            StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => true,
            StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND => {
                *self.request.method() != Method::POST
            }
            _ => false,
        };
        let is_first = || {
            let mut asked = self.request.url().clone();
            asked.set_fragment(None);
            *response.url() == asked && !CurrentRequest::has_changed_method()
        };
        keeps && is_first() && is_unfollowed_for_its_body(response)
    }

    /// The request with a body that reqwest can send on. The first connection releases its body.
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
    /// Creates an empty body.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// Sends the contents of a file, which must not change until the request ends. An attempt is not sent if the
    /// length or modification time of the file has changed.
    ///
    /// # Errors
    /// If the file cannot be inspected or is not a regular file: the contents of a pipe cannot be sent again.
    pub fn file(path: impl Into<PathBuf>) -> io::Result<Self> {
        let file = UnchangedFile::see(path.into())?;
        Ok(Self::of(Source::File(Arc::new(file))))
    }

    /// Sends the body that this function makes for each attempt, such as a stream. It must make the same body each
    /// time.
    ///
    /// ```
    /// use relent_reqwest::Body;
    ///
    /// let body = Body::made_by(|| reqwest::Body::from("hello"));
    /// assert_eq!(body.len(), None);
    /// ```
    #[must_use]
    pub fn made_by(make: impl Fn() -> reqwest::Body + Send + Sync + 'static) -> Self {
        Self::of(Source::FromFn(Arc::new(make)))
    }

    /// The length in bytes, if it is known before the body is opened.
    #[must_use]
    pub fn len(&self) -> Option<u64> {
        match &self.0 {
            Source::Bytes(bytes) => Some(bytes.len() as u64),
            Source::File(file) => Some(file.len()),
            Source::FromFn(_) | Source::Once(_) | Source::Streamed(_) => None,
        }
    }

    /// Whether there is no body, or its length is known to be zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Whether the body can be sent again at any length. It is `false` for a stream, which can be sent again only if
    /// it was short enough to be kept; that is known only after it was sent.
    #[must_use]
    pub const fn can_be_sent_again(&self) -> bool {
        !matches!(self.0, Source::Once(_) | Source::Streamed(_))
    }

    /// The body for one request, which keeps up to `cap` bytes of a stream. `length` is the length in its header.
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
            Source::File(_) | Source::FromFn(_) => Self(self.0, Some(BodyTurns::default())),
            Source::Bytes(bytes) if bytes.len() > ONE_PIECE_MAX_BYTES => {
                Self(self.0, Some(BodyTurns::default()))
            }
            Source::Bytes(_) | Source::Streamed(_) => self,
        }
    }

    /// Reads a stream of parts in memory: up to `cap` bytes become bytes, a longer body stays a stream.
    pub(crate) fn from_form(mut body: reqwest::Body, cap: usize) -> Self {
        let fits = body.size_hint().lower() <= cap as u64;
        // Reading a file needs a runtime.
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

    /// The body of one attempt, which fails when the attempt has ended. Otherwise a connection that still waits for
    /// it would wait forever. Short bytes are never waited for.
    fn for_attempt(&self, body: reqwest::Body) -> OpenedBody {
        let turns = self.1.as_ref();
        match body.as_bytes().map(<[u8]>::len) {
            None => OpenedBody {
                body: Some(match turns {
                    Some(turns) => reqwest::Body::wrap(turns.body(body)),
                    None => body,
                }),
                turns: None,
            },
            length => OpenedBody {
                body: Some(body),
                turns: turns
                    .filter(|_| length > Some(ONE_PIECE_MAX_BYTES))
                    .cloned(),
            },
        }
    }

    /// A copy for one of several concurrent attempts, which ends independently of the others.
    pub(crate) fn for_concurrent_attempt(&self) -> Self {
        Self(
            self.0.clone(),
            self.1.as_ref().map(|_| BodyTurns::default()),
        )
    }

    /// The attempt has ended and no other follows: its connection releases the body.
    pub(crate) fn release(&self) {
        if let Some(turns) = &self.1 {
            turns.next();
        }
    }

    /// Whether a failed attempt leaves a body for another one. `answered`: the server has sent a response. Call it
    /// once per attempt.
    pub(crate) fn take_back(&self, answered: bool) -> bool {
        match &self.0 {
            Source::Streamed(stream) => stream.take_back(answered),
            _ => {
                self.release();
                self.can_be_sent_again()
            }
        }
    }

    /// Opens the body for one attempt. An empty body is `None` and needs no framing.
    ///
    /// # Errors
    /// If it cannot be read again.
    pub(crate) async fn open(&self) -> io::Result<OpenedBody> {
        match &self.0 {
            // Boxed; otherwise the future of every request would be as large, and it is moved.
            Source::File(file) if file.len() > 0 => {
                let file = Box::pin(file.open()).await?;
                Ok(self.for_attempt(reqwest::Body::wrap_stream(read(file))))
            }
            _ => self.open_now(),
        }
    }

    /// Opens the body, unless it is already `opened`.
    ///
    /// # Errors
    /// If it cannot be read again.
    pub(crate) async fn opened(&self, opened: Option<OpenedBody>) -> io::Result<OpenedBody> {
        match opened {
            Some(opened) => Ok(opened),
            None => self.open().await,
        }
    }

    /// Whether the body can be opened without waiting.
    pub(crate) const fn opens_without_waiting(&self) -> bool {
        !matches!(self.0, Source::File(_))
    }

    /// Opens a body that needs no waiting; see [`open`](Self::open).
    #[inline]
    pub(crate) fn open_now(&self) -> io::Result<OpenedBody> {
        let body = match &self.0 {
            Source::Bytes(bytes) if bytes.is_empty() => None,
            Source::Bytes(bytes) => return Ok(self.for_attempt(bytes.clone().into())),
            Source::FromFn(make) => return Ok(self.for_attempt(make())),
            Source::Streamed(stream) => Some(stream.open()?),
            Source::Once(stream) => {
                let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
                let gone = "it is a stream, which has gone out and cannot be read again";
                Some(stream.take().ok_or_else(|| io::Error::other(gone))?)
            }
            Source::File(_) => None,
        };
        Ok(OpenedBody { body, turns: None })
    }

    /// The progress of the body in the current attempt. Short bytes need no time.
    pub(crate) fn upload(&self) -> Upload {
        match (&self.0, &self.1) {
            (Source::Streamed(stream), _) => stream.upload(),
            (_, Some(turns)) => turns.upload(),
            _ => Upload::Taken(0),
        }
    }

    /// The length that needs a header, because the opened body does not know it.
    pub(crate) fn content_length_header(&self) -> Option<u64> {
        match &self.0 {
            Source::File(file) => Some(file.len()),
            _ => None,
        }
    }
}

/// The contents of a file, in pieces that are large enough for one write each.
fn read(file: File) -> impl stream::Stream<Item = io::Result<Bytes>> {
    stream::try_unfold(file, |mut file| async move {
        let mut piece = BytesMut::with_capacity(ONE_PIECE_MAX_BYTES);
        let length = file.read_buf(&mut piece).await?;
        Ok((length > 0).then(|| (piece.freeze(), file)))
    })
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The content can be a secret.
            Self::Bytes(bytes) => write!(f, "Bytes({} bytes)", bytes.len()),
            Self::File(file) => f.debug_tuple("File").field(file).finish(),
            Self::FromFn(_) => f.write_str("FromFn"),
            Self::Once(_) => f.write_str("Once"),
            Self::Streamed(_) => f.write_str("Streamed"),
        }
    }
}

/// Bytes can be sent again; a stream only if all of it was kept.
impl From<reqwest::Body> for Body {
    fn from(mut body: reqwest::Body) -> Self {
        Self::of(match bytes_of(&mut body) {
            Some(bytes) => Source::Bytes(bytes),
            None => Source::Once(Arc::new(Mutex::new(Some(body)))),
        })
    }
}

/// The bytes of a body in memory. Only reading the body returns them without a copy.
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
    async fn a_reqwest_stream_is_sent_once_but_reqwest_bytes_repeatedly() {
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
    fn a_file_body_requires_a_regular_file() {
        assert!(Body::file("/dev/zero").is_err());
        assert!(Body::file("/no/such/file").is_err());
    }
}
