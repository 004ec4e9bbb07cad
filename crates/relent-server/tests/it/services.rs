//! Tests of the layers in real servers on real sockets: axum, hyper and tonic.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use relent::NamedPolicy;
use relent_core::admission::{ConcurrencyConfig, ConcurrencyLimiterConfig};
use relent_http::RetryLayer;
use relent_http::grpc::{ServiceConfig, Status};
use relent_server::ServerLayer;
use relent_server::idempotency::IdempotencyLayer;
use relent_server::overload::OverloadLayer;
use relent_server::store::Memory;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tonic::server::NamedService;
use tonic::transport::server::{Server, TcpIncoming};
use tower::{Layer, Service, ServiceExt, service_fn};

/// Serves one request at a time, without a queue.
fn layer() -> ServerLayer<Memory> {
    let config = ConcurrencyLimiterConfig {
        concurrency: ConcurrencyConfig::fixed(1),
        queue: 0,
        ..ConcurrencyLimiterConfig::DEFAULT
    };
    let idempotency = IdempotencyLayer::anonymous(Memory::new())
        .wait(Duration::ZERO)
        .require(|parts| parts.uri.path().ends_with("/Pay"));
    ServerLayer::new(idempotency).overload(OverloadLayer::new(&config).unwrap())
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Sends the text, and reads until the end of the head, or until the expected text.
async fn say(stream: &mut TcpStream, text: &str, until: &str) -> String {
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut read = Vec::new();
    let mut part = [0; 1024];
    loop {
        let length = stream.read(&mut part).await.unwrap();
        read.extend_from_slice(&part[..length]);
        let text = String::from_utf8_lossy(&read);
        if length == 0 || text.contains(until) {
            return text.into_owned();
        }
    }
}

/// Checks the layers over HTTP/1. The handler of the server notifies `began`, waits for `goes_on`, and responds
/// `paid`.
async fn is_guarded(address: SocketAddr, began: &Notify, goes_on: &Notify) {
    const PAY: &str =
        "POST /pay HTTP/1.1\r\nhost: a\r\nidempotency-key: a\r\ncontent-length: 2\r\n\r\n10";
    let mut first = TcpStream::connect(address).await.unwrap();
    let mut second = TcpStream::connect(address).await.unwrap();
    let (paid, ()) = tokio::join!(say(&mut first, PAY, "paid"), async {
        began.notified().await;
        // The response comes while the body is still to arrive.
        let head = "POST /pay HTTP/1.1\r\nhost: a\r\naccept: application/json\r\nidempotency-key: b\r\n\
                    content-length: 1000000\r\n\r\n";
        let refused = say(&mut second, head, "}").await;
        assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
        assert!(refused.contains("retry-after: 1\r\n"), "{refused}");
        assert!(refused.contains("application/problem+json"), "{refused}");
        goes_on.notify_one();
    });
    assert!(paid.starts_with("HTTP/1.1 200"), "{paid}");
    assert!(!paid.contains("idempotent-replayed"), "{paid}");
    let again = say(&mut first, PAY, "paid").await;
    assert!(again.contains("idempotent-replayed: true"), "{again}");
    let other = say(&mut first, &PAY.replace("\r\n10", "\r\n11"), "}").await;
    assert!(other.starts_with("HTTP/1.1 422"), "{other}");
}

#[tokio::test]
async fn in_axum() {
    let (listener, address) = listen().await;
    let (began, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begins, goes) = (Arc::clone(&began), Arc::clone(&goes_on));
    let pay = move |_: Bytes| async move {
        begins.notify_one();
        goes.notified().await;
        "paid"
    };
    let app: Router = Router::new().route("/pay", post(pay)).layer(layer());
    tokio::spawn(axum::serve(listener, app).into_future());
    is_guarded(address, &began, &goes_on).await;
}

#[tokio::test]
async fn over_http_1_client_and_duplicate_get_the_trailers() {
    let paid = || async {
        let trailers: HeaderMap = [("x-sum".parse().unwrap(), "abc".parse().unwrap())]
            .into_iter()
            .collect();
        let frames = [
            Ok::<_, Infallible>(Frame::data(Bytes::from("paid"))),
            Ok(Frame::trailers(trailers)),
        ];
        let body = axum::body::Body::new(StreamBody::new(stream::iter(frames)));
        ([("trailer", "x-sum")], body)
    };
    let (listener, address) = listen().await;
    let app: Router = Router::new().route("/pay", post(paid)).layer(layer());
    tokio::spawn(axum::serve(listener, app).into_future());
    for replayed in [false, true] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = "POST /pay HTTP/1.1\r\nhost: a\r\nidempotency-key: a\r\nte: trailers\r\n\
                       connection: te\r\ncontent-length: 0\r\n\r\n";
        let response = say(&mut stream, request, "abc\r\n\r\n").await;
        assert!(
            response.ends_with("\r\npaid\r\n0\r\nx-sum: abc\r\n\r\n"),
            "{response}"
        );
        assert_eq!(response.contains("idempotent-replayed"), replayed);
    }
}

