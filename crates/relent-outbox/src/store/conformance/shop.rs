//! A store with an endpoint, and helpers of the checks.

use std::time::Duration;

use crate::endpoint::Endpoint;
use crate::message::NewMessage;
use crate::store::{
    AfterAttempt, AttemptRecord, ClaimRequest, Claimed, Enqueued, Filter, OwnedEndpoint, Settled,
    Store,
};

/// A lease or a delay that outlives the check.
pub(super) const LONG: Duration = Duration::from_secs(3600);

/// A store with one endpoint, `shop`.
pub(super) struct Shop<S>(pub(super) S);

impl<S: Store> Shop<S> {
    pub(super) async fn open(make: &impl AsyncFn() -> S) -> Self {
        let shop = Self(make().await);
        shop.put(endpoint("shop")).await;
        shop
    }

    pub(super) async fn put(&self, endpoint: Endpoint) {
        self.0.put_endpoint(endpoint).await.unwrap();
    }

    pub(super) async fn enqueue(
        &self,
        messages: impl IntoIterator<Item = NewMessage>,
    ) -> Vec<Enqueued> {
        let enqueued = self.0.enqueue(messages.into_iter().collect()).await;
        enqueued.unwrap()
    }

    /// Renews the worker's lease. Returns whether it had one.
    pub(super) async fn heartbeat(&self, worker: &str) -> bool {
        self.0.heartbeat(worker, LONG, true).await.unwrap().kept
    }

    /// Ends the worker's lease.
    pub(super) async fn die(&self, worker: &str) {
        self.0
            .heartbeat(worker, Duration::ZERO, true)
            .await
            .unwrap();
    }

    /// The endpoints with work for the worker.
    pub(super) async fn work(&self, worker: &str) -> Vec<i64> {
        let found = self.0.find_work(worker, Duration::ZERO, 1000).await;
        found.unwrap().iter().map(|work| work.endpoint).collect()
    }

    /// Renews the worker's lease, and takes all endpoints with work.
    pub(super) async fn take(&self, worker: &str) -> Vec<OwnedEndpoint> {
        self.heartbeat(worker).await;
        let endpoints = self.work(worker).await;
        self.0.acquire(worker, endpoints).await.unwrap()
    }

    /// Takes the only endpoint with work.
    pub(super) async fn take_one(&self, worker: &str) -> OwnedEndpoint {
        let [owned] = <[_; 1]>::try_from(self.take(worker).await).unwrap();
        owned
    }

    pub(super) async fn claim(&self, worker: &str, owned: &OwnedEndpoint) -> Vec<Claimed> {
        let claims = self
            .0
            .claim(worker, vec![wanted(owned, 100)])
            .await
            .unwrap();
        let Some(changed) = claims.changed.first() else {
            return claims.messages;
        };
        let again = self
            .0
            .claim(worker, vec![wanted(changed, 100)])
            .await
            .unwrap();
        again.messages
    }

    /// Claims messages, and returns their events, too.
    pub(super) async fn claim_events(
        &self,
        worker: &str,
        owned: &OwnedEndpoint,
    ) -> (Vec<String>, Vec<Claimed>) {
        let claimed = self.claim(worker, owned).await;
        let mut events = Vec::new();
        for claimed in &claimed {
            let filter = Filter {
                id: Some(claimed.id.clone()),
                ..Filter::default()
            };
            events.push(self.0.messages(filter, 2).await.unwrap().remove(0).event);
        }
        (events, claimed)
    }

    pub(super) async fn settle(&self, claimed: &Claimed, next: AfterAttempt) -> bool {
        self.write(settled(claimed, next)).await
    }

    pub(super) async fn write(&self, settled: Settled) -> bool {
        let [written] = self.0.settle(vec![settled]).await.unwrap()[..] else {
            panic!("one answer for each");
        };
        written
    }

    /// The events of the selected messages, in the order of enqueuing.
    pub(super) async fn events(&self, filter: Filter) -> Vec<String> {
        let found = self.0.messages(filter, 1000).await.unwrap();
        found.into_iter().rev().map(|found| found.event).collect()
    }
}

pub(super) fn endpoint(name: &str) -> Endpoint {
    Endpoint::new(name, format!("https://{name}.example/notify"))
}

pub(super) fn message(event: &str) -> NewMessage {
    NewMessage::new("shop", event, format!("{event}: \0 and \u{ff}"))
}

pub(super) fn wanted(owned: &OwnedEndpoint, most: usize) -> ClaimRequest {
    ClaimRequest::of(owned, most)
}

pub(super) fn settled(claimed: &Claimed, next: AfterAttempt) -> Settled {
    Settled {
        row: claimed.row,
        endpoint: claimed.endpoint,
        fence: claimed.fence,
        revision: claimed.revision,
        number: claimed.attempt,
        began: claimed.began,
        ordered: claimed.ordered,
        next,
        session: claimed.session.clone(),
        attempt: None,
        health: None,
        disable: None,
    }
}

pub(super) fn attempt(number: u32, error: &str) -> AttemptRecord {
    AttemptRecord {
        number,
        started_ms: 1_700_000_000_123,
        duration_ms: 250,
        status: (number > 1).then_some(503),
        error: error.to_owned(),
        excerpt: "<h1>Sorry \u{2014} \u{1f600}</h1>".to_owned(),
        address: "[2001:db8::1]:443".to_owned(),
        request: "content-type: text/plain\nwebhook-signature: [redacted]\n".to_owned(),
        response: "server: \u{fc}\n".to_owned(),
    }
}
