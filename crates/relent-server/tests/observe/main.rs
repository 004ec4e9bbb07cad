//! Tests of events and metrics of the layers. A separate binary, because `tracing` has state per process.
#![allow(clippy::panic, clippy::unwrap_used, reason = "tests may")]

#[path = "../../../relent/tests/collector/mod.rs"]
mod collector;
#[cfg(unix)]
#[path = "../../src/servers.rs"]
mod servers;
#[cfg(all(
    unix,
    feature = "postgres",
    feature = "redis",
    feature = "sqlite",
    feature = "tracing"
))]
mod store_failures;
#[cfg(all(feature = "metrics", feature = "tracing"))]
mod told;
