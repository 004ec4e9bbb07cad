//! Tests of the generated pages in a browser. They are a separate program, because a browser with a concurrent test is
//! too much load.
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
