//! Ends of HTTP/2 bodies, over a real socket with a peer that writes its own frames.

use std::error::Error as StdError;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Uri};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client as Legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use relent::clock::TokioClock;
use relent::driver::Driver;
use relent::failure::Network;
use relent::{Backoff, Destination, Failure, GaveUp, Hint, Jitter, Policy, StopReason};
use relent_http::RetryLayer;
use relent_http::body::{ReplayBody, Truncated};
use relent_http::layer::ResponseBody;
use relent_http::network::classify_error;
use relent_reqwest::default_builder;
use relent_reqwest::{AttemptError, Body, Client, Error, RetryMiddleware};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::{Layer, Service, ServiceExt};

use crate::http2::frame;

const WHOLE: usize = 100_000;
const CUT: usize = 40_000;

/// Frames that the server sends for a request.
#[derive(Clone, Debug)]
enum Send {
    /// The head with this status and these fields; and whether it ends the stream.
    Head(&'static str, Vec<(&'static str, String)>, bool),
    /// This many bytes; and whether they end the stream.
    Data(usize, bool),
    /// Trailers with this field, which end the stream.
    Trailers(&'static str, &'static str),
    /// A reset with this code.
    Reset(u32),
}

const NO_ERROR: u32 = 0;

fn head(status: &'static str, length: Option<usize>) -> Send {
    let length = length.map(|length| ("content-length", length.to_string()));
    Send::Head(status, length.into_iter().collect(), false)
}

fn cut(status: &'static str, length: Option<usize>) -> Vec<Send> {
    vec![
        head(status, length),
        Send::Data(CUT, false),
        Send::Reset(NO_ERROR),
    ]
}

/// All proper ends.
fn whole() -> Vec<(&'static str, Vec<Send>)> {
    let mut all = Vec::new();
    for length in [Some(WHOLE), None] {
        all.extend([
            ("data", vec![head("200", length), Send::Data(WHOLE, true)]),
            (
                "an empty frame",
                vec![
                    head("200", length),
                    Send::Data(WHOLE, false),
                    Send::Data(0, true),
                ],
            ),
            (
                "trailers",
                vec![
                    head("200", length),
                    Send::Data(WHOLE, false),
                    Send::Trailers("x-sum", "1"),
                ],
            ),
        ]);
    }
    all.push((
        "a reset after all that was announced",
        vec![
            head("200", Some(WHOLE)),
            Send::Data(WHOLE, false),
            Send::Reset(NO_ERROR),
        ],
    ));
    all
}

/// Responds to request `n` with `answers[n]`, and to all later ones with the last.
async fn serve(answers: Vec<Vec<Send>>) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let asked = count.clone();
    let answers = Arc::new(answers);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (answers, asked) = (answers.clone(), asked.clone());
            // The client may disconnect at any time.
            tokio::spawn(async move {
                let _ = connection(stream, &answers, &asked).await;
            });
        }
    });
    (address, count)
}

async fn connection(
    mut stream: TcpStream,
    answers: &[Vec<Send>],
    asked: &AtomicUsize,
) -> std::io::Result<()> {
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const PREFACE: usize = 24;
    stream.read_exact(&mut [0; PREFACE]).await?;
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).await?;
        let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        match (head[3], head[4]) {
            (SETTINGS, 0) => stream.write_all(&frame(SETTINGS, 1, 0, &[])).await?,
            (HEADERS, _) => {
                let index = asked.fetch_add(1, Ordering::SeqCst);
                for send in &answers[index.min(answers.len() - 1)] {
                    stream.write_all(&bytes_of(send, id)).await?;
                }
            }
            _ => {}
        }
    }
}

