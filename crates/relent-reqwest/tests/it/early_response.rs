//! A server that responds before it has read the request, and then stops reading. An attempt that has ended must
//! release its connection; otherwise each attempt costs a socket.

use std::convert::Infallible;
use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper_util::client::legacy::Client as Hyper;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use relent::policy::HedgeConfig;
use relent::{Backoff, Policy, Summary};
use relent_http::body::Content;
use relent_http::{Override, RetryLayer};
use relent_reqwest::{Body, Client, RetryMiddleware, default_builder, track_redirects};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::{Layer, ServiceExt, service_fn};

use crate::scripted::{Server, Step, response};

const ATTEMPTS: u32 = 20;

fn policy() -> Policy {
    Policy::builder(Backoff::constant(Duration::from_millis(1)))
        .max_retries(ATTEMPTS - 1)
        .build()
        .unwrap()
}

/// Sends this response to the head of each request, stops reading, and does not close.
async fn server(answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(stream, answer));
        }
    });
    address
}

async fn serve(mut stream: TcpStream, answer: &str) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    stream.write_all(answer.as_bytes()).await?;
    std::future::pending().await
}

/// The number of sockets of this process that are connected to this address.
fn open(to: SocketAddr) -> usize {
    let port = format!(":{:04X}", to.port());
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let fields = table.lines().skip(1).map(str::split_whitespace);
    fields
        .filter(|line| {
            let line: Vec<_> = line.clone().collect();
            // Closed ones have no inode.
            line[2].ends_with(&port) && line[9] != "0"
        })
        .count()
}

const EMPTY: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
const SHORT: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy";
const HALF: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 40\r\n\r\nbusy";

/// Waits until at most this many are left, or fails when they stay.
async fn at_most(left: usize, to: SocketAddr, what: &str) {
    let begin = Instant::now();
    while open(to) > left {
        let stays = begin.elapsed() > Duration::from_secs(60);
        assert!(!stays, "{what}: {} sockets are open", open(to));
        // The system searches all its sockets for these.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A body whose rest never comes.
fn stalled() -> impl futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>> {
    let piece = Frame::data(Bytes::from_static(&[7; 1000]));
    stream::iter([Ok(piece)]).chain(stream::pending())
}

#[tokio::test]
async fn a_stalled_request_body_is_released_when_its_attempt_ends() {
    for answer in [EMPTY, SHORT, HALF] {
        let address = server(answer).await;
        let body = Content::made_by(|| StreamBody::new(stalled()));
        let client: Hyper<_, _> = Hyper::builder(TokioExecutor::new()).build_http();
        let request = Request::put(format!("http://{address}/"))
            .body(body)
            .unwrap();
        let service = RetryLayer::new(policy()).layer(client);
        let response = service.oneshot(request).await.unwrap();
        let summary = response.extensions().get::<Summary>().unwrap();
        assert_eq!(summary.attempts, ATTEMPTS);
        // The last attempt's body continues: a server may respond and read on.
        at_most(1, address, &format!("layer, {answer:?}")).await;

        let address = server(answer).await;
        let body = Body::made_by(|| reqwest::Body::wrap(SyncBody::new(StreamBody::new(stalled()))));
        let put = Client::new(policy())
            .unwrap()
            .put(format!("http://{address}/"));
        let response = put.body(body).send().await.unwrap();
        assert_eq!(response.summary().attempts, ATTEMPTS);
        at_most(1, address, &format!("client, {answer:?}")).await;
    }
}

/// The connection would take the bytes as a whole, in clients without a limit by the kernel. The last attempt, whose
/// response is returned, continues for as long as a server may take to read on.
#[tokio::test]
async fn a_long_body_in_memory_is_released_when_its_attempt_ends() {
    for (answer, length) in [(EMPTY, 32 << 20), (SHORT, 32 << 20), (EMPTY, 8 << 20)] {
        let content = Bytes::from(vec![7; length]);
        let to_layer = server(answer).await;
        let client: Hyper<_, _> = Hyper::builder(TokioExecutor::new()).build_http();
        let request = Request::put(format!("http://{to_layer}/"))
            .body(Content::from(content.clone()))
            .unwrap();
        let service = RetryLayer::new(policy()).layer(client);
        let response = service.oneshot(request).await.unwrap();
        let summary = response.extensions().get::<Summary>().unwrap();
        assert_eq!(summary.attempts, ATTEMPTS);

        let to_client = server(answer).await;
        let http = || {
            default_builder()
                .no_proxy()
                .tls_certs_only([])
                .tcp_user_timeout(None::<Duration>)
        };
        let client = Client::from_builder(http, policy()).unwrap();
        let put = client.put(format!("http://{to_client}/"));
        let response = put.body(content).send().await.unwrap();
        assert_eq!(response.summary().attempts, ATTEMPTS);

        at_most(1, to_layer, &format!("layer, {length}, {answer:?}")).await;
        at_most(1, to_client, &format!("client, {length}, {answer:?}")).await;
        drop(response);
        for _ in 0..60 {
            // Advances only the timers' clock, and lets tasks run.
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(1)).await;
            tokio::time::resume();
            tokio::task::yield_now().await;
        }
        at_most(0, to_layer, &format!("layer, at last, {length}")).await;
        at_most(0, to_client, &format!("client, at last, {length}")).await;
    }
}

/// The HTTP/2 equivalent is a window that stays closed. Each attempt would hold one of the streams that the server
/// allows.
#[tokio::test]
async fn a_long_body_in_memory_is_released_over_http2() {
    for client in [true, false] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        tokio::spawn(one_stream_at_a_time(listener));
        let content = Bytes::from(vec![7; 4 << 20]);
        let sent = async {
            if client {
                let http = || default_builder().no_proxy().tls_certs_only([]);
                let http = move || http().http2_prior_knowledge();
                let client = Client::from_builder(http, policy()).unwrap();
                let response = client.put(&url).body(content).send().await.unwrap();
                return response.status();
            }
            let client: Hyper<_, _> = Hyper::builder(TokioExecutor::new())
                .http2_only(true)
                .build_http();
            let request = Request::put(&url).body(Content::from(content)).unwrap();
            let sent = RetryLayer::new(policy()).layer(client).oneshot(request);
            sent.await.unwrap().status()
        };
        let status = tokio::time::timeout(Duration::from_secs(60), sent).await;
        assert_eq!(status.expect("there is room"), 200, "client: {client}");
    }
}

