//! The policy: the immutable retry configuration of an operation.

pub(crate) mod backoff;
mod builder;
pub(crate) mod ceiling;
pub(crate) mod error;
#[cfg(feature = "serde")]
mod file;
pub(crate) mod jitter;
mod lint;
pub(crate) mod pattern;
mod presets;
mod rule;
pub(crate) mod waits;

#[cfg(target_has_atomic = "ptr")]
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::destination::budget::{Budget, BudgetConfig};
use crate::destination::circuit_breaker::{CircuitBreaker, CircuitBreakerConfig};
use crate::destination::hedge::{Hedge, HedgeConfig};
use crate::destination::rate_limit::{RateLimit, RateLimitConfig};
use crate::destination::throttle::{Throttle, ThrottleConfig};
use crate::failure::Failure;
use crate::hint::HintMode;
use crate::time::Instant;
use backoff::Backoff;
pub use backoff::Phase;
pub use builder::PolicyBuilder;
use ceiling::{Ceiling, default_max_delay};
pub use error::PolicyError;
use jitter::Jitter;
pub use jitter::JitterError;
pub use lint::{Finding, Severity};
use pattern::Pattern;
pub use pattern::PatternError;
use rule::WaitSource;
pub use rule::{MAX_RULES, Rule};
pub use waits::Waits;

/// The immutable retry configuration of an operation. It has no state, so any number of sessions
/// and threads can share it.
///
/// Build one with [`Policy::builder`], use a preset such as [`Policy::STANDARD`], or (with the
/// feature `serde`) read one from TOML or JSON. A contradictory policy does not build.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Backoff, Jitter, Policy};
///
/// const QUICK: Policy = Policy::builder(Backoff::exponential(Duration::from_millis(50)))
///     .jitter(Jitter::Equal)
///     .max_retries(4)
///     .deadline(Duration::from_secs(2))
///     .build_const();
/// assert_eq!(QUICK.max_retries(), Some(4));
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Policy {
    pub(crate) backoff: Backoff,
    pub(crate) jitter: Jitter,
    pub(crate) max_delay: Option<Duration>,
    pub(crate) ceiling: Ceiling,
    pub(crate) throttled_initial: Option<Duration>,
    pub(crate) max_retries: Option<u32>,
    pub(crate) max_elapsed: Option<Duration>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) attempt_timeout: Option<Duration>,
    pub(crate) min_attempt_time: Duration,
    pub(crate) final_attempt_before_deadline: bool,
    pub(crate) hint: HintMode,
    pub(crate) max_hint: Duration,
    pub(crate) retry_after_jitter: f64,
    pub(crate) rules: Vec<Rule>,
    pub(crate) retry_on: Option<Vec<Pattern>>,
    pub(crate) stop_on: Vec<Pattern>,
    pub(crate) not_processed: Vec<Pattern>,
    pub(crate) budget: Option<BudgetConfig>,
    pub(crate) circuit_breaker: Option<CircuitBreakerConfig>,
    pub(crate) rate_limit: Option<RateLimitConfig>,
    pub(crate) hedge: Option<HedgeConfig>,
    pub(crate) throttle: Option<ThrottleConfig>,
    pub(crate) assume_repeatable: bool,
    pub(crate) retries_off: bool,
    /// Whether a session needs the time before its first failure.
    pub(crate) timed: bool,
    /// The lowest status below 400 that `retry_on` or a rule lists, and thus makes a failure;
    /// [`NO_STATUS`] if there is none.
    pub(crate) lowest_listed: u16,
}

/// The default maximum hint.
const DEFAULT_MAX_HINT: Duration = Duration::from_secs(300);
/// The default Retry-After jitter, as a share of a shared hint.
pub(crate) const DEFAULT_HINT_SPREAD: f64 = 1.0;
/// Above every HTTP status.
const NO_STATUS: u16 = u16::MAX;

