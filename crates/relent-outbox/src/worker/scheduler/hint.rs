//! What a hint changes: what it names need not be looked for, which costs as much as there are endpoints with work.

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
                // A lane is due when it is new.
            } else if self.lanes.len() + self.acquiring.len() + self.named.fresh.len() < share {
                self.named.fresh.insert(id);
            } else {
                // Others make room for it if it is nobody's, and not if it is another's.
                self.named.sought.insert(id);
                self.look_soon();
            }
        }
    }

    /// The store says that the lane has a message that is due.
    pub(super) fn hear_due(&mut self, id: i64) {
        match self.lanes.get_mut(&id) {
            // It is known, and has no leave before that: a gate is closed. There may be many such.
            Some(lane) if lane.due && lane.wakes.is_some() => {
                lane.due_again |= !lane.claiming.is_empty();
            }
            _ => self.mark_due(id),
        }
    }
}
