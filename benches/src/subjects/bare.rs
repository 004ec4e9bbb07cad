//! The operation alone, and a plain atomic instead of a budget: the baseline.

use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::work::{
    Allowance, LIMIT, answer, ask, ask_four_times, ask_later, fourth_time, poll_once, poll_twice,
    runtime,
};
use crate::{Row, Scenario};

/// Its rows.
pub const ROWS: &[Row] = &[
    Row::new(Scenario::AsyncSuccess, "bare", async_success),
    Row::new(Scenario::SyncSuccess, "bare", sync_success),
    Row::new(Scenario::SyncThreeFailures, "bare", sync_three_failures),
    Row::new(Scenario::AsyncThreeFailures, "bare", async_three_failures),
    Row::new(Scenario::StandardSuccess, "bare", async_success),
    Row::new(Scenario::TracedSuccess, "bare", async_success),
    Row::new(Scenario::AsyncFailuresBudget, "bare", async_three_failures),
    Row::new(Scenario::AsyncLimit, "bare", async_later),
    Row::new(Scenario::AsyncLimit, "tokio's timeout", tokio_timeout),
    Row::new(Scenario::BudgetPair, "bare", budget_pair),
];

fn async_success(n: u64) {
    for call in 0..n {
        let _ = black_box(poll_once(ask(black_box(call))));
    }
}

fn sync_success(n: u64) {
    for call in 0..n {
        let _ = black_box(answer(black_box(call)));
    }
}

fn sync_three_failures(n: u64) {
    let calls = Cell::new(0);
    for _ in 0..n {
        while black_box(fourth_time(&calls)).is_err() {}
    }
}

fn async_three_failures(n: u64) {
    let calls = Cell::new(0);
    for _ in 0..n {
        while black_box(poll_once(ask_four_times(&calls))).is_err() {}
    }
}

fn async_later(n: u64) {
    for call in 0..n {
        let _ = black_box(poll_twice(ask_later(black_box(call))));
    }
}

/// The limit alone, without retries.
fn tokio_timeout(n: u64) {
    let runtime = runtime();
    let _context = runtime.enter();
    for call in 0..n {
        let limited = tokio::time::timeout(LIMIT, ask_later(black_box(call)));
        let _ = black_box(poll_twice(limited));
    }
}

/// A count that a compare-and-swap keeps at zero or above, on a separate cache line.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct Counter(AtomicI64);

impl Allowance for Counter {
    fn pair(&self, _: u64) {
        self.0.fetch_add(1, Ordering::Relaxed);
        let _ = black_box(
            self.0
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    (left > 0).then(|| left - 1)
                }),
        );
    }
}

fn budget_pair(n: u64) {
    let counter = black_box(Counter::default());
    for turn in 0..n {
        counter.pair(turn);
    }
}

/// The size of the operation's own future.
pub fn future_size() -> usize {
    size_of_val(&ask(1))
}
