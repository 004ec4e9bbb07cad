//! Requests for attempts, claims, and the start of claimed attempts.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{EventLoop, MAX_RECHECK_WAIT, MIN_TIMER};
use crate::observe;
use crate::schedule::Schedule;
use crate::store::{AfterAttempt, Claimed, Claims, ConfirmRequest, INLINE, Store};
use crate::worker::attempt::{Job, broken_off};
use crate::worker::endpoint_state::Ticket;
use crate::worker::in_flight::{Full, Running};
use crate::worker::isolation::Turn;
use crate::worker::slots::Pool;
use crate::worker::store_calls::{CallResult, StoreCall};

impl<S: Store> EventLoop<S> {
    /// Requests permission to claim for one message of each endpoint in turn.
    pub(super) fn request(&mut self, now: Instant) {
        let (slots, bodies) = (self.in_flight.slots(), self.in_flight.bodies());
        let large = |id| self.endpoints.get(&id).map_or(0, |endpoint| endpoint.large);
        self.queue.release_waiters(slots, bodies, large);
        loop {
            match self.isolation.turn(now, self.is_quiet()) {
                Turn::Others => break,
                Turn::Nobody => return,
                Turn::Alone(id) => {
                    if let Some(endpoint) = self.endpoints.get_mut(&id) {
                        endpoint.end_isolation();
                    }
                    self.request_for(now, id);
                }
            }
        }
        while !self.claims.is_full()
            && let Some(id) = self.queue.pop()
        {
            self.request_for(now, id);
        }
    }

    /// Whether nothing runs, is claimed, or is to be written.
    fn is_quiet(&self) -> bool {
        self.in_flight.is_empty()
            && !self.claims.has_tickets()
            && self.results.is_empty()
            && !self.calls.is_busy(StoreCall::Claim)
            && !self.calls.is_busy(StoreCall::Settle)
    }

    /// Requests permission to claim for one message of this endpoint.
    fn request_for(&mut self, now: Instant, id: i64) {
        self.queue.begin_check(id);
        let core_now = self.clock.at(now);
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        if endpoint.registration.is_stale && !endpoint.is_retiring {
            // The next claim returns the current endpoint.
            let is_refreshing = &mut endpoint.registration.is_refreshing;
            if endpoint.work.tickets.is_empty() && !std::mem::replace(is_refreshing, true) {
                self.claims.add_endpoint(id);
            }
            return;
        }
        if !endpoint.can_claim_more(now) {
            // It is checked again when a claim returns, an attempt ends, or a message is due.
            if !endpoint.demand.is_due() {
                endpoint.admission.leave(core_now);
            }
            return;
        }
        let setup = &self.setup;
        let reread = |rules: &super::Rules| setup.rules(rules.endpoint.clone());
        if let Some(until) = endpoint.held_by_fault(now, reread) {
            self.queue.wake_at(id, until);
            return;
        }
        let pool = endpoint.speed.pool(now);
        let place = match self.in_flight.reserve(pool, endpoint.large) {
            Ok(place) => place,
            Err(Full::Slots) => return self.queue.wait_for_slot(id, pool),
            Err(Full::Memory) => return self.queue.wait_for_memory(id, pool != Pool::Fast),
        };
        match endpoint.admission.request(core_now) {
            Ok(permit) => {
                if endpoint.work.tickets.is_empty() && !endpoint.registration.is_refreshing {
                    self.claims.add_endpoint(id);
                }
                endpoint.work.tickets.push(Ticket { permit, place });
                self.claims.add_ticket();
                self.queue.push(id);
            }
            Err(until) => {
                self.in_flight.give_back(place);
                let wait = until.saturating_since(core_now).max(MIN_TIMER);
                // Even an infinite wait must not lose an endpoint.
                self.queue.wake_at(id, now + wait.min(MAX_RECHECK_WAIT));
            }
        }
    }

