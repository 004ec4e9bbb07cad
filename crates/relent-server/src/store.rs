//! Where the records of idempotency keys are kept.

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
use relent_core::claim::{Claim, ClaimConfig, Fingerprint, Lease, LeaseLost, Record};

#[cfg(feature = "postgres")]
pub use self::postgres::{Postgres, PostgresError};
#[cfg(feature = "redis")]
pub use self::redis::{Redis, RedisError};
pub use answer::Answer;
pub use failure::{FailureKind, StoreFailure};
pub use key::Key;
pub use memory::{Full, Memory};
pub use relent_core::claim::NotResolved;
#[cfg(feature = "sqlite")]
pub use sqlite::{Sqlite, SqliteError};
pub use unknown::{Resolution, ResolveError, UnknownOutcome};

/// What a request with a key is to do: a [`Claim`], with the answer if there is one.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Claimed {
    /// Run: see [`Claim::Run`].
    Run {
        /// To write the record with.
        lease: Lease,
        /// The last step that an execution before this one has done; 0 for none.
        step: u32,
        /// Whether an execution before this one may have had an effect.
        repeated: bool,
    },
    /// Give this answer.
    Replay(Answer),
    /// It runs, and its lease lasts so much longer.
    InFlight(Duration),
    /// The key belongs to another request.
    Mismatch,
    /// It was lost, and may have had an effect.
    Unknown,
}

impl Claimed {
    /// The same as the core decided it, at this time of the store, with the answer that is stored.
    ///
    /// # Errors
    /// [`AnswerMissing`] if there is no answer to a request that is completed.
    pub fn of(claim: Claim, now: Instant, answer: Option<Answer>) -> Result<Self, AnswerMissing> {
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
            Claim::Replay => Self::Replay(answer.ok_or(AnswerMissing)?),
            Claim::InFlight { until } => Self::InFlight(until.saturating_since(now)),
            Claim::Mismatch => Self::Mismatch,
            Claim::Unknown => Self::Unknown,
        })
    }
}

/// The same with the answer in bytes, for stores that keep it so.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn claimed(
    claim: Claim,
    now: Instant,
    answer: Option<Vec<u8>>,
) -> Result<Claimed, Box<dyn Error + Send + Sync>> {
    let answer = match claim {
        Claim::Replay => answer.map(|answer| Answer::from_bytes(&answer)),
        _ => None,
    };
    Ok(Claimed::of(claim, now, answer.transpose()?)?)
}

/// A record says that its request is completed, and its answer is not there: somebody has changed the
/// store by other means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AnswerMissing;

impl fmt::Display for AnswerMissing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the record of a completed request has no answer: was the store changed by other means?")
    }
}

impl Error for AnswerMissing {}

/// What an execution writes into the record of its key.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Change {
    /// It still runs.
    Renew,
    /// It has done this step.
    Checkpoint(u32),
    /// It has this answer.
    Complete(Arc<Answer>),
    /// It has had no effect.
    Release,
    /// It has ended without an answer.
    GiveUp,
    /// It has never begun: its process did not learn in time whether the key was claimed. Of the lease only the owner
    /// counts: [`Record::give_back`].
    GiveBack,
}

impl Change {
    /// The record with the change made, and the lease as it is from then on: what a store that keeps
    /// whole records writes in its place, with the answer of [`Complete`](Self::Complete).
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

    /// The answer that it writes, in bytes.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn answer(&self) -> Option<Vec<u8>> {
        match self {
            Self::Complete(answer) => Some(answer.to_bytes()),
            _ => None,
        }
    }
}

/// Why a change was not made.
#[derive(Debug)]
pub enum WriteError<E> {
    /// The lease is lost, and nothing was written.
    Lost,
    /// There is no record of this key any more, and nothing was written. Nobody is known to have taken the key: the
    /// record has expired, or a store that may forget has done so, as Redis in a failover. A store that cannot
    /// tell, or never forgets, says [`Lost`](Self::Lost).
    Gone,
    /// The store has failed, and may have written it.
    Store(E),
}

impl<E> From<LeaseLost> for WriteError<E> {
    fn from(_: LeaseLost) -> Self {
        Self::Lost
    }
}

/// Keeps the records of idempotency keys, and the answers.
///
/// Each method is atomic, and decides by [`Record`] or exactly as it does. Time is that of the store, never
/// that of the servers that share it. A store of your own can show that it does so by [`conformance`].
///
/// When the clock of the store is set forward, leases and records end so much earlier; when it is set back, so much later, but
/// for records that are removed by then. Who has lost its lease writes nothing in either case: owner and fence decide that,
/// and no time. The layer runs no request again that still runs in its own process, whatever the clock of the store says.
///
/// # Claims that nobody waits for
/// A claim that takes effect after its caller has given up holds its key, and nothing runs: when its lease runs out the
/// outcome is taken for unknown. So a store refuses a claim that it executes too late, as far as it can tell; and the
/// layer [gives back](Change::GiveBack) each claim that has failed, until the store knows of none.
pub trait Store: Send + Sync + 'static {
    /// Why it fails.
    type Error: Error + Send + Sync + 'static;

    /// A request comes with this key: [`Record::claim`].
    fn claim(
        &self,
        key: &Key,
        owner: u128,
        fingerprint: Fingerprint,
        config: &ClaimConfig,
    ) -> impl Future<Output = Result<Claimed, Self::Error>> + Send;

    /// An execution changes its record; the lease as it is from then on.
    fn write(
        &self,
        key: &Key,
        lease: &Lease,
        change: Change,
        config: &ClaimConfig,
    ) -> impl Future<Output = Result<Lease, WriteError<Self::Error>>> + Send;

    /// At most so many outcomes that are [unknown](Record::is_unknown), those with a lease that has run out included: in the
    /// order of when their records expire and then of their keys, which is that of their
    /// [age](UnknownOutcome::age) where all records are kept for as long. With `after` those that follow on it.
    fn find_unknown(
        &self,
        after: Option<&UnknownOutcome>,
        most: usize,
        config: &ClaimConfig,
    ) -> impl Future<Output = Result<Vec<UnknownOutcome>, Self::Error>> + Send;

    /// Somebody has found out what came of this one, after it was found: [`Record::resolve`].
    fn resolve(
        &self,
        found: &UnknownOutcome,
        resolution: Resolution,
        config: &ClaimConfig,
    ) -> impl Future<Output = Result<(), ResolveError<Self::Error>>> + Send;

    /// Removes at most so many records that have expired; how many it has removed. A store that removes
    /// them by itself does nothing.
    fn remove_expired(
        &self,
        most: usize,
    ) -> impl Future<Output = Result<usize, Self::Error>> + Send;
}
