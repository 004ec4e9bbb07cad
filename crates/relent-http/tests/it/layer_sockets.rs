//! The tower layer over real clients and real sockets: hyper-util, a stack of middleware.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, Response, Uri};
use http_body::{Body, Frame};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use relent::policy::{HedgeConfig, PolicyBuilder};
use relent::{Backoff, Jitter, Policy, StopReason, Summary};
use relent_core::{Cause, FailureKind, Network};
use relent_http::body::Content;
use relent_http::network::classify_error;
use relent_http::{BoxError, RetryLayer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::{Layer, ServiceBuilder, ServiceExt};

use crate::scripted::{
    Server, Step, TEST_TIMEOUT, pattern, response, unused_address, with_silences,
};

fn quick() -> PolicyBuilder {
    Policy::builder(Backoff::constant(Duration::from_millis(20)))
        .jitter(Jitter::None)
        .max_retries(3)
}

fn layer() -> RetryLayer {
    RetryLayer::new(quick().build().unwrap())
}

fn client<B>() -> Client<HttpConnector, B>
where
    B: Body + Send,
    B::Data: Send,
{
    Client::builder(TokioExecutor::new()).build_http()
}

fn request<B>(method: Method, url: &str, body: B) -> Request<B> {
    Request::builder()
        .method(method)
        .uri(url)
        .body(body)
        .unwrap()
}

fn get(url: &str) -> Request<Empty<Bytes>> {
    request(Method::GET, url, Empty::new())
}

/// A body that cannot be cloned, in frames of this length.
fn streamed(
    content: &Bytes,
    length: usize,
) -> impl Body<Data = Bytes, Error = io::Error> + Send + use<> {
    let pieces: Vec<_> = (0..content.len())
        .step_by(length)
        .map(|start| content.slice(start..content.len().min(start + length)))
        .map(|piece| Ok(Frame::data(piece)))
        .collect();
    StreamBody::new(stream::iter(pieces))
}

/// The status, the number of attempts and the stop reason.
fn ending<R>(response: &Response<R>) -> (u16, u32, Option<StopReason>) {
    let summary: Option<&Summary> = response.extensions().get();
    (
        response.status().as_u16(),
        summary.map_or(1, |summary| summary.attempts),
        summary.and_then(|summary| summary.reason),
    )
}

fn connections(server: &Server) -> Vec<usize> {
    server.seen().iter().map(|seen| seen.connection).collect()
}

#[tokio::test]
async fn reqwest_retry_opens_a_new_connection_after_a_long_error_body() {
    // reqwest-retry and reqwest reuse the connection after 5 bytes, but not after 200 kB, since they
    // drop the unread rest. Here, up to 256 KiB are read, for no longer than 250 ms.
    for (length, expected) in [
        (0, [1, 1]),
        (5, [1, 1]),
        (200_000, [1, 1]),
        (300_000, [1, 2]),
    ] {
        // Also with a short delay.
        for wait in [0, 1, 300] {
            let body = pattern(1, length);
            let server = Server::script([
                Step::Answer(response(503, &[], &body)),
                Step::Answer(response(200, &[], "done")),
            ]);
            let policy = quick().backoff(Backoff::constant(Duration::from_millis(wait)));
            let layer = RetryLayer::new(policy.build().unwrap());
            let service = layer.layer(client());
            let response = service.oneshot(get(&server.url("/"))).await.unwrap();
            assert_eq!(ending(&response), (200, 2, None));
            let seen = connections(&server);
            assert_eq!(seen, expected, "{length} bytes, {wait} ms");
        }
    }
}

#[tokio::test]
async fn a_streaming_body_is_sent_again_after_a_reset_and_after_a_refusal() {
    let content = Bytes::from(pattern(2, 50_000));
    for fault in [
        Step::Reset(Vec::new()),
        Step::Answer(response(503, &[], "no")),
    ] {
        let server = Server::script([fault.clone(), Step::Answer(response(200, &[], ""))]);
        let mut request = request(Method::PUT, &server.url("/"), streamed(&content, 777));
        let length = content.len().to_string();
        request
            .headers_mut()
            .insert("content-length", length.parse().unwrap());
        let response = layer().layer(client()).oneshot(request).await.unwrap();
        assert_eq!(ending(&response), (200, 2, None), "{fault:?}");
        for seen in server.seen() {
            assert_eq!(seen.header("content-length"), Some(length.as_str()));
            assert_eq!(seen.body, content);
        }
    }
}

#[tokio::test]
async fn every_attempt_declares_a_known_body_length() {
    let server = Server::script([
        Step::Answer(response(503, &[], "")),
        Step::Answer(response(200, &[], "")),
    ]);
    let body = Full::new(Bytes::from(pattern(3, 300_000)));
    let put = request(Method::PUT, &server.url("/"), body);
    layer().layer(client()).oneshot(put).await.unwrap();
    let seen = server.seen();
    assert_eq!(seen.len(), 2);
    for seen in seen {
        assert_eq!(seen.header("content-length"), Some("300000"));
        assert_eq!(seen.header("transfer-encoding"), None);
        assert_eq!(seen.body, pattern(3, 300_000));
    }
}

/// Serves each connection by a function of its number, from 1.
async fn serve<F>(serve: impl Fn(usize, TcpStream) -> F + Send + 'static) -> String
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        for number in 1.. {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(number, stream));
        }
    });
    url
}

