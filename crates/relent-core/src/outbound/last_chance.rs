//! How long the circuit breaker may queue a request, and its late first attempt.

use super::waiting::is_overdue;
use super::{Asking, Holding, Outbound, Permit, later_by};
use crate::cooldown::Cooldown;
use crate::gate::{Claim, Gate, Pass};
use crate::time::Instant;

/// A queued request without an attempt makes one when a quarter of its time is left: enough for a
/// response, and late enough for most outages to be over.
const LAST_PART: u64 = 4;

impl Outbound {
    /// Until when it may be queued, and when it makes its late first attempt.
    pub(super) fn parked_until(&self, asking: &Asking) -> (Instant, Option<Instant>) {
        let gate = self.gate.as_ref();
        let until = gate.map_or(asking.since, |gate| patience_ends(gate, asking));
        (until, gate.and_then(|gate| last_chance(gate, asking)))
    }

    /// The late first attempt of a queued request, if it is due and the breaker is down: it would also
    /// be made with retries disabled. A breaker that is limited releases requests at its own rate.
    pub(super) fn take_last_chance(
        &mut self,
        now: Instant,
        asking: &Asking,
        holding: Holding,
        cooldown: &Cooldown,
    ) -> Option<Permit> {
        let gate = self.gate.as_ref().filter(|gate| gate.is_closed())?;
        let at = last_chance(gate, asking)?;
        let parked = holding == Holding::Gate;
        let in_time = at <= now && !is_overdue(at, now);
        let rate = self.rate.as_mut();
        let has_slot = rate.is_none_or(|rate| rate.next_slot(now) <= now);
        if !parked || !in_time || cooldown.is_running(now) || !has_slot {
            return None;
        }
        if !self.gate.as_mut()?.takes_chance(now) {
            return None;
        }
        self.remove(&asking.caller());
        Some(self.permit(now, Some(Pass::new(now, false))))
    }
}

/// Until when the breaker may queue it.
fn patience_ends(gate: &Gate, asking: &Asking) -> Instant {
    if asking.stays {
        return asking.last_start;
    }
    let patience = asking.since.saturating_add(gate.config().patience);
    asking.last_start.min(patience)
}

/// When a queued request without an attempt makes its late first attempt.
pub(super) fn last_chance(gate: &Gate, asking: &Asking) -> Option<Instant> {
    let until = patience_ends(gate, asking).min(asking.answer_by);
    let time = until.nanos_since(asking.since);
    let last = later_by(asking.since, time - time / LAST_PART);
    (asking.claim == Claim::First && !asking.stays).then_some(last)
}
