//! Telemetry of attempts over HTTP: exact spans, events and metrics, and no credentials.

use std::future::{pending, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{Empty, Full};
use metrics_util::debugging::{DebuggingRecorder, Snapshotter};
use relent::policy::{HedgeConfig, PolicyBuilder};
use relent::{Backoff, Jitter, Policy, Summary, VirtualClock};
use relent_http::grpc::ServiceConfig;
use relent_http::{Override, RetryLayer};
use relent_reqwest::Client;
use relent_reqwest::default_builder;
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tracing::Level;
use tracing_subscriber::filter::LevelFilter;

use crate::collector::{self, Collector, Fields, Measured, measured};
use crate::scripted::{Server, Step, cut, response};

const WAIT: Duration = Duration::from_millis(1);

fn policy() -> PolicyBuilder {
    Policy::builder(Backoff::constant(WAIT))
        .jitter(Jitter::None)
        .max_retries(3)
}

fn layer(policy: PolicyBuilder) -> RetryLayer<VirtualClock> {
    RetryLayer::new(policy.build().unwrap()).clock(VirtualClock::new())
}

fn client(policy: PolicyBuilder) -> Client {
    // No proxy, even if the environment names one: the tests use this machine without TLS.
    let plain = || default_builder().no_proxy().tls_certs_only([]);
    Client::from_builder(plain, policy.build().unwrap()).unwrap()
}

type Answer = Result<Response<Full<Bytes>>, BoxError>;
type Sent = Request<relent_http::body::ReplayBody<Empty<Bytes>>>;

fn answer(status: u16, fields: &[(&'static str, &'static str)]) -> Answer {
    let mut response = Response::builder().status(status);
    for (name, value) in fields {
        response = response.header(*name, *value);
    }
    Ok(response.body(Full::default())?)
}

fn reset() -> Answer {
    Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into())
}

/// Responds to each call with the next result, and to later calls with the last one.
fn service(
    answers: impl Fn(usize) -> Answer + Clone,
) -> impl Service<Sent, Response = Response<Full<Bytes>>, Error = BoxError, Future: Unpin> + Clone {
    let calls = Arc::new(AtomicUsize::new(0));
    service_fn(move |_: Sent| {
        tracing::info!(target: "relent_test", "the service was called");
        ready(answers(calls.fetch_add(1, Ordering::Relaxed)))
    })
}

fn request(url: &str) -> Request<Empty<Bytes>> {
    Request::get(url).body(Empty::new()).unwrap()
}

fn fields(fields: &Fields) -> Vec<(&str, &str)> {
    fields.iter().map(|(k, v)| (*k, v.as_str())).collect()
}

/// Records the metrics of this thread.
fn recording() -> (Snapshotter, metrics::LocalRecorderGuard<'static>) {
    let recorder = Box::leak(Box::new(DebuggingRecorder::new()));
    let snapshotter = recorder.snapshotter();
    (snapshotter, metrics::set_default_local_recorder(recorder))
}

/// The metrics of three attempts, the first two of which failed ambiguously.
fn three_attempts(destination: &str) -> Measured {
    let named = |name: &str, own: &str| match destination {
        "" if own.is_empty() => name.to_owned(),
        "" => format!("{name}{{{own}}}"),
        _ if own.is_empty() => format!("{name}{{destination=\"{destination}\"}}"),
        _ => format!("{name}{{{own},destination=\"{destination}\"}}"),
    };
    let wait = WAIT.as_secs_f64();
    [
        (named("relent_attempts_total", ""), vec![3.0]),
        (named("relent_retries_total", ""), vec![2.0]),
        (
            named("relent_failures_total", "kind=\"ambiguous\""),
            vec![2.0],
        ),
        (
            named("relent_wait_seconds", "hint=\"none\""),
            vec![wait, wait],
        ),
    ]
    .into()
}

