//! How long a waiting caller waits, and which one is the leader that owns the timer.

use super::Outbound;
use super::admission::{Admission, AdmissionRequest, BlockedBy};
use super::queue::{FALLBACK, OFFER};
use crate::call::stop::{Stop, StopReason};
use crate::destination::circuit_breaker::CircuitBreaker;
use crate::time::Instant;

/// [`FALLBACK`] grows with the number of waiters (breaker) or of those ahead in the queue (rate limit).
/// So waiters cause at most 10,000 requests a second, and a queue at most 100 for each e-fold of its
/// length.
const FALLBACK_EACH: u64 = 100_000;
const FALLBACK_AHEAD: u64 = 10_000_000;

impl Outbound {
    /// Until when a caller in the queue waits before it requests again.
    pub(super) fn wait(
        &mut self,
        now: Instant,
        request: &AdmissionRequest,
        blocked_by: BlockedBy,
    ) -> Admission {
        if !request.may_wait {
            // Only the breaker has queued it, since a probe might have been due. No other caller has seen it there.
            self.remove(&request.waiter());
            if self.nobody_waits() {
                self.due = None;
            }
            return Admission::Stop(Stop::because(StopReason::CircuitBreaker));
        }
        let id = request.id;
        let (own, fallback) = match blocked_by {
            // It has its own timer, and is no leader for others: it may leave without notice.
            BlockedBy::Cooldown => {
                let until = self.queue.held_until(id).unwrap_or(Instant::MAX);
                return Admission::Wait(until.max(now.plus_nanos(1)), blocked_by);
            }
            BlockedBy::RateLimit => {
                // Those ahead may be futures that are not polled, and their slots may be far apart.
                let each = FALLBACK_AHEAD.saturating_mul(self.queue.ahead(id));
                let fallback = now.plus_nanos(FALLBACK.saturating_add(each));
                let slot = self.slot_of(now, id);
                (request.last_start.plus_nanos(1), slot.min(fallback))
            }
            BlockedBy::CircuitBreaker => {
                // The more callers wait, the less often each requests again.
                let each = FALLBACK_EACH.saturating_mul(self.waiting() as u64);
                let fallback = now.plus_nanos(FALLBACK.saturating_add(each));
                let (until, last) = self.queued_until(request);
                let own = last
                    .filter(|last| *last > now)
                    .map_or(until, |last| until.min(last));
                (
                    own,
                    if self.wakes_are_certain {
                        Instant::MAX
                    } else {
                        fallback
                    },
                )
            }
        };
        let becomes_leader = match self.queue.leader() {
            Some(leader) => leader.id == id || is_overdue(leader.at, now),
            None => true,
        };
        let wake_at = if becomes_leader {
            let due = self.due.unwrap_or(Instant::MAX);
            self.queue.set_leader(id, due);
            due
        } else {
            // Another caller owns the timer; this is for the case that it fails.
            fallback.max(now.plus_nanos(OFFER))
        };
        Admission::Wait(wake_at.min(own).max(now.plus_nanos(1)), blocked_by)
    }

    /// When a queued caller gets its slot, if all ahead of it take theirs.
    pub(super) fn slot_of(&mut self, now: Instant, id: u64) -> Instant {
        let ahead = self.queue.ahead(id);
        let rate = self.rate.as_mut();
        rate.map_or(now, |rate| rate.slot_behind(now, ahead).0)
    }

    /// Ensures that a caller is the leader for the next event.
    pub(super) fn appoint_leader(&mut self, now: Instant) {
        let (id, at) = match (self.queue.leader(), self.due) {
            (Some(leader), Some(due)) if due < leader.at => (leader.id, due),
            (Some(_), _) => return,
            (None, _) => {
                let queued = || {
                    self.circuit_breaker
                        .as_ref()
                        .and_then(CircuitBreaker::first_queued)
                };
                let Some(first) = self
                    .queue
                    .first_queued()
                    .map(|first| first.id)
                    .or_else(queued)
                else {
                    // A caller held by the cooldown has its own timer.
                    return;
                };
                (first, now)
            }
        };
        self.queue.set_leader(id, at);
        self.queue.woken.push(id);
    }
}

/// Whether a leader has missed its time.
pub(super) const fn is_overdue(at: Instant, now: Instant) -> bool {
    at.as_nanos().saturating_add(OFFER) <= now.as_nanos()
}