fn bytes_of(send: &Send, id: u32) -> Vec<u8> {
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    const LARGEST: usize = 16_384;
    let end = |end: &bool| u8::from(*end) * END_STREAM;
    match send {
        Send::Head(status, fields, ends) => {
            let mut block = literal(":status", status);
            for (name, value) in fields {
                block.extend(literal(name, value));
            }
            frame(1, END_HEADERS | end(ends), id, &block)
        }
        Send::Data(length, ends) => {
            let bytes = vec![b'x'; *length];
            let mut chunks: Vec<&[u8]> = bytes.chunks(LARGEST).collect();
            let last = chunks.pop().unwrap_or_default();
            let mut all: Vec<u8> = chunks.iter().flat_map(|one| frame(0, 0, id, one)).collect();
            all.extend(frame(0, end(ends), id, last));
            all
        }
        Send::Trailers(name, value) => {
            frame(1, END_HEADERS | END_STREAM, id, &literal(name, value))
        }
        Send::Reset(code) => frame(3, 0, id, &code.to_be_bytes()),
    }
}

/// An HPACK field without tables: a literal with its name.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        bytes.push(u8::try_from(text.len()).unwrap());
        bytes.extend(text.as_bytes());
    }
    bytes
}

fn policy(retries: u32) -> Policy {
    Policy::builder(Backoff::constant(Duration::from_millis(1)))
        .jitter(Jitter::None)
        .max_retries(retries)
        .build()
        .unwrap()
}

fn plain() -> reqwest::ClientBuilder {
    default_builder()
        .no_proxy()
        .tls_certs_only([])
        .http2_prior_knowledge()
}

fn client(retries: u32) -> Client {
    Client::from_builder(plain, policy(retries)).unwrap()
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}/")
}

fn get(address: SocketAddr) -> Request<Body> {
    Request::get(url(address)).body(Body::empty()).unwrap()
}

fn truncated(error: &(dyn StdError + 'static)) -> Option<Truncated> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(truncated) = error.downcast_ref() {
            return Some(*truncated);
        }
        next = error.source();
    }
    None
}

type Hyper = Legacy<HttpConnector, ReplayBody<Empty<Bytes>>>;

fn hyper() -> Hyper {
    Legacy::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http()
}

fn request(method: Method, address: SocketAddr) -> Request<Empty<Bytes>> {
    let uri: Uri = url(address).parse().unwrap();
    let request = Request::builder().method(method).uri(uri);
    request.body(Empty::new()).unwrap()
}

#[tokio::test]
async fn a_body_cut_by_a_reset_without_an_error_is_retried() {
    for length in [Some(WHOLE), None] {
        let answers = vec![
            cut("200", length),
            vec![head("200", length), Send::Data(WHOLE, true)],
        ];
        let (address, _) = serve(answers.clone()).await;
        let mut sink = Vec::new();
        let result = client(1).download(get(address), &mut sink).await;
        let (_, summary) = result.unwrap();
        assert_eq!((summary.attempts, sink.len()), (2, WHOLE), "{length:?}");

        let (address, _) = serve(answers).await;
        let response = client(1).get(url(address)).whole_body().send().await;
        let response = response.unwrap();
        assert_eq!(response.summary().attempts, 2, "{length:?}");
        assert_eq!(response.bytes().await.unwrap().len(), WHOLE, "{length:?}");
    }
}

#[tokio::test]
async fn a_truncated_http2_body_is_an_error() {
    for length in [Some(WHOLE), None] {
        let (address, _) = serve(vec![cut("200", length)]).await;
        let announced = length.map(|length| length as u64);
        let is_told = |truncated: Option<Truncated>| {
            let truncated = truncated.expect("a truncated body");
            assert_eq!(truncated.received(), CUT as u64);
            assert_eq!(truncated.announced(), announced);
        };

        let result = client(1).download(get(address), &mut Vec::new()).await;
        let gave_up = result.unwrap_err();
        assert_eq!(gave_up.reason(), StopReason::RetriesExhausted);
        let in_attempt = |gave_up: &GaveUp<AttemptError>| match gave_up.error() {
            Some(AttemptError::Truncated(truncated)) => Some(*truncated),
            _ => None,
        };
        is_told(in_attempt(&gave_up));

        let result = client(0).get(url(address)).whole_body().send().await;
        let Err(Error::GaveUp(gave_up)) = result else {
            panic!("{result:?}");
        };
        is_told(in_attempt(&gave_up));

        let response = client(0).get(url(address)).send().await.unwrap();
        let error = response.bytes().await.unwrap_err();
        assert!(matches!(error, Error::Body(..)));
        is_told(truncated(&error));

        let mut service = RetryLayer::new(policy(0)).layer(hyper());
        let response = service.ready().await.unwrap();
        let response = response.call(request(Method::GET, address)).await.unwrap();
        let error = response.into_body().collect().await.unwrap_err();
        is_told(truncated(&*error));
        let failure = classify_error(&*error);
        assert_eq!(failure, relent::Failure::network(Network::Truncated));
    }
}

