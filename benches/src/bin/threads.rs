//! Prints the wall time of a budget pair on one thread, and on two that share the budget.
//!
//! Each time is the median of the batches. The first row is the control: two threads that share nothing, which take
//! half the time per pair if they really run in parallel.

use relent_benches::subjects::{bare, governor, relent, tower};
use relent_benches::threads::times;
use relent_benches::work::Allowance;

fn main() {
    let control = (bare::Counter::default(), bare::Counter::default());
    report(
        "bare, one for each thread (control)",
        &control.0,
        &control.1,
    );
    let counter = bare::Counter::default();
    report("bare", &counter, &counter);
    let budget = relent::balanced();
    report("relent", &budget, &budget);
    let budget = relent::Full(relent::balanced());
    report("relent, a request on a full budget", &budget, &budget);
    let budget = relent::ByTheClock(relent::balanced());
    report("relent, reading the clock", &budget, &budget);
    let budget = tower::balanced();
    report("tower, TpsBudget", &budget, &budget);
    let shared = relent::Shared::default();
    report("relent, a call by standard that succeeds", &shared, &shared);
    let limiter = governor::generous();
    report("governor, one check", &limiter, &limiter);
}

fn report(subject: &str, first: &impl Allowance, second: &impl Allowance) {
    let (one, two) = times(first, second, 0.5);
    let text = |nanos: Option<f64>| nanos.map_or("machine too busy".into(), |n| format!("{n:.1}"));
    println!("{subject}\t{}\t{}", text(one), text(two));
}
