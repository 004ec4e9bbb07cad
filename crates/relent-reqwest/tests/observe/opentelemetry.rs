//! Attempts as OpenTelemetry exports them through tracing-opentelemetry, and the `traceparent` of each.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body_util::Empty;
use hyper_util::client::legacy::Client as Hyper;
use hyper_util::rt::TokioExecutor;
use opentelemetry::Value;
use opentelemetry::propagation::{Injector, TextMapPropagator};
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use relent::policy::HedgeConfig;
use relent::{Attempt, Backoff, Policy};
use relent_http::RetryLayer;
use relent_reqwest::{Client, default_builder};
use tower::{Layer, ServiceExt};
use tracing::subscriber::DefaultGuard;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::layer::SubscriberExt;

use crate::collector::ask_all_subscribers;
use crate::scripted::{Server, Step, response};

fn policy() -> Policy {
    let policy = Policy::builder(Backoff::constant(Duration::from_millis(1)));
    policy.max_retries(2).build().unwrap()
}

fn client(policy: Policy) -> Client {
    Client::from_builder(|| default_builder().no_proxy().tls_certs_only([]), policy).unwrap()
}

/// Exports spans in memory, on this thread until the guard is dropped.
fn exporting() -> (InMemorySpanExporter, SdkTracerProvider, DefaultGuard) {
    ask_all_subscribers();
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exporter.clone())
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let subscriber = tracing_subscriber::registry().with(layer);
    (
        exporter,
        provider,
        tracing::subscriber::set_default(subscriber),
    )
}

struct Fields<'h>(&'h mut HeaderMap);

impl Injector for Fields<'_> {
    fn set(&mut self, key: &str, value: String) {
        let name = HeaderName::from_bytes(key.as_bytes()).unwrap();
        self.0.insert(name, HeaderValue::try_from(value).unwrap());
    }
}

/// The hook shown in the documentation.
fn traceparent(_: &Attempt, headers: &mut HeaderMap) {
    let context = tracing::Span::current().context();
    TraceContextPropagator::new().inject_context(&context, &mut Fields(headers));
}

fn busy_twice() -> Server {
    Server::script([
        Step::Answer(response(503, &[], "")),
        Step::Answer(response(503, &[], "")),
        Step::Answer(response(200, &[], "")),
    ])
}

fn value<'s>(span: &'s SpanData, name: &str) -> Option<&'s Value> {
    let mut attributes = span.attributes.iter();
    let found = attributes.find(|attribute| attribute.key.as_str() == name);
    found.map(|attribute| &attribute.value)
}

/// Checks that numbers are exported as numbers, in spans and in events.
fn check(spans: &[SpanData], server: &Server) {
    let attempts: Vec<&SpanData> = spans
        .iter()
        .filter(|span| value(span, "http.request.method").is_some())
        .collect();
    assert_eq!(attempts.len(), 3);
    let port = i64::from(server.address.port());
    for (number, (span, status)) in (0..).zip(attempts.iter().zip([503, 503, 200])) {
        let number: i64 = number;
        assert_eq!(
            value(span, "http.response.status_code"),
            Some(&Value::I64(status))
        );
        assert_eq!(value(span, "server.port"), Some(&Value::I64(port)));
        let resent = (number > 0).then_some(Value::I64(number));
        assert_eq!(value(span, "http.request.resend_count"), resent.as_ref());
        let own = spans.iter().flat_map(|span| span.events.iter());
        for attribute in span
            .attributes
            .iter()
            .chain(own.flat_map(|event| &event.attributes))
        {
            if let Value::String(text) = &attribute.value {
                // The conventions require text here.
                let is_text = attribute.key.as_str() == "error.type";
                assert!(
                    is_text || text.as_str().parse::<f64>().is_err(),
                    "{attribute:?}"
                );
            }
        }
    }
    // The attempt numbers in the events, which belong to the caller's span.
    let waits = spans.iter().flat_map(|span| span.events.iter());
    let numbers: Vec<Value> = waits
        .flat_map(|event| &event.attributes)
        .filter(|attribute| attribute.key.as_str() == "relent.attempt")
        .map(|attribute| attribute.value.clone())
        .collect();
    assert_eq!(numbers, [1, 2].map(Value::I64));
    // Each attempt sends the id of its own span.
    let sent = server.seen();
    for (span, seen) in attempts.iter().zip(&sent) {
        let context = &span.span_context;
        let (trace, id) = (context.trace_id(), context.span_id());
        let expected = format!("00-{trace}-{id}-01");
        assert_eq!(seen.header("traceparent"), Some(expected.as_str()));
    }
    assert_eq!(sent.len(), 3);
}

