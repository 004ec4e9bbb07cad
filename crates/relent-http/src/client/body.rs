//! Bodies of requests that can be sent again (design rule 9).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;

/// The body of a request: bytes, or a file that is opened anew for every attempt.
///
/// ```
/// use relent_http::Body;
///
/// let request = http::Request::put("http://localhost/x").body(Body::from("hello"))?;
/// assert_eq!(request.body().len(), 5);
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Body(Source);

#[derive(Clone, Debug)]
enum Source {
    Bytes(Bytes),
    File(Arc<Unchanged>),
}

impl Default for Source {
    fn default() -> Self {
        Self::Bytes(Bytes::new())
    }
}

/// A file as it was first seen.
#[derive(Debug)]
struct Unchanged {
    path: PathBuf,
    len: u64,
    modified: Option<SystemTime>,
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
        let path = path.into();
        let seen = std::fs::metadata(&path)?;
        if !seen.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a regular file, so it cannot be read once for every attempt",
            ));
        }
        Ok(Self(Source::File(Arc::new(Unchanged {
            path,
            len: seen.len(),
            modified: seen.modified().ok(),
        }))))
    }

    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match &self.0 {
            Source::Bytes(bytes) => bytes.len() as u64,
            Source::File(file) => file.len,
        }
    }

    /// Whether there is no body, or one of no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The body for one attempt, or `None` for an empty one, which needs no framing.
    pub(crate) async fn open(&self) -> io::Result<Option<reqwest::Body>> {
        if self.is_empty() {
            return Ok(None);
        }
        Ok(Some(match &self.0 {
            Source::Bytes(bytes) => reqwest::Body::from(bytes.clone()),
            Source::File(file) => reqwest::Body::from(file.open().await?),
        }))
    }

    /// Whether its length must be told in a header, because the body itself does not know it.
    pub(crate) const fn is_streamed(&self) -> bool {
        matches!(self.0, Source::File(_))
    }
}

impl Unchanged {
    async fn open(&self) -> io::Result<tokio::fs::File> {
        let in_file = |error| of_file(&self.path, &error);
        let file = tokio::fs::File::open(&self.path).await.map_err(in_file)?;
        let now = file.metadata().await.map_err(in_file)?;
        if now.len() != self.len || now.modified().ok() != self.modified {
            let changed = io::Error::new(
                io::ErrorKind::InvalidData,
                "it has changed since the first attempt",
            );
            return Err(in_file(changed));
        }
        Ok(file)
    }
}

fn of_file(path: &Path, error: &io::Error) -> io::Error {
    let path = path.display();
    io::Error::new(error.kind(), format!("request body {path}: {error}"))
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
                Self(Source::Bytes(bytes.into()))
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
        assert_eq!(body.len(), 3);
        assert!(body.open().await.unwrap().is_some());

        std::fs::write(file.path(), "other").unwrap();
        let error = body.open().await.unwrap_err().to_string();
        assert!(error.contains("changed since the first attempt"), "{error}");
    }

    #[test]
    fn what_cannot_be_read_twice_is_no_body() {
        assert!(Body::file("/dev/zero").is_err());
        assert!(Body::file("/no/such/file").is_err());
    }
}