#[tokio::test]
async fn in_hyper() {
    let (listener, address) = listen().await;
    let (began, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begins, goes) = (Arc::clone(&began), Arc::clone(&goes_on));
    let service = layer().layer(service_fn(move |_| {
        let (begins, goes) = (Arc::clone(&begins), Arc::clone(&goes));
        async move {
            begins.notify_one();
            goes.notified().await;
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("paid")))
        }
    }));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(service.clone());
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            tokio::spawn(connection);
        }
    });
    is_guarded(address, &began, &goes_on).await;
}

/// A gRPC service. The message determines what it does; calls are counted.
#[derive(Clone, Default)]
struct Payments {
    calls: Arc<AtomicU32>,
    began: Arc<Notify>,
    goes_on: Arc<Notify>,
    metadata: Arc<Mutex<Vec<HeaderMap>>>,
}

impl NamedService for Payments {
    const NAME: &'static str = "shop.Payments";
}

fn message(text: &str) -> Bytes {
    let mut message = vec![0];
    message.extend_from_slice(&(text.len() as u32).to_be_bytes());
    message.extend_from_slice(text.as_bytes());
    Bytes::from(message)
}

impl Service<Request<tonic::body::Body>> for Payments {
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            this.metadata
                .lock()
                .unwrap()
                .push(request.headers().clone());
            let asked = request.into_body().collect().await.unwrap().to_bytes();
            let number = this.calls.fetch_add(1, Ordering::SeqCst) + 1;
            let asked = String::from_utf8_lossy(&asked[5..]).into_owned();
            if asked == "slow" {
                this.began.notify_one();
                this.goes_on.notified().await;
            }
            let mut trailers = HeaderMap::new();
            let code = match &*asked {
                "unavailable" => "14",
                "aborted" => "10",
                _ => "0",
            };
            trailers.insert("grpc-status", code.parse().unwrap());
            trailers.insert("charge", number.into());
            let frames = [
                Ok::<_, Infallible>(Frame::data(message(&format!("charge {number}")))),
                Ok(Frame::trailers(trailers)),
            ];
            let body = tonic::body::Body::new(StreamBody::new(stream::iter(frames)));
            let response = Response::builder().header("content-type", "application/grpc");
            Ok(response.body(body).unwrap())
        })
    }
}

struct Caller(Client<HttpConnector, Full<Bytes>>, SocketAddr);

#[derive(Debug)]
struct Reply {
    headers: HeaderMap,
    message: Bytes,
    trailers: Option<HeaderMap>,
}

impl Reply {
    /// Reads the status from the trailers, or from the headers of a response without a message.
    fn status(&self) -> Status {
        let fields = self.trailers.as_ref().unwrap_or(&self.headers);
        Status::read(fields).unwrap_or_else(|| panic!("no status: {self:?}"))
    }

    fn scope(&self) -> Option<&str> {
        self.headers.get("relent-scope")?.to_str().ok()
    }

    fn pushback(&self) -> i64 {
        let pushback = &self.headers["grpc-retry-pushback-ms"];
        pushback.to_str().unwrap().parse().unwrap()
    }
}

