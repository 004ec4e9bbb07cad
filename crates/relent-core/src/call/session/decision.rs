//! The decision after a failure: another attempt after a delay, or the end of the session.

use core::time::Duration;

use super::{DELAYED_BY_BUDGET, NO_RULE, RETRY_PENDING, Session};
use crate::call::stop::{Stop, StopReason};
use crate::destination::attempt_outcome::{AttemptOutcome, Exemption};
use crate::destination::budget::{Budget, Charge, Payment, Taken};
use crate::failure::{Cause, Failure, FailureKind, Network};
use crate::hint::{Advice, Audience, HintMode};
use crate::policy::backoff::BackoffPosition;
use crate::policy::ceiling::Ceiling;
use crate::policy::pattern::Pattern;
use crate::policy::{Policy, Rule};
use crate::random::{Random, up_to};
use crate::time::{Instant, nanos, share_of};

/// The rule that matched, with its index.
type Matched<'p> = (usize, &'p Rule);

/// AWS retries 2.1: a hint is clamped to [computed backoff, computed backoff + 5 s].
const MAX_CLAMP_NANOS: u64 = 5_000_000_000;
/// `Retry-After` jitter for a reserved slot, given in milliseconds or in seconds. In nanoseconds.
const RESERVED_MILLIS_JITTER_NANOS: u64 = 100_000_000;
const RESERVED_SECONDS_JITTER_NANOS: u64 = 1_000_000_000;

/// Decision after a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Attempt again, this long after the failure. Zero means immediately, without a timer.
    Retry {
        /// The delay.
        after: Duration,
    },
    /// Give up; the last outcome is final.
    Stop(Stop),
}

impl Decision {
    /// The stop, if it is one.
    #[must_use]
    pub const fn stop(&self) -> Option<Stop> {
        match self {
            Self::Retry { .. } => None,
            Self::Stop(stop) => Some(*stop),
        }
    }
}

impl Session {
    /// Records that an attempt failed at `now`. Returns whether to retry after a delay, or to stop.
    ///
    /// The order of the checks: eligibility, count, then backoff → cap → jitter → hint → `Retry-After`
    /// jitter → time limits → budget.
    #[inline]
    pub fn on_failure(
        &mut self,
        policy: &Policy,
        now: Instant,
        failure: &Failure,
        random: &mut (impl Random + ?Sized),
        budget: Option<&Budget>,
    ) -> Decision {
        let (source, latest) = (DelaySource::Backoff, Instant::MAX);
        self.decide(policy, now, failure, source, random, budget, latest)
    }

    /// Like [`on_failure`](Self::on_failure), with the caller's own delay instead of the policy's
    /// backoff, from any iterator of durations; `None` means that the iterator has ended. Cap, jitter,
    /// hints and limits of the policy still apply.
    pub fn on_failure_with(
        &mut self,
        policy: &Policy,
        now: Instant,
        failure: &Failure,
        own: Option<Duration>,
        random: &mut (impl Random + ?Sized),
        budget: Option<&Budget>,
    ) -> Decision {
        let (source, latest) = (DelaySource::given(own), Instant::MAX);
        self.decide(policy, now, failure, source, random, budget, latest)
    }

