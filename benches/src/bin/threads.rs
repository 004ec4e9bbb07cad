//! Prints the wall time of a budget pair on one thread and on two that share the budget.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use relent_benches::subjects::{bare, governor, relent, tower};
use relent_benches::work::Allowance;

const BATCHES: usize = 25;
const PAIRS: u64 = 400_000;

fn main() {
    report("bare", &bare::Counter::default());
    report("relent", &relent::balanced());
    report(
        "relent, reading the clock",
        &relent::ByTheClock(relent::balanced()),
    );
    report("tower, TpsBudget", &tower::balanced());
    report("governor, one check", &governor::generous());
}

fn report(subject: &str, allowance: &impl Allowance) {
    // One and two in turn, so that a slow moment of the machine meets both.
    let (mut one, mut two) = (f64::MAX, f64::MAX);
    for _ in 0..BATCHES {
        one = one.min(batch(allowance, 1));
        two = two.min(batch(allowance, 2));
    }
    println!("{subject}\t{one:.1}\t{two:.1}");
}

/// Nanoseconds of wall time for each pair, all threads taken together.
fn batch(allowance: &impl Allowance, threads: u64) -> f64 {
    let barrier = Barrier::new(threads as usize);
    let work = || {
        barrier.wait();
        let started = Instant::now();
        for turn in 0..PAIRS {
            allowance.pair(turn);
        }
        (started, Instant::now())
    };
    let times: Vec<(Instant, Instant)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .filter_map(|worker| worker.join().ok())
            .collect()
    });
    let started = times.iter().map(|(started, _)| *started).min();
    let ended = times.iter().map(|(_, ended)| *ended).max();
    let wall = started
        .zip(ended)
        .map_or(Duration::MAX, |(started, ended)| ended - started);
    wall.as_secs_f64() * 1e9 / (PAIRS * threads) as f64
}
