//! Handling of store responses, finished attempts and heartbeats.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use relent_core::{Backoff, Decision, Failure, Policy, Scope, Session};
use tokio::task::{Id, JoinError};
use tokio::time::Instant;

use super::{
    EventLoop, HintedEndpoints, MAX_CALL_ITEMS, MIN_SEARCH_INTERVAL, MIN_TIMER, Pending, Running,
};
use crate::acknowledgement::MAX_EXCERPT;
use crate::fault::{LONGEST_WAIT, LocalFault};
use crate::observe;
use crate::schedule::Schedule;
use crate::sender::AttemptResult;
use crate::store::{
    AfterAttempt, AttemptRecord, ClaimOrder, Claimed, Claims, ConfirmRequest, EndpointWork, GRANT,
    INLINE, Settled, Store, millis,
};
use crate::text::printable;
use crate::worker::attempt::{Job, NoResult, broken_off};
use crate::worker::calls::{CallResult, StoreCall};
use crate::worker::endpoint_state::{EndpointState, Ticket};
use crate::worker::heartbeat::LeaseState;
use crate::worker::permission::StartPermission;
use crate::worker::slots::Pool;

/// The longest time until the next search after a failed acquisition.
const ACQUIRE_RETRY_WAIT: Duration = Duration::from_secs(5);

/// The number of leases after which a worker below its share tries again to acquire endpoints of other workers. Each
/// try costs as much as there are such endpoints, as they are named by hints.
const REACQUIRE_LEASES: u32 = 4;

/// An attempt holds a slot of fast endpoints for this fraction of `slow_after`.
const SLOT_TIME_FRACTION: u32 = 10;

/// The retry policy for a failing store.
static STORE_RETRY_POLICY: Policy =
    Policy::builder(Backoff::exponential(Duration::from_millis(100)))
        .max_delay(Duration::from_secs(5))
        .unlimited_retries()
        .build_const();

