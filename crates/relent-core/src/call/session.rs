//! State of one operation across its attempts: the retry session.

pub(crate) mod decision;
mod final_attempt;
mod hedging;
mod saved;

use core::time::Duration;

use crate::call::stop::StopReason;
use crate::destination::budget::{Budget, Taken};
use crate::policy::{MAX_RULES, Policy};
use crate::repeatable::Repeatable;
use crate::time::Instant;
pub use saved::InvalidSavedSession;

/// Flag: a retry was granted that has not started.
const RETRY_PENDING: u8 = 64;
/// Flag: a hedge was granted that has not been sent.
const HEDGE_PENDING: u8 = 128;
/// Flag: a delay was shortened so that a final attempt fits before a time limit.
const FINAL_DELAY_SHORTENED: u8 = 32;
/// Flag: the budget delays the retry, or the circuit breaker queues it if it is unpaid.
const DELAYED_BY_BUDGET: u8 = 16;

/// No rule has matched yet.
const NO_RULE: u8 = u8::MAX;

/// State of one operation across its attempts: a small plain value.
///
/// A driver reports when an attempt starts and how it failed; the session returns a [`Decision`](crate::Decision). It
/// does no I/O, reads no clock and owns no randomness, so the same code runs in a blocking loop, a
/// future, a proxy and a simulator.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Backoff, Decision, FixedRandom, Failure, Instant, Policy, Session};
///
/// let policy = Policy::builder(Backoff::exponential(Duration::from_millis(100)))
///     .max_retries(1)
///     .build()?;
/// let now = Instant::ORIGIN;
/// let mut session = Session::new(now, true);
/// session.on_attempt();
/// let decision = session.on_failure(&policy, now, &Failure::ambiguous(), &mut FixedRandom::at(0.5), None);
/// assert_eq!(decision, Decision::Retry { after: Duration::from_millis(50) });
/// session.on_attempt();
/// let decision = session.on_failure(&policy, now, &Failure::ambiguous(), &mut FixedRandom::at(0.5), None);
/// assert_eq!(decision.stop().map(|stop| stop.reason.name()), Some("retries_exhausted"));
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Session {
    started: Instant,
    /// The origin of backoff kinds that depend on elapsed time; later than `started` after a reset.
    since: Instant,
    /// The previous computed backoff, before any hint, in nanoseconds; input of a random walk.
    previous: u64,
    attempts: u32,
    /// The attempt from which retries are counted: the first, or the last one that made progress.
    base: u32,
    /// Retries by the policy's own backoff since it last restarted.
    step: u32,
    /// Tokens taken for the pending or running retry.
    taken: Taken,
    /// Retries granted under each rule, for its limit.
    rule_retries: [u8; MAX_RULES],
    /// Retries granted under each rule since its backoff last restarted.
    rule_steps: [u8; MAX_RULES],
    /// The rule of the last failure.
    rule: u8,
    /// Flags: causes that were retried once (bits of [`once_bit`]), [`RETRY_PENDING`], [`HEDGE_PENDING`],
    /// [`FINAL_DELAY_SHORTENED`] and [`DELAYED_BY_BUDGET`]. One byte keeps a session at 64 bytes.
    flags: u8,
    repeatable: Repeatable,
    /// Whether an attempt so far may have taken effect.
    may_have_taken_effect: bool,
    /// Tokens taken for the pending hedge.
    hedge_taken: Taken,
}

/// The source of an attempt timeout: the rule with this index, or the policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TimeoutSource(u8);

impl TimeoutSource {
    /// The attempt timeout, if there is one.
    pub(crate) fn timeout(self, policy: &Policy) -> Option<Duration> {
        self.of_rule(policy).or(policy.attempt_timeout)
    }

    fn of_rule(self, policy: &Policy) -> Option<Duration> {
        policy.rules.get(usize::from(self.0))?.attempt_timeout
    }
}

