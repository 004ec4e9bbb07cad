//! Simulations of ten seconds and more; `./scripts/test --all` runs them.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests may"
)]

mod bar;
mod ground_truth;
mod limits;