async fn read_head(stream: &mut TcpStream) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    Ok(())
}

const LONG: usize = 16 << 20;

/// Responds with 503 to the head alone, and on the next connection reads the whole body.
async fn early() -> String {
    serve(|number, mut stream| async move {
        read_head(&mut stream).await?;
        if number == 1 {
            stream.write_all(&response(503, &[], "busy")).await?;
            // Reads nothing, and does not close the connection.
            tokio::time::sleep(Duration::from_secs(60)).await;
            return Ok(());
        }
        let mut body = vec![0; LONG];
        stream.read_exact(&mut body).await?;
        assert!(body == pattern(4, LONG));
        stream.write_all(&response(200, &[], "whole")).await
    })
    .await
}

#[tokio::test]
async fn an_early_response_to_known_content_is_retried() {
    let body = Full::new(Bytes::from(pattern(4, LONG)));
    let put = request(Method::PUT, &early().await, body);
    let response = layer().layer(client()).oneshot(put).await.unwrap();
    assert_eq!(ending(&response), (200, 2, None));
}

#[tokio::test]
async fn an_early_response_to_a_stream_is_returned() {
    let body = streamed(&Bytes::from(pattern(4, LONG)), 64 << 10);
    let put = request(Method::PUT, &early().await, body);
    let response = layer().layer(client()).oneshot(put).await.unwrap();
    assert_eq!(ending(&response), (503, 1, Some(StopReason::NotReplayable)));
    let text = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(text, "busy");
}

/// The caller reads the reason from the response or from the error.
#[tokio::test]
async fn a_body_that_was_not_kept_is_the_reason_of_the_last_outcome() {
    let content = Bytes::from(pattern(5, 200_000));
    let put = |server: &Server| {
        let put = request(Method::PUT, &server.url("/"), streamed(&content, 10_000));
        layer().layer(client()).oneshot(put)
    };
    let server = Server::script([Step::Answer(response(503, &[], "busy"))]);
    let answered = put(&server).await.unwrap();
    assert_eq!(ending(&answered), (503, 1, Some(StopReason::NotReplayable)));
    let server = Server::script([Step::Reset(Vec::new())]);
    let gave_up = put(&server).await.unwrap_err();
    assert_eq!(gave_up.summary().reason, Some(StopReason::NotReplayable));
    assert_eq!(StopReason::NotReplayable.name(), "not_replayable");
}

#[tokio::test]
async fn a_post_to_a_closed_port_is_rerouted() {
    let address = unused_address();
    let server = Server::script([Step::Answer(response(200, &[], ""))]);
    let other: Uri = server.url("/other").parse().unwrap();
    let layer = layer().reroute(move |attempt, uri| {
        if attempt > 1 {
            *uri = other.clone();
        }
    });
    let body = streamed(&Bytes::from_static(b"order"), 2);
    let mut post = request(Method::POST, &format!("http://{address}/"), body);
    post.headers_mut()
        .insert("content-length", "5".parse().unwrap());
    let response = layer.layer(client()).oneshot(post).await.unwrap();
    assert_eq!(ending(&response), (200, 2, None));
    assert_eq!(server.seen()[0].body, b"order");
}

#[tokio::test]
async fn the_layer_works_in_a_stack_of_middleware() {
    let server = Server::script([
        Step::Stall(Vec::new()),
        Step::Answer(response(503, &[], "no")),
        Step::Answer(response(200, &[], "yes")),
    ]);
    // With one call at a time, an attempt that kept its readiness would block the next one.
    let service = ServiceBuilder::new()
        .boxed_clone()
        .layer(layer().map_body(UnsyncBoxBody::<Bytes, BoxError>::new))
        .concurrency_limit(1)
        .buffer(1)
        .timeout(TEST_TIMEOUT)
        .service(client::<UnsyncBoxBody<Bytes, BoxError>>());
    for silences in [1, 0] {
        let body = streamed(&Bytes::from_static(b"order"), 2);
        let mut put = request(Method::PUT, &server.url("/"), body);
        put.headers_mut()
            .insert("content-length", "5".parse().unwrap());
        let sent = service.clone().oneshot(put);
        let sent = with_silences(&server, silences, TEST_TIMEOUT, sent).await;
        assert_eq!(sent.unwrap().status(), 200);
    }
    assert_eq!(server.count(), 4);
}