impl Policy {
    pub(crate) const fn with_defaults(backoff: Backoff) -> Self {
        let jitter = match &backoff {
            Backoff::None => Jitter::None,
            drawn if drawn.draws() => Jitter::None,
            Backoff::Schedule { .. } | Backoff::Elapsed { .. } => Jitter::Proportional(0.1),
            _ => Jitter::Full,
        };
        Self {
            max_delay: default_max_delay(&backoff),
            backoff,
            jitter,
            ceiling: Ceiling::BeforeJitter,
            throttled_initial: None,
            max_retries: Some(3),
            max_elapsed: None,
            deadline: None,
            attempt_timeout: None,
            min_attempt_time: Duration::ZERO,
            final_attempt_before_deadline: false,
            hint: HintMode::Floor,
            max_hint: DEFAULT_MAX_HINT,
            retry_after_jitter: DEFAULT_HINT_SPREAD,
            rules: Vec::new(),
            retry_on: None,
            stop_on: Vec::new(),
            not_processed: Vec::new(),
            budget: None,
            circuit_breaker: None,
            rate_limit: None,
            hedge: None,
            throttle: None,
            assume_repeatable: false,
            retries_off: false,
            timed: false,
            lowest_listed: NO_STATUS,
        }
    }

    /// Retries only these failures. This cannot contradict the rest of the policy, so no builder is
    /// needed. It never makes an operation repeatable.
    #[must_use]
    pub fn retrying(mut self, on: impl IntoIterator<Item = Pattern>) -> Self {
        self.retry_on = Some(on.into_iter().collect());
        self.derive();
        self
    }

    /// Sets the Retry-After jitter to this share of a shared hint, from 0 to 1: see
    /// [`PolicyBuilder::retry_after_jitter`]. Values outside are clamped, and NaN counts as 0.
    #[must_use]
    pub const fn with_retry_after_jitter(mut self, share: f64) -> Self {
        self.retry_after_jitter = if share >= 1.0 {
            1.0
        } else if share > 0.0 {
            share
        } else {
            0.0
        };
        self
    }

    /// Turns all retries off.
    #[must_use]
    pub fn without_retries(mut self) -> Self {
        self.retries_off = true;
        self.derive();
        self
    }

    /// Turns hedging off.
    #[must_use]
    pub fn without_hedge(mut self) -> Self {
        self.hedge = None;
        self.timed = self.is_timed();
        self
    }

    /// The backoff.
    #[must_use]
    pub const fn backoff(&self) -> &Backoff {
        &self.backoff
    }

    /// The jitter.
    #[must_use]
    pub const fn jitter(&self) -> Jitter {
        self.jitter
    }

    /// The cap of the backoff; `None` if there is none.
    #[must_use]
    pub const fn max_delay(&self) -> Option<Duration> {
        self.max_delay
    }

    /// The first delay after a throttled failure, if the policy has a separate one.
    #[must_use]
    pub const fn throttled_initial(&self) -> Option<Duration> {
        self.throttled_initial
    }

    /// The stage at which the cap applies.
    #[must_use]
    pub const fn ceiling(&self) -> Ceiling {
        self.ceiling
    }

    /// The maximum number of retries; `None` if unlimited. `Some(10)` allows 11 attempts.
    #[inline]
    #[must_use]
    pub const fn max_retries(&self) -> Option<u32> {
        if self.retries_off {
            Some(0)
        } else {
            self.max_retries
        }
    }

    /// The latest start of an attempt, from the start of the session.
    #[must_use]
    pub const fn max_elapsed(&self) -> Option<Duration> {
        self.max_elapsed
    }

    /// The deadline, from the start of the session: no attempt starts later, and a running attempt
    /// is cut off.
    #[must_use]
    pub const fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// The time limit of one attempt.
    #[must_use]
    pub const fn attempt_timeout(&self) -> Option<Duration> {
        self.attempt_timeout
    }

    /// The minimum time for an attempt: none starts closer than this to a limit.
    #[must_use]
    pub const fn min_attempt_time(&self) -> Duration {
        self.min_attempt_time
    }

    /// Whether the last delay before a time limit is shortened so that one more attempt fits: see
    /// [`PolicyBuilder::final_attempt_before_deadline`].
    #[must_use]
    pub const fn final_attempt_before_deadline(&self) -> bool {
        self.final_attempt_before_deadline
    }

