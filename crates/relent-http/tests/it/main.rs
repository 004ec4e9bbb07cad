//! The integration tests of the crate, in one program.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests may"
)]

#[cfg(all(feature = "grpc", feature = "tower"))]
mod grpc;
#[cfg(all(feature = "grpc", feature = "tower"))]
mod grpc_support;
mod header_bytes;
#[cfg(feature = "tower")]
mod hedge_sockets;
#[cfg(feature = "tower")]
#[path = "../held_by/mod.rs"]
mod held_by;
#[cfg(feature = "tower")]
mod layer;
#[cfg(feature = "tower")]
mod layer_sockets;
#[cfg(feature = "tower")]
mod replay;
#[cfg(feature = "tower")]
#[path = "../../../relent-reqwest/tests/scripted/mod.rs"]
mod scripted;
