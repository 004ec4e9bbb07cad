//! The next claim, as far as tickets for it exist, and the claim that runs.

use tokio::time::Instant;

use super::store_calls::MAX_CALL_ITEMS;
use crate::store::{ClaimOrder, ClaimRequest, GRANT};

/// The endpoints of the next claim and of the running one.
#[derive(Debug)]
pub(super) struct ClaimBatch {
    /// Endpoints with tickets, or to be refreshed; and the total number of tickets.
    endpoints: Vec<i64>,
    tickets: usize,
    /// The endpoints of the running claim.
    running: Vec<EndpointClaim>,
    /// Its start, from which the permission to start its attempts counts.
    began: Instant,
}

/// The part of a claim for one endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EndpointClaim {
    pub(super) id: i64,
    /// The number of messages; zero to refresh the endpoint.
    pub(super) most: usize,
    pub(super) first: ClaimOrder,
}

impl ClaimBatch {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            endpoints: Vec::new(),
            tickets: 0,
            running: Vec::new(),
            began: now,
        }
    }

    /// Adds an endpoint, once for each claim.
    pub(super) fn add_endpoint(&mut self, id: i64) {
        self.endpoints.push(id);
    }

    pub(super) const fn add_ticket(&mut self) {
        self.tickets += 1;
    }

    /// Handles the return of tickets before the claim.
    pub(super) const fn return_tickets(&mut self, count: usize) {
        self.tickets -= count;
    }

    pub(super) const fn has_tickets(&self) -> bool {
        self.tickets > 0
    }

    pub(super) const fn is_full(&self) -> bool {
        self.tickets >= MAX_CALL_ITEMS
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }

    /// Starts the claim. `request` makes the request of an endpoint, if it still has any.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        request: impl FnMut(i64) -> Option<ClaimRequest>,
    ) -> Vec<ClaimRequest> {
        self.tickets = 0;
        self.began = now;
        let endpoints = std::mem::take(&mut self.endpoints);
        let requests: Vec<_> = endpoints.into_iter().filter_map(request).collect();
        let running = requests.iter().map(|request| EndpointClaim {
            id: request.endpoint,
            most: request.most,
            first: request.first,
        });
        self.running.extend(running);
        requests
    }

    /// Until when attempts of the running claim may start without confirmation.
    pub(super) fn granted_until(&self) -> Instant {
        self.began + GRANT
    }

    /// Takes the endpoints of the claim, which has ended.
    pub(super) fn end(&mut self) -> Vec<EndpointClaim> {
        std::mem::take(&mut self.running)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Fence;

    #[test]
    fn a_claim_takes_all_tickets_and_skips_endpoints_without_a_request() {
        let now = Instant::now();
        let mut batch = ClaimBatch::new(now);
        batch.add_endpoint(1);
        batch.add_endpoint(2);
        (0..MAX_CALL_ITEMS).for_each(|_| batch.add_ticket());
        assert!(batch.is_full());
        batch.return_tickets(1);
        assert!(batch.has_tickets() && !batch.is_full());
        let began = now + GRANT;
        let requests = batch.begin(began, |id| {
            (id == 2).then_some(ClaimRequest {
                endpoint: id,
                fence: Fence(1),
                revision: 1,
                most: 3,
                first: ClaimOrder::Due,
            })
        });
        assert_eq!(requests.len(), 1);
        assert!(batch.is_empty() && !batch.has_tickets());
        assert_eq!(batch.granted_until(), began + GRANT);
        let ended = batch.end();
        assert_eq!((ended[0].id, ended[0].most), (2, 3));
        assert_eq!(batch.end(), []);
    }
}
