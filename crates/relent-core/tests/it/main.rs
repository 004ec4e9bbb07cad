//! The integration tests of the crate, in one program.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests may"
)]

mod any_policy;
mod decisions;
#[cfg(feature = "serde")]
mod form;
mod limiter_fairness;