#[tokio::test]
async fn client_spans_have_numeric_fields_and_their_own_traceparent() {
    let (exporter, provider, _guard) = exporting();
    let server = busy_twice();
    let url = server.url("/");
    let client = client(policy()).on_attempt(traceparent);
    let caller = tracing::info_span!("caller");
    let sent = client.get(&url).send();
    let sent = tracing::Instrument::instrument(sent, caller).await.unwrap();
    assert_eq!(sent.attempts(), 3);
    provider.force_flush().unwrap();
    check(&exporter.get_finished_spans().unwrap(), &server);
}

#[tokio::test]
async fn layer_spans_have_numeric_fields_and_their_own_traceparent() {
    let (exporter, provider, _guard) = exporting();
    let server = busy_twice();
    let hyper: Hyper<_, _> = Hyper::builder(TokioExecutor::new()).build_http();
    let layer = RetryLayer::new(policy()).on_attempt(traceparent);
    let request = Request::get(server.url("/")).body(Empty::<Bytes>::new());
    let caller = tracing::info_span!("caller");
    let sent = layer.layer(hyper).oneshot(request.unwrap());
    let sent: Response<_> = tracing::Instrument::instrument(sent, caller).await.unwrap();
    assert_eq!(sent.status(), 200);
    provider.force_flush().unwrap();
    check(&exporter.get_finished_spans().unwrap(), &server);
}

#[tokio::test]
async fn hedged_and_download_attempts_have_their_own_traceparent() {
    let (_, _provider, _guard) = exporting();
    let hedged = Policy::builder(Backoff::None)
        .max_retries(1)
        .hedge(HedgeConfig::after(Duration::from_millis(1)))
        .build();
    let server = Server::answering(|index, _| match index {
        0 => Step::Stall(Vec::new()),
        _ => Step::Answer(response(200, &[], "")),
    });
    let hedged = client(hedged.unwrap()).on_attempt(traceparent);
    hedged.get(server.url("/")).send().await.unwrap();
    let again = busy_twice();
    let whole = client(policy()).on_attempt(traceparent);
    whole.get(again.url("/")).whole_body().send().await.unwrap();
    for server in [server, again] {
        let seen = server.seen();
        let ids: std::collections::HashSet<_> = seen
            .iter()
            .map(|seen| seen.header("traceparent").unwrap())
            .collect();
        assert_eq!(ids.len(), seen.len());
        assert!(seen.len() > 1);
    }
}

/// Helps users of libraries that repeat any request.
#[tokio::test]
async fn a_non_repeatable_request_is_logged_once_per_process() {
    let (exporter, provider, _guard) = exporting();
    let server = Server::script([Step::Answer(response(500, &[], ""))]);
    let client = client(policy());
    let caller = tracing::info_span!("caller");
    let twice = async {
        for _ in 0..2 {
            let post = client.post(server.url("/")).send().await.unwrap();
            assert_eq!((post.status().as_u16(), post.attempts()), (500, 1));
        }
    };
    tracing::Instrument::instrument(twice, caller).await;
    provider.force_flush().unwrap();
    let spans = exporter.get_finished_spans().unwrap();
    let events = spans.iter().flat_map(|span| span.events.iter());
    let told = events.filter(|event| event.name.contains("Give it an idempotency key"));
    assert_eq!(told.count(), 1);
}
