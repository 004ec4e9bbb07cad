//! Outcomes that nobody knows, and what was found out about them.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use relent_core::Instant;
use relent_core::claim::{self, ClaimConfig, NotResolved, Record};
use sha2::{Digest, Sha256};

use super::answer::Answer;
use super::key::Key;

/// A request of which nobody knows whether it had its effect, as it was found in a store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UnknownOutcome {
    key: Key,
    record: Record,
    age: Duration,
}

impl UnknownOutcome {
    /// The outcome of a record, at this time of its store; `None` if it is [known](Record::is_unknown).
    #[must_use]
    pub fn of(key: Key, record: Record, now: Instant, config: &ClaimConfig) -> Option<Self> {
        let age = record.unknown_for(now, config);
        record.is_unknown(now).then_some(Self { key, record, age })
    }

    /// The key.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// The record, with the fingerprint of the request, the fence of the lost execution, and the steps that are done.
    #[must_use]
    pub const fn record(&self) -> &Record {
        &self.record
    }

    /// For how long it was unknown when it was found: [`Record::unknown_for`].
    #[must_use]
    pub const fn age(&self) -> Duration {
        self.age
    }

    /// What outcomes are ordered by.
    pub(crate) const fn place(&self) -> (Instant, Key) {
        (self.record.expires, self.key)
    }
}

/// What was found out about an unknown outcome.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Resolution {
    /// The request has had its effect: duplicates get this answer from now on.
    Applied(Arc<Answer>),
    /// It has had no effect, none of its steps either, and will have none: the next request with the key runs.
    NotApplied,
}

impl Resolution {
    /// `applied` or `not_applied`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Applied(_) => "applied",
            Self::NotApplied => "not_applied",
        }
    }

    /// The record as it is from then on: what a store writes in its place, with the answer of
    /// [`Applied`](Self::Applied). It is the one that is stored if that is resolved so already.
    ///
    /// # Errors
    /// The record is not unknown, or is not as it was found.
    pub fn make(
        &self,
        stored: Option<&Record>,
        now: Instant,
        found: &UnknownOutcome,
        config: &ClaimConfig,
    ) -> Result<Record, NotResolved> {
        Record::resolve(stored, now, &found.record, self.decided(), config)
    }

    /// The same for the core.
    pub(crate) fn decided(&self) -> claim::Resolution {
        match self {
            Self::Applied(answer) => {
                let digest: [u8; 32] = Sha256::digest(answer.to_bytes()).into();
                let half = digest.first_chunk().copied().unwrap_or_default();
                let digest = u128::from_be_bytes(half);
                claim::Resolution::Applied { digest }
            }
            Self::NotApplied => claim::Resolution::NotApplied,
        }
    }

    /// The answer that it writes.
    pub(crate) fn answer(&self) -> Option<&Arc<Answer>> {
        match self {
            Self::Applied(answer) => Some(answer),
            Self::NotApplied => None,
        }
    }
}

/// Why an outcome was not resolved.
#[derive(Debug)]
pub enum ResolveError<E> {
    /// The record is not unknown, or is not as it was found. Nothing was written.
    Refused(NotResolved),
    /// The store has failed, and may have written it: the same may be written again.
    Store(E),
}

impl<E: fmt::Display> fmt::Display for ResolveError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => why.fmt(f),
            Self::Store(error) => write!(
                f,
                "the outcome may be resolved or not, since the store has failed; say the same again: {error}"
            ),
        }
    }
}

impl<E: Error> Error for ResolveError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // Their texts are in this one.
            Self::Refused(_) => None,
            Self::Store(error) => error.source(),
        }
    }
}

impl<E> From<NotResolved> for ResolveError<E> {
    fn from(why: NotResolved) -> Self {
        Self::Refused(why)
    }
}
