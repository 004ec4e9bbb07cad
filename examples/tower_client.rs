//! A PUT with hyper-util's client behind the tower layer. Its body streams and is kept for a retry, and every attempt
//! is traced: `tower_client [URL]`.
//!
//! Try it against `flaky_server 127.0.0.1:8080 503:1 reset 500 200`.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use relent::trace::Trace;
use relent::{Backoff, Jitter, Policy, Summary};
use relent_http::{BoxError, RetryLayer};
use tower::{ServiceBuilder, ServiceExt};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "http://127.0.0.1:8080/".to_owned());
    let policy = Policy::builder(Backoff::exponential(Duration::from_millis(200)))
        .jitter(Jitter::Full)
        .max_retries(5)
        .attempt_timeout(Duration::from_secs(5))
        .deadline(Duration::from_secs(30))
        .build()?;
    let mut connector = HttpConnector::new();
    // Close the socket if a server stops reading.
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    connector.set_tcp_user_timeout(Some(Duration::from_secs(30)));
    connector.set_nodelay(true);
    let client = ServiceBuilder::new()
        .layer(RetryLayer::new(policy).traced())
        .service(Client::builder(TokioExecutor::new()).build(connector));

    let pieces = ["what ", "is ", "sent\n"];
    let length: usize = pieces.iter().map(|piece| piece.len()).sum();
    let frames = pieces.map(|piece| Ok::<_, BoxError>(Frame::data(Bytes::from(piece))));
    let request = Request::put(url)
        .header("content-length", length)
        .body(StreamBody::new(stream::iter(frames)))?;

    let mut response = client.oneshot(request).await?;
    if let Some(summary) = response.extensions_mut().remove::<Summary>() {
        for entry in summary.trace.iter().flat_map(Trace::entries) {
            let seen = entry.seen.map(|seen| seen.to_string()).unwrap_or_default();
            let wait = entry.wait();
            let then = wait.map_or_else(String::new, |wait| format!(", again after {wait:.1?}"));
            eprintln!("attempt {}: {seen}{then}", entry.attempt);
        }
    }
    println!("{}", response.status());
    let body = response.into_body().collect().await?.to_bytes();
    print!("{}", String::from_utf8_lossy(&body));
    Ok(())
}
