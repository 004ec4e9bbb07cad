//! The driver: a call with its clock, random source, destination and observers. Every retry loop
//! uses it.

mod admission;
mod builder;
mod handle;
mod hedging;

use std::fmt;
use std::time::{Duration, SystemTime};

use relent_core::call::{Call, Queued};
pub use relent_core::call::{CallPermit, NextStep};
use relent_core::destination::{BlockedBy, Budget};
use relent_core::{Attempt, Cause, Failure, Instant, Policy, Repeatable, StopReason};
pub use relent_core::{Decision, Session, Stop};

use crate::clock::Clock;
use crate::destination::{Destination, LockedState};
use crate::observe::Observer;
use crate::random::RandomSource;
use handle::Handle;

pub use crate::summary::Summary;
pub use builder::DriverBuilder;

/// Drives a [`Call`] with a real clock, a random source and a destination, and reports events and
/// metrics.
///
/// Every loop of Relent uses it: [`retry`](crate::retry), the blocking form, the HTTP client and
/// the command. Use it to write your own loop: [request a permit](Self::enter) before each attempt,
/// and report the outcome after it. A driver that is dropped while it waits returns its retry to
/// the budget.
///
/// ```
/// use relent::{Failure, Policy};
/// use relent::clock::StdClock;
/// use relent::driver::{Decision, Driver, NextStep};
///
/// let mut driver = Driver::builder(Policy::STANDARD, StdClock).start();
/// let NextStep::Start(permit) = driver.enter(None) else {
///     unreachable!("without a destination nothing holds it back");
/// };
/// let attempt = driver.on_attempt(permit);
/// assert_eq!(attempt.number, 1);
/// match driver.on_failure(&Failure::ambiguous()) {
///     Decision::Retry { after } => assert!(after.as_millis() <= 100),
///     Decision::Stop(stop) => unreachable!("{}", stop.reason),
/// }
/// ```
///
/// Policy and destination are borrowed unless [`shared`](Self::shared) builds the driver, which
/// holds an `Arc` of each: for futures that cannot borrow, such as those of a tower service.
pub struct Driver<'p, K: Clock> {
    call: Call<'p>,
    environment: Environment<'p, K>,
}

/// The environment of the call: the inputs of its decisions, and the observer.
struct Environment<'p, K> {
    policy: Handle<'p, Policy>,
    destination: Option<Handle<'p, Destination>>,
    clock: K,
    random: RandomSource<'p>,
    observer: Observer,
}

impl<'p, K: Clock> relent_core::call::Environment for Environment<'p, K> {
    type Access = LockedState;
    type Random = RandomSource<'p>;

    #[inline]
    fn policy(&self) -> &Policy {
        &self.policy
    }

    #[inline]
    fn destination(&self) -> Option<&relent_core::destination::Destination<LockedState>> {
        self.destination.as_ref().map(|there| &there.core)
    }

    #[inline]
    fn parts(&mut self) -> (&Policy, Option<&Budget>, &mut RandomSource<'p>) {
        let budget = self.destination.as_deref().and_then(Destination::budget);
        (&self.policy, budget, &mut self.random)
    }

    #[inline]
    fn now(&self) -> Instant {
        self.clock.now()
    }

    #[inline]
    fn on_queued(&self, queued: &Queued) {
        self.observer.on_queued(queued, self.destination.as_deref());
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
        let there = self.destination.as_deref();
        self.observer.on_decision(attempt, failure, decision, there);
    }

    #[inline]
    fn on_stop(&self, attempts: u32, failure: Option<&Failure>, reason: StopReason) {
        let there = self.destination.as_deref();
        self.observer.on_stop(attempts, failure, reason, there);
    }

