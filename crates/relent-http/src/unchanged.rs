//! A file that is opened anew for every attempt, and must be the same each time.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A file as it was first seen.
#[derive(Debug)]
pub struct UnchangedFile {
    path: PathBuf,
    len: u64,
    modified: Option<SystemTime>,
}

impl UnchangedFile {
    /// Looks at a file, which must be a regular one: what comes out of a pipe cannot be read twice.
    ///
    /// # Errors
    /// When it cannot be looked at, or is not a regular file.
    pub fn see(path: PathBuf) -> io::Result<Self> {
        let seen = std::fs::metadata(&path)?;
        if !seen.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a regular file, so it cannot be read once for every attempt",
            ));
        }
        Ok(Self {
            path,
            len: seen.len(),
            modified: seen.modified().ok(),
        })
    }

    /// Opens it, unless it has another length or time of modification by now.
    ///
    /// # Errors
    /// When it cannot be opened, or has changed.
    pub async fn open(&self) -> io::Result<tokio::fs::File> {
        let in_file = |error| of_file(&self.path, &error);
        let file = tokio::fs::File::open(&self.path).await.map_err(in_file)?;
        let now = file.metadata().await.map_err(in_file)?;
        if now.len() != self.len || now.modified().ok() != self.modified {
            return Err(self.changed());
        }
        Ok(file)
    }

    /// Its length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "nobody asks")]
    pub const fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn changed(&self) -> io::Error {
        let changed = io::Error::new(
            io::ErrorKind::InvalidData,
            "it has changed since the first attempt",
        );
        of_file(&self.path, &changed)
    }
}

fn of_file(path: &Path, error: &io::Error) -> io::Error {
    let path = path.display();
    io::Error::new(error.kind(), format!("request body {path}: {error}"))
}
