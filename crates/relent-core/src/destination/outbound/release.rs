//! Offers permits to waiting callers: which one is next, and when.

use super::Outbound;
use super::queue::{FALLBACK, OFFER};
use crate::destination::circuit_breaker::BreakerPermit;
use crate::destination::cooldown::Cooldown;
use crate::random::Random;
use crate::time::Instant;

impl Outbound {
    /// When [`settle`](Self::settle) next has something to do if nothing happens before; `None` if no
    /// caller waits. For drivers with a single timer, such as a simulator.
    #[must_use]
    pub const fn due(&self) -> Option<Instant> {
        self.due
    }

    pub(super) fn next(&mut self, now: Instant, cooldown: &Cooldown) -> Option<Instant> {
        let cooldown_end = now.saturating_add(cooldown.left(now));
        let slot = self.rate.as_mut().map_or(now, |rate| rate.next_slot(now));
        let queued = self.queue.first_queued().map(|_| slot);
        let circuit_breaker = self.circuit_breaker.as_mut();
        let breaker_due =
            circuit_breaker.and_then(|circuit_breaker| circuit_breaker.next_release(now));
        let breaker_due = breaker_due.map(|at| at.max(slot).max(cooldown_end));
        let nexts = [
            self.queue.first_held(),
            self.queue.first_expiry(),
            queued,
            breaker_due,
        ];
        nexts.into_iter().flatten().min()
    }

    /// Makes the offers that are due and withdraws expired ones. All other calls do this themselves.
    #[inline]
    pub fn settle(&mut self, now: Instant, cooldown: &Cooldown, random: &mut impl Random) {
        if self.due.is_some_and(|due| due <= now) {
            self.release(now, cooldown, random);
            self.due = self.next(now, cooldown);
        }
    }

    fn release(&mut self, now: Instant, cooldown: &Cooldown, random: &mut impl Random) {
        while let Some(permit) = self.queue.take_expired(now) {
            self.give_back(now, permit, random);
        }
        self.respread_late(now);
        while let Some(request) = self.queue.first_hold_ended(now) {
            // It was not checked yet whether its slot comes in time.
            match self.too_late(now, self.queue.queued() as u64, &request) {
                Some(_) => self.queue.skip(request.id),
                None => self.queue.queue(&request),
            }
        }
        let cooling = cooldown.is_running(now);
        loop {
            let rate = self.rate.as_mut();
            if rate.is_some_and(|rate| rate.next_slot(now) > now) {
                return;
            }
            if !cooling
                && let Some(circuit_breaker) = &mut self.circuit_breaker
                && let Some((caller, breaker_permit)) = circuit_breaker.release(now)
            {
                self.offer(now, caller.id, Some(breaker_permit));
                continue;
            }
            let Some(request) = self.queue.first_queued() else {
                return;
            };
            if now > request.last_start {
                // It gets the result when it requests again.
                self.queue.skip(request.id);
                continue;
            }
            if cooling && !request.rate_limit_only {
                // A cooldown has begun since it arrived.
                let room = request.last_start.saturating_since(now);
                let wait = cooldown.wait(now, room, request.jitter, random);
                self.queue.hold(&request, now.saturating_add(wait));
                self.queue.woken.push(request.id);
                continue;
            }
            let mut breaker_permit = None;
            if let Some(circuit_breaker) = self
                .circuit_breaker
                .as_mut()
                .filter(|_| !request.rate_limit_only)
            {
                breaker_permit = circuit_breaker.admit(now, request.waiter(), request.kind);
                if breaker_permit.is_none() {
                    self.queue.move_to_breaker(request.id);
                    self.queue.woken.push(request.id);
                    continue;
                }
            }
            self.offer(now, request.id, breaker_permit);
        }
    }

    /// Callers whose cooldown ended while no timer ran, such as during a suspend, keep their jitter
    /// from now on; otherwise they would all go together. Each is delayed only once, by at most its
    /// lateness, so none starves if the driver is always late.
    fn respread_late(&mut self, now: Instant) {
        let before = self.respread_until;
        let first = self.queue.first_held_after(before);
        let Some(first) = first.filter(|first| now.nanos_since(*first) > FALLBACK) else {
            return;
        };
        let mut last = now;
        self.queue.change_holds(|request, until| {
            if until <= before || until > now {
                return until;
            }
            let again = now
                .plus_nanos(until.nanos_since(first))
                .min(request.last_start);
            last = last.max(again);
            again
        });
        self.respread_until = last;
    }

    fn offer(&mut self, now: Instant, id: u64, breaker_permit: Option<BreakerPermit>) {
        let permit = self.permit(now, breaker_permit);
        self.queue.offer(id, now.plus_nanos(OFFER), permit);
    }
}
