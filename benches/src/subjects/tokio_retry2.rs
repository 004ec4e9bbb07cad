//! tokio-retry2. It always waits by tokio's timer, so it has no row without one.

use std::hint::black_box;
use std::time::Duration;

use tokio_retry2::strategy::{ExponentialBackoff, jitter};
use tokio_retry2::{Retry, RetryError};

use crate::work::{Failed, ask, poll_once};
use crate::{Row, Scenario};

/// Its rows.
pub const ROWS: &[Row] = &[
    Row::new(Scenario::AsyncSuccess, "tokio-retry2", async_success),
    Row::new(Scenario::TenDelays, "tokio-retry2", ten_delays),
];

fn jittered() -> impl Iterator<Item = Duration> {
    ExponentialBackoff::from_millis(10).map(jitter).take(10)
}

async fn transient(question: u64) -> Result<u64, RetryError<Failed>> {
    ask(question).await.map_err(RetryError::transient)
}

fn async_success(n: u64) {
    for call in 0..n {
        let asked = Retry::spawn(jittered(), || transient(black_box(call)));
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
    size_of_val(&Retry::spawn(jittered(), || async {
        ask(1).await.map_err(RetryError::transient)
    }))
}
