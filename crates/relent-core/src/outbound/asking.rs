//! Requests for admission, and their results.

use core::time::Duration;

use super::last_chance::last_chance;
use super::{Outbound, Permit};
use crate::cooldown::Cooldown;
use crate::decision::{Stop, StopReason};
use crate::gate::{Caller, Claim, Pass};
use crate::random::Random;
use crate::time::Instant;

/// A request for permission to make an attempt.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Asking {
    /// Distinguishes the requests to one destination; chosen by the driver.
    pub id: u64,
    /// When the request was made.
    pub since: Instant,
    /// No attempt may start later than this; [`Instant::MAX`] for no limit.
    pub last_start: Instant,
    /// When the request no longer needs a response; [`Instant::MAX`] for no limit.
    pub answer_by: Instant,
    /// The longest wait for a slot of the rate limit that the caller accepts: the policy's `max_hint`.
    pub longest: Duration,
    /// The jitter after a cooldown, as a share of its length: the policy's `hint_spread`.
    pub spread: f64,
    /// The kind of attempt: the first one, or a retry, and whether the budget has paid for it.
    pub claim: Claim,
    /// Whether it is queued by the circuit breaker without limit: the max queue time does not apply,
    /// and it makes no late first attempt.
    pub stays: bool,
    /// Whether only the rate limit applies to it: for a policy with retries off, which turns off
    /// everything that comes with retries.
    pub paced_only: bool,
}

impl Asking {
    /// The waiter in the queue of the circuit breaker. Its fields may not change while it waits.
    #[inline]
    #[must_use]
    pub const fn caller(&self) -> Caller {
        Caller {
            until: self.answer_by,
            since: self.since,
            id: self.id,
        }
    }
}

/// Result of a request for admission.
#[derive(Debug)]
pub enum Answer {
    /// Make the attempt.
    Start(Permit),
    /// Wait, and request again when woken, at this instant at the latest. The second value is the
    /// reason.
    Wait(Instant, Holding),
    /// Give up. The caller is no longer in the queue.
    Stop(Stop),
    /// Its [`last_start`](Asking::last_start) has passed while it waited. It is no longer in the queue.
    TooLate,
}

/// The reason why a caller has to wait.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Holding {
    /// The destination has asked all callers to stay away for a while.
    Cooldown,
    /// The rate limit has no slot yet.
    RequestRate,
    /// The circuit breaker has queued the request.
    Gate,
}

impl Holding {
    /// Its name in metrics and traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cooldown => "cooldown",
            Self::RequestRate => "request_rate",
            Self::Gate => "gate",
        }
    }
}

impl Outbound {
    /// Requests admission for a caller that does not wait yet. A caller that has to wait [requests
    /// again](Self::ask_again) when it is woken, and at the instant that it got.
    #[inline]
    pub fn ask(
        &mut self,
        now: Instant,
        asking: &Asking,
        cooldown: &Cooldown,
        random: &mut impl Random,
    ) -> Answer {
        self.settle(now, cooldown, random);
        let answer = match self.arrive(now, asking, cooldown, random) {
            Ok(answer) => answer,
            Err(holding) => {
                self.due = self.next(now, cooldown);
                if self.due.is_some_and(|due| due <= now) {
                    // It joined the queue, but need not wait there.
                    return self.ask_again(now, asking, cooldown, random);
                }
                self.wait(now, asking, holding)
            }
        };
        if !self.nobody_waits() {
            self.appoint(now);
        }
        answer
    }

