//! Tests with a store that loses the record of a running request, as Redis may in a failover.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use relent_core::idempotency::{ClaimConfig, Fingerprint, Lease};
use relent_server::idempotency::{Body, Execution, IdempotencyLayer, Outcome, Takeover};
use relent_server::store::{
    Change, Claimed, Full as TooMany, Key, Memory, Resolution, ResolveError, Store, UnknownOutcome,
    WriteError,
};
use tokio::sync::Notify;
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};

/// A store that can lose all its records.
#[derive(Clone, Default)]
struct Forgetful {
    now: Arc<Mutex<Arc<Memory>>>,
}

impl Forgetful {
    fn get(&self) -> Arc<Memory> {
        Arc::clone(&self.now.lock().unwrap())
    }

    fn forget(&self) {
        *self.now.lock().unwrap() = Arc::default();
    }
}

impl Store for Forgetful {
    type Error = TooMany;

    async fn claim(
        &self,
        key: &Key,
        owner: u128,
        fingerprint: Fingerprint,
        config: &ClaimConfig,
    ) -> Result<Claimed, TooMany> {
        self.get().claim(key, owner, fingerprint, config).await
    }

    async fn write(
        &self,
        key: &Key,
        lease: &Lease,
        change: Change,
        config: &ClaimConfig,
    ) -> Result<Lease, WriteError<TooMany>> {
        let store = self.get();
        if store.is_empty() {
            return Err(WriteError::Gone);
        }
        store.write(key, lease, change, config).await
    }

    async fn find_unknown(
        &self,
        after: Option<&UnknownOutcome>,
        most: usize,
        config: &ClaimConfig,
    ) -> Result<Vec<UnknownOutcome>, TooMany> {
        self.get().find_unknown(after, most, config).await
    }

    async fn resolve(
        &self,
        found: &UnknownOutcome,
        resolution: Resolution,
        config: &ClaimConfig,
    ) -> Result<(), ResolveError<TooMany>> {
        self.get().resolve(found, resolution, config).await
    }

    async fn remove_expired(&self, most: usize) -> Result<usize, TooMany> {
        self.get().remove_expired(most).await
    }
}

/// The state of the handler.
#[derive(Default)]
struct Payments {
    begun: AtomicU32,
    ended: AtomicU32,
    /// The first execution waits for it.
    go: Notify,
    executions: Mutex<Vec<Execution>>,
}

type Service = tower::util::BoxCloneSyncService<Request<Full<Bytes>>, (u16, String), Infallible>;

/// The first execution waits. Its response then depends on its number and the path of the request.
fn service(store: &Forgetful, payments: &Arc<Payments>, takeover: Takeover) -> Service {
    let payments = Arc::clone(payments);
    let handler = service_fn(move |request: Request<Body<Full<Bytes>>>| {
        let payments = Arc::clone(&payments);
        async move {
            let number = payments.begun.fetch_add(1, Ordering::SeqCst) + 1;
            let execution = request.extensions().get::<Execution>().unwrap().clone();
            payments.executions.lock().unwrap().push(execution.clone());
            let path = request.uri().path().to_owned();
            if path == "/steps" && number == 1 {
                execution.checkpoint(2).await.unwrap();
            }
            if number == 1 {
                payments.go.notified().await;
            }
            payments.ended.fetch_add(1, Ordering::SeqCst);
            let mut response = Response::new(Full::<Bytes>::from(format!("charge {number}")));
            if path == "/undone" || (path == "/steps" && number == 1) {
                *response.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
                response.extensions_mut().insert(Outcome::NotApplied);
            }
            Ok::<_, Infallible>(response)
        }
    });
    let layer = IdempotencyLayer::anonymous(store.clone())
        .takeover(takeover)
        .wait(Duration::ZERO);
    let inner = layer.layer(handler);
    let answered = service_fn(move |request: Request<Full<Bytes>>| {
        let inner = inner.clone();
        async move {
            let response = inner.oneshot(request).await?;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            Ok((status, String::from_utf8(body.to_vec()).unwrap()))
        }
    });
    Service::new(answered)
}

fn pay(path: &str) -> Request<Full<Bytes>> {
    let request = Request::post(path).header("idempotency-key", "7");
    request.body(Full::default()).unwrap()
}

async fn begin(service: &Service, path: &str) -> tokio::task::JoinHandle<(u16, String)> {
    let asked = service.clone().oneshot(pay(path));
    let first = tokio::spawn(async move { asked.await.unwrap() });
    sleep(Duration::from_secs(1)).await;
    first
}

async fn ask(service: &Service, path: &str) -> (u16, String) {
    service.clone().oneshot(pay(path)).await.unwrap()
}

/// Beyond one renewal: the lease is 30 s and is renewed every 10 s.
const AFTER_RENEWAL: Duration = Duration::from_secs(11);

