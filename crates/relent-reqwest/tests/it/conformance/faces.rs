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
use relent::{Destination, Kind, StopReason, Summary};
use relent_http::RetryLayer;
use relent_reqwest::{Client, RetryMiddleware, recipe};
use reqwest_middleware::{ClientBuilder, Middleware, Next};
use tower::{Layer, ServiceExt};

use super::cases::{Case, Content, SEED};

use crate::scripted::Server;

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Face {
    Layer,
    Client,
    WholeBody,
    Middleware,
}

pub(crate) const FACES: [Face; 4] = [Face::Layer, Face::Client, Face::WholeBody, Face::Middleware];
/// Implementations that return a response before its body is read.
pub(crate) const BY_HEAD: [Face; 3] = [Face::Layer, Face::Client, Face::Middleware];
/// Implementations that can hedge.
pub(crate) const HEDGED: [Face; 2] = [Face::Layer, Face::Client];

/// Of an attempt: its failure, the delay after it, and the reason to stop, if it was the last.
type Judged = (Option<(Kind, Cause)>, Option<Duration>, Option<StopReason>);
/// Of a request: method, stated attempt number, stated length, and body.
type Arrived = (String, Option<String>, Option<String>, Vec<u8>);

/// The observable results of a call.
#[derive(PartialEq, Debug)]
pub(crate) struct Told {
    status: Option<u16>,
    attempts: u32,
    pub(crate) reason: Option<StopReason>,
    trace: Vec<Judged>,
    pub(crate) requests: Vec<Arrived>,
}

/// A call to be made: its server, and its counter of attempts.
pub(crate) struct Stage<'c> {
    case: &'c Case,
    server: Server,
    pub(crate) there: Arc<Destination>,
    begun: Arc<AtomicU32>,
}

pub(crate) fn plain() -> reqwest::ClientBuilder {
    recipe().no_proxy().tls_certs_only([])
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

impl<'c> Stage<'c> {
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
    pub(crate) fn play(&self, face: Face) -> BoxFuture<'_, Told> {
        let content = self.case.content;
        match (face, content) {
            (Face::Layer, Content::None) => self.layered(Full::default()).boxed(),
            (Face::Layer, Content::Known) => self.layered(Full::from(content.bytes())).boxed(),
            (Face::Layer, _) => self.layered(stream_of(content)).boxed(),
            (Face::Client, _) => self.by_client(false).boxed(),
            (Face::WholeBody, _) => self.by_client(true).boxed(),
            (Face::Middleware, _) => self.by_middleware().boxed(),
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

    async fn layered<B>(&self, body: B) -> Told
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

    async fn by_client(&self, whole: bool) -> Told {
        let content = self.case.content;
        let count = self.count();
        let client = Client::made_by(plain, self.case.policy())
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

    async fn by_middleware(&self) -> Told {
        let content = self.case.content;
        let middleware = RetryMiddleware::new(self.case.policy())
            .destination(self.there.clone())
            .random(|| SessionRandom::with_seed(SEED))
            .redirects_are_watched()
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

    fn told(&self, status: Option<u16>, summary: &Summary) -> Told {
        let trace = summary.trace.as_ref().unwrap();
        let requests = self.server.seen().into_iter().map(|seen| {
            let header = |name| seen.header(name).map(str::to_owned);
            let method = seen.method().to_owned();
            let (attempt, length) = (header("relent-attempt"), header("content-length"));
            (method, attempt, length, seen.body.clone())
        });
        Told {
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
