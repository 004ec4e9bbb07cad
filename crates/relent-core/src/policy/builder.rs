//! Building a policy.

use alloc::vec::Vec;
use core::time::Duration;

use super::check::check;
use super::lint::Finding;
use super::{Policy, Rule};
use crate::backoff::Backoff;
use crate::budget::BudgetConfig;
use crate::ceiling::Ceiling;
use crate::error::PolicyError;
use crate::gate::GateConfig;
use crate::hedge::HedgeConfig;
use crate::hint::HintMode;
use crate::jitter::Jitter;
use crate::pattern::Pattern;
use crate::request_rate::RequestRateConfig;
use crate::throttle::ThrottleConfig;

/// Builds a [`Policy`]; see there for an example.
#[derive(Clone, PartialEq, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct PolicyBuilder {
    policy: Policy,
}

impl Policy {
    /// Begins a policy with this backoff.
    ///
    /// # Defaults
    /// 3 retries; full jitter (none where the backoff draws itself, ±10 % for a schedule or a share
    /// of the elapsed time); a ceiling of 60 s, or of the first delay if that is longer, for a
    /// backoff that grows; no time limits; hints as a floor, at most 5 minutes; no budget.
    pub const fn builder(backoff: Backoff) -> PolicyBuilder {
        PolicyBuilder {
            policy: Self::with_defaults(backoff),
        }
    }

    /// Takes the policy apart again, to change it.
    pub const fn into_builder(self) -> PolicyBuilder {
        PolicyBuilder { policy: self }
    }
}

