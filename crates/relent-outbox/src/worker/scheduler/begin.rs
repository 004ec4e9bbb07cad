//! Start of store calls: their arguments and preconditions.

use std::future::Future;

use tokio::time::Instant;

use super::{BATCH, LOOK, Scheduler};
use crate::observe;
use crate::store::{First, Next, Settled, Store, Wanted};
use crate::worker::calls::{Done, Kind};

impl<S: Store> Scheduler<S> {
    pub(super) fn begin_find(&mut self, now: Instant) {
        let faulty = self.lanes.values().filter(|lane| lane.fault().is_some());
        observe::holding(self.lanes.len(), self.running.len(), faulty.count());
        self.poll_at = now + self.config.poll;
        let (store, name) = (self.store.clone(), self.config.name.clone());
        let (within, most) = (self.config.poll, LOOK + self.lanes.len());
        (self.looked_at, self.looked_for) = (now, most);
        self.named.look_begins();
        self.begin(Kind::Find, async move {
            store.find_work(&name, within, most).await.map(Done::Found)
        });
    }

    pub(super) fn begin_acquire(&mut self) {
        let wanted = (self.named.fresh.len() + self.to_acquire.len()).min(BATCH);
        if wanted == 0 || self.calls.is_busy(Kind::Acquire) {
            return;
        }
        let share = self.pulse.borrow().share;
        if share < self.lanes.len() + wanted {
            // Release endpoints that have nothing to do.
            let excess = self.lanes.len() + wanted - share;
            let idle = self
                .lanes
                .iter()
                .filter(|(_, lane)| !lane.due && lane.is_over());
            let idle: Vec<i64> = idle.map(|(id, _)| *id).take(excess).collect();
            for id in idle {
                self.leave(id);
            }
        }
        let most = share.saturating_sub(self.lanes.len()).min(wanted);
        if most == 0 {
            // There may be more endpoints, or fewer workers, since the last heartbeat.
            self.to_acquire.clear();
            self.named.fresh.clear();
            self.is_short = true;
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
            if !self.lanes.contains_key(&id) {
                self.acquiring.insert(id);
            }
        }
        if self.acquiring.is_empty() {
            return;
        }
        let endpoints = self.acquiring.iter().copied().collect();
        let (store, name) = (self.store.clone(), self.config.name.clone());
        self.begin(Kind::Acquire, async move {
            store.acquire(&name, endpoints).await.map(Done::Acquired)
        });
    }

    pub(super) fn begin_claim(&mut self) {
        if self.ticketed.is_empty() || self.calls.is_busy(Kind::Claim) {
            return;
        }
        self.tickets = 0;
        let mut wanted = Vec::with_capacity(self.ticketed.len());
        for id in std::mem::take(&mut self.ticketed) {
            let Some(lane) = self
                .lanes
                .get_mut(&id)
                .filter(|lane| !lane.tickets.is_empty() || lane.refreshing && !lane.leaving)
            else {
                continue;
            };
            lane.claiming = std::mem::take(&mut lane.tickets);
            let most = lane.claiming.len();
            let first = match most {
                0 => First::Due,
                _ => lane.next_first(),
            };
            self.claiming.push((id, most, first));
            wanted.push(Wanted {
                endpoint: id,
                fence: lane.fence,
                revision: lane.revision,
                most,
                first,
            });
        }
        if wanted.is_empty() {
            return;
        }
        let (store, name) = (self.store.clone(), self.config.name.clone());
        self.claim_began = Instant::now();
        self.begin(Kind::Claim, async move {
            store.claim(&name, wanted).await.map(Done::Claimed)
        });
    }

    pub(super) fn begin_settle(&mut self, now: Instant) {
        if self.unsettled.is_empty() || self.ask_at > now || self.calls.is_busy(Kind::Settle) {
            return;
        }
        let batch = self.unsettled.len().min(self.settle_batch);
        self.settling = self.unsettled.drain(..batch).collect();
        self.settle_began = now;
        let lanes = &self.lanes;
        let settled = self.settling.iter().map(|pending| {
            let mut settled = pending.settled.clone();
            let lane = lanes.get(&settled.endpoint);
            settled.health = lane
                .filter(|lane| pending.changes_health && lane.revision == settled.revision)
                .map(|lane| lane.health.write());
            if let Next::Again(after) = &mut settled.next {
                // The delay counts from the end of the attempt, but the store counts from now.
                *after = after.saturating_sub(now.saturating_duration_since(pending.ended));
            }
            settled
        });
        let settled: Vec<Settled> = settled.collect();
        let store = self.store.clone();
        self.begin(Kind::Settle, async move {
            store.settle(settled).await.map(Done::Settled)
        });
    }

    pub(super) fn begin_release(&mut self) {
        if self.to_release.is_empty() || self.calls.is_busy(Kind::Release) {
            return;
        }
        let endpoints = std::mem::take(&mut self.to_release);
        let (store, name) = (self.store.clone(), self.config.name.clone());
        self.begin(Kind::Release, async move {
            store
                .release(&name, endpoints)
                .await
                .map(|()| Done::Released)
        });
    }

    fn begin(
        &mut self,
        kind: Kind,
        call: impl Future<Output = Result<Done, S::Error>> + Send + 'static,
    ) {
        self.calls.begin(kind, self.config.lease, call);
    }
}
