//! A call with its clock, randomness, destination and observers: what every loop of attempts stands on.

mod admission;
mod builder;
mod hedging;
mod target;

use std::fmt;
use std::ops::Deref;
use std::time::{Duration, SystemTime};

use relent_core::{
    Attempt, Budget, Call, Cause, Failure, Holding, Instant, Policy, Queued, Random, Repeatable,
    StopReason,
};
pub use relent_core::{Decision, Leave, Next, Session, Stop};

use crate::clock::Clock;
use crate::destination::{Destination, Locked};
use crate::observe::Observer;
use crate::random::SessionRandom;

pub use crate::summary::Summary;
pub use builder::DriverBuilder;
pub use target::{ByDestination, NoDestination, PolicyOfCaller, Target, ToDestination};

/// Drives a [`Call`] with a real clock, a random source and a destination, and tells what happens.
///
/// Every loop of Relent stands on this: [`retry`](crate::retry), the blocking form, the HTTP client
/// and the command. Use it to write a loop of your own. Before each attempt it is [asked](Self::enter)
/// for leave; after each it is told how the attempt ended. A driver that is dropped while it waits
/// gives its retry back to the budget (design rule 12).
///
/// ```
/// use relent::{Failure, Policy};
/// use relent::clock::StdClock;
/// use relent::driver::{Decision, Driver, Next};
///
/// let mut driver = Driver::builder(Policy::STANDARD, StdClock).start();
/// let Next::Start(leave) = driver.enter(None) else {
///     unreachable!("without a destination nothing holds it back");
/// };
/// let attempt = driver.on_attempt(leave);
/// assert_eq!(attempt.number, 1);
/// match driver.on_failure(&Failure::ambiguous()) {
///     Decision::Retry { after } => assert!(after.as_millis() <= 100),
///     Decision::Stop(stop) => unreachable!("{}", stop.reason),
/// }
/// ```
///
/// Policy and destination are borrowed unless it is built by [`shared`](Self::shared), which holds an
/// `Arc` of each: for futures that may not borrow, such as those of a tower service.
pub struct Driver<'p, K, R = SessionRandom, P = &'p Policy, D = NoDestination>
where
    K: Clock,
    R: Random,
    P: Deref<Target = Policy>,
    D: Target,
{
    call: Call<'p, D::Place>,
    environment: Environment<K, R, P, D>,
}

/// What the call decides by, and whom it tells.
struct Environment<K, R, P, D> {
    policy: P,
    target: D,
    clock: K,
    random: R,
    observer: Observer,
}

impl<K, R, P, D> relent_core::Environment for Environment<K, R, P, D>
where
    K: Clock,
    R: Random,
    P: Deref<Target = Policy>,
    D: Target,
{
    type Place = D::Place;
    type Access = Locked;
    type Random = R;

    #[inline]
    fn policy(&self) -> &Policy {
        match self.target.policy() {
            Some(policy) => policy,
            None => &self.policy,
        }
    }

    #[inline]
    fn destination(&self) -> Option<&relent_core::Destination<Locked>> {
        self.target.shared()
    }

    #[inline]
    fn parts(&mut self) -> (&Policy, Option<&Budget>, &mut R) {
        let budget = self.target.destination().and_then(Destination::budget);
        let policy = match self.target.policy() {
            Some(policy) => policy,
            None => &*self.policy,
        };
        (policy, budget, &mut self.random)
    }

    #[inline]
    fn now(&self) -> Instant {
        self.clock.now()
    }

    #[inline]
    fn on_queued(&self, queued: &Queued) {
        self.observer.on_queued(queued, self.target.destination());
    }

    #[inline]
    fn on_attempt(&self, number: u32) {
        self.observer.on_attempt(number);
    }

    #[inline]
    fn on_hedge(&self) {
        self.observer.on_hedge();
    }

    #[inline]
    fn on_failure(&self, failure: &Failure) {
        self.observer.on_failure(failure);
    }

    #[inline]
    fn on_decision(&self, attempt: u32, failure: &Failure, decision: &Decision) {
        let there = self.target.destination();
        self.observer.on_decision(attempt, failure, decision, there);
    }

    #[inline]
    fn on_stop(&self, attempts: u32, failure: Option<&Failure>, reason: StopReason) {
        let there = self.target.destination();
        self.observer.on_stop(attempts, failure, reason, there);
    }

    #[inline]
    fn on_budget(&self) {
        #[cfg(feature = "metrics")]
        if let Some(budget) = self.target.destination().and_then(Destination::budget) {
            self.observer.on_budget(budget);
        }
    }

    #[inline]
    fn on_cooldown(&self) {
        self.observer.on_cooldown();
    }

    #[inline]
    fn on_admission(
        &self,
        before: Option<(Holding, Duration)>,
        after: Option<Holding>,
        now: Option<Instant>,
    ) {
        let Some(destination) = self.target.destination() else {
            return;
        };
        if let Some(state) = destination.gate_change() {
            self.observer.on_gate(state, Some(destination));
        }
        #[cfg(feature = "metrics")]
        {
            if let Some(now) = now
                && let Some(rate) = destination.request_rate(now)
            {
                self.observer.on_request_rate(rate);
            }
            let by = before.map(|(by, _)| by);
            if by != after {
                let held = now.and(before).map(|(_, held)| held);
                self.observer.on_held(by, held, after);
            }
        }
        let _ = (before, after, now);
    }
}

