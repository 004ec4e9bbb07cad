//! Idempotency keys: whether a request runs, waits, or gets the stored answer.

mod resolve;
#[cfg(test)]
mod tests;

use core::error::Error;
use core::fmt;
use core::mem::discriminant;
use core::time::Duration;

pub use resolve::{NotResolved, Resolution};

use crate::time::Instant;

/// The lease of an execution, the retention of its answer, and the handling of keys whose execution
/// was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClaimConfig {
    /// How long a claim is valid without [renewal](Record::renew); 30 s by default. Renew it three
    /// times in this period.
    pub lease: Duration,
    /// How long a record is kept after its last write; 24 h by default. A later request with the
    /// key is new, so document this value for the clients of your service.
    pub retention: Duration,
    /// The handling of a duplicate whose predecessor was lost.
    pub takeover: Takeover,
}

impl ClaimConfig {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        lease: Duration::from_secs(30),
        retention: Duration::from_secs(24 * 3600),
        takeover: Takeover::Refuse,
    };

    /// Checks that a key is held and its answer is kept.
    ///
    /// # Errors
    /// [`InvalidClaimConfig`]: otherwise a request with the same key could run twice.
    pub const fn check(&self) -> Result<(), InvalidClaimConfig> {
        if self.lease.is_zero() {
            return Err(InvalidClaimConfig::NoLease);
        }
        self.check_retention(Duration::from_nanos(1))
    }

    /// Checks that records are kept for at least `least`.
    ///
    /// # Errors
    /// [`InvalidClaimConfig::RetentionTooShort`].
    pub const fn check_retention(&self, least: Duration) -> Result<(), InvalidClaimConfig> {
        if self.retention.as_nanos() < least.as_nanos() {
            let retention = self.retention;
            return Err(InvalidClaimConfig::RetentionTooShort { retention, least });
        }
        Ok(())
    }

    /// Whether a request that its client first sent at `first_sent` may repeat one whose record has
    /// expired. Reject it (412): it may have run already (OASIS Repeatable Requests 1.0,
    /// `Repeatability-First-Sent`).
    #[must_use]
    pub fn may_have_expired(&self, first_sent: Instant, now: Instant) -> bool {
        now.saturating_since(first_sent) >= self.retention
    }
}

impl Default for ClaimConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The reason why a [`ClaimConfig`] does not prevent a second execution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidClaimConfig {
    /// The lease is zero: it expires when it begins.
    NoLease,
    /// The record expires before its last duplicate can arrive, which then runs.
    RetentionTooShort {
        /// The configured retention.
        retention: Duration,
        /// The minimum retention.
        least: Duration,
    },
}

impl fmt::Display for InvalidClaimConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLease => f.write_str(
                "`lease` is zero, so a duplicate would not see that its key is held: the default is 30 s",
            ),
            Self::RetentionTooShort { retention, least } => write!(
                f,
                "`retention` is {retention:?}, so a duplicate would run after that: it has to be at least {least:?}, and as \
                 long as any client repeats a request"
            ),
        }
    }
}

impl Error for InvalidClaimConfig {}

/// The handling of a duplicate when the execution before it was lost, by a crash or an expired
/// lease. The lost execution may have taken effect.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Takeover {
    /// Rejects it: the outcome is unknown, and an operator determines and
    /// [resolves](Record::resolve) it. The default, since nothing ever runs twice.
    #[default]
    Refuse,
    /// Runs it again. The handler declares this as safe: effects and record are written in one
    /// transaction, or the effects may be repeated.
    Rerun,
    /// Runs it again after the last [checkpoint](Record::checkpoint).
    Resume,
}

/// A digest of the content of a request. Two requests with one key and different fingerprints are
/// an error of the client: the second never gets the answer of the first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fingerprint(pub [u8; 32]);

/// The right of one execution to write the record of its key.
///
/// The fence is a fencing token: it grows with each execution of a key, until the record expires. A
/// store writes only if owner and fence match the record, so an execution that resumes after its
/// lease was lost writes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Lease {
    /// A random number for each execution.
    pub owner: u128,
    /// The fencing token: how often the key was claimed, including this time.
    pub fence: u64,
    /// When the lease expires unless it is renewed.
    pub until: Instant,
}

/// The progress of a key's request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ClaimStage {
    /// It is running. After the lease has expired, it may or may not still be running.
    Running {
        /// When its lease expires.
        until: Instant,
    },
    /// It has completed; duplicates get its answer.
    Completed,
    /// It has had no effect; the next request runs as if it had never been made.
    Released,
    /// It has ended or was lost, and may have had an effect. An operator must
    /// [resolve](Record::resolve) it.
    Unknown {
        /// When its execution ended, or its lease expired.
        since: Instant,
    },
}