#[tokio::test]
async fn content_length_is_checked_if_the_body_hides_its_end() {
    let (address, _) = serve(vec![cut("200", Some(WHOLE))]).await;
    let boxed = hyper().map_response(|response: http::Response<hyper::body::Incoming>| {
        // Such a stream does not support `is_end_stream`.
        response.map(|body| {
            let stream = http_body_util::BodyStream::new(body);
            BoxBody::new(http_body_util::StreamBody::new(stream))
        })
    });
    let layered = RetryLayer::new(policy(0)).layer(boxed);
    let response = layered.clone().oneshot(request(Method::GET, address)).await;
    let body: ResponseBody<_> = response.unwrap().into_body();
    assert!(truncated(&*body.collect().await.unwrap_err()).is_some());

    let middleware = reqwest_middleware::ClientBuilder::new(plain().build().unwrap())
        .with(RetryMiddleware::new(policy(0)))
        .build();
    let response = middleware.get(url(address)).send().await.unwrap();
    assert!(truncated(&response.bytes().await.unwrap_err()).is_some());

    for (how, answer) in whole() {
        let (address, _) = serve(vec![answer]).await;
        let response = layered.clone().oneshot(request(Method::GET, address)).await;
        let read = response.unwrap().into_body().collect().await;
        assert_eq!(read.unwrap().to_bytes().len(), WHOLE, "{how}");
        let response = middleware.get(url(address)).send().await.unwrap();
        assert_eq!(response.bytes().await.unwrap().len(), WHOLE, "{how}");
    }
    let answer = Send::Head("200", vec![("content-length", WHOLE.to_string())], true);
    let (address, _) = serve(vec![vec![answer]]).await;
    let response = layered.oneshot(request(Method::HEAD, address)).await;
    let read = response.unwrap().into_body().collect().await;
    assert!(read.unwrap().to_bytes().is_empty());
}

#[tokio::test]
async fn a_body_with_a_proper_end_is_whole() {
    for (how, answer) in whole() {
        let (address, _) = serve(vec![answer]).await;
        let mut sink = Vec::new();
        let result = client(0).download(get(address), &mut sink).await;
        assert_eq!(
            (result.unwrap().1.attempts, sink.len()),
            (1, WHOLE),
            "{how}"
        );

        let response = client(0).get(url(address)).send().await.unwrap();
        assert_eq!(response.url().as_str(), url(address));
        assert_eq!(response.bytes().await.unwrap().len(), WHOLE, "{how}");

        let layered = RetryLayer::new(policy(0)).layer(hyper());
        let response = layered.oneshot(request(Method::GET, address)).await;
        let body = response.unwrap().into_body().collect().await.unwrap();
        assert_eq!(body.trailers().is_some(), how == "trailers");
        assert_eq!(body.to_bytes().len(), WHOLE, "{how}");
    }
}