impl<K, R, P, D> Driver<'_, K, R, P, D>
where
    K: Clock,
    R: Random,
    P: Deref<Target = Policy>,
    D: Target,
{
    /// The attempt starts that has leave. Reads the clock only if the policy or a trace needs it (design
    /// rule 10).
    #[inline]
    pub fn on_attempt(&mut self, leave: Leave) -> Attempt {
        self.begin_attempt(leave).0
    }

    /// The same, with the instant at which the attempt is cut off.
    #[inline]
    pub fn begin_attempt(&mut self, leave: Leave) -> (Attempt, Option<Instant>) {
        self.call.begin(&mut self.environment, leave)
    }

    /// Whether the operation may run twice without harm, in place of what the builder was told: for a
    /// caller that finds it out when an attempt has failed, since most do not fail. To be said before
    /// the failure. A `bool` is the caller's word, which no policy overrules; see [`Repeatable`].
    ///
    /// ```
    /// use relent::{Failure, Policy, StopReason};
    /// use relent::clock::StdClock;
    /// use relent::driver::{Driver, Next};
    ///
    /// let mut driver = Driver::builder(Policy::STANDARD, StdClock).start();
    /// if let Next::Start(leave) = driver.enter(None) {
    ///     driver.on_attempt(leave);
    ///     driver.set_repeatable(false);
    ///     let stop = driver.on_failure(&Failure::ambiguous()).stop();
    ///     assert_eq!(stop.map(|stop| stop.reason), Some(StopReason::NotRepeatable));
    /// }
    /// ```
    pub fn set_repeatable(&mut self, repeatable: impl Into<Repeatable>) {
        self.call.set_repeatable(repeatable.into());
    }

    /// The operation succeeded.
    #[inline]
    pub fn on_success(&mut self) {
        self.call.succeeded(&mut self.environment);
    }

    /// The same where nobody asks for the [summary](Self::summary): a success is not written down in the
    /// trace.
    #[inline]
    pub(crate) fn on_success_unseen(&mut self) {
        self.call.succeeded_unseen(&mut self.environment);
    }

    /// The same, with what was seen of the success, for the trace: a status, an exit status.
    #[inline]
    pub fn on_success_with(&mut self, seen: Cause) {
        self.call.succeeded_with(&mut self.environment, seen);
    }

    /// The attempt failed: retry after a wait, or stop?
    #[inline]
    pub fn on_failure(&mut self, failure: &Failure) -> Decision {
        self.call.failed(&mut self.environment, failure)
    }

    /// The same where the driver's own caller may be unable to make use of a retry, for a reason that
    /// the policy cannot know, such as [`StopReason::NotReplayable`]. It is asked only if there would
    /// be a retry, so the policy's own reason to stop stands: what is permanent is not called "not
    /// replayable".
    ///
    /// ```
    /// use relent::{Failure, Policy, StopReason};
    /// use relent::clock::StdClock;
    /// use relent::driver::{Driver, Next};
    ///
    /// let mut driver = Driver::builder(Policy::STANDARD, StdClock).start();
    /// if let Next::Start(leave) = driver.enter(None) {
    ///     driver.on_attempt(leave);
    ///     let unable = || Some(StopReason::NotReplayable);
    ///     let stop = driver.on_failure_unless(&Failure::ambiguous(), unable).stop();
    ///     assert_eq!(stop.map(|stop| stop.reason), Some(StopReason::NotReplayable));
    /// }
    /// ```
    pub fn on_failure_unless(
        &mut self,
        failure: &Failure,
        unable: impl FnOnce() -> Option<StopReason>,
    ) -> Decision {
        self.call
            .failed_unless(&mut self.environment, failure, unable)
    }

    /// The same as [`on_failure`](Self::on_failure) with a wait of the caller's own in place of the
    /// policy's backoff; `None` says that there is no other. Ceiling, jitter, hints and limits of the
    /// policy apply as ever.
    pub fn on_failure_with(&mut self, failure: &Failure, own: Option<Duration>) -> Decision {
        self.call.failed_with(&mut self.environment, failure, own)
    }

    /// The driver's own caller ends the call after a failure, for a reason that the policy cannot
    /// know, such as [`StopReason::NotReplayable`].
    pub fn on_stop(&mut self, failure: &Failure, reason: StopReason) -> Stop {
        self.call
            .failed_for_good(&mut self.environment, failure, reason)
    }

    /// The caller goes away. A retry that was granted but not started is given back.
    pub fn on_cancel(&mut self) -> Stop {
        self.call.cancel(&mut self.environment)
    }

    /// The driver's own caller cannot make use of the retry after all, for a reason that the policy
    /// cannot know and that showed only after the wait. It is given back. What is known before the
    /// wait is for [`on_failure_unless`](Self::on_failure_unless).
    ///
    /// ```
    /// use relent::{Failure, Policy, StopReason};
    /// use relent::clock::StdClock;
    /// use relent::driver::{Decision, Driver, Next};
    ///
    /// let mut driver = Driver::builder(Policy::STANDARD, StdClock).start();
    /// if let Next::Start(leave) = driver.enter(None) {
    ///     driver.on_attempt(leave);
    ///     let failure = Failure::ambiguous();
    ///     if let Decision::Retry { .. } = driver.on_failure(&failure) {
    ///         let stop = driver.on_declined(&failure, StopReason::NotReplayable);
    ///         assert_eq!(stop.reason, StopReason::NotReplayable);
    ///     }
    /// }
    /// ```
    pub fn on_declined(&mut self, failure: &Failure, reason: StopReason) -> Stop {
        self.call.decline(&mut self.environment, failure, reason)
    }

    /// Something happened that makes the backoff begin anew (R4.4). Limits are not moved.
    pub fn reset(&mut self) {
        self.call.reset(&self.environment);
    }

    /// The same while the call waits of its own until `until`. Returns how long it waits from now:
    /// never longer than it would have. See [`Session::hasten`](crate::driver::Session::hasten), which is asked once for each wait.
    pub fn hasten(&mut self, until: Instant) -> Duration {
        self.call.hasten(&mut self.environment, until)
    }

    /// The running attempt has brought the operation on for good, though it fails: the count of
    /// retries and the backoff begin anew, and limits of time hold. Its destination is up: the failure
    /// that follows is no sign against it. To be said before the failure; see
    /// [`Session::on_progress`](crate::driver::Session::on_progress).
    ///
    /// ```
    /// use relent::{Failure, Policy};
    /// use relent::clock::StdClock;
    /// use relent::driver::{Decision, Driver, Next};
    /// use relent::failure::Progress;
    ///
    /// let policy = Policy::STANDARD.clone().into_builder().max_retries(1).build()?;
    /// let mut driver = Driver::builder(&policy, StdClock).start();
    /// let (mut progress, total) = (Progress::new(0), Some(5 << 20));
    /// for mebibytes in 1..5 {
    ///     let Next::Start(leave) = driver.enter(None) else {
    ///         unreachable!("without a destination nothing holds it back");
    ///     };
    ///     driver.on_attempt(leave);
    ///     if progress.reached(mebibytes << 20, total) {
    ///         driver.on_progress();
    ///     }
    ///     let decision = driver.on_failure(&Failure::ambiguous());
    ///     assert!(matches!(decision, Decision::Retry { .. }));
    /// }
    /// # Ok::<(), relent::policy::PolicyError>(())
    /// ```
    pub fn on_progress(&mut self) {
        self.call.progressed(&mut self.environment);
    }

    /// A call of this driver was redirected to another destination, and began there at this instant:
    /// tells that destination how it ended. A `failure` of `None` is a success. Without the instant only
    /// its cooldown and its request rate hear of it, and not its gate, which would learn of failures
    /// where successes are not told.
    ///
    /// The call keeps its leave, and its budget pays. To be said before
    /// [`on_failure`](Self::on_failure), whose failure has [`Hop::Elsewhere`](relent_core::Hop) then,
    /// or before [`on_success`](Self::on_success).
    ///
    /// ```
    /// use std::time::Duration;
    /// use relent::{Destination, Failure, Hint, Policy};
    /// use relent::clock::{Clock, StdClock};
    /// use relent::driver::{Driver, Next};
    /// use relent::failure::Hop;
    ///
    /// let (asked, answered) = (Destination::new(Policy::STANDARD), Destination::new(Policy::STANDARD));
    /// let mut driver = Driver::builder(Policy::STANDARD, StdClock).destination(&asked).start();
    /// let Next::Start(leave) = driver.enter(None) else {
    ///     unreachable!("the destination is new");
    /// };
    /// driver.on_attempt(leave);
    /// let redirected = Some(driver.clock().now());
    /// let busy = Failure::throttled().hint(Hint::after(Duration::from_secs(2)));
    /// driver.on_elsewhere(&answered, redirected, Some(&busy));
    /// driver.on_failure(&busy.hop(Hop::Elsewhere));
    /// assert!(answered.cooldown().has_begun() && !asked.cooldown().has_begun());
    /// ```
    #[cold]
    pub fn on_elsewhere(
        &mut self,
        there: &Destination,
        since: Option<Instant>,
        failure: Option<&Failure>,
    ) {
        self.call
            .elsewhere(&mut self.environment, &there.core, since, failure);
    }

    /// The time left until the deadline, zero if it has passed; `None` without one.
    pub fn remaining(&mut self) -> Option<Duration> {
        self.call.remaining(&self.environment)
    }

    /// The time left in which an attempt may start, zero if there is none; `None` for as long as it
    /// takes. For what a loop does beside its waits, such as reading a refused response to its end.
    pub fn room(&mut self) -> Option<Duration> {
        self.call.room(&self.environment)
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        relent_core::Environment::policy(&self.environment)
    }

    /// The destination, if it goes to one.
    #[must_use]
    pub fn destination(&self) -> Option<&Destination> {
        self.environment.target.destination()
    }

    /// The clock.
    #[must_use]
    pub const fn clock(&self) -> &K {
        &self.environment.clock
    }

    /// The random source.
    pub const fn random_mut(&mut self) -> &mut R {
        &mut self.environment.random
    }

    /// Attempts started so far.
    #[inline]
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.call.attempts()
    }

    /// How the call ended: with this stop, or with a success. Takes the trace with it.
    pub fn summary(&mut self, stop: Option<Stop>) -> Summary {
        let limit = self.call.without_deadline(&self.environment);
        let by_limit = stop.is_some_and(|stop| {
            let (gate, time) = (StopReason::Gate, StopReason::MaxElapsed);
            stop.reason == gate || stop.reason == time || stop.reason == StopReason::RetryLater
        });
        let elapsed = match self.call.started() {
            None => Duration::ZERO,
            Some(began) => self.environment.clock.now().saturating_since(began),
        };
        Summary {
            attempts: self.call.attempts(),
            elapsed,
            reason: stop.map(|stop| stop.reason),
            retry_at: stop
                .and_then(|stop| stop.retry_at)
                .map(|at| self.wall_of(at)),
            timed_out: stop.and_then(|_| self.call.timed_out(&self.environment)),
            without_deadline: limit.filter(|_| by_limit),
            trace: self.call.take_trace(),
        }
    }

    /// Where an instant of this driver lies on the wall.
    pub fn wall_of(&self, instant: Instant) -> SystemTime {
        let clock = &self.environment.clock;
        let ahead = instant.saturating_since(clock.now());
        let wall = clock.wall();
        wall.checked_add(ahead).unwrap_or(wall)
    }
}

impl<K, R, P, D> Drop for Driver<'_, K, R, P, D>
where
    K: Clock,
    R: Random,
    P: Deref<Target = Policy>,
    D: Target,
{
    #[inline]
    fn drop(&mut self) {
        self.call.leave(&self.environment);
    }
}

impl<K, R, P, D> fmt::Debug for Driver<'_, K, R, P, D>
where
    K: Clock,
    R: Random,
    P: Deref<Target = Policy>,
    D: Target,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("session", self.call.session())
            .finish_non_exhaustive()
    }
}
