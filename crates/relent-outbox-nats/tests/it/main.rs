//! The integration tests of the crate, in one program.
#![cfg(unix)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "tests may")]

mod changes;
mod nats;
#[path = "../../../relent-server/src/servers.rs"]
mod servers;
#[path = "../../../relent-outbox/tests/support/mod.rs"]
mod support;
#[path = "../../../relent-outbox/tests/support/traffic.rs"]
mod traffic;
