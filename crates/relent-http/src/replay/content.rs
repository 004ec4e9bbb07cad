//! Request bodies of known content.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use tokio::fs::File;
use tokio::io::{AsyncRead, ReadBuf};

use super::error::BoxError;
use super::frame::PolledFrame;
use crate::unchanged_file::UnchangedFile;

/// Maximum bytes per read from a file.
const READ_MAX_BYTES: u64 = 64 << 10;

/// A body of known content: bytes, a file that is opened again for every attempt, or a body that
/// a function makes again. It can be sent again at any size, and no data is kept: [`ByType`](super::ByType)
/// knows it.
///
/// A clone starts from the beginning.
///
/// ```
/// use http_body::Body;
/// use relent_http::body::Content;
///
/// let request = http::Request::put("http://localhost/x").body(Content::from("hello"))?;
/// assert_eq!(request.body().size_hint().exact(), Some(5));
/// # Ok::<(), http::Error>(())
/// ```
pub struct Content {
    source: Source,
    read: Read,
}

#[derive(Clone)]
enum Source {
    Bytes(Bytes),
    File(Arc<UnchangedFile>),
    Made(Arc<dyn Fn() -> UnsyncBoxBody<Bytes, BoxError> + Send + Sync>),
}

type Opening = Pin<Box<dyn Future<Output = io::Result<File>> + Send>>;

/// The read position.
enum Read {
    Nothing,
    Opening(Opening),
    File { file: File, left: u64 },
    Made(UnsyncBoxBody<Bytes, BoxError>),
    All,
}

impl Content {
    const fn of(source: Source) -> Self {
        let read = Read::Nothing;
        Self { source, read }
    }

    /// The contents of a file, which must not change until the request has completed: an attempt that
    /// finds another length or modification time fails. Needs tokio.
    ///
    /// # Errors
    /// If the metadata of the file cannot be read, or it is not a regular file: data from a pipe cannot
    /// be sent again.
    pub fn file(path: impl Into<PathBuf>) -> io::Result<Self> {
        let file = UnchangedFile::see(path.into())?;
        Ok(Self::of(Source::File(Arc::new(file))))
    }

    /// A body from a function, such as a stream. The function must make the same content for every attempt.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http_body_util::Full;
    /// use relent_http::body::Content;
    ///
    /// let body = Content::made_by(|| Full::<Bytes>::from("hello"));
    /// # drop(body);
    /// ```
    #[must_use]
    pub fn made_by<B>(make: impl Fn() -> B + Send + Sync + 'static) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let make = move || make().map_err(Into::into).boxed_unsync();
        Self::of(Source::Made(Arc::new(make)))
    }

    /// Restarts the content from its beginning. A body from a function is made here, so that its length is known.
    pub(super) fn restarted(&self) -> Self {
        Self {
            source: self.source.clone(),
            read: match &self.source {
                Source::Made(make) => Read::Made(make()),
                _ => Read::Nothing,
            },
        }
    }

    fn poll_file(&mut self, context: &mut Context<'_>) -> PolledFrame {
        let Source::File(seen) = &self.source else {
            return Poll::Ready(None);
        };
        loop {
            match &mut self.read {
                Read::Nothing => {
                    let seen = seen.clone();
                    self.read = Read::Opening(Box::pin(async move { seen.open().await }));
                }
                Read::Opening(opening) => {
                    let file = ready!(opening.as_mut().poll(context))?;
                    let left = seen.len();
                    self.read = Read::File { file, left };
                }
                Read::File { left: 0, .. } | Read::Made(_) | Read::All => {
                    return Poll::Ready(None);
                }
                Read::File { file, left } => {
                    let length = usize::try_from(READ_MAX_BYTES.min(*left)).unwrap_or(usize::MAX);
                    let mut piece = vec![0; length];
                    let mut buffer = ReadBuf::new(&mut piece);
                    ready!(Pin::new(file).poll_read(context, &mut buffer))?;
                    let length = buffer.filled().len();
                    if length == 0 {
                        // The file has been truncated since it was opened.
                        return Poll::Ready(Some(Err(seen.changed().into())));
                    }
                    piece.truncate(length);
                    *left = left.saturating_sub(length as u64);
                    return Poll::Ready(Some(Ok(Frame::data(piece.into()))));
                }
            }
        }
    }
}

impl Body for Content {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> PolledFrame {
        let this = &mut *self;
        match &this.source {
            Source::Bytes(bytes) => {
                if this.is_end_stream() {
                    return Poll::Ready(None);
                }
                this.read = Read::All;
                Poll::Ready(Some(Ok(Frame::data(bytes.clone()))))
            }
            Source::File(_) => this.poll_file(context),
            Source::Made(make) => {
                if let Read::Nothing = this.read {
                    this.read = Read::Made(make());
                }
                match &mut this.read {
                    Read::Made(body) => Pin::new(body).poll_frame(context),
                    _ => Poll::Ready(None),
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.read {
            Read::Made(body) => body.is_end_stream(),
            _ => self.size_hint().exact() == Some(0),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.read, &self.source) {
            (Read::All, _) => SizeHint::with_exact(0),
            (Read::Made(body), _) => body.size_hint(),
            (Read::File { left, .. }, _) => SizeHint::with_exact(*left),
            (_, Source::Bytes(bytes)) => SizeHint::with_exact(bytes.len() as u64),
            (_, Source::File(file)) => SizeHint::with_exact(file.len()),
            (_, Source::Made(_)) => SizeHint::default(),
        }
    }
}

impl Clone for Content {
    fn clone(&self) -> Self {
        Self::of(self.source.clone())
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            // The content may be secret.
            Source::Bytes(bytes) => write!(f, "Content({} bytes)", bytes.len()),
            Source::File(file) => f.debug_tuple("Content").field(file).finish(),
            Source::Made(_) => f.write_str("Content(made)"),
        }
    }
}

macro_rules! from_bytes {
    ($($source:ty),*) => {
        $(impl From<$source> for Content {
            fn from(bytes: $source) -> Self {
                Self::of(Source::Bytes(bytes.into()))
            }
        })*
    };
}

from_bytes!(Bytes, Vec<u8>, String, &'static [u8], &'static str);