impl<S: Store> EventLoop<S> {
    pub(super) fn on_call(&mut self, kind: StoreCall, result: Result<CallResult, String>) {
        let now = Instant::now();
        match result {
            Ok(done) => {
                self.away = None;
                match done {
                    CallResult::Found(work) => self.on_found(now, work),
                    CallResult::Acquired(owned) => {
                        let wanted = std::mem::take(&mut self.acquiring);
                        let has = owned.iter().map(|owned| owned.id).collect();
                        self.named.acquired(&wanted, &has);
                        if self.search_was_truncated && !owned.is_empty() {
                            self.search_soon();
                        }
                        for owned in owned {
                            let id = owned.id;
                            let endpoint_state =
                                EndpointState::new(owned, now, &self.sender, &self.secrets);
                            self.endpoint_states.insert(id, endpoint_state);
                            self.mark_due(id);
                            if self.stopping {
                                self.retire_endpoint(id);
                            }
                        }
                    }
                    CallResult::Claimed(claimed) => self.on_claimed(now, claimed),
                    CallResult::Settled(written) => self.on_settled(now, &written),
                    CallResult::Released => {
                        if std::mem::take(&mut self.release_due) && !self.stopping {
                            self.search_soon();
                        }
                    }
                }
            }
            Err(error) => {
                observe::store_error(kind.name(), &error);
                match kind {
                    StoreCall::Acquire => {
                        // Any acquired endpoint is found as this worker's, and acquired again. The store may work, and
                        // an endpoint be unreadable by this version. Other calls therefore do not wait, and no hint
                        // requests it again.
                        let wanted = std::mem::take(&mut self.acquiring);
                        self.named.acquired(&wanted, &HashSet::new());
                        self.poll_at = self.poll_at.min(now + ACQUIRE_RETRY_WAIT);
                        return;
                    }
                    StoreCall::Find => {}
                    StoreCall::Claim => self.on_claim_failed(now),
                    StoreCall::Settle => {
                        self.settle_failed = true;
                        // If the store cannot write one of them, smaller batches let the others pass.
                        self.settle_batch = (self.settle_batch / 2).max(1);
                        for mut pending in std::mem::take(&mut self.settling) {
                            pending.is_repeated = true;
                            self.unsettled.push_back(pending);
                        }
                    }
                    // The endpoints are found as this worker's, and acquired again.
                    StoreCall::Release => {}
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
        match session.on_failure(&STORE_RETRY_POLICY, at, &failure, &mut self.random, None) {
            Decision::Retry { after } => after.max(MIN_TIMER),
            Decision::Stop(_) => Duration::from_secs(5),
        }
    }

    fn on_found(&mut self, now: Instant, found: Vec<EndpointWork>) {
        self.search_was_truncated = found.len() >= self.looked_for;
        if self.search_was_truncated {
            self.named.search_truncated();
        } else {
            self.named
                .found(&found.iter().map(|work| work.endpoint).collect());
        }
        let mut is_new = false;
        let share = self.pulse.borrow().share;
        self.to_acquire.clear();
        for EndpointWork {
            endpoint,
            owned,
            due,
            revision,
        } in found
        {
            if let Some(endpoint_state) = self.endpoint_states.get_mut(&endpoint) {
                // The search does not know of acquisitions after its start.
                let is_older = endpoint_state.taken < self.looked_at;
                if owned != Some(endpoint_state.fence) && is_older {
                    // Another worker had it meanwhile.
                    self.retire_endpoint(endpoint);
                    continue;
                }
                // The registration has changed: running attempts end by the old rules, new ones start by the new rules.
                let is_stale = endpoint_state.revision != revision && is_older;
                endpoint_state.stale |= is_stale;
                is_new |= due.is_zero() && !endpoint_state.due;
                if is_stale {
                    self.queue_check(endpoint);
                }
                match due.is_zero() {
                    true => self.on_due(endpoint),
                    false => {
                        self.due_at.insert((now + due, endpoint));
                    }
                }
            } else if !self.stopping && !self.acquiring.contains(&endpoint) {
                match owned {
                    // This worker owns it, because a response was lost or a release failed. While it is beyond this
                    // worker's share, no other worker could acquire it.
                    Some(fence) if self.endpoint_states.len() >= share => {
                        self.to_release.push((endpoint, fence));
                        self.release_due = true;
                    }
                    _ => self.to_acquire.push_back(endpoint),
                }
            }
        }
        if self.search_was_truncated && is_new {
            // There may be more behind those; the next search also covers them.
            self.poll_at = now + MIN_SEARCH_INTERVAL;
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
            let endpoint_state = self.endpoint_states.get_mut(&endpoint);
            // A retiring endpoint may have been claimed with a lost lease, and belong to another worker by now.
            let may_send = may_send
                && endpoint_state
                    .as_ref()
                    .is_some_and(|endpoint_state| !endpoint_state.retiring);
            let mut ticket =
                endpoint_state.and_then(|endpoint_state| endpoint_state.claiming.pop());
            let has_memory = self.has_memory(&claimed, ticket.as_mut());
            match ticket {
                Some(ticket)
                    if may_send
                        && has_memory
                        && !claimed.lost
                        && !self.needs_isolation(&claimed) =>
                {
                    self.start(now, claimed, ticket);
                }
                ticket => {
                    if let Some(ticket) = ticket
                        && let Some(endpoint_state) = self.endpoint_states.get_mut(&endpoint)
                    {
                        endpoint_state.cancel(core_now, ticket.permit);
                        self.slots.give_back(ticket.pool);
                    }
                    self.not_sent(now, &claimed);
                }
            }
        }
        for (id, asked, first) in std::mem::take(&mut self.claiming) {
            let Some(endpoint_state) = self.endpoint_states.get_mut(&id) else {
                continue;
            };
            endpoint_state.refreshing = false;
            for ticket in std::mem::take(&mut endpoint_state.claiming) {
                endpoint_state.cancel(core_now, ticket.permit);
                self.slots.give_back(ticket.pool);
            }
            if asked > 0 {
                let (count, any_has_failed) = got.get(&id).copied().unwrap_or_default();
                if first == ClaimOrder::Due {
                    endpoint_state.claimed_by_due(any_has_failed);
                }
                endpoint_state.claimed(asked, count);
            }
            self.queue_check(id);
            self.release_if_idle(id);
        }
        for owned in claims.changed {
            let id = owned.id;
            self.release_tickets(id);
            if let Some(endpoint_state) =
                self.endpoint_states.get_mut(&id).filter(|endpoint_state| {
                    endpoint_state.fence == owned.fence && !endpoint_state.retiring
                })
            {
                endpoint_state.refresh(core_now, owned, &self.sender, &self.secrets);
                self.mark_due(id);
            }
        }
    }

    /// Whether there is memory for a long payload, which then moves to the ticket. A message without memory is returned
    /// to the store, and the endpoint waits for memory.
    fn has_memory(&mut self, claimed: &Claimed, ticket: Option<&mut Ticket>) -> bool {
        let size = match claimed.size {
            0..=INLINE => 0,
            size => size,
        };
        if let Some(endpoint_state) = self.endpoint_states.get_mut(&claimed.endpoint) {
            endpoint_state.large = size;
        }
        let Some(ticket) = ticket else { return true };
        let memory = ticket.memory.take().filter(|_| size > 0);
        ticket.memory = match memory {
            Some(mut memory) if memory.bytes() >= size => {
                memory.shrink(size);
                Some(memory)
            }
            memory => {
                drop(memory);
                match size {
                    0 => None,
                    size => self.bodies.take(size, ticket.pool != Pool::Fast),
                }
            }
        };
        size == 0 || ticket.memory.is_some()
    }

    /// Handles a failed claim: claimed messages, if any, return as lost when the endpoint is acquired again.
    fn on_claim_failed(&mut self, now: Instant) {
        let core_now = self.core(now);
        for (id, ..) in std::mem::take(&mut self.claiming) {
            if let Some(endpoint_state) = self.endpoint_states.get_mut(&id) {
                endpoint_state.refreshing = false;
                for ticket in std::mem::take(&mut endpoint_state.claiming) {
                    endpoint_state.cancel(core_now, ticket.permit);
                    self.slots.give_back(ticket.pool);
                }
            }
            self.retire_endpoint(id);
        }
    }

    fn start(&mut self, now: Instant, mut claimed: Claimed, ticket: Ticket) {
        let core_now = self.core(now);
        let (Some(endpoint_state), Some(grants)) = (
            self.endpoint_states.get_mut(&claimed.endpoint),
            self.grants.clone(),
        ) else {
            return;
        };
        let Ticket {
            mut permit,
            pool,
            memory,
        } = ticket;
        let epoch = endpoint_state.epoch;
        let schedule = Schedule::at_attempt(&claimed.session, claimed.attempt, claimed.began);
        let rules = Arc::clone(&endpoint_state.rules);
        endpoint_state.running += 1;
        endpoint_state.running_now += 1;
        let job = Job {
            limit: schedule.attempt_limit(&rules.policy, claimed.now),
            rules,
            id: claimed.id.clone(),
            content_type: std::mem::take(&mut claimed.content_type),
            payload: std::mem::take(&mut claimed.payload),
            size: claimed.size,
            memory,
            now: claimed.now,
            permission: StartPermission {
                pulse: self.pulse.clone(),
                lost: self.lost,
                stopping: self.stop.subscribe(),
                until: self.claim_began + GRANT,
                grants,
                confirm: ConfirmRequest {
                    row: claimed.row,
                    endpoint: claimed.endpoint,
                    fence: claimed.fence,
                    revision: claimed.revision,
                    payload: false,
                },
            },
        };
        let task = self.attempts.spawn(self.transport.make(job));
        let slow_after = self.config.slow_after;
        self.slow_at.push_back((now + slow_after, task.id()));
        if pool != Pool::Slow {
            let at = now + slow_after / SLOT_TIME_FRACTION;
            self.slot_release_at.push_back((at, task.id()));
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
    fn needs_isolation(&mut self, claimed: &Claimed) -> bool {
        let Some(endpoint_state) = self
            .endpoint_states
            .get_mut(&claimed.endpoint)
            .filter(|_| !self.isolation_active && Schedule::was_lost(&claimed.session))
        else {
            return false;
        };
        let schedule = Schedule::at_attempt(&claimed.session, claimed.attempt, claimed.began);
        if !schedule.is_last(&endpoint_state.rules.policy, claimed.now, &mut self.random) {
            return false;
        }
        if !std::mem::replace(&mut endpoint_state.alone, true) {
            self.alone.push_back(claimed.endpoint);
        }
        true
    }

    /// Settles a claimed message that is not sent: an earlier worker was lost with it, or this one may not send it now.
    fn not_sent(&mut self, now: Instant, claimed: &Claimed) {
        if !claimed.lost {
            self.settle(
                now,
                claimed,
                AfterAttempt::Unsent,
                claimed.session.clone(),
                None,
            );
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

    pub(super) fn on_attempt(
        &mut self,
        ended: Result<(Id, Result<AttemptResult, NoResult>), JoinError>,
    ) {
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
                self.aborted += 1;
                Err(NoResult::Unknown("cut off, since the worker was stopped"))
            }
            Err(_) => Err(NoResult::Unknown(
                "the attempt broke off by a fault of the worker",
            )),
        };
        self.slots.give_back(pool);
        let core_now = self.core(now);
        let mut is_of_now = false;
        if let Some(endpoint_state) = self.endpoint_states.get_mut(&claimed.endpoint) {
            endpoint_state.running -= 1;
            is_of_now = epoch == endpoint_state.epoch;
            endpoint_state.running_now -= usize::from(is_of_now);
            match &sent {
                // The attempt belongs to an earlier circuit breaker and registration.
                _ if !is_of_now => {}
                Ok(sent) if sent.fault.is_none() => {
                    endpoint_state.fault_fixed();
                    endpoint_state.answered(now, sent.took, self.config.slow_after);
                    let failure = sent.outcome.as_ref().err().map(|refused| refused.failure);
                    let failure = failure.map(|failure| {
                        match endpoint_state.is_about_message(
                            core_now,
                            &failure,
                            claimed.is_fresh(),
                        ) {
                            true => failure.scope(Scope::Request),
                            false => failure,
                        }
                    });
                    endpoint_state.ended(core_now, permit, failure.as_ref());
                }
                _ => endpoint_state.cancel(core_now, permit),
            }
        }
        let (sent, is_evidence) = match sent {
            Ok(AttemptResult {
                fault: Some(kind),
                outcome: Err(refused),
                ..
            }) => {
                let error = printable(&refused.error, MAX_EXCERPT);
                let fault = LocalFault { kind, error };
                let endpoint_state = self.endpoint_states.get_mut(&claimed.endpoint);
                let mut next = AfterAttempt::Unsent;
                if kind.is_of_message() {
                    endpoint_state
                        .into_iter()
                        .for_each(|endpoint_state| endpoint_state.hold_one(&fault));
                    next = AfterAttempt::Held(LONGEST_WAIT, fault.error);
                    self.queue_check(claimed.endpoint);
                } else if let Some(endpoint_state) = endpoint_state.filter(|_| is_of_now) {
                    // A fault under the old rules need not exist under the current ones.
                    endpoint_state.hold(now, fault);
                }
                let session = claimed.session.clone();
                self.settle(now, &claimed, next, session, None);
                return;
            }
            Ok(sent) => (sent, true),
            Err(unmade @ (NoResult::NotStarted | NoResult::StoreAway)) => {
                if matches!(unmade, NoResult::StoreAway) {
                    let wait = self.away(now);
                    self.ask_at = now + wait;
                }
                let session = claimed.session.clone();
                self.settle(now, &claimed, AfterAttempt::Unsent, session, None);
                self.queue_check(claimed.endpoint);
                return;
            }
            Err(NoResult::Unknown(why)) => (broken_off(why, took), false),
        };
        let store_now = claimed.now + took;
        let endpoint = claimed.endpoint;
        if sent.outcome.is_ok() {
            observe::attempt("acknowledged", sent.took);
            let waited = store_now.duration_since(claimed.began).unwrap_or_default();
            observe::acknowledged(waited);
            let session = schedule.save();
            self.settle(now, &claimed, AfterAttempt::Delivered, session, Some(&sent));
            if let Some(reason) = sent.disable {
                self.disable(endpoint, reason.to_owned());
            }
        } else {
            observe::attempt("failed", sent.took);
            self.failed(now, &claimed, store_now, &mut schedule, &sent, is_evidence);
        }
        self.queue_check(endpoint);
    }

    /// Handles a failed attempt. `is_evidence`: the failure is evidence about the endpoint.
    fn failed(
        &mut self,
        now: Instant,
        claimed: &Claimed,
        store_now: SystemTime,
        schedule: &mut Schedule,
        sent: &AttemptResult,
        is_evidence: bool,
    ) {
        let (Err(refused), Some(endpoint_state)) = (
            &sent.outcome,
            self.endpoint_states.get_mut(&claimed.endpoint),
        ) else {
            return;
        };
        let rules = Arc::clone(&endpoint_state.rules);
        let mut disable = None;
        let error = printable(&refused.error, MAX_EXCERPT);
        // An attempt by old rules is no evidence about the current endpoint.
        if is_evidence && endpoint_state.revision == claimed.revision {
            endpoint_state.health.failed(store_now, &error);
            disable = match sent.disable {
                Some(reason) => Some(reason.to_owned()),
                None => endpoint_state
                    .health
                    .disables(&self.config.disable_after, store_now),
            };
        }
        let mut next = schedule.failed(
            &rules.policy,
            store_now,
            &refused.failure,
            &error,
            &mut self.random,
        );
        if sent.hold && matches!(next, AfterAttempt::Dead(_)) {
            // It has one more attempt when the endpoint is enabled.
            next = AfterAttempt::Again(Duration::ZERO);
        }
        if let AfterAttempt::Dead(reason) = &next {
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
        self.retire_endpoint(id);
    }

    /// Queues a result to be written.
    fn settle(
        &mut self,
        now: Instant,
        claimed: &Claimed,
        next: AfterAttempt,
        session: Vec<u8>,
        sent: Option<&AttemptResult>,
    ) {
        let mut changes_health = false;
        if let Some(endpoint_state) = self.endpoint_states.get_mut(&claimed.endpoint) {
            endpoint_state.unsettled += 1;
            changes_health = match (&next, sent) {
                _ if endpoint_state.revision != claimed.revision => false,
                (AfterAttempt::Delivered, _) => endpoint_state.health.succeeded(),
                (_, None) => false,
                _ => true,
            };
        }
        let record = sent.map(|sent| AttemptRecord {
            number: claimed.attempt,
            started_ms: millis(claimed.now),
            duration_ms: u32::try_from(sent.took.as_millis()).unwrap_or(u32::MAX),
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
        self.settle_batch = (self.settle_batch * 2).min(MAX_CALL_ITEMS);
        for (at, pending) in std::mem::take(&mut self.settling).into_iter().enumerate() {
            let id = pending.settled.endpoint;
            let Some(endpoint_state) = self.endpoint_states.get_mut(&id) else {
                continue;
            };
            endpoint_state.unsettled = endpoint_state.unsettled.saturating_sub(1);
            let is_written = written.get(at) == Some(&true);
            // Rejected although this worker owned the endpoint throughout: the first try has taken effect.
            let was_written = pending.is_repeated && pending.lost == self.lost;
            if let Some(reason) = &pending.settled.disable
                && (is_written || was_written)
                && !std::mem::replace(&mut endpoint_state.is_disabled, true)
            {
                let endpoint = &endpoint_state.rules.endpoint;
                observe::disabled(&endpoint.tenant, &endpoint.name, reason);
            }
            if !is_written {
                // Another worker owns the endpoint, or the response to an earlier try was lost. Acquiring it again
                // refreshes it.
                self.retire_endpoint(id);
                continue;
            }
            match pending.settled.next {
                AfterAttempt::Again(after) if after <= self.config.poll => {
                    // The store counts from a time between call and response. A claim that is too early returns
                    // nothing.
                    let before = self.settle_began.saturating_duration_since(pending.ended);
                    self.due_at.insert((now + after.saturating_sub(before), id));
                }
                AfterAttempt::Unsent => self.mark_due(id),
                AfterAttempt::Delivered | AfterAttempt::Dead(_) if pending.settled.ordered => {
                    self.mark_due(id);
                }
                _ => {}
            }
            self.release_if_idle(id);
        }
    }

    pub(super) fn on_pulse(&mut self, pulse: LeaseState) {
        if std::mem::take(&mut self.has_work_beyond_share)
            && self.endpoint_states.len() < pulse.share
        {
            self.search_soon();
        }
        if pulse.lost != self.lost {
            self.lost = pulse.lost;
            observe::lease_lost();
            // None could be acquired meanwhile.
            self.named = HintedEndpoints::default();
            let all: Vec<i64> = self.endpoint_states.keys().copied().collect();
            for id in all {
                self.retire_endpoint(id);
            }
            return;
        }
        let now = Instant::now();
        if self.endpoint_states.len() < pulse.share && self.ask_again_at <= now {
            self.ask_again_at = now + REACQUIRE_LEASES * self.config.lease;
            self.named.ask_again();
        }
        // Up to a tenth above the share, endpoints stay where they are.
        let most = pulse.share + pulse.share / 10 + 1;
        let excess = self.endpoint_states.len().saturating_sub(most);
        if excess > 0 {
            let mut idle: Vec<(bool, usize, i64)> = self
                .endpoint_states
                .iter()
                .map(|(id, endpoint_state)| (endpoint_state.due, endpoint_state.running, *id))
                .collect();
            idle.sort_unstable();
            for (_, _, id) in idle.into_iter().take(excess) {
                self.retire_endpoint(id);
            }
        }
    }
}
