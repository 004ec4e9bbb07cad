//! Why a store has failed, as far as an operator may know it.

use std::error::Error;
use std::fmt;
use std::io;

use super::key::Key;
use super::memory::Full;

/// A call of the store that has failed, with all its attempts: for the operator, as
/// [`on_store_failure`](crate::idempotency::IdempotencyLayer::on_store_failure) and the event have it.
///
/// It holds nothing secret: no idempotency key, no address, no name of a user, no statement, and no text of the database.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StoreFailure {
    /// What was asked of the store: `claim`, `write`, `renew`, `give_back` or `transaction`.
    pub operation: &'static str,
    /// Of which request: a digest of its key.
    pub key: Key,
    /// What is wrong.
    pub kind: FailureKind,
    /// The code by which the database or the operating system says it: an SQLSTATE such as `42P01`, a name such as
    /// `SQLITE_READONLY`, the first word of an error of Redis such as `OOM`, or a kind of [`io::Error`] such as
    /// `ConnectionRefused`. `None` if there is none.
    pub code: Option<String>,
    /// What to do about it.
    pub message: &'static str,
}

impl StoreFailure {
    /// What is known of this error of a store: one of this crate, or one whose chain of [sources](Error::source) has an
    /// error of SQLite, PostgreSQL, Redis or the operating system. Of any other the kind is [`FailureKind::Other`].
    #[must_use]
    pub fn new(operation: &'static str, key: Key, error: &(dyn Error + 'static)) -> Self {
        Self::of(operation, key, explain(error))
    }

    /// The store has not answered within the limit of this side, so it has given no code.
    pub(crate) fn timed_out(operation: &'static str, key: Key) -> Self {
        Self::of(operation, key, (FailureKind::TimedOut, None))
    }

    fn of(operation: &'static str, key: Key, (kind, code): Explained) -> Self {
        Self {
            operation,
            key,
            kind,
            code,
            message: kind.message(),
        }
    }
}

impl fmt::Display for StoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.operation, self.message)?;
        match &self.code {
            Some(code) => write!(f, " ({code})"),
            None => Ok(()),
        }
    }
}

/// What is wrong with a store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FailureKind {
    /// There is no connection, or it is lost.
    Unreachable,
    /// It has not answered in time.
    TimedOut,
    /// It does not know its client, or does not let it do this.
    Denied,
    /// A table, a column, a schema or the database is not there.
    Missing,
    /// It may be read only.
    ReadOnly,
    /// A disk, a memory or a share of it is full.
    Full,
    /// Others keep it from answering: locks, too many connections, a start.
    Busy,
    /// A record or the file is not as this version writes it.
    Corrupt,
    /// Anything else.
    Other,
}

impl FailureKind {
    /// In one word, as the event has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timed_out",
            Self::Denied => "denied",
            Self::Missing => "missing",
            Self::ReadOnly => "read_only",
            Self::Full => "full",
            Self::Busy => "busy",
            Self::Corrupt => "corrupt",
            Self::Other => "other",
        }
    }

    const fn message(self) -> &'static str {
        match self {
            Self::Unreachable => {
                "the store is not reached: check that it runs, its address and the network"
            }
            Self::TimedOut => {
                "the store has not answered in time: it is stopped, overloaded, or the network loses packets"
            }
            Self::Denied => "the store refuses this user: check its password and its rights",
            Self::Missing => {
                "a table, a column or the database of the store is missing: run `create_tables`, or your migrations"
            }
            Self::ReadOnly => {
                "the store can only be read: it is a replica, or its file or file system is read-only"
            }
            Self::Full => {
                "the store is full: make room on its disk or in its memory, or keep records for less time"
            }
            Self::Busy => "the store is busy: locks, too many connections, or it is starting",
            Self::Corrupt => {
                "a record or the file of the store is not as this version writes it: was it changed by other means, or by a \
                 later version?"
            }
            Self::Other => "the store has failed",
        }
    }
}

pub(crate) type Explained = (FailureKind, Option<String>);

/// The first error of the chain that is known.
pub(crate) fn explain(error: &(dyn Error + 'static)) -> Explained {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(explained) = known(error) {
            return explained;
        }
        next = error.source();
    }
    (FailureKind::Other, None)
}

fn known(error: &(dyn Error + 'static)) -> Option<Explained> {
    if error.is::<Full>() {
        return Some((FailureKind::Full, None));
    }
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return Some(of_io(error));
    }
    #[cfg(feature = "sqlite")]
    if let Some(explained) = sqlite::known(error) {
        return Some(explained);
    }
    #[cfg(feature = "postgres")]
    if let Some(explained) = postgres::known(error) {
        return Some(explained);
    }
    #[cfg(feature = "redis")]
    if let Some(explained) = redis::known(error) {
        return Some(explained);
    }
    None
}

