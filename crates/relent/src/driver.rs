//! A session with its clock, randomness, destination and trace: what every loop of attempts stands on.

mod builder;
mod enter;
mod goes;
mod race;
mod visit;

use std::fmt;
use std::ops::Deref;
use std::time::{Duration, SystemTime};

use relent_core::{
    Budget, Cause, Decision, Ended, Failure, Instant, Policy, Random, Repeatable, Session, Stop,
    StopReason, Trace, TraceEntry,
};

use crate::clock::Clock;
use crate::destination::Destination;
use crate::observe::Observer;
use crate::random::SessionRandom;
use crate::seldom::Seldom;

pub use builder::DriverBuilder;
pub use enter::Entry;
pub use goes::{Goes, Nowhere, To};
pub use race::Racer;
use visit::{Stage, Visit};

/// What an operation may know about the attempt that it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attempt {
    /// The number of the attempt; the first is 1.
    pub number: u32,
    /// The time left until the deadline of the whole session; `None` without one.
    pub remaining: Option<Duration>,
    /// How long this attempt may run, the deadline included; `None` for as long as it takes.
    pub limit: Option<Duration>,
}

/// How a session ended: what every result carries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// The number of attempts.
    pub attempts: u32,
    /// How long it took. With a policy that has no time limit, the clock is first read when an
    /// attempt has failed (design rule 10), and this counts from there unless a trace was asked
    /// for.
    pub elapsed: Duration,
    /// Why it gave up; `None` for a success.
    pub reason: Option<StopReason>,
    /// When the server said that coming back makes sense, if it did.
    pub retry_at: Option<SystemTime>,
    /// Every attempt, if a trace was asked for.
    pub trace: Option<Trace>,
}

/// Drives a [`Session`] with a real clock, a random source, a destination and a trace.
///
/// Every loop of Relent stands on this: [`retry`](crate::retry), the blocking form, the HTTP client
/// and the command. Use it to write a loop of your own. A driver that is dropped while it waits
/// gives its retry back to the budget (design rule 12).
///
/// ```
/// use relent::{Decision, Driver, Failure, Policy, StdClock};
///
/// let mut driver = Driver::builder(Policy::STANDARD, StdClock).start();
/// let attempt = driver.on_attempt();
/// assert_eq!(attempt.number, 1);
/// match driver.on_failure(&Failure::ambiguous()) {
///     Decision::Retry { after } => assert!(after.as_millis() <= 100),
///     Decision::Stop(stop) => unreachable!("{}", stop.reason),
/// }
/// ```
///
/// Policy and destination are borrowed unless it is built by [`shared`](Self::shared), which holds an
/// `Arc` of each: for futures that may not borrow, such as those of a tower service.
pub struct Driver<'p, K, R = SessionRandom, P = &'p Policy, D = Nowhere>
where
    K: Clock,
    R: Random,
    P: Deref<Target = Policy>,
    D: Goes,
{
    policy: P,
    to: D,
    /// Whether an attempt that succeeds has anything to tell: to a clock, a destination or a trace.
    /// The rest pays for one comparison (design rule 10).
    attended: bool,
    silent: bool,
    /// Whether the failure that decides has been counted: the earlier of a race.
    counted: bool,
    clock: K,
    random: R,
    /// Begins at [`NOT_YET`], and anew when the clock is first read.
    session: Session,
    extras: Seldom<Box<Extras<'p>>>,
    observer: Observer,
}

/// When a session begins whose clock has not been read.
const NOT_YET: Instant = Instant::MAX;

/// What few sessions need, out of the way of those that do not.
#[derive(Default)]
struct Extras<'p> {
    trace: Option<Trace>,
    /// The attempt of which an outcome is told next: the last that started, unless several run.
    attempt: u32,
    attempt_started: Instant,
    /// How it failed, if another failure decides.
    seen: Option<Failure>,
    waits: Option<Box<dyn Iterator<Item = Duration> + Send + 'p>>,
}

