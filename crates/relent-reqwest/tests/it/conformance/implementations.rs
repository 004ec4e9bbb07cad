//! All implementations that retry over HTTP in this process, and the results that are compared.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, stream};
use http::{Extensions, Request};
use http_body::{Body, Frame};
use http_body_util::{Full, StreamBody};
use hyper_util::client::legacy::Client as Hyper;
use hyper_util::rt::TokioExecutor;
use relent::driver::Decision;
use relent::failure::Cause;
use relent::random::SessionRandom;
use relent::{Destination, FailureKind, StopReason, Summary};
use relent_http::RetryLayer;
use relent_reqwest::{Client, RetryMiddleware, default_builder};
use reqwest_middleware::{ClientBuilder, Middleware, Next};
use tower::{Layer, ServiceExt};

use super::cases::{Case, Content, SEED};

use crate::scripted::Server;

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Implementation {
    Layer,
    Client,
    WholeBody,
    Middleware,
}

pub(crate) const IMPLEMENTATIONS: [Implementation; 4] = [
    Implementation::Layer,
    Implementation::Client,
    Implementation::WholeBody,
    Implementation::Middleware,
];
/// Implementations that return a response before its body is read.
pub(crate) const BY_HEAD: [Implementation; 3] = [
    Implementation::Layer,
    Implementation::Client,
    Implementation::Middleware,
];
/// Implementations that can hedge.
pub(crate) const HEDGED: [Implementation; 2] = [Implementation::Layer, Implementation::Client];

/// Of an attempt: its failure, the delay after it, and the reason to stop, if it was the last.
type AttemptRecord = (
    Option<(FailureKind, Cause)>,
    Option<Duration>,
    Option<StopReason>,
);
/// Of a request: method, stated attempt number, stated length, and body.
type RequestRecord = (String, Option<String>, Option<String>, Vec<u8>);

/// The observable results of a call.
#[derive(PartialEq, Debug)]
pub(crate) struct CallRecord {
    status: Option<u16>,
    attempts: u32,
    pub(crate) reason: Option<StopReason>,
    trace: Vec<AttemptRecord>,
    pub(crate) requests: Vec<RequestRecord>,
}

/// A call to be made: its server, and its counter of attempts.
pub(crate) struct TestCall<'c> {
    case: &'c Case,
    server: Server,
    pub(crate) there: Arc<Destination>,
    begun: Arc<AtomicU32>,
}

pub(crate) fn plain() -> reqwest::ClientBuilder {
    default_builder().no_proxy().tls_certs_only([])
}

fn stream_of(content: Content) -> impl Body<Data = Bytes, Error = Infallible> + Send + Unpin {
    let bytes = Bytes::from(content.bytes());
    let pieces: Vec<_> = (0..bytes.len())
        .step_by(500)
        .map(|start| bytes.slice(start..bytes.len().min(start + 500)))
        .map(|piece| Ok(Frame::data(piece)))
        .collect();
    StreamBody::new(stream::iter(pieces))
}

/// Counts the attempts of a middleware.
struct Counting(Arc<AtomicU32>);

#[async_trait]
impl Middleware for Counting {
    async fn handle(
        &self,
        request: reqwest::Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<reqwest::Response> {
        self.0.fetch_add(1, Ordering::Relaxed);
        next.run(request, extensions).await
    }
}

impl<'c> TestCall<'c> {
    pub(crate) fn new(case: &'c Case) -> Self {
        Self {
            case,
            server: Server::script(case.steps.clone()),
            there: case.before.destination(&case.policy()),
            begun: Arc::default(),
        }
    }

    /// Another call to the same destination, whose server restarts its script.
    pub(crate) fn again(&self) -> Self {
        Self {
            there: self.there.clone(),
            ..Self::new(self.case)
        }
    }

    /// The number of attempts that have started.
    pub(crate) fn begun(&self) -> u32 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Makes the call.
    pub(crate) fn make_call(&self, implementation: Implementation) -> BoxFuture<'_, CallRecord> {
        let content = self.case.content;
        match (implementation, content) {
            (Implementation::Layer, Content::None) => self.layered(Full::default()).boxed(),
            (Implementation::Layer, Content::Known) => {
                self.layered(Full::from(content.bytes())).boxed()
            }
            (Implementation::Layer, _) => self.layered(stream_of(content)).boxed(),
            (Implementation::Client, _) => self.by_client(false).boxed(),
            (Implementation::WholeBody, _) => self.by_client(true).boxed(),
            (Implementation::Middleware, _) => self.by_middleware().boxed(),
        }
    }

