//! A GET without a body through reqwest: alone, by Relent's client, by reqwest's own retry, and through a stack of
//! reqwest-middleware. Clients are built once, the request in each call.
//!
//! reqwest accepts only sockets as its transport. So the other end of the socket is on the same thread, and responds
//! when the runtime is idle: no second thread, no waiting, and the same instructions in each run.

use std::hint::black_box;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use relent::{Backoff, Jitter, Policy};
use relent_reqwest::default_builder;
use relent_reqwest::{Client, RetryMiddleware};
use reqwest::retry;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use reqwest_retry::RetryTransientMiddleware;
use reqwest_retry::policies::ExponentialBackoff;

use crate::{Row, Scenario};

/// Its rows.
pub const ROWS: &[Row] = &[
    row("bare", |n| sent_by_reqwest(n, default_builder())),
    row("bare, and a copy of the request", sent_and_copied),
    row("relent", |n| sent_by_relent(n, plain())),
    row("relent, budget and deadline", |n| sent_by_relent(n, full())),
    row("reqwest's own retry", |n| {
        sent_by_reqwest(n, own_retry(default_builder()));
    }),
    row("middleware, bare", |n| {
        sent_through(n, |stack| stack);
    }),
    row("middleware, relent", |n| {
        sent_through(n, |stack| {
            stack.with(RetryMiddleware::new(plain()).redirects_are_tracked())
        });
    }),
    row("middleware, reqwest-retry", |n| {
        sent_through(n, |stack| stack.with(reqwest_retry()));
    }),
];

const fn row(subject: &'static str, run: fn(u64)) -> Row {
    Row::new(Scenario::ReqwestSuccess, subject, run)
}

/// Three retries of repeatable requests, without time limits.
#[must_use]
pub fn plain() -> Policy {
    Policy::builder(Backoff::exponential(Duration::from_millis(10)))
        .jitter(Jitter::Full)
        .max_retries(3)
        .build_const()
}

/// The standard policy, which has a budget, with a deadline.
fn full() -> Policy {
    let policy = Policy::STANDARD.clone().into_builder();
    policy.deadline(Duration::from_secs(5)).build_const()
}

/// reqwest's own retries of a 503.
pub fn own_retry(builder: reqwest::ClientBuilder) -> reqwest::ClientBuilder {
    let classified = retry::for_host("127.0.0.1")
        .max_retries_per_request(3)
        .classify_fn(|answered| match answered.status() {
            Some(StatusCode::SERVICE_UNAVAILABLE) => answered.retryable(),
            _ => answered.success(),
        });
    builder.retry(classified)
}

/// The middleware of reqwest-retry with as many retries.
#[must_use]
pub fn reqwest_retry() -> RetryTransientMiddleware<ExponentialBackoff> {
    let policy = ExponentialBackoff::builder()
        .retry_bounds(Duration::from_millis(10), Duration::from_secs(1))
        .build_with_max_retries(3);
    RetryTransientMiddleware::new_with_policy(policy)
}

/// A client of reqwest.
#[must_use]
pub fn client(builder: reqwest::ClientBuilder) -> reqwest::Client {
    let built = builder.build();
    built.unwrap_or_else(|error| unreachable!("nothing in it can fail: {error}"))
}

fn sent_by_reqwest(n: u64, builder: reqwest::ClientBuilder) {
    let client = client(builder);
    each(n, async |url| client.get(url).send().await.is_ok());
}

/// The copy that a retrying caller must keep, since sending consumes the request.
fn sent_and_copied(n: u64) {
    let client = client(default_builder());
    each(n, async |url| {
        let Ok(request) = client.get(url).build() else {
            return false;
        };
        let kept = black_box(request.try_clone());
        client.execute(request).await.is_ok() && kept.is_some()
    });
}

fn sent_by_relent(n: u64, policy: Policy) {
    let client = Client::from_client(client(default_builder()), policy).redirects_are_tracked();
    each(n, async |url| client.get(url).send().await.is_ok());
}

fn sent_through(n: u64, with: impl FnOnce(ClientBuilder) -> ClientBuilder) {
    let stack: ClientWithMiddleware = with(ClientBuilder::new(client(default_builder()))).build();
    each(n, async |url| stack.get(url).send().await.is_ok());
}

/// Sends `n` requests, one after the other, and drops the responses.
fn each(n: u64, send: impl AsyncFn(&str) -> bool) {
    let served = Server::listen().and_then(|(server, url)| {
        let server = Mutex::new(server);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .on_thread_park(move || {
                let mut server = server.lock().unwrap_or_else(PoisonError::into_inner);
                server.answer();
            })
            .build()?;
        Ok((runtime, url))
    });
    let (runtime, url) =
        served.unwrap_or_else(|error| unreachable!("the loopback can be listened on: {error}"));
    runtime.block_on(async {
        for _ in 0..n {
            assert!(black_box(send(black_box(&url)).await));
        }
    });
}

/// The other end of the sockets.
struct Server {
    listener: TcpListener,
    streams: Vec<TcpStream>,
    request: [u8; 4096],
}

impl Server {
    fn listen() -> io::Result<(Self, String)> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let url = format!("http://{}/path", listener.local_addr()?);
        let server = Self {
            listener,
            streams: Vec::new(),
            request: [0; 4096],
        };
        Ok((server, url))
    }

    /// Answers what has come.
    fn answer(&mut self) {
        if let Ok((stream, _)) = self.listener.accept() {
            // One that blocked would hold up the client that it waits for.
            if stream.set_nonblocking(true).is_ok() {
                self.streams.push(stream);
            }
        }
        for stream in &mut self.streams {
            if stream
                .read(&mut self.request)
                .is_ok_and(|length| length > 0)
            {
                // A client that has gone away needs no answer.
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
            }
        }
    }
}
