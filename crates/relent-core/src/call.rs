//! One logical operation over its attempts: what every loop of attempts stands on.
//!
//! ```text
//! Call::new ──► next ──► Start(Leave) ──► begin ──► the transport makes the attempt
//!                ▲  │                                      │
//!                │  ├──► Wait, until then or until woken   ▼
//!                │  └──► Stop                    succeeded | failed ──► Stop
//!                │                                            │
//!                └──────────────── Retry, after a wait ◄──────┘
//! ```
//!
//! A transport sleeps, wakes, sends, and says how it ended. It decides nothing.

mod admission;
mod extras;
mod hedging;
mod holding;
mod leaving;
mod outcome;
mod place;
mod queued;
mod recording;

use alloc::boxed::Box;
use core::time::Duration;

use crate::budget::Budget;
use crate::cold::Cold;
use crate::decision::{Decision, Stop, StopReason};
use crate::destination::{Access, Destination};
use crate::failure::{Cause, Failure};
use crate::outbound::Holding;
use crate::policy::Policy;
use crate::random::Random;
use crate::repeatable::Repeatable;
use crate::session::Session;
use crate::time::Instant;
use crate::trace::Trace;
pub use admission::{Leave, Next};
use extras::Extras;
pub use hedging::Racer;
pub use place::{Entered, Place};
pub use queued::{Queued, QueuedBy};

/// When a call begins whose clock has not been read.
const NOT_YET: Instant = Instant::MAX;

/// What a [`Call`] decides by, and whom it tells. A driver has one for each call, or makes it up for each
/// step.
///
/// Nothing of it is used while a destination is locked: its clock and its observers may be anybody's
/// code.
pub trait Environment {
    /// The room that a call takes for where it stands at its destination: `()` where there is none.
    type Place: Place;
    /// How the destination is reached.
    type Access: Access;
    /// The random stream of the call.
    type Random: Random;

    /// The policy.
    fn policy(&self) -> &Policy;

    /// Where the attempts go, if callers share that.
    fn destination(&self) -> Option<&Destination<Self::Access>>;

    /// The policy, the budget of the destination, and the random stream.
    fn parts(&mut self) -> (&Policy, Option<&Budget>, &mut Self::Random);

    /// The time. Asked for only where it is needed (design rule 10).
    fn now(&self) -> Instant;

    /// Nobody waits for an answer later than this, whatever the policy says: for a caller that has a
    /// limit of its own. No limit unless said otherwise.
    #[inline]
    fn answer_by(&self) -> Instant {
        Instant::MAX
    }

    /// The attempt of this number starts.
    #[inline]
    fn on_attempt(&self, number: u32) {
        let _ = number;
    }

    /// A hedge starts.
    #[inline]
    fn on_hedge(&self) {}

    /// An attempt failed.
    #[inline]
    fn on_failure(&self, failure: &Failure) {
        let _ = failure;
    }

    /// This was decided after this failure of this attempt.
    #[inline]
    fn on_decision(&self, attempt: u32, failure: &Failure, decision: &Decision) {
        let _ = (attempt, failure, decision);
    }

    /// The call gives up after so many attempts, and not when one has failed; with the failure, if that
    /// is what it ends with.
    #[inline]
    fn on_stop(&self, attempts: u32, failure: Option<&Failure>, reason: StopReason) {
        let _ = (attempts, failure, reason);
    }

    /// The next attempt is queued at the destination, or is so by another control from now on.
    #[inline]
    fn on_queued(&self, queued: &Queued) {
        let _ = queued;
    }

    /// The budget of the destination was used, if it has one.
    #[inline]
    fn on_budget(&self) {}

    /// A cooldown begins at the destination.
    #[inline]
    fn on_cooldown(&self) {}

    /// The destination was asked or told something. `before` is what held the call back until now, and
    /// for how long; `after` is what does from now on. `now` is the time, if it was looked at.
    #[inline]
    fn on_admission(
        &self,
        before: Option<(Holding, Duration)>,
        after: Option<Holding>,
        now: Option<Instant>,
    ) {
        let _ = (before, after, now);
    }
}

/// What an operation may know about the attempt that it is.
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
    /// The attempt of this number, which may run for as long as it takes.
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

/// What a [`Call`] is made of beside its environment.
#[derive(Debug)]
pub struct CallOptions<'w> {
    repeatable: Repeatable,
    traced: bool,
    extras: Option<Box<Extras<'w>>>,
}

impl<'w> CallOptions<'w> {
    /// For an operation that may run twice without harm, without a trace, by the waits of the policy.
    #[inline]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            repeatable: Repeatable::Yes,
            traced: false,
            extras: None,
        }
    }

    /// Whether the operation may run twice without harm. A `bool` is the caller's word, which no policy
    /// overrules; [`Repeatable::known`] is for what was only found out.
    #[must_use]
    pub fn repeatable(mut self, repeatable: impl Into<Repeatable>) -> Self {
        self.repeatable = repeatable.into();
        self
    }

    /// Keeps a trace of every attempt.
    #[must_use]
    pub const fn traced(mut self) -> Self {
        self.traced = true;
        self
    }

    /// Takes the waits from an iterator in place of the policy's backoff; there are no more retries
    /// when it ends. Ceiling, jitter, hints and limits of the policy apply as ever.
    #[must_use]
    pub fn waits(mut self, waits: impl Iterator<Item = Duration> + Send + 'w) -> Self {
        self.extras.get_or_insert_default().waits = Some(Box::new(waits));
        self
    }
}

