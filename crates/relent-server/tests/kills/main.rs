//! Tests that kill processes. A separate binary, because each killed process runs this binary again.
#![allow(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests may"
)]

#[cfg(all(unix, feature = "sqlite"))]
mod claims;
#[cfg(all(unix, feature = "sqlite"))]
mod points;
#[cfg(unix)]
#[path = "../../src/servers.rs"]
mod servers;
#[cfg(feature = "webhook")]
#[path = "../support/webhook.rs"]
mod support;
#[cfg(all(unix, feature = "postgres", feature = "sqlite", feature = "sqlx"))]
mod transactional;
#[cfg(all(unix, feature = "sqlite", feature = "webhook"))]
mod webhook;