#[tokio::test]
async fn each_layer_attempt_is_a_span_by_otel_conventions() {
    let (collector, _guard) = Collector::start();
    let (snapshotter, _recording) = recording();
    let service = service(|call| match call {
        0 => answer(503, &[]),
        1 => reset(),
        _ => answer(200, &[]),
    });
    let retried = layer(policy()).layer(service);
    let url = "http://service:8080/a/b?q=1";
    retried.oneshot(request(url)).await.unwrap();

    let spans: Vec<_> = collector
        .spans()
        .into_iter()
        .filter(|span| span.target == "relent_http")
        .collect();
    let common = [
        ("http.request.method", "GET"),
        ("otel.kind", "client"),
        ("otel.name", "GET"),
        ("server.address", "service"),
        ("server.port", "8080"),
        ("url.full", url),
    ];
    let expect: [&[_]; 3] = [
        &[
            ("error.type", "503"),
            ("http.response.status_code", "503"),
            ("otel.status_code", "ERROR"),
        ],
        &[
            ("error.type", "connection_reset"),
            ("http.request.resend_count", "1"),
            ("otel.status_code", "ERROR"),
        ],
        &[
            ("http.request.resend_count", "2"),
            ("http.response.status_code", "200"),
        ],
    ];
    assert_eq!(spans.len(), 3, "one for each attempt, none around them");
    for (span, own) in spans.iter().zip(expect) {
        let mut all = [&common, own].concat();
        all.sort_unstable();
        assert_eq!(fields(&span.fields), all);
        assert_eq!(
            (span.name, span.level),
            ("http.client.request", Level::INFO)
        );
        assert!(span.ended);
    }
    assert_eq!(measured(&snapshotter), three_attempts(""));

    // Events of the inner service are within the span of its attempt; the delays are between the spans.
    let events = collector.events();
    let seen: Vec<_> = events
        .iter()
        .map(|event| (event.fields["message"].as_str(), event.within.as_deref()))
        .collect();
    let called = ("the service was called", Some("http.client.request"));
    let expected = [
        called,
        ("retry in 1ms: status 503", None),
        called,
        ("retry in 1ms: connection reset", None),
        called,
    ];
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn each_client_attempt_is_a_span_by_otel_conventions() {
    let (collector, _guard) = Collector::start();
    let (snapshotter, _recording) = recording();
    let server = Server::script([
        Step::Answer(response(500, &[], b"")),
        Step::Answer(response(502, &[], b"")),
        Step::Answer(response(200, &[], b"done")),
    ]);
    let url = server.url("/path?color=blue");
    client(policy())
        .label("blue")
        .get(&url)
        .send()
        .await
        .unwrap();

    let spans = collector.spans();
    let told: Vec<_> = spans
        .iter()
        .map(|span| {
            let of = |field: &str| span.fields.get(field).map(String::as_str);
            (
                of("http.request.resend_count"),
                of("http.response.status_code"),
                of("error.type"),
                of("url.full"),
            )
        })
        .collect();
    let url = Some(url.as_str());
    assert_eq!(
        told,
        [
            (None, Some("500"), Some("500"), url),
            (Some("1"), Some("502"), Some("502"), url),
            (Some("2"), Some("200"), None, url),
        ]
    );
    assert!(spans.iter().all(|span| span.ended));
    assert_eq!(measured(&snapshotter), three_attempts("blue"));
}

#[tokio::test]
async fn each_attempt_of_a_hedged_request_is_a_span() {
    let (collector, _guard) = Collector::start();
    let silent = Step::Stall(Vec::new());
    let limit = Duration::from_millis(500);
    for (second, told) in [
        (
            Step::Answer(response(200, &[], b"done")),
            [(None, Some("cancelled")), (Some("200"), None)],
        ),
        (
            Step::Answer(response(500, &[], b"")),
            [(None, Some("timeout")), (Some("500"), Some("500"))],
        ),
    ] {
        let before = collector.spans().len();
        let server = Server::script([silent.clone(), second]);
        let hedge = HedgeConfig::after(limit / 20);
        let policy = policy().max_retries(1).attempt_timeout(limit);
        let client = client(policy.hedge(hedge));
        let _ = client.get(server.url("/")).send().await;
        let spans = &collector.spans()[before..];
        let of = |span: &collector::Reported, field| span.fields.get(field).cloned();
        let seen: Vec<_> = spans
            .iter()
            .map(|span| {
                (
                    of(span, "http.response.status_code"),
                    of(span, "error.type"),
                )
            })
            .collect();
        assert_eq!(
            seen,
            told.map(|(status, error)| (status.map(str::to_owned), error.map(str::to_owned)))
        );
        assert_eq!(of(&spans[0], "http.request.resend_count"), None);
        assert_eq!(of(&spans[1], "http.request.resend_count").unwrap(), "1");
        assert!(spans.iter().all(|span| span.ended));
    }
}

/// The span ends with the head; the event of the next delay reports the cut body.
#[tokio::test]
async fn each_attempt_of_a_download_is_a_span() {
    let (collector, _guard) = Collector::start();
    let server = Server::script([
        Step::Close(cut(200, &[], b"done", 2)),
        Step::Answer(response(200, &[], b"done")),
    ]);
    let url = server.url("/");
    let whole = client(policy()).get(&url).whole_body().send().await;
    assert_eq!(whole.unwrap().summary().attempts, 2);
    let counts: Vec<_> = collector
        .spans()
        .iter()
        .map(|span| span.fields.get("http.request.resend_count").cloned())
        .collect();
    assert_eq!(counts, [None, Some("1".to_owned())]);
    let line = "retry in 1ms: response cut short".to_owned();
    assert_eq!(collector.lines(), [(Level::INFO, line)]);
}

#[tokio::test]
async fn telemetry_never_contains_credentials() {
    const SECRET: &str = "hunter2";
    let (collector, _guard) = Collector::start();
    let (snapshotter, _recording) = recording();
    let server = Server::script([
        Step::Answer(response(401, &[("www-authenticate", SECRET)], SECRET)),
        Step::Answer(response(503, &[("x-secret", SECRET)], SECRET)),
    ]);
    let address = server.url(&format!("/path?access_token={SECRET}&color=blue"));
    let address = address.replace("http://", &format!("http://{SECRET}:{SECRET}@"));
    let client = client(policy());
    for _ in 0..2 {
        let request = client.post(&address).header("x-api-key", SECRET);
        let answered = request.bearer_auth(SECRET).body(SECRET).send().await;
        answered.unwrap();
    }
    let failing = service_fn(|_: Sent| {
        let error: BoxError = format!("no route to http://{SECRET}@host/").into();
        ready(Err::<Response<Full<Bytes>>, _>(error))
    });
    let failed = layer(policy()).layer(failing).oneshot(request(&address));
    failed.await.unwrap_err();

    // Events of other crates, such as hyper, are not checked.
    let told = format!("{:?} {:?}", collector.spans(), own(&collector));
    assert!(told.contains("color=blue") && told.contains("REDACTED"));
    assert!(!told.contains(SECRET), "{told}");
    assert!(!format!("{:?}", measured(&snapshotter)).contains(SECRET));
}

fn own(collector: &Collector) -> Vec<collector::Reported> {
    let events = collector.events().into_iter();
    events
        .filter(|event| event.target.starts_with("relent"))
        .collect()
}

#[tokio::test]
async fn the_span_of_a_cut_off_attempt_has_the_error_timeout() {
    let (collector, _guard) = Collector::start();
    let policy = policy().max_retries(0).attempt_timeout(WAIT);
    let never = service_fn(|_: Sent| pending::<Answer>());
    let retried = layer(policy).layer(never);
    let result = retried.oneshot(request("https://host/")).await;
    result.unwrap_err();
    let span = &collector.spans()[0].fields;
    assert_eq!(span["error.type"], "timeout");
    assert_eq!(span["server.port"], "443");
    assert!(!span.contains_key("http.response.status_code"));
}

#[tokio::test]
async fn the_span_of_a_dropped_attempt_is_cancelled() {
    let (collector, _guard) = Collector::start();
    let never = service_fn(|_: Sent| pending::<Answer>());
    let mut call = Box::pin(layer(policy()).layer(never).oneshot(request("http://h/")));
    let mut context = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut context).is_pending());
    assert!(!collector.spans()[0].ended);
    drop(call);
    let span = &collector.spans()[0];
    assert!(span.ended);
    assert_eq!(span.fields["error.type"], "cancelled");
    assert_eq!(span.fields["otel.status_code"], "ERROR");
}