    pub(super) fn begin_claim(&mut self, now: Instant) {
        if self.claims.is_empty() || self.calls.is_busy(StoreCall::Claim) {
            return;
        }
        let (endpoints, is_isolated) = (&mut self.endpoints, self.isolation.is_active());
        let request = |id| endpoints.get_mut(&id)?.begin_claim(now, is_isolated);
        let wanted = self.claims.begin(now, request);
        if wanted.is_empty() {
            return;
        }
        let (store, name) = (self.setup.store.clone(), self.setup.config.name.clone());
        self.calls.begin(StoreCall::Claim, async move {
            store.claim(&name, wanted).await.map(CallResult::Claimed)
        });
    }

    pub(super) fn on_claimed(&mut self, now: Instant, claims: Claims) {
        let core_now = self.clock.at(now);
        let may_send = !self.permissions.is_stopping() && self.lease.is_kept(now);
        // For each endpoint, the number of messages and whether one of them has failed before.
        let mut got: HashMap<i64, (usize, bool)> = HashMap::new();
        for claimed in claims.messages {
            let id = claimed.endpoint;
            let (count, any_has_failed) = got.entry(id).or_default();
            *count += 1;
            *any_has_failed |= !claimed.is_fresh();
            self.start_or_return(now, may_send, claimed);
        }
        for claim in self.claims.end() {
            let Some(endpoint) = self.endpoints.get_mut(&claim.id) else {
                continue;
            };
            endpoint.end_claim(core_now, &mut self.in_flight);
            if claim.most > 0 {
                let (count, any_has_failed) = got.get(&claim.id).copied().unwrap_or_default();
                endpoint
                    .demand
                    .claimed(claim.first, claim.most, count, any_has_failed);
            } else {
                // Without a change below, a search had read the registration before the last refresh.
                endpoint.registration.is_stale = false;
            }
            self.queue.push(claim.id);
            self.release_if_idle(claim.id);
        }
        for owned in claims.changed {
            let Some(endpoint) = self.endpoints.get_mut(&owned.id) else {
                continue;
            };
            let returned = endpoint.return_tickets(core_now, &mut self.in_flight);
            self.claims.return_tickets(returned);
            if endpoint.registration.fence == owned.fence && !endpoint.is_retiring {
                let (id, setup) = (owned.id, &self.setup);
                endpoint.refresh(core_now, owned, |endpoint| setup.rules(endpoint));
                self.mark_due(id);
            }
        }
    }

    /// Handles a failed claim: claimed messages, if any, return as lost when the endpoint is acquired again.
    pub(super) fn on_claim_failed(&mut self, now: Instant) {
        let core_now = self.clock.at(now);
        for claim in self.claims.end() {
            if let Some(endpoint) = self.endpoints.get_mut(&claim.id) {
                endpoint.end_claim(core_now, &mut self.in_flight);
            }
            self.retire(now, claim.id);
        }
    }

    /// Starts the attempt of a claimed message, or settles the message as not sent.
    fn start_or_return(&mut self, now: Instant, may_send: bool, claimed: Claimed) {
        // A short payload came with its message, and needs no memory.
        let size = if claimed.size > INLINE {
            claimed.size
        } else {
            0
        };
        let mut ticket = None;
        let mut may_send = may_send && !claimed.lost;
        if let Some(endpoint) = self.endpoints.get_mut(&claimed.endpoint) {
            endpoint.large = size;
            ticket = endpoint.work.claiming.pop();
            // A retiring endpoint may have been claimed with a lost lease, and belong to another worker by now.
            may_send &= !endpoint.is_retiring;
        }
        // A message without memory is returned to the store, and the endpoint waits for memory.
        may_send &= ticket
            .as_mut()
            .is_some_and(|ticket| self.in_flight.fit(&mut ticket.place, size));
        let is_late = self.is_late(&claimed);
        match ticket {
            Some(ticket) if may_send && !is_late && !self.needs_isolation(&claimed) => {
                self.start(now, claimed, ticket);
            }
            ticket => {
                if let Some(endpoint) = self.endpoints.get_mut(&claimed.endpoint)
                    && let Some(ticket) = ticket
                {
                    endpoint.cancel(self.clock.at(now), ticket, &mut self.in_flight);
                }
                match may_send && is_late {
                    true => self.end_late(now, &claimed),
                    false => self.not_sent(now, &claimed),
                }
            }
        }
    }