    /// Decides between another attempt and the end of the session: no other function does. No attempt
    /// starts after `latest`, whatever the policy says.
    #[allow(
        clippy::too_many_arguments,
        reason = "they are what a decision is made of"
    )]
    pub(crate) fn decide(
        &mut self,
        policy: &Policy,
        now: Instant,
        failure: &Failure,
        source: DelaySource,
        random: &mut (impl Random + ?Sized),
        budget: Option<&Budget>,
        latest: Instant,
    ) -> Decision {
        let failure = &self.in_view_of_earlier(*failure);
        match self.delay(policy, now, failure, source, random, budget, latest) {
            Ok(nanos) => Decision::Retry {
                after: Duration::from_nanos(nanos),
            },
            Err(reason) => Decision::Stop(Stop::after(now, failure, reason)),
        }
    }

    /// The delay before the next attempt in nanoseconds, or the reason why there is none.
    #[allow(
        clippy::too_many_arguments,
        reason = "they are what a decision is made of"
    )]
    fn delay(
        &mut self,
        policy: &Policy,
        now: Instant,
        failure: &Failure,
        source: DelaySource,
        random: &mut (impl Random + ?Sized),
        budget: Option<&Budget>,
        latest: Instant,
    ) -> Result<u64, StopReason> {
        let retryable_kind = self.retryable_kind(policy, failure);
        let pays = self.pays(failure);
        self.charge(failure, retryable_kind, budget);
        let kind = match retryable_kind {
            Ok(kind) => kind,
            // Also if the server knows that no retry can help: it does not know either what the earlier attempt did.
            Err(StopReason::Permanent | StopReason::DoNotRetry)
                if (failure.as_if_applied || failure.as_if_in_progress)
                    && (self.may_have_taken_effect || !failure.is_single_request()) =>
            {
                return Err(StopReason::OutcomeUnknown);
            }
            Err(reason) => return Err(reason),
        };
        self.note_effect(failure, kind);
        let (rule, once) = self
            .count(policy, failure)
            .ok_or(StopReason::RetriesExhausted)?;
        let own = self
            .computed_backoff(policy, now, kind, rule, source, random)
            .ok_or(StopReason::RetriesExhausted)?;

        let by_policy = policy.last_start(self.started);
        let last_start = by_policy.min(latest).as_nanos();
        let room = last_start.saturating_sub(now.as_nanos());
        let (mut wait, earliest) = apply_retry_after(policy, own, failure, room, random)?;
        if policy.final_attempt_before_deadline
            && last_start != u64::MAX
            && let Some(earliest) = earliest
        {
            wait =
                self.final_attempt_before_deadline(policy, now, wait, earliest, latest, random)?;
        }
        if now.as_nanos().saturating_add(wait) > last_start {
            return Err(match latest < by_policy {
                true => StopReason::MaxElapsed,
                false => self.limit_reached(policy, now, wait),
            });
        }

        self.taken = Taken::NOTHING;
        if let Some(budget) = budget
            && pays
        {
            let useful = if policy.final_attempt_before_deadline {
                self.latest_useful_start(policy, now, latest)
                    .nanos_since(now)
                    .max(wait)
            } else {
                room
            };
            let most = policy.max_delay().unwrap_or(policy.max_hint);
            let longest = useful.min(nanos(most));
            let charge = Charge::of(kind, failure.cause);
            match budget.withdraw_within(now, charge, longest, random) {
                Payment::Paid(taken) => self.taken = taken,
                Payment::PaidAfter(taken, pause) => {
                    self.taken = taken;
                    if pause > wait {
                        wait = pause;
                        // Delayed without tokens would mean unpaid; a free retry is not.
                        if !taken.is_nothing() {
                            self.flags |= DELAYED_BY_BUDGET;
                        }
                    }
                }
                Payment::QueueAtBreaker => self.flags |= DELAYED_BY_BUDGET,
                Payment::Refused => return Err(StopReason::Budget),
            }
        }
        let hinted = failure.hint.delay_nanos().is_some();
        self.grant(policy, rule, once, own, hinted);
        Ok(wait)
    }

    /// Restarts the backoff during a delay that ends at `until`. Returns the new end: after the first
    /// delay of the backoff, but never later than before. Do not call it for a delay that a
    /// `Retry-After` has set.
    ///
    /// A delay that is a first one already stays as it is; otherwise the shortest of several jitter
    /// draws would count. For the same reason, call it once for each delay.
    pub fn shorten_delay(
        &mut self,
        policy: &Policy,
        now: Instant,
        until: Instant,
        random: &mut (impl Random + ?Sized),
    ) -> Instant {
        let index = usize::from(self.rule);
        let rule = policy.rules.get(index).map(|rule| (index, rule));
        let (backoff, step) = match rule.and_then(|(_, rule)| rule.backoff.as_ref()) {
            Some(backoff) => (backoff, u32::from(self.rule_steps[index])),
            None => (&policy.backoff, self.step),
        };
        let is_first = step <= 1 && !backoff.depends_on_elapsed();
        self.reset(now);
        // A retry that the budget delays goes no sooner.
        if is_first || self.flags & DELAYED_BY_BUDGET != 0 {
            return until;
        }
        match self.computed_backoff(
            policy,
            now,
            FailureKind::NotProcessed,
            rule,
            DelaySource::Backoff,
            random,
        ) {
            Some(first) => until.min(Instant::from_nanos(now.as_nanos().saturating_add(first))),
            None => until,
        }
    }

    /// The failure in view of earlier attempts. One that is the response [if an earlier attempt were
    /// still in progress](Failure::as_if_in_progress) counts as throttled if an attempt may be. A
    /// session applies this itself; a driver calls it to display the result.
    #[must_use]
    pub const fn in_view_of_earlier(&self, mut failure: Failure) -> Failure {
        if failure.as_if_in_progress
            && self.may_have_taken_effect
            && matches!(failure.kind, FailureKind::Permanent)
        {
            failure.kind = FailureKind::Throttled;
        }
        failure
    }

    /// Whether the failure may be retried: did the attempt run, and may it run twice?
    #[inline]
    pub(super) fn retryable_kind(
        &self,
        policy: &Policy,
        failure: &Failure,
    ) -> Result<FailureKind, StopReason> {
        let mut kind = failure.kind;
        if failure.hint.advice == Advice::DoNotRetry {
            return Err(StopReason::DoNotRetry);
        }
        if kind == FailureKind::Overloaded {
            return Err(StopReason::Overloaded);
        }
        let asked_to = failure.hint.advice == Advice::DoRetry;
        match &policy.retry_on {
            // Listed failures may be retried; whether the operation may run twice is checked below.
            Some(listed) if Pattern::list(listed, failure) => {
                kind = match kind {
                    FailureKind::Permanent => FailureKind::Ambiguous,
                    kind => kind,
                };
            }
            // A list of failures does not apply to responses that are none.
            Some(_) if !asked_to && !failure.cause.is_regular_response() => {
                kind = FailureKind::Permanent;
            }
            _ => {}
        }
        if kind == FailureKind::Permanent && asked_to {
            kind = FailureKind::Ambiguous;
        }
        if kind == FailureKind::Permanent || Pattern::any(&policy.stop_on, failure) {
            return Err(StopReason::Permanent);
        }
        // A failure of the last of several calls, and its reclassification by the policy, is true of
        // that call only.
        let alone = failure.is_single_request();
        if kind == FailureKind::Ambiguous && alone && Pattern::any(&policy.not_processed, failure) {
            kind = FailureKind::NotProcessed;
        }
        if (kind == FailureKind::Ambiguous || !alone) && !self.repeatable.is_allowed_by(policy) {
            return Err(StopReason::NotRepeatable);
        }
        Ok(kind)
    }

    /// Records whether the failed attempt, which counts as `kind`, may have taken effect. A failure
    /// that was only listed as worth a retry is no evidence that it has.
    #[inline]
    pub(super) fn note_effect(&mut self, failure: &Failure, kind: FailureKind) {
        self.may_have_taken_effect |= failure.kind == FailureKind::Ambiguous
            && kind == FailureKind::Ambiguous
            || !failure.is_single_request();
    }

    /// Whether the retry after this failure is paid from the budget.
    #[inline]
    fn pays(&self, failure: &Failure) -> bool {
        match AttemptOutcome::of(failure).exemption {
            Exemption::None => true,
            Exemption::Once => self.flags & UNSENT != 0,
            // A poll repeats nothing. A write conflict is caused by a write that took effect: a contended
            // key must not use up the retries of other keys.
            Exemption::Always => false,
        }
    }

    /// Charges the failure to the budget, if it concerns the health of the server (gRFC A6): retryable
    /// ones, and those that the server asked not to retry.
    #[inline]
    pub(super) fn charge(
        &self,
        failure: &Failure,
        retryable_kind: Result<FailureKind, StopReason>,
        budget: Option<&Budget>,
    ) {
        if let Some(budget) = budget
            && AttemptOutcome::of(failure).is_charged
            && self.pays(failure)
            && retryable_kind != Err(StopReason::Permanent)
        {
            budget.on_failure(Charge::of(
                retryable_kind.unwrap_or(failure.kind),
                failure.cause,
            ));
        }
    }

    /// The rule for the failure, and the cause that may be retried only once; `None` if the retries are
    /// used up.
    #[inline]
    fn count<'p>(
        &mut self,
        policy: &'p Policy,
        failure: &Failure,
    ) -> Option<(Option<Matched<'p>>, Option<u8>)> {
        let rule = policy.rule_for(failure);
        self.rule = rule.map_or(NO_RULE, |(index, _)| index as u8);
        let retries = self.attempts.saturating_sub(self.base);
        if policy.max_retries().is_some_and(|most| retries >= most) {
            return None;
        }
        if let Some((index, rule)) = rule
            && rule
                .max_retries
                .is_some_and(|most| u32::from(self.rule_retries[index]) >= most)
        {
            return None;
        }
        let once = once_bit(failure);
        match once {
            Some(bit) if self.flags & bit != 0 && bit != UNSENT => None,
            Some(bit) if self.flags & bit != 0 => Some((rule, None)),
            once => Some((rule, once)),
        }
    }

    /// The computed backoff in nanoseconds: backoff → cap → jitter.
    fn computed_backoff(
        &self,
        policy: &Policy,
        now: Instant,
        kind: FailureKind,
        rule: Option<(usize, &Rule)>,
        own: DelaySource,
        random: &mut (impl Random + ?Sized),
    ) -> Option<u64> {
        let source = policy.wait_source(rule.map(|(_, rule)| rule));
        let ceiling = source.max_delay.map_or(u64::MAX, nanos);
        let (before, after) = match policy.ceiling {
            Ceiling::BeforeJitter => (ceiling, u64::MAX),
            Ceiling::AfterJitter => (u64::MAX, ceiling),
        };
        let backoff = match own {
            DelaySource::Given(given) => given.min(before),
            DelaySource::Ended => return None,
            DelaySource::Backoff => {
                let retry = match rule {
                    Some((index, _)) if source.own => u32::from(self.rule_steps[index]),
                    _ => self.step,
                };
                let initial = match policy.throttled_initial {
                    Some(initial) if kind == FailureKind::Throttled && !source.own => {
                        Some(nanos(initial))
                    }
                    _ => None,
                };
                let step = BackoffPosition {
                    retry,
                    previous: self.previous,
                    elapsed: now.nanos_since(self.since),
                    initial,
                    ceiling: before,
                };
                source.backoff.wait(step, random)?
            }
        };
        Some(source.jitter.apply(backoff, random).min(after))
    }

    pub(super) fn limit_reached(&self, policy: &Policy, now: Instant, wait: u64) -> StopReason {
        let start = Duration::from_nanos(wait).saturating_add(policy.min_attempt_time);
        let elapsed = now.saturating_since(self.started).saturating_add(start);
        match policy.max_elapsed {
            Some(limit) if elapsed > limit => StopReason::MaxElapsed,
            _ => StopReason::Deadline,
        }
    }

    #[inline]
    fn grant(
        &mut self,
        policy: &Policy,
        rule: Option<(usize, &Rule)>,
        once: Option<u8>,
        own: u64,
        hinted: bool,
    ) {
        // gRFC A6: the sequence restarts after a pushback.
        let restarts = hinted && policy.hint == HintMode::Exact;
        if let Some((index, rule)) = rule {
            self.rule_retries[index] = self.rule_retries[index].saturating_add(1);
            if rule.backoff.is_some() {
                self.rule_steps[index] = match restarts {
                    true => 0,
                    false => self.rule_steps[index].saturating_add(1),
                };
            }
        }
        if restarts {
            self.step = 0;
        } else if rule.is_none_or(|(_, rule)| rule.backoff.is_none()) {
            self.step = self.step.saturating_add(1);
        }
        self.flags |= once.unwrap_or(0);
        self.previous = own;
        self.flags |= RETRY_PENDING;
    }
}