/// The record that a store keeps of one key, beside the answer.
///
/// A plain value: each step is a function of the stored record and the time of the *store*, never
/// of an application server. A store makes each step atomic, by a transaction, a lock, or one
/// statement that compares [owner](Self::owner) and [fence](Self::fence).
///
/// ```
/// use core::time::Duration;
/// use relent_core::Instant;
/// use relent_core::idempotency::{Claim, ClaimConfig, Fingerprint, Record};
///
/// let config = ClaimConfig::DEFAULT;
/// let (now, pay_five) = (Instant::ORIGIN, Fingerprint([5; 32]));
/// let (Claim::Run { lease, .. }, Some(record)) = Record::claim(None, now, &config, 1, pay_five) else {
///     unreachable!("the key is new");
/// };
///
/// // A duplicate arrives while the first request runs, and another after it has completed.
/// let (duplicate, _) = Record::claim(Some(&record), now, &config, 2, pay_five);
/// assert_eq!(duplicate, Claim::InFlight { until: lease.until });
/// let record = record.complete(now, &lease, &config)?;
/// let (duplicate, _) = Record::claim(Some(&record), now, &config, 3, pay_five);
/// assert_eq!(duplicate, Claim::Replay);
/// // The same key for another payment is an error.
/// let (mistake, _) = Record::claim(Some(&record), now, &config, 4, Fingerprint([6; 32]));
/// assert_eq!(mistake, Claim::Mismatch);
/// # Ok::<(), relent_core::idempotency::LeaseLost>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Record {
    /// The fingerprint of the request.
    pub fingerprint: Fingerprint,
    /// The owner of the last execution, or of its [resolution](Record::resolve).
    pub owner: u128,
    /// The fencing token of the last execution, or of its resolution.
    pub fence: u64,
    /// The progress of the request.
    pub stage: ClaimStage,
    /// The last completed step; 0 for none.
    pub step: u32,
    /// Whether an execution before the last one may have had an effect.
    pub repeated: bool,
    /// When the record may be removed. From then on the key is new.
    pub expires: Instant,
}

/// The decision about a request with a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Claim {
    /// Run the request: it has claimed the key.
    Run {
        /// The lease for writing the record.
        lease: Lease,
        /// The last step that an earlier execution completed; 0 for none.
        step: u32,
        /// Whether an earlier execution may have had an effect.
        repeated: bool,
    },
    /// Return the stored answer.
    Replay,
    /// Wait, or reject (409): another execution is running. Try again after it has ended or at
    /// `until`.
    InFlight {
        /// When its lease expires.
        until: Instant,
    },
    /// Reject (422): the key belongs to another request.
    Mismatch,
    /// Reject (409): the earlier execution was lost and may have had an effect.
    Unknown,
}

/// The error of an execution that has lost its key: another execution holds it, or the record is
/// gone. It must not write, and must roll back uncommitted work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseLost;

impl fmt::Display for LeaseLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the lease of the idempotency key is lost: roll back what is not committed")
    }
}

impl Error for LeaseLost {}

impl Record {
    /// Decides about a request with a key whose record is `stored`. Returns the decision, and the
    /// record to store in its place if it changes. Do both in one atomic step.
    ///
    /// The same owner may claim again, for example after a timeout of the store: it gets its
    /// existing lease.
    #[must_use]
    pub fn claim(
        stored: Option<&Self>,
        now: Instant,
        config: &ClaimConfig,
        owner: u128,
        fingerprint: Fingerprint,
    ) -> (Claim, Option<Self>) {
        let run = |fence, step, repeated| {
            let until = now.saturating_add(config.lease);
            let record = Self {
                fingerprint,
                owner,
                fence,
                stage: ClaimStage::Running { until },
                step,
                repeated,
                expires: until.saturating_add(config.retention),
            };
            let lease = Lease {
                owner,
                fence,
                until,
            };
            let claim = Claim::Run {
                lease,
                step,
                repeated,
            };
            (claim, Some(record))
        };
        // An expired record is treated like a removed one.
        let Some(stored) = stored.filter(|record| !record.is_expired(now)) else {
            return run(1, 0, false);
        };
        let next = stored.fence.saturating_add(1);
        if stored.stage == ClaimStage::Released {
            return run(next, 0, false);
        }
        // Before any result that reveals something about the other request.
        if stored.fingerprint != fingerprint {
            return (Claim::Mismatch, None);
        }
        match stored.stage {
            ClaimStage::Completed => (Claim::Replay, None),
            ClaimStage::Running { until } if stored.owner == owner => {
                let lease = Lease {
                    owner,
                    fence: stored.fence,
                    until,
                };
                let claim = Claim::Run {
                    lease,
                    step: stored.step,
                    repeated: stored.repeated,
                };
                (claim, None)
            }
            ClaimStage::Running { until } if now < until => (Claim::InFlight { until }, None),
            ClaimStage::Running { .. } | ClaimStage::Unknown { .. } | ClaimStage::Released => {
                match config.takeover {
                    Takeover::Refuse => {
                        let unknown = match stored.stage {
                            ClaimStage::Running { until } => {
                                let stage = ClaimStage::Unknown { since: until };
                                Some(stored.ended(now, stage, config))
                            }
                            _ => None,
                        };
                        (Claim::Unknown, unknown)
                    }
                    Takeover::Rerun => run(next, 0, true),
                    Takeover::Resume => run(next, stored.step, true),
                }
            }
        }
    }