impl Session {
    /// Starts a session at `now`. `repeatable`: whether it is known that the operation may run twice
    /// without harm, by its nature, a key, a precondition, or the caller's word. If not, the policy's
    /// `assume_repeatable` decides. A caller that rules it out calls
    /// [`set_repeatable`](Self::set_repeatable).
    ///
    /// If [`Policy::needs_time`] is false, `now` does not matter and no clock need be read.
    #[inline]
    #[must_use]
    pub const fn new(now: Instant, repeatable: bool) -> Self {
        Self {
            started: now,
            since: now,
            previous: 0,
            attempts: 0,
            base: 1,
            step: 0,
            taken: Taken::NOTHING,
            rule_retries: [0; MAX_RULES],
            rule_steps: [0; MAX_RULES],
            rule: NO_RULE,
            flags: 0,
            repeatable: Repeatable::known(repeatable),
            may_have_taken_effect: false,
            hedge_taken: Taken::NOTHING,
        }
    }

    /// Sets whether the operation may run twice without harm, if that is found out late, or if the
    /// caller rules it out. Call it before the first failure.
    #[inline]
    pub const fn set_repeatable(&mut self, repeatable: Repeatable) {
        self.repeatable = repeatable;
    }

    /// Moves the start of the session to `now`, for a driver that reads its clock late.
    pub const fn begin(&mut self, now: Instant) {
        self.started = now;
        self.since = now;
    }

    /// Records that an attempt starts. Returns its number; the first is 1.
    #[inline]
    pub const fn on_attempt(&mut self) -> u32 {
        match self.attempts.checked_add(1) {
            Some(attempts) => self.attempts = attempts,
            // The number saturates; retries are still counted.
            None => self.base = self.base.saturating_sub(1),
        }
        self.flags &= !(RETRY_PENDING | DELAYED_BY_BUDGET);
        self.attempts
    }

    /// The running attempt was a probe of a destination that is down: it uses up no retry, and the
    /// backoff does not grow. So a queued call survives an outage that is longer than its retries.
    pub(crate) fn on_probe(&mut self, policy: &Policy) {
        self.base = self.base.saturating_add(1);
        // The rule of the last failure granted this attempt, unless it is the first.
        let rule = usize::from(self.rule);
        if let Some(retries) = self.rule_retries.get_mut(rule) {
            *retries = retries.saturating_sub(1);
        }
        let has_backoff = policy
            .rules()
            .get(rule)
            .is_some_and(|rule| rule.backoff.is_some());
        match self.rule_steps.get_mut(rule).filter(|_| has_backoff) {
            Some(step) => *step = step.saturating_sub(1),
            None => self.step = self.step.saturating_sub(1),
        }
    }

    /// Records that the operation succeeded.
    #[inline]
    pub fn on_success(&mut self, budget: Option<&Budget>) {
        if let Some(budget) = budget {
            budget.on_success(self.taken);
        }
        self.taken = Taken::NOTHING;
    }

    /// The caller cancels the operation. A retry that was granted but not started is refunded.
    #[inline]
    pub fn on_cancel(&mut self, budget: Option<&Budget>) {
        if self.flags & RETRY_PENDING != 0
            && let Some(budget) = budget
        {
            budget.refund(self.taken);
        }
        self.taken = Taken::NOTHING;
        self.flags &= !(RETRY_PENDING | DELAYED_BY_BUDGET);
        self.cancel_hedge(budget);
    }

    /// Whether the next attempt is a retry that the budget could not pay for.
    #[inline]
    pub(crate) const fn is_unpaid(&self) -> bool {
        self.flags & DELAYED_BY_BUDGET != 0 && self.taken.is_nothing()
    }

    /// Whether it has tokens from the budget that [`on_cancel`](Self::on_cancel) returns.
    #[inline]
    #[must_use]
    pub const fn holds(&self) -> bool {
        self.flags & (RETRY_PENDING | HEDGE_PENDING) != 0
    }