#[tokio::test]
async fn a_timed_out_attempt_closes_its_connection() {
    let server = Server::script([
        Step::Stall(Vec::new()),
        Step::Answer(response(200, &[], "")),
    ]);
    let policy = quick().attempt_timeout(TEST_TIMEOUT).build().unwrap();
    let service = RetryLayer::new(policy).layer(client());
    let sent = service.oneshot(get(&server.url("/")));
    let sent = with_silences(&server, 1, TEST_TIMEOUT, sent).await;
    assert_eq!(ending(&sent.unwrap()), (200, 2, None));
    assert_eq!(connections(&server), [1, 2]);
}

/// The layer's classification of an error of hyper-util's client.
async fn failure(client: &Client<HttpConnector, Empty<Bytes>>, url: &str) -> (FailureKind, Cause) {
    let error = client.request(get(url)).await.unwrap_err();
    let failure = classify_error(&error);
    (failure.kind, failure.cause)
}

fn raw(
    client_is: fn(&mut hyper_util::client::legacy::Builder),
) -> Client<HttpConnector, Empty<Bytes>> {
    let mut builder = Client::builder(TokioExecutor::new());
    client_is(&mut builder);
    builder.build_http()
}

#[tokio::test]
async fn the_errors_of_hyper_are_classified_without_reqwest() {
    let h1 = raw(|_| {});
    let of = |kind, network| (kind, Cause::Network(network));

    let url = format!("http://{}/", unused_address());
    assert_eq!(
        failure(&h1, &url).await,
        of(FailureKind::NotProcessed, Network::Connect)
    );
    let unknown = failure(&h1, "http://does-not-exist.invalid/").await;
    assert_eq!(unknown, of(FailureKind::NotProcessed, Network::Connect));

    for (answer, expected) in [
        (
            Step::Close(Vec::new()),
            of(FailureKind::Ambiguous, Network::Reset),
        ),
        (
            Step::Reset(Vec::new()),
            of(FailureKind::Ambiguous, Network::Reset),
        ),
        (
            Step::Close(b"HTTP/1.1 20".to_vec()),
            of(FailureKind::Ambiguous, Network::Reset),
        ),
        (
            Step::Close(b"220 mail.example ESMTP\r\n".to_vec()),
            of(FailureKind::Ambiguous, Network::Malformed),
        ),
    ] {
        let server = Server::script([answer.clone()]);
        assert_eq!(failure(&h1, &server.url("/")).await, expected, "{answer:?}");
    }
}

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GO_AWAY: u8 = 7;
const REFUSED_STREAM: u32 = 7;

fn frame(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, 0]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// An HTTP/2 server that sends these frames in response to the first request, and then closes.
async fn http2(answer: Vec<u8>) -> String {
    serve(move |_, mut stream| {
        let answer = answer.clone();
        async move {
            stream.read_exact(&mut [0; 24]).await?;
            stream.write_all(&frame(SETTINGS, 0, &[])).await?;
            let mut head = [0; 9];
            while head[3] != HEADERS {
                stream.read_exact(&mut head).await?;
                let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
                stream.read_exact(&mut vec![0; length as usize]).await?;
            }
            stream.write_all(&answer).await?;
            stream.shutdown().await?;
            stream.read_to_end(&mut Vec::new()).await.map(drop)
        }
    })
    .await
}

#[tokio::test]
async fn the_errors_of_http2_are_classified_without_reqwest() {
    let h2 = raw(|builder| {
        builder.http2_only(true);
    });
    let reset = |code: u32| frame(RST_STREAM, 1, &code.to_be_bytes());
    let go_away = |last: u32| {
        let payload = [last.to_be_bytes(), 0_u32.to_be_bytes()].concat();
        frame(GO_AWAY, 0, &payload)
    };
    for (answer, kind, network) in [
        (
            reset(REFUSED_STREAM),
            FailureKind::NotProcessed,
            Network::RefusedStream,
        ),
        (reset(2), FailureKind::Ambiguous, Network::Reset),
        (go_away(0), FailureKind::NotProcessed, Network::GoAway),
        (go_away(1), FailureKind::Ambiguous, Network::Reset),
    ] {
        let url = http2(answer.clone()).await;
        let seen = failure(&h2, &url).await;
        assert_eq!(seen, (kind, Cause::Network(network)), "{answer:?}");
    }
}

