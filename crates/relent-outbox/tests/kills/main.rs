//! Tests that kill processes. They need a program of their own: each killed process runs this program again.
#![allow(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests may"
)]

#[cfg(all(unix, feature = "sqlite"))]
mod claims;
#[cfg(all(unix, feature = "sqlite"))]
mod dying;
#[cfg(all(unix, feature = "sqlite"))]
mod killed;
#[cfg(all(unix, feature = "sqlite"))]
mod poisoned;
#[cfg(unix)]
#[path = "../../../relent-server/src/servers.rs"]
mod servers;
#[path = "../support/mod.rs"]
mod support;
#[cfg(all(unix, feature = "sqlite"))]
mod workers;
