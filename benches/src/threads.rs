//! The wall time of an operation on one thread, and on two that share its state.
//!
//! On a busy machine two threads may take turns on one core, which would hide the cost of sharing. So the threads of
//! a batch start together, a batch is shorter than a time slice, and only batches count in which both threads ran
//! concurrently nearly all of the time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::work::Allowance;

/// Batches that count.
const WANTED: usize = 51;
/// The most batches that are tried for them.
const TRIED: usize = 5000;
/// The target duration of a batch.
const BATCH: Duration = Duration::from_millis(1);
/// The least share of a batch in which both threads must run.
const TOGETHER: f64 = 0.95;

/// Nanoseconds per operation on one thread, and per operation of both threads together: this quantile of the batches.
/// `first` and `second` are used by the two threads: one and the same object unless they share nothing. `None` if the
/// machine was too busy.
pub fn times(
    first: &impl Allowance,
    second: &impl Allowance,
    quantile: f64,
) -> (Option<f64>, Option<f64>) {
    let started = Instant::now();
    let mut pairs = 0;
    while started.elapsed() < BATCH * 20 {
        first.pair(pairs);
        pairs += 1;
    }
    let pairs = (pairs / 20).max(1);
    let one = batches(quantile, || Some(alone(first, pairs)));
    (one, batches(quantile, || together(first, second, pairs)))
}

/// This quantile of the batches that count.
fn batches(quantile: f64, mut batch: impl FnMut() -> Option<f64>) -> Option<f64> {
    let mut times: Vec<f64> = (0..TRIED).filter_map(|_| batch()).take(WANTED).collect();
    times.sort_by(f64::total_cmp);
    (times.len() == WANTED).then(|| times[(WANTED as f64 * quantile) as usize])
}

fn alone(allowance: &impl Allowance, pairs: u64) -> f64 {
    let (started, ended) = work(allowance, pairs);
    (ended - started).as_secs_f64() * 1e9 / pairs as f64
}

/// Nanoseconds of wall time for each pair, both threads taken together.
fn together(first: &impl Allowance, second: &impl Allowance, pairs: u64) -> Option<f64> {
    let here = AtomicUsize::new(0);
    let meet = || {
        here.fetch_add(1, Ordering::SeqCst);
        // Not a `Barrier`: waking takes longer than a batch may differ.
        while here.load(Ordering::SeqCst) < 2 {
            std::hint::spin_loop();
        }
    };
    let (one, two) = thread::scope(|scope| {
        let other = scope.spawn(|| {
            meet();
            work(second, pairs)
        });
        meet();
        let one = work(first, pairs);
        Some((one, other.join().ok()?))
    })?;
    let wall = one.1.max(two.1) - one.0.min(two.0);
    let both = one.1.min(two.1).saturating_duration_since(one.0.max(two.0));
    (both.as_secs_f64() >= TOGETHER * wall.as_secs_f64())
        .then(|| wall.as_secs_f64() * 1e9 / (2 * pairs) as f64)
}

#[inline(never)]
fn work(allowance: &impl Allowance, pairs: u64) -> (Instant, Instant) {
    let started = Instant::now();
    for turn in 0..pairs {
        allowance.pair(turn);
    }
    (started, Instant::now())
}
