//! Failures of a store, as reported to the operator.

use std::error::Error;
use std::fmt;
use std::io;

use super::key::Key;
use super::memory::Full;

/// A store call that has failed with all its attempts, for the operator.
/// [`on_store_failure`](crate::idempotency::IdempotencyLayer::on_store_failure) and the event receive it.
///
/// It contains no secrets: no idempotency key, address, user name, statement, or text of the database.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StoreFailure {
    /// The call: `claim`, `write`, `renew`, `give_back` or `transaction`.
    pub operation: &'static str,
    /// The digest of the key of the request.
    pub key: Key,
    /// The kind of failure.
    pub kind: StoreFailureKind,
    /// The code of the database or operating system; `None` if there is none. Examples are an SQLSTATE (`42P01`), a
    /// name (`SQLITE_READONLY`), the first word of a Redis error (`OOM`), and an [`io::ErrorKind`] (`NotFound`).
    pub code: Option<String>,
    /// The recommended action.
    pub message: &'static str,
}

impl StoreFailure {
    /// Classifies an error of a store. It searches the chain of [sources](Error::source) for an error of this crate,
    /// SQLite, PostgreSQL, Redis or the operating system. Any other error is [`StoreFailureKind::Other`].
    #[must_use]
    pub fn new(operation: &'static str, key: Key, error: &(dyn Error + 'static)) -> Self {
        Self::of(operation, key, explain(error))
    }

    /// The store has not responded within the limit of this process, so there is no code.
    pub(crate) fn timed_out(operation: &'static str, key: Key) -> Self {
        Self::of(operation, key, (StoreFailureKind::TimedOut, None))
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

/// The kind of a store failure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum StoreFailureKind {
    /// There is no connection, or it was lost.
    Unreachable,
    /// The store has not responded in time.
    TimedOut,
    /// The store does not accept the credentials, or does not permit the operation.
    Denied,
    /// A table, column, schema or the database does not exist.
    Missing,
    /// The store is read-only.
    ReadOnly,
    /// A disk, memory or quota is full.
    Full,
    /// The store is busy: locks, too many connections, or it is starting.
    Busy,
    /// A record or the file is not in the format of this version.
    Corrupt,
    /// Anything else.
    Other,
}

impl StoreFailureKind {
    /// Returns the name of the kind, as in the event.
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

pub(crate) type Explained = (StoreFailureKind, Option<String>);

/// Returns the first error of the chain that can be classified.
pub(crate) fn explain(error: &(dyn Error + 'static)) -> Explained {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(explained) = known(error) {
            return explained;
        }
        next = error.source();
    }
    (StoreFailureKind::Other, None)
}

