//! Hints, searches, acquisitions and releases. Endpoints that hints name need no search, which costs as much as there
//! are endpoints with work.

use std::time::Duration;

use tokio::time::Instant;

use super::EventLoop;
use crate::observe;
use crate::store::{EndpointWork, Hinted, OwnedEndpoint, Store};
use crate::worker::endpoint_state::EndpointState;
use crate::worker::store_calls::{CallResult, MAX_CALL_ITEMS, StoreCall};

/// The longest time until the next search after a failed acquisition.
const ACQUIRE_RETRY_WAIT: Duration = Duration::from_secs(5);

impl<S: Store> EventLoop<S> {
    pub(super) fn on_hint(&mut self, now: Instant, hinted: Hinted) {
        let Hinted::Endpoints(named) = hinted else {
            self.search.soon(now);
            return;
        };
        let share = self.lease.share();
        for &id in &*named {
            if self.endpoints.contains_key(&id) {
                self.on_due(id);
            } else if self.ownership.ignores_hint(id) {
                // A new endpoint is marked as due.
            } else if self.endpoints.len() + self.ownership.hinted() < share {
                self.ownership.hint(id);
            } else {
                self.ownership.hint_beyond_share(id);
                self.search.soon(now);
            }
        }
    }

    pub(super) fn begin_find(&mut self, now: Instant) {
        let owned = self.endpoints.len();
        let endpoints = self.endpoints.values();
        let faulty = endpoints.filter(|endpoint| endpoint.fault.fault().is_some());
        let faulty = faulty.count().max((!self.ability.is_able()).into());
        observe::holding(owned, self.in_flight.len(), faulty);
        let (within, most) = (self.setup.config.poll, self.search.begin(now, owned));
        self.ownership.search_begins();
        let (store, name) = (self.setup.store.clone(), self.setup.config.name.clone());
        self.calls.begin(StoreCall::Find, async move {
            let found = store.find_work(&name, within, most).await;
            found.map(CallResult::Found)
        });
    }

    pub(super) fn on_found(&mut self, now: Instant, found: Vec<EndpointWork>) {
        let is_truncated = self.search.found(found.len());
        let ids = found.iter().map(|work| work.endpoint);
        self.ownership.search_ends(ids, is_truncated);
        let mut is_new = false;
        let share = self.lease.share();
        for work in found {
            let EndpointWork {
                endpoint: id,
                owned,
                due,
                revision,
            } = work;
            if let Some(endpoint) = self.endpoints.get_mut(&id) {
                let registration = &mut endpoint.registration;
                // The search does not know of acquisitions after its start.
                let is_older = registration.acquired < self.search.began();
                if owned != Some(registration.fence) && is_older {
                    // Another worker had it meanwhile.
                    self.retire(now, id);
                    continue;
                }
                // The registration has changed: running attempts end by the old rules, new ones start by the new rules.
                let is_stale = registration.revision != revision && is_older;
                registration.is_stale |= is_stale;
                is_new |= due.is_zero() && !endpoint.demand.is_due();
                if is_stale {
                    self.queue.push(id);
                }
                match due.is_zero() {
                    true => self.on_due(id),
                    false => self.queue.due_at(id, now + due),
                }
            } else if !self.permissions.is_stopping() && !self.ownership.is_acquiring(id) {
                match owned {
                    // This worker owns it, because a response was lost or a release failed. While it is beyond this
                    // worker's share, no other worker could acquire it.
                    Some(fence) if self.endpoints.len() >= share => {
                        self.ownership.release(id, fence, true);
                    }
                    _ => self.ownership.found(id),
                }
            }
        }
        if is_truncated && is_new {
            // There may be more behind those; the next search also covers them.
            self.search.again(now);
        }
    }

    pub(super) fn begin_acquire(&mut self, now: Instant) {
        let wanted = self.ownership.wanted().min(MAX_CALL_ITEMS);
        if wanted == 0 || self.calls.is_busy(StoreCall::Acquire) {
            return;
        }
        let share = self.lease.share();
        let excess = (self.endpoints.len() + wanted).saturating_sub(share);
        if excess > 0 {
            // Release endpoints that have nothing to do.
            let endpoints = self.endpoints.iter();
            let idle =
                endpoints.filter(|(_, endpoint)| !endpoint.demand.is_due() && endpoint.is_over());
            let idle: Vec<i64> = idle.map(|(id, _)| *id).take(excess).collect();
            for id in idle {
                self.retire(now, id);
            }
        }
        let most = share.saturating_sub(self.endpoints.len()).min(wanted);
        if most == 0 {
            self.ownership.want_none();
            self.lease.work_beyond_share(now, self.setup.config.poll);
            return;
        }
        let endpoints = &self.endpoints;
        let acquired = self
            .ownership
            .begin_acquire(most, |id| endpoints.contains_key(id));
        if acquired.is_empty() {
            return;
        }
        let (store, name) = (self.setup.store.clone(), self.setup.config.name.clone());
        self.calls.begin(StoreCall::Acquire, async move {
            let acquired = store.acquire(&name, acquired).await;
            acquired.map(CallResult::Acquired)
        });
    }

    pub(super) fn on_acquired(&mut self, now: Instant, acquired: Vec<OwnedEndpoint>) {
        self.ownership
            .end_acquire(acquired.iter().map(|owned| owned.id));
        if self.search.was_truncated() && !acquired.is_empty() {
            self.search.soon(now);
        }
        for owned in acquired {
            let (id, setup) = (owned.id, &self.setup);
            let rules = |endpoint| setup.rules(endpoint);
            let endpoint = EndpointState::new(now, owned, rules, setup.config.slow_after);
            self.endpoints.insert(id, endpoint);
            self.mark_due(id);
            if self.permissions.is_stopping() {
                self.retire(now, id);
            }
        }
    }

    /// Any acquired endpoint is found as this worker's, and acquired again. The store may work, and an endpoint be
    /// unreadable by this version. Other calls therefore do not wait, and no hint requests it again.
    pub(super) fn on_acquire_failed(&mut self, now: Instant) {
        self.ownership.end_acquire(std::iter::empty());
        self.search.within(now, ACQUIRE_RETRY_WAIT);
    }

    pub(super) fn begin_release(&mut self) {
        if !self.ownership.has_releases() || self.calls.is_busy(StoreCall::Release) {
            return;
        }
        let endpoints = self.ownership.begin_release();
        let (store, name) = (self.setup.store.clone(), self.setup.config.name.clone());
        self.calls.begin(StoreCall::Release, async move {
            let released = store.release(&name, endpoints).await;
            released.map(|()| CallResult::Released)
        });
    }

    pub(super) fn on_released(&mut self, now: Instant) {
        if self.ownership.end_release() && !self.permissions.is_stopping() {
            self.search.soon(now);
        }
    }
}