    #[inline]
    fn on_budget(&self) {
        #[cfg(feature = "metrics")]
        if let Some(budget) = self.destination.as_deref().and_then(Destination::budget) {
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
        before: Option<(BlockedBy, Duration)>,
        after: Option<BlockedBy>,
        now: Option<Instant>,
    ) {
        let Some(destination) = self.destination.as_deref() else {
            return;
        };
        if let Some(state) = destination.breaker_change() {
            self.observer.on_breaker_change(state, Some(destination));
        }
        #[cfg(feature = "metrics")]
        {
            if let Some(now) = now
                && let Some(rate) = destination.rate_limit(now)
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

impl<K: Clock> Driver<'_, K> {
    /// Starts the attempt that the permit allows. Reads the clock only if the policy or a trace
    /// needs it.
    #[inline]
    pub fn on_attempt(&mut self, permit: CallPermit) -> Attempt {
        self.begin_attempt(permit).0
    }

    /// Like [`on_attempt`](Self::on_attempt), and returns the instant at which the attempt is cut
    /// off.
    #[inline]
    pub fn begin_attempt(&mut self, permit: CallPermit) -> (Attempt, Option<Instant>) {
        self.call.begin(&mut self.environment, permit)
    }

    /// Sets whether the operation may safely run twice, overriding the builder: for a caller that
    /// determines this only after a failure. Call it before reporting the failure. A `bool` is the
    /// caller's declaration, which no policy overrides; see [`Repeatable`].
    ///
    /// ```
    /// use relent::{Failure, Policy, StopReason};
    /// use relent::clock::StdClock;
    /// use relent::driver::{Driver, NextStep};
    ///
    /// let mut driver = Driver::builder(Policy::STANDARD, StdClock).start();
    /// if let NextStep::Start(permit) = driver.enter(None) {
    ///     driver.on_attempt(permit);
    ///     driver.set_repeatable(false);
    ///     let stop = driver.on_failure(&Failure::ambiguous()).stop();
    ///     assert_eq!(stop.map(|stop| stop.reason), Some(StopReason::NotRepeatable));
    /// }
    /// ```
    pub fn set_repeatable(&mut self, repeatable: impl Into<Repeatable>) {
        self.call.set_repeatable(repeatable.into());
    }

    /// Reports that the operation succeeded.
    #[inline]
    pub fn on_success(&mut self) {
        self.call.succeeded(&mut self.environment);
    }

    /// Like [`on_success`](Self::on_success), if the caller does not use the
    /// [summary](Self::summary): the trace does not record the success.
    #[inline]
    pub(crate) fn on_success_without_summary(&mut self) {
        self.call.succeeded_untraced(&mut self.environment);
    }

    /// Like [`on_success`](Self::on_success), with the status or exit status of the success for the
    /// trace.
    #[inline]
    pub fn on_success_with(&mut self, seen: Cause) {
        self.call.succeeded_with(&mut self.environment, seen);
    }

    /// Reports that the attempt failed, and returns the decision: retry after a wait, or stop.
    #[inline]
    pub fn on_failure(&mut self, failure: &Failure) -> Decision {
        self.call.failed(&mut self.environment, failure)
    }

    /// Like [`on_failure`](Self::on_failure), for a caller that may be unable to retry for a reason
    /// that the policy cannot know, such as [`StopReason::NotReplayable`]. `unable` is called only
    /// if the policy would retry, so the policy's own reason takes precedence: a permanent failure
    /// is not reported as "not replayable".
    ///
    /// ```
    /// use relent::{Failure, Policy, StopReason};
    /// use relent::clock::StdClock;
    /// use relent::driver::{Driver, NextStep};
    ///
    /// let mut driver = Driver::builder(Policy::STANDARD, StdClock).start();
    /// if let NextStep::Start(permit) = driver.enter(None) {
    ///     driver.on_attempt(permit);
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

    /// Like [`on_failure`](Self::on_failure), with the caller's delay in place of the policy's
    /// backoff; `None` ends the delays. Cap, jitter, hints and limits of the policy still apply.
    pub fn on_failure_with(&mut self, failure: &Failure, own: Option<Duration>) -> Decision {
        self.call.failed_with(&mut self.environment, failure, own)
    }

    /// Ends the call after a failure, for a reason that the policy cannot know, such as
    /// [`StopReason::NotReplayable`].
    pub fn on_stop(&mut self, failure: &Failure, reason: StopReason) -> Stop {
        self.call
            .failed_for_good(&mut self.environment, failure, reason)
    }

    /// Cancels the call. A retry that was granted but not started is returned to the budget.
    pub fn on_cancel(&mut self) -> Stop {
        self.call.cancel(&mut self.environment)
    }

    /// Abandons a retry that was granted, for a reason that the policy cannot know and that appears
    /// only after the wait. The retry is returned to the budget. If the reason is known before the
    /// wait, use [`on_failure_unless`](Self::on_failure_unless).
    ///
    /// ```
    /// use relent::{Failure, Policy, StopReason};
    /// use relent::clock::StdClock;
    /// use relent::driver::{Decision, Driver, NextStep};
    ///
    /// let mut driver = Driver::builder(Policy::STANDARD, StdClock).start();
    /// if let NextStep::Start(permit) = driver.enter(None) {
    ///     driver.on_attempt(permit);
    ///     let failure = Failure::ambiguous();
    ///     if let Decision::Retry { .. } = driver.on_failure(&failure) {
    ///         let stop = driver.on_retry_abandoned(&failure, StopReason::NotReplayable);
    ///         assert_eq!(stop.reason, StopReason::NotReplayable);
    ///     }
    /// }
    /// ```
    pub fn on_retry_abandoned(&mut self, failure: &Failure, reason: StopReason) -> Stop {
        self.call
            .abandon_retry(&mut self.environment, failure, reason)
    }

    /// Restarts the backoff. `max_elapsed` and the deadline do not change. The limits of the
    /// [circuit breaker](crate::policy::CircuitBreakerConfig) count from now, or from the end of the queue.
    pub fn reset(&mut self) {
        self.call.reset(&self.environment);
    }

    /// Restarts the backoff while the call waits for its computed backoff until `until`. Returns
    /// the wait from now, never longer than before. See
    /// [`Session::shorten_delay`](crate::driver::Session::shorten_delay); call it at most once per wait.
    pub fn shorten_delay(&mut self, until: Instant) -> Duration {
        self.call.shorten_delay(&mut self.environment, until)
    }

    /// Whether a delay was shortened so that a
    /// [final attempt](crate::policy::PolicyBuilder::final_attempt_before_deadline) fits before a time limit. If the
    /// failure of that attempt is retried, too, its delay is the server's.
    #[must_use]
    pub fn is_delay_shortened(&self) -> bool {
        self.call.session().is_delay_shortened()
    }

    /// Reports that the transport has sent so many requests again by itself, for the metric
    /// `relent_resends_total`. It changes no decision.
    pub fn on_resends(&self, number: u32) {
        self.environment.observer.on_resends(number);
    }

    /// Reports that the running attempt made lasting progress, though it fails. The retry count and
    /// the backoff restart. `max_elapsed` and the deadline stay, and the limits of the circuit breaker
    /// count from now. The failure that follows does not count against the
    /// destination. Call it before reporting the failure; see
    /// [`Session::on_progress`](crate::driver::Session::on_progress).
    ///
    /// ```
    /// use relent::{Failure, Policy};
    /// use relent::clock::StdClock;
    /// use relent::driver::{Decision, Driver, NextStep};
    /// use relent::failure::Progress;
    ///
    /// let policy = Policy::STANDARD.clone().into_builder().max_retries(1).build()?;
    /// let mut driver = Driver::builder(&policy, StdClock).start();
    /// let (mut progress, total) = (Progress::new(0), Some(5 << 20));
    /// for mebibytes in 1..5 {
    ///     let NextStep::Start(permit) = driver.enter(None) else {
    ///         unreachable!("without a destination nothing holds it back");
    ///     };
    ///     driver.on_attempt(permit);
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

    /// Reports to another destination the outcome of a request that was redirected to it at the
    /// instant `since`. A `failure` of `None` is a success. Without the instant, only the cooldown
    /// and the rate limit of that destination are updated. Its breaker is not: it would count
    /// failures without the successes.
    ///
    /// The call keeps its permit, and its own budget pays. Call it before
    /// [`on_failure`](Self::on_failure), whose failure then has
    /// [`Hop::Elsewhere`](relent_core::Hop), or before [`on_success`](Self::on_success).
    ///
    /// ```
    /// use std::time::Duration;
    /// use relent::{Destination, Failure, Hint, Policy};
    /// use relent::clock::{Clock, StdClock};
    /// use relent::driver::{Driver, NextStep};
    /// use relent::failure::Hop;
    ///
    /// let (asked, answered) = (Destination::new(Policy::STANDARD), Destination::new(Policy::STANDARD));
    /// let mut driver = Driver::builder(Policy::STANDARD, StdClock).destination(&asked).start();
    /// let NextStep::Start(permit) = driver.enter(None) else {
    ///     unreachable!("the destination is new");
    /// };
    /// driver.on_attempt(permit);
    /// let redirected = Some(driver.clock().now());
    /// let busy = Failure::throttled().hint(Hint::after(Duration::from_secs(2)));
    /// driver.on_redirected(&answered, redirected, Some(&busy));
    /// driver.on_failure(&busy.hop(Hop::Elsewhere));
    /// assert!(answered.cooldown().has_begun() && !asked.cooldown().has_begun());
    /// ```
    #[cold]
    pub fn on_redirected(
        &mut self,
        there: &Destination,
        since: Option<Instant>,
        failure: Option<&Failure>,
    ) {
        self.call
            .redirected(&mut self.environment, &there.core, since, failure);
    }

    /// Whether the running attempt, which a time limit of the policy has just cut off, got less than
    /// half of its normal time limit since `started`. Such a timeout is no evidence about the server.
    /// The destination of the call considers this itself.
    #[must_use]
    pub fn had_little_time(&self, started: Instant) -> bool {
        let now = self.environment.clock.now();
        self.call.had_little_time(&self.environment, now, started)
    }

    /// The time left until the deadline; zero if it has passed, `None` without a deadline.
    pub fn remaining(&mut self) -> Option<Duration> {
        self.call.remaining(&self.environment)
    }

    /// The time left in which an attempt may start; zero if there is none, `None` without a limit.
    /// For work of a loop beside its waits, such as draining a rejected response.
    pub fn room(&mut self) -> Option<Duration> {
        self.call.time_left(&self.environment)
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        relent_core::call::Environment::policy(&self.environment)
    }

    /// The destination, if there is one.
    #[must_use]
    pub fn destination(&self) -> Option<&Destination> {
        self.environment.destination.as_deref()
    }

    /// The clock.
    #[must_use]
    pub const fn clock(&self) -> &K {
        &self.environment.clock
    }

    /// The number of attempts started so far.
    #[inline]
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.call.attempts()
    }

    /// The summary of a call that ended with this stop, or with a success. Takes the trace.
    pub fn summary(&mut self, stop: Option<Stop>) -> Summary {
        let limit = self.call.without_deadline(&self.environment);
        let by_limit = stop.is_some_and(|stop| {
            let (circuit_breaker, time) = (StopReason::CircuitBreaker, StopReason::MaxElapsed);
            stop.reason == circuit_breaker
                || stop.reason == time
                || stop.reason == StopReason::RetryLater
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

    /// Converts an instant of this driver's clock to wall-clock time.
    pub fn wall_of(&self, instant: Instant) -> SystemTime {
        let clock = &self.environment.clock;
        let ahead = instant.saturating_since(clock.now());
        let wall = clock.wall();
        wall.checked_add(ahead).unwrap_or(wall)
    }
}

impl<K: Clock> Drop for Driver<'_, K> {
    #[inline]
    fn drop(&mut self) {
        self.call.leave(&self.environment);
    }
}

impl<K: Clock> fmt::Debug for Driver<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("session", self.call.session())
            .finish_non_exhaustive()
    }
}
