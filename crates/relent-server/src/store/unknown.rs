//! Unknown (in-doubt) outcomes and their resolutions.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use relent_core::Instant;
use relent_core::idempotency::{self, ClaimConfig, NotResolved, Record};
use sha2::{Digest, Sha256};

use super::answer::StoredResponse;
use super::key::Key;

/// A request whose outcome is unknown (in doubt), as found in a store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UnknownOutcome {
    key: Key,
    record: Record,
    age: Duration,
}

impl UnknownOutcome {
    /// Returns the outcome of a record at the time `now` of its store; `None` if it is not
    /// [unknown](Record::is_unknown).
    #[must_use]
    pub fn of(key: Key, record: Record, now: Instant) -> Option<Self> {
        let age = record.unknown_for(now);
        record.is_unknown(now).then_some(Self { key, record, age })
    }

    /// Returns the key.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the record, with the fingerprint of the request, and the fencing token and completed steps of the lost
    /// execution.
    #[must_use]
    pub const fn record(&self) -> &Record {
        &self.record
    }

    /// Returns how long the outcome had been unknown when it was found: [`Record::unknown_for`].
    #[must_use]
    pub const fn age(&self) -> Duration {
        self.age
    }

    /// Returns the sort key of outcomes.
    pub(crate) const fn place(&self) -> (Instant, Key) {
        (self.record.expires, self.key)
    }
}

/// The resolution of an unknown outcome.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Resolution {
    /// The request had its effect: duplicates get this response from now on.
    Applied(Arc<StoredResponse>),
    /// The request had no effect, in none of its steps, and will have none: the next request with the key runs.
    NotApplied,
}

impl Resolution {
    /// Returns `applied` or `not_applied`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Applied(_) => "applied",
            Self::NotApplied => "not_applied",
        }
    }

    /// Returns the new record, which a store writes with the response of [`Applied`](Self::Applied). If the outcome
    /// is already resolved in this way, it returns the stored record.
    ///
    /// # Errors
    /// The record is not unknown, or was written since it was found.
    pub fn make(
        &self,
        stored: Option<&Record>,
        now: Instant,
        found: &UnknownOutcome,
        config: &ClaimConfig,
    ) -> Result<Record, NotResolved> {
        Record::resolve(stored, now, &found.record, self.decided(), config)
    }

    /// Converts the resolution for the core.
    pub(crate) fn decided(&self) -> idempotency::Resolution {
        match self {
            Self::Applied(answer) => {
                let digest: [u8; 32] = Sha256::digest(answer.to_bytes()).into();
                let half = digest.first_chunk().copied().unwrap_or_default();
                let digest = u128::from_be_bytes(half);
                idempotency::Resolution::Applied { digest }
            }
            Self::NotApplied => idempotency::Resolution::NotApplied,
        }
    }

    /// Returns the response to write.
    pub(crate) fn answer(&self) -> Option<&Arc<StoredResponse>> {
        match self {
            Self::Applied(answer) => Some(answer),
            Self::NotApplied => None,
        }
    }
}

/// The reason why an outcome was not resolved.
#[derive(Debug)]
pub enum ResolveError<E> {
    /// The record is not unknown, or was written since it was found. Nothing was written.
    Refused(NotResolved),
    /// The store has failed, and may have written the resolution: it may be repeated.
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
            // Their texts are part of this error's text.
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
