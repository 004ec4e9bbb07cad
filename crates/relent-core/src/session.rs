//! The state of one logical operation across its attempts.

mod hedging;
mod last_wait;
mod saved;

use core::time::Duration;

use crate::backoff::Step;
use crate::budget::{Budget, Charge, Payment, Taken};
use crate::ceiling::Ceiling;
use crate::decision::{Decision, Stop, StopReason};
use crate::failure::{Cause, Failure, Kind, Network, Scope};
use crate::hint::{Advice, Audience, HintMode};
use crate::pattern::Pattern;
use crate::policy::{MAX_RULES, Policy, Rule};
use crate::random::{Random, up_to};
use crate::repeatable::Repeatable;
use crate::time::{Instant, nanos, share_of};
pub use saved::NotASession;

/// The rule that matched, with its index.
type Matched<'p> = (usize, &'p Rule);

/// A retry has been granted that has not started.
const WAITING: u8 = 64;
/// A hedge has been granted that has not been sent.
const HEDGING: u8 = 128;
/// A wait was cut so that one last attempt fits before a time limit.
const LAST_WAIT_CUT: u8 = 32;
/// The budget holds the retry back: it pauses, or waits at the gate if nothing was taken for it.
const HELD: u8 = 16;

/// No rule has matched yet.
const NO_RULE: u8 = u8::MAX;
/// AWS retries 2.1: a hint within [own wait, own wait + 5 s].
const CLAMP_NANOS: u64 = 5_000_000_000;
/// The spread behind a ticket in milliseconds, and behind one in seconds (design rule 4).
const TICKET_MILLIS_SPREAD: u64 = 100_000_000;
const TICKET_SECONDS_SPREAD: u64 = 1_000_000_000;

/// The state of one logical operation across its attempts: a small plain value.
///
/// A driver tells it when an attempt starts and how it failed; the session answers with a
/// [`Decision`]. It does no I/O, reads no clock and owns no randomness, so the same code runs in a
/// blocking loop, a future, a proxy and a simulator.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Backoff, Decision, Draw, Failure, Instant, Policy, Session};
///
/// let policy = Policy::builder(Backoff::exponential(Duration::from_millis(100)))
///     .max_retries(1)
///     .build()?;
/// let now = Instant::ORIGIN;
/// let mut session = Session::new(now, true);
/// session.on_attempt();
/// let decision = session.on_failure(&policy, now, &Failure::ambiguous(), &mut Draw::at(0.5), None);
/// assert_eq!(decision, Decision::Retry { after: Duration::from_millis(50) });
/// session.on_attempt();
/// let decision = session.on_failure(&policy, now, &Failure::ambiguous(), &mut Draw::at(0.5), None);
/// assert_eq!(decision.stop().map(|stop| stop.reason.name()), Some("retries_exhausted"));
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Session {
    started: Instant,
    /// What `Elapsed` counts from; later than `started` after a reset.
    since: Instant,
    /// The previous wait of the policy's own, before any hint, in nanoseconds: what a random walk
    /// goes on from.
    previous: u64,
    attempts: u32,
    /// The attempt from which retries are counted: the first, or the last that made progress.
    base: u32,
    /// Retries granted by the policy's own backoff since it last began anew.
    step: u32,
    /// Taken from the budget for the retry that is waited for or running.
    taken: Taken,
    /// Retries granted under each rule, for its limit.
    rule_retries: [u8; MAX_RULES],
    /// Retries granted under each rule since its backoff last began anew.
    rule_steps: [u8; MAX_RULES],
    /// The rule of the last failure.
    rule: u8,
    /// Causes that are retried once and have been (bits of [`once_bit`]), [`WAITING`], [`HEDGING`]
    /// [`LAST_WAIT_CUT`] and [`HELD`]. In one byte, which keeps a session at 64.
    marks: u8,
    repeatable: Repeatable,
    /// Whether an attempt so far may have taken effect.
    perhaps_done: bool,
    /// Taken from the budget for it.
    hedge_taken: Taken,
}

