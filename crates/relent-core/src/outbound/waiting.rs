//! How long somebody waits who is in the line, and who of them has the timer for all.

use super::release::OFFER;
use super::{Answer, Asking, Holding, Outbound, later_by};
use crate::gate::Gate;
use crate::time::Instant;

/// When somebody who should be woken looks after itself, in nanoseconds: after this, and so much more for each
/// who waits, if the gate has parked it, or for each who is before it in the queue. So those who wait look at
/// most 10,000 times a second, and those who are queued at most 100 times for each e-fold of their number.
pub(super) const FALLBACK: u64 = 1_000_000_000;
const FALLBACK_EACH: u64 = 100_000;
const FALLBACK_AHEAD: u64 = 10_000_000;

impl Outbound {
    /// Until when somebody who is in the line waits before it asks again.
    pub(super) fn wait(&mut self, now: Instant, asking: &Asking, holding: Holding) -> Answer {
        let id = asking.id;
        let (own, fallback) = match holding {
            // It has a timer of its own, and keeps none for others: it may leave without a word.
            Holding::Cooldown => {
                let until = self.line.held_until(id).unwrap_or(Instant::MAX);
                return Answer::Wait(until.max(later_by(now, 1)), holding);
            }
            Holding::RequestRate => {
                // Those before it may be futures that nobody polls, and their slots may be far apart.
                let each = FALLBACK_AHEAD.saturating_mul(self.line.ahead(id));
                let fallback = later_by(now, FALLBACK.saturating_add(each));
                let slot = self.slot_of(now, id);
                (later_by(asking.last_start, 1), slot.min(fallback))
            }
            Holding::Gate => {
                // The more wait, the less often each of them looks after itself.
                let each = FALLBACK_EACH.saturating_mul(self.waiting() as u64);
                let fallback = later_by(now, FALLBACK.saturating_add(each));
                let (until, last) = self.parked_until(asking);
                let own = last
                    .filter(|last| *last > now)
                    .map_or(until, |last| until.min(last));
                (
                    own,
                    if self.wakes_all {
                        Instant::MAX
                    } else {
                        fallback
                    },
                )
            }
        };
        let relieved = match self.line.lookout() {
            Some(lookout) => lookout.id == id || is_overdue(lookout.at, now),
            None => true,
        };
        let helps = if relieved {
            let due = self.due.unwrap_or(Instant::MAX);
            self.line.set_lookout(id, due);
            due
        } else {
            // Somebody else has the timer: this is for the case that it does not come.
            fallback.max(later_by(now, OFFER))
        };
        Answer::Wait(helps.min(own).max(later_by(now, 1)), holding)
    }

    /// When the slot of somebody who is queued comes, if all before it take theirs.
    pub(super) fn slot_of(&mut self, now: Instant, id: u64) -> Instant {
        let ahead = self.line.ahead(id);
        let rate = self.rate.as_mut();
        rate.map_or(now, |rate| rate.slot_behind(now, ahead).0)
    }

    /// Sees to it that somebody has the timer for what comes next.
    pub(super) fn appoint(&mut self, now: Instant) {
        let (id, at) = match (self.line.lookout(), self.due) {
            (Some(lookout), Some(due)) if due < lookout.at => (lookout.id, due),
            (Some(_), _) => return,
            (None, _) => {
                let parked = || self.gate.as_ref().and_then(Gate::first_parked);
                let Some(first) = self.line.first_queued().or_else(parked) else {
                    // Whom the cooldown holds has a timer of its own.
                    return;
                };
                (first, now)
            }
        };
        self.line.set_lookout(id, at);
        self.line.woken.push(id);
    }
}

/// Whether a lookout has not come when it was to.
pub(super) const fn is_overdue(at: Instant, now: Instant) -> bool {
    at.as_nanos().saturating_add(OFFER) <= now.as_nanos()
}
