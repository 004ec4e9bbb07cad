//! Why something is not written into an SQLite database.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::ErrorCode;

/// Why something is not written.
#[derive(Debug)]
#[non_exhaustive]
pub enum WriterError {
    /// The database refuses it.
    Sqlite(rusqlite::Error),
    /// The file of the database cannot be opened and written.
    File {
        /// As it was named.
        path: PathBuf,
        /// What is wrong with it.
        problem: FileProblem,
    },
    /// The transaction could not be committed, with all that was in it.
    Commit(Arc<rusqlite::Error>),
    /// The work has ended the transaction that it shares with others, by `COMMIT`, `ROLLBACK` or `ON CONFLICT
    /// ROLLBACK`; or SQLite has, after an error that the work went on from, such as a full disk. Nothing of it is
    /// written.
    TransactionEnded,
    /// Other work has ended the transaction of this one (see [`TransactionEnded`](Self::TransactionEnded)), or its
    /// record could not be written. Nothing of this is written, and it may be done again.
    Undone,
    /// The thread has ended.
    Ended,
}

/// Why a file is no database that can be written. The file is left as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FileProblem {
    /// The file is read-only, or its folder, its file system, or a file that SQLite keeps beside it.
    ReadOnly,
    /// It is a directory.
    Directory,
    /// It holds something else.
    NotADatabase,
    /// The folder that it should be in does not exist.
    NoFolder,
    /// The operating system does not open it.
    CannotOpen,
}

impl FileProblem {
    /// What is wrong with a file that could not be set up.
    pub(super) fn of(path: &Path, error: &rusqlite::Error) -> Option<Self> {
        match error.sqlite_error_code()? {
            ErrorCode::ReadOnly => Some(Self::ReadOnly),
            ErrorCode::NotADatabase => Some(Self::NotADatabase),
            ErrorCode::CannotOpen if path.is_dir() => Some(Self::Directory),
            ErrorCode::CannotOpen => {
                let folder = path.parent().unwrap_or(path);
                // A name that begins so is an address, which SQLite reads in its own way.
                let is_plain = !folder.as_os_str().is_empty() && !path.starts_with("file:");
                let is_missing = is_plain && !folder.is_dir();
                Some(if is_missing {
                    Self::NoFolder
                } else {
                    Self::CannotOpen
                })
            }
            ErrorCode::PermissionDenied => Some(Self::CannotOpen),
            _ => None,
        }
    }
}

impl fmt::Display for FileProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReadOnly => {
                "is read-only, or its folder or a file of SQLite beside it (-wal, -shm) is, and records have to be written: \
                 change the permissions, or name another file"
            }
            Self::Directory => "is a directory: name a file in it",
            Self::NotADatabase => "is not an SQLite database, and is left as it is: name another file",
            Self::NoFolder => "cannot be made, since its folder does not exist: make that first",
            Self::CannotOpen => {
                "cannot be opened: check the permissions of the file and of its folder, and that the path is right"
            }
        })
    }
}

impl fmt::Display for WriterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(error) => write!(f, "SQLite: {error}"),
            Self::File { path, problem } => {
                write!(f, "SQLite: the file {} {problem}", path.display())
            }
            Self::Commit(error) => write!(f, "SQLite could not commit: {error}"),
            Self::TransactionEnded => f.write_str(
                "nothing is written, since the transaction that the work shares with others has ended within it. If a \
                 statement of it failed, as on a full disk, return that error: it says what is wrong. Else take COMMIT, \
                 ROLLBACK and ON CONFLICT ROLLBACK out of it, and return an error where it is to be undone",
            ),
            Self::Undone => f.write_str(
                "nothing is written, since other work has ended the transaction of this one: do it again",
            ),
            Self::Ended => f.write_str("the thread that writes into SQLite has ended"),
        }
    }
}

impl Error for WriterError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // The text of the error itself is in this one.
        match self {
            Self::Sqlite(error) => error.source(),
            Self::Commit(error) => error.source(),
            Self::File { .. } | Self::TransactionEnded | Self::Undone | Self::Ended => None,
        }
    }
}

impl From<rusqlite::Error> for WriterError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}
