//! Who asks to make an attempt, and what is said to it.

use core::time::Duration;

use super::last_chance::last_chance;
use super::{Outbound, Permit};
use crate::cooldown::Cooldown;
use crate::decision::{Stop, StopReason};
use crate::gate::{Caller, Claim, Pass};
use crate::random::Random;
use crate::time::Instant;

/// Who asks to make an attempt.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Asking {
    /// Tells the requests of one destination apart; the driver's choice.
    pub id: u64,
    /// When the request was made.
    pub since: Instant,
    /// No attempt may start later than this; [`Instant::MAX`] for no limit.
    pub last_start: Instant,
    /// Nobody waits for an answer later than this; [`Instant::MAX`] for no limit.
    pub answer_by: Instant,
    /// The longest wait for a slot that the caller accepts: the policy's `max_hint`.
    pub longest: Duration,
    /// The share of a cooldown's length by which the caller is spread behind it: the policy's
    /// `hint_spread`.
    pub spread: f64,
    /// Whether it is the first attempt of the request, or a retry, and whether the budget has paid for that.
    pub claim: Claim,
    /// Whether it waits at the gate for as long as it takes: the gate's patience does not end its wait, and it
    /// has no last chance.
    pub stays: bool,
    /// Whether only the request rate applies to it: for a policy whose retries are off (design rule
    /// 14), which turns off what comes with retries.
    pub paced_only: bool,
}

impl Asking {
    /// Who it is: none of this may change while it waits.
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

/// What is said to somebody who asks.
#[derive(Debug)]
pub enum Answer {
    /// Make the attempt.
    Start(Permit),
    /// Ask again when woken, and at this instant at the latest; and what holds the caller back.
    Wait(Instant, Holding),
    /// Give up. The caller has left the line.
    Stop(Stop),
    /// Its [`last_start`](Asking::last_start) has passed while it waited. It has left the line.
    TooLate,
}

/// What holds somebody back who waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Holding {
    /// The destination has asked everybody to stay away for a while.
    Cooldown,
    /// The request rate has no slot yet.
    RequestRate,
    /// The gate has parked the request.
    Gate,
}

impl Holding {
    /// As metrics and traces call it.
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
    /// May this caller, who does not wait yet, start an attempt now? Whoever is told to wait [asks
    /// again](Self::ask_again) when it is woken, and at the instant that it is told.
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
                    // It joins the line, and need not wait there.
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

    /// May this caller, who was told to wait, start its attempt now?
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
                // It has begun since the offer.
                self.cancel(now, permit, cooldown, random);
                return self.ask(now, asking, cooldown, random);
            }
            permit.restart(now);
            // Nobody need look when the offer would have ended.
            self.due = match self.nobody_waits() {
                true => None,
                false => self.next(now, cooldown),
            };
            self.appoint(now);
            return Answer::Start(permit);
        }
        let Some(holding) = self.holding(&asking.caller()) else {
            // It has lost its offer.
            self.line.remove(asking.id);
            if self.nobody_waits() {
                self.due = None;
            }
            return self.ask(now, asking, cooldown, random);
        };
        if let Some(answer) = self.gives_up(now, asking, holding, cooldown) {
            // What it leaves may be somebody else's now.
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

    /// Somebody comes who is not in the line. An error says what holds it there now.
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
                // It comes too late for another one, since it was held or queued before.
                gate.forget(&asking.caller());
                pass = Some(Pass::new(now, false));
            }
            if pass.is_none() {
                return Err(Holding::Gate);
            }
        }
        Ok(Answer::Start(self.permit(now, pass)))
    }

    /// When a caller that lets so many others go first would have its slot, if that is too late for it.
    pub(super) fn too_late(
        &mut self,
        now: Instant,
        ahead: u64,
        asking: &Asking,
    ) -> Option<Instant> {
        // A rate that was cut comes back: nobody is turned away for what may be over soon.
        let (slot, at_best) = self.rate.as_mut()?.slot_behind(now, ahead);
        let is_late = at_best > asking.last_start || slot.saturating_since(now) > asking.longest;
        is_late.then_some(slot)
    }

    /// Why somebody who waits is to wait no longer.
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

/// It would have to wait for longer than it may.
const fn later(at: Instant) -> Answer {
    Answer::Stop(Stop {
        reason: StopReason::RetryLater,
        retry_at: Some(at),
    })
}
