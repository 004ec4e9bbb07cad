//! Prints the duration of a GET over the loopback, and the connections that a retry needs.
//!
//! Latency is measured with one request after the other, throughput with [`AT_ONCE`] concurrent ones, both on one
//! thread. Batches of each subject alternate with batches of the bare client, and the ratio of the two counts, since
//! other work on the machine slows both. The medians of the batches are printed.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use hyper_util::rt::TokioExecutor;
use relent_benches::loopback::serve;
use relent_benches::subjects::reqwest::{client, own_retry, plain, reqwest_retry};
use relent_http::RetryLayer;
use relent_reqwest::default_builder;
use relent_reqwest::{Client, RetryMiddleware};
use reqwest_middleware::ClientBuilder;
use tokio::task::JoinSet;
use tower::{Layer, ServiceExt};

/// Batches, of which the median counts.
const BATCHES: usize = 101;
/// Requests in a batch.
const REQUESTS: usize = 320;
/// Concurrent requests.
const AT_ONCE: usize = 16;

type Sent = Pin<Box<dyn Future<Output = Option<StatusCode>> + Send>>;
type Caller = Arc<dyn Fn(&str) -> Sent + Send + Sync>;

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        println!("# loopback");
        let (url, _) = serve(0)?;
        let bare = bare();
        for (subject, send) in clients() {
            let (mut one, mut many) = (Vec::new(), Vec::new());
            for batch in 0..BATCHES {
                // The order alternates, so that it has no effect.
                let (first, second) = match batch % 2 {
                    0 => (&bare, &send),
                    _ => (&send, &bare),
                };
                let waits = (latency(first, &url).await?, latency(second, &url).await?);
                let rates = (
                    throughput(first, &url).await?,
                    throughput(second, &url).await?,
                );
                let in_order = |pair: (f64, f64)| match batch % 2 {
                    0 => pair,
                    _ => (pair.1, pair.0),
                };
                one.push(in_order(waits));
                many.push(in_order(rates));
            }
            let (micros, slower) = medians(&one);
            let (rate, faster) = medians(&many);
            println!("{subject}\t{micros:.1}\t{slower:.3}\t{rate:.0}\t{faster:.3}");
        }
        println!("# connections");
        for (subject, send) in clients().into_iter().chain(services()) {
            let (url, seen) = serve(1)?;
            let status = send(&url).await;
            let count = |number: &std::sync::atomic::AtomicUsize| number.load(Ordering::SeqCst);
            println!(
                "{subject}\t{}\t{}\t{}",
                status.map_or("none".to_owned(), |status| status.as_str().to_owned()),
                count(&seen.requests),
                count(&seen.connections)
            );
        }
        Ok(())
    })
}

/// Microseconds for each request.
async fn latency(send: &Caller, url: &str) -> Result<f64, &'static str> {
    let started = Instant::now();
    for _ in 0..REQUESTS {
        answered(send(url).await)?;
    }
    Ok(started.elapsed().as_secs_f64() * 1e6 / REQUESTS as f64)
}

/// Requests in a second.
async fn throughput(send: &Caller, url: &str) -> Result<f64, &'static str> {
    let started = Instant::now();
    let mut callers: JoinSet<Result<(), &'static str>> = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (send, url) = (send.clone(), url.to_owned());
        callers.spawn(async move {
            for _ in 0..REQUESTS / AT_ONCE {
                answered(send(&url).await)?;
            }
            Ok(())
        });
    }
    for caller in callers.join_all().await {
        caller?;
    }
    Ok(REQUESTS as f64 / started.elapsed().as_secs_f64())
}

fn answered(status: Option<StatusCode>) -> Result<(), &'static str> {
    match status {
        Some(StatusCode::OK) => Ok(()),
        _ => Err("a request over the loopback failed"),
    }
}

/// The median of the second of each pair, and of its ratio to the first.
fn medians(pairs: &[(f64, f64)]) -> (f64, f64) {
    let median = |of: fn(&(f64, f64)) -> f64| {
        let mut all: Vec<f64> = pairs.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    (median(|pair| pair.1), median(|pair| pair.1 / pair.0))
}

fn bare() -> Caller {
    by_reqwest(default_builder())
}

fn by_reqwest(builder: reqwest::ClientBuilder) -> Caller {
    let client = client(builder);
    Arc::new(move |url| {
        let sent = client.get(url).send();
        Box::pin(async { sent.await.ok().map(|response| response.status()) })
    })
}

fn through(with: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Caller {
    let stack = with(ClientBuilder::new(client(default_builder()))).build();
    Arc::new(move |url| {
        let request = stack.get(url);
        Box::pin(async { Some(request.send().await.ok()?.status()) })
    })
}

fn clients() -> Vec<(&'static str, Caller)> {
    let relent = Client::from_client(client(default_builder()), plain()).redirects_are_tracked();
    vec![
        ("bare, against itself", bare()),
        (
            "relent",
            Arc::new(move |url| {
                let sent = relent.get(url).send();
                Box::pin(async { Some(sent.await.ok()?.status()) })
            }),
        ),
        (
            "reqwest's own retry",
            by_reqwest(own_retry(default_builder())),
        ),
        ("middleware, bare", through(|stack| stack)),
        (
            "middleware, relent",
            through(|stack| stack.with(RetryMiddleware::new(plain()).redirects_are_tracked())),
        ),
        (
            "middleware, reqwest-retry",
            through(|stack| stack.with(reqwest_retry())),
        ),
    ]
}

type Hyper = hyper_util::client::legacy::Client<
    hyper_util::client::legacy::connect::HttpConnector,
    Empty<Bytes>,
>;

/// The layers, over hyper-util's client.
fn services() -> Vec<(&'static str, Caller)> {
    let hyper = || hyper_util::client::legacy::Client::builder(TokioExecutor::new());
    let relent = RetryLayer::new(plain()).layer(hyper().build_http());
    let peer: Hyper = hyper().build_http();
    vec![
        (
            "tower layer, relent",
            Arc::new(move |url| {
                let sent = Request::get(url).body(Empty::<Bytes>::new());
                let relent = relent.clone();
                Box::pin(async { Some(relent.oneshot(sent.ok()?).await.ok()?.status()) })
            }),
        ),
        (
            "tower layer, tower",
            Arc::new(move |url| {
                let sent = Request::get(url).body(Empty::<Bytes>::new());
                let peer = tower::retry::Retry::new(Thrice(3), peer.clone());
                Box::pin(async { Some(peer.oneshot(sent.ok()?).await.ok()?.status()) })
            }),
        ),
    ]
}

/// Retries a 5xx, after the longest delay that Relent has here.
#[derive(Clone)]
struct Thrice(u32);

impl<R, E> tower::retry::Policy<Request<Empty<Bytes>>, Response<R>, E> for Thrice {
    type Future = tokio::time::Sleep;

    fn retry(
        &mut self,
        _: &mut Request<Empty<Bytes>>,
        result: &mut Result<Response<R>, E>,
    ) -> Option<Self::Future> {
        match result {
            Ok(response) if response.status().as_u16() < 500 => None,
            _ => {
                self.0 = self.0.checked_sub(1)?;
                Some(tokio::time::sleep(std::time::Duration::from_millis(10)))
            }
        }
    }

    fn clone_request(&mut self, request: &Request<Empty<Bytes>>) -> Option<Request<Empty<Bytes>>> {
        Some(request.clone())
    }
}
