//! Stores for the records of idempotency keys.

pub(crate) mod answer;
pub mod conformance;
pub(crate) mod digest;
pub(crate) mod failure;
mod key;
mod memory;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod micros;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
mod unknown;

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use relent_core::Instant;
use relent_core::idempotency::{Claim, ClaimConfig, Fingerprint, Lease, LeaseLost, Record};

#[cfg(feature = "postgres")]
pub use self::postgres::{Postgres, PostgresError};
#[cfg(feature = "redis")]
pub use self::redis::{Redis, RedisError};
pub use answer::StoredResponse;
pub use failure::{StoreFailure, StoreFailureKind};
pub use key::Key;
pub use memory::{Full, Memory};
pub use relent_core::idempotency::NotResolved;
#[cfg(feature = "sqlite")]
pub use sqlite::{Sqlite, SqliteError};
pub use unknown::{Resolution, ResolveError, UnknownOutcome};

/// The decision on a request with a key: a [`Claim`], with the stored response if there is one.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Claimed {
    /// The request runs: see [`Claim::Run`].
    Run {
        /// The lease to write the record with.
        lease: Lease,
        /// The last step that an earlier execution has completed; 0 for none.
        step: u32,
        /// Whether an earlier execution may have had an effect.
        repeated: bool,
    },
    /// The request is completed, and this is its response.
    Replay(StoredResponse),
    /// The request is running; its lease lasts this much longer.
    InFlight(Duration),
    /// The key belongs to another request.
    Mismatch,
    /// The outcome is unknown: an execution was lost, and may have had an effect.
    Unknown,
}

impl Claimed {
    /// Converts a decision of the core at the time `now` of the store, with the stored response.
    ///
    /// # Errors
    /// [`ResponseMissing`] if the request is completed and has no response.
    pub fn of(
        claim: Claim,
        now: Instant,
        answer: Option<StoredResponse>,
    ) -> Result<Self, ResponseMissing> {
        Ok(match claim {
            Claim::Run {
                lease,
                step,
                repeated,
            } => Self::Run {
                lease,
                step,
                repeated,
            },
            Claim::Replay => Self::Replay(answer.ok_or(ResponseMissing)?),
            Claim::InFlight { until } => Self::InFlight(until.saturating_since(now)),
            Claim::Mismatch => Self::Mismatch,
            Claim::Unknown => Self::Unknown,
        })
    }
}

/// Like [`Claimed::of`], for stores that keep the response as bytes.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn claimed(
    claim: Claim,
    now: Instant,
    answer: Option<Vec<u8>>,
) -> Result<Claimed, Box<dyn Error + Send + Sync>> {
    let answer = match claim {
        Claim::Replay => answer.map(|answer| StoredResponse::from_bytes(&answer)),
        _ => None,
    };
    Ok(Claimed::of(claim, now, answer.transpose()?)?)
}

/// The record says that its request is completed, but has no response: the store was changed by other means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResponseMissing;

impl fmt::Display for ResponseMissing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the record of a completed request has no answer: was the store changed by other means?")
    }
}

impl Error for ResponseMissing {}

/// A change of a record by its execution.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Change {
    /// The execution still runs.
    Renew,
    /// The execution has completed this step.
    Checkpoint(u32),
    /// The execution has this response.
    Complete(Arc<StoredResponse>),
    /// The execution had no effect.
    Release,
    /// The execution has ended without a response.
    GiveUp,
    /// The execution never started, since its process did not learn in time whether the key was claimed; or its
    /// [release](Self::Release) has failed. Only the owner of the lease is compared: [`Record::give_back`].
    GiveBack,
}

