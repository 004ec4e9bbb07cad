//! backon: the policy is a builder, and each call builds its backoff. `backon, policy known at run time` hides the
//! builder from the optimizer, as if it had been read from a file.

use std::cell::Cell;
use std::future::ready;
use std::hint::black_box;
use std::time::Duration;

use backon::{BackoffBuilder, BlockingRetryable, ConstantBuilder, ExponentialBuilder, Retryable};

use crate::work::{answer, ask, ask_four_times, fourth_time, poll_once};
use crate::{Row, Scenario};

const RUN_TIME: &str = "backon, policy known at run time";

/// Its rows.
pub const ROWS: &[Row] = &[
    Row::new(Scenario::AsyncSuccess, "backon", async_success),
    Row::new(Scenario::AsyncSuccess, RUN_TIME, async_success_run_time),
    Row::new(Scenario::SyncSuccess, "backon", sync_success),
    Row::new(Scenario::SyncSuccess, RUN_TIME, sync_success_run_time),
    Row::new(Scenario::TenDelays, "backon", ten_delays),
    Row::new(Scenario::SyncThreeFailures, "backon", sync_failures),
    Row::new(Scenario::AsyncThreeFailures, "backon", async_failures),
];

fn jittered() -> ExponentialBuilder {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(10))
        .with_jitter()
        .with_max_times(10)
}

fn immediate() -> ConstantBuilder {
    ConstantBuilder::default()
        .with_delay(Duration::ZERO)
        .with_max_times(3)
}

fn async_success(n: u64) {
    for call in 0..n {
        let asked = Retryable::retry(|| ask(black_box(call)), jittered());
        let _ = black_box(poll_once(asked));
    }
}

fn async_success_run_time(n: u64) {
    let builder = jittered();
    let policy = black_box(&builder);
    for call in 0..n {
        let asked = Retryable::retry(|| ask(black_box(call)), policy);
        let _ = black_box(poll_once(asked));
    }
}

fn sync_success(n: u64) {
    for call in 0..n {
        let asked = BlockingRetryable::retry(|| answer(black_box(call)), jittered());
        let _ = black_box(asked.call());
    }
}

fn sync_success_run_time(n: u64) {
    let builder = jittered();
    let policy = black_box(&builder);
    for call in 0..n {
        let asked = BlockingRetryable::retry(|| answer(black_box(call)), policy);
        let _ = black_box(asked.call());
    }
}

fn ten_delays(n: u64) {
    for _ in 0..n {
        for delay in jittered().build() {
            black_box(delay);
        }
    }
}

fn sync_failures(n: u64) {
    let calls = Cell::new(0);
    for _ in 0..n {
        let asked = BlockingRetryable::retry(|| fourth_time(&calls), immediate());
        let _ = black_box(asked.sleep(|_| {}).call());
    }
}

fn async_failures(n: u64) {
    let calls = Cell::new(0);
    for _ in 0..n {
        let asked = Retryable::retry(|| ask_four_times(&calls), immediate());
        let _ = black_box(poll_once(asked.sleep(|_| ready(()))));
    }
}

/// The size of its future.
pub fn future_size() -> usize {
    size_of_val(&Retryable::retry(|| ask(1), jittered()))
}
