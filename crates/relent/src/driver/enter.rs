//! Before each attempt a session asks its destination whether it may start.

use std::ops::Deref;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use relent_core::{Caller, Ended, Instant, Policy, Random, Slot, Stop, StopReason};

use super::visit::{Stage, Visit, end};
use super::{Driver, Goes};
use crate::clock::{Clock, Sleeper};
use crate::destination::{SlotTurn, Turn};
use crate::timer::Timer;

/// What a destination says to an attempt that would start: see [`Driver::enter`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Start it.
    Go,
    /// Ask again after this; `None` for when the waker is woken.
    Wait(Option<Duration>),
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
        let off = self.policy.is_off();
        let last_start = self.session.last_start(&self.policy);
        if self.to.visit().is_none() {
            if let Some(stage) = self.visit_gate(now, last_start) {
                if let Stage::Entered(..) = stage {
                    return Entry::Go;
                }
            } else {
                self.visit(now);
            }
        }
        let (longest, share) = (self.policy.max_hint(), self.policy.hint_spread());
        let caller = self.caller(last_start);
        let Some((destination, Some(visit))) = self.to.parts() else {
            return Entry::Go;
        };
        let slot = |before| match destination.ask(now, last_start, before) {
            Slot::Now => Ok(None),
            // Nobody sleeps for hours.
            Slot::At(place, at) if at.saturating_since(now) > longest => {
                destination.leave_queue(now, place);
                Err(later(at))
            }
            Slot::At(place, _) => Ok(Some(place)),
            Slot::TooLate(at) => Err(later(at)),
        };
        loop {
            // When its slot was taken, for an attempt that has yet to ask the gate.
            let taken = match visit.stage {
                Stage::Refused if !off => return stop(StopReason::Overloaded),
                // It has asked before.
                Stage::Entered(_, probe) => {
                    visit.stage = Stage::Entered(now, probe);
                    return Entry::Go;
                }
                Stage::Inside(..) => return Entry::Go,
                Stage::Held(until) if now < until => {
                    return Entry::Wait(Some(until.saturating_since(now)));
                }
                Stage::Unasked | Stage::Outside | Stage::Held(_) | Stage::Refused => {
                    if matches!(visit.stage, Stage::Unasked | Stage::Outside)
                        && !off
                        && destination.cooldown().has_begun()
                    {
                        let room = last_start.saturating_since(now);
                        let wait = destination
                            .cooldown()
                            .wait(now, room, share, &mut self.random);
                        if wait > room {
                            let left = destination.cooldown().left(now);
                            return later(now.saturating_add(left));
                        }
                        if !wait.is_zero() {
                            visit.stage = Stage::Held(now.saturating_add(wait));
                            return Entry::Wait(Some(wait));
                        }
                    }
                    match slot(false) {
                        Ok(None) => now,
                        Ok(Some(place)) => {
                            visit.stage = Stage::Queued(place, None);
                            continue;
                        }
                        Err(stop) => {
                            visit.stage = Stage::Outside;
                            return stop;
                        }
                    }
                }
                Stage::Queued(place, released) => {
                    let taken = match destination.slot_turn(now, place, waker) {
                        SlotTurn::Go(taken) => taken,
                        SlotTurn::Wait(at) if now > last_start => {
                            destination.leave_queue(now, place);
                            end(destination, || now, released);
                            visit.stage = Stage::Outside;
                            return later(at);
                        }
                        SlotTurn::Wait(at) => return wait_until(now, Some(at), last_start),
                    };
                    if released.is_some() {
                        visit.stage = Stage::Entered(now, released);
                        return Entry::Go;
                    }
                    taken
                }
                Stage::Parked if now >= caller.until => {
                    destination.forget(now, &caller);
                    visit.stage = Stage::Outside;
                    return stop(StopReason::Gate);
                }
                Stage::Parked => match destination.turn(now, &caller, waker) {
                    Turn::Go(pass) => match slot(true) {
                        Ok(None) => {
                            visit.stage = Stage::Entered(now, Some(pass.is_probe()));
                            return Entry::Go;
                        }
                        Ok(Some(place)) => {
                            visit.stage = Stage::Queued(place, Some(pass.is_probe()));
                            continue;
                        }
                        Err(stop) => {
                            end(destination, || now, Some(pass.is_probe()));
                            visit.stage = Stage::Outside;
                            return stop;
                        }
                    },
                    Turn::Wait(next) => return wait_until(now, next, caller.until),
                },
            };
            let admitted = if off {
                Some(None)
            } else {
                destination.admit(now, caller)
            };
            match admitted {
                Some(pass) => {
                    visit.stage = Stage::Entered(now, pass.map(|pass| pass.is_probe()));
                    return Entry::Go;
                }
                None => {
                    destination.give_slot_back(now, taken);
                    visit.stage = Stage::Parked;
                }
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
            stage: Stage::Entered(..),
            ..
        }) = self.to.visit()
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

    /// The session as its destination knows it; `last_start` is that of the session.
    #[inline]
    pub(super) fn caller(&self, last_start: Instant) -> Caller {
        let since = self.session.started();
        let patience = self.to.destination();
        let patience = patience.map_or(Instant::MAX, |there| there.patience(since));
        Caller {
            until: last_start.min(patience),
            since,
            id: self.to.visit().map_or(0, |visit| visit.id),
            fresh: self.session.attempts() == 0,
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
                Entry::Wait(None) => return Poll::Pending,
                Entry::Wait(Some(wait)) => {
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

/// It would have to wait for longer than it may.
fn later(at: Instant) -> Entry {
    Entry::Stop(Stop {
        reason: StopReason::RetryLater,
        retry_at: Some(at),
    })
}

/// The wait until one of these, if there is one.
fn wait_until(now: Instant, next: Option<Instant>, until: Instant) -> Entry {
    let at = next.map_or(until, |next| next.min(until));
    Entry::Wait((at < Instant::MAX).then(|| at.saturating_since(now)))
}
