//! Handling of store responses, finished attempts and heartbeats.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use relent_core::{Backoff, Decision, Failure, Policy, Scope, Session};
use tokio::task::{Id, JoinError};
use tokio::time::Instant;

use super::{BATCH, LOOK_GAP, Named, Pending, Running, Scheduler, TICK};
use crate::acknowledgement::MAX_EXCERPT;
use crate::fault::{LONGEST_WAIT, LocalFault};
use crate::observe;
use crate::schedule::Schedule;
use crate::sender::Sent;
use crate::store::{
    AttemptRecord, Claimed, Claims, Confirm, First, GRANT, INLINE, Next, Settled, Store, Work,
    millis,
};
use crate::text::printable;
use crate::worker::attempt::{Job, Unmade, broken_off};
use crate::worker::beat::{Leave, Pulse};
use crate::worker::calls::{Done, Kind};
use crate::worker::lane::{Lane, Ticket};
use crate::worker::slots::Pool;

/// The longest time until the next search after a failed acquisition.
const ACQUIRE_AGAIN: Duration = Duration::from_secs(5);

/// The number of leases after which a worker below its share tries again to acquire endpoints of other workers. Each
/// try costs as much as there are such endpoints, as they are named by hints.
const ASK_AGAIN_AFTER: u32 = 4;

/// An attempt holds a slot of fast endpoints for this fraction of `slow_after`.
const TURNS_AFTER: u32 = 10;

/// The retry policy for a failing store.
static ASK_AGAIN: Policy = Policy::builder(Backoff::exponential(Duration::from_millis(100)))
    .max_delay(Duration::from_secs(5))
    .unlimited_retries()
    .build_const();

impl<S: Store> Scheduler<S> {
    pub(super) fn on_call(&mut self, kind: Kind, result: Result<Done, String>) {
        let now = Instant::now();
        match result {
            Ok(done) => {
                self.away = None;
                match done {
                    Done::Found(work) => self.on_found(now, work),
                    Done::Acquired(owned) => {
                        let wanted = std::mem::take(&mut self.acquiring);
                        let has = owned.iter().map(|owned| owned.id).collect();
                        self.named.acquired(&wanted, &has);
                        if self.is_cut && !owned.is_empty() {
                            self.look_soon();
                        }
                        for owned in owned {
                            let id = owned.id;
                            let lane = Lane::new(owned, now, &self.sender, &self.secrets);
                            self.lanes.insert(id, lane);
                            self.mark_due(id);
                            if self.stopping {
                                self.leave(id);
                            }
                        }
                    }
                    Done::Claimed(claimed) => self.on_claimed(now, claimed),
                    Done::Settled(written) => self.on_settled(now, &written),
                    Done::Released => {
                        if std::mem::take(&mut self.release_due) && !self.stopping {
                            self.look_soon();
                        }
                    }
                }
            }
            Err(error) => {
                observe::store_error(kind.name(), &error);
                match kind {
                    Kind::Acquire => {
                        // Any acquired endpoint is found as this worker's, and acquired again. The store may work, and
                        // an endpoint be unreadable by this version. Other calls therefore do not wait, and no hint
                        // requests it again.
                        let wanted = std::mem::take(&mut self.acquiring);
                        self.named.acquired(&wanted, &HashSet::new());
                        self.poll_at = self.poll_at.min(now + ACQUIRE_AGAIN);
                        return;
                    }
                    Kind::Find => {}
                    Kind::Claim => self.on_claim_failed(now),
                    Kind::Settle => {
                        self.settle_failed = true;
                        // If the store cannot write one of them, smaller batches let the others pass.
                        self.settle_batch = (self.settle_batch / 2).max(1);
                        for mut pending in std::mem::take(&mut self.settling) {
                            pending.is_repeated = true;
                            self.unsettled.push_back(pending);
                        }
                    }
                    // The endpoints are found as this worker's, and acquired again.
                    Kind::Release => {}
                }
                let wait = self.away(now);
                self.ask_at = now + wait;
                self.poll_at = now + wait;
            }
        }
    }

