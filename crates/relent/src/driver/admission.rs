//! Admission: the driver's permit for each attempt.

use std::task::{Context, Poll, Waker, ready};

use relent_core::call::{CallPermit, NextStep, Queued};
use relent_core::{Stop, StopReason};

use super::Driver;
use crate::clock::{Clock, Sleeper};
use crate::timer::Timer;

impl<K: Clock> Driver<'_, K> {
    /// Requests a permit for the next attempt. A time limit or the destination can deny it.
    ///
    /// Call it before each attempt, and again after the returned wait. `waker` is woken if the
    /// result changes earlier; without a waker, the change takes effect at the next call.
    #[inline]
    pub fn enter(&mut self, waker: Option<&Waker>) -> NextStep {
        self.call.next(&mut self.environment, waker)
    }

    /// Returns the permit of an attempt that cannot start yet for a reason unknown to the
    /// destination, such as a service that is not ready. Nobody then waits for this attempt, and it
    /// does not start with a stale permit. Request a permit again when the attempt can start.
    ///
    /// ```
    /// use relent::{Destination, Policy};
    /// use relent::clock::StdClock;
    /// use relent::destination::RateLimit;
    /// use relent::driver::{Driver, NextStep};
    /// use relent::policy::RateLimitConfig;
    ///
    /// let config = RateLimitConfig { burst: Some(1), ..RateLimitConfig::new(0.01) };
    /// let rate = RateLimit::new(&config)?;
    /// let there = Destination::new(Policy::STANDARD).with_rate_limit(rate);
    /// let driver = || Driver::builder(Policy::STANDARD, StdClock).destination(&there).start();
    /// let (mut one, mut other) = (driver(), driver());
    /// if let NextStep::Start(permit) = one.enter(None) {
    ///     one.release_permit(permit);
    /// }
    /// assert!(matches!(other.enter(None), NextStep::Start(_)));
    /// # Ok::<(), relent::policy::PolicyError>(())
    /// ```
    pub fn release_permit(&mut self, permit: CallPermit) {
        self.call.release_permit(&mut self.environment, permit);
    }

    /// The reason why the next attempt may no longer start: `max_elapsed` or the deadline has
    /// passed. `None` while it may. For an attempt that waited for something other than policy and
    /// destination.
    pub fn too_late(&mut self) -> Option<StopReason> {
        self.call.too_late(&self.environment)
    }

    /// Requests a permit, and waits for it with this timer.
    ///
    /// # Errors
    /// If the call must give up.
    pub fn poll_enter(
        &mut self,
        context: &mut Context<'_>,
        timer: &mut Timer<K>,
    ) -> Poll<Result<CallPermit, Stop>>
    where
        K: Sleeper,
    {
        self.poll_enter_notifying(context, timer, |_| {})
    }

    #[inline]
    pub(crate) fn poll_enter_notifying(
        &mut self,
        context: &mut Context<'_>,
        timer: &mut Timer<K>,
        mut notify: impl FnMut(&Queued),
    ) -> Poll<Result<CallPermit, Stop>>
    where
        K: Sleeper,
    {
        loop {
            match self.enter(Some(context.waker())) {
                NextStep::Start(permit) => return Poll::Ready(Ok(permit)),
                NextStep::Stop(stop) => return Poll::Ready(Err(stop)),
                NextStep::Wait { after, queued, .. } => {
                    if let Some(queued) = &queued {
                        notify(queued);
                    }
                    timer.set(&self.environment.clock, after);
                    ready!(timer.poll(context));
                }
            }
        }
    }

    /// The async form of [`poll_enter`](Self::poll_enter).
    ///
    /// # Errors
    /// If the call must give up.
    #[inline]
    pub async fn entered(&mut self) -> Result<CallPermit, Stop>
    where
        K: Sleeper,
    {
        self.entered_notifying(|_| {}).await
    }

    /// Like [`entered`](Self::entered), and calls the closure when the attempt is queued, with the
    /// control of the destination that queues it and the longest wait. Calls it again if another
    /// control takes over, or if the call may wait longer, since the destination has responded for the
    /// first time.
    ///
    /// ```
    /// use relent::{Destination, Policy};
    /// use relent::clock::TokioClock;
    /// use relent::driver::Driver;
    /// use relent::policy::RateLimitConfig;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), relent::policy::PolicyError> {
    /// let rate = RateLimitConfig { burst: Some(1), ..RateLimitConfig::new(0.5) };
    /// let policy = Policy::STANDARD.clone().into_builder().rate_limit(rate).build()?;
    /// let there = Destination::new(&policy);
    /// for waits in [0, 1] {
    ///     let mut controls = Vec::new();
    ///     let mut driver = Driver::builder(&policy, TokioClock).destination(&there).start();
    ///     if let Ok(permit) = driver.entered_notifying(|queued| controls.push(queued.by.name())).await {
    ///         driver.on_attempt(permit);
    ///         driver.on_success();
    ///     }
    ///     assert_eq!(controls, vec!["rate_limit"; waits]);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the call must give up.
    #[inline]
    pub async fn entered_notifying(
        &mut self,
        mut notify: impl FnMut(&Queued),
    ) -> Result<CallPermit, Stop>
    where
        K: Sleeper,
    {
        let mut timer = Timer::new();
        std::future::poll_fn(|context| self.poll_enter_notifying(context, &mut timer, &mut notify))
            .await
    }

    /// Whether a loop whose attempts follow each other without a wait must yield to other tasks
    /// now: every 32 attempts.
    #[inline]
    #[must_use]
    pub const fn should_yield(&self) -> bool {
        let attempts = self.attempts();
        attempts.is_multiple_of(ATTEMPTS_PER_YIELD) || attempts == u32::MAX
    }
}

/// The number of immediate failures in a row, without a wait, after which the operation yields to
/// other tasks.
const ATTEMPTS_PER_YIELD: u32 = 32;
