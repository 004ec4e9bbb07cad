//! A call of an HTTP service that responds immediately: alone, behind Relent's layer, and behind tower's with the
//! policy of its documentation, which clones the request. The service is built once.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::Empty;
use relent::{Backoff, Jitter, Policy};
use relent_http::RetryLayer;
use tower::retry::{Policy as RetryPolicy, Retry};
use tower::{Layer, Service};

use crate::work::poll_once;
use crate::{Row, Scenario};

/// Its rows.
pub const ROWS: &[Row] = &[
    Row::new(Scenario::HttpSuccess, "bare", |n| calls(n, AtOnce, get)),
    Row::new(Scenario::HttpSuccess, "relent", |n| {
        calls(n, relent(plain()), get);
    }),
    Row::new(Scenario::HttpSuccess, "relent, budget and deadline", |n| {
        calls(n, relent(full()), get);
    }),
    Row::new(Scenario::HttpSuccess, "tower", |n| calls(n, tower(), get)),
    Row::new(Scenario::HttpSuccessFields, "bare", |n| {
        calls(n, AtOnce, with_fields);
    }),
    Row::new(Scenario::HttpSuccessFields, "relent", |n| {
        calls(n, relent(plain()), with_fields);
    }),
    Row::new(Scenario::HttpSuccessFields, "tower", |n| {
        calls(n, tower(), with_fields);
    }),
];

type Body = Empty<Bytes>;

/// Responds immediately. Not inlined, as a real client would not be.
#[derive(Clone, Debug)]
struct AtOnce;

impl<B> Service<Request<B>> for AtOnce {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    #[inline(never)]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        black_box(&request);
        ready(Ok(Response::new(Empty::new())))
    }
}

fn plain() -> Policy {
    Policy::builder(Backoff::exponential(Duration::from_millis(10)))
        .jitter(Jitter::Full)
        .max_retries(10)
        .build_const()
}

fn full() -> Policy {
    let policy = Policy::STANDARD.clone().into_builder();
    policy.deadline(Duration::from_secs(5)).build_const()
}

fn relent(policy: Policy) -> impl Service<Request<Body>> {
    RetryLayer::new(Arc::new(policy)).layer(AtOnce)
}

/// The policy of the documentation of [`RetryPolicy`].
#[derive(Clone)]
struct Attempts(usize);

impl RetryPolicy<Request<Body>, Response<Body>, Infallible> for Attempts {
    type Future = Ready<()>;

    fn retry(
        &mut self,
        _: &mut Request<Body>,
        result: &mut Result<Response<Body>, Infallible>,
    ) -> Option<Ready<()>> {
        match result {
            Ok(response) if response.status().as_u16() < 500 => None,
            _ if self.0 > 0 => {
                self.0 -= 1;
                Some(ready(()))
            }
            _ => None,
        }
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        Some(request.clone())
    }
}

fn tower() -> impl Service<Request<Body>> {
    Retry::new(Attempts(10), AtOnce)
}

fn get(uri: &Uri) -> Request<Body> {
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = uri.clone();
    request
}

fn with_fields(uri: &Uri) -> Request<Body> {
    let mut request = get(uri);
    for (name, value) in [
        (header::ACCEPT, "application/json"),
        (header::AUTHORIZATION, "Bearer 0123456789"),
        (header::USER_AGENT, "relent-benches"),
    ] {
        request
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    request
}

#[inline(always)]
fn calls(n: u64, mut service: impl Service<Request<Body>>, request: fn(&Uri) -> Request<Body>) {
    let uri = Uri::from_static("http://service/path");
    for _ in 0..n {
        let ready = service.poll_ready(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(Ok(())) = ready {
            let _ = black_box(poll_once(service.call(request(&uri)))).is_ok();
        }
    }
}
