//! One script of answers, through every face that attempts: the tower layer over hyper's client, the
//! client, its attempts that include the body, and the middleware. The server has to see the same
//! requests, and the traces have to have the same decisions for the same reasons.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "tests may panic"
)]

mod scripted;

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{Extensions, Method, Request};
use http_body::{Body, Frame};
use http_body_util::{Full, StreamBody};
use hyper_util::client::legacy::Client as Hyper;
use hyper_util::rt::TokioExecutor;
use relent::driver::Decision;
use relent::failure::{Cause, Network};
use relent::policy::PolicyBuilder;
use relent::{Backoff, GaveUp, Jitter, Kind, Policy, StopReason, Summary};
use relent_http::RetryLayer;
use relent_reqwest::network::classify_error;
use relent_reqwest::{Client, RetryMiddleware, recipe};
use reqwest_middleware::ClientBuilder;
use scripted::{Server, Step, response};
use tower::{Layer, ServiceExt};

const MILLI: Duration = Duration::from_millis(1);
/// More than is kept of a body that streams.
const LONG: usize = 100_000;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Face {
    Layer,
    Client,
    WholeBody,
    Middleware,
}

const FACES: [Face; 4] = [Face::Layer, Face::Client, Face::WholeBody, Face::Middleware];

/// What is sent.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Content {
    None,
    Known,
    /// A stream that is short enough to be kept, and one that is not.
    Short,
    Long,
}

impl Content {
    const fn length(self) -> usize {
        match self {
            Self::None => 0,
            Self::Known => LONG,
            Self::Short => 1000,
            Self::Long => LONG,
        }
    }

    fn bytes(self) -> Bytes {
        scripted::pattern(3, self.length()).into()
    }

    fn stream(self) -> impl Body<Data = Bytes, Error = Infallible> + Send + Unpin + use<> {
        let bytes = self.bytes();
        let pieces: Vec<_> = (0..bytes.len())
            .step_by(500)
            .map(|start| bytes.slice(start..bytes.len().min(start + 500)))
            .map(|piece| Ok(Frame::data(piece)))
            .collect();
        StreamBody::new(stream::iter(pieces))
    }
}

/// A request, its policy, and what the server does.
struct Case {
    name: &'static str,
    method: Method,
    content: Content,
    policy: PolicyBuilder,
    steps: Vec<Step>,
    /// The requests that arrive, and why it ends.
    requests: usize,
    reason: Option<StopReason>,
}

fn policy() -> PolicyBuilder {
    Policy::builder(Backoff::constant(MILLI))
        .jitter(Jitter::None)
        .max_retries(2)
}

type Judged = (Option<(Kind, Cause)>, Option<StopReason>);
type Arrived = (String, Option<String>, Option<String>, Vec<u8>);

/// What can be told of a call.
#[derive(PartialEq, Debug)]
struct Told {
    status: Option<u16>,
    attempts: u32,
    reason: Option<StopReason>,
    /// Of each attempt: how it failed, and why it was the last, if it was.
    trace: Vec<Judged>,
    /// Of each request: method, which attempt it says it is, length and body.
    requests: Vec<Arrived>,
}

impl Told {
    fn of(status: Option<u16>, summary: &Summary, server: &Server) -> Self {
        let trace = summary.trace.as_ref().unwrap();
        let requests = server.seen().into_iter().map(|seen| {
            let header = |name| seen.header(name).map(str::to_owned);
            let method = seen.method().to_owned();
            let (attempt, length) = (header("relent-attempt"), header("content-length"));
            (method, attempt, length, seen.body.clone())
        });
        Self {
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
                    (failed, stop)
                })
                .collect(),
            requests: requests.collect(),
        }
    }
}

fn request<B>(case: &Case, server: &Server, body: B) -> Request<B> {
    let mut request = Request::builder()
        .method(case.method.clone())
        .uri(server.url("/"));
    if case.content != Content::None {
        request = request.header("content-length", case.content.length());
    }
    request.body(body).unwrap()
}

async fn layered<B>(case: &Case, server: &Server, body: B) -> Told
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<relent_http::BoxError>,
{
    let http = Hyper::builder(TokioExecutor::new()).build_http();
    let layer = RetryLayer::new(case.policy.clone().build().unwrap())
        .traced()
        .cross_layer();
    match layer.layer(http).oneshot(request(case, server, body)).await {
        Ok(response) => {
            let summary = response.extensions().get::<Summary>().unwrap();
            Told::of(Some(response.status().as_u16()), summary, server)
        }
        Err(gave_up) => Told::of(None, gave_up.summary(), server),
    }
}