impl Session {
    /// A session that begins at `now`. `repeatable`: is it known that the operation may run twice
    /// without harm, be it by nature, by key, by precondition, or because the caller says so? If not,
    /// the policy's `assume_repeatable` decides; for a caller that says no, there is
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
            marks: 0,
            repeatable: Repeatable::known(repeatable),
            perhaps_done: false,
            hedge_taken: Taken::NOTHING,
        }
    }

    /// Whether the operation may run twice without harm, where that is found out late, no later than
    /// its first failure is decided; or where the caller says that it may not.
    #[inline]
    pub const fn set_repeatable(&mut self, repeatable: Repeatable) {
        self.repeatable = repeatable;
    }

    /// Moves the beginning of the session to `now`, for a driver that reads its clock late.
    pub const fn begin(&mut self, now: Instant) {
        self.started = now;
        self.since = now;
    }

    /// An attempt starts. Returns its number; the first is 1.
    #[inline]
    pub const fn on_attempt(&mut self) -> u32 {
        match self.attempts.checked_add(1) {
            Some(attempts) => self.attempts = attempts,
            // The number stays, and retries are counted all the same.
            None => self.base = self.base.saturating_sub(1),
        }
        self.marks &= !(WAITING | HELD);
        self.attempts
    }

    /// The operation succeeded.
    #[inline]
    pub fn on_success(&mut self, budget: Option<&Budget>) {
        if let Some(budget) = budget {
            budget.on_success(self.taken);
        }
        self.taken = Taken::NOTHING;
    }

    /// The caller goes away. A retry that was granted but not started is given back to the budget
    /// (design rule 12).
    #[inline]
    pub fn on_cancel(&mut self, budget: Option<&Budget>) {
        if self.marks & WAITING != 0
            && let Some(budget) = budget
        {
            budget.refund(self.taken);
        }
        self.taken = Taken::NOTHING;
        self.marks &= !(WAITING | HELD);
        self.call_off_hedge(budget);
    }

    /// Whether the next attempt is a retry that the budget could not pay for.
    #[inline]
    pub(crate) const fn is_unpaid(&self) -> bool {
        self.marks & HELD != 0 && self.taken.is_nothing()
    }

    /// Whether it has taken something from the budget that [`on_cancel`](Self::on_cancel) gives back.
    #[inline]
    #[must_use]
    pub const fn holds(&self) -> bool {
        self.marks & (WAITING | HEDGING) != 0
    }

    /// Something happened that makes the backoff begin anew: activity while polling (R4.4), a long
    /// healthy run. Limits are not moved: nothing extends past a limit.
    pub const fn reset(&mut self, now: Instant) {
        self.since = now;
        self.step = 0;
        self.previous = 0;
        self.rule_steps = [0; MAX_RULES];
    }

    /// The same while the session waits of its own until `until`. Returns until when it waits now: until
    /// its first delay is over, but never longer than before, so that no touch puts the next attempt off
    /// or moves it past a limit. A server's time is not to be shortened.
    ///
    /// A wait that is a first delay already stays as it is: of several draws of the jitter the shortest
    /// would count. For the same reason it is asked once for each wait.
    pub fn hasten(
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
        let is_first = step <= 1 && !backoff.looks_at_elapsed();
        self.reset(now);
        // Whom the budget holds back goes no sooner.
        if is_first || self.marks & HELD != 0 {
            return until;
        }
        match self.own_wait(policy, now, Kind::NotProcessed, rule, Own::Backoff, random) {
            Some(first) => until.min(Instant::from_nanos(now.as_nanos().saturating_add(first))),
            None => until,
        }
    }

    /// The running attempt has failed or is about to, but first it brought the operation on for good,
    /// so that no later attempt repeats what it did: a download that goes on where it was cut off.
    /// [`Progress`](crate::Progress) says when that counts. To be said before its failure.
    ///
    /// Progress is success: the count of retries, the backoff and what is retried once begin anew,
    /// as for a new operation that does the rest. What the attempt took from the budget as a retry is
    /// given back. A retry after progress is paid for all the same, until it has made progress itself:
    /// so a transfer that advances holds one retry at most, however often it is cut off, and one that
    /// no longer advances is as dear as any other.
    ///
    /// Nothing extends past a limit: `max_elapsed` and the deadline count from the start of the
    /// session. What may have taken effect before still may have.
    pub fn on_progress(&mut self, now: Instant, budget: Option<&Budget>) {
        if let Some(budget) = budget {
            budget.refund(self.taken);
        }
        self.taken = Taken::NOTHING;
        self.base = self.attempts.max(1);
        self.rule_retries = [0; MAX_RULES];
        self.marks &= WAITING | HEDGING | LAST_WAIT_CUT;
        self.reset(now);
    }

    /// Attempts started so far.
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// When the session began.
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

    /// The attempt timeout of the rule of the last failure, or of the policy.
    pub(crate) fn attempt_timeout(&self, policy: &Policy) -> Option<Duration> {
        policy
            .rules
            .get(usize::from(self.rule))
            .and_then(|rule| rule.attempt_timeout)
            .or(policy.attempt_timeout)
    }

    /// The last instant at which an attempt may start, by `max_elapsed` and the deadline:
    /// [`Instant::MAX`] without either.
    #[must_use]
    pub fn last_start(&self, policy: &Policy) -> Instant {
        policy.last_start(self.started)
    }

    /// Why an attempt may not start at `at`, after [`last_start`](Self::last_start).
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

    /// When it began, or last made progress.
    #[inline]
    pub(crate) const fn since(&self) -> Instant {
        self.since
    }

    /// An attempt failed at `now`: retry after a wait, or stop?
    ///
    /// The order is that of design rule 3: eligibility, count, then backoff → ceiling → jitter →
    /// hint → spread → time limits → budget.
    #[inline]
    pub fn on_failure(
        &mut self,
        policy: &Policy,
        now: Instant,
        failure: &Failure,
        random: &mut (impl Random + ?Sized),
        budget: Option<&Budget>,
    ) -> Decision {
        self.on_failure_until(policy, now, failure, random, budget, Instant::MAX)
    }

    /// The same where no attempt may start after `latest`, whatever the policy says.
    #[inline]
    pub(crate) fn on_failure_until(
        &mut self,
        policy: &Policy,
        now: Instant,
        failure: &Failure,
        random: &mut (impl Random + ?Sized),
        budget: Option<&Budget>,
        latest: Instant,
    ) -> Decision {
        match self.simple_wait(policy, now, failure, random, budget, latest) {
            Some(wait) => decision(Ok(wait)),
            None => self.decide_in_full(policy, now, failure, random, budget, latest),
        }
    }

    #[inline(never)]
    fn decide_in_full(
        &mut self,
        policy: &Policy,
        now: Instant,
        failure: &Failure,
        random: &mut (impl Random + ?Sized),
        budget: Option<&Budget>,
        latest: Instant,
    ) -> Decision {
        decision(self.decide(policy, now, failure, Own::Backoff, random, budget, latest))
    }

    /// The same with a wait of the caller's own in place of the policy's backoff, for any iterator
    /// of durations; `None` says that the iterator has ended. Ceiling, jitter, hints and limits of
    /// the policy apply as ever.
    pub fn on_failure_with(
        &mut self,
        policy: &Policy,
        now: Instant,
        failure: &Failure,
        own: Option<Duration>,
        random: &mut (impl Random + ?Sized),
        budget: Option<&Budget>,
    ) -> Decision {
        self.on_failure_with_until(policy, now, failure, own, random, budget, Instant::MAX)
    }

    /// The same where no attempt may start after `latest`, whatever the policy says.
    #[allow(
        clippy::too_many_arguments,
        reason = "they are what a decision is made of"
    )]
    pub(crate) fn on_failure_with_until(
        &mut self,
        policy: &Policy,
        now: Instant,
        failure: &Failure,
        own: Option<Duration>,
        random: &mut (impl Random + ?Sized),
        budget: Option<&Budget>,
        latest: Instant,
    ) -> Decision {
        let own = own.map_or(Own::Ended, |own| Own::Given(nanos(own)));
        decision(self.decide(policy, now, failure, own, random, budget, latest))
    }

    /// [`on_failure`](Self::on_failure) in nanoseconds, which are cheaper than a `Duration`.
    #[inline]
    pub(crate) fn wait_or_stop(
        &mut self,
        policy: &Policy,
        now: Instant,
        failure: &Failure,
        random: &mut (impl Random + ?Sized),
        budget: Option<&Budget>,
    ) -> Result<u64, Stop> {
        let latest = Instant::MAX;
        match self.simple_wait(policy, now, failure, random, budget, latest) {
            Some(wait) => Ok(wait),
            None => self.decide(policy, now, failure, Own::Backoff, random, budget, latest),
        }
    }

    /// The wait before a retry that nothing is against, by the short form of the policy. `None`, and
    /// nothing is changed, where there is more to ask.
    #[inline]
    fn simple_wait(
        &mut self,
        policy: &Policy,
        now: Instant,
        failure: &Failure,
        random: &mut (impl Random + ?Sized),
        budget: Option<&Budget>,
        latest: Instant,
    ) -> Option<u64> {
        let fast_path = policy.fast_path.as_ref()?;
        let retries = self.attempts.saturating_sub(self.base);
        if !self.is_simple(policy, failure)
            || !fast_path.allows_after(retries)
            || latest != Instant::MAX && fast_path.longest(self.step) > latest.nanos_since(now)
        {
            return None;
        }
        self.taken = match budget {
            // The retry before may have been paid for, out of a budget that a reload has taken away.
            None => Taken::NOTHING,
            Some(_) if failure.cause.is_answer() => return None,
            Some(budget) => {
                budget.withdraw_at_once(now, Charge::of(failure.kind, failure.cause))?
            }
        };
        self.rule = NO_RULE;
        self.perhaps_done |= matches!(failure.kind, Kind::Ambiguous);
        let wait = fast_path.wait(self.step, random);
        self.grant(policy, None, None, wait, false);
        Some(wait)
    }

    /// Whether the failure leaves nothing to ask but how often and how long, under a policy that
    /// has a short form.
    #[inline]
    const fn is_simple(&self, policy: &Policy, failure: &Failure) -> bool {
        let kind = failure.kind;
        !matches!(kind, Kind::Permanent | Kind::Overloaded)
            && (!matches!(kind, Kind::Ambiguous) || self.repeatable.is_allowed_by(policy))
            && failure.is_of_one_call()
            && once_bit(failure.cause).is_none()
            && failure.hint.delay_nanos().is_none()
            && matches!(failure.hint.advice, Advice::None)
    }

    #[inline(never)]
    #[allow(
        clippy::too_many_arguments,
        reason = "they are what a decision is made of"
    )]
    fn decide(
        &mut self,
        policy: &Policy,
        now: Instant,
        failure: &Failure,
        own: Own,
        random: &mut (impl Random + ?Sized),
        budget: Option<&Budget>,
        latest: Instant,
    ) -> Result<u64, Stop> {
        let seen;
        let failure = if failure.as_if_in_progress {
            seen = self.in_view_of_earlier(*failure);
            &seen
        } else {
            failure
        };
        let hint = failure.hint.delay_nanos();
        let stop = |reason| {
            Err(Stop {
                reason,
                retry_at: hint
                    .map(|delay| Instant::from_nanos(now.as_nanos().saturating_add(delay))),
            })
        };

        let eligible = self.eligible(policy, failure);
        if let Some(budget) = budget
            && self.is_servers_failure(failure, eligible)
        {
            budget.on_failure(Charge::of(eligible.unwrap_or(failure.kind), failure.cause));
        }
        let kind = match eligible {
            Ok(kind) => kind,
            Err(StopReason::Permanent)
                if (failure.as_if_done || failure.as_if_in_progress)
                    && (self.perhaps_done || !failure.is_of_one_call()) =>
            {
                return stop(StopReason::OutcomeUnknown);
            }
            Err(reason) => return stop(reason),
        };
        self.note_effect(failure, kind);
        let Some((rule, once)) = self.count(policy, failure) else {
            return stop(StopReason::RetriesExhausted);
        };
        let Some(own) = self.own_wait(policy, now, kind, rule, own, random) else {
            return stop(StopReason::RetriesExhausted);
        };

        let by_policy = policy.last_start(self.started);
        let last_start = by_policy.min(latest).as_nanos();
        let room = last_start.saturating_sub(now.as_nanos());
        let (mut wait, earliest) = match obey(policy, own, failure, room, random) {
            Ok(wait) => wait,
            Err(reason) => return stop(reason),
        };
        if policy.cut_last_wait
            && last_start != u64::MAX
            && let Some(earliest) = earliest
        {
            wait = match self.cut_last_wait(policy, now, wait, earliest, latest, random) {
                Ok(wait) => wait,
                Err(reason) => return stop(reason),
            };
        }
        if now.as_nanos().saturating_add(wait) > last_start {
            return stop(match latest < by_policy {
                true => StopReason::MaxElapsed,
                false => self.limit_reached(policy, now, wait),
            });
        }

        self.taken = Taken::NOTHING;
        if let Some(budget) = budget {
            // Exempt are tickets, which the server has set aside, attempts that a live connection
            // provably never saw, once, and what a destination answers that is well: looks at what is
            // not ready, which repeat nothing, and conflicts, each of which comes of a write that took
            // effect. A key that many write is not to take the retries of those who write others.
            let unsent = once == Some(UNSENT) && failure.is_of_one_call();
            let exempt = unsent
                || failure.cause.is_answer()
                || failure.hint.audience != Audience::Shared && hint.is_some();
            if !exempt {
                let useful = if policy.cut_last_wait {
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
                            // Held back with nothing taken means unpaid, and what is free is not.
                            if !taken.is_nothing() {
                                self.marks |= HELD;
                            }
                        }
                    }
                    Payment::AtGate => self.marks |= HELD,
                    Payment::Refused => return stop(StopReason::Budget),
                }
            }
        }
        self.grant(policy, rule, once, own, hint.is_some());
        Ok(wait)
    }

    /// What a failure is after the attempts so far: one that would be the answer [if an earlier attempt
    /// were still in progress](Failure::as_if_in_progress) is throttled once an attempt may be. A
    /// session decides so by itself; a driver asks in order to show it so.
    #[must_use]
    pub const fn in_view_of_earlier(&self, mut failure: Failure) -> Failure {
        if failure.as_if_in_progress && self.perhaps_done && matches!(failure.kind, Kind::Permanent)
        {
            failure.kind = Kind::Throttled;
        }
        failure
    }

    /// Did it run, and may it run twice (design rule 1)?
    #[inline]
    fn eligible(&self, policy: &Policy, failure: &Failure) -> Result<Kind, StopReason> {
        let mut kind = failure.kind;
        if failure.hint.advice == Advice::DoNotRetry {
            return Err(StopReason::DoNotRetry);
        }
        if kind == Kind::Overloaded {
            return Err(StopReason::Overloaded);
        }
        let asked_to = failure.hint.advice == Advice::DoRetry;
        match &policy.retry_on {
            // What is listed may be retried; whether it may run twice is asked below.
            Some(listed) if Pattern::list(listed, failure) => {
                kind = match kind {
                    Kind::Permanent => Kind::Ambiguous,
                    kind => kind,
                };
            }
            // A list of failures says nothing about what is none.
            Some(_) if !asked_to && !failure.cause.is_answer() => kind = Kind::Permanent,
            _ => {}
        }
        if kind == Kind::Permanent && asked_to {
            kind = Kind::Ambiguous;
        }
        if kind == Kind::Permanent || Pattern::any(&policy.stop_on, failure) {
            return Err(StopReason::Permanent);
        }
        // What the last of several calls says, and what a policy takes that for, is true of that call.
        let alone = failure.is_of_one_call();
        if kind == Kind::Ambiguous && alone && Pattern::any(&policy.not_processed, failure) {
            kind = Kind::NotProcessed;
        }
        if (kind == Kind::Ambiguous || !alone) && !self.repeatable.is_allowed_by(policy) {
            return Err(StopReason::NotRepeatable);
        }
        Ok(kind)
    }

    /// Keeps whether the attempt may have taken effect, which failed like this and counts as `kind`. Of
    /// what was only listed as worth a retry, nothing says that it may have.
    #[inline]
    fn note_effect(&mut self, failure: &Failure, kind: Kind) {
        self.perhaps_done |=
            failure.kind == Kind::Ambiguous && kind == Kind::Ambiguous || !failure.is_of_one_call();
    }

    /// Whether the failure says something about the health of the server (gRFC A6): one that could
    /// be retried, one that the server asked not to have retried, but nothing that speaks of the
    /// request, and no attempt that the server never saw, once.
    #[inline]
    fn is_servers_failure(&self, failure: &Failure, eligible: Result<Kind, StopReason>) -> bool {
        let unsent = once_bit(failure.cause) == Some(UNSENT) && self.marks & UNSENT == 0;
        !unsent && failure.scope == Scope::Destination && eligible != Err(StopReason::Permanent)
    }

    /// The rule for the failure, and whether it uses up a cause that is retried once; `None` if the
    /// retries are used up.
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
        let once = once_bit(failure.cause);
        match once {
            Some(bit) if self.marks & bit != 0 && bit != UNSENT => None,
            Some(bit) if self.marks & bit != 0 => Some((rule, None)),
            once => Some((rule, once)),
        }
    }

    /// backoff → ceiling → jitter, in nanoseconds.
    fn own_wait(
        &self,
        policy: &Policy,
        now: Instant,
        kind: Kind,
        rule: Option<(usize, &Rule)>,
        own: Own,
        random: &mut (impl Random + ?Sized),
    ) -> Option<u64> {
        let source = policy.wait_source(rule.map(|(_, rule)| rule));
        let ceiling = source.max_delay.map_or(u64::MAX, nanos);
        let (before, after) = match policy.ceiling {
            Ceiling::BeforeJitter => (ceiling, u64::MAX),
            Ceiling::AfterJitter => (u64::MAX, ceiling),
        };
        let backoff = match own {
            Own::Given(given) => given.min(before),
            Own::Ended => return None,
            Own::Backoff => {
                let retry = match rule {
                    Some((index, _)) if source.own => u32::from(self.rule_steps[index]),
                    _ => self.step,
                };
                let initial = match policy.throttled_initial {
                    Some(initial) if kind == Kind::Throttled && !source.own => Some(nanos(initial)),
                    _ => None,
                };
                let step = Step {
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

    fn limit_reached(&self, policy: &Policy, now: Instant, wait: u64) -> StopReason {
        let start = Duration::from_nanos(wait).saturating_add(policy.attempt_room);
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
        // gRFC A6: after a pushback the sequence begins anew.
        let anew = hinted && policy.hint == HintMode::Exact;
        if let Some((index, rule)) = rule {
            self.rule_retries[index] = self.rule_retries[index].saturating_add(1);
            if rule.backoff.is_some() {
                self.rule_steps[index] = match anew {
                    true => 0,
                    false => self.rule_steps[index].saturating_add(1),
                };
            }
        }
        if anew {
            self.step = 0;
        } else if rule.is_none_or(|(_, rule)| rule.backoff.is_none()) {
            self.step = self.step.saturating_add(1);
        }
        self.marks |= once.unwrap_or(0);
        self.previous = own;
        self.marks |= WAITING;
    }
}

#[inline]
const fn decision(wait: Result<u64, Stop>) -> Decision {
    match wait {
        Ok(nanos) => Decision::Retry {
            after: Duration::from_nanos(nanos),
        },
        Err(stop) => Decision::Stop(stop),
    }
}

/// Whose wait it is before jitter.
#[derive(Clone, Copy)]
enum Own {
    Backoff,
    Given(u64),
    Ended,
}

/// Attempts that a live connection provably never saw: free of charge, once.
const UNSENT: u8 = 1;

/// Causes that are retried once: 421 on a fresh connection, 425 without early data, a name that
/// does not exist after one more look-up, a response that is not valid HTTP (design rule 2). Unsent attempts are *free* once.
#[inline]
const fn once_bit(cause: Cause) -> Option<u8> {
    match cause {
        Cause::Network(Network::RefusedStream | Network::GoAway) => Some(UNSENT),
        Cause::Network(Network::NameNotFound) => Some(2),
        Cause::Status(421) => Some(4),
        // All bits are taken. A server that answers 425 speaks HTTP, so these two share one.
        Cause::Status(425) | Cause::Network(Network::Malformed) => Some(8),
        _ => None,
    }
}

/// Applies the server's time to the own wait (design rule 4); `room` is the time until the last
/// instant at which an attempt may start. Beside the wait, where it is the session's own: what it may
/// be cut to, which is the server's time if there is one.
fn obey(
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
            return Ok((hint.clamp(own, own.saturating_add(CLAMP_NANOS)), earliest));
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
        Audience::Shared => share_of(hint, policy.hint_spread),
        Audience::TicketSeconds => TICKET_SECONDS_SPREAD,
        Audience::TicketMillis => TICKET_MILLIS_SPREAD,
    };
    // Limited to what fits: a spread is a courtesy, and no reason to give up.
    let spread = spread.min(room.saturating_sub(floor));
    Ok((floor.saturating_add(up_to(spread, random)), earliest))
}

#[cfg(all(test, not(loom)))]
#[path = "session_tests.rs"]
mod tests;
