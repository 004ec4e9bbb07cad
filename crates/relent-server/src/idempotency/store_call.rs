//! Timeouts and retries for calls of the store.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use relent::{Backoff, Policy};
use tokio::time::timeout;

use crate::store::WriteError;

/// Retries a failed call up to four times, with about half a second of delays.
pub(super) static CALL_RETRIES: Policy =
    Policy::builder(Backoff::exponential(Duration::from_millis(20)))
        .max_delay(Duration::from_secs(1))
        .max_retries(4)
        .build_const();

/// The longest time for one call of a store, whatever its own limits. Claims and renewals have shorter limits.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason why a call of a store has failed.
#[derive(Debug)]
pub(super) enum CallError<E> {
    Store(E),
    TimedOut(Duration),
}

impl<E: fmt::Display> fmt::Display for CallError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::TimedOut(limit) => write!(f, "the store has not answered within {limit:?}"),
        }
    }
}

impl<E: Error> Error for CallError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // Its text is part of this error's text.
            Self::Store(error) => error.source(),
            Self::TimedOut(_) => None,
        }
    }
}

/// Limits a call of a store to this time.
pub(super) async fn in_time<T, E>(
    limit: Duration,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, CallError<E>> {
    match timeout(limit, call).await {
        Ok(answered) => answered.map_err(CallError::Store),
        Err(_) => Err(CallError::TimedOut(limit)),
    }
}

/// The reason why a record was not written.
pub(super) type WriteFailed = WriteError<Box<dyn Error + Send + Sync>>;
