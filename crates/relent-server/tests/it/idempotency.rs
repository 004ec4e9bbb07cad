//! Tests of the idempotency layer with a handler that counts its effects, in virtual time.

use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{join_all, poll_immediate};
use futures_util::stream;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use relent_core::idempotency::{ClaimConfig, Fingerprint, Lease, Takeover};
use relent_server::idempotency::{Body, Execution, IdempotencyLayer, Outcome};
use relent_server::store::{
    Change, Claimed, Key, Memory, Resolution, ResolveError, Store, UnknownOutcome, WriteError,
};
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};

type Broken = std::io::Error;
type ReplyBody = UnsyncBoxBody<Bytes, Broken>;

fn whole(text: impl Into<Bytes>) -> ReplyBody {
    let body = Full::new(text.into());
    body.map_err(|never| match never {}).boxed_unsync()
}

/// A payment service. The request body determines what the handler does.
#[derive(Clone, Default)]
struct Payments {
    charges: Arc<AtomicU32>,
    executions: Arc<Mutex<Vec<Execution>>>,
}

impl Payments {
    async fn handle(
        self,
        request: Request<Body<Full<Bytes>>>,
    ) -> Result<Response<ReplyBody>, Infallible> {
        if let Some(execution) = request.extensions().get::<Execution>() {
            self.executions.lock().unwrap().push(execution.clone());
        }
        let order = request.into_body().collect().await.unwrap().to_bytes();
        let order = std::str::from_utf8(&order).unwrap().to_owned();
        if order.contains("slow") {
            sleep(Duration::from_secs(1)).await;
        }
        if order.contains("hour") {
            sleep(Duration::from_secs(3600)).await;
        }
        if order.contains("no funds") {
            let mut response = Response::new(whole("no funds"));
            *response.status_mut() = StatusCode::BAD_GATEWAY;
            response.extensions_mut().insert(Outcome::NotApplied);
            return Ok(response);
        }
        let number = self.charges.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(!order.contains("panic"), "a bug of the handler");
        let status = if order.contains("fails") { 500 } else { 201 };
        let body = match &*order {
            "breaks" => {
                let frames = [
                    Ok(Frame::data(Bytes::from("pa"))),
                    Err(Broken::other("cut")),
                ];
                StreamBody::new(stream::iter(frames)).boxed_unsync()
            }
            "long" => whole(vec![b'x'; 300]),
            order => whole(format!("charge {number}: {order}")),
        };
        let response = Response::builder().status(status);
        Ok(response
            .header("location", format!("/charges/{number}"))
            .body(body)
            .unwrap())
    }

    fn charges(&self) -> u32 {
        self.charges.load(Ordering::SeqCst)
    }

