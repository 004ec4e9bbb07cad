//! Tests that everything that holds a slot, a lease or memory is limited: misbehaving clients, handlers that never
//! end, and stalled stores, in virtual time.

use std::convert::Infallible;
use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{join_all, poll_immediate};
use futures_util::{FutureExt, StreamExt, stream};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use relent_core::admission::{ConcurrencyConfig, ConcurrencyLimiterConfig, LimiterConfig};
use relent_core::idempotency::{ClaimConfig, Fingerprint, Lease, Takeover};
use relent_server::ServerLayer;
use relent_server::admission::{AdmissionLayer, Quota};
use relent_server::idempotency::{Body, Execution, IdempotencyLayer, Limits};
use relent_server::overload::OverloadLayer;
use relent_server::store::{
    Change, Claimed, Full as MemoryFull, Key, Memory, NotResolved, Resolution, ResolveError, Store,
    UnknownOutcome, WriteError,
};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tower::limit::ConcurrencyLimit;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::idempotency::{Away, Flaky};

type Bodies = UnsyncBoxBody<Bytes, Infallible>;

fn whole(text: impl Into<Bytes>) -> Bodies {
    Full::new(text.into()).boxed_unsync()
}

fn frames(frames: impl stream::Stream<Item = Bytes> + Send + 'static) -> Bodies {
    let frames = frames.map(|bytes| Ok(Frame::data(bytes)));
    StreamBody::new(frames).boxed_unsync()
}

/// A body that arrives after 1 s.
fn late() -> Bodies {
    let second = sleep(Duration::from_secs(1));
    frames(stream::once(second.map(|()| Bytes::from("5 EUR"))))
}

/// A byte at each interval, without an end.
fn drips(every: Duration) -> Bodies {
    frames(stream::unfold((), move |()| async move {
        sleep(every).await;
        Some((Bytes::from("x"), ()))
    }))
}

fn stands_still() -> Bodies {
    frames(stream::pending())
}

/// A store that counts its calls, and can stall.
#[derive(Clone, Default)]
struct Counted {
    memory: Arc<Memory>,
    claims: Arc<AtomicU32>,
    writes: Arc<Mutex<Vec<&'static str>>>,
    /// The delay before each call is executed.
    late: Arc<Mutex<Duration>>,
}

impl Counted {
    fn claims(&self) -> u32 {
        self.claims.load(Ordering::SeqCst)
    }

    fn set_late(&self, late: Duration) {
        *self.late.lock().unwrap() = late;
    }

    async fn wait(&self) {
        let late = *self.late.lock().unwrap();
        if !late.is_zero() {
            sleep(late).await;
        }
    }
}

impl Store for Counted {
    type Error = MemoryFull;

    async fn claim(
        &self,
        key: &Key,
        owner: u128,
        print: Fingerprint,
        config: &ClaimConfig,
    ) -> Result<Claimed, MemoryFull> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        let (store, key, config) = (self.clone(), *key, *config);
        // The claim is executed even if its caller has gone.
        let claim = tokio::spawn(async move {
            store.wait().await;
            store.memory.claim(&key, owner, print, &config).await
        });
        claim.await.unwrap()
    }

    async fn write(
        &self,
        key: &Key,
        lease: &Lease,
        change: Change,
        config: &ClaimConfig,
    ) -> Result<Lease, WriteError<MemoryFull>> {
        self.writes.lock().unwrap().push(match change {
            Change::Renew => "renew",
            Change::Complete(_) => "complete",
            Change::Release => "release",
            Change::GiveUp => "give up",
            _ => "other",
        });
        self.wait().await;
        self.memory.write(key, lease, change, config).await
    }

    async fn find_unknown(
        &self,
        after: Option<&UnknownOutcome>,
        most: usize,
        config: &ClaimConfig,
    ) -> Result<Vec<UnknownOutcome>, MemoryFull> {
        self.memory.find_unknown(after, most, config).await
    }

    async fn resolve(
        &self,
        found: &UnknownOutcome,
        resolution: Resolution,
        config: &ClaimConfig,
    ) -> Result<(), ResolveError<MemoryFull>> {
        self.memory.resolve(found, resolution, config).await
    }

    async fn remove_expired(&self, most: usize) -> Result<usize, MemoryFull> {
        self.memory.remove_expired(most).await
    }
}

/// A payment service. The path of a request determines what its handler does.
#[derive(Clone)]
struct Payments {
    begun: Arc<AtomicU32>,
    ended: Arc<AtomicU32>,
    executions: Arc<Mutex<Vec<Execution>>>,
    goes_on: Arc<Semaphore>,
}

impl Default for Payments {
    fn default() -> Self {
        Self {
            begun: Arc::default(),
            ended: Arc::default(),
            executions: Arc::default(),
            goes_on: Arc::new(Semaphore::new(0)),
        }
    }
}

impl Payments {
    async fn handle(self, request: Request<Body<Bodies>>) -> Result<Response<Bodies>, Infallible> {
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        if let Some(execution) = request.extensions().get::<Execution>() {
            self.executions.lock().unwrap().push(execution.clone());
        }
        let path = request.uri().path().to_owned();
        match &*path {
            "/waits" => self.goes_on.acquire().await.unwrap().forget(),
            "/100s" => sleep(Duration::from_secs(100)).await,
            "/never" => pending().await,
            _ => {}
        }
        self.ended.fetch_add(1, Ordering::SeqCst);
        let body = match &*path {
            "/endless" => drips(Duration::from_secs(1)),
            _ => whole(format!("charge {number}")),
        };
        Ok(Response::new(body))
    }

    fn begun(&self) -> u32 {
        self.begun.load(Ordering::SeqCst)
    }

    fn ended(&self) -> u32 {
        self.ended.load(Ordering::SeqCst)
    }

    fn ask<L, S>(&self, layer: &L, request: Request<Bodies>) -> JoinHandle<Reply>
    where
        L: Layer<Handler, Service = S>,
        S: Service<Request<Bodies>, Error = Infallible> + Send + 'static,
        S::Future: Send,
        S::Response: Into<Answered>,
    {
        let payments = self.clone();
        let handler: Handler = Handler(payments);
        let service = layer.layer(handler);
        tokio::spawn(async move {
            let Answered(response) = service.oneshot(request).await.unwrap().into();
            Reply::of(response).await
        })
    }
}

#[derive(Clone)]
struct Handler(Payments);

impl Service<Request<Body<Bodies>>> for Handler {
    type Response = Response<Bodies>;
    type Error = Infallible;
    type Future = futures_util::future::BoxFuture<'static, Result<Response<Bodies>, Infallible>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body<Bodies>>) -> Self::Future {
        Box::pin(self.0.clone().handle(request))
    }
}

/// A response of either layer.
struct Answered(Response<UnsyncBoxBody<Bytes, Infallible>>);

impl<B> From<Response<B>> for Answered
where
    B: http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    fn from(response: Response<B>) -> Self {
        Self(response.map(BodyExt::boxed_unsync))
    }
}

#[derive(Debug)]
struct Reply {
    status: u16,
    body: String,
    replayed: bool,
    retry_after: Option<String>,
    headers: HeaderMap,
}

impl Reply {
    async fn of(response: Response<UnsyncBoxBody<Bytes, Infallible>>) -> Self {
        let (head, body) = response.into_parts();
        let retry_after = head.headers.get("retry-after");
        Self {
            status: head.status.as_u16(),
            replayed: head.headers.contains_key("idempotent-replayed"),
            retry_after: retry_after.map(|value| value.to_str().unwrap().to_owned()),
            body: String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap(),
            headers: head.headers,
        }
    }

    fn is(&self, status: u16, code: &str) -> bool {
        self.status == status && self.body.contains(code)
    }
}