/// A server that collects the body gets all of it.
#[tokio::test]
async fn a_service_that_collects_a_long_body_gets_all_of_it() {
    let collects = service_fn(
        |request: Request<relent_http::body::ReplayBody<Content>>| async move {
            let body = request.into_body().collect().await?.to_bytes();
            Ok::<_, relent_http::BoxError>(http::Response::new(Full::new(body)))
        },
    );
    let content: Vec<u8> = (0..1_000_000_u32)
        .map(|byte| byte.to_le_bytes()[1])
        .collect();
    let request = Request::put("http://localhost/").body(Content::from(content.clone()));
    let sent = RetryLayer::new(policy())
        .layer(collects)
        .oneshot(request.unwrap());
    let response = tokio::time::timeout(Duration::from_secs(20), sent).await;
    let body = response.expect("no wait").unwrap().into_body();
    assert!(body.collect().await.unwrap().to_bytes() == content);
}

/// reqwest sends only a body that is in one piece to another URL.
#[tokio::test]
async fn a_long_body_of_a_put_is_sent_again_after_a_redirect() {
    for status in [301, 302, 307, 308] {
        let server = Server::answering(move |_, seen| {
            Step::Answer(match seen.path() {
                "/" => response(status, &[("location", "/there")], ""),
                _ => response(200, &[], ""),
            })
        });
        let content: Vec<u8> = (0..1_000_000_u32)
            .map(|byte| byte.to_le_bytes()[1])
            .collect();
        let put = Client::new(policy()).unwrap().put(server.url("/"));
        let answer = put.body(content.clone()).send().await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.attempts()), (200, 1));
        let seen = server.seen();
        let last = seen.last().unwrap();
        assert_eq!((last.method(), last.path()), ("PUT", "/there"));
        assert!(last.body == content);
        assert_eq!(last.header("content-length"), Some("1000000"));

        // If no redirect is followed, the redirect is the response, and the body is sent once.
        let server = Server::script([Step::Answer(response(
            status,
            &[("location", "/there")],
            "",
        ))]);
        let none =
            || default_builder().redirect(track_redirects(reqwest::redirect::Policy::none()));
        let client = Client::from_builder(none, policy()).unwrap();
        let answer = client.post(server.url("/")).body(content).send().await;
        assert_eq!(answer.unwrap().status().as_u16(), status);
        assert_eq!(server.count(), 1);
    }
}

/// The rest of the body is in hyper's buffer by then. hyper closes only after it is sent, so the kernel limits the
/// time.
#[tokio::test]
async fn tcp_user_timeout_closes_an_unread_connection() {
    const LONG: usize = 16 << 20;
    const BOUND: Duration = Duration::from_millis(500);
    for answer in [EMPTY, SHORT] {
        let address = server(answer).await;
        let mut connector = HttpConnector::new();
        connector.set_tcp_user_timeout(Some(BOUND));
        let client: Hyper<_, _> = Hyper::builder(TokioExecutor::new()).build(connector);
        let service = RetryLayer::new(policy()).layer(client);
        let url = format!("http://{address}/");
        for known in [true, false] {
            let body = match known {
                true => Content::from(vec![7; LONG]),
                false => Content::made_by(|| StreamBody::new(endless())),
            };
            let request = Request::put(&url).body(body).unwrap();
            let response = service.clone().oneshot(request).await.unwrap();
            let summary = response.extensions().get::<Summary>().unwrap();
            assert_eq!(summary.attempts, ATTEMPTS);
            at_most(0, address, &format!("layer, {known}, {answer:?}")).await;
        }
        // A stream is not sent again after an early response: one socket per call.
        for _ in 0..5 {
            let body = Content::made_by(|| StreamBody::new(endless()));
            let mut request = Request::put(&url).body(body).unwrap();
            request.extensions_mut().insert(Override::new().no_retry());
            service.clone().oneshot(request).await.unwrap();
        }
        at_most(0, address, &format!("layer, once, {answer:?}")).await;

        let http = || {
            let builder = reqwest::Client::builder().no_proxy().tls_certs_only([]);
            builder.tcp_user_timeout(BOUND)
        };
        let client = Client::from_builder(http, policy()).unwrap();
        for known in [true, false] {
            let body = match known {
                true => Body::from(vec![7; LONG]),
                false => {
                    Body::made_by(|| reqwest::Body::wrap(SyncBody::new(StreamBody::new(endless()))))
                }
            };
            let response = client.put(&url).body(body).send().await.unwrap();
            assert_eq!(response.summary().attempts, ATTEMPTS);
            at_most(0, address, &format!("client, {known}, {answer:?}")).await;
        }

        let retry = RetryMiddleware::new(policy());
        let client = reqwest_middleware::ClientBuilder::new(http().build().unwrap());
        let put = client.with(retry).build().put(&url).body(vec![7; LONG]);
        assert_eq!(put.send().await.unwrap().status(), 503);
        at_most(0, address, &format!("middleware, {answer:?}")).await;
    }
}