    /// Sends a request through a new service, as a server has for each connection.
    async fn ask<S: Store>(
        &self,
        layer: &IdempotencyLayer<S>,
        request: Request<Full<Bytes>>,
    ) -> Reply {
        let payments = self.clone();
        let handler = service_fn(move |request| payments.clone().handle(request));
        let response = layer.layer(handler).oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let field = |name| {
            head.headers
                .get(name)
                .map(|value: &http::HeaderValue| value.to_str().unwrap().to_owned())
        };
        let (replayed, retry_after, location) = (
            field("idempotent-replayed").is_some(),
            field("retry-after"),
            field("location"),
        );
        let body = body
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes);
        Reply {
            status: head.status.as_u16(),
            body: body.map_or_else(
                |_| "broken".to_owned(),
                |body| String::from_utf8(body.to_vec()).unwrap(),
            ),
            replayed,
            retry_after,
            location,
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
struct Reply {
    status: u16,
    body: String,
    replayed: bool,
    retry_after: Option<String>,
    location: Option<String>,
}

impl Reply {
    fn is(&self, status: u16, code: &str) -> bool {
        self.status == status && self.body.contains(code)
    }
}

fn pay(key: &str, order: &str) -> Request<Full<Bytes>> {
    let request = Request::post("/payments").header("idempotency-key", key);
    request
        .body(Full::new(Bytes::from(order.to_owned())))
        .unwrap()
}

fn layer() -> IdempotencyLayer<Memory> {
    IdempotencyLayer::anonymous(Memory::new())
}

#[tokio::test(start_paused = true)]
async fn one_of_64_concurrent_duplicates_runs_and_all_get_its_response() {
    let (payments, layer) = (Payments::default(), layer());
    let replies = join_all((0..64).map(|_| payments.ask(&layer, pay("a", "slow 5")))).await;
    assert_eq!(payments.charges(), 1);
    assert_eq!(replies.iter().filter(|reply| !reply.replayed).count(), 1);
    for reply in replies {
        assert_eq!((reply.status, &*reply.body), (201, "charge 1: slow 5"));
        assert_eq!(reply.location.as_deref(), Some("/charges/1"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_never_waits_beyond_its_deadline() {
    let (payments, layer) = (Payments::default(), layer());
    let began = Instant::now();
    let first = tokio::spawn({
        let (payments, layer) = (payments.clone(), layer.clone());
        async move { payments.ask(&layer, pay("a", "hour")).await }
    });
    tokio::task::yield_now().await;
    let mut hurried = pay("a", "hour");
    hurried
        .headers_mut()
        .insert("relent-deadline-ms", "300".parse().unwrap());
    let reply = payments.ask(&layer, hurried).await;
    assert!(reply.is(409, "idempotency-in-flight"), "{reply:?}");
    assert_eq!(began.elapsed(), Duration::from_millis(300));
    let reply = payments.ask(&layer, pay("a", "hour")).await;
    assert!(reply.is(409, "idempotency-in-flight"), "{reply:?}");
    assert_eq!(reply.retry_after.as_deref(), Some("1"));
    assert_eq!(began.elapsed(), Duration::from_millis(2300));
    // The lease of 30 s was renewed for an hour.
    assert_eq!(first.await.unwrap().status, 201);
    assert!(payments.ask(&layer, pay("a", "hour")).await.replayed);
    assert_eq!(payments.charges(), 1);
}

#[tokio::test(start_paused = true)]
async fn refuse_forgotten_rejects_a_request_older_than_the_retention() {
    let payments = Payments::default();
    let old = || {
        let mut request = pay("a", "5");
        let sent = "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap();
        request
            .headers_mut()
            .insert("repeatability-first-sent", sent);
        request
    };
    let reply = payments.ask(&layer().refuse_forgotten(), old()).await;
    assert!(reply.is(412, "idempotency-key-forgotten"), "{reply:?}");
    assert_eq!(payments.charges(), 0);
    assert_eq!(payments.ask(&layer(), old()).await.status, 201);
}

#[tokio::test(start_paused = true)]
async fn a_disconnected_client_gets_its_response_when_it_retries() {
    let (payments, layer) = (Payments::default(), layer());
    // Drops the call after each possible number of polls.
    for polls in 1..20 {
        let key = format!("key {polls}");
        let mut call = Box::pin(payments.ask(&layer, pay(&key, "slow 5")));
        for _ in 0..polls {
            if poll_immediate(&mut call).await.is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(call);
        let reply = payments.ask(&layer, pay(&key, "slow 5")).await;
        assert_eq!(reply.status, 201, "{reply:?}");
        assert_eq!(payments.charges(), polls);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reused_key_is_rejected_without_revealing_the_first_request() {
    let (payments, layer) = (Payments::default(), layer());
    let (first, second) = futures_util::join!(
        payments.ask(&layer, pay("a", "slow 5")),
        payments.ask(&layer, pay("a", "slow 6")),
    );
    assert_eq!(first.status, 201);
    assert!(second.is(422, "idempotency-key-reused"), "{second:?}");
    let later = payments.ask(&layer, pay("a", "7")).await;
    assert!(later.is(422, "idempotency-key-reused"));
    assert!(!later.body.contains("charge"));
    assert_eq!(payments.charges(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_without_effect_runs_again() {
    let (payments, layer) = (Payments::default(), layer());
    let reply = payments.ask(&layer, pay("a", "no funds")).await;
    assert_eq!((reply.status, &*reply.body), (502, "no funds"));
    // Also with another body: the key is not bound to the first request.
    let reply = payments.ask(&layer, pay("a", "5")).await;
    assert_eq!((reply.status, reply.replayed), (201, false));
}

#[tokio::test(start_paused = true)]
async fn a_request_with_an_unknown_outcome_does_not_run_again() {
    for order in ["fails", "breaks", "panic"] {
        let (payments, layer) = (Payments::default(), layer());
        let first = tokio::spawn({
            let (payments, layer) = (payments.clone(), layer.clone());
            async move { payments.ask(&layer, pay("a", order)).await }
        });
        match (order, first.await) {
            ("fails", Ok(reply)) => assert!(reply.is(500, "charge 1"), "{reply:?}"),
            ("breaks", Ok(reply)) => assert!(reply.is(409, "outcome-unknown"), "{reply:?}"),
            ("panic", Err(error)) => assert!(error.is_panic(), "as without the layer"),
            (_, other) => panic!("{other:?}"),
        }
        let reply = payments.ask(&layer, pay("a", order)).await;
        assert!(reply.is(409, "idempotency-outcome-unknown"), "{reply:?}");
        // A handler that failed was not lost.
        assert!(
            reply
                .body
                .contains("failed in its handler, or was interrupted")
        );
        assert_eq!(payments.charges(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_rerun_has_a_higher_fencing_token_and_the_same_derived_key() {
    let (payments, layer) = (Payments::default(), layer().takeover(Takeover::Rerun));
    for times in 1..=3_u32 {
        let reply = payments.ask(&layer, pay("a", "fails")).await;
        assert_eq!(reply.status, 500);
        let executions = payments.executions.lock().unwrap();
        let last = executions.last().unwrap();
        assert_eq!(
            (last.fence(), last.is_repeated()),
            (u64::from(times), times > 1)
        );
        assert_eq!(
            last.derived_key("charge"),
            executions[0].derived_key("charge")
        );
        assert_ne!(last.derived_key("charge"), last.derived_key("refund"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_resumed_execution_gets_the_last_completed_step() {
    let (payments, layer) = (Payments::default(), layer().takeover(Takeover::Resume));
    payments.ask(&layer, pay("a", "fails")).await;
    let lost = payments.executions.lock().unwrap()[0].clone();
    // The execution has ended, but no other one has run since.
    lost.checkpoint(2).await.unwrap();
    payments.ask(&layer, pay("a", "fails")).await;
    assert_eq!(payments.executions.lock().unwrap()[1].step(), 2);
    assert!(lost.checkpoint(3).await.is_err(), "another has taken over");
}

#[tokio::test(start_paused = true)]
async fn an_idempotency_key_has_1_to_255_characters_in_one_field() {
    let (payments, layer) = (
        Payments::default(),
        layer().require(|request| request.uri.path() == "/payments"),
    );
    let long = "k".repeat(256);
    for key in ["", "\"", "\"\"", long.as_str(), "k\u{e9}"] {
        let mut request = pay("k", "5");
        request.headers_mut().insert(
            "idempotency-key",
            http::HeaderValue::from_bytes(key.as_bytes()).unwrap(),
        );
        let reply = payments.ask(&layer, request).await;
        assert!(
            reply.is(400, "idempotency-key-malformed"),
            "{key:?}: {reply:?}"
        );
    }
    let mut twice = pay("k", "5");
    twice
        .headers_mut()
        .append("idempotency-key", "k".parse().unwrap());
    assert!(
        payments
            .ask(&layer, twice)
            .await
            .is(400, "idempotency-key-malformed")
    );
    let mut none = pay("k", "5");
    none.headers_mut().remove("idempotency-key");
    assert!(
        payments
            .ask(&layer, none.clone())
            .await
            .is(400, "idempotency-key-missing")
    );
    *none.uri_mut() = "/elsewhere".parse().unwrap();
    assert_eq!(payments.ask(&layer, none).await.status, 201);
    assert_eq!(payments.charges(), 1);
    // A quoted key equals the bare one.
    assert!(!payments.ask(&layer, pay("\"k\"", "5")).await.replayed);
    assert!(payments.ask(&layer, pay("k", "5")).await.replayed);
}

#[tokio::test(start_paused = true)]
async fn keys_of_two_accounts_are_independent() {
    let payments = Payments::default();
    let layer = IdempotencyLayer::new(Memory::new(), |request| request.extensions.get().cloned());
    let by = |account: &str| {
        let mut request = pay("a", account);
        request.extensions_mut().insert(account.to_owned());
        request
    };
    assert!(!payments.ask(&layer, by("alice")).await.replayed);
    assert!(!payments.ask(&layer, by("bob")).await.replayed);
    assert!(payments.ask(&layer, by("alice")).await.replayed);
    let reply = payments.ask(&layer, pay("a", "5")).await;
    assert!(reply.is(401, "idempotency-principal-missing"), "{reply:?}");
}

#[tokio::test(start_paused = true)]
async fn body_limits_apply_and_no_partial_response_is_replayed() {
    let (payments, layer) = (
        Payments::default(),
        layer().max_request(8).max_response(299),
    );
    let reply = payments.ask(&layer, pay("a", "123456789")).await;
    assert!(reply.is(413, "idempotency-request-too-large"));
    let mut announced = pay("a", "5");
    announced
        .headers_mut()
        .insert("content-length", "9".parse().unwrap());
    assert!(payments.ask(&layer, announced).await.is(413, ""));
    assert_eq!(payments.charges(), 0);
    let reply = payments.ask(&layer, pay("b", "long")).await;
    assert_eq!((reply.status, reply.body.len()), (201, 300));
    let reply = payments.ask(&layer, pay("b", "long")).await;
    assert!(reply.is(410, "idempotency-answer-not-kept"), "{reply:?}");
    assert_eq!(payments.charges(), 1);
}

#[tokio::test(start_paused = true)]
async fn drain_waits_for_running_handlers() {
    let (payments, layer) = (Payments::default(), layer());
    let mut call = Box::pin(payments.ask(&layer, pay("a", "slow 5")));
    assert!(poll_immediate(&mut call).await.is_none());
    drop(call);
    let began = Instant::now();
    assert_eq!(layer.drain().await, 0);
    assert_eq!(began.elapsed(), Duration::from_secs(1));
    assert!(payments.ask(&layer, pay("a", "slow 5")).await.replayed);
}

/// A store that can be unreachable, or lose writes.
#[derive(Clone)]
pub(crate) struct Flaky {
    memory: Arc<Memory>,
    away: Arc<Mutex<Away>>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Away {
    Never,
    Always,
    /// Only renewals fail.
    Renewals,
    /// All writes fail, and claims do not.
    Writes,
    /// The reply of one claim is lost.
    FirstReply,
    /// The next end of an execution finds its record lost.
    Forgets,
}

#[derive(Debug)]
pub(crate) struct IsAway;

impl fmt::Display for IsAway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the store is away")
    }
}

impl std::error::Error for IsAway {}

impl Flaky {
    pub(crate) fn new(away: Away) -> Self {
        let (memory, away) = (Arc::new(Memory::new()), Arc::new(Mutex::new(away)));
        Self { memory, away }
    }

    pub(crate) fn set(&self, away: Away) {
        *self.away.lock().unwrap() = away;
    }

    fn is(&self, away: Away) -> bool {
        *self.away.lock().unwrap() == away
    }
}

impl Store for Flaky {
    type Error = IsAway;

    async fn claim(
        &self,
        key: &Key,
        owner: u128,
        print: Fingerprint,
        config: &ClaimConfig,
    ) -> Result<Claimed, IsAway> {
        if self.is(Away::Always) {
            return Err(IsAway);
        }
        let claimed = self
            .memory
            .claim(key, owner, print, config)
            .await
            .map_err(|_| IsAway);
        if self.is(Away::FirstReply) {
            self.set(Away::Never);
            return Err(IsAway);
        }
        claimed
    }

    async fn write(
        &self,
        key: &Key,
        lease: &Lease,
        change: Change,
        config: &ClaimConfig,
    ) -> Result<Lease, WriteError<IsAway>> {
        let renews = matches!(change, Change::Renew) && self.is(Away::Renewals);
        if self.is(Away::Always) || self.is(Away::Writes) || renews {
            return Err(WriteError::Store(IsAway));
        }
        if self.is(Away::Forgets) {
            self.set(Away::Never);
            // The key is free again.
            drop(self.memory.write(key, lease, Change::Release, config).await);
            return Err(WriteError::Gone);
        }
        let written = self.memory.write(key, lease, change, config).await;
        written.map_err(|error| match error {
            WriteError::Lost => WriteError::Lost,
            WriteError::Gone => WriteError::Gone,
            WriteError::Store(_) => WriteError::Store(IsAway),
        })
    }

    async fn find_unknown(
        &self,
        after: Option<&UnknownOutcome>,
        most: usize,
        config: &ClaimConfig,
    ) -> Result<Vec<UnknownOutcome>, IsAway> {
        self.memory
            .find_unknown(after, most, config)
            .await
            .map_err(|_| IsAway)
    }

    async fn resolve(
        &self,
        found: &UnknownOutcome,
        resolution: Resolution,
        config: &ClaimConfig,
    ) -> Result<(), ResolveError<IsAway>> {
        self.memory
            .resolve(found, resolution, config)
            .await
            .map_err(|error| match error {
                ResolveError::Refused(why) => ResolveError::Refused(why),
                ResolveError::Store(_) => ResolveError::Store(IsAway),
            })
    }

    async fn remove_expired(&self, most: usize) -> Result<usize, IsAway> {
        self.memory.remove_expired(most).await.map_err(|_| IsAway)
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_store_a_keyed_request_is_rejected_unless_fail_open_is_set() {
    let (payments, store) = (Payments::default(), Flaky::new(Away::Always));
    let layer = IdempotencyLayer::anonymous(store.clone());
    let reply = payments.ask(&layer, pay("a", "5")).await;
    assert!(reply.is(503, "idempotency-store-failed"), "{reply:?}");
    assert_eq!(
        (reply.retry_after.as_deref(), payments.charges()),
        (Some("1"), 0)
    );
    let open = IdempotencyLayer::anonymous(store.clone()).fail_open();
    assert_eq!(payments.ask(&open, pay("a", "5")).await.status, 201);
    store.set(Away::FirstReply);
    assert_eq!(
        payments.ask(&layer, pay("a", "6")).await.status,
        201,
        "it was its own claim"
    );
}

#[tokio::test(start_paused = true)]
async fn an_execution_that_lost_its_lease_writes_nothing() {
    let (payments, store) = (Payments::default(), Flaky::new(Away::Renewals));
    // Two layers act as two processes: a process knows its own running requests.
    let ask = || {
        let layer = IdempotencyLayer::anonymous(store.clone()).takeover(Takeover::Rerun);
        let payments = payments.clone();
        tokio::spawn(async move { payments.ask(&layer, pay("a", "hour")).await })
    };
    let first = ask();
    sleep(Duration::from_secs(31)).await;
    store.set(Away::Never);
    // The lease has expired: this request takes over, and the first execution detects it at its next renewal.
    let second = ask();
    sleep(Duration::from_secs(31)).await;
    let lost = |which: usize| payments.executions.lock().unwrap()[which].is_lost();
    assert!(lost(0) && !lost(1));
    let reply = first.await.unwrap();
    assert!(reply.is(409, "idempotency-in-flight"), "{reply:?}");
    let reply = second.await.unwrap();
    assert_eq!((reply.status, reply.replayed), (201, false));
    let replayed = ask().await.unwrap();
    assert_eq!((&replayed.body, replayed.replayed), (&reply.body, true));
}

#[tokio::test(start_paused = true)]
async fn a_process_never_reruns_its_own_running_request_after_a_lost_lease() {
    for takeover in [Takeover::Refuse, Takeover::Rerun, Takeover::Resume] {
        let (payments, store) = (Payments::default(), Flaky::new(Away::Renewals));
        let layer = IdempotencyLayer::anonymous(store.clone()).takeover(takeover);
        let first = tokio::spawn({
            let (payments, layer) = (payments.clone(), layer.clone());
            async move { payments.ask(&layer, pay("a", "hour")).await }
        });
        sleep(Duration::from_secs(31)).await;
        let reply = payments.ask(&layer, pay("a", "hour")).await;
        assert!(reply.is(409, "idempotency-in-flight"), "{reply:?}");
        assert_eq!(first.await.unwrap().status, 201);
        assert!(payments.ask(&layer, pay("a", "hour")).await.replayed);
        assert_eq!(payments.charges(), 1, "{takeover:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_replayed_202_keeps_its_retry_after() {
    let handler = service_fn(async |_: Request<Body<Full<Bytes>>>| {
        let accepted = Response::builder().status(202).header("retry-after", "30");
        Ok::<_, Infallible>(accepted.body(Full::<Bytes>::default()).unwrap())
    });
    let service = layer().layer(handler);
    for replayed in [false, true] {
        let response = service.clone().oneshot(pay("a", "5")).await.unwrap();
        let headers = response.headers();
        assert_eq!(headers.contains_key("idempotent-replayed"), replayed);
        assert_eq!(
            (response.status().as_u16(), &headers["retry-after"]),
            (202, &"30".parse().unwrap())
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_response_is_recorded_when_the_store_recovers() {
    let (payments, store) = (Payments::default(), Flaky::new(Away::Never));
    let layer = IdempotencyLayer::anonymous(store.clone());
    let first = tokio::spawn({
        let (payments, layer) = (payments.clone(), layer.clone());
        async move { payments.ask(&layer, pay("a", "slow 5")).await }
    });
    sleep(Duration::from_millis(500)).await;
    store.set(Away::Always);
    sleep(Duration::from_secs(10)).await;
    assert!(
        !first.is_finished(),
        "nobody is told of what is not written down"
    );
    store.set(Away::Never);
    assert_eq!(first.await.unwrap().status, 201);
    assert!(payments.ask(&layer, pay("a", "slow 5")).await.replayed);
}

/// A failover of a store that may lose records, such as Redis, while the handler runs.
#[tokio::test(start_paused = true)]
async fn an_outcome_is_unknown_even_if_the_store_lost_the_claim() {
    for order in ["fails", "breaks", "panic"] {
        let (payments, store) = (Payments::default(), Flaky::new(Away::Forgets));
        let layer = IdempotencyLayer::anonymous(store.clone());
        let ask = || {
            let (payments, layer) = (payments.clone(), layer.clone());
            tokio::spawn(async move { payments.ask(&layer, pay("a", order)).await })
        };
        drop(ask().await);
        assert!(store.is(Away::Never), "{order} has ended");
        let duplicate = ask().await.unwrap();
        assert!(
            duplicate.is(409, "idempotency-outcome-unknown"),
            "{order}: {duplicate:?}"
        );
        assert_eq!(payments.charges(), 1, "{order}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_instance_that_was_polled_ready_is_called() {
    /// Only the instance that was polled ready may be called.
    struct Ready(bool, Payments);
    impl Clone for Ready {
        fn clone(&self) -> Self {
            Self(false, self.1.clone())
        }
    }
    impl Service<Request<Body<Full<Bytes>>>> for Ready {
        type Response = Response<ReplyBody>;
        type Error = Infallible;
        type Future =
            std::pin::Pin<Box<dyn Future<Output = Result<Response<ReplyBody>, Infallible>> + Send>>;
        fn poll_ready(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), Infallible>> {
            self.0 = true;
            std::task::Poll::Ready(Ok(()))
        }
        fn call(&mut self, request: Request<Body<Full<Bytes>>>) -> Self::Future {
            assert!(std::mem::take(&mut self.0), "called without being ready");
            Box::pin(self.1.clone().handle(request))
        }
    }
    let payments = Payments::default();
    let mut service = layer().layer(Ready(false, payments.clone()));
    for order in ["1", "2"] {
        let response = service
            .ready()
            .await
            .unwrap()
            .call(pay(order, order))
            .await
            .unwrap();
        assert_eq!(response.status(), 201);
    }
}

#[tokio::test]
async fn a_request_that_is_shorter_than_announced_does_not_run() {
    let payments = Payments::default();
    let handler = payments.clone();
    let service = layer().layer(service_fn(move |request| handler.clone().handle(request)));
    let mut short = pay("k", "amount=100");
    short.headers_mut().insert("content-length", 12.into());
    let response = service.clone().oneshot(short).await.unwrap();
    assert_eq!(response.status(), 400);
    assert_eq!(payments.charges.load(Ordering::SeqCst), 0);
    let response = service.oneshot(pay("k", "amount=10000")).await.unwrap();
    assert_eq!(response.status(), 201);
}

/// Such as one from an upstream server that was reset.
#[tokio::test]
async fn a_response_that_is_shorter_than_announced_is_not_replayed() {
    let service = layer().layer(service_fn(
        |request: Request<Body<Full<Bytes>>>| async move {
            let (status, length) = match request.into_body().collect().await.unwrap().to_bytes() {
                order if order == "nothing" => (204, 10),
                _ => (200, 10),
            };
            let response = Response::builder().status(status);
            let response = response.header("content-length", length);
            let body = whole(if status == 204 { "" } else { "paid" });
            Ok::<_, Infallible>(response.body(body).unwrap())
        },
    ));
    let send = async |key: &str, order: &str| {
        let request = pay(key, order);
        service.clone().oneshot(request).await.unwrap().status()
    };
    for _ in 0..2 {
        assert_eq!(send("k", "book").await, 409);
        // It has no body.
        assert_eq!(send("n", "nothing").await, 204);
    }
}

#[tokio::test]
async fn a_switch_of_protocols_is_not_replayed() {
    let service = layer().layer(service_fn(|_: Request<Body<Full<Bytes>>>| async {
        let response = Response::builder().status(101);
        Ok::<_, Infallible>(response.body(whole("")).unwrap())
    }));
    for expected in [101, 410] {
        let response = service.clone().oneshot(pay("k", "")).await.unwrap();
        assert_eq!(response.status(), expected);
    }
}