    /// How server hints are applied.
    #[must_use]
    pub const fn hint(&self) -> HintMode {
        self.hint
    }

    /// The longest hint that a session waits for.
    #[must_use]
    pub const fn max_hint(&self) -> Duration {
        self.max_hint
    }

    /// The longest cooldown that a hint may start at a destination: `max_hint`, or none with
    /// [`HintMode::Ignore`].
    #[must_use]
    pub const fn max_cooldown(&self) -> Duration {
        match self.hint {
            HintMode::Ignore => Duration::ZERO,
            _ => self.max_hint,
        }
    }

    /// The Retry-After jitter as a share of a shared hint: see [`PolicyBuilder::retry_after_jitter`].
    #[must_use]
    pub const fn retry_after_jitter(&self) -> f64 {
        self.retry_after_jitter
    }

    /// The rules in order.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The failures that are retried, if the policy lists them.
    #[must_use]
    pub fn retry_on(&self) -> Option<&[Pattern]> {
        self.retry_on.as_deref()
    }

    /// Whether the policy makes this HTTP status below 400 a failure:
    /// [`retry_on`](PolicyBuilder::retry_on) or a [rule](Rule::on) lists it. An example is `202`
    /// until there is a result. `any` lists every failure, but no status. `false` from 400 up.
    ///
    /// ```
    /// use relent_core::Policy;
    ///
    /// let policy = Policy::STANDARD.clone().retrying(["202".parse()?, "5xx".parse()?]);
    /// assert!(policy.makes_failure_of(202));
    /// assert!(!policy.makes_failure_of(200));
    /// # Ok::<(), relent_core::policy::PatternError>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn makes_failure_of(&self, status: u16) -> bool {
        status >= self.lowest_listed && self.lists_below_400(status)
    }

    #[cold]
    fn lists_below_400(&self, status: u16) -> bool {
        let listed = self.retry_on.iter().flatten();
        let mut all = listed.chain(self.rules.iter().flat_map(|rule| &rule.on));
        status < 400 && all.any(|pattern| pattern.has_status(status))
    }

    /// The failures that are never retried.
    #[must_use]
    pub fn stop_on(&self) -> &[Pattern] {
        &self.stop_on
    }

    /// The failures after which the server is assumed not to have started.
    #[must_use]
    pub fn not_processed(&self) -> &[Pattern] {
        &self.not_processed
    }

    /// Whether an operator has turned retries off. Then no request is queued, either.
    #[inline]
    #[must_use]
    pub const fn is_off(&self) -> bool {
        self.retries_off
    }

    /// The configuration of a destination's retry budget, if the policy has one.
    #[must_use]
    pub const fn budget(&self) -> Option<&BudgetConfig> {
        self.budget.as_ref()
    }

    /// The configuration of a destination's circuit breaker, if the policy has one.
    #[must_use]
    pub const fn circuit_breaker(&self) -> Option<&CircuitBreakerConfig> {
        self.circuit_breaker.as_ref()
    }

    /// A new circuit breaker for one destination, if the policy has one and retries are on. Share
    /// it among all callers.
    #[must_use]
    pub fn new_circuit_breaker(&self) -> Option<CircuitBreaker> {
        let circuit_breaker = self.circuit_breaker.as_ref().filter(|_| !self.retries_off);
        circuit_breaker.map(CircuitBreaker::from_checked)
    }

    /// The configuration of a destination's rate limit, if the policy has one.
    #[must_use]
    pub const fn rate_limit(&self) -> Option<&RateLimitConfig> {
        self.rate_limit.as_ref()
    }

    /// A new rate limit for one destination, if the policy has one. Also if retries are off, since
    /// it limits first attempts, too. Share it among all callers.
    #[must_use]
    pub fn new_rate_limit(&self) -> Option<RateLimit> {
        self.rate_limit.as_ref().map(RateLimit::from_checked)
    }

    /// The hedging configuration, if the policy hedges.
    #[must_use]
    pub const fn hedge(&self) -> Option<&HedgeConfig> {
        self.hedge.as_ref()
    }

    /// A new hedging state for one destination, if the policy hedges and retries are on. Share it
    /// among all callers.
    #[must_use]
    pub fn new_hedge(&self) -> Option<Hedge> {
        let hedge = self.hedge.as_ref().filter(|_| !self.retries_off);
        hedge.map(Hedge::from_checked)
    }

    /// The configuration of adaptive throttling, if the policy has it.
    #[must_use]
    pub const fn throttle(&self) -> Option<&ThrottleConfig> {
        self.throttle.as_ref()
    }

    /// A new throttle for one destination, if the policy has one and retries are on. Share it among
    /// all callers.
    #[must_use]
    pub fn new_throttle(&self) -> Option<Throttle> {
        let throttle = self.throttle.as_ref().filter(|_| !self.retries_off);
        throttle.map(Throttle::from_checked)
    }

    /// A new retry budget for one destination, if the policy has one. Share it among all callers.
    #[must_use]
    pub fn new_budget(&self) -> Option<Budget> {
        self.budget.as_ref().map(Budget::from_checked)
    }

    /// Whether every operation counts as repeatable unless its caller declares otherwise; see
    /// [`Repeatable`](crate::Repeatable).
    #[must_use]
    pub const fn assume_repeatable(&self) -> bool {
        self.assume_repeatable
    }

    /// Whether a session needs the time before its first failure: with a time limit, an attempt
    /// timeout, a hedge, or a backoff that depends on the elapsed time.
    #[must_use]
    #[inline]
    pub const fn needs_time(&self) -> bool {
        self.timed
    }

    /// The latest instant at which an attempt may start, for a session that began at `started`.
    #[inline]
    pub(crate) fn last_start(&self, started: Instant) -> Instant {
        if !self.timed {
            return Instant::MAX;
        }
        self.limited_start(started)
    }

    fn limited_start(&self, started: Instant) -> Instant {
        let mut last = Instant::MAX;
        if let Some(limit) = self.max_elapsed {
            last = started.saturating_add(limit);
        }
        if let Some(limit) = self.deadline {
            // At the deadline itself an attempt would have no time left.
            let end = started.saturating_add(limit).as_nanos().saturating_sub(1);
            last = last.min(Instant::from_nanos(end));
        }
        let room = crate::time::nanos(self.min_attempt_time);
        if last == Instant::MAX {
            last
        } else {
            Instant::from_nanos(last.as_nanos().saturating_sub(room))
        }
    }

    /// Recomputes the derived fields; call it after every change.
    const fn derive(&mut self) {
        self.timed = self.is_timed();
        self.lowest_listed = self.find_lowest_listed();
    }

    const fn is_timed(&self) -> bool {
        let mut timed = self.hedge.is_some()
            || self.backoff.depends_on_elapsed()
            || self.max_elapsed.is_some()
            || self.deadline.is_some()
            || self.attempt_timeout.is_some();
        let rules = self.rules.as_slice();
        let mut index = 0;
        while index < rules.len() {
            timed |= rules[index].attempt_timeout.is_some();
            if let Some(backoff) = &rules[index].backoff {
                timed |= backoff.depends_on_elapsed();
            }
            index += 1;
        }
        timed
    }

    const fn find_lowest_listed(&self) -> u16 {
        let mut lowest = match &self.retry_on {
            Some(listed) => Pattern::lowest_status(listed.as_slice()),
            None => NO_STATUS,
        };
        let rules = self.rules.as_slice();
        let mut index = 0;
        while index < rules.len() {
            let low = Pattern::lowest_status(rules[index].on.as_slice());
            if low < lowest {
                lowest = low;
            }
            index += 1;
        }
        if lowest < 400 { lowest } else { NO_STATUS }
    }
}

