//! The immutable description of how an operation is retried.

#[cfg(target_has_atomic = "ptr")]
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::backoff::Backoff;
use crate::budget::{Budget, BudgetConfig};
use crate::error::{Found, PolicyError};
use crate::failure::Failure;
use crate::gate::{Gate, GateConfig};
use crate::hint::{Hint, HintMode};
use crate::jitter::Jitter;
use crate::pattern::Pattern;
use crate::plain::Plain;
use crate::random::Random;
use crate::request_rate::{RequestRate, RequestRateConfig};
use crate::time::Instant;
use crate::waits::Waits;

/// The most rules a policy holds; a session counts each rule's retries in a byte.
pub const MAX_RULES: usize = 8;

/// Where the ceiling cuts (published algorithms disagree).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Ceiling {
    /// backoff → ceiling → jitter. The default: clients that have reached the ceiling are still
    /// spread over the jitter's whole range.
    #[default]
    BeforeJitter,
    /// backoff → jitter → ceiling. Lands most clients on one and the same value; here for
    /// algorithms that were published so (R2.3, R3.1, R4.1).
    AfterJitter,
}

/// A backoff and limit of its own for some failures (R2.3). What a rule does not say, the policy
/// says. The first rule that matches decides.
#[derive(Clone, PartialEq, Debug)]
pub struct Rule {
    /// The failures this rule is about. A status below 400 that stands here is a failure: see
    /// [`Policy::makes_failure_of`].
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

/// The immutable description of how an operation is retried: a value without position, shared by
/// any number of sessions and threads.
///
/// Build one with [`Policy::builder`], take a preset such as [`Policy::STANDARD`], or (with the
/// feature `serde`) read one from TOML or JSON. A policy that contradicts itself does not build.
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
    pub(crate) attempt_room: Duration,
    pub(crate) cut_last_wait: bool,
    pub(crate) hint: HintMode,
    pub(crate) max_hint: Duration,
    pub(crate) hint_spread: f64,
    pub(crate) rules: Vec<Rule>,
    pub(crate) retry_on: Option<Vec<Pattern>>,
    pub(crate) stop_on: Vec<Pattern>,
    pub(crate) not_processed: Vec<Pattern>,
    pub(crate) budget: Option<BudgetConfig>,
    pub(crate) gate: Option<GateConfig>,
    pub(crate) request_rate: Option<RequestRateConfig>,
    pub(crate) assume_repeatable: bool,
    pub(crate) retries_off: bool,
    /// Whether a session has to know the time before its first failure.
    pub(crate) timed: bool,
    /// What it comes to, if it is plain.
    pub(crate) plain: Option<Plain>,
    /// The lowest status below 400 that `retry_on` or a rule lists, which makes it a failure;
    /// [`NO_STATUS`] if there is none.
    pub(crate) lowest_listed: u16,
}

