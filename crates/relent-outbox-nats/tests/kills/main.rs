//! Tests that kill processes. They need a program of their own: each killed process runs this program again.
#![cfg(unix)]
#![allow(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests may"
)]

#[path = "../../../relent-outbox/tests/kills/dying.rs"]
mod dying;
mod fleet;
#[path = "../../../relent-outbox/tests/kills/killed.rs"]
mod killed;
#[path = "../../../relent-outbox/tests/kills/poisoned.rs"]
mod poisoned;
#[path = "../../../relent-server/src/servers.rs"]
mod servers;
#[path = "../../../relent-outbox/tests/support/mod.rs"]
mod support;
mod workers;
