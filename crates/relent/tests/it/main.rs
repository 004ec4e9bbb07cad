//! The integration tests of the crate, in one program.
#![allow(clippy::panic, clippy::unwrap_used, reason = "tests may")]

#[cfg(feature = "tokio")]
mod conformance;
#[cfg(feature = "tokio")]
mod destination;
mod driver;
#[cfg(feature = "tokio")]
mod futures;
#[cfg(all(feature = "tokio", feature = "toml"))]
mod gave_up;
#[cfg(feature = "tokio")]
mod hedge;
#[cfg(feature = "tokio")]
mod last_outcome;
#[cfg(feature = "tokio")]
mod no_deadline;
#[cfg(feature = "toml")]
mod presets;
#[cfg(feature = "tokio")]
mod rate_limit;
#[cfg(feature = "tokio")]
mod reload;
#[cfg(all(feature = "tokio", feature = "toml"))]
mod repetition;
#[cfg(feature = "tokio")]
mod retry;