/// An unknown method can be any text, so it must not name a span.
#[tokio::test]
async fn the_span_of_an_unknown_method_is_named_other() {
    let (collector, _guard) = Collector::start();
    let mut purge = request("http://host/");
    *purge.method_mut() = http::Method::from_bytes(b"PURGE").unwrap();
    let retried = layer(policy()).layer(service(|_| answer(200, &[])));
    retried.oneshot(purge).await.unwrap();
    let span = &collector.spans()[0].fields;
    assert_eq!(span["http.request.method"], "_OTHER");
    assert_eq!(span["http.request.method_original"], "PURGE");
    assert_eq!(span["otel.name"], "HTTP");
}

#[tokio::test]
async fn a_span_takes_a_missing_host_from_the_host_header() {
    let (collector, _guard) = Collector::start();
    let mut get = request("/path");
    get.headers_mut()
        .insert("host", "user:pass@service:81".parse().unwrap());
    let retried = layer(policy()).layer(service(|_| answer(200, &[])));
    retried.oneshot(get).await.unwrap();
    let span = &collector.spans()[0].fields;
    assert_eq!(span["server.address"], "service");
    assert_eq!(span["server.port"], "81");
    assert_eq!(span["url.full"], "//REDACTED:REDACTED@service:81/path");
}

/// The gRPC status is in a field or in the trailers; the HTTP status is 200.
#[tokio::test]
async fn the_span_of_a_grpc_call_has_its_status() {
    let (collector, _guard) = Collector::start();
    let service = service(|call| {
        let status = if call == 0 { "14" } else { "0" };
        answer(
            200,
            &[
                ("content-type", "application/grpc"),
                ("grpc-status", status),
            ],
        )
    });
    let methods = ServiceConfig::default().repeatable(["test.Echo/Get"]);
    let retried = layer(policy()).traced().grpc(methods).layer(service);
    let response = retried
        .oneshot(request("http://service/test.Echo/Get"))
        .await
        .unwrap();
    let errors: Vec<_> = collector
        .spans()
        .iter()
        .map(|span| span.fields.get("error.type").cloned())
        .collect();
    assert_eq!(errors, [Some("unavailable".to_owned()), None]);
    let summary: &Summary = response.extensions().get().unwrap();
    assert_eq!(summary.trace.as_ref().unwrap().entries().len(), 2);
}

