//! A call: one operation over its attempts, the state machine behind every retry loop.
//!
//! ```text
//! Call::new ──► next ──► Start(CallPermit) ──► begin ──► the transport makes the attempt
//!                ▲  │                                           │
//!                │  ├──► Wait, until then or until woken        ▼
//!                │  └──► Stop                         succeeded | failed ──► Stop
//!                │                                                 │
//!                └───────────────── Retry, after a delay ◄─────────┘
//! ```
//!
//! A transport sleeps, wakes, sends, and reports outcomes. It decides nothing.

mod admission;
mod blocked_by;
mod destination_state;
mod extras;
mod hedging;
mod outcome;
pub(crate) mod progress;
mod queued;
pub(crate) mod race;
mod recording;
mod reporting;
pub(crate) mod session;
pub(crate) mod stop;
pub(crate) mod trace;

use alloc::boxed::Box;
use core::time::Duration;

use crate::destination::budget::Budget;
use crate::destination::outbound::BlockedBy;
use crate::destination::{Access, Destination};
use crate::failure::{Cause, Failure};
use crate::policy::Policy;
use crate::random::Random;
use crate::repeatable::Repeatable;
use crate::time::Instant;
pub use admission::{CallPermit, NextStep};
use destination_state::{DestinationState, Stage};
use extras::Extras;
pub use hedging::RaceAttempt;
pub use progress::Progress;
pub use queued::{Queued, QueuedBy};
pub use race::{Race, RaceOutcome};
pub use session::InvalidSavedSession;
use session::decision::Decision;
use session::{Session, TimeoutSource};
use stop::StopReason;
use trace::Trace;

/// Start of a call whose clock has not been read.
const UNREAD_CLOCK: Instant = Instant::MAX;

/// Inputs and observers of a [`Call`]. A driver has one for each call, or creates it for each step.
///
/// Nothing of it is called while a destination is locked, since its clock and its observers may be
/// arbitrary code.
pub trait Environment {
    /// Access to the destination.
    type Access: Access;
    /// The random stream of the call.
    type Random: Random;

    /// The policy.
    fn policy(&self) -> &Policy;

    /// The destination of the attempts, if callers share one.
    fn destination(&self) -> Option<&Destination<Self::Access>>;

    /// The policy, the budget of the destination, and the random stream.
    fn parts(&mut self) -> (&Policy, Option<&Budget>, &mut Self::Random);

    /// The current time. Called only when it is needed.
    fn now(&self) -> Instant;

    /// The caller's own deadline, whatever the policy says: it needs no response later than this. No
    /// limit by default.
    #[inline]
    fn answer_by(&self) -> Instant {
        Instant::MAX
    }

    /// Called when the attempt of this number starts.
    #[inline]
    fn on_attempt(&self, number: u32) {
        let _ = number;
    }

    /// Called when a hedge starts.
    #[inline]
    fn on_hedge(&self) {}

    /// Called when an attempt has failed.
    #[inline]
    fn on_failure(&self, failure: &Failure) {
        let _ = failure;
    }

    /// Called with the decision after a failed attempt.
    #[inline]
    fn on_decision(&self, attempt: u32, failure: &Failure, decision: &Decision) {
        let _ = (attempt, failure, decision);
    }

    /// Called when the call gives up after so many attempts, for another reason than a failed attempt.
    /// `failure` is set if the call ends with it.
    #[inline]
    fn on_stop(&self, attempts: u32, failure: Option<&Failure>, reason: StopReason) {
        let _ = (attempts, failure, reason);
    }

    /// Called when the next attempt is queued at the destination, or when another control begins to
    /// hold it.
    #[inline]
    fn on_queued(&self, queued: &Queued) {
        let _ = queued;
    }

    /// Called when the budget of the destination was used, if it has one.
    #[inline]
    fn on_budget(&self) {}

    /// Called when a cooldown begins at the destination.
    #[inline]
    fn on_cooldown(&self) {}

    /// Called after an interaction with the destination. `before` is what held the call until now, and
    /// for how long; `after` is what holds it from now on. `now` is `None` if the clock was not read.
    #[inline]
    fn on_admission(
        &self,
        before: Option<(BlockedBy, Duration)>,
        after: Option<BlockedBy>,
        now: Option<Instant>,
    ) {
        let _ = (before, after, now);
    }
}

