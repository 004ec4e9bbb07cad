//! Start of store calls: their arguments and preconditions.

use std::future::Future;

use tokio::time::Instant;

use super::{EventLoop, MAX_CALL_ITEMS, MAX_EXTRA_ENDPOINTS};
use crate::observe;
use crate::store::{AfterAttempt, ClaimOrder, ClaimRequest, Settled, Store};
use crate::worker::calls::{CallResult, StoreCall};

impl<S: Store> EventLoop<S> {
    pub(super) fn begin_find(&mut self, now: Instant) {
        let faulty = self
            .endpoint_states
            .values()
            .filter(|endpoint_state| endpoint_state.fault().is_some());
        observe::holding(
            self.endpoint_states.len(),
            self.running.len(),
            faulty.count(),
        );
        self.poll_at = now + self.config.poll;
        let (store, name) = (self.store.clone(), self.config.name.clone());
        let (within, most) = (
            self.config.poll,
            MAX_EXTRA_ENDPOINTS + self.endpoint_states.len(),
        );
        (self.looked_at, self.looked_for) = (now, most);
        self.named.search_started();
        self.begin(StoreCall::Find, async move {
            store
                .find_work(&name, within, most)
                .await
                .map(CallResult::Found)
        });
    }

    pub(super) fn begin_acquire(&mut self) {
        let wanted = (self.named.fresh.len() + self.to_acquire.len()).min(MAX_CALL_ITEMS);
        if wanted == 0 || self.calls.is_busy(StoreCall::Acquire) {
            return;
        }
        let share = self.pulse.borrow().share;
        if share < self.endpoint_states.len() + wanted {
            // Release endpoints that have nothing to do.
            let excess = self.endpoint_states.len() + wanted - share;
            let idle = self
                .endpoint_states
                .iter()
                .filter(|(_, endpoint_state)| !endpoint_state.due && endpoint_state.is_over());
            let idle: Vec<i64> = idle.map(|(id, _)| *id).take(excess).collect();
            for id in idle {
                self.retire_endpoint(id);
            }
        }
        let most = share.saturating_sub(self.endpoint_states.len()).min(wanted);
        if most == 0 {
            // There may be more endpoints, or fewer workers, since the last heartbeat.
            self.to_acquire.clear();
            self.named.fresh.clear();
            self.has_work_beyond_share = true;
            let now = Instant::now();
            if self.nudge_at <= now {
                self.nudge_at = now + self.config.poll;
                self.nudge.notify_one();
            }
            return;
        }
        while self.acquiring.len() < most
            && let Some(id) = (self.named.fresh.pop_first()).or_else(|| self.to_acquire.pop_front())
        {
            // A hint may have named an endpoint that a search has found, and that the worker owns by now.
            if !self.endpoint_states.contains_key(&id) {
                self.acquiring.insert(id);
            }
        }
        if self.acquiring.is_empty() {
            return;
        }
        let endpoints = self.acquiring.iter().copied().collect();
        let (store, name) = (self.store.clone(), self.config.name.clone());
        self.begin(StoreCall::Acquire, async move {
            store
                .acquire(&name, endpoints)
                .await
                .map(CallResult::Acquired)
        });
    }

    pub(super) fn begin_claim(&mut self) {
        if self.ticketed.is_empty() || self.calls.is_busy(StoreCall::Claim) {
            return;
        }
        self.tickets = 0;
        let mut wanted = Vec::with_capacity(self.ticketed.len());
        for id in std::mem::take(&mut self.ticketed) {
            let Some(endpoint_state) = self.endpoint_states.get_mut(&id).filter(|endpoint_state| {
                !endpoint_state.tickets.is_empty()
                    || endpoint_state.refreshing && !endpoint_state.retiring
            }) else {
                continue;
            };
            endpoint_state.claiming = std::mem::take(&mut endpoint_state.tickets);
            let most = endpoint_state.claiming.len();
            let first = match most {
                0 => ClaimOrder::Due,
                _ => endpoint_state.next_first(),
            };
            self.claiming.push((id, most, first));
            wanted.push(ClaimRequest {
                endpoint: id,
                fence: endpoint_state.fence,
                revision: endpoint_state.revision,
                most,
                first,
            });
        }
        if wanted.is_empty() {
            return;
        }
        let (store, name) = (self.store.clone(), self.config.name.clone());
        self.claim_began = Instant::now();
        self.begin(StoreCall::Claim, async move {
            store.claim(&name, wanted).await.map(CallResult::Claimed)
        });
    }

    pub(super) fn begin_settle(&mut self, now: Instant) {
        if self.unsettled.is_empty() || self.ask_at > now || self.calls.is_busy(StoreCall::Settle) {
            return;
        }
        let batch = self.unsettled.len().min(self.settle_batch);
        self.settling = self.unsettled.drain(..batch).collect();
        self.settle_began = now;
        let endpoint_states = &self.endpoint_states;
        let settled = self.settling.iter().map(|pending| {
            let mut settled = pending.settled.clone();
            let endpoint_state = endpoint_states.get(&settled.endpoint);
            settled.health = endpoint_state
                .filter(|endpoint_state| {
                    pending.changes_health && endpoint_state.revision == settled.revision
                })
                .map(|endpoint_state| endpoint_state.health.write());
            if let AfterAttempt::Again(after) = &mut settled.next {
                // The delay counts from the end of the attempt, but the store counts from now.
                *after = after.saturating_sub(now.saturating_duration_since(pending.ended));
            }
            settled
        });
        let settled: Vec<Settled> = settled.collect();
        let store = self.store.clone();
        self.begin(StoreCall::Settle, async move {
            store.settle(settled).await.map(CallResult::Settled)
        });
    }

    pub(super) fn begin_release(&mut self) {
        if self.to_release.is_empty() || self.calls.is_busy(StoreCall::Release) {
            return;
        }
        let endpoints = std::mem::take(&mut self.to_release);
        let (store, name) = (self.store.clone(), self.config.name.clone());
        self.begin(StoreCall::Release, async move {
            store
                .release(&name, endpoints)
                .await
                .map(|()| CallResult::Released)
        });
    }

    fn begin(
        &mut self,
        kind: StoreCall,
        call: impl Future<Output = Result<CallResult, S::Error>> + Send + 'static,
    ) {
        self.calls.begin(kind, self.config.lease, call);
    }
}