fn plain() -> reqwest::ClientBuilder {
    recipe().no_proxy().tls_certs_only([])
}

async fn by_client(case: &Case, server: &Server, whole: bool) -> Told {
    let policy = case.policy.clone().build().unwrap();
    let client = Client::made_by(plain, policy)
        .unwrap()
        .traced()
        .cross_layer();
    let mut request = client.request(case.method.clone(), server.url("/"));
    if case.content != Content::None {
        request = request.header("content-length", case.content.length());
    }
    request = match case.content {
        Content::None => request,
        Content::Known => request.body(case.content.bytes()),
        _ => request.body(reqwest::Body::wrap(case.content.stream())),
    };
    if whole {
        request = request.whole_body();
    }
    match request.send().await {
        Ok(response) => Told::of(Some(response.status().as_u16()), response.summary(), server),
        Err(error) => Told::of(None, error.summary().unwrap(), server),
    }
}

async fn by_middleware(case: &Case, server: &Server) -> Told {
    let policy = case.policy.clone().build().unwrap();
    let middleware = RetryMiddleware::new(policy)
        .redirects_are_watched()
        .traced()
        .cross_layer();
    let client = ClientBuilder::new(plain().build().unwrap())
        .with(middleware)
        .build();
    let body = match case.content {
        Content::None => reqwest::Body::default(),
        Content::Known => case.content.bytes().into(),
        _ => reqwest::Body::wrap(case.content.stream()),
    };
    let mut sent = reqwest::Request::try_from(request(case, server, body)).unwrap();
    if case.content == Content::None {
        *sent.body_mut() = None;
    }
    let mut extensions = Extensions::new();
    let result = client.execute_with_extensions(sent, &mut extensions).await;
    let status = result.ok().map(|response| response.status().as_u16());
    Told::of(status, extensions.get().unwrap(), server)
}

async fn told_by(face: Face, case: &Case) -> Told {
    let server = Server::script(case.steps.clone());
    match face {
        Face::Layer => match case.content {
            Content::None => layered(case, &server, Full::default()).await,
            Content::Known => layered(case, &server, Full::from(case.content.bytes())).await,
            _ => layered(case, &server, case.content.stream()).await,
        },
        Face::Client => by_client(case, &server, false).await,
        Face::WholeBody => by_client(case, &server, true).await,
        Face::Middleware => by_middleware(case, &server).await,
    }
}

fn answer(status: u16, fields: &[(&str, &str)]) -> Step {
    Step::Answer(response(status, fields, "answer"))
}

/// A `GET` with this script.
fn get(
    name: &'static str,
    steps: impl IntoIterator<Item = Step>,
    requests: usize,
    reason: Option<StopReason>,
) -> Case {
    Case {
        name,
        method: Method::GET,
        content: Content::None,
        policy: policy(),
        steps: steps.into_iter().collect(),
        requests,
        reason,
    }
}

fn sending(method: Method, content: Content, case: Case) -> Case {
    Case {
        method,
        content,
        ..case
    }
}

fn cases() -> Vec<Case> {
    let (post, put) = (Method::POST, Method::PUT);
    let ok = || answer(200, &[]);
    let reset = || Step::Reset(Vec::new());
    let late = [("retry-after", "3600")];
    let soon = [("retry-after-ms", "3")];
    let marked = |mark| [("relent-mark", mark)];
    let limited = |case: Case| Case {
        policy: policy().attempt_timeout(MILLI * 300),
        ..case
    };
    let once = |case: Case| Case {
        policy: policy().max_retries(0),
        ..case
    };
    let accepted = |case: Case| Case {
        policy: policy().retry_on([202.into()]),
        ..case
    };
    vec![
        get("a success", [ok()], 1, None),
        get(
            "a status",
            [answer(503, &[]), answer(502, &[]), ok()],
            3,
            None,
        ),
        get(
            "a status without end",
            [answer(500, &[])],
            3,
            Some(StopReason::RetriesExhausted),
        ),
        get(
            "a permanent status",
            [answer(404, &[])],
            1,
            Some(StopReason::Permanent),
        ),
        get("a hint", [answer(429, &soon), ok()], 2, None),
        get(
            "a hint that is too far away",
            [answer(503, &late)],
            1,
            Some(StopReason::RetryLater),
        ),
        get(
            "exhausted below",
            [answer(503, &marked("exhausted"))],
            1,
            Some(StopReason::DoNotRetry),
        ),
        get(
            "overloaded below",
            [answer(503, &marked("overloaded"))],
            1,
            Some(StopReason::Overloaded),
        ),
        get("a reset", [reset(), ok()], 2, None),
        limited(get("a silence", [Step::Stall(Vec::new()), ok()], 2, None)),
        accepted(get(
            "a status that the policy lists",
            [answer(202, &[]), ok()],
            2,
            None,
        )),
        sending(
            post.clone(),
            Content::Known,
            get(
                "a POST that may have been processed",
                [answer(500, &[])],
                1,
                Some(StopReason::NotRepeatable),
            ),
        ),
        sending(
            post.clone(),
            Content::Known,
            get(
                "a POST that was reset",
                [reset()],
                1,
                Some(StopReason::NotRepeatable),
            ),
        ),
        sending(
            post.clone(),
            Content::Known,
            get(
                "a POST that was not processed",
                [answer(429, &soon), ok()],
                2,
                None,
            ),
        ),
        sending(
            put.clone(),
            Content::Short,
            get("a stream that was kept", [answer(503, &[]), ok()], 2, None),
        ),
        sending(
            put.clone(),
            Content::Long,
            get(
                "a stream that was too long to be kept",
                [answer(503, &[])],
                1,
                Some(StopReason::NotReplayable),
            ),
        ),
        // The policy's own reason stands.
        once(sending(
            put,
            Content::Long,
            get(
                "such a stream and no retry",
                [answer(503, &[])],
                1,
                Some(StopReason::RetriesExhausted),
            ),
        )),
        sending(
            post,
            Content::Long,
            get(
                "such a stream and a request that may not run twice",
                [answer(500, &[])],
                1,
                Some(StopReason::NotRepeatable),
            ),
        ),
    ]
}