/// Facts about an attempt for the operation that runs in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attempt {
    /// The number of the attempt; the first is 1.
    pub number: u32,
    /// The time left until the deadline of the whole call; `None` without one.
    pub remaining: Option<Duration>,
    /// How long this attempt may run, the deadline included; `None` for as long as it takes.
    pub limit: Option<Duration>,
}

impl Attempt {
    /// An attempt of this number without a time limit.
    #[inline]
    #[must_use]
    pub const fn unlimited(number: u32) -> Self {
        Self {
            number,
            remaining: None,
            limit: None,
        }
    }
}

/// One operation over its attempts: its [`Session`], its state at the destination, and optionally a
/// trace and a race of hedges.
///
/// It does no I/O, reads no clock and holds no lock, waker or timer: those belong to the
/// [`Environment`]. An attempt can [begin](Self::begin) only with the permit from [`next`](Self::next),
/// so no transport can skip admission.
///
/// A call that is dropped cannot reach its destination by itself. The `Drop` of its driver has to call
/// [`leave`](Self::leave).
///
/// ```
/// use core::convert::Infallible;
/// use core::time::Duration;
/// use relent_core::{Backoff, Decision, FixedRandom, Failure, Instant, Policy};
/// use relent_core::call::{Call, Environment, NextStep};
/// use relent_core::destination::{Budget, Destination};
///
/// struct Alone(Policy, FixedRandom);
///
/// impl Environment for Alone {
///     type Access = Infallible;
///     type Random = FixedRandom;
///
///     fn policy(&self) -> &Policy {
///         &self.0
///     }
///     fn destination(&self) -> Option<&Destination<Infallible>> {
///         None
///     }
///     fn parts(&mut self) -> (&Policy, Option<&Budget>, &mut FixedRandom) {
///         (&self.0, None, &mut self.1)
///     }
///     fn now(&self) -> Instant {
///         Instant::ORIGIN
///     }
/// }
///
/// let policy = Policy::builder(Backoff::constant(Duration::from_secs(1))).max_retries(1).build()?;
/// let mut alone = Alone(policy, FixedRandom::at(1.0));
/// let mut call = Call::new(&alone);
/// let NextStep::Start(permit) = call.next(&mut alone, None) else {
///     unreachable!("no destination is asked");
/// };
/// let (attempt, _) = call.begin(&mut alone, permit);
/// assert_eq!(attempt.number, 1);
/// let decision = call.failed(&mut alone, &Failure::ambiguous());
/// assert_eq!(decision, Decision::Retry { after: Duration::from_secs(1) });
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Debug)]
pub struct Call<'w> {
    session: Session,
    /// Set once the call has reached its destination.
    destination_state: Option<DestinationState>,
    work: CallWork,
    /// Whether it has given up before an attempt and reported that.
    over: bool,
    /// Whether timeouts ended all its attempts.
    timeouts: Timeouts,
    /// Whether it ends where its destination would queue it.
    fails_fast: bool,
    extras: Option<Box<Extras<'w>>>,
}

/// Work beside the attempts, in increasing order; each value includes those before. Most calls pay one
/// comparison for it.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
enum CallWork {
    Nothing,
    /// The destination or a time limit may hold or end the call.
    Limits,
    /// Rarely needed features. If `extras` is still empty, a trace was requested: most calls end before
    /// it has an entry.
    Extras,
}

impl CallWork {
    #[inline]
    fn of(environment: &impl Environment) -> Self {
        if environment.policy().needs_time() || environment.destination().is_some() {
            Self::Limits
        } else {
            Self::Nothing
        }
    }
}

/// Whether one attempt timeout ended all attempts so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Timeouts {
    None,
    All(TimeoutSource),
    NotAll,
}

impl<'w> Call<'w> {
    /// Creates a call whose operation may run twice without harm. It begins when it first requests admission.
    #[inline]
    pub fn new(environment: &impl Environment) -> Self {
        Self::begun(UNREAD_CLOCK, environment)
    }