/// The body may be read from another server, whose connection was refused. This one has got a part of the request.
#[tokio::test]
async fn a_post_whose_own_body_fails_is_not_sent_again() {
    let reads = |_, mut stream: TcpStream| async move {
        stream.read_to_end(&mut Vec::new()).await.map(drop)
    };
    for kind in [io::ErrorKind::ConnectionRefused, io::ErrorKind::TimedOut] {
        let made = Arc::new(AtomicUsize::new(0));
        let body = Content::made_by({
            let made = made.clone();
            move || {
                made.fetch_add(1, Ordering::Relaxed);
                let piece = Ok(Frame::data(Bytes::from("a piece")));
                StreamBody::new(stream::iter([piece, Err(io::Error::from(kind))]))
            }
        });
        let post = request(Method::POST, &serve(reads).await, body);
        let gave_up = layer().layer(client()).oneshot(post).await.unwrap_err();
        assert_eq!(
            (gave_up.reason(), gave_up.attempts()),
            (StopReason::NotRepeatable, 1),
            "{kind}"
        );
        let failure = classify_error(&gave_up);
        assert_eq!(failure.cause, Cause::Network(Network::Local), "{kind}");
        assert_eq!(made.load(Ordering::Relaxed), 1, "{kind}");
    }
}

/// Reads the body of an HTTP/1.1 request, framing included: chunks up to the last, and
/// the trailers.
async fn read_chunked(stream: &mut TcpStream) -> io::Result<String> {
    let mut raw = Vec::new();
    while !raw.ends_with(b"\r\n\r\n") || !raw.windows(3).any(|end| end == b"0\r\n") {
        raw.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&raw).into_owned())
}

/// A body with a declared length has no trailers, so the layer does not declare the length that it knows by then.
#[tokio::test]
async fn a_body_that_is_sent_again_over_http1_has_its_trailers() {
    for hedged in [false, true] {
        let (seen, mut bodies) = tokio::sync::mpsc::unbounded_channel();
        let url = serve(move |number, mut stream| {
            let seen = seen.clone();
            async move {
                read_head(&mut stream).await?;
                seen.send(read_chunked(&mut stream).await?).unwrap();
                match (number, hedged) {
                    (1, true) => std::future::pending().await,
                    (1, false) => Ok(()),
                    _ => stream.write_all(&response(200, &[], "")).await,
                }
            }
        })
        .await;
        let mut trailers = http::HeaderMap::new();
        trailers.insert("checksum", "12".parse().unwrap());
        let body = streamed(&Bytes::from_static(b"content"), 3)
            .with_trailers(std::future::ready(Some(Ok(trailers))));
        let mut put = request(Method::PUT, &url, UnsyncBoxBody::new(body));
        let fields = put.headers_mut();
        fields.insert("trailer", "checksum".parse().unwrap());
        let hedge = HedgeConfig::after(Duration::from_millis(50));
        let layer = match hedged {
            true => RetryLayer::new(quick().hedge(hedge).build().unwrap()),
            false => layer(),
        };
        let call = layer.layer(client()).oneshot(put);
        // Without chunks the server would wait for them forever.
        let response = tokio::time::timeout(Duration::from_secs(60), call).await;
        let response = response.expect("in chunks").unwrap();
        assert_eq!(ending(&response), (200, 2, None));
        for _ in 0..2 {
            let body = bodies.recv().await.unwrap();
            assert!(body.ends_with("0\r\nchecksum: 12\r\n\r\n"), "{body:?}");
        }
    }
}

#[tokio::test]
async fn the_trailers_of_a_response_are_passed_on() {
    let url = serve(|number, mut stream| async move {
        read_head(&mut stream).await?;
        let status = if number == 1 { "503 Busy" } else { "200 OK" };
        let answer = format!(
            "HTTP/1.1 {status}\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\
             trailer: checksum\r\n\r\n7\r\ncontent\r\n0\r\nchecksum: 12\r\n\r\n"
        );
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    })
    .await;
    let mut get = get(&url);
    get.headers_mut().insert("te", "trailers".parse().unwrap());
    let response = layer().layer(client()).oneshot(get).await.unwrap();
    assert_eq!(ending(&response), (200, 2, None));
    let collected = response.into_body().collect().await.unwrap();
    assert_eq!(collected.trailers().unwrap()["checksum"], "12");
    assert_eq!(collected.to_bytes(), "content");
}
