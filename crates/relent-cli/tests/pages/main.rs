//! The pages that the command makes, in a browser. A program of its own: a browser and a second test at once are too much
//! load for what they show at the moment.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests may"
)]

mod browser;
mod deliver_page;
#[allow(dead_code, reason = "these tests need a part of it")]
#[path = "../it/deliver_support.rs"]
mod deliver_support;
mod report;
#[allow(dead_code, reason = "these tests need a part of it")]
#[path = "../it/support.rs"]
mod support;