impl PolicyBuilder {
    /// Another backoff. Jitter and ceiling stay as they are.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.policy.backoff = backoff;
        self
    }

    /// The randomness applied to the backoff.
    pub const fn jitter(mut self, jitter: Jitter) -> Self {
        self.policy.jitter = jitter;
        self
    }

    /// The most the backoff may be. Unless said otherwise it is 60 s, or the longest wait that the backoff
    /// names itself if that is more, where waits grow without end: linear, exponential, Fibonacci, decorrelated,
    /// and a chain whose last phase is one of these. Other backoffs have none. It holds for all phases of a chain.
    pub const fn max_delay(mut self, ceiling: Duration) -> Self {
        self.policy.max_delay = Some(ceiling);
        self
    }

    /// No ceiling: waits grow as the backoff does.
    pub const fn unlimited_delay(mut self) -> Self {
        self.policy.max_delay = None;
        self
    }

    /// Where the ceiling cuts.
    pub const fn ceiling(mut self, ceiling: Ceiling) -> Self {
        self.policy.ceiling = ceiling;
        self
    }

    /// The first delay after a throttled failure, in place of the backoff's own (AWS). It grows as the
    /// backoff does, is not above `max_delay`, and does not reach a rule that has a backoff of its own.
    ///
    /// A backoff without a first delay (none, slotted, schedule, or a chain of only these) cannot have one:
    /// such a policy does not build.
    pub const fn throttled_initial(mut self, initial: Duration) -> Self {
        self.policy.throttled_initial = Some(initial);
        self
    }

    /// The most retries; 10 allows 11 attempts.
    pub const fn max_retries(mut self, retries: u32) -> Self {
        self.policy.max_retries = Some(retries);
        self
    }

    /// No limit by count. Set a time limit, or be sure that forever is meant.
    pub const fn unlimited_retries(mut self) -> Self {
        self.policy.max_retries = None;
        self
    }

    /// No attempt starts later than this after the session began (cenkalti's and IAM's limit).
    pub const fn max_elapsed(mut self, limit: Duration) -> Self {
        self.policy.max_elapsed = Some(limit);
        self
    }

    /// The same as [`max_elapsed`](Self::max_elapsed), and a running attempt is cut off at it.
    pub const fn deadline(mut self, limit: Duration) -> Self {
        self.policy.deadline = Some(limit);
        self
    }

    /// The time given to one attempt.
    pub const fn attempt_timeout(mut self, limit: Duration) -> Self {
        self.policy.attempt_timeout = Some(limit);
        self
    }

    /// The time an attempt needs: none starts closer than this to a limit. Zero by default.
    pub const fn attempt_room(mut self, room: Duration) -> Self {
        self.policy.attempt_room = room;
        self
    }

    /// Cuts a wait of the session's own, once, so that one last attempt fits before the deadline or
    /// `max_elapsed` (design rule 6). False by default: then a wait that would cross the limit ends
    /// the session. A server's delay is never cut.
    ///
    /// The last attempt starts at a random instant in the last quarter of the time that can be waited,
    /// so that clients that share a deadline do not come together. It keeps
    /// [`attempt_room`](Self::attempt_room); with a deadline, which cuts attempts off, also a quarter
    /// of the time that is left, or the attempt timeout if that is shorter. After it there is no
    /// other wait of the session's own.
    ///
    /// ```
    /// use core::time::Duration;
    /// use relent_core::{Backoff, Draw, Jitter, Policy};
    ///
    /// let policy = Policy::builder(Backoff::exponential(Duration::from_secs(8)))
    ///     .jitter(Jitter::None)
    ///     .deadline(Duration::from_secs(24))
    ///     .cut_last_wait(true)
    ///     .build()?;
    /// // 16 s are left after the first retry, and the next wait would be 16 s. The last attempt keeps
    /// // 4 s of them, so it starts between 9 s and 12 s later.
    /// let waits: Vec<_> = policy.waits(Draw::at(0.5)).map(|wait| wait.as_secs()).collect();
    /// assert_eq!(waits, [8, 10]);
    /// # Ok::<(), relent_core::PolicyError>(())
    /// ```
    pub const fn cut_last_wait(mut self, cut: bool) -> Self {
        self.policy.cut_last_wait = cut;
        self
    }

    /// How hints are obeyed; as a floor by default.
    pub const fn hint(mut self, mode: HintMode) -> Self {
        self.policy.hint = mode;
        self
    }

    /// The longest hint that is waited for; 5 minutes by default. A longer one stops the session
    /// at once with [`StopReason::RetryLater`](crate::StopReason::RetryLater).
    pub const fn max_hint(mut self, longest: Duration) -> Self {
        self.policy.max_hint = longest;
        self
    }

    /// The share of a shared hint over which its callers are spread behind it: above 0, at most 1
    /// (design rule 4). 1 by default: of the many clients that got "Retry-After: 2" each comes back
    /// between 2 s and 4 s later. A lower share is for a caller that is alone. Tickets have a spread
    /// of their own, and [`HintMode::Replace`] has none.
    ///
    /// ```
    /// use core::time::Duration;
    /// use relent_core::{Backoff, Draw, Failure, Hint, Policy};
    ///
    /// let policy = Policy::builder(Backoff::None).hint_spread(0.25).build()?;
    /// let failure = Failure::throttled().hint(Hint::after(Duration::from_secs(2)));
    /// let longest = policy.waits_after(failure, Draw::at(1.0)).next();
    /// assert_eq!(longest, Some(Duration::from_millis(2500)));
    /// # Ok::<(), relent_core::PolicyError>(())
    /// ```
    pub const fn hint_spread(mut self, share: f64) -> Self {
        self.policy.hint_spread = share;
        self
    }

    /// Adds a rule; the first that matches decides. At most [`MAX_RULES`](crate::MAX_RULES).
    pub fn rule(mut self, rule: Rule) -> Self {
        self.policy.rules.push(rule);
        self
    }

    /// Retries exactly these failures. It never makes an operation repeatable (design rule 1).
    ///
    /// A listed HTTP status below 400 is a failure by this (see [`Policy::makes_failure_of`]): one that
    /// may have taken effect, so that only what may run twice is repeated.
    pub fn retry_on(mut self, patterns: impl IntoIterator<Item = Pattern>) -> Self {
        self.policy.retry_on = Some(patterns.into_iter().collect());
        self
    }

    /// Never retries these failures, whatever else is said.
    pub fn stop_on(mut self, patterns: impl IntoIterator<Item = Pattern>) -> Self {
        self.policy.stop_on = patterns.into_iter().collect();
        self
    }

    /// Believes that the server never began where it answers so. Only for a server known to mean
    /// it: an intermediary may answer after forwarding (design rule 2).
    pub fn not_processed(mut self, patterns: impl IntoIterator<Item = Pattern>) -> Self {
        self.policy.not_processed = patterns.into_iter().collect();
        self
    }

    /// The shared allowance of retries of a destination.
    pub const fn budget(mut self, config: BudgetConfig) -> Self {
        self.policy.budget = Some(config);
        self
    }

    /// No shared allowance.
    pub const fn no_budget(mut self) -> Self {
        self.policy.budget = None;
        self
    }

    /// The shared judgement of whether a destination is up.
    pub const fn gate(mut self, config: GateConfig) -> Self {
        self.policy.gate = Some(config);
        self
    }

    /// No shared judgement.
    pub const fn no_gate(mut self) -> Self {
        self.policy.gate = None;
        self
    }

    /// How many attempts per second go to a destination at most; no limit by default (R4.7).
    pub const fn request_rate(mut self, config: RequestRateConfig) -> Self {
        self.policy.request_rate = Some(config);
        self
    }

    /// As many attempts as are asked for.
    pub const fn no_request_rate(mut self) -> Self {
        self.policy.request_rate = None;
        self
    }

    /// Joins an attempt that takes long by another, and takes the outcome that is there first; no
    /// hedges by default (R4.7). A hedge is a retry that does not wait for the failure: it counts among
    /// `max_retries` and is paid for from the same budget, so a policy without retries has none.
    ///
    /// Where attempts must not overlap, nothing is hedged. A percentile needs a destination, which
    /// remembers how long successes took.
    ///
    /// ```
    /// use core::time::Duration;
    /// use relent_core::{Backoff, HedgeConfig, Policy};
    ///
    /// let policy = Policy::builder(Backoff::exponential(Duration::from_millis(100)))
    ///     .hedge(HedgeConfig::percentile(0.95))
    ///     .build()?;
    /// assert_eq!(policy.hedge().map(|hedge| hedge.max_hedges), Some(1));
    /// # Ok::<(), relent_core::PolicyError>(())
    /// ```
    pub const fn hedge(mut self, config: HedgeConfig) -> Self {
        self.policy.hedge = Some(config);
        self
    }

    /// One attempt after the other.
    pub const fn no_hedge(mut self) -> Self {
        self.policy.hedge = None;
        self
    }

    /// Refuses requests locally that the destination would most likely refuse; no throttle by default
    /// (R4.7). Such a request stops with [`StopReason::Overloaded`](crate::StopReason::Overloaded)
    /// before its first attempt.
    ///
    /// ```
    /// use relent_core::{Policy, ThrottleConfig};
    ///
    /// let policy = Policy::STANDARD.clone().into_builder().throttle(ThrottleConfig::DEFAULT).build()?;
    /// assert_eq!(policy.throttle().map(|throttle| throttle.factor), Some(2.0));
    /// # Ok::<(), relent_core::PolicyError>(())
    /// ```
    pub const fn throttle(mut self, config: ThrottleConfig) -> Self {
        self.policy.throttle = Some(config);
        self
    }

    /// Nothing is refused locally.
    pub const fn no_throttle(mut self) -> Self {
        self.policy.throttle = None;
        self
    }

    /// Takes every operation to be repeatable of which its caller does not say that it is not. You promise
    /// that a duplicate does no harm.
    pub const fn assume_repeatable(mut self, repeatable: bool) -> Self {
        self.policy.assume_repeatable = repeatable;
        self
    }

    /// Turns retries off altogether: the operator's switch (design rule 14).
    pub const fn retries_off(mut self, off: bool) -> Self {
        self.policy.retries_off = off;
        self
    }

    /// What is wrong with the policy so far: what keeps it from being built, else what cannot be meant.
    #[must_use]
    pub fn lint(&self) -> Vec<Finding> {
        let mut policy = self.policy.clone();
        policy.derive();
        policy.lint()
    }

    /// The finished policy.
    ///
    /// # Errors
    /// A value that makes no sense, or two that contradict each other; the error names the key and
    /// what is accepted.
    pub fn build(mut self) -> Result<Policy, PolicyError> {
        check(&self.policy)?;
        self.policy.derive();
        Ok(self.policy)
    }

    /// The finished policy, for `const` and `static` items, where a contradiction is an error of
    /// compilation.
    ///
    /// # Panics
    /// At run time, on what [`build`](Self::build) returns as an error: use that one there.
    #[must_use]
    #[allow(clippy::panic, reason = "the only way to fail in a const")]
    pub const fn build_const(mut self) -> Policy {
        if let Err(error) = check(&self.policy) {
            panic!("{}", error.accepted());
        }
        self.policy.derive();
        // A field cannot be moved out in a const function of a type that has a destructor; the
        // value left behind owns nothing, so forgetting it loses nothing.
        let policy = core::mem::replace(&mut self.policy, Policy::with_defaults(Backoff::None));
        core::mem::forget(self);
        policy
    }
}
