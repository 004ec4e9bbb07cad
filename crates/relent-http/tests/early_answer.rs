//! A server that answers before it has read the request, and does not read on: an attempt that is over
//! lets go of its connection, or each attempt would cost a socket.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

use std::convert::Infallible;
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper_util::client::legacy::Client as Hyper;
use hyper_util::rt::TokioExecutor;
use relent::{Backoff, Policy};
use relent_http::{Content, RetryLayer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::{Layer, ServiceExt};

const RETRIES: u32 = 19;

fn policy() -> Policy {
    Policy::builder(Backoff::constant(Duration::from_millis(1)))
        .max_retries(RETRIES)
        .build()
        .unwrap()
}

/// Answers the head of each request so, reads no further, and does not close.
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

/// The sockets of this process that are connected to this address.
fn open(to: SocketAddr) -> usize {
    let port = format!(":{:04X}", to.port());
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let fields = table.lines().skip(1).map(str::split_whitespace);
    fields
        .filter(|line| {
            let line: Vec<_> = line.clone().collect();
            // Those that are closed have no inode.
            line[2].ends_with(&port) && line[9] != "0"
        })
        .count()
}

const EMPTY: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
const SHORT: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy";
const HALF: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 40\r\n\r\nbusy";

fn piece() -> Bytes {
    Bytes::from(vec![7; 64 << 10])
}

#[tokio::test(flavor = "multi_thread")]
async fn measure() {
    for (name, answer) in [("empty", EMPTY), ("short", SHORT), ("half", HALF)] {
        for kind in ["full", "stalled", "made"] {
            let address = server(answer).await;
            let content = match kind {
                "full" => Content::from(Bytes::from(vec![7; 16 << 20])),
                "stalled" => Content::made_by(|| {
                    let first = stream::iter([Ok::<_, Infallible>(Frame::data(piece()))]);
                    StreamBody::new(futures_util::StreamExt::chain(first, stream::pending()))
                }),
                _ => Content::made_by(|| {
                    StreamBody::new(stream::repeat_with(|| Ok::<_, Infallible>(Frame::data(piece()))))
                }),
            };
            let client: Hyper<_, _> = Hyper::builder(TokioExecutor::new()).build_http();
            let service = RetryLayer::new(policy()).layer(client);
            let request = Request::put(format!("http://{address}/")).body(content).unwrap();
            let response = service.oneshot(request).await.unwrap();
            tokio::time::sleep(Duration::from_millis(500)).await;
            println!("layer {name} {kind}: {} open, {}", open(address), response.status());
            drop(response);
            tokio::time::sleep(Duration::from_millis(500)).await;
            println!("   after drop: {} open", open(address));
        }
        let address = server(answer).await;
        let client = relent_http::Client::new(policy()).unwrap();
        let response = client.put(format!("http://{address}/")).body(vec![7; 16 << 20]).send().await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        println!("client {name}: {} open, {:?}", open(address), response.map(|r| r.status()));
    }
}
