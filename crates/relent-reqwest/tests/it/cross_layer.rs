//! Retries across layers of services: a front and a middle service that each retry their calls, and a leaf, over real
//! sockets.

mod caller_headers;

use std::convert::Infallible;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client as Hyper;
use hyper_util::rt::{TokioExecutor, TokioIo};
use relent::policy::PolicyBuilder;
use relent::{Backoff, Jitter, Policy, StopReason};
use relent_http::{CallerContext, Mark, RetryLayer, mark_response};
use relent_reqwest::default_builder;
use relent_reqwest::{Client, Error};
use tokio::net::TcpListener;
use tower::{Layer, ServiceExt};

use crate::scripted;

const DEADLINE: Duration = Duration::from_secs(20);

/// Three retries.
fn quick() -> PolicyBuilder {
    Policy::builder(Backoff::constant(Duration::from_millis(1)))
        .jitter(Jitter::None)
        .max_retries(3)
}

fn client(policy: PolicyBuilder) -> Client {
    let builder = || default_builder().no_proxy().tls_certs_only([]);
    Client::from_builder(builder, policy.build().unwrap())
        .unwrap()
        .cross_layer()
}

/// The requests that have arrived at a service.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<CallerContext>>>);

impl Seen {
    fn record(&self, headers: &HeaderMap) -> CallerContext {
        let caller = CallerContext::from_headers(headers);
        self.0.lock().unwrap().push(caller);
        caller
    }

    fn attempts(&self) -> Vec<u32> {
        let seen = self.0.lock().unwrap();
        seen.iter().map(|caller| caller.attempt).collect()
    }

