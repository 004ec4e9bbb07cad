//! Tests of the webhook receiver over sockets. An unverified message does not reach the handler, an acknowledged one
//! is not handled again, and an unhandled one is not acknowledged.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::join_all;
use http::StatusCode;
use relent_core::idempotency::{ClaimConfig, Fingerprint, Lease, Takeover};
use relent_http::webhook::{Signer, SigningKey, Verifier};
use relent_server::idempotency::{Limits, Outcome};
use relent_server::store::{
    Change, Claimed, Key, Memory, Resolution, ResolveError, Sqlite, Store, UnknownOutcome,
    WriteError,
};
use relent_server::transactional::{Transactional, WorkError};
use relent_server::webhook::{Delivery, KEEP, Sender, WebhookLayer};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tower::{Layer, ServiceExt};

use crate::support::{
    self, Message, NEW_KEY, OLD_KEY, OTHER_KEY, PAIR, PUBLIC, Reply, exchange, serve, verifier,
};

/// The time of the receiver.
const NOW: u64 = 1_800_000_000;

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

/// The actions of a handler for its next deliveries; success after the last.
type Script = Arc<Mutex<Vec<Step>>>;
type Step = fn() -> Response;

/// A receiver that counts handled deliveries.
#[derive(Clone, Default)]
struct Receiver {
    handled: Arc<AtomicU64>,
    script: Script,
}

impl Receiver {
    fn script(steps: &[Step]) -> Self {
        let receiver = Self::default();
        receiver.script.lock().unwrap().extend(steps.iter().rev());
        receiver
    }

    fn handled(&self) -> u64 {
        self.handled.load(Ordering::SeqCst)
    }

    fn app<S: Store>(&self, layer: WebhookLayer<S>) -> Router {
        let receiver = self.clone();
        let handle = move |Extension(delivery): Extension<Delivery>, body: Bytes| async move {
            assert_eq!(body, delivery.body());
            let number = receiver.handled.fetch_add(1, Ordering::SeqCst) + 1;
            let step = receiver.script.lock().unwrap().pop();
            match step {
                Some(step) => step(),
                None => format!("{} is done by execution {number}", delivery.id()).into_response(),
            }
        };
        Router::new()
            .route("/hook", post(handle.clone()))
            .route("/other", post(handle.clone()))
            .route("/merchants/{merchant}", post(handle))
            .layer(layer)
    }

    async fn serve(&self) -> String {
        self.serve_with(|layer| layer).await
    }

    async fn serve_with(
        &self,
        settings: impl FnOnce(WebhookLayer<Memory>) -> WebhookLayer<Memory>,
    ) -> String {
        let layer = WebhookLayer::new(Memory::new(), "acquirer", verifier());
        serve(self.app(settings(layer.clock(|| at(NOW))))).await
    }
}

fn message() -> Message {
    Message::new("msg_1", NOW)
}

