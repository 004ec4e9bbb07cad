//! A store that kills its process at a named point.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use relent_outbox::endpoint::{Activity, Endpoint};
use relent_outbox::message::{MessageId, NewEvent, NewMessage};
use relent_outbox::store::{
    AttemptRecord, ClaimRequest, Claims, ConfirmRequest, Content, Deletion, EndpointStatus,
    EndpointWork, EnqueueError, Enqueued, Fence, Filter, Heartbeat, MessageStatus, OwnedEndpoint,
    Published, Recent, Settled, Store, Summary,
};

pub(crate) const POINT: &str = "RELENT_OUTBOX_POINT";
pub(crate) const POINTS: [&str; 4] = [
    "before the claim",
    "after the claim",
    "after the answer, before it is settled",
    "after it is settled",
];

#[derive(Clone)]
pub(crate) struct Dying<S>(pub(crate) S);

/// `POINT` names a point, and how often it is passed before the process dies there: `after the claim@3`.
fn at(point: &str) {
    static PASSED: AtomicU32 = AtomicU32::new(0);
    let Ok(chosen) = std::env::var(POINT) else {
        return;
    };
    let (name, times) = chosen.split_once('@').unwrap();
    if name == point && PASSED.fetch_add(1, Ordering::Relaxed) == times.parse::<u32>().unwrap() {
        std::process::abort();
    }
}

impl<S: Store> Store for Dying<S> {
    type Error = S::Error;

    async fn claim(&self, worker: &str, wanted: Vec<ClaimRequest>) -> Result<Claims, S::Error> {
        at(POINTS[0]);
        let claimed = self.0.claim(worker, wanted).await;
        at(POINTS[1]);
        claimed
    }

    async fn confirm(
        &self,
        worker: &str,
        attempts: Vec<ConfirmRequest>,
    ) -> Result<Vec<Option<Bytes>>, S::Error> {
        self.0.confirm(worker, attempts).await
    }

    async fn settle(&self, settled: Vec<Settled>) -> Result<Vec<bool>, S::Error> {
        at(POINTS[2]);
        let written = self.0.settle(settled).await;
        at(POINTS[3]);
        written
    }

    async fn enqueue(
        &self,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Enqueued>, EnqueueError<S::Error>> {
        self.0.enqueue(messages).await
    }

    async fn publish(
        &self,
        events: Vec<NewEvent>,
    ) -> Result<Vec<Published>, EnqueueError<S::Error>> {
        self.0.publish(events).await
    }

    async fn endpoints_needing_attention(
        &self,
        most: usize,
    ) -> Result<Vec<EndpointStatus>, S::Error> {
        self.0.endpoints_needing_attention(most).await
    }

    async fn recent(&self, tenant: &str, name: &str) -> Result<Option<Recent>, S::Error> {
        self.0.recent(tenant, name).await
    }

    async fn content(&self, id: &MessageId) -> Result<Option<Content>, S::Error> {
        self.0.content(id).await
    }

    async fn send_now(&self, filter: Filter) -> Result<u64, S::Error> {
        self.0.send_now(filter).await
    }

    async fn heartbeat(
        &self,
        worker: &str,
        lease: Duration,
        able: bool,
    ) -> Result<Heartbeat, S::Error> {
        self.0.heartbeat(worker, lease, able).await
    }

    async fn find_work(
        &self,
        worker: &str,
        within: Duration,
        most: usize,
    ) -> Result<Vec<EndpointWork>, S::Error> {
        self.0.find_work(worker, within, most).await
    }

    async fn acquire(
        &self,
        worker: &str,
        endpoints: Vec<i64>,
    ) -> Result<Vec<OwnedEndpoint>, S::Error> {
        self.0.acquire(worker, endpoints).await
    }

    async fn release(&self, worker: &str, endpoints: Vec<(i64, Fence)>) -> Result<(), S::Error> {
        self.0.release(worker, endpoints).await
    }

    async fn put_endpoint(&self, endpoint: Endpoint) -> Result<(), S::Error> {
        self.0.put_endpoint(endpoint).await
    }

    async fn replace_endpoint(
        &self,
        endpoint: Endpoint,
        revision: Option<i64>,
    ) -> Result<bool, S::Error> {
        self.0.replace_endpoint(endpoint, revision).await
    }

    async fn delete_endpoint(
        &self,
        tenant: &str,
        name: &str,
        discard: bool,
    ) -> Result<Deletion, S::Error> {
        self.0.delete_endpoint(tenant, name, discard).await
    }

    async fn endpoint(&self, tenant: &str, name: &str) -> Result<Option<EndpointStatus>, S::Error> {
        self.0.endpoint(tenant, name).await
    }

    async fn endpoints(
        &self,
        after: Option<(String, String)>,
        most: usize,
    ) -> Result<Vec<EndpointStatus>, S::Error> {
        self.0.endpoints(after, most).await
    }

    async fn set_activity(
        &self,
        tenant: &str,
        name: &str,
        activity: Activity,
        reason: &str,
    ) -> Result<bool, S::Error> {
        self.0.set_activity(tenant, name, activity, reason).await
    }

    async fn key_check(&self) -> Result<Option<String>, S::Error> {
        self.0.key_check().await
    }

    async fn replace_key_check(
        &self,
        check: String,
        before: Option<String>,
    ) -> Result<bool, S::Error> {
        self.0.replace_key_check(check, before).await
    }

    async fn messages(&self, filter: Filter, most: usize) -> Result<Vec<MessageStatus>, S::Error> {
        self.0.messages(filter, most).await
    }

    async fn attempts(&self, id: &MessageId) -> Result<Vec<AttemptRecord>, S::Error> {
        self.0.attempts(id).await
    }

    async fn resend(&self, filter: Filter) -> Result<u64, S::Error> {
        self.0.resend(filter).await
    }

    async fn cancel(&self, filter: Filter) -> Result<u64, S::Error> {
        self.0.cancel(filter).await
    }

    async fn purge(&self, age: Duration, most: usize) -> Result<u64, S::Error> {
        self.0.purge(age, most).await
    }

    async fn summary(&self) -> Result<Summary, S::Error> {
        self.0.summary().await
    }
}
