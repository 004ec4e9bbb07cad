//! A backoff and limit of its own for some failures, and where a wait comes from.

use alloc::vec::Vec;
use core::time::Duration;

use crate::backoff::Backoff;
use crate::jitter::Jitter;
use crate::pattern::Pattern;

/// The most rules a policy holds; a session counts each rule's retries in a byte.
pub const MAX_RULES: usize = 8;

/// A backoff and limit of its own for some failures (R2.3). What a rule does not say, the policy
/// says. The first rule that matches decides.
#[derive(Clone, PartialEq, Debug)]
pub struct Rule {
    /// The failures this rule is about. A status below 400 that stands here is a failure: see
    /// [`Policy::makes_failure_of`](crate::Policy::makes_failure_of).
    pub on: Vec<Pattern>,
    /// Their backoff, counted on their own retries.
    pub backoff: Option<Backoff>,
    /// Their jitter.
    pub jitter: Option<Jitter>,
    /// Their ceiling.
    pub max_delay: Option<Duration>,
    /// The most retries after such failures, below 256; the policy's limit holds besides.
    pub max_retries: Option<u32>,
    /// The timeout of the attempts that follow such a failure (R2.4).
    pub attempt_timeout: Option<Duration>,
}

impl Rule {
    /// A rule about these failures that changes nothing yet.
    ///
    /// ```
    /// use core::time::Duration;
    /// use relent_core::{Backoff, Jitter, Pattern, Policy, Rule};
    ///
    /// // 408 and local timeouts: once more, after a second.
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

/// Where a wait comes from for one failure: the rule's values over the policy's.
pub(crate) struct WaitSource<'p> {
    pub(crate) backoff: &'p Backoff,
    pub(crate) jitter: &'p Jitter,
    pub(crate) max_delay: Option<Duration>,
    /// Whether the backoff counts the rule's own retries.
    pub(crate) own: bool,
}