#[tokio::test]
async fn a_response_without_content_needs_no_proof() {
    let length = || vec![("content-length", WHOLE.to_string())];
    for (method, status, fields) in [
        (Method::HEAD, "200", length()),
        (Method::GET, "304", length()),
        (Method::GET, "204", Vec::new()),
        (Method::GET, "200", vec![("content-length", "0".to_owned())]),
        (Method::GET, "200", Vec::new()),
    ] {
        let (address, _) = serve(vec![vec![Send::Head(status, fields, true)]]).await;
        let request_of = |method: &Method| client(0).request(method.clone(), url(address));
        let response = request_of(&method).send().await.unwrap();
        assert!(response.bytes().await.unwrap().is_empty(), "{status}");
        let conditional = request_of(&method).header("if-none-match", "\"1\"");
        let response = conditional.whole_body().send().await.unwrap();
        assert_eq!(response.status().as_str(), status);
        assert!(response.bytes().await.unwrap().is_empty(), "{status}");
        let layered = RetryLayer::new(policy(0)).layer(hyper());
        let response = layered.oneshot(request(method, address)).await.unwrap();
        let read = response.into_body().collect().await;
        assert!(read.unwrap().to_bytes().is_empty(), "{status}");
    }
}

#[tokio::test]
async fn a_drained_response_that_was_cut_is_not_whole() {
    for length in [Some(WHOLE), None] {
        let (address, _) = serve(vec![cut("503", length)]).await;
        let held = policy(3).into_builder().deadline(Duration::from_secs(20));
        let held = held.build().unwrap();
        let there = Arc::new(Destination::new(held.clone()));
        let client = Client::from_builder(plain, held).unwrap();
        let get = client.destination(there.clone()).get(url(address));
        // No other attempt follows, so the response is returned with what was read during the delay.
        let get = get.delay(move |_, _, _| {
            let policy = policy(0);
            let mut other = Driver::builder(&policy, TokioClock)
                .destination(&there)
                .start();
            let permit = other.enter(None).permit().unwrap();
            other.on_attempt(permit);
            let minute = Hint::after(Duration::from_secs(60));
            other.on_failure(&Failure::throttled().hint(minute));
            Duration::from_millis(1)
        });
        let response = get.send().await.unwrap();
        assert_eq!(response.summary().reason, Some(StopReason::RetryLater));
        let error = response.bytes().await.unwrap_err();
        assert!(truncated(&error).is_some(), "{length:?}: {error:?}");
    }
}

fn grpc(end: Vec<Send>) -> Vec<Send> {
    let kind = ("content-type", "application/grpc+proto".to_owned());
    let mut all = vec![Send::Head("200", vec![kind], false), Send::Data(5, false)];
    all.extend(end);
    all
}

#[tokio::test]
async fn a_grpc_response_without_trailers_is_truncated() {
    for (end, is_whole) in [
        (Send::Reset(NO_ERROR), false),
        (Send::Data(0, true), false),
        (Send::Trailers("grpc-status", "0"), true),
    ] {
        let (address, _) = serve(vec![grpc(vec![end.clone()])]).await;
        let layered = RetryLayer::new(policy(0)).layer(hyper());
        let response = layered.oneshot(request(Method::POST, address)).await;
        let read = response.unwrap().into_body().collect().await;
        assert_eq!(read.is_ok(), is_whole, "{end:?}");
        let result = client(0).download(get(address), &mut Vec::new()).await;
        assert_eq!(result.is_ok(), is_whole, "{end:?}");
    }
}

#[tokio::test]
async fn a_failed_grpc_call_is_not_a_successful_download() {
    let status = ("grpc-status", "14".to_owned());
    let kind = ("content-type", "application/grpc".to_owned());
    let in_headers = vec![Send::Head("200", vec![kind, status], true)];
    let in_trailers = grpc(vec![Send::Trailers("grpc-status", "14")]);
    for answer in [in_headers, in_trailers] {
        let (address, count) = serve(vec![answer]).await;
        let result = client(1).download(get(address), &mut Vec::new()).await;
        let gave_up = result.unwrap_err();
        assert!(matches!(gave_up.error(), Some(AttemptError::Grpc(14))));
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }
}