    /// Extends the lease of a running execution from now. Also works after it has expired, unless
    /// another execution has claimed the key, and after it was declared [unknown](ClaimStage::Unknown).
    ///
    /// # Errors
    /// The lease is lost.
    pub fn renew(
        &self,
        now: Instant,
        lease: &Lease,
        config: &ClaimConfig,
    ) -> Result<(Self, Lease), LeaseLost> {
        self.check(now, lease)?;
        let until = now.saturating_add(config.lease);
        let record = Self {
            stage: ClaimStage::Running { until },
            expires: until.saturating_add(config.retention),
            ..*self
        };
        Ok((record, Lease { until, ..*lease }))
    }

    /// Records that the execution has completed this step: a [resumed](Takeover::Resume) execution
    /// starts after it. Steps count from 1 and never decrease.
    ///
    /// # Errors
    /// The lease is lost.
    pub fn checkpoint(&self, now: Instant, lease: &Lease, step: u32) -> Result<Self, LeaseLost> {
        self.check(now, lease)?;
        Ok(Self {
            step: step.max(self.step),
            ..*self
        })
    }

    /// Records that the execution has an answer, which duplicates get from now on. Store it
    /// together with the answer, if possible in the transaction of the effects: then no effect
    /// happens twice or without an answer.
    ///
    /// # Errors
    /// The lease is lost.
    pub fn complete(
        &self,
        now: Instant,
        lease: &Lease,
        config: &ClaimConfig,
    ) -> Result<Self, LeaseLost> {
        self.end(now, lease, ClaimStage::Completed, config)
    }

    /// Records that the execution has had no effect: the next request with this key runs, whatever
    /// its content.
    ///
    /// # Errors
    /// The lease is lost.
    pub fn release(
        &self,
        now: Instant,
        lease: &Lease,
        config: &ClaimConfig,
    ) -> Result<Self, LeaseLost> {
        // An earlier execution may have had one.
        let stage = if self.repeated || self.step > 0 {
            ClaimStage::Unknown { since: now }
        } else {
            ClaimStage::Released
        };
        self.end(now, lease, stage, config)
    }

    /// Returns a claim whose process did not learn in time whether it got the key, and therefore
    /// has run nothing. The next request with this key runs. Only the owner is checked, since the
    /// process does not know the fencing token; each request has a random owner.
    ///
    /// # Errors
    /// The record is not a claim by this owner.
    pub fn give_back(
        &self,
        now: Instant,
        owner: u128,
        config: &ClaimConfig,
    ) -> Result<Self, LeaseLost> {
        let lease = Lease {
            owner,
            fence: self.fence,
            until: now,
        };
        self.release(now, &lease, config)
    }

    /// Records that the execution ended without an answer, as in a panic, and may have had an
    /// effect.
    ///
    /// # Errors
    /// The lease is lost.
    pub fn give_up(
        &self,
        now: Instant,
        lease: &Lease,
        config: &ClaimConfig,
    ) -> Result<Self, LeaseLost> {
        self.end(now, lease, ClaimStage::Unknown { since: now }, config)
    }

    /// Whether the record may be removed and its key is new.
    #[must_use]
    pub fn is_expired(&self, now: Instant) -> bool {
        now >= self.expires
    }

    /// Idempotent: the same end may be written again, for example after a timeout of the store.
    fn end(
        &self,
        now: Instant,
        lease: &Lease,
        stage: ClaimStage,
        config: &ClaimConfig,
    ) -> Result<Self, LeaseLost> {
        let is_repeated = discriminant(&self.stage) == discriminant(&stage);
        if self.matches_lease(lease) && is_repeated && !self.is_expired(now) {
            return Ok(*self);
        }
        self.check(now, lease)?;
        Ok(self.ended(now, stage, config))
    }

    fn ended(&self, now: Instant, stage: ClaimStage, config: &ClaimConfig) -> Self {
        Self {
            stage,
            expires: now.saturating_add(config.retention),
            ..*self
        }
    }

    /// Checks that the execution may still write: it is the latest, and has not ended itself. It
    /// may write even if it was declared unknown, since only it knows its outcome.
    fn check(&self, now: Instant, lease: &Lease) -> Result<(), LeaseLost> {
        let ended = matches!(self.stage, ClaimStage::Completed | ClaimStage::Released);
        if self.matches_lease(lease) && !ended && !self.is_expired(now) {
            Ok(())
        } else {
            Err(LeaseLost)
        }
    }

    fn matches_lease(&self, lease: &Lease) -> bool {
        self.owner == lease.owner && self.fence == lease.fence
    }
}
