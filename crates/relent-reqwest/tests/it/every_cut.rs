//! A response cut at each of its bytes, over HTTP/1.1 and HTTP/2: the result is an error or a retry, and is never
//! accepted as the whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client as Hyper;
use hyper_util::rt::TokioExecutor;
use relent::{Backoff, Policy, StopReason};
use relent_http::RetryLayer;
use relent_reqwest::{Client, RetryMiddleware, default_builder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::{Layer, ServiceExt};

use crate::http2::frame;

const CONTENT: &str = "all of the content";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    Http1,
    Http2,
}
use Version::{Http1, Http2};

/// All framings of the content, each with the end of its head.
fn answers() -> Vec<(Version, Vec<u8>, usize)> {
    let http1 = |heads: &[&str], body: &str| {
        let head = heads.concat();
        let head_end = head.len();
        (Http1, [head.as_bytes(), body.as_bytes()].concat(), head_end)
    };
    let known = "HTTP/1.1 200 OK\r\ncontent-length: 18\r\n\r\n";
    let tagged = "HTTP/1.1 200 OK\r\ncontent-length: 18\r\netag: \"v1\"\r\n\r\n";
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: sum\r\n\r\n";
    let chunks = "5\r\nall o\r\nd\r\nf the content\r\n0\r\nsum: 1\r\n\r\n";
    let http2 = |fields: &[u8], rest: &[Vec<u8>]| {
        const END_HEADERS: u8 = 4;
        let head = [
            frame(SETTINGS, 0, 0, &[]),
            frame(HEADERS, END_HEADERS, 1, fields),
        ]
        .concat();
        let head_end = head.len();
        (Http2, [head, rest.concat()].concat(), head_end)
    };
    let (first, second) = CONTENT.as_bytes().split_at(7);
    let status = b"\x88";
    let with_length = b"\x88\x0f\x0d\x0218";
    let data = |end| [frame(DATA, 0, 1, first), frame(DATA, end, 1, second)];
    let end = frame(DATA, END_STREAM, 1, &[]);
    vec![
        http1(&[known], CONTENT),
        http1(&["HTTP/1.1 100 Continue\r\n\r\n", known], CONTENT),
        http1(
            &["HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n", tagged],
            CONTENT,
        ),
        http1(&[chunked], chunks),
        http2(status, &data(END_STREAM)),
        http2(with_length, &data(END_STREAM)),
        http2(status, &[data(0).concat(), end]),
    ]
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;

/// Sends the first `cut` bytes to the first connection, and everything to later ones. Counts the requests.
async fn server(version: Version, answer: &[u8], cut: usize) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let count = Arc::new(AtomicUsize::new(0));
    let (counted, answer) = (count.clone(), answer.to_vec());
    tokio::spawn(async move {
        for length in std::iter::once(cut).chain(std::iter::repeat(answer.len())) {
            let (stream, _) = listener.accept().await.unwrap();
            let (answer, count) = (answer[..length].to_vec(), counted.clone());
            tokio::spawn(async move { serve(version, stream, &answer, &count).await });
        }
    });
    (url, count)
}

async fn serve(
    version: Version,
    mut stream: TcpStream,
    answer: &[u8],
    count: &AtomicUsize,
) -> std::io::Result<()> {
    match version {
        Http1 => {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await?);
            }
        }
        Http2 => {
            stream.read_exact(&mut [0; 24]).await?;
            let mut head = [0; 9];
            while head[3] != HEADERS {
                stream.read_exact(&mut head).await?;
                let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
                stream.read_exact(&mut vec![0; length as usize]).await?;
            }
        }
    }
    count.fetch_add(1, Ordering::Relaxed);
    stream.write_all(answer).await?;
    stream.shutdown().await?;
    // Unread data would turn the close into a reset.
    stream.read_to_end(&mut Vec::new()).await.map(drop)
}

fn policy() -> Policy {
    let policy = Policy::builder(Backoff::None).max_retries(3);
    policy.build().unwrap()
}

