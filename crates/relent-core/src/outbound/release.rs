//! Offers permits to waiting callers: which one is next, and when.

use super::waiting::FALLBACK;
use super::{Outbound, later_by};
use crate::cooldown::Cooldown;
use crate::gate::Pass;
use crate::random::Random;
use crate::time::Instant;

/// How long an offer is valid, in nanoseconds: enough for a late runtime, and short compared with waits
/// for the breaker or the rate limit.
pub(super) const OFFER: u64 = 100_000_000;

impl Outbound {
    /// When [`settle`](Self::settle) next has something to do if nothing happens before; `None` if no
    /// caller waits. For drivers with a single timer, such as a simulator.
    #[must_use]
    pub const fn due(&self) -> Option<Instant> {
        self.due
    }

    pub(super) fn next(&mut self, now: Instant, cooldown: &Cooldown) -> Option<Instant> {
        let cooled = now.saturating_add(cooldown.left(now));
        let slot = self.rate.as_mut().map_or(now, |rate| rate.next_slot(now));
        let queued = self.line.first_queued().map(|_| slot);
        let gate = self.gate.as_mut();
        let parked = gate.and_then(|gate| gate.next_release(now));
        let parked = parked.map(|at| at.max(slot).max(cooled));
        let nexts = [
            self.line.first_held(),
            self.line.first_expiry(),
            queued,
            parked,
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
        while let Some(permit) = self.line.take_expired(now) {
            self.give_back(now, permit, random);
        }
        self.stay_spread(now);
        while let Some(asking) = self.line.first_held_by(now) {
            // It was not checked yet whether its slot comes in time.
            match self.too_late(now, self.line.queued() as u64, &asking) {
                Some(_) => self.line.pass_over(asking.id),
                None => self.line.queue(&asking),
            }
        }
        let cooling = cooldown.is_running(now);
        loop {
            let rate = self.rate.as_mut();
            if rate.is_some_and(|rate| rate.next_slot(now) > now) {
                return;
            }
            if !cooling
                && let Some(gate) = &mut self.gate
                && let Some((caller, pass)) = gate.release(now)
            {
                self.offer(now, caller.id, Some(pass));
                continue;
            }
            let Some(asking) = self.line.all_queued().next() else {
                return;
            };
            if now > asking.last_start {
                // It gets the result when it requests again.
                self.line.pass_over(asking.id);
                continue;
            }
            if cooling && !asking.paced_only {
                // A cooldown has begun since it arrived.
                let room = asking.last_start.saturating_since(now);
                let wait = cooldown.wait(now, room, asking.spread, random);
                self.line.hold(&asking, now.saturating_add(wait));
                self.line.woken.push(asking.id);
                continue;
            }
            let mut pass = None;
            if let Some(gate) = self.gate.as_mut().filter(|_| !asking.paced_only) {
                pass = gate.admit(now, asking.caller(), asking.claim);
                if pass.is_none() {
                    self.line.park(asking.id);
                    self.line.woken.push(asking.id);
                    continue;
                }
            }
            self.offer(now, asking.id, pass);
        }
    }

    /// Callers whose cooldown ended while no timer ran, such as during a suspend, keep their jitter
    /// from now on; otherwise they would all go together. Each is delayed only once, by at most its
    /// lateness, so none starves if the driver is always late.
    fn stay_spread(&mut self, now: Instant) {
        let before = self.spread_again;
        let first = self.line.first_held_after(before);
        let Some(first) = first.filter(|first| now.nanos_since(*first) > FALLBACK) else {
            return;
        };
        let mut last = now;
        self.line.hold_again(|asking, until| {
            if until <= before || until > now {
                return until;
            }
            let again = later_by(now, until.nanos_since(first)).min(asking.last_start);
            last = last.max(again);
            again
        });
        self.spread_again = last;
    }

    fn offer(&mut self, now: Instant, id: u64, pass: Option<Pass>) {
        let permit = self.permit(now, pass);
        self.line.offer(id, later_by(now, OFFER), permit);
    }
}
