//! State of one endpoint of a worker: its rules, its messages in the hands of the worker, and what is known of it.

use std::sync::Arc;
use std::time::Duration;

use relent_core::destination::Permit;
use tokio::time::Instant;

use super::admission::EndpointAdmission;
use super::demand::Demand;
use super::endpoint_speed::Speed;
use super::fault_hold::FaultHold;
use super::held_endpoints::HoldReason;
use super::in_flight::{InFlight, Place};
use super::rules::Rules;
use crate::endpoint::Endpoint;
use crate::fault::LocalFault;
use crate::health::Health;
use crate::schedule::CONTRACT_CONCURRENCY;
use crate::sender::{NO_ANSWER, NO_CONNECTION};
use crate::store::{ClaimOrder, ClaimRequest, Fence, OwnedEndpoint};

/// Permission to claim one message, with the place for its attempt.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) permit: Permit,
    pub(super) place: Place,
}

/// The state of one endpoint of a worker.
#[derive(Debug)]
pub(super) struct EndpointState {
    pub(super) registration: Registration,
    pub(super) health: Health,
    pub(super) admission: EndpointAdmission,
    pub(super) fault: FaultHold,
    pub(super) speed: Speed,
    pub(super) demand: Demand,
    pub(super) work: Work,
    /// The payload size of its last message, if that was long; otherwise 0.
    pub(super) large: usize,
    /// One of its messages needs isolation, and none is sent before that.
    pub(super) is_alone: bool,
    /// It is released when none of its attempts runs.
    pub(super) is_retiring: bool,
}

/// The registration of an endpoint, as this worker knows it.
#[derive(Debug)]
pub(super) struct Registration {
    pub(super) id: i64,
    pub(super) fence: Fence,
    /// When the acquisition returned.
    pub(super) acquired: Instant,
    /// The revision of `rules`.
    pub(super) revision: i64,
    pub(super) rules: Arc<Rules>,
    /// The store has a newer revision; and a claim requests it.
    pub(super) is_stale: bool,
    pub(super) is_refreshing: bool,
    /// Incremented when the circuit breaker restarts: earlier attempts do not count for the new one.
    pub(super) epoch: u32,
    /// This worker has disabled the endpoint. Counted once, however many attempts ask for it.
    pub(super) is_disabled: bool,
}

/// The messages of an endpoint in the hands of the worker.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// For the next claim, and for the running one.
    pub(super) tickets: Vec<Ticket>,
    pub(super) claiming: Vec<Ticket>,
    pub(super) running: usize,
    /// The running attempts that follow the current rules.
    pub(super) running_now: usize,
    /// The attempts that ended and are not written yet.
    pub(super) unsettled: usize,
}

impl EndpointState {
    /// The state of an endpoint that the worker has acquired.
    pub(super) fn new(
        now: Instant,
        owned: OwnedEndpoint,
        rules: impl FnOnce(Endpoint) -> Rules,
        slow_after: Duration,
    ) -> Self {
        let health = Health::read(&owned.health);
        let rules = rules(owned.endpoint);
        // An endpoint that did not respond under its last owner must not use slots of fast endpoints.
        let is_slow = [NO_ANSWER, NO_CONNECTION].contains(&health.last_error());
        Self {
            admission: EndpointAdmission::new(&rules),
            registration: Registration {
                id: owned.id,
                fence: owned.fence,
                acquired: now,
                revision: owned.revision,
                rules: Arc::new(rules),
                is_stale: false,
                is_refreshing: false,
                epoch: 0,
                is_disabled: false,
            },
            health,
            fault: FaultHold::default(),
            speed: Speed::new(slow_after, is_slow),
            demand: Demand::NONE,
            work: Work::default(),
            large: 0,
            is_alone: false,
            is_retiring: false,
        }
    }

    /// Adopts a changed registration.
    pub(super) fn refresh(
        &mut self,
        now: relent_core::Instant,
        owned: OwnedEndpoint,
        rules: impl FnOnce(Endpoint) -> Rules,
    ) {
        let rules = rules(owned.endpoint);
        self.admission.restart(now, &rules);
        self.health = Health::read(&owned.health);
        self.fault = FaultHold::default();
        self.speed.reset();
        self.work.running_now = 0;
        let registration = &mut self.registration;
        registration.rules = Arc::new(rules);
        registration.revision = owned.revision;
        (registration.is_stale, registration.is_disabled) = (false, false);
        registration.epoch = registration.epoch.wrapping_add(1);
    }

    pub(super) const fn rules(&self) -> &Arc<Rules> {
        &self.registration.rules
    }

    /// Notes that it may have a due message.
    pub(super) const fn add_demand(&mut self) {
        self.demand.add(!self.work.claiming.is_empty());
    }

    /// Its message that needs isolation has its turn.
    pub(super) const fn end_isolation(&mut self) {
        self.is_alone = false;
        self.demand.add(false);
    }