impl Caller {
    async fn call(&self, asked: &str, fields: &[(&'static str, &str)]) -> Reply {
        let uri = format!("http://{}/shop.Payments/Pay", self.1);
        let mut request = Request::post(uri).body(Full::new(message(asked))).unwrap();
        let grpc = [("content-type", "application/grpc"), ("te", "trailers")];
        for (name, value) in grpc.iter().chain(fields) {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        let (head, body) = self.0.request(request).await.unwrap().into_parts();
        assert_eq!(head.status, 200);
        let collected = body.collect().await.unwrap();
        Reply {
            headers: head.headers,
            trailers: collected.trailers().cloned(),
            message: collected.to_bytes(),
        }
    }

    async fn pay(&self, key: &str, asked: &str) -> Reply {
        self.call(asked, &[("idempotency-key", key)]).await
    }
}

async fn tonic_server() -> (Payments, Caller) {
    let (listener, address) = listen().await;
    let payments = Payments::default();
    let router = Server::builder()
        .layer(layer())
        .add_service(payments.clone());
    tokio::spawn(router.serve_with_incoming(TcpIncoming::from(listener)));
    let client = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http();
    (payments, Caller(client, address))
}

#[tokio::test]
async fn in_tonic_a_duplicate_gets_the_first_message_and_trailers() {
    let (payments, caller) = tonic_server().await;
    let first = caller.pay("a", "5").await;
    let again = caller.pay("a", "5").await;
    assert_eq!(payments.calls.load(Ordering::SeqCst), 1);
    assert_eq!(first.message, message("charge 1"));
    assert_eq!(again.message, first.message);
    assert_eq!(again.status().code, 0);
    assert_eq!(again.trailers.unwrap()["charge"], "1");
    assert_eq!(again.headers["idempotent-replayed"], "true");
    assert!(!first.headers.contains_key("idempotent-replayed"));
}

#[tokio::test]
async fn in_tonic_a_rejection_is_a_grpc_status() {
    let (payments, caller) = tonic_server().await;
    let missing = caller.call("5", &[]).await;
    assert_eq!((missing.status().code, missing.pushback()), (3, -1));
    caller.pay("a", "5").await;
    let mismatch = caller.pay("a", "6").await;
    assert_eq!((mismatch.status().code, mismatch.pushback()), (3, -1));

    let slow = async {
        let reply = caller.pay("b", "slow").await;
        assert_eq!(reply.status().code, 0);
    };
    let others = async {
        payments.began.notified().await;
        // No slot is free.
        let shed = caller.pay("c", "5").await;
        assert_eq!(shed.status().code, 14);
        let delay = shed.status().retry_delay.unwrap();
        assert_eq!(shed.pushback(), i64::try_from(delay.as_millis()).unwrap());
        assert!(delay >= Duration::from_millis(100));
        let fields = [("relent-histogram", "0,0,0,50")];
        let overloaded = caller.call("5", &fields).await;
        assert_eq!((overloaded.status().code, overloaded.pushback()), (14, -1));
        assert_eq!(overloaded.headers["relent-mark"], "overloaded");
        let late = caller.call("5", &[("grpc-timeout", "0n")]).await;
        assert_eq!(late.status().code, 4);
        payments.goes_on.notify_one();
    };
    tokio::join!(slow, others);
    assert_eq!(payments.calls.load(Ordering::SeqCst), 2);
}

/// A server with a duplicate that does not wait for the running call.
async fn impatient_server() -> (Payments, SocketAddr) {
    let (listener, address) = listen().await;
    let payments = Payments::default();
    let idempotency = IdempotencyLayer::anonymous(Memory::new()).wait(Duration::ZERO);
    let router = Server::builder()
        .layer(ServerLayer::new(idempotency))
        .add_service(payments.clone());
    tokio::spawn(router.serve_with_incoming(TcpIncoming::from(listener)));
    (payments, address)
}

#[tokio::test]
async fn in_tonic_a_duplicate_of_a_running_call_is_told_to_come_back() {
    let (payments, address) = impatient_server().await;
    let client = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http();
    let caller = Caller(client, address);
    let (first, ()) = tokio::join!(caller.pay("a", "slow"), async {
        payments.began.notified().await;
        let refused = caller.pay("a", "slow").await;
        assert_eq!(refused.status().code, 14);
        assert!(refused.status().retry_delay.is_some(), "{refused:?}");
        assert!(refused.pushback() >= 1, "{refused:?}");
        assert_eq!(refused.scope(), Some("request"), "{refused:?}");
        payments.goes_on.notify_one();
    });
    assert_eq!(first.status().code, 0);
}

/// The response is lost while the call still runs.
#[tokio::test]
async fn in_tonic_a_client_repeats_a_running_call_until_it_has_the_response() {
    let (payments, address) = impatient_server().await;
    let client = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http();
    let (attempts, server) = (Arc::new(AtomicU32::new(0)), payments.clone());
    let network = service_fn(move |request| {
        let number = attempts.fetch_add(1, Ordering::SeqCst) + 1;
        let (sent, payments) = (client.request(request), server.clone());
        async move {
            if number == 1 {
                tokio::select! {
                    response = sent => panic!("{response:?}"),
                    () = payments.began.notified() => {}
                }
                let lost = io::Error::from(io::ErrorKind::ConnectionReset);
                return Err(Box::<dyn Error + Send + Sync>::from(lost));
            }
            let response = sent.await?;
            payments.goes_on.notify_one();
            Ok(response)
        }
    });
    let policy = NamedPolicy::load("grpc").unwrap().policy;
    let service = RetryLayer::new(policy)
        .grpc(ServiceConfig::default())
        .layer(network);
    let request = Request::post(format!("http://{address}/shop.Payments/Pay"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("idempotency-key", "a");
    let request = request.body(Full::new(message("slow"))).unwrap();
    let response = service.oneshot(request).await.unwrap();
    assert_eq!(response.headers()["idempotent-replayed"], "true");
    let collected = response.into_body().collect().await.unwrap();
    assert_eq!(collected.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(collected.to_bytes(), message("charge 1"));
    assert_eq!(payments.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn in_tonic_the_trailer_status_decides_about_storing() {
    let (payments, caller) = tonic_server().await;
    for expected in [1, 2] {
        let aborted = caller.pay("a", "aborted").await;
        assert_eq!(aborted.status().code, 10);
        assert_eq!(
            payments.calls.load(Ordering::SeqCst),
            expected,
            "it runs again"
        );
    }
    assert_eq!(caller.pay("b", "unavailable").await.status().code, 14);
    let again = caller.pay("b", "unavailable").await;
    assert_eq!(again.status().code, 9, "nobody knows what it has done");
    assert_eq!(again.pushback(), -1);
    assert_eq!(payments.calls.load(Ordering::SeqCst), 3);
}