impl<'p, K: Clock> Driver<'p, K> {
    /// Begins a driver for one repeatable operation, with a random stream of its own.
    #[inline]
    pub const fn builder(policy: &'p Policy, clock: K) -> DriverBuilder<'p, K> {
        DriverBuilder::new(policy, Nowhere, clock)
    }
}

impl<'p, K, P, D> Driver<'p, K, SessionRandom, P, To<D>>
where
    K: Clock,
    P: Deref<Target = Policy>,
    D: Deref<Target = Destination>,
{
    /// The same as [`builder`](Driver::builder), with shares in policy and destination in place of
    /// borrowing them.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use relent::{Destination, Driver, Policy, StdClock};
    ///
    /// let policy = Arc::new(Policy::STANDARD.clone());
    /// let there = Some(Arc::new(Destination::new(&policy)));
    /// let mut driver = Driver::shared(policy, there, StdClock).start();
    /// assert_eq!(driver.on_attempt().number, 1);
    /// ```
    #[inline]
    pub const fn shared(
        policy: P,
        destination: Option<D>,
        clock: K,
    ) -> DriverBuilder<'p, K, SessionRandom, P, To<D>> {
        DriverBuilder::new(policy, To::new(destination), clock)
    }
}

impl<K, R, P, D> Driver<'_, K, R, P, D>
where
    K: Clock,
    R: Random,
    P: Deref<Target = Policy>,
    D: Goes,
{
    /// An attempt starts. Reads the clock only if the policy or a trace needs it (design rule 10).
    #[inline]
    pub fn on_attempt(&mut self) -> Attempt {
        self.begin_attempt().0
    }

    /// The same, with the instant at which the attempt is cut off.
    #[inline]
    pub fn begin_attempt(&mut self) -> (Attempt, Option<Instant>) {
        let number = self.session.on_attempt();
        if !self.silent {
            self.observer.on_attempt(number);
        }
        if self.attended {
            if self.to.destination().is_some() {
                self.start_visit();
            }
            if self.policy.needs_time() || self.extras.is_some() {
                return self.begin_timed(number);
            }
        }
        let attempt = Attempt {
            number,
            remaining: None,
            limit: None,
        };
        (attempt, None)
    }

    #[inline(never)]
    fn begin_timed(&mut self, number: u32) -> (Attempt, Option<Instant>) {
        let now = match self.to.visit() {
            // It has just been looked at.
            Some(Visit {
                stage: Stage::Permitted(permit),
                ..
            }) => permit.started(),
            _ => self.now(),
        };
        if let Some(extras) = &mut *self.extras {
            extras.attempt = self.session.attempts();
            extras.attempt_started = now;
        }
        let limit = self.session.attempt_limit(&self.policy, now);
        let attempt = Attempt {
            number,
            remaining: self.session.remaining(&self.policy, now),
            limit,
        };
        (attempt, limit.map(|limit| now.saturating_add(limit)))
    }

    /// Whether the operation may run twice without harm, in place of what the builder was told: for a
    /// caller that finds it out when an attempt has failed, since most do not fail. To be said before
    /// the failure. A `bool` is the caller's word, which no policy overrules; see [`Repeatable`].
    ///
    /// ```
    /// use relent::{Driver, Failure, Policy, StdClock, StopReason};
    ///
    /// let mut driver = Driver::builder(Policy::STANDARD, StdClock).start();
    /// driver.on_attempt();
    /// driver.set_repeatable(false);
    /// let stop = driver.on_failure(&Failure::ambiguous()).stop();
    /// assert_eq!(stop.map(|stop| stop.reason), Some(StopReason::NotRepeatable));
    /// ```
    pub fn set_repeatable(&mut self, repeatable: impl Into<Repeatable>) {
        self.session.set_repeatable(repeatable.into());
    }

    /// The operation succeeded.
    #[inline]
    pub fn on_success(&mut self) {
        if self.attended {
            self.session.on_success(budget(&self.to));
            if self.to.destination().is_some() {
                self.end_visit(Ended::Answered);
            }
            if self.extras.is_some() {
                self.record_success();
            }
        }
    }

    /// The same, with what was seen of the success, for the trace: a status, an exit status.
    pub fn on_success_with(&mut self, seen: Cause) {
        self.on_success();
        let trace = self
            .extras
            .as_mut()
            .and_then(|extras| extras.trace.as_mut());
        if let Some(last) = trace.and_then(Trace::last_mut) {
            last.seen = Some(seen);
        }
    }

    #[cold]
    fn record_success(&mut self) {
        let now = self.now();
        self.record(now, None, None);
    }

    /// The attempt failed: retry after a wait, or stop?
    #[inline]
    pub fn on_failure(&mut self, failure: &Failure) -> Decision {
        if self.extras.is_some() {
            return self.on_failure_with_extras(failure);
        }
        // The short path: it goes into the caller's own loop.
        let seen;
        let failure = if failure.as_if_in_progress {
            seen = self.session.in_view_of_earlier(*failure);
            &seen
        } else {
            failure
        };
        let now = self.now();
        if self.to.destination().is_some() {
            self.failed_there(now, failure);
        }
        let (policy, budget) = (&*self.policy, budget(&self.to));
        let random = &mut self.random;
        let decision = self
            .session
            .on_failure(policy, now, failure, random, budget);
        self.tell(failure, &decision);
        decision
    }

    /// The same where the driver's own caller may be unable to make use of a retry, for a reason that
    /// the policy cannot know, such as [`StopReason::NotReplayable`]. It is asked only if there would
    /// be a retry, so the policy's own reason to stop stands: what is permanent is not called "not
    /// replayable".
    ///
    /// ```
    /// use relent::{Driver, Failure, Policy, StdClock, StopReason};
    ///
    /// let mut driver = Driver::builder(Policy::STANDARD, StdClock).start();
    /// driver.on_attempt();
    /// let unable = || Some(StopReason::NotReplayable);
    /// let stop = driver.on_failure_unless(&Failure::ambiguous(), unable).stop();
    /// assert_eq!(stop.map(|stop| stop.reason), Some(StopReason::NotReplayable));
    /// ```
    pub fn on_failure_unless(
        &mut self,
        failure: &Failure,
        unable: impl FnOnce() -> Option<StopReason>,
    ) -> Decision {
        let failure = &self.session.in_view_of_earlier(*failure);
        let now = self.now();
        if self.to.destination().is_some() {
            self.failed_there(now, failure);
        }
        let mut decision = self.decide(now, failure);
        if let Decision::Retry { .. } = decision
            && let Some(reason) = unable()
        {
            self.session.on_cancel(budget(&self.to));
            decision = Decision::Stop(stop_after(now, failure, reason));
        }
        self.decided(now, failure, decision);
        decision
    }

    /// The same as [`on_failure`](Self::on_failure) with a wait of the caller's own in place of the
    /// policy's backoff; `None` says that there is no other. Ceiling, jitter, hints and limits of the
    /// policy apply as ever.
    pub fn on_failure_with(&mut self, failure: &Failure, own: Option<Duration>) -> Decision {
        let failure = &self.session.in_view_of_earlier(*failure);
        let now = self.now();
        self.failed_there(now, failure);
        let decision = self.decide_with(now, failure, own);
        self.decided(now, failure, decision);
        decision
    }

    #[cold]
    #[inline(never)]
    fn on_failure_with_extras(&mut self, failure: &Failure) -> Decision {
        let failure = &self.session.in_view_of_earlier(*failure);
        let now = self.now();
        self.failed_there(now, failure);
        let decision = self.decide(now, failure);
        self.decided(now, failure, decision);
        decision
    }

    #[cold]
    #[inline(never)]
    fn decide(&mut self, now: Instant, failure: &Failure) -> Decision {
        let waits = self
            .extras
            .as_mut()
            .and_then(|extras| extras.waits.as_mut());
        if let Some(waits) = waits {
            let own = waits.next();
            return self.decide_with(now, failure, own);
        }
        let (policy, budget) = (&*self.policy, budget(&self.to));
        let random = &mut self.random;
        self.session
            .on_failure(policy, now, failure, random, budget)
    }

    fn decide_with(&mut self, now: Instant, failure: &Failure, own: Option<Duration>) -> Decision {
        let (policy, budget) = (&*self.policy, budget(&self.to));
        let random = &mut self.random;
        self.session
            .on_failure_with(policy, now, failure, own, random, budget)
    }

    /// Writes a decision down, and tells of it.
    fn decided(&mut self, now: Instant, failure: &Failure, decision: Decision) {
        self.record(now, Some(*failure), Some(decision));
        self.tell(failure, &decision);
    }

    #[inline]
    fn tell(&self, failure: &Failure, decision: &Decision) {
        if self.silent {
            return;
        }
        if !self.counted {
            self.observer.on_failure(failure);
        }
        self.observer
            .on_decision(self.session.attempts(), failure, decision);
        if let Some(budget) = budget(&self.to) {
            self.observer.on_budget(budget);
        }
    }

    /// The driver's own caller ends the session after a failure, for a reason that the policy
    /// cannot know, such as [`StopReason::NotReplayable`].
    pub fn on_stop(&mut self, failure: &Failure, reason: StopReason) -> Stop {
        let now = self.now();
        self.failed_there(now, failure);
        let stop = stop_after(now, failure, reason);
        self.decided(now, failure, Decision::Stop(stop));
        stop
    }

    /// The caller goes away. A retry that was granted but not started is given back.
    pub fn on_cancel(&mut self) -> Stop {
        let stop = Stop {
            reason: StopReason::Cancelled,
            retry_at: None,
        };
        self.give_back(None, stop)
    }

    /// The driver's own caller cannot make use of the retry after all, for a reason that the policy
    /// cannot know and that showed only after the wait. It is given back. What is known before the
    /// wait is for [`on_failure_unless`](Self::on_failure_unless).
    ///
    /// ```
    /// use relent::{Decision, Driver, Failure, Policy, StdClock, StopReason};
    ///
    /// let mut driver = Driver::builder(Policy::STANDARD, StdClock).start();
    /// driver.on_attempt();
    /// let failure = Failure::ambiguous();
    /// if let Decision::Retry { .. } = driver.on_failure(&failure) {
    ///     let stop = driver.on_declined(&failure, StopReason::NotReplayable);
    ///     assert_eq!(stop.reason, StopReason::NotReplayable);
    /// }
    /// ```
    pub fn on_declined(&mut self, failure: &Failure, reason: StopReason) -> Stop {
        let now = self.now();
        self.give_back(Some(failure), stop_after(now, failure, reason))
    }

    fn give_back(&mut self, failure: Option<&Failure>, stop: Stop) -> Stop {
        self.end_visit(Ended::Unknown);
        self.session.on_cancel(budget(&self.to));
        if !self.silent {
            let attempts = self.session.attempts();
            self.observer.on_stop(attempts, failure, stop.reason);
            if let Some(budget) = budget(&self.to) {
                self.observer.on_budget(budget);
            }
        }
        let trace = self
            .extras
            .as_mut()
            .and_then(|extras| extras.trace.as_mut());
        if let Some(last) = trace.and_then(Trace::last_mut) {
            last.decision = Some(Decision::Stop(stop));
        }
        stop
    }

    /// Something happened that makes the backoff begin anew (R4.4). Limits are not moved.
    pub fn reset(&mut self) {
        let now = self.now();
        self.session.reset(now);
    }

    /// The running attempt has brought the operation on for good, though it fails: the count of
    /// retries and the backoff begin anew, and limits of time hold. Its destination is up: the failure
    /// that follows is no sign against it. To be said before the failure; see
    /// [`Session::on_progress`].
    ///
    /// ```
    /// use relent::{Decision, Driver, Failure, Policy, Progress, StdClock};
    ///
    /// let policy = Policy::STANDARD.clone().into_builder().max_retries(1).build()?;
    /// let mut driver = Driver::builder(&policy, StdClock).start();
    /// let (mut progress, total) = (Progress::new(0), Some(5 << 20));
    /// for mebibytes in 1..5 {
    ///     driver.on_attempt();
    ///     if progress.reached(mebibytes << 20, total) {
    ///         driver.on_progress();
    ///     }
    ///     let decision = driver.on_failure(&Failure::ambiguous());
    ///     assert!(matches!(decision, Decision::Retry { .. }));
    /// }
    /// # Ok::<(), relent::PolicyError>(())
    /// ```
    pub fn on_progress(&mut self) {
        let now = self.now();
        self.on_answered();
        self.session.on_progress(now, budget(&self.to));
    }

    /// The same while the session waits of its own until `until`. Returns how long it waits from now:
    /// never longer than it would have. See [`Session::hasten`], which is asked once for each wait.
    pub fn hasten(&mut self, until: Instant) -> Duration {
        let now = self.now();
        let random = &mut self.random;
        let until = self.session.hasten(&self.policy, now, until, random);
        until.saturating_since(now)
    }

    /// The time left until the deadline, zero if it has passed; `None` without one.
    pub fn remaining(&mut self) -> Option<Duration> {
        self.policy.deadline()?;
        let now = self.now();
        self.session.remaining(&self.policy, now)
    }

    /// The time left in which an attempt may start, zero if there is none; `None` for as long as it
    /// takes. For what a loop does beside its waits, such as reading a refused response to its end.
    pub fn room(&mut self) -> Option<Duration> {
        let now = self.now();
        let last = self.session.last_start(&self.policy);
        (last < Instant::MAX).then(|| last.saturating_since(now))
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The destination, if it goes to one.
    #[must_use]
    pub fn destination(&self) -> Option<&Destination> {
        self.to.destination()
    }

    /// The clock.
    #[must_use]
    pub const fn clock(&self) -> &K {
        &self.clock
    }

    /// The random source.
    pub const fn random_mut(&mut self) -> &mut R {
        &mut self.random
    }

    /// Attempts started so far.
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.session.attempts()
    }

    /// How the session ended: with this stop, or with a success. Takes the trace with it.
    pub fn summary(&mut self, stop: Option<Stop>) -> Summary {
        let elapsed = match self.session.started() {
            NOT_YET => Duration::ZERO,
            began => self.clock.now().saturating_since(began),
        };
        Summary {
            attempts: self.session.attempts(),
            elapsed,
            reason: stop.map(|stop| stop.reason),
            retry_at: stop
                .and_then(|stop| stop.retry_at)
                .map(|at| self.wall_of(at)),
            trace: self.extras.as_mut().and_then(|extras| extras.trace.take()),
        }
    }

    /// Where an instant of this driver lies on the wall.
    pub fn wall_of(&self, instant: Instant) -> SystemTime {
        let ahead = instant.saturating_since(self.clock.now());
        let wall = self.clock.wall();
        wall.checked_add(ahead).unwrap_or(wall)
    }

    /// Reads the clock; the first reading is when the session began.
    #[inline]
    fn now(&mut self) -> Instant {
        let now = self.clock.now();
        if self.session.started() == NOT_YET {
            self.session.begin(now);
        }
        now
    }

    fn record(&mut self, ended: Instant, failure: Option<Failure>, decision: Option<Decision>) {
        if let Some(extras) = &mut *self.extras
            && let Some(trace) = &mut extras.trace
        {
            let (attempt, started) = (extras.attempt, extras.attempt_started);
            let failure = extras.seen.take().or(failure);
            trace.push(TraceEntry {
                attempt,
                started,
                ended,
                seen: failure.map(|failure| failure.cause),
                failure,
                decision,
            });
        }
    }
}

/// A stop that keeps the time that the server named.
fn stop_after(now: Instant, failure: &Failure, reason: StopReason) -> Stop {
    let retry_at = failure.hint.delay().map(|delay| now.saturating_add(delay));
    Stop { reason, retry_at }
}

/// The budget of the destination.
#[inline]
fn budget<D: Goes>(to: &D) -> Option<&Budget> {
    to.destination().and_then(Destination::budget)
}

impl<K, R, P, D> Drop for Driver<'_, K, R, P, D>
where
    K: Clock,
    R: Random,
    P: Deref<Target = Policy>,
    D: Goes,
{
    #[inline]
    fn drop(&mut self) {
        if self.to.destination().is_some() && (self.session.holds() || !self.has_left()) {
            self.leave();
        }
    }
}

impl<K, R, P, D> fmt::Debug for Driver<'_, K, R, P, D>
where
    K: Clock,
    R: Random,
    P: Deref<Target = Policy>,
    D: Goes,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}