impl Default for CallOptions<'_> {
    fn default() -> Self {
        Self::new()
    }
}

/// One logical operation over its attempts: its [`Session`], where it stands at its destination, and, if
/// it has them, its trace and the race of its hedges.
///
/// It does no I/O, reads no clock and holds no lock, waker or timer: those are the
/// [`Environment`]'s. An attempt can [begin](Self::begin) only with what [`next`](Self::next) gave, so
/// no transport can forget to ask.
///
/// A call that goes away has to be told so by [`leave`](Self::leave), since it cannot reach its
/// destination by itself: by the `Drop` of its driver.
///
/// ```
/// use core::convert::Infallible;
/// use core::time::Duration;
/// use relent_core::{
///     Backoff, Budget, Call, CallOptions, Decision, Destination, Draw, Environment, Failure, Instant,
///     Next, Policy,
/// };
///
/// struct Alone(Policy, Draw);
///
/// impl Environment for Alone {
///     type Place = ();
///     type Access = Infallible;
///     type Random = Draw;
///
///     fn policy(&self) -> &Policy {
///         &self.0
///     }
///     fn destination(&self) -> Option<&Destination<Infallible>> {
///         None
///     }
///     fn parts(&mut self) -> (&Policy, Option<&Budget>, &mut Draw) {
///         (&self.0, None, &mut self.1)
///     }
///     fn now(&self) -> Instant {
///         Instant::ORIGIN
///     }
/// }
///
/// let policy = Policy::builder(Backoff::constant(Duration::from_secs(1))).max_retries(1).build()?;
/// let mut alone = Alone(policy, Draw::at(1.0));
/// let mut call = Call::new(CallOptions::new(), &alone);
/// let Next::Start(leave) = call.next(&mut alone, None) else {
///     unreachable!("nobody has to be asked");
/// };
/// let (attempt, _) = call.begin(&mut alone, leave);
/// assert_eq!(attempt.number, 1);
/// let decision = call.failed(&mut alone, &Failure::ambiguous());
/// assert_eq!(decision, Decision::Retry { after: Duration::from_secs(1) });
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Debug)]
pub struct Call<'w, L> {
    session: Session,
    place: L,
    attends: Attends,
    /// Whether it has given up before an attempt, and told so.
    over: bool,
    /// Whether its attempts were all cut off by time.
    timeouts: Timeouts,
    extras: Cold<Box<Extras<'w>>>,
}

/// What a call sees to beside its attempts; what stands later has a part of all before. Most have one
/// comparison for it (design rule 10).
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
enum Attends {
    Nothing,
    Destination,
    /// Its attempts begin by the clock.
    Clock,
    /// What few calls need. Where that is not there yet, it is a trace: most calls end before there is
    /// anything to write down.
    Extras,
}

/// Whether the failures so far were timeouts of attempts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Timeouts {
    None,
    All,
    NotAll,
}

impl<'w, L: Place> Call<'w, L> {
    /// A call whose clock is first read when somebody has to know the time: that is when it begins.
    #[inline]
    pub fn new(options: CallOptions<'w>, environment: &impl Environment<Place = L>) -> Self {
        Self::begun(NOT_YET, options, environment)
    }

    /// A call that began at this instant.
    #[inline]
    pub fn begun(
        at: Instant,
        options: CallOptions<'w>,
        environment: &impl Environment<Place = L>,
    ) -> Self {
        let CallOptions {
            repeatable,
            traced,
            mut extras,
        } = options;
        if let Some(extras) = &mut extras
            && traced
        {
            extras.trace = Some(Trace::new());
        }
        let mut session = Session::new(at, true);
        session.set_repeatable(repeatable);
        let attends = if extras.is_some() || traced {
            Attends::Extras
        } else if environment.policy().needs_time() {
            Attends::Clock
        } else if environment.destination().is_some() {
            Attends::Destination
        } else {
            Attends::Nothing
        };
        Self {
            session,
            place: L::default(),
            attends,
            over: false,
            timeouts: Timeouts::None,
            extras: Cold::new(extras),
        }
    }

    /// See [`Session::set_repeatable`].
    pub const fn set_repeatable(&mut self, repeatable: Repeatable) {
        self.session.set_repeatable(repeatable);
    }

    /// The session, to be looked at.
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

    /// When it began; `None` if its clock has not been read.
    #[must_use]
    pub fn started(&self) -> Option<Instant> {
        let started = self.session.started();
        (started != NOT_YET).then_some(started)
    }