    /// Records a failure of the store, and returns the pause.
    fn away(&mut self, now: Instant) -> Duration {
        let at = self.core(now);
        let session = self.away.get_or_insert_with(|| Session::new(at, true));
        session.on_attempt();
        let failure = Failure::not_processed();
        match session.on_failure(&ASK_AGAIN, at, &failure, &mut self.random, None) {
            Decision::Retry { after } => after.max(TICK),
            Decision::Stop(_) => Duration::from_secs(5),
        }
    }

    fn on_found(&mut self, now: Instant, found: Vec<Work>) {
        self.is_cut = found.len() >= self.looked_for;
        if self.is_cut {
            self.named.nothing_known();
        } else {
            self.named
                .found(&found.iter().map(|work| work.endpoint).collect());
        }
        let mut is_new = false;
        let share = self.pulse.borrow().share;
        self.to_acquire.clear();
        for Work {
            endpoint,
            owned,
            due,
            revision,
        } in found
        {
            if let Some(lane) = self.lanes.get_mut(&endpoint) {
                // The search does not know of acquisitions after its start.
                let is_older = lane.taken < self.looked_at;
                if owned != Some(lane.fence) && is_older {
                    // Another worker had it meanwhile.
                    self.leave(endpoint);
                    continue;
                }
                // The registration has changed: running attempts end by the old rules, new ones start by the new rules.
                let is_stale = lane.revision != revision && is_older;
                lane.stale |= is_stale;
                is_new |= due.is_zero() && !lane.due;
                if is_stale {
                    self.look_at(endpoint);
                }
                match due.is_zero() {
                    true => self.hear_due(endpoint),
                    false => {
                        self.dues.insert((now + due, endpoint));
                    }
                }
            } else if !self.stopping && !self.acquiring.contains(&endpoint) {
                match owned {
                    // This worker owns it, because a response was lost or a release failed. While it is beyond this
                    // worker's share, no other worker could acquire it.
                    Some(fence) if self.lanes.len() >= share => {
                        self.to_release.push((endpoint, fence));
                        self.release_due = true;
                    }
                    _ => self.to_acquire.push_back(endpoint),
                }
            }
        }
        if self.is_cut && is_new {
            // There may be more behind those; the next search also covers them.
            self.poll_at = now + LOOK_GAP;
        }
    }

    fn on_claimed(&mut self, now: Instant, claims: Claims) {
        let core_now = self.core(now);
        let pulse = *self.pulse.borrow();
        let may_send = !self.stopping && pulse.is_held(now) && pulse.lost == self.lost;
        // For each endpoint, the number of messages and whether one of them has failed before.
        let mut got: HashMap<i64, (usize, bool)> = HashMap::new();
        for claimed in claims.messages {
            let endpoint = claimed.endpoint;
            let (count, any_has_failed) = got.entry(endpoint).or_default();
            *count += 1;
            *any_has_failed |= !claimed.is_fresh();
            let lane = self.lanes.get_mut(&endpoint);
            // A leaving endpoint may have been claimed with a lost lease, and belong to another worker by now.
            let may_send = may_send && lane.as_ref().is_some_and(|lane| !lane.leaving);
            let mut ticket = lane.and_then(|lane| lane.claiming.pop());
            let has_room = self.has_room(&claimed, ticket.as_mut());
            match ticket {
                Some(ticket)
                    if may_send && has_room && !claimed.lost && !self.goes_alone(&claimed) =>
                {
                    self.start(now, claimed, ticket);
                }
                ticket => {
                    if let Some(ticket) = ticket
                        && let Some(lane) = self.lanes.get_mut(&endpoint)
                    {
                        lane.cancel(core_now, ticket.permit);
                        self.slots.give_back(ticket.pool);
                    }
                    self.not_sent(now, &claimed);
                }
            }
        }
        for (id, asked, first) in std::mem::take(&mut self.claiming) {
            let Some(lane) = self.lanes.get_mut(&id) else {
                continue;
            };
            lane.refreshing = false;
            for ticket in std::mem::take(&mut lane.claiming) {
                lane.cancel(core_now, ticket.permit);
                self.slots.give_back(ticket.pool);
            }
            if asked > 0 {
                let (count, any_has_failed) = got.get(&id).copied().unwrap_or_default();
                if first == First::Due {
                    lane.claimed_by_due(any_has_failed);
                }
                lane.claimed(asked, count);
            }
            self.look_at(id);
            self.close_if_over(id);
        }
        for owned in claims.changed {
            let id = owned.id;
            self.give_tickets_back(id);
            if let Some(lane) = self
                .lanes
                .get_mut(&id)
                .filter(|lane| lane.fence == owned.fence && !lane.leaving)
            {
                lane.refresh(core_now, owned, &self.sender, &self.secrets);
                self.mark_due(id);
            }
        }
    }

