//! Serialization of a session, for one that outlives its process.

use core::fmt;

use super::{DELAYED_BY_BUDGET, HEDGE_PENDING, NO_RULE, RETRY_PENDING, Session};
use crate::destination::budget::Taken;
use crate::policy::MAX_RULES;
use crate::repeatable::Repeatable;
use crate::time::Instant;

/// Format version of the bytes.
const FORMAT_VERSION: u8 = 1;
/// Format version, three times of 8 bytes, three counts of 4, the rule, the flags, two small fields,
/// and two counts of one byte for each rule.
const SAVED_LENGTH: usize = 1 + 3 * 8 + 3 * 4 + 4 + 2 * MAX_RULES;

/// Error: the bytes are not a saved [`Session`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct InvalidSavedSession;

impl fmt::Display for InvalidSavedSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a session as this version of relent saves it: it was changed, or written by a later version")
    }
}

impl core::error::Error for InvalidSavedSession {}

impl Session {
    /// The number of bytes of a [saved](Self::save) session.
    pub const SAVED: usize = SAVED_LENGTH;

    /// The session as bytes, for one that continues in another process or after a restart: a delivery
    /// that lasts for days. Its instants have to be of a clock that both know, such as the time since
    /// 1970.
    ///
    /// Tokens from a budget are not saved, since the budget belongs to this process: refund them
    /// ([`on_cancel`](Self::on_cancel)) before, if there is one. A granted delay is not saved either:
    /// save the instant of the next attempt beside the session.
    ///
    /// ```
    /// use relent_core::{Instant, Session};
    ///
    /// let mut session = Session::new(Instant::from_nanos(1_795_000_000_000_000_000), true);
    /// session.on_attempt();
    /// let restored = Session::restore(&session.save())?;
    /// assert_eq!(restored.attempts(), 1);
    /// assert_eq!(restored.started(), session.started());
    /// # Ok::<(), relent_core::call::InvalidSavedSession>(())
    /// ```
    #[must_use]
    pub fn save(&self) -> [u8; SAVED_LENGTH] {
        let mut bytes = [0; SAVED_LENGTH];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(&[FORMAT_VERSION]);
        for time in [
            self.started.as_nanos(),
            self.since.as_nanos(),
            self.previous,
        ] {
            put(&time.to_le_bytes());
        }
        for count in [self.attempts, self.base, self.step] {
            put(&count.to_le_bytes());
        }
        let flags = self.flags & !(RETRY_PENDING | HEDGE_PENDING | DELAYED_BY_BUDGET);
        put(&[
            self.rule,
            flags,
            self.repeatable as u8,
            u8::from(self.may_have_taken_effect),
        ]);
        put(&self.rule_retries);
        put(&self.rule_steps);
        bytes
    }

    /// Restores a session that was [saved](Self::save). It continues under any policy: counts of rules
    /// apply to the rule at the same position in the list.
    ///
    /// # Errors
    /// [`InvalidSavedSession`] if the bytes are invalid, or of a later version.
    pub fn restore(bytes: &[u8]) -> Result<Self, InvalidSavedSession> {
        let bytes: &[u8; SAVED_LENGTH] = bytes.try_into().map_err(|_| InvalidSavedSession)?;
        let long = |at: usize| {
            let mut long = [0; 8];
            long.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(long)
        };
        let count = |at: usize| {
            let mut count = [0; 4];
            count.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(count)
        };
        let rules = |at: usize| {
            let mut rules = [0; MAX_RULES];
            rules.copy_from_slice(&bytes[at..at + MAX_RULES]);
            rules
        };
        let [version, ..] = *bytes;
        let (rule, flags) = (bytes[37], bytes[38]);
        let repeatable = match bytes[39] {
            0 => Repeatable::No,
            1 => Repeatable::Unknown,
            2 => Repeatable::Yes,
            _ => return Err(InvalidSavedSession),
        };
        let rule_is_one = rule == NO_RULE || usize::from(rule) < MAX_RULES;
        if version != FORMAT_VERSION
            || !rule_is_one
            || flags & (RETRY_PENDING | HEDGE_PENDING | DELAYED_BY_BUDGET) != 0
            || bytes[40] > 1
        {
            return Err(InvalidSavedSession);
        }
        Ok(Self {
            started: Instant::from_nanos(long(1)),
            since: Instant::from_nanos(long(9)),
            previous: long(17),
            attempts: count(25),
            base: count(29),
            step: count(33),
            taken: Taken::NOTHING,
            rule_retries: rules(41),
            rule_steps: rules(41 + MAX_RULES),
            rule,
            flags,
            repeatable,
            may_have_taken_effect: bytes[40] == 1,
            hedge_taken: Taken::NOTHING,
        })
    }
}