/// Clones the policy, so that functions that take a shared policy also accept a preset.
#[cfg(target_has_atomic = "ptr")]
impl From<&Policy> for Arc<Policy> {
    fn from(policy: &Policy) -> Self {
        Self::new(policy.clone())
    }
}

impl Policy {
    /// The rule for this failure, with its index.
    #[inline]
    pub(crate) fn rule_for(&self, failure: &Failure) -> Option<(usize, &Rule)> {
        self.rules
            .iter()
            .enumerate()
            .find(|(_, rule)| Pattern::any(&rule.on, failure))
    }

    #[inline]
    pub(crate) fn wait_source<'p>(&'p self, rule: Option<&'p Rule>) -> WaitSource<'p> {
        let main = WaitSource {
            backoff: &self.backoff,
            jitter: &self.jitter,
            max_delay: self.max_delay,
            own: false,
        };
        let Some(rule) = rule else { return main };
        match &rule.backoff {
            Some(backoff) => WaitSource {
                backoff,
                jitter: match &rule.jitter {
                    Some(jitter) => jitter,
                    None if backoff.draws() => &Jitter::None,
                    None => &self.jitter,
                },
                max_delay: rule.max_delay.or_else(|| default_max_delay(backoff)),
                own: true,
            },
            None => WaitSource {
                jitter: rule.jitter.as_ref().unwrap_or(&self.jitter),
                max_delay: rule.max_delay.or(self.max_delay),
                ..main
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn base() -> PolicyBuilder {
        Policy::builder(Backoff::exponential(SECOND))
    }

    #[test]
    fn a_first_delay_above_a_minute_raises_the_default_cap() {
        let policy = Policy::builder(Backoff::exponential(120 * SECOND))
            .build()
            .unwrap();
        assert_eq!(policy.max_delay(), Some(120 * SECOND));
        let schedule = Policy::builder(Backoff::schedule([7200 * SECOND]))
            .build()
            .unwrap();
        assert_eq!(
            schedule.max_delay(),
            None,
            "a schedule is meant as it is written"
        );
    }

    #[test]
    fn the_default_cap_of_a_growing_chain_covers_its_fixed_delays() {
        let grows = Backoff::exponential(SECOND);
        let ceiling = |backoff| Policy::builder(backoff).build().unwrap().max_delay();
        assert_eq!(
            ceiling(Backoff::None.then(3, grows.clone())),
            Some(60 * SECOND)
        );
        for named in [
            Backoff::constant(300 * SECOND),
            Backoff::schedule([SECOND, 300 * SECOND]),
        ] {
            let chain = named.then(2, Backoff::None).then(1, grows.clone());
            assert_eq!(ceiling(chain), Some(300 * SECOND));
        }
        // The last phase does not grow, so the delays are bounded.
        for last in [Backoff::constant(SECOND), Backoff::elapsed(SECOND, 0.1)] {
            assert_eq!(ceiling(grows.clone().then(3, last)), None);
        }
        // The same applies to a rule's own backoff.
        let rule = Rule {
            backoff: Some(Backoff::None.then(1, grows)),
            max_retries: Some(100),
            ..Rule::on([Pattern::Any])
        };
        let policy = base().rule(rule).build().unwrap();
        let source = policy.wait_source(policy.rules().first());
        assert_eq!(source.max_delay, Some(60 * SECOND));
    }

    #[test]
    fn only_policies_that_depend_on_time_need_it() {
        assert!(!base().build().unwrap().needs_time());
        assert!(base().max_elapsed(SECOND).build().unwrap().needs_time());
        assert!(base().deadline(SECOND).build().unwrap().needs_time());
        assert!(base().attempt_timeout(SECOND).build().unwrap().needs_time());
        let polling = Backoff::elapsed(SECOND, 0.5);
        assert!(
            Policy::builder(polling.clone())
                .build()
                .unwrap()
                .needs_time()
        );
        let chain = Backoff::constant(SECOND).then(1, polling);
        assert!(Policy::builder(chain.clone()).build().unwrap().needs_time());
        let rule = Rule {
            backoff: Some(chain),
            ..Rule::on([Pattern::Any])
        };
        assert!(base().rule(rule).build().unwrap().needs_time());
    }
}