/// A renewal finds the record lost, and claims the key again: a duplicate is rejected as in flight.
#[tokio::test(start_paused = true)]
async fn an_execution_with_a_lost_record_claims_its_key_again() {
    for takeover in [Takeover::Refuse, Takeover::Rerun, Takeover::Resume] {
        let (store, payments) = (Forgetful::default(), Arc::new(Payments::default()));
        let first = begin(&service(&store, &payments, takeover), "/pay").await;
        store.forget();
        sleep(AFTER_RENEWAL).await;
        // Another process, which does not know that the first request runs.
        let service = service(&store, &payments, takeover);
        let (status, _) = ask(&service, "/pay").await;
        assert_eq!(status, 409, "{takeover:?}: it runs");
        assert!(!payments.executions.lock().unwrap()[0].is_lost());
        payments.go.notify_one();
        let answer = (200, "charge 1".to_owned());
        assert_eq!(first.await.unwrap(), answer);
        assert_eq!(ask(&service, "/pay").await, answer);
        assert_eq!(payments.begun.load(Ordering::SeqCst), 1, "{takeover:?}");
    }
}

/// The process knows its running requests, whatever the store has lost.
#[tokio::test(start_paused = true)]
async fn a_lost_record_causes_no_rerun_in_the_same_process() {
    for takeover in [Takeover::Refuse, Takeover::Rerun, Takeover::Resume] {
        let (store, payments) = (Forgetful::default(), Arc::new(Payments::default()));
        let service = service(&store, &payments, takeover);
        let first = begin(&service, "/pay").await;
        store.forget();
        for _ in 0..2 {
            let (status, problem) = ask(&service, "/pay").await;
            let in_flight = status == 409 && problem.contains("idempotency-in-flight");
            assert!(in_flight, "{takeover:?}: {status} {problem}");
        }
        // Another request with the key is rejected, and gets no information about the first.
        assert_eq!(ask(&service, "/undone").await.0, 422);
        payments.go.notify_one();
        let answer = (200, "charge 1".to_owned());
        assert_eq!(first.await.unwrap(), answer);
        assert_eq!(ask(&service, "/pay").await, answer);
        assert_eq!(payments.begun.load(Ordering::SeqCst), 1, "{takeover:?}");
    }
}

/// A duplicate in another process has claimed the key first. The handler is stopped if the route allows it; otherwise
/// it is notified and completes. The response of the duplicate is final in both cases.
#[tokio::test(start_paused = true)]
async fn a_replaced_execution_is_stopped_or_notified_and_not_stored() {
    for (takeover, ends) in [
        (Takeover::Refuse, 2),
        (Takeover::Rerun, 1),
        (Takeover::Resume, 1),
    ] {
        let (store, payments) = (Forgetful::default(), Arc::new(Payments::default()));
        let first = begin(&service(&store, &payments, takeover), "/pay").await;
        store.forget();
        let second = (200, "charge 2".to_owned());
        // Another process, which does not know that the first request runs.
        let service = service(&store, &payments, takeover);
        assert_eq!(ask(&service, "/pay").await, second);
        let execution = payments.executions.lock().unwrap()[0].clone();
        assert!(!execution.is_lost());
        let told = tokio::time::timeout(AFTER_RENEWAL, execution.lost());
        assert!(told.await.is_ok(), "{takeover:?}: with the next renewal");
        payments.go.notify_one();
        assert_eq!(first.await.unwrap().0, 409, "{takeover:?}");
        assert_eq!(payments.ended.load(Ordering::SeqCst), ends, "{takeover:?}");
        assert_eq!(ask(&service, "/pay").await, second, "{takeover:?}");
    }
}

/// An execution reports no effect, but a step of it, or an earlier execution, had one. The lost record of that is
/// written again for the next execution.
#[tokio::test(start_paused = true)]
async fn a_lost_record_of_earlier_effects_is_written_again() {
    let (store, payments) = (Forgetful::default(), Arc::new(Payments::default()));
    let steps = service(&store, &payments, Takeover::Resume);
    let first = begin(&steps, "/steps").await;
    store.forget();
    payments.go.notify_one();
    assert_eq!(first.await.unwrap().0, 503);
    assert_eq!(ask(&steps, "/steps").await.0, 200);
    let next = payments.executions.lock().unwrap()[1].clone();
    assert_eq!((next.step(), next.is_repeated()), (2, true));

    // If a rerun is not allowed, the outcome is unknown.
    let (store, payments) = (Forgetful::default(), Arc::new(Payments::default()));
    let refuse = service(&store, &payments, Takeover::Refuse);
    let first = begin(&refuse, "/steps").await;
    store.forget();
    payments.go.notify_one();
    assert_eq!(first.await.unwrap().0, 503);
    let (status, problem) = ask(&refuse, "/steps").await;
    assert!(
        status == 409 && problem.contains("outcome-unknown"),
        "{status} {problem}"
    );

    // A request without any effect may run again.
    let (store, payments) = (Forgetful::default(), Arc::new(Payments::default()));
    let undone = service(&store, &payments, Takeover::Refuse);
    let first = begin(&undone, "/undone").await;
    store.forget();
    payments.go.notify_one();
    assert_eq!(first.await.unwrap().0, 503);
    ask(&undone, "/undone").await;
    assert_eq!(payments.begun.load(Ordering::SeqCst), 2);
}
