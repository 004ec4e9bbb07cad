//! Handling of hints: named endpoints need no search for work, which costs as much as there are endpoints with work.

use super::EventLoop;
use crate::store::{Hinted, Store};

impl<S: Store> EventLoop<S> {
    pub(super) fn on_hint(&mut self, hinted: Hinted) {
        let Hinted::Endpoints(named) = hinted else {
            self.search_soon();
            return;
        };
        let share = self.pulse.borrow().share;
        for &id in &*named {
            if self.endpoint_states.contains_key(&id) {
                self.on_due(id);
            } else if self.acquiring.contains(&id) || self.named.owned_elsewhere.contains(&id) {
                // A new endpoint is marked as due.
            } else if self.endpoint_states.len() + self.acquiring.len() + self.named.fresh.len()
                < share
            {
                self.named.fresh.insert(id);
            } else {
                // If it has no owner, others are released for it.
                self.named.to_search.insert(id);
                self.search_soon();
            }
        }
    }

    /// Notes that the endpoint has a due message, according to the store.
    pub(super) fn on_due(&mut self, id: i64) {
        match self.endpoint_states.get_mut(&id) {
            // It is known, and waits for permission, such as at a circuit breaker that is down. There may be many such
            // hints.
            Some(endpoint_state) if endpoint_state.due && endpoint_state.wakes.is_some() => {
                endpoint_state.due_again |= !endpoint_state.claiming.is_empty();
            }
            _ => self.mark_due(id),
        }
    }
}