    /// The attempt timeout, if the policy has one and every attempt that failed so far failed by it.
    #[must_use]
    pub fn timed_out<E: Environment<Place = L>>(&self, environment: &E) -> Option<Duration> {
        match self.timeouts {
            Timeouts::All => self.session.attempt_timeout(environment.policy()),
            Timeouts::None | Timeouts::NotAll => None,
        }
    }

    /// Keeps whether only timeouts were seen.
    #[inline]
    const fn note_cause(&mut self, cause: Cause) {
        self.timeouts = match (self.timeouts, cause) {
            (Timeouts::None | Timeouts::All, Cause::Timeout) => Timeouts::All,
            _ => Timeouts::NotAll,
        };
    }

    /// The attempts so far, if a trace was asked for.
    pub fn take_trace(&mut self) -> Option<Trace> {
        self.extras()?.trace.take()
    }

    /// Why the next attempt may not start any more: `max_elapsed` or the deadline has passed. `None`
    /// while it may.
    pub fn too_late<E: Environment<Place = L>>(&mut self, environment: &E) -> Option<StopReason> {
        let now = self.now(environment);
        self.is_late(environment, now)
            .then(|| self.limit_at(environment, now))
    }

    /// Whether this is after the last instant at which an attempt may start. A first attempt that
    /// starts when the call begins is never late.
    #[inline]
    fn is_late<E: Environment<Place = L>>(&self, environment: &E, now: Instant) -> bool {
        now > self.session.started()
            && (now > self.session.last_start(environment.policy())
                || now > self.open_end(environment))
    }

    /// Why no attempt may start at this instant, which is too late for it.
    fn limit_at<E: Environment<Place = L>>(&self, environment: &E, at: Instant) -> StopReason {
        match at > self.open_end(environment) {
            true => StopReason::MaxElapsed,
            false => self.session.limit_at(environment.policy(), at),
        }
    }

    /// How long after its beginning, or its last progress, a call may start an attempt whose caller has set no
    /// limit of time: as long as the gate of its policy says. `None` if there is a limit of time, or no
    /// destination with a gate.
    #[inline]
    pub fn without_deadline<E: Environment<Place = L>>(&self, environment: &E) -> Option<Duration> {
        let policy = environment.policy();
        let (gate, there) = (policy.gate()?, environment.destination()?);
        let is_open = policy.deadline().is_none()
            && policy.max_elapsed().is_none()
            && environment.answer_by() == Instant::MAX
            && !policy.is_off();
        is_open.then(|| gate.without_deadline(there.has_responded()))
    }

    /// The last instant at which an attempt may start because of that.
    #[inline]
    fn open_end<E: Environment<Place = L>>(&self, environment: &E) -> Instant {
        let limit = self.without_deadline(environment);
        limit.map_or(Instant::MAX, |limit| {
            self.session.since().saturating_add(limit)
        })
    }

    /// The time left in which an attempt may start, zero if there is none; `None` for as long as it
    /// takes. For what a transport does beside its waits, such as reading a refused response to its end.
    pub fn room<E: Environment<Place = L>>(&mut self, environment: &E) -> Option<Duration> {
        let now = self.now(environment);
        let last = self.session.last_start(environment.policy());
        let last = last.min(self.open_end(environment));
        (last < Instant::MAX).then(|| last.saturating_since(now))
    }

    /// The time left until the deadline, zero if it has passed; `None` without one.
    pub fn remaining<E: Environment<Place = L>>(&mut self, environment: &E) -> Option<Duration> {
        environment.policy().deadline()?;
        let now = self.now(environment);
        self.session.remaining(environment.policy(), now)
    }

    /// Something happened that makes the backoff begin anew (R4.4). Limits are not moved.
    pub fn reset<E: Environment<Place = L>>(&mut self, environment: &E) {
        let now = self.now(environment);
        self.session.reset(now);
    }

    /// The same while the call waits of its own until `until`. Returns how long it waits from now: never
    /// longer than it would have. See [`Session::hasten`], which is asked once for each wait.
    pub fn hasten<E: Environment<Place = L>>(
        &mut self,
        environment: &mut E,
        until: Instant,
    ) -> Duration {
        let now = self.now(environment);
        let (policy, _, random) = environment.parts();
        let until = self.session.hasten(policy, now, until, random);
        until.saturating_since(now)
    }

    /// Reads the clock; the first reading is when the call began.
    #[inline]
    fn now<E: Environment<Place = L>>(&mut self, environment: &E) -> Instant {
        let now = environment.now();
        if self.session.started() == NOT_YET {
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

/// The same to give back to: what was taken goes back even if a reload has taken the budget away.
#[inline]
fn repaid<E: Environment>(environment: &E) -> Option<&Budget> {
    environment.destination().map(Destination::repaid_budget)
}

/// A stop that keeps the time that the server named.
fn stop_after(now: Instant, failure: &Failure, reason: StopReason) -> Stop {
    let retry_at = failure.hint.delay().map(|delay| now.saturating_add(delay));
    Stop { reason, retry_at }
}

#[cfg(all(test, not(loom)))]
mod tests;