impl Change {
    /// Applies the change, and returns the new record and lease. A store that keeps whole records writes both, with
    /// the response of [`Complete`](Self::Complete).
    ///
    /// # Errors
    /// The lease is lost.
    pub fn make(
        &self,
        record: &Record,
        now: Instant,
        lease: &Lease,
        config: &ClaimConfig,
    ) -> Result<(Record, Lease), LeaseLost> {
        let record = match self {
            Self::Renew => return record.renew(now, lease, config),
            Self::Checkpoint(step) => record.checkpoint(now, lease, *step),
            Self::Complete(_) => record.complete(now, lease, config),
            Self::Release => record.release(now, lease, config),
            Self::GiveUp => record.give_up(now, lease, config),
            Self::GiveBack => record.give_back(now, lease.owner, config),
        };
        Ok((record?, *lease))
    }

    /// Returns the response that it writes, as bytes.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn answer(&self) -> Option<Vec<u8>> {
        match self {
            Self::Complete(answer) => Some(answer.to_bytes()),
            _ => None,
        }
    }
}

/// The reason why a change was not made.
#[derive(Debug)]
pub enum WriteError<E> {
    /// The lease is lost, and nothing was written.
    Lost,
    /// The record no longer exists, and nothing was written. It has expired, or the store has lost it, such as Redis
    /// in a failover. No other execution is known to have taken the key. A store that cannot tell, or never loses
    /// records, returns [`Lost`](Self::Lost).
    Gone,
    /// The store has failed, and may have written the change.
    Store(E),
}

impl<E> From<LeaseLost> for WriteError<E> {
    fn from(_: LeaseLost) -> Self {
        Self::Lost
    }
}

/// A store for the records of idempotency keys and their responses.
///
/// Each method is atomic and decides by [`Record`], or exactly as it does. Time is the store's clock, never that of
/// the servers that share it. Test your own store with [`conformance`].
///
/// If the store's clock is set forward, leases and records expire that much earlier. If it is set back, they expire
/// that much later, unless they were removed before. In either case an execution may write after its lease has expired,
/// but only while the record has its owner and fencing token. The layer never reruns a request that still runs in its
/// own process.
///
/// # Claims without a waiting caller
/// If a claim takes effect after its caller has stopped waiting, it holds the key and nothing runs. When its lease
/// expires, the outcome counts as unknown. So a store rejects a claim that it executes too late, as far as it can
/// tell. The layer also [gives back](Change::GiveBack) each failed claim, until the store has no record of it.
pub trait Store: Send + Sync + 'static {
    /// The error of the store.
    type Error: Error + Send + Sync + 'static;

    /// Claims the key for a request: [`Record::claim`].
    fn claim(
        &self,
        key: &Key,
        owner: u128,
        fingerprint: Fingerprint,
        config: &ClaimConfig,
    ) -> impl Future<Output = Result<Claimed, Self::Error>> + Send;

    /// Applies a change of an execution to its record, and returns the new lease.
    fn write(
        &self,
        key: &Key,
        lease: &Lease,
        change: Change,
        config: &ClaimConfig,
    ) -> impl Future<Output = Result<Lease, WriteError<Self::Error>>> + Send;

    /// Returns at most `most` [unknown](Record::is_unknown) outcomes, including those whose lease has expired, of all
    /// layers that use the store. They are ordered by the expiry of their records and then by key. If all records have
    /// the same retention, that is the order of their [age](UnknownOutcome::age). With `after` the page starts behind
    /// that outcome. `config` is for a store whose clock depends on the lease; no outcome depends on it.
    fn find_unknown(
        &self,
        after: Option<&UnknownOutcome>,
        most: usize,
        config: &ClaimConfig,
    ) -> impl Future<Output = Result<Vec<UnknownOutcome>, Self::Error>> + Send;

    /// Resolves an outcome that was found before: [`Record::resolve`].
    fn resolve(
        &self,
        found: &UnknownOutcome,
        resolution: Resolution,
        config: &ClaimConfig,
    ) -> impl Future<Output = Result<(), ResolveError<Self::Error>>> + Send;

    /// Removes at most `most` expired records, and returns their number. A store that removes them on its own does
    /// nothing.
    fn remove_expired(
        &self,
        most: usize,
    ) -> impl Future<Output = Result<usize, Self::Error>> + Send;
}
