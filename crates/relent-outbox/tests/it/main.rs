//! The integration tests of the crate, in one program.
#![allow(clippy::panic, clippy::unwrap_used, reason = "tests may")]

#[cfg(all(unix, feature = "api", feature = "postgres", feature = "sqlite"))]
mod changes;
#[cfg(feature = "sqlite")]
mod delivery;
mod forbidden;
#[cfg(feature = "sqlite")]
mod local_faults;
#[cfg(unix)]
#[path = "../../../relent-server/src/servers.rs"]
mod servers;
mod stores;
#[path = "../support/mod.rs"]
mod support;
mod tls;
#[cfg(all(unix, feature = "api", feature = "postgres", feature = "sqlite"))]
#[path = "../support/traffic.rs"]
mod traffic;
