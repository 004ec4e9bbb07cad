//! Ends of attempts, and the writing of their results.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use relent_core::Scope;
use relent_core::destination::Permit;
use tokio::time::Instant;

use super::EventLoop;
use crate::acknowledgement::MAX_EXCERPT;
use crate::fault::{LONGEST_WAIT, LocalFault};
use crate::observe;
use crate::schedule::Schedule;
use crate::sender::AttemptResult;
use crate::store::{AfterAttempt, AttemptRecord, Claimed, Settled, Store, millis};
use crate::text::printable;
use crate::worker::attempt::{AttemptEnd, NoResult, broken_off};
use crate::worker::endpoint_state::EndpointState;
use crate::worker::in_flight::Running;
use crate::worker::results::{Pending, Written};
use crate::worker::store_calls::{CallResult, StoreCall};

impl<S: Store> EventLoop<S> {
    pub(super) fn on_attempt(&mut self, now: Instant, running: Running, ended: AttemptEnd) {
        let Running {
            claimed,
            claimed_at,
            mut schedule,
            permit,
            epoch,
            ..
        } = running;
        let is_current = self.end_at_endpoint(now, &claimed, permit, epoch, &ended);
        let took = now.saturating_duration_since(claimed_at);
        let id = claimed.endpoint;
        let (sent, is_evidence) = match ended {
            Ok(AttemptResult {
                fault: Some(kind),
                outcome: Err(refused),
                ..
            }) => {
                let error = printable(&refused.error, MAX_EXCERPT);
                self.on_local_fault(now, &claimed, LocalFault { kind, error }, is_current);
                return;
            }
            Ok(sent) => (sent, true),
            Err(unmade @ (NoResult::NotStarted | NoResult::StoreAway)) => {
                if unmade == NoResult::StoreAway {
                    self.calls.failed(now);
                }
                let session = claimed.session.clone();
                self.settle(now, &claimed, AfterAttempt::Unsent, session, None);
                self.queue.push(id);
                return;
            }
            Err(NoResult::Unknown(why)) => (broken_off(why, took), false),
        };
        let store_now = claimed.now + took;
        if sent.outcome.is_ok() {
            observe::attempt("acknowledged", sent.took);
            let waited = store_now.duration_since(claimed.began).unwrap_or_default();
            observe::acknowledged(waited);
            let session = schedule.save();
            self.settle(now, &claimed, AfterAttempt::Delivered, session, Some(&sent));
            let is_current =
                |endpoint: &EndpointState| endpoint.registration.revision == claimed.revision;
            if let Some(reason) = sent.disable
                && self.endpoints.get(&id).is_some_and(is_current)
            {
                self.disable(now, id, reason.to_owned());
            }
        } else {
            observe::attempt("failed", sent.took);
            self.failed(now, &claimed, store_now, &mut schedule, &sent, is_evidence);
        }
        self.queue.push(id);
    }

    /// Reports the end of an attempt to its endpoint. Returns whether it followed the endpoint's current rules:
    /// otherwise it belongs to an earlier circuit breaker and registration.
    fn end_at_endpoint(
        &mut self,
        now: Instant,
        claimed: &Claimed,
        permit: Permit,
        epoch: u32,
        ended: &AttemptEnd,
    ) -> bool {
        let core_now = self.clock.at(now);
        let Some(endpoint) = self.endpoints.get_mut(&claimed.endpoint) else {
            return false;
        };
        endpoint.work.running -= 1;
        if epoch != endpoint.registration.epoch {
            return false;
        }
        endpoint.work.running_now -= 1;
        match ended {
            Ok(sent) if sent.fault.is_none() => {
                let rules = Arc::clone(endpoint.rules());
                endpoint.fault.end(&rules.endpoint);
                endpoint.speed.answered(now, sent.took);
                let (failed, is_fresh) = (sent.outcome.is_err(), claimed.is_fresh());
                endpoint.demand.ended(now, sent.took, failed, is_fresh);
                let admission = &mut endpoint.admission;
                let failure = sent.outcome.as_ref().err().map(|refused| {
                    let failure = refused.failure;
                    match admission.is_about_message(core_now, &failure, claimed.is_fresh()) {
                        true => failure.scope(Scope::Request),
                        false => failure,
                    }
                });
                admission.ended(core_now, permit, failure.as_ref(), &rules);
            }
            _ => endpoint.admission.cancel(core_now, permit),
        }
        true
    }

