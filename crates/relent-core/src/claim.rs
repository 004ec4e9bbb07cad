//! Whether a request with an idempotency key runs, waits, or gets the answer of the one before.

mod resolve;
#[cfg(test)]
mod tests;

use core::error::Error;
use core::fmt;
use core::time::Duration;

pub use resolve::{NotResolved, Resolution};

use crate::time::Instant;

/// How long an execution holds its key, how long its answer is kept, and what happens to a key whose
/// execution was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClaimConfig {
    /// How long a claim holds without being [renewed](Record::renew). 30 s by default. Renew it three times in
    /// that time.
    pub lease: Duration,
    /// How long a record is kept after it was last written: 24 h by default. A key that comes later is
    /// new, so it is part of what a service publishes.
    pub keep: Duration,
    /// What a duplicate does whose predecessor was lost.
    pub takeover: Takeover,
}

impl ClaimConfig {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        lease: Duration::from_secs(30),
        keep: Duration::from_secs(24 * 3600),
        takeover: Takeover::Refuse,
    };

    /// Whether a key can be held and its answer kept by it.
    ///
    /// # Errors
    /// [`InvalidClaimConfig`]: a key that is not held, or is forgotten immediately, runs twice.
    pub const fn check(&self) -> Result<(), InvalidClaimConfig> {
        if self.lease.is_zero() {
            return Err(InvalidClaimConfig::NoLease);
        }
        self.check_keep(Duration::from_nanos(1))
    }

    /// Whether a record is kept for at least so long.
    ///
    /// # Errors
    /// [`InvalidClaimConfig::KeptTooShort`].
    pub const fn check_keep(&self, least: Duration) -> Result<(), InvalidClaimConfig> {
        if self.keep.as_nanos() < least.as_nanos() {
            let keep = self.keep;
            return Err(InvalidClaimConfig::KeptTooShort { keep, least });
        }
        Ok(())
    }

    /// Whether a request that its client first sent at `first_sent` may be a repetition of one whose
    /// record is gone. It is to be refused (412): nobody knows whether it has run (OASIS Repeatable
    /// Requests 1.0, `Repeatability-First-Sent`).
    #[must_use]
    pub fn has_forgotten(&self, first_sent: Instant, now: Instant) -> bool {
        now.saturating_since(first_sent) >= self.keep
    }
}

impl Default for ClaimConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Why a [`ClaimConfig`] keeps nothing from running twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidClaimConfig {
    /// The lease is zero: it has run out when it begins.
    NoLease,
    /// The record is gone before its last duplicate can arrive, which then runs.
    KeptTooShort {
        /// How long it would be kept.
        keep: Duration,
        /// How long it has to be kept at least.
        least: Duration,
    },
}

impl fmt::Display for InvalidClaimConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLease => f.write_str(
                "`lease` is zero, so a duplicate would not see that its key is held: the default is 30 s",
            ),
            Self::KeptTooShort { keep, least } => write!(
                f,
                "`keep` is {keep:?}, so a duplicate would run after that: it has to be at least {least:?}, and as long as \
                 anybody repeats a request"
            ),
        }
    }
}

impl Error for InvalidClaimConfig {}

/// What a duplicate does when the execution before it was lost, by a crash or a lease that ran out: it may
/// have taken effect.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Takeover {
    /// It is refused: the outcome is unknown, and an operator finds it out and [resolves](Record::resolve) it. The
    /// default, since it never does anything twice.
    #[default]
    Refuse,
    /// It runs again, because the handler declares that it may: its effects and the record are written in one
    /// transaction, or running it twice does no harm.
    Rerun,
    /// It runs again from the last [checkpoint](Record::checkpoint) on.
    Resume,
}

/// A digest of what a request asks for. Two requests with one key and two fingerprints are two requests: the
/// second is an error of its client, and never gets the answer of the first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fingerprint(pub [u8; 32]);

/// The right of one execution to write the record of its key.
///
/// The fence grows with each execution of a key, until its record expires. A store writes only if owner and fence are those of the
/// record, so an execution that was taken for dead and comes back writes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Lease {
    /// Drawn at random for each execution.
    pub owner: u128,
    /// How often the key was claimed, this time included.
    pub fence: u64,
    /// When it runs out unless it is renewed.
    pub until: Instant,
}

