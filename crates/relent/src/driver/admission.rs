//! Before each attempt a driver asks whether it may start.

use std::ops::Deref;
use std::task::{Context, Poll, Waker, ready};

use relent_core::{Attempt, Instant, Leave, Next, Policy, Queued, Random, Stop, StopReason};

use super::{Driver, Target};
use crate::clock::{Clock, Sleeper};
use crate::timer::Timer;

impl<K, R, P, D> Driver<'_, K, R, P, D>
where
    K: Clock,
    R: Random,
    P: Deref<Target = Policy>,
    D: Target,
{
    /// Asks whether the next attempt may start now: whether a limit of time or the destination is
    /// against it.
    ///
    /// A loop asks before each attempt, and again after the wait that it is told. `waker` is woken if
    /// the answer changes before; without one, what changes is noticed when it is asked again.
    #[inline]
    pub fn enter(&mut self, waker: Option<&Waker>) -> Next {
        self.call.next(&mut self.environment, waker)
    }

    /// Asks and begins in one, if no destination has to be asked and nobody has to know the time. The
    /// number of the attempt, which may run for as long as it takes; else `None`, and
    /// [`enter`](Self::enter) has the answer. For loops whose attempts mostly succeed at once: it costs
    /// them less.
    #[inline]
    pub fn begin_untimed(&mut self) -> Option<u32> {
        self.call.begin_untimed(&mut self.environment)
    }

    /// The attempt that may start cannot start yet, for a reason that the destination does not know,
    /// such as a service that is not ready: gives its leave back, so that nobody waits for it and none
    /// goes that has become stale. The loop asks again when the attempt can start.
    ///
    /// ```
    /// use relent::{Destination, Policy};
    /// use relent::clock::StdClock;
    /// use relent::destination::RequestRate;
    /// use relent::driver::{Driver, Next};
    /// use relent::policy::RequestRateConfig;
    ///
    /// let config = RequestRateConfig { burst: Some(1), ..RequestRateConfig::new(0.01) };
    /// let rate = RequestRate::new(&config)?;
    /// let there = Destination::new(Policy::STANDARD).with_request_rate(rate);
    /// let driver = || Driver::builder(Policy::STANDARD, StdClock).destination(&there).start();
    /// let (mut one, mut other) = (driver(), driver());
    /// if let Next::Start(leave) = one.enter(None) {
    ///     one.step_back(leave);
    /// }
    /// assert!(matches!(other.enter(None), Next::Start(_)));
    /// # Ok::<(), relent::policy::PolicyError>(())
    /// ```
    pub fn step_back(&mut self, leave: Leave) {
        self.call.step_back(&mut self.environment, leave);
    }

    /// Why the next attempt may not start any more: `max_elapsed` or the deadline has passed. `None`
    /// while it may. For an attempt that waited for something other than the policy and the
    /// destination.
    pub fn too_late(&mut self) -> Option<StopReason> {
        self.call.too_late(&self.environment)
    }

    /// Asks, and waits as long as it takes with this timer.
    ///
    /// # Errors
    /// When the call is to give up.
    pub fn poll_enter(
        &mut self,
        context: &mut Context<'_>,
        timer: &mut Timer<K>,
    ) -> Poll<Result<Leave, Stop>>
    where
        K: Sleeper,
    {
        self.poll_enter_telling(context, timer, |_| {})
    }

    #[inline]
    pub(crate) fn poll_enter_telling(
        &mut self,
        context: &mut Context<'_>,
        timer: &mut Timer<K>,
        mut tell: impl FnMut(&Queued),
    ) -> Poll<Result<Leave, Stop>>
    where
        K: Sleeper,
    {
        loop {
            match self.enter(Some(context.waker())) {
                Next::Start(leave) => return Poll::Ready(Ok(leave)),
                Next::Stop(stop) => return Poll::Ready(Err(stop)),
                Next::Wait { after, queued, .. } => {
                    if let Some(queued) = &queued {
                        tell(queued);
                    }
                    timer.set(&self.environment.clock, after);
                    ready!(timer.poll(context));
                }
            }
        }
    }

    /// The same as [`poll_enter`](Self::poll_enter), and begins the attempt, if
    /// [`begin_untimed`](Self::begin_untimed) has not.
    #[inline(never)]
    pub(crate) fn poll_begin(
        &mut self,
        context: &mut Context<'_>,
        timer: &mut Timer<K>,
        tell: impl FnMut(&Queued),
    ) -> Poll<Result<(Attempt, Option<Instant>), Stop>>
    where
        K: Sleeper,
    {
        if let Some(begun) = self.call.begin_at_once(&mut self.environment) {
            return Poll::Ready(Ok(begun));
        }
        let entered = ready!(self.poll_enter_telling(context, timer, tell));
        Poll::Ready(entered.map(|leave| self.begin_attempt(leave)))
    }

    /// The same as [`poll_enter`](Self::poll_enter), to be awaited.
    ///
    /// # Errors
    /// When the call is to give up.
    #[inline]
    pub async fn entered(&mut self) -> Result<Leave, Stop>
    where
        K: Sleeper,
    {
        self.entered_telling(|_| {}).await
    }

    /// The same, and tells when the attempt is queued: by which control of the destination, and for how long
    /// at most. It tells so again if another control holds it.
    ///
    /// ```
    /// use relent::{Destination, Policy};
    /// use relent::clock::TokioClock;
    /// use relent::driver::Driver;
    /// use relent::policy::RequestRateConfig;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), relent::policy::PolicyError> {
    /// let rate = RequestRateConfig { burst: Some(1), ..RequestRateConfig::new(0.5) };
    /// let policy = Policy::STANDARD.clone().into_builder().request_rate(rate).build()?;
    /// let there = Destination::new(&policy);
    /// for waits in [0, 1] {
    ///     let mut told = Vec::new();
    ///     let mut driver = Driver::builder(&policy, TokioClock).destination(&there).start();
    ///     if let Ok(leave) = driver.entered_telling(|queued| told.push(queued.by.name())).await {
    ///         driver.on_attempt(leave);
    ///         driver.on_success();
    ///     }
    ///     assert_eq!(told, vec!["rate_limit"; waits]);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the call is to give up.
    #[inline]
    pub async fn entered_telling(&mut self, mut tell: impl FnMut(&Queued)) -> Result<Leave, Stop>
    where
        K: Sleeper,
    {
        let mut timer = Timer::new();
        std::future::poll_fn(|context| self.poll_enter_telling(context, &mut timer, &mut tell))
            .await
    }

    /// Whether a loop whose attempts come one after the other without a wait is to let other tasks run
    /// now: every so many attempts.
    #[inline]
    #[must_use]
    pub const fn is_turn_over(&self) -> bool {
        let attempts = self.attempts();
        attempts.is_multiple_of(ATTEMPTS_PER_TURN) || attempts == u32::MAX
    }
}

/// An operation that fails at once, again and again, without a wait, lets other tasks run after
/// this many attempts.
const ATTEMPTS_PER_TURN: u32 = 32;
