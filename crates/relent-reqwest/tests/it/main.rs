//! The integration tests of the crate, in one program.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests may"
)]

#[cfg(feature = "blocking")]
mod blocking;
#[cfg(all(
    feature = "form",
    feature = "json",
    feature = "multipart",
    feature = "query"
))]
mod builder;
mod client;
mod client_hedge;
#[cfg(feature = "middleware")]
mod complete;
#[cfg(feature = "middleware")]
mod conformance;
mod cross_layer;
mod download;
#[cfg(target_os = "linux")]
mod early_response;
mod errors;
#[cfg(feature = "middleware")]
mod every_cut;
mod fault_matrix;
#[cfg(feature = "middleware")]
mod held_back;
#[cfg(feature = "middleware")]
#[path = "../../../relent-http/tests/held_by/mod.rs"]
mod held_by;
mod http2;
mod malformed;
#[cfg(feature = "middleware")]
mod middleware;
mod network;
mod no_secrets;
#[cfg(feature = "middleware")]
mod one_request;
#[cfg(feature = "middleware")]
mod redirects;
#[cfg(feature = "middleware")]
mod reload;
#[path = "../scripted/mod.rs"]
mod scripted;
mod service;
mod transport;
