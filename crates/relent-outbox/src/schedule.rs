//! What becomes of a message after an attempt: another one by its policy, or none.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use relent::policy::{PolicyFile, PolicyFileError};
use relent::presets;
use relent_core::{Decision, Failure, Instant, Policy, Random, Session, StopReason};

use crate::store::Next;

/// The policy of an endpoint: the preset of this name, or what is written in TOML. It never reads a file, since
/// whoever registers an endpoint writes the text.
///
/// ```
/// use relent_outbox::schedule;
///
/// assert_eq!(schedule::policy("wechat-pay")?.max_retries(), Some(15));
/// assert_eq!(schedule::policy("backoff.constant = { delay = \"1m\" }")?.max_retries(), Some(3));
/// assert!(schedule::policy("/etc/passwd").is_err());
/// # Ok::<(), relent::policy::PolicyFileError>(())
/// ```
///
/// # Errors
/// [`PolicyFileError`] says what is wrong, and where.
pub fn policy(text: &str) -> Result<Policy, PolicyFileError> {
    match presets::get(text) {
        Some(preset) => preset.load().map(|named| named.policy),
        None => PolicyFile::parse(text)?
            .get(None)
            .map(|named| named.policy.clone()),
    }
}

/// Where a message stands in its schedule.
///
/// Its clock is that of the store, in nanoseconds since 1970, so that it goes on in another process.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    session: Session,
}

impl Schedule {
    /// Where a message stands whose attempt of this number begins: by the session that was
    /// [saved](Self::save), or from the beginning if there is none, or none that can be read. What the store has
    /// counted prevails: an attempt that was never settled is one.
    #[must_use]
    pub fn at_attempt(saved: &[u8], number: u32, began: SystemTime) -> Self {
        let mut session =
            Session::restore(saved).unwrap_or_else(|_| Session::new(instant(began), true));
        // The number may come out of a store that somebody has written into: it is no loop of its own.
        let missing = number.saturating_sub(session.attempts()).min(MOST_MISSING);
        for _ in 0..missing {
            session.on_attempt();
        }
        Self { session }
    }

    /// How long an attempt that starts now may run by the policy, if it says so.
    #[must_use]
    pub fn attempt_limit(&self, policy: &Policy, now: SystemTime) -> Option<Duration> {
        self.session.attempt_limit(policy, instant(now))
    }

    /// What follows on an attempt that failed, or was lost, at `now`. The delay counts from then.
    pub fn failed(
        &mut self,
        policy: &Policy,
        now: SystemTime,
        failure: &Failure,
        error: &str,
        random: &mut impl Random,
    ) -> Next {
        match self
            .session
            .on_failure(policy, instant(now), failure, random, None)
        {
            Decision::Retry { after } => Next::Again(after),
            Decision::Stop(stop) => Next::Dead(reason(stop.reason, error)),
        }
    }

    /// As bytes, for [`Settled::session`](crate::store::Settled::session).
    #[must_use]
    pub fn save(&self) -> Vec<u8> {
        self.session.save().to_vec()
    }
}

/// A message with more attempts than this has no schedule that counts them.
const MOST_MISSING: u32 = 100_000;

fn reason(stop: StopReason, error: &str) -> String {
    match stop {
        StopReason::DoNotRetry => format!("the receiver asked for no further attempt: {error}"),
        StopReason::Permanent => format!("by its policy nothing follows on this: {error}"),
        stop => format!("{stop}; the last attempt: {error}"),
    }
}

/// On the clock of sessions.
fn instant(time: SystemTime) -> Instant {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Instant::ORIGIN.saturating_add(since)
}
