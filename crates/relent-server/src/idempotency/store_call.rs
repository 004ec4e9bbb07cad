//! Calls of the store: how long each may take, and how often it is repeated.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use relent::{Backoff, Policy};
use tokio::time::timeout;

use crate::store::WriteError;

/// A store that fails is asked again a few times, within about half a second of waits.
pub(super) static STORE: Policy = Policy::builder(Backoff::exponential(Duration::from_millis(20)))
    .max_delay(Duration::from_secs(1))
    .max_retries(4)
    .build_const();

/// How long one call of a store may take, whatever limits the store itself has. The layer has shorter ones for claims and
/// renewals.
pub(super) const CALL: Duration = Duration::from_secs(10);

/// Why a call of a store has failed.
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
            // Its text is in this one.
            Self::Store(error) => error.source(),
            Self::TimedOut(_) => None,
        }
    }
}

/// A call of a store, which ends within this time.
pub(super) async fn in_time<T, E>(
    limit: Duration,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, CallError<E>> {
    match timeout(limit, call).await {
        Ok(answered) => answered.map_err(CallError::Store),
        Err(_) => Err(CallError::TimedOut(limit)),
    }
}

/// Why something is not written into a record.
pub(super) type WriteFailed = WriteError<Box<dyn Error + Send + Sync>>;
