//! The builder of a policy.

use alloc::vec::Vec;
use core::time::Duration;

use super::lint::Finding;
use super::lint::errors::check;
use super::{Policy, Rule};
use crate::destination::budget::BudgetConfig;
use crate::destination::circuit_breaker::CircuitBreakerConfig;
use crate::destination::hedge::HedgeConfig;
use crate::destination::rate_limit::RateLimitConfig;
use crate::destination::throttle::ThrottleConfig;
use crate::hint::HintMode;
use crate::policy::backoff::Backoff;
use crate::policy::ceiling::Ceiling;
use crate::policy::error::PolicyError;
use crate::policy::jitter::Jitter;
use crate::policy::pattern::Pattern;

/// Builds a [`Policy`]; see there for an example.
#[derive(Clone, PartialEq, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct PolicyBuilder {
    policy: Policy,
}

impl Policy {
    /// Builds a policy with this backoff.
    ///
    /// # Defaults
    /// 3 retries; full jitter (none if the backoff is itself random, ±10 % for a schedule or a
    /// share of the elapsed time); for a growing backoff a cap of 60 s, or of the first delay if
    /// that is longer; no time limits; hints as a floor, at most 5 minutes; no budget.
    pub const fn builder(backoff: Backoff) -> PolicyBuilder {
        PolicyBuilder {
            policy: Self::with_defaults(backoff),
        }
    }

    /// Converts the policy back to a builder, to change it.
    pub const fn into_builder(self) -> PolicyBuilder {
        PolicyBuilder { policy: self }
    }
}

