//! The integration tests of the crate, in one program.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests may"
)]

mod case_studies;
mod destinations;
mod differential;
mod ethernet;
mod models;
mod outages;
mod random;
mod serving;
mod throttling;
mod wireless;
