//! tokio-retry. It always waits by tokio's timer, so it has no row without one.

use std::hint::black_box;
use std::time::Duration;

use tokio_retry::Retry;
use tokio_retry::strategy::{ExponentialBackoff, jitter};

use crate::work::{ask, poll_once};
use crate::{Row, Scenario};

/// Its rows.
pub const ROWS: &[Row] = &[
    Row::new(Scenario::AsyncSuccess, "tokio-retry", async_success),
    Row::new(Scenario::TenDelays, "tokio-retry", ten_delays),
];

fn jittered() -> impl Iterator<Item = Duration> {
    ExponentialBackoff::from_millis(10).map(jitter).take(10)
}

fn async_success(n: u64) {
    for call in 0..n {
        let asked = Retry::start(jittered(), || ask(black_box(call)));
        let _ = black_box(poll_once(asked));
    }
}

fn ten_delays(n: u64) {
    for _ in 0..n {
        for delay in jittered() {
            black_box(delay);
        }
    }
}

/// The size of its future.
pub fn future_size() -> usize {
    size_of_val(&Retry::start(jittered(), || ask(1)))
}
