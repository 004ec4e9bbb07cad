//! Each attempt is an OpenTelemetry span and sends its own `traceparent`, so that the server's spans are children of
//! their attempt: `traceparent URL`. The spans are printed when they end.
//!
//! Start a server that fails, which prints its URL:
//! `cargo run -p relent --example flaky_server -- 127.0.0.1:8080 503:1 500 200`
//! and run it with `--all-features`. In production, export with `opentelemetry-otlp` instead of `Print`.
#![allow(clippy::print_stdout)]

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::propagation::{Injector, TextMapPropagator};
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use relent::{Backoff, Policy};
use relent_reqwest::Client;
use tracing::Instrument;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::layer::SubscriberExt;

/// Lets the propagator write into the header fields.
struct Fields<'h>(&'h mut HeaderMap);

impl Injector for Fields<'_> {
    fn set(&mut self, key: &str, value: String) {
        if let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(key.as_bytes()),
            HeaderValue::try_from(value),
        ) {
            self.0.insert(name, value);
        }
    }
}

#[derive(Debug)]
struct Print;

impl SpanExporter for Print {
    async fn export(&self, spans: Vec<SpanData>) -> OTelSdkResult {
        for span in spans {
            println!("{} {}", span.name, span.span_context.span_id());
            for attribute in &span.attributes {
                println!("  {} = {:?}", attribute.key, attribute.value);
            }
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(Print)
        .build();
    let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("example"));
    let subscriber = tracing_subscriber::registry().with(spans);
    tracing::subscriber::set_global_default(subscriber)?;

    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "http://127.0.0.1:8080/".to_owned());
    let policy = Policy::builder(Backoff::exponential(Duration::from_millis(100)))
        .max_retries(4)
        .build()?;
    let client = Client::new(policy)?.on_attempt(|_, headers| {
        // Within the span of this attempt.
        let context = tracing::Span::current().context();
        TraceContextPropagator::new().inject_context(&context, &mut Fields(headers));
    });
    let order = tracing::info_span!("order");
    let response = client.get(&url).send().instrument(order).await?;
    println!("{}, attempts: {}", response.status(), response.attempts());
    provider.shutdown()?;
    Ok(())
}