    /// A call that began at this instant.
    #[inline]
    pub fn begun(at: Instant, environment: &impl Environment) -> Self {
        Self {
            session: Session::new(at, true),
            destination_state: None,
            work: CallWork::of(environment),
            over: false,
            timeouts: Timeouts::None,
            fails_fast: false,
            extras: None,
        }
    }

    /// Adapts to another policy or destination of the environment, before the first attempt.
    #[inline]
    pub fn set_environment(&mut self, environment: &impl Environment) {
        if self.work != CallWork::Extras {
            self.work = CallWork::of(environment);
        }
    }

    /// Keeps a trace of every attempt. Call it before the first attempt.
    pub fn set_traced(&mut self) {
        self.work = CallWork::Extras;
        if let Some(extras) = &mut self.extras {
            extras.trace = Some(Trace::new());
        }
    }

    /// Ends the call where its destination would queue it; it then takes no place in the queue. Call it
    /// before the first attempt.
    pub const fn set_fail_fast(&mut self) {
        self.fails_fast = true;
    }

    /// Takes the delays from an iterator instead of the policy's backoff; its end ends the retries.
    /// Cap, jitter, hints and limits of the policy still apply. Call it before the first attempt.
    pub fn set_waits(&mut self, waits: impl Iterator<Item = Duration> + Send + 'w) {
        self.begin_trace();
        self.work = CallWork::Extras;
        self.extras.get_or_insert_default().waits = Some(Box::new(waits));
    }

    /// Sets whether the operation may run twice without harm; see [`Session::set_repeatable`].
    pub const fn set_repeatable(&mut self, repeatable: Repeatable) {
        self.session.set_repeatable(repeatable);
    }

    /// The session, read-only.
    #[must_use]
    pub const fn session(&self) -> &Session {
        &self.session
    }