fn of_io(error: &io::Error) -> Explained {
    use io::ErrorKind as Kind;

    // One that only carries another.
    if let (Kind::Other, Some(inner)) = (error.kind(), error.get_ref()) {
        return explain(inner);
    }
    let kind = match error.kind() {
        Kind::NotFound
        | Kind::ConnectionRefused
        | Kind::ConnectionReset
        | Kind::ConnectionAborted
        | Kind::NotConnected
        | Kind::AddrNotAvailable
        | Kind::HostUnreachable
        | Kind::NetworkUnreachable
        | Kind::NetworkDown
        | Kind::BrokenPipe
        | Kind::UnexpectedEof => FailureKind::Unreachable,
        Kind::TimedOut => FailureKind::TimedOut,
        Kind::PermissionDenied => FailureKind::Denied,
        Kind::StorageFull | Kind::QuotaExceeded | Kind::OutOfMemory => FailureKind::Full,
        Kind::ReadOnlyFilesystem => FailureKind::ReadOnly,
        Kind::InvalidData => FailureKind::Corrupt,
        _ => FailureKind::Other,
    };
    (kind, Some(format!("{:?}", error.kind())))
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use std::error::Error;

    use rusqlite::{ErrorCode, ffi};

    use super::{Explained, FailureKind};
    use crate::sqlite::{FileProblem, WriterError};
    use crate::store::SqliteError;

    pub(super) fn known(error: &(dyn Error + 'static)) -> Option<Explained> {
        if let Some(error) = error.downcast_ref::<SqliteError>() {
            return Some(match error {
                SqliteError::Writer(error) => of_writer(error),
                SqliteError::Record(_) => (FailureKind::Corrupt, None),
            });
        }
        if let Some(error) = error.downcast_ref::<WriterError>() {
            return Some(of_writer(error));
        }
        error.downcast_ref().map(of)
    }

    fn of_writer(error: &WriterError) -> Explained {
        match error {
            WriterError::Sqlite(error) => of(error),
            WriterError::Commit(error) => of(error),
            WriterError::File { problem, .. } => match problem {
                FileProblem::ReadOnly => (FailureKind::ReadOnly, None),
                FileProblem::NotADatabase => (FailureKind::Corrupt, None),
                _ => (FailureKind::Unreachable, None),
            },
            WriterError::Undone => (FailureKind::Busy, None),
            WriterError::TransactionEnded | WriterError::Ended => (FailureKind::Other, None),
        }
    }

    fn of(error: &rusqlite::Error) -> Explained {
        let (error, text) = match error {
            rusqlite::Error::SqliteFailure(error, text) => {
                (error, text.as_deref().unwrap_or_default())
            }
            rusqlite::Error::SqlInputError { error, msg, .. } => (error, &**msg),
            _ => return (FailureKind::Other, None),
        };
        let missing = ["no such table", "no such column"].map(|what| text.starts_with(what));
        let missing = missing.contains(&true) || text.contains("has no column named");
        let (kind, name) = match error.code {
            ErrorCode::Unknown if missing => (FailureKind::Missing, "SQLITE_ERROR"),
            ErrorCode::Unknown => (FailureKind::Other, "SQLITE_ERROR"),
            ErrorCode::ReadOnly => (FailureKind::ReadOnly, "SQLITE_READONLY"),
            ErrorCode::DiskFull => (FailureKind::Full, "SQLITE_FULL"),
            ErrorCode::OutOfMemory => (FailureKind::Full, "SQLITE_NOMEM"),
            ErrorCode::CannotOpen => (FailureKind::Unreachable, "SQLITE_CANTOPEN"),
            ErrorCode::DatabaseBusy => (FailureKind::Busy, "SQLITE_BUSY"),
            ErrorCode::DatabaseLocked => (FailureKind::Busy, "SQLITE_LOCKED"),
            ErrorCode::PermissionDenied => (FailureKind::Denied, "SQLITE_PERM"),
            ErrorCode::AuthorizationForStatementDenied => (FailureKind::Denied, "SQLITE_AUTH"),
            ErrorCode::DatabaseCorrupt => (FailureKind::Corrupt, "SQLITE_CORRUPT"),
            ErrorCode::NotADatabase => (FailureKind::Corrupt, "SQLITE_NOTADB"),
            ErrorCode::SystemIoFailure if error.extended_code == ffi::SQLITE_IOERR_WRITE => {
                (FailureKind::Full, "SQLITE_IOERR_WRITE")
            }
            ErrorCode::SystemIoFailure => (FailureKind::Other, "SQLITE_IOERR"),
            _ => return (FailureKind::Other, Some(error.extended_code.to_string())),
        };
        (kind, Some(name.to_owned()))
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use std::error::Error;

    use deadpool_postgres::PoolError;

    #[cfg(feature = "sqlx")]
    use super::of_io;
    use super::{Explained, FailureKind, explain};
    use crate::postgres::ConnectionError;
    use crate::store::PostgresError;

    pub(super) fn known(error: &(dyn Error + 'static)) -> Option<Explained> {
        if let Some(error) = error.downcast_ref::<PostgresError>() {
            return Some(match error {
                PostgresError::Connection(error) => of_connection(error),
                PostgresError::Record(_) => (FailureKind::Corrupt, None),
                PostgresError::Contended => (FailureKind::Busy, None),
            });
        }
        if let Some(error) = error.downcast_ref::<ConnectionError>() {
            return Some(of_connection(error));
        }
        #[cfg(feature = "sqlx")]
        if let Some(error) = error.downcast_ref::<::sqlx::Error>() {
            return Some(of_sqlx(error));
        }
        error.downcast_ref().map(of)
    }

    fn of_connection(error: &ConnectionError) -> Explained {
        match error {
            ConnectionError::Postgres(error) | ConnectionError::Pool(PoolError::Backend(error)) => {
                of(error)
            }
            #[cfg(feature = "sqlx")]
            ConnectionError::Sqlx(error) => of_sqlx(error),
            ConnectionError::Pool(PoolError::Timeout(_)) | ConnectionError::TimedOut(_) => {
                (FailureKind::TimedOut, None)
            }
            ConnectionError::Pool(_) => (FailureKind::Unreachable, None),
            ConnectionError::Config(_) => (FailureKind::Other, None),
        }
    }

    fn of(error: &tokio_postgres::Error) -> Explained {
        match (error.code(), error.source()) {
            (Some(code), _) => of_state(code.code()),
            (None, Some(source)) => match explain(source) {
                (FailureKind::Other, None) if error.is_closed() => (FailureKind::Unreachable, None),
                explained => explained,
            },
            (None, None) if error.is_closed() => (FailureKind::Unreachable, None),
            (None, None) => (FailureKind::Other, None),
        }
    }

    #[cfg(feature = "sqlx")]
    fn of_sqlx(error: &::sqlx::Error) -> Explained {
        match error {
            ::sqlx::Error::Database(error) => match error.code() {
                Some(code) => of_state(&code),
                None => (FailureKind::Other, None),
            },
            ::sqlx::Error::Io(error) => of_io(error),
            ::sqlx::Error::PoolTimedOut => (FailureKind::TimedOut, None),
            ::sqlx::Error::PoolClosed => (FailureKind::Unreachable, None),
            _ => (FailureKind::Other, None),
        }
    }

    /// By its SQLSTATE.
    fn of_state(state: &str) -> Explained {
        let kind = match state {
            "42P01" | "42703" | "3D000" | "3F000" => FailureKind::Missing,
            "25006" => FailureKind::ReadOnly,
            "53100" | "53200" => FailureKind::Full,
            "53300" | "55P03" | "40001" | "40P01" | "57P03" => FailureKind::Busy,
            "57014" => FailureKind::TimedOut,
            "42501" => FailureKind::Denied,
            "57P01" | "57P02" => FailureKind::Unreachable,
            "XX001" | "XX002" => FailureKind::Corrupt,
            state if state.starts_with("28") => FailureKind::Denied,
            state if state.starts_with("08") => FailureKind::Unreachable,
            _ => FailureKind::Other,
        };
        (kind, Some(state.to_owned()))
    }
}

#[cfg(feature = "redis")]
mod redis {
    use std::error::Error;

    use ::redis::ErrorKind;

    use super::{Explained, FailureKind};
    use crate::store::RedisError;

    pub(super) fn known(error: &(dyn Error + 'static)) -> Option<Explained> {
        if let Some(error) = error.downcast_ref::<RedisError>() {
            return Some(match error {
                RedisError::Redis(error) => of(error),
                RedisError::Late => (FailureKind::TimedOut, None),
                RedisError::Record(_) => (FailureKind::Corrupt, None),
                RedisError::Evicts { .. } | RedisError::Volatile => (FailureKind::Other, None),
            });
        }
        error.downcast_ref().map(of)
    }

    fn of(error: &::redis::RedisError) -> Explained {
        let refused = |code: &str| match code {
            "OOM" | "MISCONF" => FailureKind::Full,
            "READONLY" => FailureKind::ReadOnly,
            "NOAUTH" | "WRONGPASS" | "NOPERM" => FailureKind::Denied,
            "LOADING" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" | "NOREPLICAS" => {
                FailureKind::Busy
            }
            "RELENTVERSION" => FailureKind::Corrupt,
            _ => FailureKind::Other,
        };
        match error.code() {
            // A word of capital letters is a code; anything else may be a text.
            Some(code)
                if code.len() <= 32 && code.bytes().all(|byte| byte.is_ascii_uppercase()) =>
            {
                (refused(code), Some(code.to_owned()))
            }
            _ if error.is_timeout() => (FailureKind::TimedOut, None),
            _ if error.is_connection_refusal() => (
                FailureKind::Unreachable,
                Some("ConnectionRefused".to_owned()),
            ),
            _ if error.is_io_error() || error.is_connection_dropped() => {
                (FailureKind::Unreachable, None)
            }
            _ if error.kind() == ErrorKind::AuthenticationFailed => (FailureKind::Denied, None),
            _ => (FailureKind::Other, None),
        }
    }
}