fn upload(path: &str, account: &str, key: &str, body: Bodies) -> Request<Bodies> {
    let request = Request::post(path).header("idempotency-key", key);
    request.extension(account.to_owned()).body(body).unwrap()
}

fn pay(path: &str, key: &str) -> Request<Bodies> {
    upload(path, "alice", key, whole("5 EUR"))
}

fn layer_over<S: Store>(store: S) -> IdempotencyLayer<S> {
    IdempotencyLayer::new(store, |parts| parts.extensions.get().cloned())
}

fn layer() -> IdempotencyLayer<Memory> {
    layer_over(Memory::new())
}

fn overload(limit: u32) -> OverloadLayer {
    overload_with_queue(limit, ConcurrencyLimiterConfig::DEFAULT.queue)
}

fn overload_with_queue(limit: u32, queue: u32) -> OverloadLayer {
    let config = ConcurrencyLimiterConfig {
        concurrency: ConcurrencyConfig::fixed(limit),
        queue,
        ..ConcurrencyLimiterConfig::DEFAULT
    };
    OverloadLayer::new(&config).unwrap()
}

/// Waits until all tasks that need no time have progressed.
async fn settle() {
    sleep(Duration::from_millis(1)).await;
}

fn seconds(began: Instant) -> u64 {
    began.elapsed().as_millis().div_ceil(1000) as u64
}

#[tokio::test(start_paused = true)]
async fn a_body_that_pauses_30_s_or_takes_over_2_min_is_rejected() {
    let (payments, layer) = (Payments::default(), layer());
    let began = Instant::now();
    let still = payments.ask(&layer, upload("/", "alice", "a", stands_still()));
    let dripping = drips(Duration::from_secs(3));
    let dripping = payments.ask(&layer, upload("/", "alice", "b", dripping));
    let reply = still.await.unwrap();
    assert!(reply.is(408, "idempotency-request-too-slow"), "{reply:?}");
    assert_eq!(reply.retry_after.as_deref(), Some("1"));
    assert_eq!(seconds(began), 30);
    let reply = dripping.await.unwrap();
    assert!(reply.is(408, "idempotency-request-too-slow"), "{reply:?}");
    assert_eq!(seconds(began), 120);
    assert_eq!(payments.begun(), 0);
    // Nothing was claimed.
    assert_eq!(
        payments.ask(&layer, pay("/", "a")).await.unwrap().status,
        200
    );
}

#[tokio::test(start_paused = true)]
async fn a_slow_body_holds_no_slot_until_it_is_complete() {
    let (payments, overload) = (Payments::default(), overload(1));
    let layer = ServerLayer::new(layer()).overload(overload.clone());
    let slow = |key: &str| {
        let parts = stream::iter(["5 ", "EUR"]).then(|part| async move {
            sleep(Duration::from_secs(10)).await;
            Bytes::from(part)
        });
        payments.ask(&layer, upload("/", "alice", key, frames(parts)))
    };
    let slow: Vec<_> = ["a", "b"].map(slow).into();
    settle().await;
    assert_eq!((overload.in_flight(), overload.waiting()), (0, 0));
    assert_eq!(
        payments.ask(&layer, pay("/", "c")).await.unwrap().status,
        200
    );
    for reply in join_all(slow).await {
        assert_eq!(reply.unwrap().status, 200);
    }
    // If no slot is free by then, the request is rejected.
    let late = stream::once(async {
        sleep(Duration::from_secs(1)).await;
        Bytes::from("5 EUR")
    });
    let late = payments.ask(&layer, upload("/", "alice", "d", frames(late)));
    sleep(Duration::from_millis(200)).await;
    let holds = payments.ask(&layer, pay("/waits", "e"));
    let reply = late.await.unwrap();
    assert!(reply.is(503, "idempotency-busy"), "{reply:?}");
    assert_eq!(reply.retry_after.as_deref(), Some("1"));
    payments.goes_on.add_permits(1);
    assert_eq!(holds.await.unwrap().status, 200);
}

#[tokio::test(start_paused = true)]
async fn after_its_upload_a_request_is_rejected_as_on_arrival() {
    let payments = Payments::default();
    let layer = ServerLayer::new(layer()).overload(overload_with_queue(1, 0));
    let fields = [
        // A client whose calls all take five attempts.
        ("relent-histogram", "0,0,0,0,100"),
        ("relent-deadline-ms", "500"),
    ];
    let late = [false, true].map(|is_grpc| {
        fields.map(|(name, value)| {
            let mut request = upload("/", "alice", name, late());
            request.headers_mut().insert(name, value.parse().unwrap());
            if is_grpc {
                let grpc = "application/grpc".parse().unwrap();
                request.headers_mut().insert("content-type", grpc);
            }
            payments.ask(&layer, request)
        })
    });
    settle().await;
    let holds = payments.ask(&layer, pay("/waits", "holds"));
    let [[shed, expired], [grpc_shed, grpc_expired]] = late;
    let shed = shed.await.unwrap();
    assert!(shed.is(503, "idempotency-busy"), "{shed:?}");
    assert_eq!(shed.headers["x-should-retry"], "false");
    assert_eq!(shed.headers["relent-mark"], "overloaded");
    assert_eq!(shed.retry_after, None);
    let expired = expired.await.unwrap();
    assert!(expired.is(504, "idempotency-busy"), "{expired:?}");
    assert_eq!(expired.retry_after, None);
    let shed = grpc_shed.await.unwrap();
    assert_eq!(shed.headers["grpc-status"], "14");
    assert_eq!(shed.headers["relent-mark"], "overloaded");
    assert_eq!(grpc_expired.await.unwrap().headers["grpc-status"], "4");
    payments.goes_on.add_permits(1);
    assert_eq!(holds.await.unwrap().status, 200);
    assert_eq!(payments.begun(), 1);
}

/// The wait for the first slot counts, and so does the upload.
#[tokio::test(start_paused = true)]
async fn a_request_whose_deadline_has_passed_does_not_run_after_its_upload() {
    let payments = Payments::default();
    let layer = ServerLayer::new(layer()).overload(overload(1));
    let holds = payments.ask(&layer, pay("/waits", "holds"));
    settle().await;
    let second = stream::once(async {
        sleep(Duration::from_secs(1)).await;
        Bytes::from("5 EUR")
    });
    let mut late = upload("/", "alice", "late", frames(second));
    let deadline = "1500".parse().unwrap();
    late.headers_mut().insert("relent-deadline-ms", deadline);
    let late = payments.ask(&layer, late);
    sleep(Duration::from_millis(900)).await;
    payments.goes_on.add_permits(1);
    assert_eq!(holds.await.unwrap().status, 200);
    let reply = late.await.unwrap();
    assert!(reply.is(504, "idempotency-busy"), "{reply:?}");
    assert_eq!(payments.begun(), 1);
}