/// The ceiling of a backoff that grows, unless the policy names another.
const DEFAULT_MAX_DELAY: Duration = Duration::from_secs(60);
/// The longest hint that is waited for, unless the policy names another (design rule 3).
const DEFAULT_MAX_HINT: Duration = Duration::from_secs(300);
/// The share of a shared hint that its callers are spread over, unless the policy names another
/// (design rule 4).
pub(crate) const DEFAULT_HINT_SPREAD: f64 = 1.0;
/// Above every status of HTTP.
const NO_STATUS: u16 = u16::MAX;

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

    pub(crate) const fn with_defaults(backoff: Backoff) -> Self {
        let jitter = match &backoff {
            Backoff::Decorrelated { .. } | Backoff::Slotted { .. } | Backoff::None => Jitter::None,
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
            attempt_room: Duration::ZERO,
            cut_last_wait: false,
            hint: HintMode::Floor,
            max_hint: DEFAULT_MAX_HINT,
            hint_spread: DEFAULT_HINT_SPREAD,
            rules: Vec::new(),
            retry_on: None,
            stop_on: Vec::new(),
            not_processed: Vec::new(),
            budget: None,
            gate: None,
            request_rate: None,
            assume_repeatable: false,
            retries_off: false,
            timed: false,
            plain: None,
            lowest_listed: NO_STATUS,
        }
    }

    /// Takes the policy apart again, to change it.
    pub const fn into_builder(self) -> PolicyBuilder {
        PolicyBuilder { policy: self }
    }

    /// The same policy, which retries exactly these failures: it cannot contradict the rest, so no
    /// builder is needed. It never makes an operation repeatable (design rule 1).
    #[must_use]
    pub fn retrying(mut self, on: impl IntoIterator<Item = Pattern>) -> Self {
        self.retry_on = Some(on.into_iter().collect());
        self.plain = Plain::of(&self);
        self.lowest_listed = lowest_listed(&self);
        self
    }

    /// The same policy without any retry.
    #[must_use]
    pub fn without_retries(mut self) -> Self {
        self.retries_off = true;
        self.plain = Plain::of(&self);
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

    /// The ceiling of the backoff; `None` if there is none.
    #[must_use]
    pub const fn max_delay(&self) -> Option<Duration> {
        self.max_delay
    }

    /// The first delay after a throttled failure, if the policy has one of its own.
    #[must_use]
    pub const fn throttled_initial(&self) -> Option<Duration> {
        self.throttled_initial
    }

    /// Where the ceiling cuts.
    #[must_use]
    pub const fn ceiling(&self) -> Ceiling {
        self.ceiling
    }

    /// The most retries; `None` if unlimited. `Some(10)` allows 11 attempts.
    #[inline]
    #[must_use]
    pub const fn max_retries(&self) -> Option<u32> {
        if self.retries_off {
            Some(0)
        } else {
            self.max_retries
        }
    }

    /// No attempt starts later than this after the session began.
    #[must_use]
    pub const fn max_elapsed(&self) -> Option<Duration> {
        self.max_elapsed
    }

    /// No attempt starts, and none still runs, this long after the session began.
    #[must_use]
    pub const fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// The time given to one attempt.
    #[must_use]
    pub const fn attempt_timeout(&self) -> Option<Duration> {
        self.attempt_timeout
    }

    /// The time an attempt needs: none starts closer than this to a limit.
    #[must_use]
    pub const fn attempt_room(&self) -> Duration {
        self.attempt_room
    }

    /// Whether the last wait before a time limit is cut so that one more attempt fits: see
    /// [`PolicyBuilder::cut_last_wait`].
    #[must_use]
    pub const fn cut_last_wait(&self) -> bool {
        self.cut_last_wait
    }

    /// How hints are obeyed.
    #[must_use]
    pub const fn hint(&self) -> HintMode {
        self.hint
    }

    /// The longest hint that is waited for.
    #[must_use]
    pub const fn max_hint(&self) -> Duration {
        self.max_hint
    }

    /// The share of a shared hint over which its callers are spread behind it: see
    /// [`PolicyBuilder::hint_spread`].
    #[must_use]
    pub const fn hint_spread(&self) -> f64 {
        self.hint_spread
    }

    /// The rules, in order.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The failures that are retried, if the policy lists them.
    #[must_use]
    pub fn retry_on(&self) -> Option<&[Pattern]> {
        self.retry_on.as_deref()
    }

    /// Whether this HTTP status, which is below 400 and so no failure by itself, is one by this policy:
    /// [`retry_on`](PolicyBuilder::retry_on) or a [rule](Rule::on) lists it. `202` until there is a
    /// result is an example. `any` lists every failure, and no status. False from 400 up.
    ///
    /// ```
    /// use relent_core::Policy;
    ///
    /// let policy = Policy::STANDARD.clone().retrying(["202".parse()?, "5xx".parse()?]);
    /// assert!(policy.makes_failure_of(202));
    /// assert!(!policy.makes_failure_of(200));
    /// # Ok::<(), relent_core::PatternError>(())
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

    /// The failures after which the server is believed not to have begun.
    #[must_use]
    pub fn not_processed(&self) -> &[Pattern] {
        &self.not_processed
    }

    /// Whether an operator has turned retries off (design rule 14): then nothing is parked either.
    #[inline]
    #[must_use]
    pub const fn is_off(&self) -> bool {
        self.retries_off
    }

    /// What the budget of a destination is made of, if the policy has one.
    #[must_use]
    pub const fn budget(&self) -> Option<&BudgetConfig> {
        self.budget.as_ref()
    }

    /// How the gate of a destination probes, if the policy has one.
    #[must_use]
    pub const fn gate(&self) -> Option<&GateConfig> {
        self.gate.as_ref()
    }

    /// A new gate for one destination, if the policy has one and retries are not turned off. Share it
    /// among all callers.
    #[must_use]
    pub fn new_gate(&self) -> Option<Gate> {
        let gate = self.gate.as_ref().filter(|_| !self.retries_off);
        gate.map(Gate::from_checked)
    }

    /// How many attempts per second go to a destination at most, if the policy limits them.
    #[must_use]
    pub const fn request_rate(&self) -> Option<&RequestRateConfig> {
        self.request_rate.as_ref()
    }

    /// A new request rate for one destination, if the policy has one: also where retries are turned
    /// off, since it is about first attempts as well. Share it among all callers.
    #[must_use]
    pub fn new_request_rate(&self) -> Option<RequestRate> {
        self.request_rate.as_ref().map(RequestRate::from_checked)
    }

    /// A new budget for one destination, if the policy has one. Share it among all callers.
    #[must_use]
    pub fn new_budget(&self) -> Option<Budget> {
        self.budget.as_ref().map(Budget::from_checked)
    }

    /// Whether every operation is taken to be repeatable, unless its caller says that it is not; see
    /// [`Repeatable`](crate::Repeatable).
    #[must_use]
    pub const fn assume_repeatable(&self) -> bool {
        self.assume_repeatable
    }

    /// Whether a session must be told the time before its first failure: true with a time limit,
    /// an attempt timeout, or a backoff that looks at the elapsed time (design rule 10).
    #[must_use]
    #[inline]
    pub const fn needs_time(&self) -> bool {
        self.timed
    }

    /// The waits this policy would make, one after the other, if every attempt failed at once with
    /// a failure that says nothing but is retried. Ends where the policy gives up; endless if it
    /// never does.
    ///
    /// Any code that takes an iterator of durations can be driven by it.
    pub fn waits<R: Random>(&self, random: R) -> Waits<'_, R> {
        let mut failure = Failure::not_processed();
        if self.retry_on.is_some() {
            // The list says which failures, not how they are waited for.
            failure.hint = Hint::do_retry();
        }
        self.waits_after(failure, random)
    }

    /// The waits this policy would make if every attempt failed at once with `failure`.
    pub fn waits_after<R: Random>(&self, failure: Failure, random: R) -> Waits<'_, R> {
        Waits::new(self, failure, random)
    }

    /// The rule for this failure, with its index.
    #[inline]
    pub(crate) fn rule_for(&self, failure: &Failure) -> Option<(usize, &Rule)> {
        self.rules
            .iter()
            .enumerate()
            .find(|(_, rule)| Pattern::any(&rule.on, failure))
    }
}

