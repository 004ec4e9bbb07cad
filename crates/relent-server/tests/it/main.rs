//! The integration tests of the crate, in one binary.
#![allow(clippy::panic, clippy::unwrap_used, reason = "tests may")]

mod admission;
#[cfg(all(unix, feature = "redis"))]
mod admission_fleet;
mod history;
mod idempotency;
mod lease_lost;
mod limits;
mod nested;
mod outcomes;
mod overload;
#[cfg(unix)]
#[path = "../../src/servers.rs"]
mod servers;
#[cfg(feature = "grpc")]
mod services;
#[cfg(feature = "sqlite")]
mod sockets;
#[cfg(feature = "sqlite")]
mod sqlite_writer;
#[cfg(all(unix, feature = "postgres", feature = "redis"))]
mod store_faults;
mod stores;
#[cfg(feature = "webhook")]
#[path = "../support/webhook.rs"]
mod support;
#[cfg(all(unix, feature = "postgres", feature = "sqlite", feature = "sqlx"))]
mod transactional;
mod unknown_outcomes;
#[cfg(all(feature = "sqlite", feature = "webhook"))]
mod webhook;
#[cfg(all(feature = "metrics", feature = "webhook"))]
mod webhook_observed;
#[cfg(all(unix, feature = "postgres", feature = "webhook"))]
mod webhook_postgres;
mod wrong_stores;