    /// Handles an attempt that a local fault has prevented, under the current rules of the endpoint if `is_current`.
    fn on_local_fault(
        &mut self,
        now: Instant,
        claimed: &Claimed,
        fault: LocalFault,
        is_current: bool,
    ) {
        let endpoint = self.endpoints.get_mut(&claimed.endpoint);
        let mut next = AfterAttempt::Unsent;
        if fault.kind.is_of_message() {
            if let Some(endpoint) = endpoint {
                let rules = Arc::clone(endpoint.rules());
                endpoint.fault.hold_one(&rules.endpoint, &fault);
            }
            next = AfterAttempt::Held(LONGEST_WAIT, fault.error);
            self.queue.push(claimed.endpoint);
        } else {
            let is_of_machine = fault.kind.is_of_machine();
            if let Some(endpoint) = endpoint.filter(|_| is_current) {
                // A fault under the old rules need not exist under the current ones.
                endpoint.hold(now, fault);
            }
            if is_of_machine && self.in_flight.is_in_process() {
                self.doubt(claimed.endpoint);
            }
        }
        self.settle(now, claimed, next, claimed.session.clone(), None);
    }

    /// Handles a failed attempt. `is_evidence`: the failure is evidence about the endpoint.
    pub(super) fn failed(
        &mut self,
        now: Instant,
        claimed: &Claimed,
        store_now: SystemTime,
        schedule: &mut Schedule,
        sent: &AttemptResult,
        is_evidence: bool,
    ) {
        let id = claimed.endpoint;
        let (Err(refused), Some(endpoint)) = (&sent.outcome, self.endpoints.get_mut(&id)) else {
            return;
        };
        let rules = Arc::clone(endpoint.rules());
        let mut disable = None;
        let error = printable(&refused.error, MAX_EXCERPT);
        // An attempt by old rules is no evidence about the current endpoint.
        if is_evidence && endpoint.registration.revision == claimed.revision {
            endpoint.health.failed(store_now, &error);
            let disable_after = &self.setup.config.disable_after;
            disable = match sent.disable {
                Some(reason) => Some(reason.to_owned()),
                None => endpoint.health.disables(disable_after, store_now),
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
            self.disable(now, id, reason);
        }
    }

    /// Disables the endpoint of the last settled result.
    fn disable(&mut self, now: Instant, id: i64, reason: String) {
        self.results.disable(reason);
        self.retire(now, id);
    }

    /// Queues a result to be written.
    pub(super) fn settle(
        &mut self,
        now: Instant,
        claimed: &Claimed,
        next: AfterAttempt,
        session: Vec<u8>,
        sent: Option<&AttemptResult>,
    ) {
        let mut changes_health = false;
        if let Some(endpoint) = self.endpoints.get_mut(&claimed.endpoint) {
            endpoint.work.unsettled += 1;
            changes_health = match (&next, sent) {
                _ if endpoint.registration.revision != claimed.revision => false,
                (AfterAttempt::Delivered, _) => endpoint.health.succeeded(),
                (_, None) => false,
                _ => true,
            };
        }
        self.results.push(Pending {
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
                attempt: sent.map(|sent| record(claimed, sent)),
                health: None,
                disable: None,
            },
            changes_health,
            is_repeated: false,
            lost: self.lease.lost(),
            ended: now,
        });
    }

    pub(super) fn begin_settle(&mut self, now: Instant) {
        if self.results.is_empty()
            || self.calls.next_at() > now
            || self.calls.is_busy(StoreCall::Settle)
        {
            return;
        }
        let settled = self.results.begin(now, |settled| {
            let endpoint = self.endpoints.get(&settled.endpoint)?;
            let is_current = endpoint.registration.revision == settled.revision;
            is_current.then(|| endpoint.health.write())
        });
        let store = self.setup.store.clone();
        self.calls.begin(StoreCall::Settle, async move {
            store.settle(settled).await.map(CallResult::Settled)
        });
    }

    pub(super) fn on_settled(&mut self, now: Instant, written: &[bool]) {
        for result in self.results.succeeded(written) {
            let Written {
                pending,
                waited,
                is_written,
            } = result;
            let id = pending.settled.endpoint;
            let Some(endpoint) = self.endpoints.get_mut(&id) else {
                continue;
            };
            endpoint.work.unsettled = endpoint.work.unsettled.saturating_sub(1);
            // Rejected although this worker owned the endpoint throughout: the first try has taken effect.
            let was_written = pending.is_repeated && pending.lost == self.lease.lost();
            let registration = &mut endpoint.registration;
            if let Some(reason) = &pending.settled.disable
                && (is_written || was_written)
                && !std::mem::replace(&mut registration.is_disabled, true)
            {
                let endpoint = &registration.rules.endpoint;
                observe::disabled(&endpoint.tenant, &endpoint.name, reason);
            }
            if !is_written {
                // Another worker owns the endpoint, or the response to an earlier try was lost. Acquiring it again
                // refreshes it.
                self.retire(now, id);
                continue;
            }
            match pending.settled.next {
                AfterAttempt::Again(after) if after <= self.setup.config.poll => {
                    // The store counts from a time between call and response. A claim that is too early returns
                    // nothing.
                    self.queue.due_at(id, now + after.saturating_sub(waited));
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
}

/// The record of an attempt.
fn record(claimed: &Claimed, sent: &AttemptResult) -> AttemptRecord {
    AttemptRecord {
        number: claimed.attempt,
        started_ms: millis(claimed.started),
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
    }
}
