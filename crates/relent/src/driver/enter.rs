//! Before each attempt a session asks its destination whether it may start.

use std::ops::Deref;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use relent_core::{Answer, Asking, Ended, Instant, Policy, Random, Stop, StopReason};

use super::visit::{Stage, Visit};
use super::{Driver, Goes};
use crate::clock::{Clock, Sleeper};
use crate::timer::Timer;

/// What a destination says to an attempt that would start: see [`Driver::enter`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Start it.
    Go,
    /// Ask again when the waker is woken, and after this at the latest.
    Wait(Duration),
    /// Give up.
    Stop(Stop),
}

impl<K, R, P, D> Driver<'_, K, R, P, D>
where
    K: Clock,
    R: Random,
    P: Deref<Target = Policy>,
    D: Goes,
{
    /// Asks the destination whether the next attempt may start now. Without one, it may.
    ///
    /// A loop asks before each attempt, and again after the wait that it is told. `waker` is woken if
    /// the answer changes before; without one, what changes is noticed when it is asked again.
    #[inline]
    pub fn enter(&mut self, waker: Option<&Waker>) -> Entry {
        if self.needs_no_leave() {
            return Entry::Go;
        }
        self.enter_there(waker)
    }

    /// Whether the next attempt may start without a look at the clock.
    #[inline]
    pub(crate) fn needs_no_leave(&self) -> bool {
        let Some(destination) = self.to.destination() else {
            return true;
        };
        let unasked = matches!(
            self.to.visit(),
            None | Some(Visit {
                stage: Stage::Unasked,
                ..
            })
        );
        // Off is no retries, and nothing that comes with them; the request rate holds for first
        // attempts too.
        self.policy.is_off() && !destination.is_paced() || unasked && destination.is_quiet()
    }

    #[inline(never)]
    fn enter_there(&mut self, waker: Option<&Waker>) -> Entry {
        let now = self.now();
        let before = self.held();
        let entry = self.ask_there(now, waker);
        self.tell_there(before, Some(now));
        entry
    }

    fn ask_there(&mut self, now: Instant, waker: Option<&Waker>) -> Entry {
        let asking = self.asking();
        let entered = self.visit_and_ask(now, asking);
        let Some((destination, Some(visit))) = self.to.parts() else {
            return Entry::Go;
        };
        let answer = match (entered, &mut visit.stage) {
            // Few have to wait, and only they leave a waker.
            (Some(Answer::Wait(..)), _) if waker.is_some() => {
                let asking = Asking {
                    id: visit.id,
                    ..asking
                };
                destination.ask(now, &asking, true, waker)
            }
            (Some(answer), _) => answer,
            (None, Stage::Refused) => return stop(StopReason::Overloaded),
            (None, Stage::Permitted(permit)) => {
                if !permit.has_begun() {
                    // It has asked before.
                    permit.restart(now);
                }
                return Entry::Go;
            }
            (None, stage @ (Stage::Unasked | Stage::Outside | Stage::Waiting(_))) => {
                let waits = matches!(stage, Stage::Waiting(_));
                let asking = Asking {
                    id: visit.id,
                    ..asking
                };
                destination.ask(now, &asking, waits, waker)
            }
        };
        match answer {
            Answer::Start(permit) => {
                visit.stage = if destination.learns() {
                    Stage::Permitted(permit)
                } else {
                    // Only a cooldown had to be asked, and that is over.
                    Stage::Unasked
                };
                Entry::Go
            }
            Answer::Wait(until, holding) => {
                visit.stage = Stage::Waiting(holding);
                Entry::Wait(until.saturating_since(now))
            }
            Answer::Stop(stop) => {
                visit.stage = Stage::Outside;
                Entry::Stop(stop)
            }
            Answer::TooLate => {
                visit.stage = Stage::Outside;
                stop(self.session.limit_at(&self.policy, now))
            }
        }
    }

    /// The attempt that may start cannot start yet, for a reason that the destination does not know,
    /// such as a service that is not ready: gives its leave back, so that nobody waits for it and none
    /// goes that has become stale. The loop asks again when the attempt can start.
    ///
    /// ```
    /// use relent::{Destination, Driver, Entry, Policy, RequestRate, RequestRateConfig, StdClock};
    ///
    /// let config = RequestRateConfig { burst: Some(1), ..RequestRateConfig::new(0.01) };
    /// let rate = RequestRate::new(&config)?;
    /// let there = Destination::new(Policy::STANDARD).with_request_rate(rate);
    /// let driver = || Driver::builder(Policy::STANDARD, StdClock).destination(&there).start();
    /// let (mut one, mut other) = (driver(), driver());
    /// assert_eq!(one.enter(None), Entry::Go);
    /// one.step_back();
    /// assert_eq!(other.enter(None), Entry::Go);
    /// # Ok::<(), relent::PolicyError>(())
    /// ```
    pub fn step_back(&mut self) {
        if let Some(Visit {
            stage: Stage::Permitted(permit),
            ..
        }) = self.to.visit()
            && !permit.has_begun()
        {
            self.end_visit(Ended::Unknown);
        }
    }

    /// Why the next attempt may not start any more: `max_elapsed` or the deadline has passed. `None`
    /// while it may. For an attempt that waited for something other than the policy and the
    /// destination.
    pub fn too_late(&mut self) -> Option<StopReason> {
        let now = self.now();
        let late = now > self.session.last_start(&self.policy);
        late.then(|| self.session.limit_at(&self.policy, now))
    }

    /// The session as its destination knows it, but for its number there.
    #[inline]
    fn asking(&self) -> Asking {
        let since = self.session.started();
        let deadline = self.policy.deadline();
        Asking {
            id: 0,
            since,
            last_start: self.session.last_start(&self.policy),
            answer_by: deadline.map_or(Instant::MAX, |limit| since.saturating_add(limit)),
            longest: self.policy.max_hint(),
            spread: self.policy.hint_spread(),
            fresh: self.session.attempts() == 0,
            paced_only: self.policy.is_off(),
        }
    }

    /// Asks, and waits as long as it takes with this timer.
    ///
    /// # Errors
    /// When the session is to give up.
    #[inline]
    pub fn poll_enter(
        &mut self,
        context: &mut Context<'_>,
        timer: &mut Timer<K>,
    ) -> Poll<Result<(), Stop>>
    where
        K: Sleeper,
    {
        if self.needs_no_leave() {
            return Poll::Ready(Ok(()));
        }
        self.poll_enter_there(context, timer)
    }

    #[inline(never)]
    fn poll_enter_there(
        &mut self,
        context: &mut Context<'_>,
        timer: &mut Timer<K>,
    ) -> Poll<Result<(), Stop>>
    where
        K: Sleeper,
    {
        loop {
            match self.enter_there(Some(context.waker())) {
                Entry::Go => return Poll::Ready(Ok(())),
                Entry::Stop(stop) => return Poll::Ready(Err(stop)),
                Entry::Wait(wait) => {
                    timer.set(&self.clock, wait);
                    ready!(timer.poll(context));
                }
            }
        }
    }

    /// The same as [`poll_enter`](Self::poll_enter), to be awaited.
    ///
    /// # Errors
    /// When the session is to give up.
    #[inline]
    pub async fn entered(&mut self) -> Result<(), Stop>
    where
        K: Sleeper,
    {
        if self.needs_no_leave() {
            return Ok(());
        }
        let mut timer = Timer::new();
        std::future::poll_fn(|context| self.poll_enter(context, &mut timer)).await
    }
}

fn stop(reason: StopReason) -> Entry {
    Entry::Stop(Stop {
        reason,
        retry_at: None,
    })
}