    /// The deadlines in the requests; every request has one.
    fn remaining(&self) -> Vec<Duration> {
        let seen = self.0.lock().unwrap();
        seen.iter()
            .map(|caller| caller.remaining.unwrap())
            .collect()
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// Serves HTTP/1 with this function; returns the URL.
async fn serve<F, A>(answer: F) -> String
where
    F: Fn(Request<Incoming>) -> A + Clone + Send + 'static,
    A: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            let service = service_fn(move |request| {
                let answer = answer(request);
                async move { Ok::<_, Infallible>(answer.await) }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    format!("http://{address}/")
}

fn answer(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

/// The lowest service, which always sends the same response.
async fn leaf(status: u16, mark: Option<Mark>) -> (String, Seen) {
    let seen = Seen::default();
    let arrived = seen.clone();
    let url = serve(move |request: Request<Incoming>| {
        arrived.record(request.headers());
        let mut response = answer(StatusCode::from_u16(status).unwrap());
        if let Some(mark) = mark {
            mark.set(response.headers_mut());
        }
        async { response }
    });
    (url.await, seen)
}

/// A service over the client, which makes its own request and response.
async fn middle(below: String, marks: bool) -> (String, Seen) {
    let seen = Seen::default();
    let (arrived, client) = (seen.clone(), client(quick().deadline(DEADLINE)));
    let url = serve(move |request: Request<Incoming>| {
        let started = Instant::now();
        let caller = arrived.record(request.headers());
        let (client, below) = (client.clone(), below.clone());
        async move {
            let mut headers = HeaderMap::new();
            caller.pass_on(started.elapsed(), &mut headers);
            let (mut response, reason) = match client.get(&below).headers(headers).send().await {
                Ok(below) => (answer(below.status()), below.summary().reason),
                Err(Error::GaveUp(error)) => {
                    (answer(StatusCode::BAD_GATEWAY), Some(error.reason()))
                }
                Err(error) => panic!("{error}"),
            };
            if let Some(mark) = reason.and_then(Mark::of).filter(|_| marks) {
                mark.set(response.headers_mut());
            }
            response
        }
    });
    (url.await, seen)
}

/// A service over the tower layer, which passes request and response on unchanged.
async fn front(below: String, marks: bool) -> (String, Seen) {
    let seen = Seen::default();
    let layer = RetryLayer::new(quick().deadline(DEADLINE).build().unwrap()).cross_layer();
    let arrived = seen.clone();
    let client = layer.layer(Hyper::builder(TokioExecutor::new()).build_http());
    let url = serve(move |request: Request<Incoming>| {
        let started = Instant::now();
        let caller = arrived.record(request.headers());
        let (client, below) = (client.clone(), below.clone());
        async move {
            let mut forwarded = Request::get(below).body(Empty::<Bytes>::new()).unwrap();
            *forwarded.headers_mut() = request.headers().clone();
            forwarded.headers_mut().remove("host");
            caller.pass_on(started.elapsed(), forwarded.headers_mut());
            let response = client.oneshot(forwarded).await.unwrap();
            let (mut head, body) = response.into_parts();
            if !marks {
                head.headers.remove("relent-mark");
                head.extensions.clear();
            }
            let body = body.collect().await.unwrap().to_bytes();
            mark_response(Response::from_parts(head, Full::new(body)))
        }
    });
    (url.await, seen)
}

/// The result of one call through all layers.
struct LayeredCall {
    status: u16,
    reason: Option<StopReason>,
    attempts: u32,
    mark: Option<Mark>,
    front: Seen,
    middle: Seen,
    leaf: Seen,
}

impl LayeredCall {
    /// Calls a front service over a middle service over this leaf.
    async fn through((leaf_url, leaf): (String, Seen), marks: bool) -> Self {
        let (middle_url, middle) = middle(leaf_url, marks).await;
        let (front_url, front) = front(middle_url, marks).await;
        let client = client(quick().deadline(DEADLINE));
        let response = client.get(front_url).send().await.unwrap();
        Self {
            status: response.status().as_u16(),
            reason: response.summary().reason,
            attempts: response.summary().attempts,
            mark: Mark::read(response.headers()),
            front,
            middle,
            leaf,
        }
    }

    fn counts(&self) -> [usize; 3] {
        [self.front.count(), self.middle.count(), self.leaf.count()]
    }
}

#[tokio::test]
async fn without_markers_retries_multiply_across_layers() {
    let call = LayeredCall::through(leaf(503, None).await, false).await;
    assert_eq!(call.counts(), [4, 16, 64]);
    assert_eq!((call.status, call.attempts), (503, 4));
    assert_eq!(call.reason, Some(StopReason::RetriesExhausted));
}

#[tokio::test]
async fn with_markers_only_the_layer_above_the_failure_retries() {
    let call = LayeredCall::through(leaf(503, None).await, true).await;
    assert_eq!(call.counts(), [1, 1, 4]);
    assert_eq!((call.status, call.attempts), (503, 1));
    assert_eq!(call.reason, Some(StopReason::DoNotRetry));
    assert_eq!(call.mark, Some(Mark::Exhausted));
}

#[tokio::test]
async fn an_overloaded_marker_stops_the_retries_of_every_layer() {
    let overloaded = leaf(503, Some(Mark::Overloaded)).await;
    let call = LayeredCall::through(overloaded, true).await;
    assert_eq!(call.counts(), [1, 1, 1]);
    assert_eq!(call.reason, Some(StopReason::Overloaded));
    assert_eq!(call.mark, Some(Mark::Overloaded));
}

#[tokio::test]
async fn an_unreachable_leaf_is_retried_by_one_layer_only() {
    let url = format!("http://{}/", scripted::unused_address());
    let call = LayeredCall::through((url, Seen::default()), true).await;
    assert_eq!(call.counts(), [1, 1, 0]);
    assert_eq!((call.status, call.mark), (502, Some(Mark::Exhausted)));
}

#[tokio::test]
async fn the_attempt_number_counts_within_one_hop() {
    let call = LayeredCall::through(leaf(503, None).await, false).await;
    assert_eq!(call.front.attempts(), [1, 2, 3, 4]);
    assert_eq!(call.middle.attempts(), [1, 2, 3, 4].repeat(4));
    assert_eq!(call.leaf.attempts(), [1, 2, 3, 4].repeat(16));
}

#[tokio::test]
async fn the_deadline_header_shrinks_per_hop_and_attempt() {
    let call = LayeredCall::through(leaf(503, None).await, true).await;
    let [front, middle, leaf] = [&call.front, &call.middle, &call.leaf].map(Seen::remaining);
    // Each hop takes some time, and the remaining time is rounded down.
    assert!(front[0] <= DEADLINE, "{front:?}");
    assert!(middle[0] < front[0], "{middle:?} of {front:?}");
    assert!(leaf[0] < middle[0], "{leaf:?} of {middle:?}");
    // A backoff of one millisecond is between two attempts.
    assert_eq!(leaf.len(), 4);
    assert!(leaf.is_sorted_by(|one, next| next < one), "{leaf:?}");
}
