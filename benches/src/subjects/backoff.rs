//! backoff. Its `ExponentialBackoff` reads the clock on creation, since it limits the elapsed time.

use std::cell::Cell;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::time::Duration;

use backoff::backoff::{Backoff, Zero};
use backoff::future::Sleeper;
use backoff::{Error, ExponentialBackoff};

use crate::work::{Failed, answer, ask, ask_four_times, fourth_time, poll_once};
use crate::{Row, Scenario};

/// Its rows.
pub const ROWS: &[Row] = &[
    Row::new(Scenario::AsyncSuccess, "backoff", async_success),
    Row::new(Scenario::SyncSuccess, "backoff", sync_success),
    Row::new(Scenario::TenDelays, "backoff", ten_delays),
    Row::new(Scenario::SyncThreeFailures, "backoff", sync_failures),
    Row::new(Scenario::AsyncThreeFailures, "backoff", async_failures),
];

async fn transient(asked: impl Future<Output = Result<u64, Failed>>) -> Result<u64, Error<Failed>> {
    asked.await.map_err(Error::transient)
}

fn async_success(n: u64) {
    for call in 0..n {
        let asked = backoff::future::retry(ExponentialBackoff::default(), || {
            transient(ask(black_box(call)))
        });
        let _ = black_box(poll_once(asked));
    }
}

fn sync_success(n: u64) {
    for call in 0..n {
        let asked = || answer(black_box(call)).map_err(Error::transient);
        let _ = black_box(backoff::retry(ExponentialBackoff::default(), asked));
    }
}

fn ten_delays(n: u64) {
    for _ in 0..n {
        let mut backoff = ExponentialBackoff::default();
        for _ in 0..10 {
            black_box(backoff.next_backoff());
        }
    }
}

fn sync_failures(n: u64) {
    let calls = Cell::new(0);
    for _ in 0..n {
        let asked = || fourth_time(&calls).map_err(Error::transient);
        let _ = black_box(backoff::retry(Zero {}, asked));
    }
}

struct NoTimer;

impl Sleeper for NoTimer {
    type Sleep = Ready<()>;

    fn sleep(&self, _: Duration) -> Ready<()> {
        ready(())
    }
}

fn async_failures(n: u64) {
    let calls = Cell::new(0);
    for _ in 0..n {
        let asked = backoff::future::Retry::new(
            NoTimer,
            Zero {},
            |_: Failed, _: Duration| {},
            || transient(ask_four_times(&calls)),
        );
        let _ = black_box(poll_once(asked));
    }
}

/// The size of its future.
pub fn future_size() -> usize {
    let asked = || async { ask(1).await.map_err(Error::transient) };
    size_of_val(&backoff::future::retry(
        ExponentialBackoff::default(),
        asked,
    ))
}