    fn count(&self) -> impl Fn() + Clone + Send + Sync + 'static {
        let begun = self.begun.clone();
        move || {
            begun.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn request<B>(&self, body: B) -> Request<B> {
        let mut request = Request::builder()
            .method(self.case.method.clone())
            .uri(self.server.url("/"));
        if self.case.content != Content::None {
            request = request.header("content-length", self.case.content.length());
        }
        request.body(body).unwrap()
    }

    async fn layered<B>(&self, body: B) -> CallRecord
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<relent_http::BoxError>,
    {
        let layer = RetryLayer::new(self.case.policy())
            .destination(self.there.clone())
            .random(|| SessionRandom::with_seed(SEED))
            .traced()
            .cross_layer();
        let count = self.count();
        let http = Hyper::builder(TokioExecutor::new()).build_http();
        let counted = http.map_request(move |request: Request<_>| {
            count();
            request
        });
        match layer.layer(counted).oneshot(self.request(body)).await {
            Ok(response) => {
                let summary = response.extensions().get::<Summary>().unwrap();
                self.told(Some(response.status().as_u16()), summary)
            }
            Err(gave_up) => self.told(None, gave_up.summary()),
        }
    }

    async fn by_client(&self, whole: bool) -> CallRecord {
        let content = self.case.content;
        let count = self.count();
        let client = Client::from_builder(plain, self.case.policy())
            .unwrap()
            .destination(self.there.clone())
            .random(|| SessionRandom::with_seed(SEED))
            .reroute(move |_, _| count())
            .traced()
            .cross_layer();
        let mut request = client.request(self.case.method.clone(), self.server.url("/"));
        if content != Content::None {
            request = request.header("content-length", content.length());
        }
        request = match content {
            Content::None => request,
            Content::Known => request.body(content.bytes()),
            _ => request.body(reqwest::Body::wrap(stream_of(content))),
        };
        if whole {
            request = request.whole_body();
        }
        match request.send().await {
            Ok(response) => self.told(Some(response.status().as_u16()), response.summary()),
            Err(error) => self.told(None, error.summary().unwrap()),
        }
    }

    async fn by_middleware(&self) -> CallRecord {
        let content = self.case.content;
        let middleware = RetryMiddleware::new(self.case.policy())
            .destination(self.there.clone())
            .random(|| SessionRandom::with_seed(SEED))
            .redirects_are_tracked()
            .traced()
            .cross_layer();
        let client = ClientBuilder::new(plain().build().unwrap())
            .with(middleware)
            .with(Counting(self.begun.clone()))
            .build();
        let body = match content {
            Content::None => reqwest::Body::default(),
            Content::Known => content.bytes().into(),
            _ => reqwest::Body::wrap(stream_of(content)),
        };
        let mut sent = reqwest::Request::try_from(self.request(body)).unwrap();
        if content == Content::None {
            *sent.body_mut() = None;
        }
        let mut extensions = Extensions::new();
        let result = client.execute_with_extensions(sent, &mut extensions).await;
        let status = result.ok().map(|response| response.status().as_u16());
        self.told(status, extensions.get().unwrap())
    }

    fn told(&self, status: Option<u16>, summary: &Summary) -> CallRecord {
        let trace = summary.trace.as_ref().unwrap();
        let requests = self.server.seen().into_iter().map(|seen| {
            let header = |name| seen.header(name).map(str::to_owned);
            let method = seen.method().to_owned();
            let (attempt, length) = (header("relent-attempt"), header("content-length"));
            (method, attempt, length, seen.body.clone())
        });
        CallRecord {
            status,
            attempts: summary.attempts,
            reason: summary.reason,
            trace: trace
                .entries()
                .map(|entry| {
                    let failed = entry.failure.map(|failure| (failure.kind, failure.cause));
                    let stop = match entry.decision {
                        Some(Decision::Stop(stop)) => Some(stop.reason),
                        Some(Decision::Retry { .. }) | None => None,
                    };
                    (failed, entry.wait(), stop)
                })
                .collect(),
            requests: requests.collect(),
        }
    }
}