    /// Whether another message could be claimed, given a place and permission.
    pub(super) fn can_claim_more(&self, now: Instant) -> bool {
        let Work {
            tickets,
            claiming,
            running,
            running_now,
            ..
        } = &self.work;
        let held = tickets.len() + claiming.len();
        let rules = self.rules();
        let concurrency = rules.endpoint.concurrency.get() as usize;
        let most = match self.fault.fault() {
            // A single attempt shows whether the fault is fixed.
            Some(_) => 1,
            None if rules.is_contract => concurrency.max(CONTRACT_CONCURRENCY),
            None => concurrency,
        };
        // Slow attempts of a contract do not delay others.
        let several = rules.is_contract || self.speed.allows_several(now);
        self.demand.is_due()
            && (several || running_now + held == 0)
            && !self.registration.is_stale
            && !self.is_retiring
            && !self.is_alone
            && held < self.demand.want()
            && running + held < most
    }

    /// Until when a local fault holds its messages; `None` if one may be sent. `reread` parses its rules again, as a
    /// fault of the registration may be fixed.
    pub(super) fn held_by_fault(
        &mut self,
        now: Instant,
        reread: impl FnOnce(&Rules) -> Rules,
    ) -> Option<Instant> {
        if self.fault.until(now).is_none()
            && let Err(fault) = &self.rules().target
        {
            let fault = fault.clone();
            if self.fault.fault().is_some() {
                let rules = reread(self.rules());
                if rules.target.is_ok() {
                    self.fault.end(&rules.endpoint);
                    self.admission = EndpointAdmission::new(&rules);
                    self.registration.rules = Arc::new(rules);
                    return None;
                }
            }
            self.hold(now, fault);
        }
        self.fault.until(now)
    }

    /// Holds its messages because of a local fault.
    pub(super) fn hold(&mut self, now: Instant, fault: LocalFault) {
        self.fault
            .begin(now, &self.registration.rules.endpoint, fault);
    }

    /// The request of a claim that uses all tickets, or that refreshes the registration; `None` if there are none.
    /// `is_isolated`: it is for the message that needs isolation, which is not fresh.
    pub(super) fn begin_claim(&mut self, now: Instant, is_isolated: bool) -> Option<ClaimRequest> {
        let registration = &self.registration;
        let refreshes = registration.is_refreshing && !self.is_retiring;
        if self.work.tickets.is_empty() && !refreshes {
            return None;
        }
        self.work.claiming = std::mem::take(&mut self.work.tickets);
        let most = self.work.claiming.len();
        let first = match most {
            0 => ClaimOrder::Due,
            _ if is_isolated => ClaimOrder::Due,
            _ => self.demand.next_order(now, self.admission.is_down()),
        };
        Some(ClaimRequest {
            endpoint: registration.id,
            fence: registration.fence,
            revision: registration.revision,
            most,
            first,
        })
    }

    /// The claim has ended: returns the tickets that it has not used.
    pub(super) fn end_claim(&mut self, now: relent_core::Instant, in_flight: &mut InFlight) {
        self.registration.is_refreshing = false;
        for ticket in std::mem::take(&mut self.work.claiming) {
            self.cancel(now, ticket, in_flight);
        }
    }

    /// Returns the tickets for the next claim. Returns their number.
    pub(super) fn return_tickets(
        &mut self,
        now: relent_core::Instant,
        in_flight: &mut InFlight,
    ) -> usize {
        let tickets = std::mem::take(&mut self.work.tickets);
        let count = tickets.len();
        for ticket in tickets {
            self.cancel(now, ticket, in_flight);
        }
        count
    }

    /// Returns a ticket for an attempt that is not made.
    pub(super) fn cancel(
        &self,
        now: relent_core::Instant,
        ticket: Ticket,
        in_flight: &mut InFlight,
    ) {
        self.admission.cancel(now, ticket.permit);
        in_flight.give_back(ticket.place);
    }

    /// Stops its attempts: it is released when [idle](Self::is_over).
    pub(super) fn retire(&mut self, now: relent_core::Instant) {
        self.is_retiring = true;
        self.admission.leave(now);
    }

    /// Whether none of its attempts runs or is to be written.
    pub(super) const fn is_over(&self) -> bool {
        let work = &self.work;
        work.running == 0
            && work.unsettled == 0
            && work.tickets.is_empty()
            && work.claiming.is_empty()
    }

    /// The reason that its due messages wait; `None` if none is due, or they need not wait.
    pub(super) fn hold_reason(&self, now: Instant) -> Option<HoldReason> {
        if !self.demand.is_due() || self.is_retiring {
            return None;
        }
        if self.fault.fault().is_some() {
            return Some(HoldReason::LocalFault);
        }
        // Without a request: one attempt runs at a time while the speed of the endpoint is unknown.
        let is_full = self.work.running > 0 && !self.can_claim_more(now);
        let is_full = is_full.then_some(HoldReason::Concurrency);
        self.admission.hold_reason().or(is_full)
    }
}
