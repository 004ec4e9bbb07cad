//! How long the circuit breaker may queue a request, and its late first attempt.

use super::Outbound;
use super::admission::{AdmissionRequest, BlockedBy};
use super::permit::Permit;
use super::waiting::is_overdue;
use crate::destination::circuit_breaker::{AttemptKind, BreakerPermit, CircuitBreaker};
use crate::destination::cooldown::Cooldown;
use crate::time::Instant;

/// A queued request without an attempt makes one when a quarter of its time is left: enough for a
/// response, and late enough for most outages to be over.
const REMAINING_TIME_DIVISOR: u64 = 4;

impl Outbound {
    /// Until when it may be queued, and when it makes its late first attempt.
    pub(super) fn queued_until(&self, request: &AdmissionRequest) -> (Instant, Option<Instant>) {
        let circuit_breaker = self.circuit_breaker.as_ref();
        let until = circuit_breaker.map_or(request.since, |circuit_breaker| {
            max_queue_time_ends(circuit_breaker, request)
        });
        (
            until,
            circuit_breaker
                .and_then(|circuit_breaker| late_first_attempt(circuit_breaker, request)),
        )
    }

    /// The late first attempt of a queued request, if it is due and the breaker is down: it would also
    /// be made with retries disabled. A breaker that is limited releases requests at its own rate.
    pub(super) fn take_late_first_attempt(
        &mut self,
        now: Instant,
        request: &AdmissionRequest,
        blocked_by: BlockedBy,
        cooldown: &Cooldown,
    ) -> Option<Permit> {
        let circuit_breaker = self
            .circuit_breaker
            .as_ref()
            .filter(|circuit_breaker| circuit_breaker.is_down())?;
        let at = late_first_attempt(circuit_breaker, request)?;
        let queued = blocked_by == BlockedBy::CircuitBreaker;
        let in_time = at <= now && !is_overdue(at, now);
        let rate = self.rate.as_mut();
        let has_slot = rate.is_none_or(|rate| rate.next_slot(now) <= now);
        if !queued || !in_time || cooldown.is_running(now) || !has_slot {
            return None;
        }
        if !self
            .circuit_breaker
            .as_mut()?
            .grants_late_first_attempt(now)
        {
            return None;
        }
        self.remove(&request.waiter());
        Some(self.permit(now, Some(BreakerPermit::new(now, false))))
    }
}

/// Until when the breaker may queue it.
fn max_queue_time_ends(circuit_breaker: &CircuitBreaker, request: &AdmissionRequest) -> Instant {
    if request.waits_without_limit {
        return request.last_start;
    }
    let patience = request
        .since
        .saturating_add(circuit_breaker.config().max_queue_time);
    request.last_start.min(patience)
}

/// When a queued request without an attempt makes its late first attempt.
pub(super) fn late_first_attempt(
    circuit_breaker: &CircuitBreaker,
    request: &AdmissionRequest,
) -> Option<Instant> {
    let until = max_queue_time_ends(circuit_breaker, request).min(request.answer_by);
    let time = until.nanos_since(request.since);
    let last = request
        .since
        .plus_nanos(time - time / REMAINING_TIME_DIVISOR);
    (request.kind == AttemptKind::First && !request.waits_without_limit).then_some(last)
}
