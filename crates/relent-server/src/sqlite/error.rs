//! Errors of the SQLite writer.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::ErrorCode;

/// The reason why work was not written.
#[derive(Debug)]
#[non_exhaustive]
pub enum WriterError {
    /// SQLite rejected a statement.
    Sqlite(rusqlite::Error),
    /// The database file cannot be opened or written.
    File {
        /// The path that was passed.
        path: PathBuf,
        /// The problem of the file.
        problem: FileProblem,
    },
    /// The transaction with all its jobs could not be committed.
    Commit(Arc<rusqlite::Error>),
    /// The work ended the transaction that it shares with others, by `COMMIT`, `ROLLBACK` or `ON CONFLICT ROLLBACK`.
    /// Or SQLite ended it, after an error that the work ignored, such as a full disk. Nothing is written.
    TransactionEnded,
    /// The transaction was rolled back because of another job: it ended the transaction (see
    /// [`TransactionEnded`](Self::TransactionEnded)), or its record could not be written. Nothing is written, and the
    /// work may be repeated.
    Undone,
    /// The writer thread has ended.
    Ended,
}

/// The reason why a file cannot be used as a database. The file is not changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FileProblem {
    /// The file is read-only, or its folder, its file system, or a companion file of SQLite.
    ReadOnly,
    /// The path is a directory.
    Directory,
    /// The file has other content.
    NotADatabase,
    /// The folder of the file does not exist.
    NoFolder,
    /// The operating system cannot open the file.
    CannotOpen,
}

impl FileProblem {
    /// Classifies an error of opening or setting up the file.
    pub(super) fn of(path: &Path, error: &rusqlite::Error) -> Option<Self> {
        match error.sqlite_error_code()? {
            ErrorCode::ReadOnly => Some(Self::ReadOnly),
            ErrorCode::NotADatabase => Some(Self::NotADatabase),
            ErrorCode::CannotOpen if path.is_dir() => Some(Self::Directory),
            ErrorCode::CannotOpen => {
                let folder = path.parent().unwrap_or(path);
                // SQLite parses a path with this prefix as a URI.
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
        // The text of the error itself is part of this text.
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