fn http(version: Version) -> reqwest::ClientBuilder {
    let plain = default_builder().no_proxy().tls_certs_only([]);
    match version {
        Http1 => plain.http1_only(),
        Http2 => plain.http2_prior_knowledge(),
    }
}

/// The result for the caller: the content and the number of attempts, or the reason to stop.
type CutResult = Result<(Bytes, u32), Option<StopReason>>;

async fn send(version: Version, method: Method, url: &str) -> CutResult {
    let client = Client::from_builder(move || http(version), policy()).unwrap();
    let sent = client.request(method, url).send().await;
    let response = sent.map_err(|error| error.summary().and_then(|summary| summary.reason))?;
    let attempts = response.attempts();
    Ok((response.bytes().await.map_err(|_| None)?, attempts))
}

async fn whole_body(version: Version, method: Method, url: &str) -> CutResult {
    let client = Client::from_builder(move || http(version), policy()).unwrap();
    let received = client.request(method, url).whole_body().send().await;
    let response = received.map_err(|error| error.summary().and_then(|summary| summary.reason))?;
    let attempts = response.attempts();
    Ok((response.bytes().await.map_err(|_| None)?, attempts))
}

async fn middleware(version: Version, method: Method, url: &str) -> CutResult {
    let client = reqwest_middleware::ClientBuilder::new(http(version).build().unwrap());
    let client = client.with(RetryMiddleware::new(policy()).redirects_are_tracked());
    let sent = client.build().request(method, url).send().await;
    let response = sent.map_err(|_| None)?;
    let summary: Option<&relent::Summary> = response.extensions().get();
    let attempts = summary.unwrap().attempts;
    Ok((response.bytes().await.map_err(|_| None)?, attempts))
}

async fn layer(version: Version, method: Method, url: &str) -> CutResult {
    let client: Hyper<_, _> = Hyper::builder(TokioExecutor::new())
        .http2_only(version == Http2)
        .build_http();
    let request = Request::builder().method(method).uri(url);
    let request = request.body(Full::<Bytes>::default()).unwrap();
    let sent = RetryLayer::new(policy())
        .layer(client)
        .oneshot(request)
        .await;
    let response = sent.map_err(|gave_up| Some(gave_up.reason()))?;
    let summary: Option<&relent::Summary> = response.extensions().get();
    let attempts = summary.map_or(1, |summary| summary.attempts);
    let body = response.into_body().collect().await.map_err(|_| None)?;
    Ok((body.to_bytes(), attempts))
}

#[tokio::test]
async fn a_response_cut_at_any_byte_is_never_accepted_as_whole() {
    for (version, answer, head_end) in answers() {
        for cut in 0..=answer.len() {
            for method in [Method::GET, Method::POST] {
                let what = format!("{method} {version:?} {cut} of {}", answer.len());
                let (whole, repeatable) = (cut == answer.len(), method == Method::GET);
                for face in ["send", "whole body", "middleware", "layer"] {
                    let what = format!("{what}, {face}");
                    let (url, count) = server(version, &answer, cut).await;
                    let came = match face {
                        "send" => send(version, method.clone(), &url).await,
                        "whole body" => whole_body(version, method.clone(), &url).await,
                        "middleware" => middleware(version, method.clone(), &url).await,
                        _ => layer(version, method.clone(), &url).await,
                    };
                    // An attempt that includes the body is retried.
                    let again = cut < head_end || face == "whole body" && !whole;
                    let attempts = if again && repeatable { 2 } else { 1 };
                    assert_eq!(count.load(Ordering::Relaxed), attempts, "{what}: {came:?}");
                    match came {
                        Ok((body, told)) => {
                            assert!(whole || again && repeatable, "{what}: {body:?}");
                            assert_eq!(
                                (&body[..], told as usize),
                                (CONTENT.as_bytes(), attempts),
                                "{what}"
                            );
                        }
                        Err(reason) => {
                            assert!(!(whole || again && repeatable), "{what}: {reason:?}");
                        }
                    }
                }
            }
        }
    }
}