/// A body that never ends.
fn endless() -> impl futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>> {
    stream::repeat_with(|| Ok(Frame::data(Bytes::from_static(&[7; 64 << 10]))))
}

/// For reqwest, whose bodies are `Sync`.
type SyncBody = http_body_util::combinators::BoxBody<Bytes, Infallible>;

/// Handles three concurrent attempts: refuses the first when the second arrives, and responds to the others with
/// `others` when the third arrives. Reads no further, and does not close.
async fn racing(others: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let accept = async || listener.accept().await.unwrap().0;
        let first = accept().await;
        let second = accept().await;
        tokio::spawn(serve(first, EMPTY));
        // It joins in the place of the first.
        let third = accept().await;
        tokio::spawn(serve(second, others));
        if others == EMPTY {
            tokio::spawn(serve(third, others));
        } else {
            std::future::pending::<()>().await;
        }
    });
    address
}

const FINE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

fn hedging() -> Policy {
    let hedge = HedgeConfig {
        max_hedges: 2,
        ..HedgeConfig::after(Duration::from_millis(1))
    };
    let policy = Policy::builder(Backoff::None).max_retries(2).hedge(hedge);
    policy.build().unwrap()
}

#[tokio::test]
async fn a_stalled_body_of_a_hedged_attempt_is_released() {
    for (others, status) in [(FINE, 200), (EMPTY, 503)] {
        let address = racing(others).await;
        let body = Content::made_by(|| StreamBody::new(stalled()));
        let client: Hyper<_, _> = Hyper::builder(TokioExecutor::new()).build_http();
        let request = Request::put(format!("http://{address}/"))
            .body(body)
            .unwrap();
        let service = RetryLayer::new(hedging()).layer(client);
        let response = service.oneshot(request).await.unwrap();
        assert_eq!(response.status(), status);
        at_most(1, address, &format!("layer, {status}")).await;

        let address = racing(others).await;
        let body = Body::made_by(|| reqwest::Body::wrap(SyncBody::new(StreamBody::new(stalled()))));
        let put = Client::new(hedging())
            .unwrap()
            .put(format!("http://{address}/"));
        let response = put.body(body).send().await.unwrap();
        assert_eq!(response.status(), status);
        at_most(1, address, &format!("client, {status}")).await;
    }
}

/// Refuses two requests and answers the third. Allows one stream at a time, and reads no body.
async fn one_stream_at_a_time(listener: TcpListener) {
    let (socket, _) = listener.accept().await.unwrap();
    let mut one = h2::server::Builder::new();
    // An unread stream does not block the others.
    one.initial_connection_window_size(16 << 20);
    let one = one.max_concurrent_streams(1).handshake::<_, Bytes>(socket);
    let mut connection = one.await.unwrap();
    let mut kept = Vec::new();
    for status in [503, 503, 200] {
        let (request, mut respond) = connection.accept().await.unwrap().unwrap();
        let head = http::Response::builder().status(status).body(()).unwrap();
        respond.send_response(head, true).unwrap();
        // Dropping it would reset it.
        kept.push(request);
    }
    let _ = std::future::poll_fn(|context| connection.poll_closed(context)).await;
}

/// A stream that is still being sent counts among the concurrent streams that the server allows.
#[tokio::test]
async fn an_ended_http2_stream_frees_its_slot_for_the_next_attempt() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(one_stream_at_a_time(listener));
    let body = Content::made_by(|| StreamBody::new(stalled()));
    let client: Hyper<_, _> = Hyper::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http();
    let request = Request::put(&url).body(body).unwrap();
    let sent = RetryLayer::new(policy()).layer(client).oneshot(request);
    let response = tokio::time::timeout(Duration::from_secs(60), sent).await;
    assert_eq!(response.expect("there is room").unwrap().status(), 200);
}
