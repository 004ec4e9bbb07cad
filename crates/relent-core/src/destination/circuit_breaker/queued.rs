//! Queued requests, earliest deadline first. Nothing else is kept of them, since a million may wait.

use super::attempt::Waiter;
use crate::ordered_map::OrderedMap;
use crate::time::Instant;

#[derive(Default, Debug)]
pub(super) struct Queue(OrderedMap<Waiter, ()>);

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn add(&mut self, caller: Waiter) {
        self.0.insert(caller, ());
    }

    pub(super) fn remove(&mut self, caller: &Waiter) {
        self.0.remove(caller);
    }

    /// Whether any queued request can still get its response at `answered`.
    pub(super) fn has_any(&self, answered: Instant) -> bool {
        self.0
            .last()
            .is_some_and(|(last, ())| last.until >= answered)
    }

    /// Takes the first request that can still get its response at `answered`.
    pub(super) fn take_first(&mut self, answered: Instant) -> Option<Waiter> {
        let least = Waiter {
            until: answered,
            since: Instant::ORIGIN,
            id: 0,
        };
        let (caller, ()) = *self.0.first_from(&least)?;
        self.0.remove(&caller);
        Some(caller)
    }

    pub(super) fn has(&self, caller: &Waiter) -> bool {
        self.0.get(caller).is_some()
    }

    pub(super) fn first(&self) -> Option<u64> {
        self.0.first().map(|(caller, ())| caller.id)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = u64> {
        self.0.all().into_iter().map(|(caller, ())| caller.id)
    }

    pub(super) fn take_last(&mut self) -> Option<Waiter> {
        let (caller, ()) = *self.0.last()?;
        self.0.remove(&caller);
        Some(caller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queued_request_takes_24_bytes() {
        assert_eq!(size_of::<(Waiter, ())>(), 24);
    }
}