    /// Whether there is memory for a long payload, which then moves to the ticket. A message without memory is returned
    /// to the store, and the endpoint waits for memory.
    fn has_room(&mut self, claimed: &Claimed, ticket: Option<&mut Ticket>) -> bool {
        let size = match claimed.size {
            0..=INLINE => 0,
            size => size,
        };
        if let Some(lane) = self.lanes.get_mut(&claimed.endpoint) {
            lane.large = size;
        }
        let Some(ticket) = ticket else { return true };
        let room = ticket.room.take().filter(|_| size > 0);
        ticket.room = match room {
            Some(mut room) if room.bytes() >= size => {
                room.shrink(size);
                Some(room)
            }
            room => {
                drop(room);
                match size {
                    0 => None,
                    size => self.bodies.take(size, ticket.pool != Pool::Quick),
                }
            }
        };
        size == 0 || ticket.room.is_some()
    }

    /// Handles a failed claim: claimed messages, if any, return as lost when the endpoint is acquired again.
    fn on_claim_failed(&mut self, now: Instant) {
        let core_now = self.core(now);
        for (id, ..) in std::mem::take(&mut self.claiming) {
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.refreshing = false;
                for ticket in std::mem::take(&mut lane.claiming) {
                    lane.cancel(core_now, ticket.permit);
                    self.slots.give_back(ticket.pool);
                }
            }
            self.leave(id);
        }
    }

    fn start(&mut self, now: Instant, mut claimed: Claimed, ticket: Ticket) {
        let core_now = self.core(now);
        let (Some(lane), Some(grants)) =
            (self.lanes.get_mut(&claimed.endpoint), self.grants.clone())
        else {
            return;
        };
        let Ticket {
            mut permit,
            pool,
            room,
        } = ticket;
        let epoch = lane.epoch;
        let schedule = Schedule::at_attempt(&claimed.session, claimed.attempt, claimed.began);
        let rules = Arc::clone(&lane.rules);
        lane.running += 1;
        lane.running_now += 1;
        let job = Job {
            limit: schedule.attempt_limit(&rules.policy, claimed.now),
            rules,
            id: claimed.id.clone(),
            content_type: std::mem::take(&mut claimed.content_type),
            payload: std::mem::take(&mut claimed.payload),
            size: claimed.size,
            room,
            now: claimed.now,
            leave: Leave {
                pulse: self.pulse.clone(),
                lost: self.lost,
                stopping: self.stop.subscribe(),
                until: self.claim_began + GRANT,
                grants,
                confirm: Confirm {
                    row: claimed.row,
                    endpoint: claimed.endpoint,
                    fence: claimed.fence,
                    revision: claimed.revision,
                    payload: false,
                },
            },
        };
        let task = self.attempts.spawn((self.transport)(job));
        let slow_after = self.config.slow_after;
        self.aging.push_back((now + slow_after, task.id()));
        if pool != Pool::Slow {
            let at = now + slow_after / TURNS_AFTER;
            self.turning.push_back((at, task.id()));
        }
        // The time of the claim does not count as response time of the endpoint.
        permit.restart(core_now);
        let running = Running {
            claimed,
            claimed_at: now,
            schedule,
            permit,
            pool,
            epoch,
        };
        self.running.insert(task.id(), running);
    }

    /// Whether the message needs isolation and does not have it yet: its previous attempt was lost with its worker, and
    /// none follows if this one is lost, too. If sending it kills the worker, only this message becomes dead.
    fn goes_alone(&mut self, claimed: &Claimed) -> bool {
        let Some(lane) = self
            .lanes
            .get_mut(&claimed.endpoint)
            .filter(|_| !self.is_alone && Schedule::was_lost(&claimed.session))
        else {
            return false;
        };
        let schedule = Schedule::at_attempt(&claimed.session, claimed.attempt, claimed.began);
        if !schedule.is_last(&lane.rules.policy, claimed.now, &mut self.random) {
            return false;
        }
        if !std::mem::replace(&mut lane.alone, true) {
            self.alone.push_back(claimed.endpoint);
        }
        true
    }

    /// Settles a claimed message that is not sent: an earlier worker was lost with it, or this one may not send it now.
    fn not_sent(&mut self, now: Instant, claimed: &Claimed) {
        if !claimed.lost {
            self.settle(now, claimed, Next::Unsent, claimed.session.clone(), None);
            return;
        }
        let mut schedule = Schedule::at_attempt(&claimed.session, claimed.attempt, claimed.began);
        let sent = broken_off(
            "the worker that made the attempt was lost with it",
            Duration::ZERO,
        );
        schedule.lose();
        observe::attempt("lost", Duration::ZERO);
        self.failed(now, claimed, claimed.now, &mut schedule, &sent, false);
    }

    pub(super) fn on_attempt(&mut self, ended: Result<(Id, Result<Sent, Unmade>), JoinError>) {
        let now = Instant::now();
        let (id, ended) = match ended {
            Ok((id, ended)) => (id, Ok(ended)),
            Err(error) => (error.id(), Err(error)),
        };
        let Some(running) = self.running.remove(&id) else {
            return;
        };
        let Running {
            claimed,
            claimed_at,
            mut schedule,
            permit,
            pool,
            epoch,
        } = running;
        let took = now.saturating_duration_since(claimed_at);
        let sent = match ended {
            Ok(ended) => ended,
            Err(error) if error.is_cancelled() => {
                self.cut_off += 1;
                Err(Unmade::Unknown("cut off, since the worker was stopped"))
            }
            Err(_) => Err(Unmade::Unknown(
                "the attempt broke off by a fault of the worker",
            )),
        };
        self.slots.give_back(pool);
        let core_now = self.core(now);
        let mut is_of_now = false;
        if let Some(lane) = self.lanes.get_mut(&claimed.endpoint) {
            lane.running -= 1;
            is_of_now = epoch == lane.epoch;
            lane.running_now -= usize::from(is_of_now);
            match &sent {
                // The attempt belongs to an earlier circuit breaker and registration.
                _ if !is_of_now => {}
                Ok(sent) if sent.fault.is_none() => {
                    lane.mended();
                    lane.answered(now, sent.took, self.config.slow_after);
                    let failure = sent.outcome.as_ref().err().map(|refused| refused.failure);
                    let failure = failure.map(|failure| {
                        match lane.speaks_of_message(core_now, &failure, claimed.is_fresh()) {
                            true => failure.scope(Scope::Request),
                            false => failure,
                        }
                    });
                    lane.ended(core_now, permit, failure.as_ref());
                }
                _ => lane.cancel(core_now, permit),
            }
        }
        let (sent, told) = match sent {
            Ok(Sent {
                fault: Some(kind),
                outcome: Err(refused),
                ..
            }) => {
                let error = printable(&refused.error, MAX_EXCERPT);
                let fault = LocalFault { kind, error };
                let lane = self.lanes.get_mut(&claimed.endpoint);
                let mut next = Next::Unsent;
                if kind.is_of_message() {
                    lane.into_iter().for_each(|lane| lane.hold_one(&fault));
                    next = Next::Held(LONGEST_WAIT, fault.error);
                    self.look_at(claimed.endpoint);
                } else if let Some(lane) = lane.filter(|_| is_of_now) {
                    // A fault under the old rules need not exist under the current ones.
                    lane.hold(now, fault);
                }
                let session = claimed.session.clone();
                self.settle(now, &claimed, next, session, None);
                return;
            }
            Ok(sent) => (sent, true),
            Err(unmade @ (Unmade::NotBegun | Unmade::StoreAway)) => {
                if matches!(unmade, Unmade::StoreAway) {
                    let wait = self.away(now);
                    self.ask_at = now + wait;
                }
                let session = claimed.session.clone();
                self.settle(now, &claimed, Next::Unsent, session, None);
                self.look_at(claimed.endpoint);
                return;
            }
            Err(Unmade::Unknown(why)) => (broken_off(why, took), false),
        };
        let store_now = claimed.now + took;
        let endpoint = claimed.endpoint;
        if sent.outcome.is_ok() {
            observe::attempt("acknowledged", sent.took);
            let waited = store_now.duration_since(claimed.began).unwrap_or_default();
            observe::acknowledged(waited);
            let session = schedule.save();
            self.settle(now, &claimed, Next::Delivered, session, Some(&sent));
            if let Some(reason) = sent.disable {
                self.disable(endpoint, reason.to_owned());
            }
        } else {
            observe::attempt("failed", sent.took);
            self.failed(now, &claimed, store_now, &mut schedule, &sent, told);
        }
        self.look_at(endpoint);
    }

    /// Handles a failed attempt. `told`: the failure is evidence about the endpoint.
    fn failed(
        &mut self,
        now: Instant,
        claimed: &Claimed,
        store_now: SystemTime,
        schedule: &mut Schedule,
        sent: &Sent,
        told: bool,
    ) {
        let (Err(refused), Some(lane)) = (&sent.outcome, self.lanes.get_mut(&claimed.endpoint))
        else {
            return;
        };
        let rules = Arc::clone(&lane.rules);
        let mut disable = None;
        let error = printable(&refused.error, MAX_EXCERPT);
        // An attempt by old rules is no evidence about the current endpoint.
        if told && lane.revision == claimed.revision {
            lane.health.failed(store_now, &error);
            disable = match sent.disable {
                Some(reason) => Some(reason.to_owned()),
                None => lane.health.disables(&self.config.disable_after, store_now),
            };
        }
        let mut next = schedule.failed(
            &rules.policy,
            store_now,
            &refused.failure,
            &error,
            &mut self.random,
        );
        if sent.hold && matches!(next, Next::Dead(_)) {
            // It has one more attempt when the endpoint is enabled.
            next = Next::Again(Duration::ZERO);
        }
        if let Next::Dead(reason) = &next {
            observe::dead(claimed.id.as_str(), reason);
        }
        self.settle(now, claimed, next, schedule.save(), Some(sent));
        if let Some(reason) = disable {
            self.disable(claimed.endpoint, reason);
        }
    }

    /// Disables the endpoint of the last settled result.
    fn disable(&mut self, id: i64, reason: String) {
        if let Some(pending) = self.unsettled.back_mut() {
            pending.settled.disable = Some(reason);
        }
        self.leave(id);
    }

    /// Queues a result to be written.
    fn settle(
        &mut self,
        now: Instant,
        claimed: &Claimed,
        next: Next,
        session: Vec<u8>,
        sent: Option<&Sent>,
    ) {
        let mut changes_health = false;
        if let Some(lane) = self.lanes.get_mut(&claimed.endpoint) {
            lane.unsettled += 1;
            changes_health = match (&next, sent) {
                _ if lane.revision != claimed.revision => false,
                (Next::Delivered, _) => lane.health.succeeded(),
                (_, None) => false,
                _ => true,
            };
        }
        let record = sent.map(|sent| AttemptRecord {
            number: claimed.attempt,
            began_ms: millis(claimed.now),
            took_ms: u32::try_from(sent.took.as_millis()).unwrap_or(u32::MAX),
            status: sent.status,
            error: match &sent.outcome {
                Ok(()) => String::new(),
                Err(refused) => printable(&refused.error, MAX_EXCERPT),
            },
            excerpt: sent.excerpt.clone(),
            address: sent.address.clone(),
            request: sent.request.clone(),
            response: sent.response.clone(),
        });
        self.unsettled.push_back(Pending {
            settled: Settled {
                row: claimed.row,
                endpoint: claimed.endpoint,
                fence: claimed.fence,
                revision: claimed.revision,
                number: claimed.attempt,
                began: claimed.began,
                ordered: claimed.ordered,
                next,
                session,
                attempt: record,
                health: None,
                disable: None,
            },
            changes_health,
            is_repeated: false,
            lost: self.lost,
            ended: now,
        });
    }

    fn on_settled(&mut self, now: Instant, written: &[bool]) {
        self.settle_failed = false;
        self.settle_batch = (self.settle_batch * 2).min(BATCH);
        for (at, pending) in std::mem::take(&mut self.settling).into_iter().enumerate() {
            let id = pending.settled.endpoint;
            let Some(lane) = self.lanes.get_mut(&id) else {
                continue;
            };
            lane.unsettled = lane.unsettled.saturating_sub(1);
            let is_written = written.get(at) == Some(&true);
            // Rejected although this worker owned the endpoint throughout: the first try has taken effect.
            let was_written = pending.is_repeated && pending.lost == self.lost;
            if let Some(reason) = &pending.settled.disable
                && (is_written || was_written)
                && !std::mem::replace(&mut lane.is_disabled, true)
            {
                let endpoint = &lane.rules.endpoint;
                observe::disabled(&endpoint.tenant, &endpoint.name, reason);
            }
            if !is_written {
                // Another worker owns the endpoint, or the response to an earlier try was lost. Acquiring it again
                // refreshes it.
                self.leave(id);
                continue;
            }
            match pending.settled.next {
                Next::Again(after) if after <= self.config.poll => {
                    // The store counts from a time between call and response. A claim that is too early returns
                    // nothing.
                    let before = self.settle_began.saturating_duration_since(pending.ended);
                    self.dues.insert((now + after.saturating_sub(before), id));
                }
                Next::Unsent => self.mark_due(id),
                Next::Delivered | Next::Dead(_) if pending.settled.ordered => self.mark_due(id),
                _ => {}
            }
            self.close_if_over(id);
        }
    }

    pub(super) fn on_pulse(&mut self, pulse: Pulse) {
        if std::mem::take(&mut self.is_short) && self.lanes.len() < pulse.share {
            self.look_soon();
        }
        if pulse.lost != self.lost {
            self.lost = pulse.lost;
            observe::lease_lost();
            // None could be acquired meanwhile.
            self.named = Named::default();
            let all: Vec<i64> = self.lanes.keys().copied().collect();
            for id in all {
                self.leave(id);
            }
            return;
        }
        let now = Instant::now();
        if self.lanes.len() < pulse.share && self.ask_again_at <= now {
            self.ask_again_at = now + ASK_AGAIN_AFTER * self.config.lease;
            self.named.ask_again();
        }
        // Up to a tenth above the share, endpoints stay where they are.
        let most = pulse.share + pulse.share / 10 + 1;
        let excess = self.lanes.len().saturating_sub(most);
        if excess > 0 {
            let mut idle: Vec<(bool, usize, i64)> = self
                .lanes
                .iter()
                .map(|(id, lane)| (lane.due, lane.running, *id))
                .collect();
            idle.sort_unstable();
            for (_, _, id) in idle.into_iter().take(excess) {
                self.leave(id);
            }
        }
    }
}
