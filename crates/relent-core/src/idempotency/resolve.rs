//! Resolution of a key with an unknown outcome.

use core::error::Error;
use core::fmt;
use core::time::Duration;

use super::{ClaimConfig, ClaimStage, Record};
use crate::time::Instant;

/// The outcome of a lost execution, as determined by an operator or a job.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Resolution {
    /// It has taken effect: from now on duplicates get an answer, which is stored with the record.
    Applied {
        /// The digest of the answer: answers with equal digests are equal.
        digest: u128,
    },
    /// It has had no effect, also not by its [steps](Record::checkpoint), and will have none: the
    /// next request with the key runs.
    NotApplied,
}

impl Resolution {
    /// The new stage of the record, and its owner.
    const fn end(self) -> (ClaimStage, u128) {
        match self {
            Self::Applied { digest } => (ClaimStage::Completed, digest),
            Self::NotApplied => (ClaimStage::Released, 0),
        }
    }
}

/// The reason why an outcome was not resolved, by the state of the record. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum NotResolved {
    /// There is no record: it has expired, or never existed.
    Absent,
    /// The request is running: the lost execution continues, or another has started.
    Running,
    /// There is an answer: from the lost execution, or from another resolution.
    Completed,
    /// The key is free: the lost execution reported that it had no effect, or it was resolved so.
    Released,
    /// It is unknown, but the record was written after it was read: the resolution may be based on
    /// an older state.
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
    /// Whether the outcome of the request is unknown: its execution said so, was declared lost, or
    /// its lease has expired.
    ///
    /// ```
    /// use relent_core::Instant;
    /// use relent_core::idempotency::{ClaimConfig, Fingerprint, Record};
    ///
    /// let config = ClaimConfig::DEFAULT;
    /// let (_, record) = Record::claim(None, Instant::ORIGIN, &config, 1, Fingerprint([5; 32]));
    /// let record = record.ok_or("the key is unknown")?;
    /// let lapsed = Instant::ORIGIN.saturating_add(config.lease);
    /// assert!(!record.is_unknown(Instant::ORIGIN) && record.is_unknown(lapsed));
    /// # Ok::<(), &str>(())
    /// ```
    #[must_use]
    pub fn is_unknown(&self, now: Instant) -> bool {
        !self.is_expired(now)
            && match self.stage {
                ClaimStage::Running { until } => until <= now,
                ClaimStage::Unknown { .. } => true,
                ClaimStage::Completed | ClaimStage::Released => false,
            }
    }

    /// How long the outcome has been unknown: since the execution ended, or since its lease expired.
    /// Zero if it [is not unknown](Self::is_unknown).
    #[must_use]
    pub fn unknown_for(&self, now: Instant) -> Duration {
        match self.stage {
            ClaimStage::Running { until: since } | ClaimStage::Unknown { since }
                if self.is_unknown(now) =>
            {
                now.saturating_since(since)
            }
            _ => Duration::ZERO,
        }
    }

    /// Resolves an execution whose outcome was unknown; returns the record to store in place of
    /// `stored`. `found` is the record that was read, while it was [unknown](Self::is_unknown),
    /// *before* the outcome was determined: a later write may mean something else. Compare and
    /// write in one atomic step.
    ///
    /// The fencing token increases, so later writes of the lost execution are rejected, and the
    /// next claim gets a higher one. Effects outside of the store are not fenced: use
    /// [`NotApplied`](Resolution::NotApplied) only if the lost execution cannot act any more.
    ///
    /// The record is then kept for the retention of `config`, and never for less time than before.
    ///
    /// Idempotent: the same resolution may be written again, for example after a timeout of the
    /// store.
    ///
    /// ```
    /// use relent_core::Instant;
    /// use relent_core::idempotency::{Claim, ClaimConfig, Fingerprint, NotResolved, Record, Resolution};
    ///
    /// let (config, pay_five) = (ClaimConfig::DEFAULT, Fingerprint([5; 32]));
    /// let (_, record) = Record::claim(None, Instant::ORIGIN, &config, 1, pay_five);
    /// let now = Instant::ORIGIN.saturating_add(config.lease);
    /// // The provider reports that there is no charge.
    /// let found = record.ok_or("the key is unknown")?;
    /// let free = Record::resolve(Some(&found), now, &found, Resolution::NotApplied, &config)?;
    /// let (next, _) = Record::claim(Some(&free), now, &config, 2, pay_five);
    /// assert!(matches!(next, Claim::Run { repeated: false, .. }));
    /// // Another operator tries to set the opposite outcome.
    /// let paid = Resolution::Applied { digest: 1 };
    /// let refused = Record::resolve(Some(&free), now, &found, paid, &config);
    /// assert_eq!(refused, Err(NotResolved::Released));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The outcome is not unknown, or the record has changed since it was read.
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
            ClaimStage::Completed => Err(NotResolved::Completed),
            ClaimStage::Released => Err(NotResolved::Released),
            ClaimStage::Running { until } if now < until => Err(NotResolved::Running),
            _ if stored != found => Err(NotResolved::Changed),
            ClaimStage::Running { .. } | ClaimStage::Unknown { .. } => {
                let ended = stored.ended(now, stage, config);
                Ok(Self {
                    owner,
                    fence,
                    expires: ended.expires.max(stored.expires),
                    ..ended
                })
            }
        }
    }
}