const fn default_max_delay(backoff: &Backoff) -> Option<Duration> {
    if !backoff.grows() {
        return None;
    }
    match backoff.first() {
        Some(first) if first.as_nanos() > DEFAULT_MAX_DELAY.as_nanos() => Some(first),
        _ => Some(DEFAULT_MAX_DELAY),
    }
}

/// A shared copy, so that whatever takes a shared policy takes a preset as it is.
#[cfg(target_has_atomic = "ptr")]
impl From<&Policy> for Arc<Policy> {
    fn from(policy: &Policy) -> Self {
        Self::new(policy.clone())
    }
}

/// Builds a [`Policy`]; see there for an example.
#[derive(Clone, PartialEq, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct PolicyBuilder {
    policy: Policy,
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

    /// The most the backoff may be.
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

    /// The first delay after a throttled failure, in place of the backoff's own (AWS).
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

    /// Adds a rule; the first that matches decides. At most [`MAX_RULES`].
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

    /// The finished policy.
    ///
    /// # Errors
    /// A value that makes no sense, or two that contradict each other; the error names the key and
    /// what is accepted.
    pub fn build(mut self) -> Result<Policy, PolicyError> {
        check(&self.policy)?;
        self.policy.timed = timed(&self.policy);
        self.policy.plain = Plain::of(&self.policy);
        self.policy.lowest_listed = lowest_listed(&self.policy);
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
        self.policy.timed = timed(&self.policy);
        self.policy.plain = Plain::of(&self.policy);
        self.policy.lowest_listed = lowest_listed(&self.policy);
        // A field cannot be moved out in a const function of a type that has a destructor; the
        // value left behind owns nothing, so forgetting it loses nothing.
        let policy = core::mem::replace(&mut self.policy, Policy::with_defaults(Backoff::None));
        core::mem::forget(self);
        policy
    }
}