impl PolicyBuilder {
    /// Sets the backoff. Jitter and cap stay.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.policy.backoff = backoff;
        self
    }

    /// Sets the jitter of the backoff.
    pub const fn jitter(mut self, jitter: Jitter) -> Self {
        self.policy.jitter = jitter;
        self
    }

    /// Sets the cap of the backoff, for all phases of a chain. The default is 60 s, or the longest
    /// fixed delay of the backoff if that is longer, for a backoff that grows without end: linear,
    /// exponential, Fibonacci, decorrelated, and a chain whose last phase is one of these. Other
    /// backoffs have no default cap.
    pub const fn max_delay(mut self, ceiling: Duration) -> Self {
        self.policy.max_delay = Some(ceiling);
        self
    }

    /// Removes the cap: delays grow as the backoff does.
    pub const fn unlimited_delay(mut self) -> Self {
        self.policy.max_delay = None;
        self
    }

    /// Sets the stage at which the cap applies.
    pub const fn ceiling(mut self, ceiling: Ceiling) -> Self {
        self.policy.ceiling = ceiling;
        self
    }

    /// Sets the first delay after a throttled failure, in place of the backoff's own (as AWS). It
    /// grows as the backoff does, may not exceed `max_delay`, and does not apply to a rule with its
    /// own backoff.
    ///
    /// A policy whose backoff has no first delay (none, slotted, schedule, or a chain of only
    /// these) does not build with it.
    pub const fn throttled_initial(mut self, initial: Duration) -> Self {
        self.policy.throttled_initial = Some(initial);
        self
    }

    /// Sets the maximum number of retries; 10 allows 11 attempts. Probes of a destination that is down do
    /// not count: their number is limited by the time that a call may be queued.
    pub const fn max_retries(mut self, retries: u32) -> Self {
        self.policy.max_retries = Some(retries);
        self
    }

    /// Removes the limit by count. Set a time limit, unless retries should never end.
    pub const fn unlimited_retries(mut self) -> Self {
        self.policy.max_retries = None;
        self
    }

    /// Sets the latest start of an attempt, from the start of the session (as cenkalti and IAM).
    pub const fn max_elapsed(mut self, limit: Duration) -> Self {
        self.policy.max_elapsed = Some(limit);
        self
    }

    /// Sets the deadline: as [`max_elapsed`](Self::max_elapsed), and a running attempt is cut off.
    pub const fn deadline(mut self, limit: Duration) -> Self {
        self.policy.deadline = Some(limit);
        self
    }

    /// Sets the time limit of one attempt.
    pub const fn attempt_timeout(mut self, limit: Duration) -> Self {
        self.policy.attempt_timeout = Some(limit);
        self
    }

    /// Sets the minimum time for an attempt: none starts closer than this to a limit. Zero by
    /// default.
    pub const fn min_attempt_time(mut self, room: Duration) -> Self {
        self.policy.min_attempt_time = room;
        self
    }

    /// Shortens one backoff delay, once, so that a final attempt fits before the deadline or
    /// `max_elapsed`. `false` by default: then a delay that would exceed the limit ends the
    /// session. A server's delay is never shortened.
    ///
    /// The final attempt starts at a random instant in the last quarter of the time available for
    /// the delay, so that clients with a common deadline do not retry together. It keeps
    /// [`min_attempt_time`](Self::min_attempt_time). With a deadline, which cuts attempts off, it also
    /// keeps a quarter of the remaining time, or the attempt timeout if that is shorter. No backoff
    /// delay follows it, unless it made [progress](crate::Session::on_progress).
    ///
    /// ```
    /// use core::time::Duration;
    /// use relent_core::{Backoff, FixedRandom, Jitter, Policy};
    ///
    /// let policy = Policy::builder(Backoff::exponential(Duration::from_secs(8)))
    ///     .jitter(Jitter::None)
    ///     .deadline(Duration::from_secs(24))
    ///     .final_attempt_before_deadline(true)
    ///     .build()?;
    /// // 16 s are left after the first retry, and the next delay would be 16 s. The last attempt keeps
    /// // 4 s of them, so it starts between 9 s and 12 s later.
    /// let waits: Vec<_> = policy.waits(FixedRandom::at(0.5)).map(|wait| wait.as_secs()).collect();
    /// assert_eq!(waits, [8, 10]);
    /// # Ok::<(), relent_core::PolicyError>(())
    /// ```
    pub const fn final_attempt_before_deadline(mut self, cut: bool) -> Self {
        self.policy.final_attempt_before_deadline = cut;
        self
    }

    /// Sets how server hints are applied; as a floor by default.
    pub const fn hint(mut self, mode: HintMode) -> Self {
        self.policy.hint = mode;
        self
    }

    /// Sets the longest hint that a session waits for; 5 minutes by default. A longer one stops the
    /// session immediately with [`StopReason::RetryLater`](crate::StopReason::RetryLater).
    pub const fn max_hint(mut self, longest: Duration) -> Self {
        self.policy.max_hint = longest;
        self
    }

    /// Sets the Retry-After jitter as a share of a shared hint: above 0, at most 1. The default is
    /// 1: of the many clients that got "Retry-After: 2" each returns between 2 s and 4 s later. A
    /// lower share is for a single caller. Tickets have their own jitter, and [`HintMode::Replace`]
    /// has none.
    ///
    /// ```
    /// use core::time::Duration;
    /// use relent_core::{Backoff, FixedRandom, Failure, Hint, Policy};
    ///
    /// let policy = Policy::builder(Backoff::None).retry_after_jitter(0.25).build()?;
    /// let failure = Failure::throttled().hint(Hint::after(Duration::from_secs(2)));
    /// let longest = policy.waits_after(failure, FixedRandom::at(1.0)).next();
    /// assert_eq!(longest, Some(Duration::from_millis(2500)));
    /// # Ok::<(), relent_core::PolicyError>(())
    /// ```
    pub const fn retry_after_jitter(mut self, share: f64) -> Self {
        self.policy.retry_after_jitter = share;
        self
    }

    /// Adds a rule; the first matching rule decides. At most [`MAX_RULES`](crate::policy::MAX_RULES).
    pub fn rule(mut self, rule: Rule) -> Self {
        self.policy.rules.push(rule);
        self
    }

    /// Retries only these failures. It never makes an operation repeatable.
    ///
    /// A listed HTTP status below 400 becomes a failure (see [`Policy::makes_failure_of`]). It may
    /// have taken effect, so only repeatable operations are retried after it.
    pub fn retry_on(mut self, patterns: impl IntoIterator<Item = Pattern>) -> Self {
        self.policy.retry_on = Some(patterns.into_iter().collect());
        self
    }

    /// Never retries these failures; takes precedence over every other setting.
    pub fn stop_on(mut self, patterns: impl IntoIterator<Item = Pattern>) -> Self {
        self.policy.stop_on = patterns.into_iter().collect();
        self
    }

    /// Sets the failures after which the server is assumed not to have started. Use it only if that
    /// is certain: an intermediary may respond so after it has forwarded the request.
    pub fn not_processed(mut self, patterns: impl IntoIterator<Item = Pattern>) -> Self {
        self.policy.not_processed = patterns.into_iter().collect();
        self
    }

    /// Sets the retry budget of a destination.
    pub const fn budget(mut self, config: BudgetConfig) -> Self {
        self.policy.budget = Some(config);
        self
    }

    /// Removes the retry budget.
    pub const fn no_budget(mut self) -> Self {
        self.policy.budget = None;
        self
    }

    /// Sets the circuit breaker of a destination.
    pub const fn circuit_breaker(mut self, config: CircuitBreakerConfig) -> Self {
        self.policy.circuit_breaker = Some(config);
        self
    }

    /// Removes the circuit breaker.
    pub const fn no_circuit_breaker(mut self) -> Self {
        self.policy.circuit_breaker = None;
        self
    }

    /// Sets the rate limit of a destination, in attempts per second; none by default.
    pub const fn rate_limit(mut self, config: RateLimitConfig) -> Self {
        self.policy.rate_limit = Some(config);
        self
    }

    /// Removes the rate limit.
    pub const fn no_rate_limit(mut self) -> Self {
        self.policy.rate_limit = None;
        self
    }

    /// Enables hedging: a second attempt starts beside a slow one, and the first outcome is used;
    /// off by default. A hedge is a retry that does not wait for the failure: it counts towards
    /// `max_retries` and is paid from the retry budget, so a policy without retries has no hedges.
    ///
    /// Attempts that must not overlap are not hedged. A percentile needs a destination, which
    /// records success latencies.
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

    /// Disables hedging.
    pub const fn no_hedge(mut self) -> Self {
        self.policy.hedge = None;
        self
    }

    /// Enables adaptive throttling: rejects requests locally that the destination would most likely
    /// reject; off by default. Such a request stops with
    /// [`StopReason::Throttle`](crate::StopReason::Throttle) before its first attempt.
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

    /// Disables adaptive throttling.
    pub const fn no_throttle(mut self) -> Self {
        self.policy.throttle = None;
        self
    }

    /// Treats every operation as repeatable unless its caller declares otherwise. You guarantee
    /// that duplicates are safe.
    pub const fn assume_repeatable(mut self, repeatable: bool) -> Self {
        self.policy.assume_repeatable = repeatable;
        self
    }

    /// Turns all retries off: the operator's switch.
    pub const fn retries_off(mut self, off: bool) -> Self {
        self.policy.retries_off = off;
        self
    }

    /// Checks the policy so far: the error that prevents a build, otherwise warnings about settings
    /// without effect.
    #[must_use]
    pub fn lint(&self) -> Vec<Finding> {
        let mut policy = self.policy.clone();
        policy.derive();
        policy.lint()
    }

    /// Builds the policy.
    ///
    /// # Errors
    /// An invalid value, or two that contradict each other; the error names the key and the
    /// accepted values.
    pub fn build(mut self) -> Result<Policy, PolicyError> {
        check(&self.policy)?;
        self.policy.derive();
        Ok(self.policy)
    }

    /// Builds the policy in `const` and `static` items, where a contradiction is a compile error.
    ///
    /// # Panics
    /// At run time, where [`build`](Self::build) returns an error: use that function there.
    #[must_use]
    #[allow(clippy::panic, reason = "the only way to fail in a const")]
    pub const fn build_const(mut self) -> Policy {
        if let Err(error) = check(&self.policy) {
            panic!("{}", error.accepted());
        }
        self.policy.derive();
        // In a const function no field can be moved out of a type with a destructor. The replaced
        // value owns nothing, so `forget` leaks nothing.
        let policy = core::mem::replace(&mut self.policy, Policy::with_defaults(Backoff::None));
        core::mem::forget(self);
        policy
    }
}