fn known(error: &(dyn Error + 'static)) -> Option<Explained> {
    if error.is::<Full>() {
        return Some((StoreFailureKind::Full, None));
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

    // The error only wraps another one.
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
        | Kind::UnexpectedEof => StoreFailureKind::Unreachable,
        Kind::TimedOut => StoreFailureKind::TimedOut,
        Kind::PermissionDenied => StoreFailureKind::Denied,
        Kind::StorageFull | Kind::QuotaExceeded | Kind::OutOfMemory => StoreFailureKind::Full,
        Kind::ReadOnlyFilesystem => StoreFailureKind::ReadOnly,
        Kind::InvalidData => StoreFailureKind::Corrupt,
        _ => StoreFailureKind::Other,
    };
    (kind, Some(format!("{:?}", error.kind())))
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use std::error::Error;

    use rusqlite::{ErrorCode, ffi};

    use super::{Explained, StoreFailureKind};
    use crate::sqlite::{FileProblem, WriterError};
    use crate::store::SqliteError;

    pub(super) fn known(error: &(dyn Error + 'static)) -> Option<Explained> {
        if let Some(error) = error.downcast_ref::<SqliteError>() {
            return Some(match error {
                SqliteError::Writer(error) => of_writer(error),
                SqliteError::Record(_) => (StoreFailureKind::Corrupt, None),
                SqliteError::TimedOut(_) => (StoreFailureKind::TimedOut, None),
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
                FileProblem::ReadOnly => (StoreFailureKind::ReadOnly, None),
                FileProblem::NotADatabase => (StoreFailureKind::Corrupt, None),
                _ => (StoreFailureKind::Unreachable, None),
            },
            WriterError::Undone => (StoreFailureKind::Busy, None),
            WriterError::TransactionEnded | WriterError::Ended => (StoreFailureKind::Other, None),
        }
    }

    fn of(error: &rusqlite::Error) -> Explained {
        let (error, text) = match error {
            rusqlite::Error::SqliteFailure(error, text) => {
                (error, text.as_deref().unwrap_or_default())
            }
            rusqlite::Error::SqlInputError { error, msg, .. } => (error, &**msg),
            _ => return (StoreFailureKind::Other, None),
        };
        let missing = ["no such table", "no such column"].map(|what| text.starts_with(what));
        let missing = missing.contains(&true) || text.contains("has no column named");
        let (kind, name) = match error.code {
            ErrorCode::Unknown if missing => (StoreFailureKind::Missing, "SQLITE_ERROR"),
            ErrorCode::Unknown => (StoreFailureKind::Other, "SQLITE_ERROR"),
            ErrorCode::ReadOnly => (StoreFailureKind::ReadOnly, "SQLITE_READONLY"),
            ErrorCode::DiskFull => (StoreFailureKind::Full, "SQLITE_FULL"),
            ErrorCode::OutOfMemory => (StoreFailureKind::Full, "SQLITE_NOMEM"),
            ErrorCode::CannotOpen => (StoreFailureKind::Unreachable, "SQLITE_CANTOPEN"),
            ErrorCode::DatabaseBusy => (StoreFailureKind::Busy, "SQLITE_BUSY"),
            ErrorCode::DatabaseLocked => (StoreFailureKind::Busy, "SQLITE_LOCKED"),
            ErrorCode::PermissionDenied => (StoreFailureKind::Denied, "SQLITE_PERM"),
            ErrorCode::AuthorizationForStatementDenied => (StoreFailureKind::Denied, "SQLITE_AUTH"),
            ErrorCode::DatabaseCorrupt => (StoreFailureKind::Corrupt, "SQLITE_CORRUPT"),
            ErrorCode::NotADatabase => (StoreFailureKind::Corrupt, "SQLITE_NOTADB"),
            ErrorCode::SystemIoFailure if error.extended_code == ffi::SQLITE_IOERR_WRITE => {
                (StoreFailureKind::Full, "SQLITE_IOERR_WRITE")
            }
            ErrorCode::SystemIoFailure => (StoreFailureKind::Other, "SQLITE_IOERR"),
            _ => {
                return (
                    StoreFailureKind::Other,
                    Some(error.extended_code.to_string()),
                );
            }
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
    use super::{Explained, StoreFailureKind, explain};
    use crate::postgres::ConnectionError;
    use crate::store::PostgresError;

    pub(super) fn known(error: &(dyn Error + 'static)) -> Option<Explained> {
        if let Some(error) = error.downcast_ref::<PostgresError>() {
            return Some(match error {
                PostgresError::Connection(error) => of_connection(error),
                PostgresError::Record(_) => (StoreFailureKind::Corrupt, None),
                PostgresError::Contended => (StoreFailureKind::Busy, None),
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
                (StoreFailureKind::TimedOut, None)
            }
            ConnectionError::Pool(_) => (StoreFailureKind::Unreachable, None),
            ConnectionError::Config(_) => (StoreFailureKind::Other, None),
        }
    }

    fn of(error: &tokio_postgres::Error) -> Explained {
        match (error.code(), error.source()) {
            (Some(code), _) => of_state(code.code()),
            (None, Some(source)) => match explain(source) {
                (StoreFailureKind::Other, None) if error.is_closed() => {
                    (StoreFailureKind::Unreachable, None)
                }
                explained => explained,
            },
            (None, None) if error.is_closed() => (StoreFailureKind::Unreachable, None),
            (None, None) => (StoreFailureKind::Other, None),
        }
    }

    #[cfg(feature = "sqlx")]
    fn of_sqlx(error: &::sqlx::Error) -> Explained {
        match error {
            ::sqlx::Error::Database(error) => match error.code() {
                Some(code) => of_state(&code),
                None => (StoreFailureKind::Other, None),
            },
            ::sqlx::Error::Io(error) => of_io(error),
            ::sqlx::Error::PoolTimedOut => (StoreFailureKind::TimedOut, None),
            ::sqlx::Error::PoolClosed => (StoreFailureKind::Unreachable, None),
            _ => (StoreFailureKind::Other, None),
        }
    }

    /// Classifies an SQLSTATE.
    fn of_state(state: &str) -> Explained {
        let kind = match state {
            "42P01" | "42703" | "3D000" | "3F000" => StoreFailureKind::Missing,
            "25006" => StoreFailureKind::ReadOnly,
            "53100" | "53200" => StoreFailureKind::Full,
            "53300" | "55P03" | "40001" | "40P01" | "57P03" => StoreFailureKind::Busy,
            "57014" => StoreFailureKind::TimedOut,
            "42501" => StoreFailureKind::Denied,
            "57P01" | "57P02" => StoreFailureKind::Unreachable,
            "XX001" | "XX002" => StoreFailureKind::Corrupt,
            state if state.starts_with("28") => StoreFailureKind::Denied,
            state if state.starts_with("08") => StoreFailureKind::Unreachable,
            _ => StoreFailureKind::Other,
        };
        (kind, Some(state.to_owned()))
    }
}

#[cfg(feature = "redis")]
mod redis {
    use std::error::Error;

    use ::redis::ErrorKind;

    use super::{Explained, StoreFailureKind};
    use crate::store::RedisError;

    pub(super) fn known(error: &(dyn Error + 'static)) -> Option<Explained> {
        if let Some(error) = error.downcast_ref::<RedisError>() {
            return Some(match error {
                RedisError::Redis(error) => of(error),
                RedisError::Late => (StoreFailureKind::TimedOut, None),
                RedisError::Record(_) => (StoreFailureKind::Corrupt, None),
                RedisError::Evicts { .. } | RedisError::Volatile => (StoreFailureKind::Other, None),
            });
        }
        error.downcast_ref().map(of)
    }

    fn of(error: &::redis::RedisError) -> Explained {
        let refused = |code: &str| match code {
            "OOM" | "MISCONF" => StoreFailureKind::Full,
            "READONLY" => StoreFailureKind::ReadOnly,
            "NOAUTH" | "WRONGPASS" | "NOPERM" => StoreFailureKind::Denied,
            "LOADING" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" | "NOREPLICAS" => {
                StoreFailureKind::Busy
            }
            "RELENTVERSION" => StoreFailureKind::Corrupt,
            _ => StoreFailureKind::Other,
        };
        match error.code() {
            // A code is a word of capital letters; anything else may be text with secrets.
            Some(code)
                if code.len() <= 32 && code.bytes().all(|byte| byte.is_ascii_uppercase()) =>
            {
                (refused(code), Some(code.to_owned()))
            }
            _ if error.is_timeout() => (StoreFailureKind::TimedOut, None),
            _ if error.is_connection_refusal() => (
                StoreFailureKind::Unreachable,
                Some("ConnectionRefused".to_owned()),
            ),
            _ if error.is_io_error() || error.is_connection_dropped() => {
                (StoreFailureKind::Unreachable, None)
            }
            _ if error.kind() == ErrorKind::AuthenticationFailed => {
                (StoreFailureKind::Denied, None)
            }
            _ => (StoreFailureKind::Other, None),
        }
    }
}