#[tokio::test]
async fn every_face_attempts_alike() {
    for case in cases() {
        let expected = told_by(FACES[0], &case).await;
        assert_eq!(expected.reason, case.reason, "{}", case.name);
        assert_eq!(expected.requests.len(), case.requests, "{}", case.name);
        for face in &FACES[1..] {
            let told = told_by(*face, &case).await;
            assert_eq!(told, expected, "{} by {face:?}", case.name);
        }
    }
}

/// The faces in pairs, one above the other in one process.
#[tokio::test]
async fn what_one_face_has_given_up_no_other_repeats() {
    let policy = policy().build().unwrap();
    let client = Client::made_by(plain, policy.clone()).unwrap();
    for steps in [answer(503, &[]), Step::Reset(Vec::new())] {
        // A layer above the client.
        let server = Server::script([steps.clone()]);
        let (inner, url) = (client.clone(), server.url("/"));
        let layer = RetryLayer::new(policy.clone()).classify_errors(classify_error);
        let outer = layer.layer(tower::service_fn(move |_: Request<_>| {
            let sent = inner.get(&url).send();
            async move {
                sent.await
                    .map(|response| http::Response::from(response.into_inner()))
            }
        }));
        let get = Request::get("http://localhost/").body(Full::<Bytes>::default());
        let ended = match outer.oneshot(get.unwrap()).await {
            Ok(response) => response.extensions().get::<Summary>().unwrap().reason,
            Err(gave_up) => Some(gave_up.reason()),
        };
        assert_eq!((server.count(), ended), (3, Some(StopReason::DoNotRetry)));

        // A middleware above a middleware.
        let server = Server::script([steps.clone()]);
        let retries = || RetryMiddleware::new(policy.clone()).redirects_are_watched();
        let stack = ClientBuilder::new(plain().build().unwrap())
            .with(retries())
            .with(retries())
            .build();
        let get = stack.get(server.url("/")).build().unwrap();
        let mut extensions = Extensions::new();
        let _ = stack.execute_with_extensions(get, &mut extensions).await;
        let summary = extensions.get::<Summary>().unwrap();
        let ended = (server.count(), summary.attempts, summary.reason);
        assert_eq!(ended, (3, 1, Some(StopReason::DoNotRetry)));
    }
}

/// What an error says that another layer has given up: its cause, and that it was repeated already.
#[tokio::test]
async fn an_error_that_was_given_up_keeps_its_cause() {
    let client = Client::made_by(plain, policy().build().unwrap()).unwrap();
    let nobody = format!("http://{}/", scripted::nobody());
    let error = client.get(nobody).send().await.unwrap_err();
    let failure = classify_error(&error);
    assert_eq!(failure.cause, Cause::Network(Network::Connect));
    assert_eq!(failure.hint.advice, relent::failure::Advice::DoNotRetry);
    let gave_up = match error {
        relent_reqwest::Error::GaveUp(gave_up) => gave_up,
        error => panic!("{error}"),
    };
    let _: &GaveUp<_> = &gave_up;
    assert_eq!(gave_up.reason(), StopReason::RetriesExhausted);
}