const fn timed(policy: &Policy) -> bool {
    let mut timed = policy.backoff.looks_at_elapsed()
        || policy.max_elapsed.is_some()
        || policy.deadline.is_some()
        || policy.attempt_timeout.is_some();
    let rules = policy.rules.as_slice();
    let mut index = 0;
    while index < rules.len() {
        timed |= rules[index].attempt_timeout.is_some();
        if let Some(backoff) = &rules[index].backoff {
            timed |= backoff.looks_at_elapsed();
        }
        index += 1;
    }
    timed
}

const fn lowest_listed(policy: &Policy) -> u16 {
    let mut lowest = match &policy.retry_on {
        Some(listed) => Pattern::lowest_status(listed.as_slice()),
        None => NO_STATUS,
    };
    let rules = policy.rules.as_slice();
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

/// What cannot be a failure is not listed as one.
const fn check_patterns(key: &'static str, patterns: &[Pattern]) -> Result<(), PolicyError> {
    let mut index = 0;
    while index < patterns.len() {
        match patterns[index] {
            Pattern::Status(low, _) if low < 200 => {
                return Err(PolicyError::new(
                    key,
                    Found::Count(low as u32),
                    "a status below 200 is not the answer to a request: use 200 to 599",
                ));
            }
            Pattern::Grpc(0) => {
                return Err(PolicyError::new(
                    key,
                    Found::Nothing,
                    "the gRPC status OK is no failure: use a code from 1 to 16",
                ));
            }
            _ => {}
        }
        index += 1;
    }
    Ok(())
}

const fn check(policy: &Policy) -> Result<(), PolicyError> {
    if let Some(listed) = &policy.retry_on
        && let Err(error) = check_patterns("retry_on", listed.as_slice())
    {
        return Err(error);
    }
    if let Err(error) = check_patterns("stop_on", policy.stop_on.as_slice()) {
        return Err(error);
    }
    if let Err(error) = check_patterns("not_processed", policy.not_processed.as_slice()) {
        return Err(error);
    }
    if let Err(error) = check_waits(&policy.backoff, policy.jitter, policy.max_delay) {
        return Err(error);
    }
    if let (Some(initial), Some(ceiling)) = (policy.throttled_initial, policy.max_delay)
        && initial.as_nanos() > ceiling.as_nanos()
    {
        return Err(PolicyError::new(
            "throttled_initial",
            Found::Duration(initial),
            "the first delay after throttling may not be above max_delay",
        ));
    }
    if let Some(limit) = policy.deadline
        && limit.as_nanos() <= policy.attempt_room.as_nanos()
    {
        return Err(PolicyError::new(
            "deadline",
            Found::Duration(limit),
            "a deadline has to be longer than 0s, and longer than attempt_room; leave it out for no limit",
        ));
    }
    if let Err(error) = check_attempt_timeout(policy.attempt_timeout) {
        return Err(error);
    }
    // Written so that NaN fails.
    if !(policy.hint_spread > 0.0 && policy.hint_spread <= 1.0) {
        return Err(PolicyError::new(
            "hint_spread",
            Found::Number(policy.hint_spread),
            "the spread is a share of the hint above 0, at most 1; hint = \"replace\" has none",
        ));
    }
    if policy.rules.len() > MAX_RULES {
        return Err(PolicyError::new(
            "rules",
            Found::Count(policy.rules.len() as u32),
            "a policy has at most 8 rules: put more patterns into one rule",
        ));
    }
    let rules = policy.rules.as_slice();
    let mut index = 0;
    while index < rules.len() {
        if let Err(error) = check_rule(&rules[index], policy) {
            return Err(error);
        }
        index += 1;
    }
    if let Some(gate) = &policy.gate
        && let Err(error) = gate.check()
    {
        return Err(error);
    }
    if let Some(rate) = &policy.request_rate
        && let Err(error) = rate.check()
    {
        return Err(error);
    }
    match &policy.budget {
        Some(budget) => budget.check(),
        None => Ok(()),
    }
}

const fn check_rule(rule: &Rule, policy: &Policy) -> Result<(), PolicyError> {
    if rule.on.as_slice().is_empty() {
        return Err(PolicyError::new(
            "on",
            Found::Nothing,
            "a rule names at least one failure it is about, such as 429 or timeout",
        ));
    }
    if let Err(error) = check_patterns("on", rule.on.as_slice()) {
        return Err(error);
    }
    if let Some(retries) = rule.max_retries
        && retries > 255
    {
        return Err(PolicyError::new(
            "max_retries",
            Found::Count(retries),
            "a rule allows at most 255 retries; leave it out for the policy's own limit",
        ));
    }
    if let Some(backoff) = &rule.backoff
        && !backoff.fits_a_byte()
    {
        return Err(PolicyError::new(
            "backoff",
            Found::Nothing,
            "the schedule or the phases of a rule come to their end within 255 retries",
        ));
    }
    let backoff = match &rule.backoff {
        Some(backoff) => backoff,
        None => &policy.backoff,
    };
    let max_delay = match (rule.max_delay, &rule.backoff) {
        (Some(ceiling), _) => Some(ceiling),
        // The policy's ceiling is not a promise about a rule with a backoff of its own.
        (None, Some(_)) => None,
        (None, None) => policy.max_delay,
    };
    let jitter = match rule.jitter {
        Some(jitter) => jitter,
        None if backoff.draws() => Jitter::None,
        None => policy.jitter,
    };
    if let Err(error) = check_waits(backoff, jitter, max_delay) {
        return Err(error);
    }
    check_attempt_timeout(rule.attempt_timeout)
}

const fn check_attempt_timeout(limit: Option<Duration>) -> Result<(), PolicyError> {
    match limit {
        Some(Duration::ZERO) => Err(PolicyError::new(
            "attempt_timeout",
            Found::Duration(Duration::ZERO),
            "an attempt needs some time; leave the timeout out for no limit",
        )),
        _ => Ok(()),
    }
}

const fn check_waits(
    backoff: &Backoff,
    jitter: Jitter,
    max_delay: Option<Duration>,
) -> Result<(), PolicyError> {
    if let Err(error) = backoff.check() {
        return Err(error);
    }
    if backoff.draws() && !matches!(jitter, Jitter::None) {
        return Err(PolicyError::new(
            "jitter",
            Found::Nothing,
            "this backoff draws its own randomness: set jitter to none",
        ));
    }
    match jitter {
        // Written so that NaN fails.
        Jitter::Proportional(fraction) if !(fraction >= 0.0 && fraction <= 1.0) => {
            return Err(PolicyError::new(
                "jitter",
                Found::Number(fraction),
                "the fraction of proportional jitter is a number from 0 to 1",
            ));
        }
        Jitter::Additive { min, max } if min.as_nanos() > max.as_nanos() => {
            return Err(PolicyError::new(
                "jitter",
                Found::Duration(min),
                "the least that additive jitter adds may not be above the most",
            ));
        }
        _ => {}
    }
    if let (Some(ceiling), Some(first)) = (max_delay, backoff.first())
        && ceiling.as_nanos() < first.as_nanos()
    {
        return Err(PolicyError::new(
            "max_delay",
            Found::Duration(ceiling),
            "the ceiling may not be below the first delay of the backoff",
        ));
    }
    Ok(())
}

/// Where a wait comes from for one failure: the rule's values over the policy's.
pub(crate) struct WaitSource<'p> {
    pub(crate) backoff: &'p Backoff,
    pub(crate) jitter: &'p Jitter,
    pub(crate) max_delay: Option<Duration>,
    /// Whether the backoff counts the rule's own retries.
    pub(crate) own: bool,
}