    /// Whether the deadline of the message's policy has passed, so that its attempt could take no time.
    fn is_late(&self, claimed: &Claimed) -> bool {
        self.endpoints
            .get(&claimed.endpoint)
            .is_some_and(|endpoint| {
                let schedule =
                    Schedule::at_attempt(&claimed.session, claimed.attempt, claimed.began);
                let default = self.setup.sender.attempt_timeout();
                let policy = &endpoint.rules().policy;
                let limit = schedule.attempt_limit(policy, default, claimed.now);
                limit.is_zero()
            })
    }

    /// Ends a message whose deadline has passed while it waited. That is no evidence about the endpoint.
    fn end_late(&mut self, now: Instant, claimed: &Claimed) {
        let mut schedule = Schedule::at_attempt(&claimed.session, claimed.attempt, claimed.began);
        let why = "it was not sent: its deadline passed before";
        let sent = broken_off(why, Duration::ZERO);
        self.failed(now, claimed, claimed.now, &mut schedule, &sent, false);
    }

    fn start(&mut self, now: Instant, mut claimed: Claimed, ticket: Ticket) {
        let Some(endpoint) = self.endpoints.get_mut(&claimed.endpoint) else {
            return;
        };
        let Ticket { mut permit, place } = ticket;
        let schedule = Schedule::at_attempt(&claimed.session, claimed.attempt, claimed.began);
        let rules = Arc::clone(endpoint.rules());
        endpoint.work.running += 1;
        endpoint.work.running_now += 1;
        let confirm = ConfirmRequest {
            row: claimed.row,
            endpoint: claimed.endpoint,
            fence: claimed.fence,
            revision: claimed.revision,
            payload: false,
        };
        let until = self.claims.granted_until();
        let default = self.setup.sender.attempt_timeout();
        let job = Job {
            limit: schedule.attempt_limit(&rules.policy, default, claimed.now),
            rules,
            id: claimed.id.clone(),
            content_type: std::mem::take(&mut claimed.content_type),
            payload: std::mem::take(&mut claimed.payload),
            size: claimed.size,
            memory: place.memory,
            now: claimed.now,
            permission: self.permissions.issue(self.lease.lost(), until, confirm),
        };
        // The time of the claim does not count as response time of the endpoint.
        permit.restart(self.clock.at(now));
        let running = Running {
            claimed,
            claimed_at: now,
            schedule,
            permit,
            pool: place.pool,
            epoch: endpoint.registration.epoch,
        };
        self.in_flight.start(now, job, running);
    }

    /// Whether the message [needs isolation](crate::worker::isolation) and does not have it yet.
    fn needs_isolation(&mut self, claimed: &Claimed) -> bool {
        // A message that kills the process which makes its attempts does not kill this one, if that is another.
        if self.isolation.is_active()
            || !self.in_flight.is_in_process()
            || !Schedule::was_lost(&claimed.session)
        {
            return false;
        }
        let Some(endpoint) = self.endpoints.get_mut(&claimed.endpoint) else {
            return false;
        };
        let schedule = Schedule::at_attempt(&claimed.session, claimed.attempt, claimed.began);
        if !schedule.is_last(&endpoint.rules().policy, claimed.now, &mut self.random) {
            return false;
        }
        if !std::mem::replace(&mut endpoint.is_alone, true) {
            self.isolation.add(claimed.endpoint);
        }
        true
    }

    /// Settles a claimed message that is not sent: an earlier worker was lost with it, or this one may not send it now.
    fn not_sent(&mut self, now: Instant, claimed: &Claimed) {
        if !claimed.lost {
            let session = claimed.session.clone();
            self.settle(now, claimed, AfterAttempt::Unsent, session, None);
            return;
        }
        let mut schedule = Schedule::at_attempt(&claimed.session, claimed.attempt, claimed.began);
        let why = "the process that made the attempt recorded no result";
        let sent = broken_off(why, Duration::ZERO);
        schedule.lose();
        observe::attempt("lost", Duration::ZERO);
        self.failed(now, claimed, claimed.now, &mut schedule, &sent, false);
    }
}