/// A subscriber gets no events below its level, and none at `OFF`.
#[tokio::test]
async fn a_subscriber_gets_no_events_below_its_level() {
    for (level, lines) in [(LevelFilter::OFF, 0), (LevelFilter::WARN, 1)] {
        let (collector, _guard) = Collector::start_at(level);
        let retried = layer(policy()).layer(service(|_| answer(503, &[])));
        retried.oneshot(request("http://host/")).await.unwrap();
        assert_eq!(collector.lines().len(), lines);
        assert!(collector.spans().is_empty());
    }
}

/// Every result has the attempt summary, whether it is a success or an error.
#[tokio::test]
async fn every_result_contains_the_trace() {
    let attempts = |summary: &Summary| summary.trace.as_ref().unwrap().entries().len();
    let once = || policy().max_retries(1);

    // The client.
    let server = Server::script([Step::Answer(response(503, &[], b""))]);
    let traced = client(once()).traced();
    let response = traced.get(server.url("/")).send().await.unwrap();
    assert_eq!(attempts(response.summary()), 2);
    let status = response.error_for_status().unwrap_err();
    assert_eq!(attempts(status.summary().unwrap()), 2);
    let server = Server::script([Step::Reset(Vec::new())]);
    let error = traced.get(server.url("/")).send().await.unwrap_err();
    assert_eq!(attempts(error.summary().unwrap()), 2);

    // The layer.
    let traced = layer(once()).traced();
    let answered = traced.layer(service(|_| answer(503, &[])));
    let response = answered.oneshot(request("http://h/")).await.unwrap();
    assert_eq!(attempts(response.extensions().get().unwrap()), 2);
    let succeeded = traced.layer(service(|_| answer(200, &[])));
    let response = succeeded.oneshot(request("http://h/")).await.unwrap();
    assert_eq!(attempts(response.extensions().get().unwrap()), 1);
    let failed = traced.layer(service(|_| reset()));
    let error = failed.oneshot(request("http://h/")).await.unwrap_err();
    assert_eq!(attempts(error.summary()), 2);

    // gRPC, whose errors are responses, too.
    let grpc = traced.grpc(ServiceConfig::default());
    let again = || {
        let mut request = request("http://h/test.Echo/Get");
        let overrides = Override::default().repeatable(true);
        request.extensions_mut().insert(overrides);
        request
    };
    let fields: &[_] = &[("content-type", "application/grpc"), ("grpc-status", "14")];
    let answered = grpc.layer(service(move |_| answer(200, fields)));
    let response = answered.oneshot(again()).await.unwrap();
    assert_eq!(attempts(response.extensions().get().unwrap()), 2);
    let failed = grpc.layer(service(|_| reset()));
    let error = failed.oneshot(again()).await.unwrap_err();
    assert_eq!(attempts(error.summary()), 2);
}

/// The names are an interface: queries and alerts use them.
#[tokio::test]
async fn the_observability_page_lists_every_field() {
    let page = include_str!("../../../../docs/observability.md");
    let (collector, _guard) = Collector::start();
    let service = service(|call| match call {
        0 => answer(503, &[("retry-after-ms", "5")]),
        _ => reset(),
    });
    let mut purge = request("http://host/");
    *purge.method_mut() = http::Method::from_bytes(b"PURGE").unwrap();
    let overrides = Override::default().repeatable(true);
    purge.extensions_mut().insert(overrides);
    let result = layer(policy()).layer(service).oneshot(purge).await;
    result.unwrap_err();
    let told = collector.spans().into_iter().chain(own(&collector));
    let mut names: Vec<_> = told
        .filter(|told| told.target != "relent_test")
        .flat_map(|told| told.fields.into_keys())
        .filter(|name| *name != "message")
        .collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 19, "{names:?}");
    for name in names {
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
}

/// Without a subscriber, the server gets the same request.
#[tokio::test]
async fn a_subscriber_does_not_change_the_request() {
    let server = Server::script([Step::Answer(response(200, &[], b""))]);
    let client = client(policy());
    let heads = |server: &Server| -> Vec<String> {
        let seen = server.seen();
        seen.into_iter().map(|request| request.head).collect()
    };
    client.get(server.url("/")).send().await.unwrap();
    let (_collector, _guard) = Collector::start();
    client.get(server.url("/")).send().await.unwrap();
    let heads = heads(&server);
    assert_eq!(heads[0], heads[1]);
}