    /// Attempts started so far.
    #[inline]
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.session.attempts()
    }

    /// When it began; `None` before it first requests admission.
    #[must_use]
    pub fn started(&self) -> Option<Instant> {
        let started = self.session.started();
        (started != UNREAD_CLOCK).then_some(started)
    }

    /// The attempt timeout, if the policy has one and it ended every attempt so far. `None` if they had different
    /// timeouts, or if another time limit ended the first one sooner.
    #[must_use]
    pub fn timed_out<E: Environment>(&self, environment: &E) -> Option<Duration> {
        match self.timeouts {
            Timeouts::All(source) => source.timeout(environment.policy()),
            Timeouts::None | Timeouts::NotAll => None,
        }
    }

    /// Keeps whether only one attempt timeout was seen. Call it before the decision about the failure.
    #[inline]
    fn note_cause(&mut self, policy: &Policy, cause: Cause, now: Instant) {
        self.timeouts = match (self.timeouts, cause) {
            (Timeouts::NotAll, _) => return,
            (before, Cause::Timeout) => self.note_timeout(policy, before, now),
            _ => Timeouts::NotAll,
        };
    }

    #[cold]
    fn note_timeout(&self, policy: &Policy, before: Timeouts, now: Instant) -> Timeouts {
        let source = self.session.timeout_source(policy);
        let by_deadline = self.session.remaining(policy, now) == Some(Duration::ZERO);
        // Sooner it was another time limit, such as that of the transport. A timer may be a little early.
        let elapsed = now.saturating_since(self.session.started());
        let is_early = |timeout: Duration| elapsed < timeout - timeout / 16;
        match before {
            Timeouts::All(other) if other != source => Timeouts::NotAll,
            _ if by_deadline || source.timeout(policy).is_some_and(is_early) => Timeouts::NotAll,
            _ => Timeouts::All(source),
        }
    }

    /// Takes the trace, if one was requested.
    pub fn take_trace(&mut self) -> Option<Trace> {
        self.extras()?.trace.take()
    }

    /// The reason if the next attempt may not start any more: `max_elapsed` or the deadline has passed.
    /// `None` while it may.
    pub fn too_late<E: Environment>(&mut self, environment: &E) -> Option<StopReason> {
        let now = self.now(environment);
        self.is_late(environment, now)
            .then(|| self.limit_at(environment, now))
    }

    /// Whether this is after the last instant at which an attempt may start. A first attempt that
    /// starts when the call begins is never late.
    #[inline]
    fn is_late<E: Environment>(&self, environment: &E, now: Instant) -> bool {
        now > self.session.started()
            && (now > self.session.last_start(environment.policy())
                || now > self.no_deadline_end(environment))
    }

    /// The reason why no attempt may start at this instant.
    fn limit_at<E: Environment>(&self, environment: &E, at: Instant) -> StopReason {
        match at > self.no_deadline_end(environment) {
            true => StopReason::MaxElapsed,
            false => self.session.limit_at(environment.policy(), at),
        }
    }

    /// For a caller without a time limit: how long after the start, progress or activity, an attempt
    /// may start, by the circuit breaker of the policy. `None` if there is a time limit, or no
    /// destination with a breaker.
    #[inline]
    pub fn without_deadline<E: Environment>(&self, environment: &E) -> Option<Duration> {
        let policy = environment.policy();
        let (circuit_breaker, there) = (policy.circuit_breaker()?, environment.destination()?);
        let is_open = policy.deadline().is_none()
            && policy.max_elapsed().is_none()
            && environment.answer_by() == Instant::MAX
            && !policy.is_off();
        is_open.then(|| circuit_breaker.without_deadline(there.has_responded()))
    }

    /// The last instant at which an attempt may start because of that limit.
    #[inline]
    fn no_deadline_end<E: Environment>(&self, environment: &E) -> Instant {
        let limit = self.without_deadline(environment);
        limit.map_or(Instant::MAX, |limit| {
            self.session.since().saturating_add(limit)
        })
    }

    /// The time left for an attempt to start, zero if there is none; `None` for no limit. For work
    /// beside the delays, such as reading a rejected response to its end.
    pub fn time_left<E: Environment>(&mut self, environment: &E) -> Option<Duration> {
        let now = self.now(environment);
        let last = self.session.last_start(environment.policy());
        let last = last.min(self.no_deadline_end(environment));
        (last < Instant::MAX).then(|| last.saturating_since(now))
    }

    /// The time left until the deadline, zero if it has passed; `None` without one.
    pub fn remaining<E: Environment>(&mut self, environment: &E) -> Option<Duration> {
        environment.policy().deadline()?;
        let now = self.now(environment);
        self.session.remaining(environment.policy(), now)
    }

    /// Restarts the backoff, such as after activity while polling. `max_elapsed` and the deadline are
    /// not moved; the limits of the circuit breaker count from now, or from the end of the queue.
    pub fn reset<E: Environment>(&mut self, environment: &E) {
        let mut since = self.now(environment);
        if let Some(state) = &mut self.destination_state
            && let Stage::Waiting { resets, .. } = &mut state.stage
        {
            // A queue knows the call by the time since which it asks.
            *resets = true;
            since = self.session.since();
        }
        self.session.reset(since);
    }

    /// Restarts the backoff during a delay that ends at `until`. Returns the remaining delay, which is
    /// never longer than before. Call it once for each delay; see [`Session::shorten_delay`].
    pub fn shorten_delay<E: Environment>(
        &mut self,
        environment: &mut E,
        until: Instant,
    ) -> Duration {
        if self.blocked_by().is_some() {
            self.reset(environment);
            return until.saturating_since(self.now(environment));
        }
        let now = self.now(environment);
        let (policy, _, random) = environment.parts();
        let until = self.session.shorten_delay(policy, now, until, random);
        until.saturating_since(now)
    }

    /// Reads the clock; the first reading is when the call began.
    #[inline]
    fn now<E: Environment>(&mut self, environment: &E) -> Instant {
        let now = environment.now();
        if self.session.started() == UNREAD_CLOCK {
            self.session.begin(now);
        }
        now
    }
}

/// The budget of the destination.
#[inline]
fn budget<E: Environment>(environment: &E) -> Option<&Budget> {
    environment.destination().and_then(Destination::budget)
}

/// The budget to return tokens to, even if a reload has removed it.
#[inline]
fn refundable_budget<E: Environment>(environment: &E) -> Option<&Budget> {
    environment
        .destination()
        .map(Destination::refundable_budget)
}

#[cfg(all(test, not(loom)))]
mod tests;