impl Policy {
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

    /// The last instant at which an attempt may start, for a session that began at `started`.
    #[inline]
    pub(crate) fn last_start(&self, started: Instant) -> Instant {
        if self.max_elapsed.is_none() && self.deadline.is_none() {
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
            // At the deadline itself an attempt would have no time at all.
            let end = started.saturating_add(limit).as_nanos().saturating_sub(1);
            last = last.min(Instant::from_nanos(end));
        }
        let room = crate::time::nanos(self.attempt_room);
        if last == Instant::MAX {
            last
        } else {
            Instant::from_nanos(last.as_nanos().saturating_sub(room))
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
    fn contradictory_policies_do_not_build() {
        let many = (0..9).fold(base(), |builder, _| builder.rule(Rule::on([Pattern::Any])));
        let cases: [(PolicyBuilder, &str); 28] = [
            (base().max_delay(SECOND / 2), "max_delay"),
            (
                base().max_delay(SECOND).throttled_initial(2 * SECOND),
                "throttled_initial",
            ),
            (base().deadline(Duration::ZERO), "deadline"),
            (base().deadline(SECOND).attempt_room(SECOND), "deadline"),
            (base().attempt_timeout(Duration::ZERO), "attempt_timeout"),
            (base().hint_spread(0.0), "hint_spread"),
            (base().hint_spread(-0.5), "hint_spread"),
            (base().hint_spread(1.5), "hint_spread"),
            (base().hint_spread(f64::NAN), "hint_spread"),
            (base().jitter(Jitter::Proportional(1.5)), "jitter"),
            (base().jitter(Jitter::Proportional(f64::NAN)), "jitter"),
            (
                base().jitter(Jitter::Additive {
                    min: SECOND,
                    max: Duration::ZERO,
                }),
                "jitter",
            ),
            (
                Policy::builder(Backoff::decorrelated(SECOND)).jitter(Jitter::Full),
                "jitter",
            ),
            (base().rule(Rule::on([])), "on"),
            (base().rule(Rule::on([Pattern::from(101)])), "on"),
            (base().retry_on([Pattern::Status(100, 599)]), "retry_on"),
            (base().retry_on([Pattern::Grpc(0)]), "retry_on"),
            (base().stop_on([Pattern::from(103)]), "stop_on"),
            (
                base().rule(Rule {
                    max_retries: Some(256),
                    ..Rule::on([Pattern::Any])
                }),
                "max_retries",
            ),
            (
                base().rule(Rule {
                    backoff: Some(Backoff::schedule([SECOND; 256])),
                    ..Rule::on([Pattern::Any])
                }),
                "backoff",
            ),
            (
                base().rule(Rule {
                    backoff: Some(Backoff::None.then(255, Backoff::None)),
                    ..Rule::on([Pattern::Any])
                }),
                "backoff",
            ),
            (
                base().rule(Rule {
                    max_delay: Some(SECOND / 2),
                    ..Rule::on([Pattern::Any])
                }),
                "max_delay",
            ),
            (many, "rules"),
            (
                base().budget(BudgetConfig {
                    ratio: -1.0,
                    ..BudgetConfig::DEFAULT
                }),
                "ratio",
            ),
            (base().request_rate(RequestRateConfig::new(0.0)), "limit"),
            (
                base().request_rate(RequestRateConfig::new(f64::NAN)),
                "limit",
            ),
            (
                base().request_rate(RequestRateConfig {
                    adapt: false,
                    ..RequestRateConfig::ADAPTIVE
                }),
                "limit",
            ),
            (
                base().request_rate(RequestRateConfig {
                    burst: Some(0),
                    ..RequestRateConfig::ADAPTIVE
                }),
                "burst",
            ),
        ];
        for (builder, key) in cases {
            let error = builder.build().unwrap_err();
            assert_eq!(error.key(), key, "{error}");
        }
    }

    #[test]
    fn a_first_delay_above_a_minute_raises_the_default_ceiling() {
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
    fn only_policies_that_look_at_the_time_need_it() {
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
