//! What becomes of a key whose outcome was unknown, when somebody has found it out.

use core::error::Error;
use core::fmt;
use core::time::Duration;

use super::{ClaimConfig, Record, Stage};
use crate::time::Instant;

/// What has come of an execution whose outcome was unknown, as an operator or a job has found out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Resolution {
    /// It has had its effect: from now on duplicates get an answer, which is stored with the record.
    Applied {
        /// Of the answer: two answers are the same if their digests are.
        digest: u128,
    },
    /// It has had no effect, none of its [steps](Record::checkpoint) either, and will have none: the next request with
    /// the key runs.
    NotApplied,
}

impl Resolution {
    /// What the record becomes, and who has written it.
    const fn end(self) -> (Stage, u128) {
        match self {
            Self::Applied { digest } => (Stage::Completed, digest),
            Self::NotApplied => (Stage::Released, 0),
        }
    }
}

/// Why an outcome was not resolved: what the record is. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum NotResolved {
    /// There is none: it has expired, or was never there.
    Absent,
    /// The request runs: the lost execution goes on, or another has begun.
    Running,
    /// There is an answer: the lost execution has come back with it, or somebody has resolved it so.
    Completed,
    /// The key is free: the lost execution has come back and said that it had no effect, or somebody has resolved it so.
    Released,
    /// It is unknown, but the record was written since it was found: what was found out may be of before that.
    Changed,
}

impl fmt::Display for NotResolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absent => {
                "there is no record of the key: it has expired, and the next request with the key runs"
            }
            Self::Running => {
                "the request of the key runs: wait for its end, and look again whether that is unknown"
            }
            Self::Completed => {
                "the request of the key has an answer already, which its duplicates get; it was not replaced"
            }
            Self::Released => {
                "the key is free already: the next request with it runs; compare that with what you have found out"
            }
            Self::Changed => {
                "the record of the key was written since you looked at it, and is still unknown: look at it again, and \
                 find out again what has come of it"
            }
        })
    }
}

impl Error for NotResolved {}

impl Record {
    /// Whether nobody knows if the request has had its effect: its execution has said so, was said to be lost, or its
    /// lease has run out.
    ///
    /// ```
    /// use relent_core::Instant;
    /// use relent_core::claim::{ClaimConfig, Fingerprint, Record};
    ///
    /// let config = ClaimConfig::DEFAULT;
    /// let (_, record) = Record::claim(None, Instant::ORIGIN, &config, 1, Fingerprint([5; 32]));
    /// let record = record.ok_or("nobody has the key")?;
    /// let lapsed = Instant::ORIGIN.saturating_add(config.lease);
    /// assert!(!record.is_unknown(Instant::ORIGIN) && record.is_unknown(lapsed));
    /// # Ok::<(), &str>(())
    /// ```
    #[must_use]
    pub fn is_unknown(&self, now: Instant) -> bool {
        !self.is_expired(now)
            && match self.stage {
                Stage::Running { until } => until <= now,
                Stage::Unknown => true,
                Stage::Completed | Stage::Released => false,
            }
    }

    /// For how long the outcome has been unknown: since the lease ran out, or since it was written down. Zero if it
    /// [is not](Self::is_unknown).
    ///
    /// For one that was written down this goes by when the record expires, so `config` has to have the
    /// [`keep`](ClaimConfig::keep) that it was written with.
    #[must_use]
    pub fn unknown_for(&self, now: Instant, config: &ClaimConfig) -> Duration {
        match self.stage {
            _ if !self.is_unknown(now) => Duration::ZERO,
            Stage::Running { until } => now.saturating_since(until),
            _ => (now.saturating_add(config.keep)).saturating_since(self.expires),
        }
    }

    /// Somebody has found out what came of an execution whose outcome is unknown: the record as it is from then on, to
    /// be written in the place of `stored`. `found` is the record as it was when it was [unknown](Self::is_unknown), and
    /// *before* it was found out: what was written since then may mean something else. Both in one atomic step.
    ///
    /// The fence grows by it, so whatever the lost execution writes from then on is refused; and whoever claims the key
    /// next has a higher one. Effects outside of the store are not fenced: say
    /// [`NotApplied`](Resolution::NotApplied) only when the lost execution cannot act any more.
    ///
    /// The same may be written again, as after a time-out of the store.
    ///
    /// ```
    /// use relent_core::Instant;
    /// use relent_core::claim::{Claim, ClaimConfig, Fingerprint, NotResolved, Record, Resolution};
    ///
    /// let (config, pay_five) = (ClaimConfig::DEFAULT, Fingerprint([5; 32]));
    /// let (_, record) = Record::claim(None, Instant::ORIGIN, &config, 1, pay_five);
    /// let now = Instant::ORIGIN.saturating_add(config.lease);
    /// // The provider says that there is no charge.
    /// let found = record.ok_or("nobody has the key")?;
    /// let free = Record::resolve(Some(&found), now, &found, Resolution::NotApplied, &config)?;
    /// let (next, _) = Record::claim(Some(&free), now, &config, 2, pay_five);
    /// assert!(matches!(next, Claim::Run { repeated: false, .. }));
    /// // Another has found the opposite, and is told.
    /// let paid = Resolution::Applied { digest: 1 };
    /// let refused = Record::resolve(Some(&free), now, &found, paid, &config);
    /// assert_eq!(refused, Err(NotResolved::Released));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The record is not unknown, or is not as it was found.
    pub fn resolve(
        stored: Option<&Self>,
        now: Instant,
        found: &Self,
        resolution: Resolution,
        config: &ClaimConfig,
    ) -> Result<Self, NotResolved> {
        let stored = stored.filter(|record| !record.is_expired(now));
        let stored = stored.ok_or(NotResolved::Absent)?;
        let (stage, owner) = resolution.end();
        let fence = found.fence.saturating_add(1);
        if (stored.stage, stored.owner, stored.fence) == (stage, owner, fence) {
            return Ok(*stored);
        }
        match stored.stage {
            Stage::Completed => Err(NotResolved::Completed),
            Stage::Released => Err(NotResolved::Released),
            Stage::Running { until } if now < until => Err(NotResolved::Running),
            _ if stored != found => Err(NotResolved::Changed),
            Stage::Running { .. } | Stage::Unknown => Ok(Self {
                owner,
                fence,
                ..stored.ended(now, stage, config)
            }),
        }
    }
}
