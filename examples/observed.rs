//! Telemetry of a client: spans and events as they happen, then the summary of the request and the metrics as a
//! scraper sees them: `observed URL`.
//!
//! Start a server that fails, which prints its URL:
//! `cargo run -p relent --example flaky_server -- 127.0.0.1:8080 503:1 500 200`
//! and run it with `--all-features`.
#![allow(clippy::print_stdout)]

use std::fmt;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use relent::trace::Trace;
use relent::{Backoff, Policy, Summary, observe};
use relent_reqwest::Client;
use tracing_subscriber::fmt::format::FmtSpan;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt()
        .with_span_events(FmtSpan::CLOSE)
        .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .init();
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    metrics::set_global_recorder(recorder)?;
    observe::describe();

    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "http://user:secret@127.0.0.1:8080/?token=secret".to_owned());
    let policy = Policy::builder(Backoff::exponential(Duration::from_millis(100)))
        .max_retries(4)
        .build()?;
    let client = Client::new(policy)?.label("flaky").traced();

    match client.get(&url).send().await {
        Ok(response) => tell(&response.status(), Some(response.summary())),
        Err(error) => tell(&error, error.summary()),
    }
    println!("\n{}", metrics.render());
    Ok(())
}

fn tell(end: &dyn fmt::Display, summary: Option<&Summary>) {
    println!("\n{end}");
    let trace = summary.and_then(|summary| summary.trace.as_ref());
    for entry in trace.into_iter().flat_map(Trace::entries) {
        let seen = entry
            .seen
            .map_or_else(|| "success".to_owned(), |seen| seen.to_string());
        match entry.wait() {
            Some(wait) => println!("  attempt {}: {seen}; next in {wait:?}", entry.attempt),
            None => println!("  attempt {}: {seen}", entry.attempt),
        }
    }
}
