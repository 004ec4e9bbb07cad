//! Tracing and metrics of the client. A separate program, because `tracing` has process-wide state.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests may"
)]

#[path = "../../../relent/tests/collector/mod.rs"]
mod collector;
#[cfg(feature = "tracing")]
mod opentelemetry;
#[path = "../scripted/mod.rs"]
mod scripted;
#[cfg(all(feature = "metrics", feature = "tracing"))]
mod telemetry;