/// Checks for a rejection with this code, after which every sender retries.
fn assert_refused(reply: &Reply, status: StatusCode, code: &str) {
    assert_eq!(reply.status, status, "{}", reply.body);
    assert!(
        reply.body.contains(&format!(r#""code":"{code}""#)),
        "{}",
        reply.body
    );
    assert_eq!(
        reply.field("content-type"),
        Some("application/problem+json")
    );
}

#[tokio::test]
async fn an_unverified_message_reaches_no_handler() {
    let receiver = Receiver::default();
    let layer = WebhookLayer::new(Memory::new(), "acquirer", verifier()).clock(|| at(NOW));
    let address = serve(receiver.app(layer.clone())).await;
    let forged = message().signed_by(&[OTHER_KEY]).send(&address).await;
    assert_refused(&forged, StatusCode::UNAUTHORIZED, "webhook-not-verified");
    let mut altered = message();
    altered.sign();
    altered.body = altered.body.replace('5', "6");
    let altered = altered.send_as_signed(&address).await;
    let old = Message::new("msg_1", NOW - 301).send(&address).await;
    let early = Message::new("msg_1", NOW + 301).send(&address).await;
    for reply in [altered, old, early] {
        // Both responses are identical, so a client cannot tell the reason.
        assert_eq!((reply.status, &reply.body), (forged.status, &forged.body));
    }
    assert_eq!(receiver.handled(), 0);
    assert_eq!(layer.store().len(), 0, "strangers fill no store");
    for edge in [NOW - 300, NOW + 300] {
        let message = Message::new(&format!("msg_{edge}"), edge);
        assert_eq!(message.send(&address).await.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn an_unverified_message_does_not_wait_for_the_service_inside() {
    let layer = WebhookLayer::new(Memory::new(), "acquirer", verifier());
    let handler =
        tower::service_fn(async |_: http::Request<_>| Ok::<_, Infallible>(().into_response()));
    let service = layer.layer(tower::limit::ConcurrencyLimit::with_semaphore(
        handler,
        Arc::new(tokio::sync::Semaphore::new(0)),
    ));
    let request = http::Request::post("/hook").body(axum::body::Body::empty());
    let refused = service.oneshot(request.unwrap()).now_or_never();
    let refused = refused.expect("it does not wait").unwrap();
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_delivery_without_the_required_fields_is_rejected() {
    let receiver = Receiver::default();
    let address = receiver.serve().await;
    let with_stop = Message::new("msg.1", NOW);
    let mut broken = vec![with_stop];
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        let mut missing = message();
        missing.sign();
        missing.fields.retain(|(field, _)| field != name);
        broken.push(missing);
    }
    for name in ["webhook-id", "webhook-timestamp"] {
        let mut twice = message();
        twice.sign();
        let again = twice.fields.iter().find(|(field, _)| field == name);
        let again = again.unwrap().clone();
        twice.fields.push(again);
        broken.push(twice);
    }
    for message in broken {
        let reply = message.send_as_signed(&address).await;
        assert_refused(&reply, StatusCode::BAD_REQUEST, "webhook-malformed");
    }
    // A GET is handled, too, unlike for requests with a key.
    let reply = exchange(
        &address,
        b"GET /hook HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n",
    );
    assert_refused(&reply.await, StatusCode::BAD_REQUEST, "webhook-malformed");
    assert_eq!(receiver.handled(), 0);
}

#[tokio::test]
async fn during_key_rotation_both_keys_are_accepted() {
    let receiver = Receiver::default();
    let address = receiver.serve().await;
    for (place, keys) in [
        &[OLD_KEY][..],
        &[NEW_KEY],
        &[PAIR],
        &[OTHER_KEY, NEW_KEY],
        &[OLD_KEY, PAIR],
    ]
    .into_iter()
    .enumerate()
    {
        let message = Message::new(&format!("msg_{place}"), NOW).signed_by(keys);
        assert_eq!(message.send(&address).await.status, StatusCode::OK);
    }
    assert_eq!(receiver.handled(), 5);
}

#[tokio::test]
async fn an_acknowledgement_is_replayed_without_handling_again() {
    let receiver = Receiver::default();
    let address = receiver.serve().await;
    let first = message().send(&address).await;
    assert_eq!(first.body, "msg_1 is done by execution 1");
    assert_eq!(first.field("idempotent-replayed"), None);
    // Another attempt has another timestamp and signature, and may take another network route.
    let mut second = Message::new("msg_1", NOW + 7).signed_by(&[PAIR]);
    second.path = "/hook?attempt=2".to_owned();
    second
        .fields
        .push(("traceparent".to_owned(), "00".to_owned()));
    let second = second.send(&address).await;
    assert_eq!((second.status, &second.body), (first.status, &first.body));
    assert_eq!(second.field("idempotent-replayed"), Some("true"));
    assert_eq!(receiver.handled(), 1);
}

#[tokio::test]
async fn one_identifier_with_two_bodies_gets_422() {
    let receiver = Receiver::default();
    let address = receiver.serve().await;
    message().send(&address).await;
    let mut other = message();
    other.body = "{\"amount\":6}".to_owned();
    let reply = other.send(&address).await;
    assert_refused(
        &reply,
        StatusCode::UNPROCESSABLE_ENTITY,
        "webhook-id-reused",
    );
    assert_eq!(reply.field("x-should-retry"), Some("false"));
    assert_eq!(receiver.handled(), 1);
}

#[tokio::test]
async fn messages_are_distinct_per_endpoint_and_sender() {
    let receiver = Receiver::default();
    let layer = WebhookLayer::for_senders(Memory::new(), |parts| {
        let name = parts.headers.get("from")?.to_str().ok()?;
        (name != "nobody").then(|| Sender::new(name, verifier()))
    });
    let address = serve(receiver.app(layer.clock(|| at(NOW)))).await;
    for (sender, path) in [("a", "/hook"), ("b", "/hook"), ("a", "/other")] {
        let mut message = message();
        message.path = path.to_owned();
        message.fields.push(("from".to_owned(), sender.to_owned()));
        let reply = message.send(&address).await;
        assert_eq!(reply.field("idempotent-replayed"), None, "{sender} {path}");
        assert_eq!(reply.status, StatusCode::OK);
    }
    let mut nobody = message();
    nobody.fields.push(("from".to_owned(), "nobody".to_owned()));
    let reply = nobody.send(&address).await;
    assert_refused(&reply, StatusCode::UNAUTHORIZED, "webhook-not-verified");
    assert_eq!(receiver.handled(), 3);
}

/// The signature does not cover the path: an attacker may replay a captured message with another encoding of it.
/// Unsigned messages whose bodies never end, in the name of one of two senders.
#[tokio::test]
async fn uploads_in_the_name_of_one_sender_do_not_block_another() {
    let limits = Limits {
        buffered: 1 << 20,
        ..Limits::DEFAULT
    };
    let layer = WebhookLayer::for_senders(Memory::new(), |parts| {
        let name = parts.headers.get("from")?.to_str().ok()?;
        Some(Sender::new(name, verifier()))
    });
    let receiver = Receiver::default();
    let app = receiver.app(layer.clock(|| at(NOW)).limits(limits));
    let mut uploads = Vec::new();
    for _ in 0..100 {
        let body = futures_util::stream::pending::<Result<Bytes, Infallible>>();
        let request = http::Request::post("/hook").header("from", "a");
        let request = request.body(axum::body::Body::from_stream(body)).unwrap();
        let mut upload = Box::pin(app.clone().oneshot(request));
        if (&mut upload).now_or_never().is_none() {
            uploads.push(upload);
        }
    }
    assert_eq!(uploads.len(), 32, "half of the memory");
    let mut message = message();
    message.fields.push(("from".to_owned(), "b".to_owned()));
    let reply = message.send(&serve(app).await).await;
    assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
}

#[tokio::test]
async fn one_path_with_two_encodings_is_one_endpoint() {
    let receiver = Receiver::default();
    let layer = WebhookLayer::new(Memory::new(), "acquirer", verifier()).clock(|| at(NOW));
    let address = serve(receiver.app(layer)).await;
    let send = async |path: &str| {
        let mut message = message();
        message.path = path.to_owned();
        message.send(&address).await
    };
    let first = send("/merchants/a%20b~:").await;
    assert_eq!(first.body, "msg_1 is done by execution 1");
    for same in [
        "/merchants/%61%20b~:",
        "/merchants/a%20%62%7E:",
        "/merchants/a%20b%7e%3A",
        "/merchants/a%20b~:?attempt=2",
    ] {
        assert_eq!(send(same).await.body, first.body, "{same}");
    }
    // These are different paths for applications, too.
    for (place, other) in ["%2F", "%2525", "%25", "%C3%A9"].iter().enumerate() {
        let reply = send(&format!("/merchants/{other}")).await;
        let number = place + 2;
        assert_eq!(reply.body, format!("msg_1 is done by execution {number}"));
    }
    let again = send("/merchants/%2f").await;
    assert_eq!(again.body, "msg_1 is done by execution 2");
}

#[tokio::test]
async fn a_wait_of_duration_max_does_not_overflow() {
    let (address, mut begins, go) = held(|layer| layer.wait(Duration::MAX)).await;
    let copies = [message(), message()].map(|message| {
        let address = address.clone();
        tokio::spawn(async move { message.send(&address).await })
    });
    let begun = tokio::time::timeout(Duration::from_secs(30), begins.recv());
    begun.await.unwrap().unwrap();
    go.notify_one();
    for reply in join_all(copies).await {
        assert_eq!(reply.unwrap().body, "done");
    }
}

#[tokio::test]
async fn a_chunked_body_is_verified_and_a_truncated_one_has_no_effect() {
    let receiver = Receiver::default();
    let address = receiver.serve().await;
    let mut message = message();
    message.sign();
    let whole = message.head("transfer-encoding: chunked");
    let (first, second) = message.body.split_at(3);
    let chunks = format!(
        "{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n",
        first.len(),
        second.len()
    );
    // Both forms are truncated at each byte.
    let chunked = format!("{whole}{chunks}0\r\n\r\n");
    let length = message.head(&format!("content-length: {}", message.body.len()));
    let counted = format!("{length}{}", message.body);
    for (text, head) in [(&chunked, whole.len()), (&counted, length.len())] {
        for cut in head..text.len() {
            let mut stream = TcpStream::connect(&address).await.unwrap();
            stream.write_all(&text.as_bytes()[..cut]).await.unwrap();
            stream.shutdown().await.unwrap();
            let reply = support::read(stream).await;
            assert!(
                reply.is_none_or(|reply| reply.status == StatusCode::REQUEST_TIMEOUT),
                "{cut}"
            );
        }
    }
    assert_eq!(receiver.handled(), 0);
    let reply = exchange(&address, chunked.as_bytes()).await;
    assert_eq!(reply.body, "msg_1 is done by execution 1");
}

#[tokio::test]
async fn a_message_that_is_too_long_or_too_slow_is_rejected() {
    let receiver = Receiver::default();
    let address = receiver
        .serve_with(|layer| layer.max_body(20).read_timeout(Duration::from_millis(100)))
        .await;
    let mut long = message();
    long.body = "x".repeat(21);
    long.sign();
    let announced = long.head("content-length: 21");
    let chunked = long.head("transfer-encoding: chunked");
    for text in [
        announced.clone(),
        format!("{chunked}15\r\n{}\r\n", long.body),
    ] {
        let reply = exchange(&address, text.as_bytes()).await;
        assert_refused(&reply, StatusCode::PAYLOAD_TOO_LARGE, "webhook-too-large");
    }
    let slow = long.head("content-length: 20");
    let reply = exchange(&address, format!("{slow}some").as_bytes()).await;
    assert_refused(&reply, StatusCode::REQUEST_TIMEOUT, "webhook-too-slow");
    assert_eq!(receiver.handled(), 0);
    long.body = "x".repeat(20);
    assert_eq!(long.send(&address).await.status, StatusCode::OK);
}

/// A receiver whose handler signals its start, and waits for a signal.
async fn held(
    settings: impl FnOnce(WebhookLayer<Memory>) -> WebhookLayer<Memory>,
) -> (String, mpsc::UnboundedReceiver<()>, Arc<Notify>) {
    let (begun, begins) = mpsc::unbounded_channel();
    let go = Arc::new(Notify::new());
    let may = Arc::clone(&go);
    let handle = move || async move {
        begun.send(()).unwrap();
        may.notified().await;
        "done"
    };
    let layer = WebhookLayer::new(Memory::new(), "acquirer", verifier()).clock(|| at(NOW));
    let app = Router::new()
        .route("/hook", post(handle))
        .layer(settings(layer));
    (serve(app).await, begins, go)
}

#[tokio::test]
async fn a_duplicate_is_not_acknowledged_before_the_first_delivery() {
    let (address, mut begins, go) = held(|layer| layer.wait(Duration::ZERO)).await;
    let first = tokio::spawn({
        let address = address.clone();
        async move { message().send(&address).await }
    });
    begins.recv().await.unwrap();
    let mut grpc = message();
    let content = ("content-type".to_owned(), "application/grpc".to_owned());
    grpc.fields.push(content);
    for copy in [message(), grpc] {
        let reply = copy.send(&address).await;
        assert_refused(&reply, StatusCode::SERVICE_UNAVAILABLE, "webhook-in-flight");
        assert_eq!(reply.field("retry-after"), Some("1"));
    }
    go.notify_one();
    assert_eq!(first.await.unwrap().body, "done");
    let reply = message().send(&address).await;
    assert_eq!(reply.field("idempotent-replayed"), Some("true"));
    assert!(begins.try_recv().is_err());
}

#[tokio::test]
async fn concurrent_deliveries_get_one_acknowledgement() {
    let (address, mut begins, go) = held(|layer| layer.wait(Duration::from_secs(60))).await;
    let copies = (0..16).map(|_| {
        let address = address.clone();
        tokio::spawn(async move { message().send(&address).await })
    });
    let copies: Vec<_> = copies.collect();
    begins.recv().await.unwrap();
    go.notify_one();
    let replies = join_all(copies).await;
    let mut replayed = 0;
    for reply in replies {
        let reply = reply.unwrap();
        assert_eq!((reply.status, &*reply.body), (StatusCode::OK, "done"));
        replayed += u32::from(reply.field("idempotent-replayed").is_some());
    }
    assert_eq!(replayed, 15);
    assert!(begins.try_recv().is_err());
}

#[tokio::test]
async fn a_disconnected_sender_gets_the_acknowledgement_when_it_retries() {
    let (address, mut begins, go) = held(|layer| layer.wait(Duration::from_secs(60))).await;
    let mut message = message();
    message.sign();
    let mut stream = TcpStream::connect(&address).await.unwrap();
    stream.write_all(&message.bytes()).await.unwrap();
    begins.recv().await.unwrap();
    drop(stream);
    let again = tokio::spawn({
        let address = address.clone();
        async move { message.send(&address).await }
    });
    go.notify_one();
    let reply = again.await.unwrap();
    assert_eq!((reply.status, &*reply.body), (StatusCode::OK, "done"));
    assert_eq!(reply.field("idempotent-replayed"), Some("true"));
    assert!(begins.try_recv().is_err());
}

fn failed() -> Response {
    StatusCode::INTERNAL_SERVER_ERROR.into_response()
}

fn panics() -> Response {
    panic!("the handler");
}

#[tokio::test]
async fn a_message_with_an_unknown_outcome_is_not_handled_again() {
    // A panic closes the connection.
    let failures: [(Step, Option<StatusCode>); 3] = [
        (failed, Some(StatusCode::INTERNAL_SERVER_ERROR)),
        (
            || StatusCode::FOUND.into_response(),
            Some(StatusCode::FOUND),
        ),
        (panics, None),
    ];
    for (step, status) in failures {
        let receiver = Receiver::script(&[step]);
        let address = receiver.serve().await;
        let first = message().try_send(&address).await;
        assert_eq!(first.map(|reply| reply.status), status);
        let second = message().send(&address).await;
        assert_refused(
            &second,
            StatusCode::INTERNAL_SERVER_ERROR,
            "webhook-outcome-unknown",
        );
        // An operator may resolve it, so the sender may retry.
        assert_eq!(second.field("x-should-retry"), None);
        assert_eq!(receiver.handled(), 1);

        let receiver = Receiver::script(&[step]);
        let address = receiver
            .serve_with(|layer| layer.takeover(Takeover::Rerun))
            .await;
        message().try_send(&address).await;
        let second = message().send(&address).await;
        assert_eq!(second.body, "msg_1 is done by execution 2");
    }
}

#[tokio::test]
async fn a_rejected_message_is_handled_again_until_acknowledged() {
    let receiver = Receiver::script(&[
        || StatusCode::NOT_FOUND.into_response(),
        || StatusCode::UNPROCESSABLE_ENTITY.into_response(),
        || {
            let mut response = failed();
            response.extensions_mut().insert(Outcome::NotApplied);
            response
        },
    ]);
    let address = receiver.serve().await;
    for status in [404, 422, 500, 200, 200] {
        assert_eq!(message().send(&address).await.status, status);
    }
    assert_eq!(receiver.handled(), 4);
}

#[tokio::test]
async fn an_acknowledgement_with_an_oversized_body_is_replayed_as_204() {
    let receiver = Receiver::script(&[|| "x".repeat((256 << 10) + 1).into_response()]);
    let address = receiver.serve().await;
    assert_eq!(message().send(&address).await.status, StatusCode::OK);
    // 410 would end the deliveries to this endpoint.
    let again = message().send(&address).await;
    assert_eq!(again.status, StatusCode::NO_CONTENT);
    assert_eq!(receiver.handled(), 1);
}

#[tokio::test]
async fn a_failed_claim_is_not_acknowledged() {
    let receiver = Receiver::default();
    let store = Memory::new().at_most(0);
    let layer = WebhookLayer::new(store, "acquirer", verifier()).clock(|| at(NOW));
    let address = serve(receiver.app(layer)).await;
    let reply = message().send(&address).await;
    assert_refused(
        &reply,
        StatusCode::SERVICE_UNAVAILABLE,
        "webhook-store-failed",
    );
    assert_eq!(reply.field("retry-after"), Some("1"));
    assert_eq!(receiver.handled(), 0);
}

/// A store that accepts claims, but no responses.
#[derive(Default)]
struct Forgets(Memory);

impl Store for Forgets {
    type Error = std::io::Error;

    async fn claim(
        &self,
        key: &Key,
        owner: u128,
        fingerprint: Fingerprint,
        config: &ClaimConfig,
    ) -> Result<Claimed, std::io::Error> {
        let claimed = self.0.claim(key, owner, fingerprint, config).await;
        claimed.map_err(std::io::Error::other)
    }

    async fn write(
        &self,
        _: &Key,
        _: &Lease,
        _: Change,
        _: &ClaimConfig,
    ) -> Result<Lease, WriteError<std::io::Error>> {
        Err(WriteError::Store(std::io::Error::other("away")))
    }

    async fn find_unknown(
        &self,
        after: Option<&UnknownOutcome>,
        most: usize,
        config: &ClaimConfig,
    ) -> Result<Vec<UnknownOutcome>, std::io::Error> {
        self.0
            .find_unknown(after, most, config)
            .await
            .map_err(std::io::Error::other)
    }

    async fn resolve(
        &self,
        found: &UnknownOutcome,
        resolution: Resolution,
        config: &ClaimConfig,
    ) -> Result<(), ResolveError<std::io::Error>> {
        self.0
            .resolve(found, resolution, config)
            .await
            .map_err(|error| match error {
                ResolveError::Refused(why) => ResolveError::Refused(why),
                ResolveError::Store(error) => ResolveError::Store(std::io::Error::other(error)),
            })
    }

    async fn remove_expired(&self, most: usize) -> Result<usize, std::io::Error> {
        let removed = self.0.remove_expired(most).await;
        removed.map_err(std::io::Error::other)
    }
}

/// The message had its effect, and another delivery would not help.
#[tokio::test(start_paused = true)]
async fn a_handled_message_is_acknowledged_even_if_it_is_not_recorded() {
    let layer = WebhookLayer::new(Forgets::default(), "acquirer", verifier()).clock(|| at(NOW));
    let handler = tower::service_fn(async |_: http::Request<_>| {
        Ok::<_, Infallible>(http::Response::new(http_body_util::Full::from("done")))
    });
    let service = layer.layer(handler);
    let mut request = http::Request::new(http_body_util::Full::<Bytes>::default());
    let signer = Signer::new(OLD_KEY.parse().unwrap());
    let signed = signer.sign("msg_1", at(NOW), b"", request.headers_mut());
    signed.unwrap();
    let began = tokio::time::Instant::now();
    for status in [200, 500] {
        let reply = service.clone().oneshot(request.clone()).await.unwrap();
        assert_eq!(reply.status(), status);
        assert!(
            began.elapsed() >= Duration::from_secs(20),
            "{:?}",
            began.elapsed()
        );
        tokio::time::sleep(Duration::from_secs(31)).await;
    }
}

#[tokio::test]
async fn in_a_transaction_only_an_acknowledgement_is_committed() {
    let directory = tempfile::tempdir().unwrap();
    let create = |connection: &rusqlite::Connection| {
        connection.execute_batch("CREATE TABLE payments (message TEXT NOT NULL)")
    };
    let store = Sqlite::open_with(directory.path().join("shop.db"), create).unwrap();
    let attempts = Arc::new(AtomicU64::new(0));
    let handle = move |Extension(once): Extension<Transactional<Sqlite>>,
                       Extension(delivery): Extension<Delivery>| async move {
        let attempt = attempts.fetch_add(1, Ordering::SeqCst);
        if attempt == 0 {
            // The handler does not use the transaction. A sender of webhooks ignores the gRPC status.
            return (StatusCode::OK, [("grpc-status", "13")]).into_response();
        }
        let settled = once.run(move |transaction| {
            transaction.execute("INSERT INTO payments VALUES (?1)", [delivery.id()])?;
            if matches!(attempt, 1 | 2) {
                return Err(WorkError::from("the disk is full"));
            }
            assert_ne!(attempt, 3, "a panic");
            let status = match attempt {
                4 => StatusCode::NOT_FOUND,
                5 => StatusCode::FOUND,
                6 => StatusCode::BAD_GATEWAY,
                _ => StatusCode::CREATED,
            };
            let mut response = http::Response::new("success");
            *response.status_mut() = status;
            Ok(response)
        });
        let settled = settled.await;
        if attempt == 1 {
            assert!(settled.is_err());
            return StatusCode::OK.into_response(); // The result is ignored.
        }
        settled.map_err(|_| failed()).into_response()
    };
    let layer = WebhookLayer::new(store.clone(), "acquirer", verifier()).clock(|| at(NOW));
    let app = Router::new()
        .route("/hook", post(handle))
        .layer(layer.transactional());
    let address = serve(app).await;
    let payments = || async {
        let count = store.writer().run(|connection| {
            let count = "SELECT count(*) FROM payments";
            Ok::<u32, WorkError>(connection.query_row(count, [], |row| row.get(0))?)
        });
        count.await.unwrap()
    };
    for _unrecorded in ["no transaction", "rolled back"] {
        let reply = message().send(&address).await;
        assert_refused(
            &reply,
            StatusCode::INTERNAL_SERVER_ERROR,
            "webhook-transaction-unused",
        );
    }
    // The panic closes the connection.
    for status in [Some(500), None, Some(404), Some(302), Some(502)] {
        let reply = message().try_send(&address).await;
        assert_eq!(reply.map(|reply| reply.status.as_u16()), status);
        assert_eq!(payments().await, 0);
    }
    for replayed in [None, Some("true")] {
        let reply = message().send(&address).await;
        assert_eq!(
            (reply.status, &*reply.body),
            (StatusCode::CREATED, "success")
        );
        assert_eq!(reply.field("idempotent-replayed"), replayed);
        assert_eq!(payments().await, 1);
    }
    let mut other = message();
    other.body.push(' ');
    let reply = other.send(&address).await;
    assert_refused(
        &reply,
        StatusCode::UNPROCESSABLE_ENTITY,
        "webhook-id-reused",
    );
}

#[test]
fn the_retention_is_twice_the_longest_published_schedule() {
    use relent::random::FixedRandom;

    let schedules = [
        "wechat-pay",
        "wechat-pay-v2",
        "alipay",
        "standard-webhooks",
        "svix",
        "stripe-like",
        "circle-cpn",
        "juspay-upi",
        "nmi",
        "sns",
    ];
    let lasts = schedules.map(|name| {
        let policy = relent::presets::get(name).unwrap().load().unwrap().policy;
        let attempt = policy.attempt_timeout().unwrap_or(Duration::from_secs(30));
        // The longest schedule that jitter can produce.
        let waits = policy.waits(FixedRandom::at(1.0)).take(1000);
        let all: Duration = waits.map(|wait| wait + attempt).sum();
        all.min(policy.max_elapsed().unwrap_or(Duration::MAX))
    });
    let longest = lasts.into_iter().max().unwrap();
    assert_eq!(longest.as_secs() / 3600, 83, "as the documentation says");
    assert!(KEEP > 2 * longest);
}

#[test]
fn the_keys_of_a_pair_match() {
    // Otherwise the tests above would be void.
    let pair: SigningKey = PAIR.parse().unwrap();
    let verifier = Verifier::new([PUBLIC.parse().unwrap()]);
    let mut headers = http::HeaderMap::new();
    let signer = relent_http::webhook::Signer::new(pair);
    signer.sign("msg_1", at(NOW), b"", &mut headers).unwrap();
    verifier.verify(&headers, b"", at(NOW)).unwrap();
}