    /// Requests admission again for a caller that waits.
    pub fn ask_again(
        &mut self,
        now: Instant,
        asking: &Asking,
        cooldown: &Cooldown,
        random: &mut impl Random,
    ) -> Answer {
        self.settle(now, cooldown, random);
        if let Some(mut permit) = self.line.take_offer(asking.id) {
            if now > asking.last_start {
                self.cancel(now, permit, cooldown, random);
                return Answer::TooLate;
            }
            if !asking.paced_only && cooldown.is_running(now) {
                // The cooldown has begun since the offer.
                self.cancel(now, permit, cooldown, random);
                return self.ask(now, asking, cooldown, random);
            }
            permit.restart(now);
            // The end of the offer needs no timer any more.
            self.due = match self.nobody_waits() {
                true => None,
                false => self.next(now, cooldown),
            };
            self.appoint(now);
            return Answer::Start(permit);
        }
        let Some(holding) = self.holding(&asking.caller()) else {
            // Its offer has expired.
            self.line.remove(asking.id);
            if self.nobody_waits() {
                self.due = None;
            }
            return self.ask(now, asking, cooldown, random);
        };
        if let Some(answer) = self.gives_up(now, asking, holding, cooldown) {
            // The next waiter may get its place.
            self.remove(&asking.caller());
            self.changed(now, cooldown, random);
            return answer;
        }
        if let Some(permit) = self.take_last_chance(now, asking, holding, cooldown) {
            self.changed(now, cooldown, random);
            return Answer::Start(permit);
        }
        let answer = self.wait(now, asking, holding);
        self.appoint(now);
        answer
    }

    /// Handles a caller that is not in the queue. An error is the reason why it was put there.
    #[inline]
    fn arrive(
        &mut self,
        now: Instant,
        asking: &Asking,
        cooldown: &Cooldown,
        random: &mut impl Random,
    ) -> Result<Answer, Holding> {
        if now > asking.last_start {
            return Ok(Answer::TooLate);
        }
        if !asking.paced_only && cooldown.is_running(now) {
            let left = cooldown.left(now);
            let room = asking.last_start.saturating_since(now);
            let wait = cooldown.wait(now, room, asking.spread, random);
            if wait > room {
                return Ok(later(now.saturating_add(left)));
            }
            self.line.hold(asking, now.saturating_add(wait));
            return Err(Holding::Cooldown);
        }
        if let Some(rate) = &mut self.rate {
            let ahead = self.line.queued() as u64;
            if ahead > 0 || rate.next_slot(now) > now {
                if let Some(slot) = self.too_late(now, ahead, asking) {
                    return Ok(later(slot));
                }
                self.line.queue(asking);
                return Err(Holding::RequestRate);
            }
        }
        let mut pass = None;
        if let Some(gate) = self.gate.as_mut().filter(|_| !asking.paced_only) {
            pass = gate.admit(now, asking.caller(), asking.claim);
            let is_late = || last_chance(gate, asking).is_some_and(|at| at <= now);
            if pass.is_none() && is_late() && gate.takes_chance(now) {
                // It was held or queued before, and is too late for another chance.
                gate.forget(&asking.caller());
                pass = Some(Pass::new(now, false));
            }
            if pass.is_none() {
                return Err(Holding::Gate);
            }
        }
        Ok(Answer::Start(self.permit(now, pass)))
    }

    /// When a caller behind `ahead` others would get its slot, if that is too late for it.
    pub(super) fn too_late(
        &mut self,
        now: Instant,
        ahead: u64,
        asking: &Asking,
    ) -> Option<Instant> {
        // A reduced rate recovers: no caller is rejected because of a short reduction.
        let (slot, at_best) = self.rate.as_mut()?.slot_behind(now, ahead);
        let is_late = at_best > asking.last_start || slot.saturating_since(now) > asking.longest;
        is_late.then_some(slot)
    }

    /// The result for a caller that may not wait any longer.
    fn gives_up(
        &mut self,
        now: Instant,
        asking: &Asking,
        holding: Holding,
        cooldown: &Cooldown,
    ) -> Option<Answer> {
        let cooled = now.saturating_add(cooldown.left(now));
        if !asking.paced_only && cooled > now && cooled > asking.last_start {
            return Some(later(cooled));
        }
        match holding {
            Holding::Gate if now >= self.parked_until(asking).0 => Some(Answer::Stop(Stop {
                reason: StopReason::Gate,
                retry_at: None,
            })),
            Holding::RequestRate if now > asking.last_start => {
                Some(later(self.slot_of(now, asking.id)))
            }
            _ => None,
        }
    }
}

/// The wait would exceed the caller's limit.
const fn later(at: Instant) -> Answer {
    Answer::Stop(Stop {
        reason: StopReason::RetryLater,
        retry_at: Some(at),
    })
}