    /// Whether a delay was shortened so that a
    /// [final attempt](crate::policy::PolicyBuilder::final_attempt_before_deadline) fits before a time limit. If the
    /// failure of that attempt is retried, too, its delay is the server's.
    #[must_use]
    pub const fn is_delay_shortened(&self) -> bool {
        self.flags & FINAL_DELAY_SHORTENED != 0
    }

    /// Restarts the backoff, after activity while polling or a long healthy run. Time limits are not
    /// moved.
    pub const fn reset(&mut self, now: Instant) {
        self.since = now;
        self.step = 0;
        self.previous = 0;
        self.rule_steps = [0; MAX_RULES];
    }

    /// The running attempt fails, but it made permanent progress before, which no later attempt
    /// repeats: for example a resumed download.
    /// [`Progress`](crate::call::Progress) defines when that counts. Call it before reporting the failure.
    ///
    /// Progress counts as success: the retry count, the backoff, causes that are retried once and the
    /// final attempt before a limit restart, as for a new operation that does the rest. The tokens of
    /// the attempt, if it was a retry, are refunded. A retry after progress is still paid for, until it
    /// has made progress itself. So a transfer that advances holds at most one retry, however often it is cut off. One
    /// that does not advance costs as much as any other.
    ///
    /// Time limits are not moved: `max_elapsed` and the deadline count from the start of the session.
    /// Earlier attempts may still have taken effect.
    pub fn on_progress(&mut self, now: Instant, budget: Option<&Budget>) {
        if let Some(budget) = budget {
            budget.refund(self.taken);
        }
        self.taken = Taken::NOTHING;
        self.base = self.attempts.max(1);
        self.rule_retries = [0; MAX_RULES];
        self.flags &= RETRY_PENDING | HEDGE_PENDING;
        self.reset(now);
    }

    /// Attempts started so far.
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// When the session started.
    #[must_use]
    pub const fn started(&self) -> Instant {
        self.started
    }

    /// How long an attempt that starts at `now` may run: the attempt timeout of the policy, or of
    /// the rule of the last failure, and never past the deadline. `None` for no limit.
    #[must_use]
    pub fn attempt_limit(&self, policy: &Policy, now: Instant) -> Option<Duration> {
        match (self.attempt_timeout(policy), self.remaining(policy, now)) {
            (Some(timeout), Some(remaining)) => Some(timeout.min(remaining)),
            (timeout, remaining) => timeout.or(remaining),
        }
    }

    /// The attempt timeout of the rule of the last failure, or of the policy; `None` if neither has one.
    #[must_use]
    pub fn attempt_timeout(&self, policy: &Policy) -> Option<Duration> {
        self.timeout_source(policy).timeout(policy)
    }

    /// Where the attempt timeout comes from.
    pub(crate) fn timeout_source(&self, policy: &Policy) -> TimeoutSource {
        let of_rule = TimeoutSource(self.rule);
        match of_rule.of_rule(policy) {
            Some(_) => of_rule,
            None => TimeoutSource(NO_RULE),
        }
    }

    /// The last instant at which an attempt may start, by `max_elapsed` and the deadline:
    /// [`Instant::MAX`] without either.
    #[must_use]
    pub fn last_start(&self, policy: &Policy) -> Instant {
        policy.last_start(self.started)
    }

    /// The reason why no attempt may start at `at`, after [`last_start`](Self::last_start).
    #[must_use]
    pub fn limit_at(&self, policy: &Policy, at: Instant) -> StopReason {
        self.limit_reached(policy, at, 0)
    }

    /// The time left until the deadline, zero if it has passed; `None` without a deadline.
    #[must_use]
    pub fn remaining(&self, policy: &Policy, now: Instant) -> Option<Duration> {
        let deadline = self.started.saturating_add(policy.deadline?);
        Some(deadline.saturating_since(now))
    }

    /// When it started, last made progress, or was last reset.
    #[inline]
    pub(crate) const fn since(&self) -> Instant {
        self.since
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
