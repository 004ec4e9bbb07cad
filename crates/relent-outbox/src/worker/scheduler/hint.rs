//! Handling of hints: named endpoints need no search for work, which costs as much as there are endpoints with work.

use super::Scheduler;
use crate::store::{Hinted, Store};

impl<S: Store> Scheduler<S> {
    pub(super) fn on_hint(&mut self, hinted: Hinted) {
        let Hinted::Endpoints(named) = hinted else {
            self.look_soon();
            return;
        };
        let share = self.pulse.borrow().share;
        for &id in &*named {
            if self.lanes.contains_key(&id) {
                self.hear_due(id);
            } else if self.acquiring.contains(&id) || self.named.elsewhere.contains(&id) {
                // A new endpoint is marked as due.
            } else if self.lanes.len() + self.acquiring.len() + self.named.fresh.len() < share {
                self.named.fresh.insert(id);
            } else {
                // If it has no owner, others are released for it.
                self.named.sought.insert(id);
                self.look_soon();
            }
        }
    }

    /// Notes that the endpoint has a due message, according to the store.
    pub(super) fn hear_due(&mut self, id: i64) {
        match self.lanes.get_mut(&id) {
            // It is known, and waits for permission, such as at a circuit breaker that is down. There may be many such
            // hints.
            Some(lane) if lane.due && lane.wakes.is_some() => {
                lane.due_again |= !lane.claiming.is_empty();
            }
            _ => self.mark_due(id),
        }
    }
}