/// How far the request of a key has come.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Stage {
    /// It runs. When the lease has run out, nobody knows whether it still does.
    Running {
        /// When its lease runs out.
        until: Instant,
    },
    /// There is an answer, which duplicates get.
    Completed,
    /// It has had no effect, and may run as if it had never been made.
    Released,
    /// It has ended, or was lost, and may have had an effect. Until somebody [resolves](Record::resolve) it.
    Unknown,
}

/// What a store keeps of one key, beside the answer.
///
/// A plain value: each step is a function of the stored record and the time of the *store*, never of an
/// application server. A store makes each step atomic, by a transaction, a lock or one statement that compares
/// [owner](Self::owner) and [fence](Self::fence).
///
/// ```
/// use core::time::Duration;
/// use relent_core::Instant;
/// use relent_core::claim::{Claim, ClaimConfig, Fingerprint, Record};
///
/// let config = ClaimConfig::DEFAULT;
/// let (now, pay_five) = (Instant::ORIGIN, Fingerprint([5; 32]));
/// let (Claim::Run { lease, .. }, Some(record)) = Record::claim(None, now, &config, 1, pay_five) else {
///     unreachable!("nobody has the key");
/// };
///
/// // A duplicate comes while the first runs, and another when it is done.
/// let (duplicate, _) = Record::claim(Some(&record), now, &config, 2, pay_five);
/// assert_eq!(duplicate, Claim::InFlight { until: lease.until });
/// let record = record.complete(now, &lease, &config)?;
/// let (duplicate, _) = Record::claim(Some(&record), now, &config, 3, pay_five);
/// assert_eq!(duplicate, Claim::Replay);
/// // The same key for another payment is a mistake.
/// let (mistake, _) = Record::claim(Some(&record), now, &config, 4, Fingerprint([6; 32]));
/// assert_eq!(mistake, Claim::Mismatch);
/// # Ok::<(), relent_core::claim::LeaseLost>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Record {
    /// Of the request that the key stands for.
    pub fingerprint: Fingerprint,
    /// Of the last execution, or of who has [resolved](Record::resolve) what came of it.
    pub owner: u128,
    /// Of the last execution, or of who has resolved what came of it.
    pub fence: u64,
    /// How far it has come.
    pub stage: Stage,
    /// The last step that is known to be done; 0 for none.
    pub step: u32,
    /// Whether an execution before the last one may have had an effect.
    pub repeated: bool,
    /// When the record may be removed. The key is new from then on.
    pub expires: Instant,
}

/// What a request with a key is to do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Claim {
    /// Run: the key is its own.
    Run {
        /// To write the record with.
        lease: Lease,
        /// The last step that an execution before it has done; 0 for none.
        step: u32,
        /// Whether an execution before it may have had an effect.
        repeated: bool,
    },
    /// Give the answer that is stored.
    Replay,
    /// Wait, or refuse (409): it runs, and asking again helps when it is done or at this time.
    InFlight {
        /// When its lease runs out.
        until: Instant,
    },
    /// Refuse (422): the key belongs to another request.
    Mismatch,
    /// Refuse (409): it was lost, and may have had an effect.
    Unknown,
}

/// Another execution has the key, or its record is gone: this one must not write, and what it has not
/// committed is to be rolled back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseLost;

impl fmt::Display for LeaseLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the lease of the idempotency key is lost: roll back what is not committed")
    }
}

impl Error for LeaseLost {}

