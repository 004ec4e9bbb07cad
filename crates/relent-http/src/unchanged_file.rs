//! A file that is opened again for every attempt, and must not change.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A file with the length and modification time that it had first.
#[derive(Debug)]
pub struct UnchangedFile {
    path: PathBuf,
    len: u64,
    modified: Option<SystemTime>,
}

impl UnchangedFile {
    /// Records the state of a file, which must be a regular one: a pipe cannot be read twice.
    ///
    /// # Errors
    /// If its metadata cannot be read, or it is not a regular file.
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

    /// Opens the file, unless its length or modification time has changed.
    ///
    /// # Errors
    /// If it cannot be opened, or has changed.
    pub async fn open(&self) -> io::Result<tokio::fs::File> {
        let in_file = |error| of_file(&self.path, &error);
        let file = tokio::fs::File::open(&self.path).await.map_err(in_file)?;
        let now = file.metadata().await.map_err(in_file)?;
        if now.len() != self.len || now.modified().ok() != self.modified {
            return Err(self.changed());
        }
        Ok(file)
    }

    /// The recorded length in bytes.
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
