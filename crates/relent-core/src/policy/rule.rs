//! Rules of a policy for certain failures, and the source of a delay.

use alloc::vec::Vec;
use core::time::Duration;

use crate::policy::backoff::Backoff;
use crate::policy::jitter::Jitter;
use crate::policy::pattern::Pattern;

/// The maximum number of rules of a policy; a session counts each rule's retries in a byte.
pub const MAX_RULES: usize = 8;

/// A separate backoff and limit for certain failures. Unset fields default to the policy. The first
/// matching rule decides.
#[derive(Clone, PartialEq, Debug)]
pub struct Rule {
    /// The failures of this rule. A listed status below 400 becomes a failure: see
    /// [`Policy::makes_failure_of`](crate::Policy::makes_failure_of).
    pub on: Vec<Pattern>,
    /// The backoff, counted on this rule's own retries.
    pub backoff: Option<Backoff>,
    /// The jitter.
    pub jitter: Option<Jitter>,
    /// The cap of the backoff.
    pub max_delay: Option<Duration>,
    /// The maximum number of retries after such failures, below 256; the policy's limit applies as
    /// well.
    pub max_retries: Option<u32>,
    /// The timeout of attempts that follow such a failure.
    pub attempt_timeout: Option<Duration>,
}

impl Rule {
    /// A rule for these failures without further settings.
    ///
    /// ```
    /// use core::time::Duration;
    /// use relent_core::{Backoff, Jitter, Pattern, Policy, Rule};
    ///
    /// // 408 and local timeouts: one more attempt, after a second.
    /// let policy = Policy::builder(Backoff::exponential(Duration::from_secs(1)))
    ///     .rule(Rule {
    ///         backoff: Some(Backoff::constant(Duration::from_secs(1))),
    ///         jitter: Some(Jitter::None),
    ///         max_retries: Some(1),
    ///         ..Rule::on([Pattern::Status(408, 408), Pattern::Timeout])
    ///     })
    ///     .build()?;
    /// assert_eq!(policy.rules().len(), 1);
    /// # Ok::<(), relent_core::PolicyError>(())
    /// ```
    #[must_use]
    pub fn on(patterns: impl IntoIterator<Item = Pattern>) -> Self {
        Self {
            on: patterns.into_iter().collect(),
            backoff: None,
            jitter: None,
            max_delay: None,
            max_retries: None,
            attempt_timeout: None,
        }
    }
}

/// The source of a delay after a failure: the rule's values, or else the policy's.
pub(crate) struct WaitSource<'p> {
    pub(crate) backoff: &'p Backoff,
    pub(crate) jitter: &'p Jitter,
    pub(crate) max_delay: Option<Duration>,
    /// Whether the backoff counts the rule's own retries.
    pub(crate) own: bool,
}
