//! Decides requests for admission.

use super::Outbound;
use super::admission::{Admission, AdmissionRequest, BlockedBy};
use super::late_first_attempt::late_first_attempt;
use crate::call::stop::{Stop, StopReason};
use crate::destination::circuit_breaker::BreakerPermit;
use crate::destination::cooldown::Cooldown;
use crate::random::Random;
use crate::time::Instant;

impl Outbound {
    /// Requests admission for a caller that does not wait yet. A caller that has to wait [requests
    /// again](Self::admit_again) when it is woken, and at the instant that it got.
    #[inline]
    pub fn admit(
        &mut self,
        now: Instant,
        request: &AdmissionRequest,
        cooldown: &Cooldown,
        random: &mut impl Random,
    ) -> Admission {
        self.settle(now, cooldown, random);
        let answer = match self.arrive(now, request, cooldown, random) {
            Ok(answer) => answer,
            Err(blocked_by) => {
                self.due = self.next(now, cooldown);
                if self.due.is_some_and(|due| due <= now) {
                    // It joined the queue, but need not wait there.
                    return self.admit_again(now, request, cooldown, random);
                }
                self.wait(now, request, blocked_by)
            }
        };
        if !self.nobody_waits() {
            self.appoint_leader(now);
        }
        answer
    }

    /// Requests admission again for a caller that waits.
    pub fn admit_again(
        &mut self,
        now: Instant,
        request: &AdmissionRequest,
        cooldown: &Cooldown,
        random: &mut impl Random,
    ) -> Admission {
        self.settle(now, cooldown, random);
        if let Some(mut permit) = self.queue.take_offer(request.id) {
            if now > request.last_start {
                self.cancel(now, permit, cooldown, random);
                return Admission::TooLate;
            }
            if !request.rate_limit_only && cooldown.is_running(now) {
                // The cooldown has begun since the offer.
                self.cancel(now, permit, cooldown, random);
                return self.admit(now, request, cooldown, random);
            }
            permit.restart(now);
            // The end of the offer needs no timer any more.
            self.due = match self.nobody_waits() {
                true => None,
                false => self.next(now, cooldown),
            };
            self.appoint_leader(now);
            return Admission::Start(permit);
        }
        let Some(blocked_by) = self.blocked_by(&request.waiter()) else {
            // Its offer has expired.
            self.queue.remove(request.id);
            if self.nobody_waits() {
                self.due = None;
            }
            return self.admit(now, request, cooldown, random);
        };
        if let Some(answer) = self.gives_up(now, request, blocked_by, cooldown) {
            // The next waiter may get its place.
            self.remove(&request.waiter());
            self.changed(now, cooldown, random);
            return answer;
        }
        if let Some(permit) = self.take_late_first_attempt(now, request, blocked_by, cooldown) {
            self.changed(now, cooldown, random);
            return Admission::Start(permit);
        }
        let answer = self.wait(now, request, blocked_by);
        self.appoint_leader(now);
        answer
    }

    /// Handles a caller that is not in the queue. An error is the reason why it was put there.
    #[inline]
    fn arrive(
        &mut self,
        now: Instant,
        request: &AdmissionRequest,
        cooldown: &Cooldown,
        random: &mut impl Random,
    ) -> Result<Admission, BlockedBy> {
        if now > request.last_start {
            return Ok(Admission::TooLate);
        }
        if !request.rate_limit_only && cooldown.is_running(now) {
            let left = cooldown.left(now);
            let room = request.last_start.saturating_since(now);
            let wait = cooldown.wait(now, room, request.jitter, random);
            if wait > room || !request.may_wait {
                return Ok(later(now.saturating_add(left)));
            }
            self.queue.hold(request, now.saturating_add(wait));
            return Err(BlockedBy::Cooldown);
        }
        if let Some(rate) = &mut self.rate {
            let ahead = self.queue.queued() as u64;
            if ahead > 0 || rate.next_slot(now) > now {
                if let Some(slot) = self.too_late(now, ahead, request) {
                    return Ok(later(slot));
                }
                self.queue.queue(request);
                return Err(BlockedBy::RateLimit);
            }
        }
        let mut breaker_permit = None;
        if let Some(circuit_breaker) = self
            .circuit_breaker
            .as_mut()
            .filter(|_| !request.rate_limit_only)
        {
            breaker_permit = circuit_breaker.admit(now, request.waiter(), request.kind);
            let is_late =
                || late_first_attempt(circuit_breaker, request).is_some_and(|at| at <= now);
            if breaker_permit.is_none()
                && is_late()
                && circuit_breaker.grants_late_first_attempt(now)
            {
                // It was held or queued before, and is too late for another chance.
                circuit_breaker.forget(&request.waiter());
                breaker_permit = Some(BreakerPermit::new(now, false));
            }
            if breaker_permit.is_none() {
                return Err(BlockedBy::CircuitBreaker);
            }
        }
        Ok(Admission::Start(self.permit(now, breaker_permit)))
    }

    /// When a caller behind `ahead` others would get its slot, if that is too late for it, or it may not wait.
    pub(super) fn too_late(
        &mut self,
        now: Instant,
        ahead: u64,
        request: &AdmissionRequest,
    ) -> Option<Instant> {
        // A reduced rate recovers: no caller is rejected because of a short reduction.
        let (slot, at_best) = self.rate.as_mut()?.slot_behind(now, ahead);
        let is_late = at_best > request.last_start || slot.saturating_since(now) > request.longest;
        (is_late || !request.may_wait).then_some(slot)
    }

    /// The result for a caller that may not wait any longer.
    fn gives_up(
        &mut self,
        now: Instant,
        request: &AdmissionRequest,
        blocked_by: BlockedBy,
        cooldown: &Cooldown,
    ) -> Option<Admission> {
        let cooled = now.saturating_add(cooldown.left(now));
        if !request.rate_limit_only && cooled > now && cooled > request.last_start {
            return Some(later(cooled));
        }
        match blocked_by {
            BlockedBy::CircuitBreaker if now >= self.queued_until(request).0 => {
                Some(Admission::Stop(Stop {
                    reason: StopReason::CircuitBreaker,
                    retry_at: None,
                }))
            }
            BlockedBy::RateLimit if now > request.last_start => {
                Some(later(self.slot_of(now, request.id)))
            }
            _ => None,
        }
    }
}

/// The wait would exceed the caller's limit.
const fn later(at: Instant) -> Admission {
    Admission::Stop(Stop {
        reason: StopReason::RetryLater,
        retry_at: Some(at),
    })
}