/// The source of the delay before jitter.
#[derive(Clone, Copy)]
pub(crate) enum DelaySource {
    Backoff,
    Given(u64),
    Ended,
}

impl DelaySource {
    /// The next delay of the caller's own iterator.
    pub(crate) fn given(own: Option<Duration>) -> Self {
        own.map_or(Self::Ended, |own| Self::Given(nanos(own)))
    }
}

/// Attempts that a live connection provably never saw: free of charge, once.
const UNSENT: u8 = 1;

/// Causes that are retried once: 421 on a new connection, 425 without early data, a name that does not
/// exist after a second look-up, an invalid HTTP response. Unsent attempts are *free* once.
#[inline]
const fn once_bit(failure: &Failure) -> Option<u8> {
    match failure.cause {
        cause if cause.is_unsent() => match failure.is_single_request() {
            true => Some(UNSENT),
            false => None,
        },
        Cause::Network(Network::NameNotFound) => Some(2),
        Cause::Status(421) => Some(4),
        // All bits are in use. A server that responds with 425 speaks HTTP, so these two can share one.
        Cause::Status(425) | Cause::Network(Network::Malformed) => Some(8),
        _ => None,
    }
}

/// Applies the server's `Retry-After` to the computed backoff; `room` is the time until the last
/// instant at which an attempt may start. The second value is the lower bound for shortening the delay:
/// the `Retry-After` if there is one, `None` if the delay may not be shortened.
fn apply_retry_after(
    policy: &Policy,
    own: u64,
    failure: &Failure,
    room: u64,
    random: &mut (impl Random + ?Sized),
) -> Result<(u64, Option<u64>), StopReason> {
    let Some(hint) = failure.hint.delay_nanos() else {
        return Ok((own, Some(0)));
    };
    let earliest = (hint < own).then_some(hint);
    match policy.hint {
        HintMode::Ignore => return Ok((own, Some(0))),
        HintMode::Clamp => {
            return Ok((
                hint.clamp(own, own.saturating_add(MAX_CLAMP_NANOS)),
                earliest,
            ));
        }
        HintMode::Floor | HintMode::Replace | HintMode::Exact => {}
    }
    if hint > nanos(policy.max_hint) || hint > room {
        return Err(StopReason::RetryLater);
    }
    if policy.hint != HintMode::Floor {
        return Ok((hint, None));
    }
    let floor = hint.max(own);
    let spread = match failure.hint.audience {
        Audience::Shared => share_of(hint, policy.retry_after_jitter),
        Audience::TicketSeconds => RESERVED_SECONDS_JITTER_NANOS,
        Audience::TicketMillis => RESERVED_MILLIS_JITTER_NANOS,
    };
    // Limited to the time left: jitter is no reason to give up.
    let spread = spread.min(room.saturating_sub(floor));
    Ok((floor.saturating_add(up_to(spread, random)), earliest))
}