/// Whether it is rejected after its upload, or its client disconnects while it waits for a slot.
#[tokio::test(start_paused = true)]
async fn a_request_without_a_slot_after_its_upload_gets_its_quota_back() {
    for queue in [0, 1] {
        let payments = Payments::default();
        let three_an_hour = LimiterConfig {
            burst: 3,
            ..LimiterConfig::new(3, Duration::from_secs(3600))
        };
        let quota = Quota::new("all", three_an_hour).unwrap();
        let layer = ServerLayer::new(layer())
            .overload(overload_with_queue(1, queue))
            .admission(AdmissionLayer::new().quota(quota));
        let late = payments.ask(&layer, upload("/", "alice", "a", late()));
        settle().await;
        let holds = payments.ask(&layer, pay("/waits", "b"));
        sleep(Duration::from_millis(1500)).await;
        assert_eq!(late.is_finished(), queue == 0);
        match queue {
            0 => assert_eq!(late.await.unwrap().status, 503),
            _ => late.abort(),
        }
        payments.goes_on.add_permits(1);
        assert_eq!(holds.await.unwrap().status, 200);
        for (key, status) in [("a", 200), ("c", 200), ("d", 429)] {
            let reply = payments.ask(&layer, pay("/", key)).await.unwrap();
            assert_eq!(reply.status, status, "{queue} {key}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn slow_uploads_of_one_account_do_not_block_others() {
    let payments = Payments::default();
    let layer = layer();
    let uploads: Vec<_> = (0..10_000)
        .map(|number| {
            let body = frames(stream::iter([Bytes::from("x")]).chain(stream::pending()));
            payments.ask(&layer, upload("/", "mallory", &format!("m{number}"), body))
        })
        .collect();
    sleep(Duration::from_secs(5)).await;
    let held = uploads
        .iter()
        .filter(|upload| !upload.is_finished())
        .count();
    assert!((4000..=4096).contains(&held), "half of the memory: {held}");
    let began = Instant::now();
    for key in ["a", "b"] {
        assert_eq!(
            payments.ask(&layer, pay("/", key)).await.unwrap().status,
            200
        );
    }
    assert!(began.elapsed() < Duration::from_secs(1));
    for upload in uploads {
        let reply = upload.await.unwrap();
        assert!(matches!(reply.status, 408 | 503), "{reply:?}");
        assert_eq!(reply.retry_after.as_deref(), Some("1"));
    }
}

/// A service with a concurrency limit inside the layer.
#[tokio::test(start_paused = true)]
async fn neither_an_upload_nor_a_waiting_duplicate_holds_a_ready_service() {
    let handler = service_fn(|request: Request<Body<Bodies>>| async move {
        if request.uri().path() == "/slow" {
            sleep(Duration::from_secs(60)).await;
        }
        Ok::<_, Infallible>(Response::new(whole("paid")))
    });
    let layer = IdempotencyLayer::anonymous(Memory::new()).wait(Duration::from_secs(10));
    let service = layer.layer(ConcurrencyLimit::new(handler, 3));
    for number in 0..10 {
        let slow = upload("/", "", &format!("u{number}"), stands_still());
        tokio::spawn(service.clone().oneshot(slow));
        tokio::spawn(service.clone().oneshot(pay("/slow", "one")));
    }
    settle().await;
    let began = Instant::now();
    let response = service.oneshot(pay("/", "good")).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// A service that fails to become ready for its first request.
#[derive(Clone)]
struct NotYet(Arc<AtomicU32>);
impl Service<Request<Body<Bodies>>> for NotYet {
    type Response = Response<Bodies>;
    type Error = &'static str;
    type Future = std::future::Ready<Result<Response<Bodies>, &'static str>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), &'static str>> {
        let ready = match self.0.fetch_add(1, Ordering::SeqCst) {
            0 => Err("not yet"),
            _ => Ok(()),
        };
        std::task::Poll::Ready(ready)
    }

    fn call(&mut self, _: Request<Body<Bodies>>) -> Self::Future {
        std::future::ready(Ok(Response::new(whole("paid"))))
    }
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_does_not_wait_for_the_service_inside() {
    let handler = service_fn(|request: Request<Body<Bodies>>| async move {
        if request.uri().path() == "/never" {
            pending::<()>().await;
        }
        Ok::<_, Infallible>(Response::new(whole("paid")))
    });
    let service = layer().layer(ConcurrencyLimit::new(handler, 1));
    let ask = |path, key| service.clone().oneshot(pay(path, key));
    assert_eq!(ask("/", "done").await.unwrap().status(), 200);
    tokio::spawn(ask("/never", "runs"));
    settle().await;
    let began = Instant::now();
    let replay = ask("/", "done").await.unwrap();
    assert!(replay.headers().contains_key("idempotent-replayed"));
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(ask("/never", "runs").await.unwrap().status(), 409);
    assert_eq!(began.elapsed(), Duration::from_secs(2));
    // Only a request that runs waits: without a key it does so without the layer, too.
    let mut unkeyed = Request::post("/").body(whole("5 EUR")).unwrap();
    unkeyed.extensions_mut().insert("alice".to_owned());
    let unkeyed = service.clone().oneshot(unkeyed);
    assert!(poll_immediate(unkeyed).await.is_none());
}

/// The client of a request without a key disconnects before the service inside is ready.
#[tokio::test(start_paused = true)]
async fn a_request_dropped_before_its_service_is_ready_gets_its_quota_back() {
    let handler = service_fn(|request: Request<Body<Bodies>>| async move {
        if request.uri().path() == "/never" {
            pending::<()>().await;
        }
        Ok::<_, Infallible>(Response::new(whole("paid")))
    });
    let two_an_hour = LimiterConfig {
        burst: 2,
        ..LimiterConfig::new(2, Duration::from_secs(3600))
    };
    let quota = Quota::new("all", two_an_hour).unwrap();
    let admission = AdmissionLayer::new().quota(quota).caller(|_| Some(7));
    let layer = ServerLayer::new(layer()).admission(admission);
    let service = layer.layer(ConcurrencyLimit::new(handler, 1));
    let ask = |path| {
        let request = Request::get(path).body(whole("")).unwrap();
        Box::pin(service.clone().oneshot(request))
    };
    let first = tokio::spawn(ask("/never"));
    settle().await;
    for number in 0..9 {
        let asked = poll_immediate(ask("/")).await;
        let status = asked.map(|response| response.unwrap().status());
        assert_eq!(status, None, "{number}");
    }
    first.abort();
    assert!(first.await.is_err());
    assert_eq!(ask("/").await.unwrap().status(), 200);
    assert_eq!(ask("/").await.unwrap().status(), 429);
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_service_fails_to_become_ready_runs_when_retried() {
    let layer = IdempotencyLayer::anonymous(Memory::new());
    let service = layer.layer(NotYet(Arc::default()));
    let failed = service.clone().oneshot(pay("/", "k")).await;
    assert_eq!(failed.err(), Some("not yet"));
    assert_eq!(service.oneshot(pay("/", "k")).await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_disconnected_request_whose_service_is_not_ready_never_runs() {
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let handler = service_fn(move |_: Request<Body<Bodies>>| {
        counted.fetch_add(1, Ordering::SeqCst);
        async {
            sleep(Duration::from_secs(300)).await;
            Ok::<_, Infallible>(Response::new(whole("paid")))
        }
    });
    let layer = layer();
    let service = layer.layer(ConcurrencyLimit::new(handler, 1));
    // Its place is free while its body arrives, and another request takes it.
    let late = tokio::spawn(service.clone().oneshot(upload("/", "bob", "late", late())));
    settle().await;
    let first = tokio::spawn(service.oneshot(pay("/", "first")));
    sleep(Duration::from_secs(2)).await;
    late.abort();
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(layer.unknown_outcomes().find(None, 9).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_handler_never_starts_after_its_lease_is_lost() {
    let store = Flaky::new(Away::Renewals);
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let handler = service_fn(move |request: Request<Body<Bodies>>| {
        let is_slow = request.uri().path() == "/slow";
        counted.fetch_add(u32::from(!is_slow), Ordering::SeqCst);
        async move {
            if is_slow {
                sleep(Duration::from_secs(3600)).await;
            }
            Ok::<_, Infallible>(Response::new(whole("paid")))
        }
    });
    // Two layers act as two processes. While the body arrives at the first, another request takes its only place.
    let [first, second] = [0, 1].map(|_| IdempotencyLayer::anonymous(store.clone()));
    let busy = first.layer(ConcurrencyLimit::new(handler.clone(), 1));
    let waits = tokio::spawn(busy.clone().oneshot(upload("/", "", "k", late())));
    settle().await;
    let other = tokio::spawn(busy.oneshot(pay("/slow", "other")));
    sleep(Duration::from_secs(32)).await;
    // The lease has expired, and an operator finds out that nothing has happened.
    store.set(Away::Never);
    let outcomes = second.unknown_outcomes();
    for found in outcomes.find(None, 9).await.unwrap() {
        let resolved = outcomes.resolve(&found, Resolution::NotApplied).await;
        resolved.unwrap();
    }
    let service = second.layer(handler);
    let response = service.oneshot(pay("/", "k")).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(!response.headers().contains_key("idempotent-replayed"));
    // The first process learns that from its next renewal.
    assert_eq!(waits.await.unwrap().unwrap().status(), 409);
    assert!(!other.is_finished());
    other.await.unwrap().unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn an_event_stream_reaches_its_client_as_it_comes() {
    let handler = service_fn(|_: Request<Body<Bodies>>| async {
        let response =
            Response::builder().header("content-type", "Text/Event-Stream; charset=utf-8");
        Ok::<_, Infallible>(response.body(drips(Duration::from_secs(1))).unwrap())
    });
    let service = IdempotencyLayer::anonymous(Memory::new()).layer(handler);
    let began = Instant::now();
    let response = service.clone().oneshot(pay("/", "k")).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(began.elapsed(), Duration::from_millis(0));
    let first = response.into_body().frame().await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), "x");
    assert_eq!(began.elapsed(), Duration::from_secs(1));
    assert_eq!(service.oneshot(pay("/", "k")).await.unwrap().status(), 410);
}

#[tokio::test(start_paused = true)]
async fn bodies_share_a_byte_limit_and_release_it() {
    let payments = Payments::default();
    let limits = Limits {
        buffered: 100 << 10,
        ..Limits::DEFAULT
    };
    let layer = IdempotencyLayer::anonymous(Memory::new()).limits(limits);
    let body = || whole(vec![b'x'; 60 << 10]);
    let first = payments.ask(&layer, upload("/waits", "", "a", body()));
    settle().await;
    let second = payments.ask(&layer, upload("/", "", "b", body()));
    let second = second.await.unwrap();
    assert!(second.is(503, "idempotency-busy"), "{second:?}");
    assert_eq!(second.retry_after.as_deref(), Some("1"));
    payments.goes_on.add_permits(1);
    assert_eq!(first.await.unwrap().status, 200);
    for key in ["b", "c", "d"] {
        let reply = payments.ask(&layer, upload("/", "", key, body()));
        assert_eq!(reply.await.unwrap().status, 200, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_endless_response_is_stored_without_its_body_and_holds_nothing() {
    let (payments, overload) = (Payments::default(), overload(20));
    let limits = Limits {
        executions: 20,
        ..Limits::DEFAULT
    };
    let idempotency = IdempotencyLayer::anonymous(Memory::new()).limits(limits);
    let layer = ServerLayer::new(idempotency).overload(overload.clone());
    let gone: Vec<_> = (0..20)
        .map(|number| payments.ask(&layer, pay("/endless", &number.to_string())))
        .collect();
    settle().await;
    gone.iter().for_each(JoinHandle::abort);
    settle().await;
    assert_eq!(overload.in_flight(), 20, "it is not known yet");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(overload.in_flight(), 0);
    assert_eq!(layer.drain().await, 0);
    assert_eq!(
        payments.ask(&layer, pay("/", "new")).await.unwrap().status,
        200
    );
    let duplicate = payments.ask(&layer, pay("/endless", "7")).await.unwrap();
    assert!(
        duplicate.is(410, "idempotency-answer-not-kept"),
        "{duplicate:?}"
    );
    assert_eq!(payments.begun(), 21);
}

#[tokio::test(start_paused = true)]
async fn a_response_over_the_time_limit_is_streamed_to_its_client() {
    let (payments, layer) = (Payments::default(), layer());
    let service = layer.layer(Handler(payments.clone()));
    let began = Instant::now();
    let response = service.oneshot(pay("/endless", "a")).await.unwrap();
    assert_eq!(seconds(began), 60);
    let mut body = response.into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(first.len() >= 59, "what came until then: {}", first.len());
    let next = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(next, "x");
}

/// A gRPC status comes last: without it the outcome is unknown.
#[tokio::test(start_paused = true)]
async fn a_grpc_call_is_unknown_if_its_response_is_not_read_completely() {
    for long in [true, false] {
        let handler = service_fn(move |_: Request<Body<Bodies>>| async move {
            let body = match long {
                true => whole(vec![b'x'; 300]),
                false => stands_still(),
            };
            let response = Response::builder().header("content-type", "application/grpc");
            Ok::<_, Infallible>(response.body(body).unwrap())
        });
        let service = layer().max_response(299).layer(handler);
        let response = service.clone().oneshot(pay("/", "a")).await.unwrap();
        drop(response);
        let response = service.oneshot(pay("/", "a")).await.unwrap();
        let reply = Reply::of(Answered::from(response).0).await;
        assert!(reply.is(409, "idempotency-outcome-unknown"), "{reply:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn after_60_s_without_client_the_outcome_is_unknown_until_recorded() {
    let (payments, overload) = (Payments::default(), overload(20));
    let limits = Limits {
        executions: 1,
        ..Limits::DEFAULT
    };
    let idempotency = IdempotencyLayer::anonymous(Memory::new()).limits(limits);
    let layer = ServerLayer::new(idempotency).overload(overload.clone());
    let gone = payments.ask(&layer, pay("/100s", "a"));
    settle().await;
    gone.abort();
    sleep(Duration::from_secs(57)).await;
    assert_eq!(overload.in_flight(), 1);
    let duplicate = payments.ask(&layer, pay("/100s", "a")).await.unwrap();
    assert!(duplicate.is(409, "idempotency-in-flight"), "{duplicate:?}");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(overload.in_flight(), 0);
    let duplicate = payments.ask(&layer, pay("/100s", "a")).await.unwrap();
    assert!(
        duplicate.is(409, "idempotency-outcome-unknown"),
        "{duplicate:?}"
    );
    let other = payments.ask(&layer, pay("/", "b")).await.unwrap();
    assert_eq!(other.status, 200, "the only execution is free");
    // The handler may have charged already.
    assert_eq!(payments.ended(), 1, "of the other key");
    sleep(Duration::from_secs(40)).await;
    assert_eq!(payments.ended(), 2);
    let duplicate = payments.ask(&layer, pay("/100s", "a")).await.unwrap();
    assert!(
        duplicate.replayed && duplicate.is(200, "charge 1"),
        "{duplicate:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn while_a_handler_continues_after_its_limit_no_other_of_its_key_starts() {
    let (day, minute) = (Duration::from_secs(24 * 3600), Duration::from_secs(60));
    // A minute is over before the handler ends.
    for retention in [day, minute] {
        let config = ClaimConfig {
            retention,
            ..ClaimConfig::DEFAULT
        };
        let layer = layer().claim(config).unwrap();
        let payments = Payments::default();
        let gone = payments.ask(&layer, pay("/waits", "a"));
        settle().await;
        gone.abort();
        sleep(Duration::from_secs(61)).await;
        let outcomes = layer.unknown_outcomes();
        let found = outcomes.find(None, 10).await.unwrap();
        assert_eq!(found.len(), 1);
        for _ in 0..2 {
            let refused = outcomes.resolve(&found[0], Resolution::NotApplied).await;
            let runs = NotResolved::Running;
            assert!(matches!(refused, Err(ResolveError::Refused(why)) if why == runs));
            let duplicate = payments.ask(&layer, pay("/waits", "a")).await.unwrap();
            let is_unknown = duplicate.is(409, "idempotency-outcome-unknown");
            assert!(is_unknown, "{retention:?}: {duplicate:?}");
            let other = payments.ask(&layer, pay("/", "a")).await.unwrap();
            assert!(other.is(422, "idempotency-key-reused"), "{other:?}");
            sleep(Duration::from_secs(100)).await;
        }
        payments.goes_on.add_permits(1);
        settle().await;
        let duplicate = payments.ask(&layer, pay("/waits", "a")).await.unwrap();
        let is_replayed = duplicate.replayed && duplicate.is(200, "charge 1");
        assert!(is_replayed, "{retention:?}: {duplicate:?}");
        assert_eq!(payments.begun(), 1);
    }
}

/// Another process cannot know of the handler, so a job there may resolve the outcome.
#[tokio::test(start_paused = true)]
async fn a_resolution_by_another_process_starts_no_second_handler_in_this_one() {
    let store = Counted::default();
    let [here, elsewhere] = [0, 1].map(|_| layer_over(store.clone()));
    let payments = Payments::default();
    let gone = payments.ask(&here, pay("/waits", "a"));
    settle().await;
    gone.abort();
    sleep(Duration::from_secs(61)).await;
    let outcomes = elsewhere.unknown_outcomes();
    let found = outcomes.find(None, 10).await.unwrap();
    let resolved = outcomes.resolve(&found[0], Resolution::NotApplied).await;
    resolved.unwrap();
    let duplicate = payments.ask(&here, pay("/waits", "a")).await.unwrap();
    assert!(
        duplicate.is(409, "idempotency-outcome-unknown"),
        "{duplicate:?}"
    );
    assert_eq!(payments.begun(), 1);
    // After the end of the handler the resolution applies.
    payments.goes_on.add_permits(2);
    settle().await;
    let next = payments.ask(&here, pay("/waits", "a")).await.unwrap();
    assert!(!next.replayed && next.is(200, "charge 2"), "{next:?}");
}

#[tokio::test(start_paused = true)]
async fn a_rerunnable_handler_is_dropped_too_long_after_a_disconnect() {
    let (payments, layer) = (Payments::default(), layer().takeover(Takeover::Rerun));
    let gone = payments.ask(&layer, pay("/100s", "a"));
    settle().await;
    gone.abort();
    sleep(Duration::from_secs(61)).await;
    let again = payments.ask(&layer, pay("/100s", "a")).await.unwrap();
    assert!(!again.replayed && again.is(200, "charge 2"), "{again:?}");
    sleep(Duration::from_secs(600)).await;
    assert_eq!((payments.begun(), payments.ended()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_not_renewed_beyond_the_execution_limit() {
    let store = Counted::default();
    let limits = Limits {
        execution: Duration::from_secs(300),
        ..Limits::DEFAULT
    };
    let (payments, layer) = (
        Payments::default(),
        layer_over(store.clone()).limits(limits),
    );
    let began = Instant::now();
    let reply = payments.ask(&layer, pay("/never", "a")).await.unwrap();
    assert!(reply.is(409, "idempotency-outcome-unknown"), "{reply:?}");
    assert_eq!(seconds(began), 300);
    let writes = store.writes.lock().unwrap().clone();
    assert_eq!(writes.last(), Some(&"give up"));
    sleep(Duration::from_secs(700)).await;
    let later = store.writes.lock().unwrap().split_off(writes.len());
    assert_eq!(later, ["give up"], "at the end of the handler");
    assert_eq!(layer.drain().await, 0, "and the handler is gone");
}

#[tokio::test(start_paused = true)]
async fn drain_waits_30_s_and_returns_the_tasks_left() {
    let (payments, layer) = (Payments::default(), ServerLayer::new(layer()));
    let connected = payments.ask(&layer, pay("/never", "a"));
    let gone = payments.ask(&layer, pay("/endless", "b"));
    settle().await;
    gone.abort();
    let began = Instant::now();
    assert_eq!(layer.drain().await, 2);
    assert_eq!(seconds(began), 30);
    connected.abort();
}

#[tokio::test(start_paused = true)]
async fn an_unread_stream_loses_its_slot_after_the_timeout() {
    let overload = overload(1).slot_timeout(Duration::from_secs(5));
    let service = overload.layer(service_fn(|request: Request<Bodies>| async move {
        if request.uri().path() == "/never" {
            pending::<()>().await;
        }
        Ok::<_, Infallible>(Response::new(drips(Duration::from_secs(1))))
    }));
    let ask = |path: &str| {
        let request = Request::get(path).body(whole("")).unwrap();
        service.clone().oneshot(request)
    };
    let unread = ask("/").await.unwrap();
    let refused = ask("/").await.unwrap();
    assert_eq!(refused.status(), 503);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(overload.in_flight(), 0);
    let read = ask("/").await.unwrap();
    assert_eq!(overload.in_flight(), 1);
    // The slot of the other request stays taken.
    drop(unread);
    assert_eq!(overload.in_flight(), 1);
    drop(read);
    assert_eq!(overload.in_flight(), 0);
    // A stalled request, such as an upload, loses its slot, too.
    let mut never = Box::pin(ask("/never"));
    assert!(poll_immediate(&mut never).await.is_none());
    sleep(Duration::from_secs(5)).await;
    assert_eq!(overload.in_flight(), 0);
    drop(never);
    assert_eq!(overload.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_claim_has_one_time_limit_and_is_given_back_if_late() {
    // Beyond the limit of a claim, and beyond the limit of one call.
    for late in [3, 15] {
        let (payments, store) = (Payments::default(), Counted::default());
        let layer = layer_over(store.clone());
        store.set_late(Duration::from_secs(late));
        let began = Instant::now();
        let reply = payments.ask(&layer, pay("/", "a")).await.unwrap();
        assert!(reply.is(503, "idempotency-store-failed"), "{reply:?}");
        assert_eq!(reply.retry_after.as_deref(), Some("1"));
        assert_eq!(began.elapsed(), Duration::from_secs(1));
        // The store recovers.
        store.set_late(Duration::ZERO);
        sleep(Duration::from_secs(25)).await;
        let reply = payments.ask(&layer, pay("/", "a")).await.unwrap();
        assert_eq!((reply.status, reply.replayed), (200, false), "{late}");
        assert_eq!(payments.begun(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn with_fail_open_a_claim_that_arrives_late_is_kept_and_its_outcome_is_unknown() {
    let (payments, store) = (Payments::default(), Counted::default());
    let layer = layer_over(store.clone()).fail_open();
    store.set_late(Duration::from_secs(3));
    let reply = payments.ask(&layer, pay("/", "a")).await.unwrap();
    assert!(reply.is(200, "charge 1"), "{reply:?}");
    assert!(payments.executions.lock().unwrap().is_empty());
    store.set_late(Duration::ZERO);
    sleep(Duration::from_secs(60)).await;
    let duplicate = payments.ask(&layer, pay("/", "a")).await.unwrap();
    assert!(
        duplicate.is(409, "idempotency-outcome-unknown"),
        "{duplicate:?}"
    );
    assert_eq!(payments.begun(), 1);
}

#[tokio::test(start_paused = true)]
async fn duplicates_of_a_stalled_claim_are_rejected_with_it() {
    let (payments, store) = (Payments::default(), Counted::default());
    let layer = layer_over(store.clone());
    store.set_late(Duration::from_secs(60));
    let began = Instant::now();
    let asked = (0..100).map(|_| payments.ask(&layer, pay("/", "a")));
    for reply in join_all(asked.collect::<Vec<_>>()).await {
        let reply = reply.unwrap();
        assert!(reply.is(503, "idempotency-store-failed"), "{reply:?}");
    }
    assert_eq!(began.elapsed(), Duration::from_secs(1));
    assert_eq!(store.claims(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stalled_renewal_does_not_delay_the_next() {
    const CALL: Duration = Duration::from_millis(5);
    let (payments, store) = (Payments::default(), Counted::default());
    let layer = layer_over(store.clone());
    store.set_late(CALL);
    let first = payments.ask(&layer, pay("/100s", "a"));
    sleep(Duration::from_secs(5)).await;
    store.set_late(Duration::from_secs(3600));
    sleep(Duration::from_secs(10)).await;
    store.set_late(CALL);
    sleep(Duration::from_secs(15) + CALL / 2).await;
    // A request to another process, which the store gets just after the first lease would have expired.
    let other = layer_over(store.clone()).wait(Duration::ZERO);
    let duplicate = payments.ask(&other, pay("/100s", "a")).await.unwrap();
    assert!(duplicate.is(409, "idempotency-in-flight"), "{duplicate:?}");
    assert_eq!(first.await.unwrap().status, 200);
}

#[tokio::test(start_paused = true)]
async fn an_unrecorded_response_reaches_its_client_within_a_minute() {
    let (payments, store) = (Payments::default(), Counted::default());
    let layer = layer_over(store.clone());
    let first = payments.ask(&layer, pay("/waits", "a"));
    settle().await;
    store.set_late(Duration::from_secs(3600));
    payments.goes_on.add_permits(1);
    let began = Instant::now();
    assert_eq!(first.await.unwrap().status, 200);
    assert!(seconds(began) <= 60, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn duplicates_in_the_same_process_need_no_store_call() {
    let (payments, store) = (Payments::default(), Counted::default());
    let layer = IdempotencyLayer::anonymous(store.clone());
    let asked = (0..800).map(|_| payments.ask(&layer, pay("/waits", "a")));
    let asked: Vec<_> = asked.collect();
    sleep(Duration::from_millis(1900)).await;
    assert_eq!(store.claims(), 1, "while it runs");
    let mismatch = upload("/waits", "alice", "a", whole("6 EUR"));
    let mismatch = payments.ask(&layer, mismatch).await.unwrap();
    assert!(mismatch.is(422, "idempotency-key-reused"), "{mismatch:?}");
    payments.goes_on.add_permits(1);
    let replies = join_all(asked).await;
    let replayed = replies.iter().filter(|reply| {
        let reply = reply.as_ref().unwrap();
        assert!(reply.is(200, "charge 1"), "{reply:?}");
        reply.replayed
    });
    assert_eq!(replayed.count(), 799);
    assert_eq!(store.claims(), 1, "and when it has ended");
    assert_eq!(*store.writes.lock().unwrap(), ["complete"]);
    assert_eq!(payments.begun(), 1);
}

#[tokio::test(start_paused = true)]
async fn after_a_slow_route_a_duplicate_of_another_is_told_to_retry_within_the_lease() {
    let (payments, layer) = (Payments::default(), layer());
    let slow = payments.ask(&layer, pay("/100s", "export")).await.unwrap();
    assert_eq!(slow.status, 200);
    let runs = payments.ask(&layer, pay("/waits", "a"));
    settle().await;
    let duplicate = payments.ask(&layer, pay("/waits", "a")).await.unwrap();
    assert!(duplicate.is(409, "idempotency-in-flight"), "{duplicate:?}");
    assert_eq!(duplicate.retry_after.as_deref(), Some("30"));
    payments.goes_on.add_permits(1);
    assert_eq!(runs.await.unwrap().status, 200);
}

#[tokio::test(start_paused = true)]
async fn only_one_duplicate_per_process_polls_the_store() {
    let (payments, store) = (Payments::default(), Counted::default());
    let first = IdempotencyLayer::anonymous(store.clone());
    let second = IdempotencyLayer::anonymous(store.clone());
    let runs = payments.ask(&first, pay("/waits", "a"));
    settle().await;
    let asked: Vec<_> = (0..800)
        .map(|_| payments.ask(&second, pay("/waits", "a")))
        .collect();
    sleep(Duration::from_millis(1000)).await;
    assert!(store.claims() <= 12, "{}", store.claims());
    // The duplicate that asks the store disconnects, and another takes its place at the same rate.
    asked[0].abort();
    sleep(Duration::from_millis(500)).await;
    assert!((14..=18).contains(&store.claims()), "{}", store.claims());
    payments.goes_on.add_permits(1);
    assert_eq!(runs.await.unwrap().status, 200);
    for reply in join_all(asked.into_iter().skip(1)).await {
        let reply = reply.unwrap();
        assert!(reply.replayed && reply.is(200, "charge 1"), "{reply:?}");
    }
    assert!(store.claims() <= 20, "{}", store.claims());
    assert_eq!(payments.begun(), 1);
}

#[tokio::test(start_paused = true)]
async fn waiting_duplicates_share_one_poll_of_the_store() {
    let (payments, store) = (Payments::default(), Counted::default());
    let first = IdempotencyLayer::anonymous(store.clone());
    let second = IdempotencyLayer::anonymous(store.clone());
    let runs = payments.ask(&first, pay("/waits", "a"));
    settle().await;
    let mut asked = Vec::new();
    for _ in 0..200 {
        asked.push(payments.ask(&second, pay("/waits", "a")));
        sleep(Duration::from_millis(1)).await;
    }
    for reply in join_all(asked).await {
        let reply = reply.unwrap();
        assert!(reply.is(409, "idempotency-in-flight"), "{reply:?}");
    }
    assert!(store.claims() <= 30, "{}", store.claims());
    runs.abort();
}

#[tokio::test(start_paused = true)]
async fn after_a_release_one_waiting_duplicate_runs() {
    let store = Counted::default();
    let layer = IdempotencyLayer::anonymous(store.clone());
    let begun = Arc::new(AtomicU32::new(0));
    let counts = Arc::clone(&begun);
    let service = layer.layer(service_fn(move |_: Request<Body<Bodies>>| {
        let number = counts.fetch_add(1, Ordering::SeqCst) + 1;
        async move {
            sleep(Duration::from_millis(100)).await;
            let status = if number < 3 { 429 } else { 200 };
            let response = Response::builder().status(status);
            Ok::<_, Infallible>(response.body(whole("said")).unwrap())
        }
    }));
    let asked = (0..100).map(|_| service.clone().oneshot(pay("/", "a")));
    let mut statuses: Vec<_> = (join_all(asked).await.into_iter())
        .map(|response| response.unwrap().status().as_u16())
        .collect();
    statuses.sort_unstable();
    assert_eq!(statuses[97..], [200, 429, 429]);
    assert_eq!(begun.load(Ordering::SeqCst), 3);
    assert_eq!(store.claims(), 3);
}

/// The first run takes 1 s and ends with 429, the others take 1 s and succeed.
fn limited_once() -> (
    impl Service<Request<Body<Bodies>>, Response = Response<Bodies>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + 'static,
    Arc<AtomicU32>,
) {
    let (begun, now) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let most = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&most);
    let handler = service_fn(move |_: Request<Body<Bodies>>| {
        let status = match begun.fetch_add(1, Ordering::SeqCst) {
            0 => 429,
            _ => 200,
        };
        let now = Arc::clone(&now);
        seen.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        async move {
            sleep(Duration::from_secs(1)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            let response = Response::builder().status(status);
            Ok::<_, Infallible>(response.body(whole("said")).unwrap())
        }
    });
    (handler, most)
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_that_runs_after_all_takes_a_slot_again() {
    runs_with_a_slot(layer(), 200).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(start_paused = true)]
async fn a_transactional_duplicate_that_runs_after_all_takes_a_slot_again() {
    let directory = tempfile::tempdir().unwrap();
    let store = relent_server::store::Sqlite::open(directory.path().join("keys.db")).unwrap();
    // The handler succeeds without its transaction, so the response is 500.
    runs_with_a_slot(layer_over(store).transactional(), 500).await;
}

async fn runs_with_a_slot<S: Store>(layer: IdempotencyLayer<S>, success: u16) {
    let (handler, most) = limited_once();
    let overload = overload(2);
    let layer = ServerLayer::new(layer).overload(overload.clone());
    let service = layer.layer(handler);
    let ask = |key| {
        let asked = service.clone().oneshot(pay("/", key));
        tokio::spawn(async move {
            let response = asked.await.unwrap();
            let status = response.status().as_u16();
            response.into_body().collect().await.unwrap();
            status
        })
    };
    let first = ask("a");
    settle().await;
    let duplicate = ask("a");
    sleep(Duration::from_millis(500)).await;
    let other = ask("b");
    sleep(Duration::from_millis(600)).await;
    // The duplicate runs beside the other request, and the next one waits for a slot.
    assert_eq!(overload.in_flight(), 2);
    let next = ask("c");
    let statuses = join_all([first, duplicate, other, next]).await;
    let statuses: Vec<u16> = statuses.into_iter().map(Result::unwrap).collect();
    assert_eq!(statuses, [429, success, success, success]);
    assert_eq!(most.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_that_gets_no_slot_releases_its_key_and_gets_its_quota_back() {
    let (handler, _) = limited_once();
    let four_an_hour = LimiterConfig {
        burst: 4,
        ..LimiterConfig::new(4, Duration::from_secs(3600))
    };
    let quota = Quota::new("all", four_an_hour).unwrap();
    let layer = ServerLayer::new(layer())
        .overload(overload_with_queue(2, 0))
        .admission(AdmissionLayer::new().quota(quota).caller(|_| Some(7)));
    let service = layer.layer(handler);
    let ask = |key| tokio::spawn(service.clone().oneshot(pay("/", key)));
    let first = ask("a");
    settle().await;
    let duplicate = ask("a");
    sleep(Duration::from_millis(500)).await;
    let other = ask("b");
    // The client of the first request has not read its response, so its slot is not free.
    let first = first.await.unwrap().unwrap();
    assert_eq!(first.status(), 429);
    let Answered(refused) = duplicate.await.unwrap().unwrap().into();
    let refused = Reply::of(refused).await;
    assert!(refused.is(503, "idempotency-busy"), "{refused:?}");
    drop((first, other.await.unwrap().unwrap()));
    for (key, status) in [("a", 200), ("c", 200), ("d", 429)] {
        let response = ask(key).await.unwrap().unwrap();
        assert_eq!(response.status(), status, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_replay_needs_no_execution_and_an_unused_claim_is_given_back() {
    let payments = Payments::default();
    let limits = Limits {
        executions: 1,
        ..Limits::DEFAULT
    };
    let layer = IdempotencyLayer::anonymous(Memory::new()).limits(limits);
    assert_eq!(
        payments.ask(&layer, pay("/", "a")).await.unwrap().status,
        200
    );
    let runs = payments.ask(&layer, pay("/waits", "b"));
    settle().await;
    let refused = payments.ask(&layer, pay("/", "c")).await.unwrap();
    assert!(refused.is(503, "idempotency-busy"), "{refused:?}");
    assert_eq!(refused.retry_after.as_deref(), Some("1"));
    let replays = (0..50).map(|_| payments.ask(&layer, pay("/", "a")));
    for reply in join_all(replays.collect::<Vec<_>>()).await {
        assert!(reply.unwrap().replayed);
    }
    payments.goes_on.add_permits(1);
    assert_eq!(runs.await.unwrap().status, 200);
    let reply = payments.ask(&layer, pay("/", "c")).await.unwrap();
    assert_eq!((reply.status, reply.replayed), (200, false));
}

/// The outage is longer than the retries of a release, and than the lease.
#[tokio::test(start_paused = true)]
async fn an_unused_claim_is_given_back_after_an_outage_of_the_store() {
    let outage = Duration::from_secs(300);
    let (payments, store) = (Payments::default(), Flaky::new(Away::Never));
    let limits = Limits {
        executions: 1,
        ..Limits::DEFAULT
    };
    let layer = IdempotencyLayer::anonymous(store.clone()).limits(limits);
    let runs = payments.ask(&layer, pay("/waits", "b"));
    settle().await;
    store.set(Away::Writes);
    let refused = payments.ask(&layer, pay("/", "c")).await.unwrap();
    assert!(refused.is(503, "idempotency-busy"), "{refused:?}");
    sleep(outage).await;
    let refused = payments.ask(&layer, pay("/", "c")).await.unwrap();
    let is_unknown = refused.is(409, "idempotency-outcome-unknown");
    assert!(is_unknown, "{refused:?}");
    store.set(Away::Never);
    sleep(Duration::from_secs(20)).await;
    payments.goes_on.add_permits(1);
    assert_eq!(runs.await.unwrap().status, 200);
    let reply = payments.ask(&layer, pay("/", "c")).await.unwrap();
    assert!(reply.is(200, "charge 2"), "{reply:?}");

    // The service fails to become ready.
    store.set(Away::Writes);
    let service = layer.layer(NotYet(Arc::default()));
    let failed = service.clone().oneshot(pay("/", "d")).await;
    assert_eq!(failed.err(), Some("not yet"));
    sleep(outage).await;
    store.set(Away::Never);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(service.oneshot(pay("/", "d")).await.unwrap().status(), 200);

    // The handler responds that it had no effect.
    let calls = Arc::new(AtomicU32::new(0));
    let busy_once = service_fn(move |_: Request<Body<Bodies>>| {
        let first = calls.fetch_add(1, Ordering::SeqCst) == 0;
        let mut response = Response::new(whole("paid"));
        *response.status_mut() = match first {
            true => StatusCode::TOO_MANY_REQUESTS,
            false => StatusCode::OK,
        };
        async move { Ok::<_, Infallible>(response) }
    });
    store.set(Away::Writes);
    let service = layer.layer(busy_once);
    let response = service.clone().oneshot(pay("/", "e")).await.unwrap();
    assert_eq!(response.status(), 429);
    sleep(outage).await;
    store.set(Away::Never);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(service.oneshot(pay("/", "e")).await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn one_account_cannot_take_all_executions_or_waits() {
    let payments = Payments::default();
    let limits = Limits {
        executions: 4,
        waiters: 4,
        ..Limits::DEFAULT
    };
    let layer = layer().limits(limits);
    let ask = |account: &str, path: &str, key: &str| {
        payments.ask(&layer, upload(path, account, key, whole("5 EUR")))
    };
    let runs: Vec<_> = (0..4)
        .map(|number| ask("mallory", "/waits", &number.to_string()))
        .collect();
    settle().await;
    assert_eq!(payments.begun(), 2, "half of them");
    let waits: Vec<_> = (0..10).map(|_| ask("mallory", "/waits", "0")).collect();
    settle().await;
    let waiting = waits.iter().filter(|wait| !wait.is_finished()).count();
    assert_eq!(waiting, 2, "half of them");
    let alice = ask("alice", "/waits", "a");
    settle().await;
    let duplicate = ask("alice", "/waits", "a");
    settle().await;
    assert!(!alice.is_finished() && !duplicate.is_finished());
    payments.goes_on.add_permits(9);
    assert_eq!(alice.await.unwrap().status, 200);
    assert!(duplicate.await.unwrap().replayed);
    let mut statuses = Vec::new();
    for reply in join_all(runs).await {
        statuses.push(reply.unwrap().status);
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 503, 503]);
}

/// The handler claims the key itself: once there is a response, followers get it through their own handlers.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn transactional_duplicates_wait_without_a_transaction() {
    use relent_server::store::Sqlite;
    use relent_server::transactional::{Transactional, WorkError};

    let directory = tempfile::tempdir().unwrap();
    let store = Sqlite::open(directory.path().join("keys.db")).unwrap();
    let limits = Limits {
        executions: 2,
        ..Limits::DEFAULT
    };
    let layer = IdempotencyLayer::anonymous(store)
        .transactional()
        .limits(limits);
    let (begun, goes_on) = (Arc::new(AtomicU32::new(0)), Arc::new(Semaphore::new(0)));
    let (counts, waits) = (Arc::clone(&begun), Arc::clone(&goes_on));
    let service = layer.layer(service_fn(move |request: Request<Body<Bodies>>| {
        let number = counts.fetch_add(1, Ordering::SeqCst) + 1;
        let waits = Arc::clone(&waits);
        async move {
            let once = request.extensions().get::<Transactional<Sqlite>>().unwrap();
            let charge = format!("charge {number}");
            let paid = once.run(|_| Ok::<_, WorkError>(Response::new(charge)));
            let paid = paid.await.unwrap();
            drop(waits.acquire().await.unwrap());
            Ok::<_, Infallible>(paid)
        }
    }));
    let asked: Vec<_> = (0..50)
        .map(|_| tokio::spawn(service.clone().oneshot(pay("/", "a"))))
        .collect();
    while begun.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    sleep(Duration::from_millis(100)).await;
    assert_eq!(begun.load(Ordering::SeqCst), 1);
    goes_on.add_permits(50);
    for response in join_all(asked).await {
        let response = response.unwrap().unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "charge 1");
    }
}

/// The same over sockets, with short limits, and clients that write their requests byte by byte.
mod over_sockets {
    use axum::Router;
    use axum::body::Body as AxumBody;
    use axum::routing::{get, post};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::timeout;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    struct Shop {
        address: String,
        layer: ServerLayer<Memory>,
        overload: OverloadLayer,
    }

    async fn shop(slots: u32, limits: Limits, slot_timeout: Duration) -> Shop {
        let overload = overload(slots).slot_timeout(slot_timeout);
        let idempotency = IdempotencyLayer::anonymous(Memory::new()).limits(limits);
        let layer = ServerLayer::new(idempotency).overload(overload.clone());
        let endless = || async {
            let parts =
                stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from(vec![b'x'; 1 << 16])));
            AxumBody::from_stream(parts)
        };
        let silent =
            || async { AxumBody::from_stream(stream::pending::<Result<Bytes, Infallible>>()) };
        let app = Router::new()
            .route(
                "/pay",
                post(|body: Bytes| async move { format!("paid {}", body.len()) }),
            )
            .route("/never", post(pending::<()>))
            .route("/silent", post(silent))
            .route("/endless", get(endless))
            .route("/quick", get(|| async { "quick" }))
            .layer(layer.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(axum::serve(listener, app).into_future());
        Shop {
            address,
            layer,
            overload,
        }
    }

    impl Shop {
        /// Opens a connection and writes the text.
        async fn write(&self, text: &str) -> TcpStream {
            let mut stream = TcpStream::connect(&self.address).await.unwrap();
            stream.write_all(text.as_bytes()).await.unwrap();
            stream
        }

        async fn ask(&self, text: &str) -> String {
            let text = text.replacen("\r\n", "\r\nconnection: close\r\n", 1);
            read(&mut self.write(&text).await).await
        }

        /// Repeats the request until the response contains `until`.
        async fn ask_until(&self, text: &str, until: &str) -> String {
            let asked = async {
                loop {
                    let answer = self.ask(text).await;
                    if answer.contains(until) {
                        return answer;
                    }
                    sleep(Duration::from_millis(10)).await;
                }
            };
            let answer = timeout(LONG, asked).await;
            answer.unwrap_or_else(|_| panic!("{until}"))
        }
    }

    async fn read(stream: &mut TcpStream) -> String {
        let mut answer = Vec::new();
        let mut part = [0; 4096];
        while let Ok(length @ 1..) = timeout(LONG, stream.read(&mut part)).await.unwrap() {
            answer.extend_from_slice(&part[..length]);
        }
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn pay(path: &str, key: &str, length: usize) -> String {
        format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\nidempotency-key: {key}\r\ncontent-length: {length}\r\n\r\n"
        )
    }

    #[tokio::test]
    async fn stalled_or_trickling_uploads_hold_no_slot_and_are_rejected() {
        let limits = Limits {
            read_idle: Duration::from_secs(3),
            read: Duration::from_secs(5),
            ..Limits::DEFAULT
        };
        let shop = shop(2, limits, LONG).await;
        let mut uploads = Vec::new();
        for number in 0..40 {
            let text = format!("{}x", pay("/pay", &format!("slow{number}"), 1000));
            let mut stream = shop.write(&text).await;
            uploads.push(tokio::spawn(async move {
                let (mut reads, mut writes) = stream.split();
                let mut answer = vec![0; 4096];
                let drips = async {
                    while number % 2 == 0 && writes.write_all(b"x").await.is_ok() {
                        sleep(Duration::from_millis(500)).await;
                    }
                    pending::<()>().await;
                };
                let length = tokio::select! {
                    length = reads.read(&mut answer) => length.unwrap(),
                    () = drips => 0,
                };
                String::from_utf8_lossy(&answer[..length]).into_owned()
            }));
        }
        let quick = "GET /quick HTTP/1.1\r\nhost: a\r\n\r\n";
        let paid = format!("{}5 EUR", pay("/pay", "honest", 5));
        assert!(
            shop.ask_until(quick, "HTTP/1.1 200")
                .await
                .ends_with("quick")
        );
        assert!(
            shop.ask_until(&paid, "HTTP/1.1 200")
                .await
                .ends_with("paid 5")
        );
        assert!(uploads.iter().all(|upload| !upload.is_finished()));
        for upload in uploads {
            let answer = timeout(LONG, upload).await.unwrap().unwrap();
            assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
            assert!(answer.contains("retry-after: 1\r\n"), "{answer}");
        }
        assert_eq!(
            (shop.overload.in_flight(), shop.layer.drain().await),
            (0, 0)
        );
    }

    #[tokio::test]
    async fn endless_requests_of_disconnected_clients_hold_nothing() {
        let limits = Limits {
            disconnected: Duration::from_millis(200),
            answer: Duration::from_millis(300),
            executions: 20,
            ..Limits::DEFAULT
        };
        let shop = shop(20, limits, LONG).await;
        let mut clients = Vec::new();
        for number in 0..20 {
            let path = if number % 2 == 0 { "/never" } else { "/silent" };
            clients.push(shop.write(&pay(path, &number.to_string(), 0)).await);
        }
        let begun = async {
            while shop.overload.in_flight() < 20 {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LONG, begun).await.unwrap();
        drop(clients);
        let paid = format!("{}5 EUR", pay("/pay", "honest", 5));
        shop.ask_until(&paid, "HTTP/1.1 200").await;
        shop.ask_until(&pay("/never", "0", 0), "idempotency-outcome-unknown")
            .await;
        shop.ask_until(&pay("/silent", "1", 0), "idempotency-answer-not-kept")
            .await;
        let free = async {
            while shop.overload.in_flight() > 0 {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LONG, free).await.unwrap();
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_its_response_loses_its_slot() {
        let shop = shop(1, Limits::DEFAULT, Duration::from_millis(300)).await;
        let unread = shop.write("GET /endless HTTP/1.1\r\nhost: a\r\n\r\n").await;
        let quick = "GET /quick HTTP/1.1\r\nhost: a\r\n\r\n";
        shop.ask_until(quick, "HTTP/1.1 200").await;
        // The response has started to arrive.
        unread.readable().await.unwrap();
    }

    #[tokio::test]
    async fn a_server_shuts_down_in_time_despite_its_clients() {
        let limits = Limits {
            drain: Duration::from_millis(300),
            ..Limits::DEFAULT
        };
        let shop = shop(20, limits, LONG).await;
        let mut held = Vec::new();
        for (number, path) in ["/never", "/silent", "/pay"].into_iter().enumerate() {
            held.push(shop.write(&pay(path, &number.to_string(), 1)).await);
        }
        held[0].write_all(b"x").await.unwrap();
        held[1].write_all(b"x").await.unwrap();
        timeout(LONG, async {
            while shop.overload.in_flight() < 2 {
                sleep(Duration::from_millis(1)).await;
            }
        })
        .await
        .unwrap();
        assert!(timeout(LONG, shop.layer.drain()).await.is_ok());
    }
}