impl Record {
    /// A request comes with a key whose record is `stored`: what it is to do, and the record to be written in
    /// its place, if it changes. Both in one atomic step.
    ///
    /// The same owner may ask again, as after a time-out of the store: it gets the lease that it has.
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
                stage: Stage::Running { until },
                step,
                repeated,
                expires: until.saturating_add(config.keep),
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
        // Whether it has been removed already makes no difference.
        let Some(stored) = stored.filter(|record| !record.is_expired(now)) else {
            return run(1, 0, false);
        };
        let next = stored.fence.saturating_add(1);
        if stored.stage == Stage::Released {
            return run(next, 0, false);
        }
        // Before anything that tells of the other request.
        if stored.fingerprint != fingerprint {
            return (Claim::Mismatch, None);
        }
        match stored.stage {
            Stage::Completed => (Claim::Replay, None),
            Stage::Running { until } if stored.owner == owner => {
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
            Stage::Running { until } if now < until => (Claim::InFlight { until }, None),
            Stage::Running { .. } | Stage::Unknown | Stage::Released => match config.takeover {
                Takeover::Refuse => {
                    let unknown = stored.ended(now, Stage::Unknown, config);
                    let change = stored.stage != Stage::Unknown;
                    (Claim::Unknown, change.then_some(unknown))
                }
                Takeover::Rerun => run(next, 0, true),
                Takeover::Resume => run(next, stored.step, true),
            },
        }
    }

    /// The execution goes on: its lease lasts from now. Also if it has run out and nobody has taken the key,
    /// or has called it [unknown](Stage::Unknown).
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
            stage: Stage::Running { until },
            expires: until.saturating_add(config.keep),
            ..*self
        };
        Ok((record, Lease { until, ..*lease }))
    }

    /// The execution has done this step for good: whoever [resumes](Takeover::Resume) begins after it. Steps
    /// count from 1 and never go back.
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

    /// The execution has an answer, which duplicates get from now on. To be written together with the answer,
    /// and if possible in the transaction of its effects: then nothing happens twice, nor without an answer.
    ///
    /// # Errors
    /// The lease is lost.
    pub fn complete(
        &self,
        now: Instant,
        lease: &Lease,
        config: &ClaimConfig,
    ) -> Result<Self, LeaseLost> {
        self.end(now, lease, Stage::Completed, config)
    }

    /// The execution has had no effect: the next request with this key runs, whatever it asks for.
    ///
    /// # Errors
    /// The lease is lost.
    pub fn release(
        &self,
        now: Instant,
        lease: &Lease,
        config: &ClaimConfig,
    ) -> Result<Self, LeaseLost> {
        // An execution before it may have had one.
        let stage = if self.repeated || self.step > 0 {
            Stage::Unknown
        } else {
            Stage::Released
        };
        self.end(now, lease, stage, config)
    }

    /// A claim of this owner is given back by the process that made it: it did not learn in time whether it had the key,
    /// and has run nothing. The next request with this key runs. Only the owner counts, since that process knows no fence;
    /// an owner is drawn at random for each request.
    ///
    /// # Errors
    /// The record is not that of a claim by this owner.
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

    /// The execution has ended without an answer, as in a panic, and may have had an effect.
    ///
    /// # Errors
    /// The lease is lost.
    pub fn give_up(
        &self,
        now: Instant,
        lease: &Lease,
        config: &ClaimConfig,
    ) -> Result<Self, LeaseLost> {
        self.end(now, lease, Stage::Unknown, config)
    }

    /// Whether the record may be removed, and its key is new.
    #[must_use]
    pub fn is_expired(&self, now: Instant) -> bool {
        now >= self.expires
    }

    /// The same end may be written again, as after a time-out of the store.
    fn end(
        &self,
        now: Instant,
        lease: &Lease,
        stage: Stage,
        config: &ClaimConfig,
    ) -> Result<Self, LeaseLost> {
        if self.is_of(lease) && self.stage == stage && !self.is_expired(now) {
            return Ok(*self);
        }
        self.check(now, lease)?;
        Ok(self.ended(now, stage, config))
    }

    fn ended(&self, now: Instant, stage: Stage, config: &ClaimConfig) -> Self {
        Self {
            stage,
            expires: now.saturating_add(config.keep),
            ..*self
        }
    }

    /// Whether the execution may still write: it was the last, and has not ended by its own word. That others
    /// have called it unknown does not matter, since it knows better.
    fn check(&self, now: Instant, lease: &Lease) -> Result<(), LeaseLost> {
        let ended = matches!(self.stage, Stage::Completed | Stage::Released);
        if self.is_of(lease) && !ended && !self.is_expired(now) {
            Ok(())
        } else {
            Err(LeaseLost)
        }
    }

    fn is_of(&self, lease: &Lease) -> bool {
        self.owner == lease.owner && self.fence == lease.fence
    }
}
