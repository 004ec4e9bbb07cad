//! Relent. `relent` is a `static` policy by reference, as its documentation shows. `relent, policy known at run time`
//! hides the policy from the optimizer, as if it had been read from a file. `relent, policy built in the call` builds
//! the policy each time, as crates that own theirs do.

use std::cell::Cell;
use std::hint::black_box;
use std::time::Duration;

use relent::clock::{Clock, Instant, StdClock};
use relent::destination::Budget;
use relent::policy::BudgetConfig;
use relent::random::SessionRandom;
use relent::{Backoff, Destination, FailureKind, Jitter, Policy, blocking, retry};

use crate::work::{
    Allowance, LIMIT, answer, ask, ask_four_times, ask_later, fourth_time, poll_once, poll_twice,
    runtime,
};
use crate::{Row, Scenario};

const RUN_TIME: &str = "relent, policy known at run time";
const BUILT: &str = "relent, policy built in the call";

/// Its rows.
pub const ROWS: &[Row] = &[
    Row::new(Scenario::AsyncSuccess, "relent", async_success),
    Row::new(Scenario::AsyncSuccess, RUN_TIME, async_success_run_time),
    Row::new(Scenario::AsyncSuccess, BUILT, async_success_built),
    Row::new(Scenario::SyncSuccess, "relent", sync_success),
    Row::new(Scenario::SyncSuccess, RUN_TIME, sync_success_run_time),
    Row::new(Scenario::SyncSuccess, BUILT, sync_success_built),
    Row::new(Scenario::TenDelays, "relent", ten_delays),
    Row::new(Scenario::TenDelays, RUN_TIME, ten_delays_run_time),
    Row::new(Scenario::TenDelays, BUILT, ten_delays_built),
    Row::new(Scenario::SyncThreeFailures, "relent", sync_failures),
    Row::new(
        Scenario::SyncThreeFailures,
        RUN_TIME,
        sync_failures_run_time,
    ),
    Row::new(Scenario::SyncThreeFailures, BUILT, sync_failures_built),
    Row::new(Scenario::AsyncThreeFailures, "relent", async_failures),
    Row::new(
        Scenario::AsyncThreeFailures,
        RUN_TIME,
        async_failures_run_time,
    ),
    Row::new(Scenario::AsyncThreeFailures, BUILT, async_failures_built),
    Row::new(Scenario::AsyncSuccessBudget, "relent, budget", with_budget),
    Row::new(
        Scenario::AsyncSuccessBudget,
        "relent, budget and deadline",
        with_budget_and_deadline,
    ),
    Row::new(Scenario::StandardSuccess, "relent", standard_success),
    Row::new(Scenario::TracedSuccess, "relent", async_success),
    Row::new(Scenario::TracedSuccess, "relent, traced", traced_success),
    Row::new(
        Scenario::AsyncFailuresBudget,
        "relent, budget",
        failures_with_budget,
    ),
    Row::new(
        Scenario::AsyncFailuresBudget,
        "relent, budget and trace",
        failures_with_budget_and_trace,
    ),
    Row::new(Scenario::AsyncLimit, "relent", attempt_limit),
    Row::new(Scenario::BudgetPair, "relent", budget_pair),
];

const fn jittered() -> Policy {
    Policy::builder(Backoff::exponential(Duration::from_millis(10)))
        .jitter(Jitter::Full)
        .max_retries(10)
        .build_const()
}

const fn immediate() -> Policy {
    Policy::builder(Backoff::None).max_retries(3).build_const()
}

const fn limited() -> Policy {
    Policy::builder(Backoff::exponential(Duration::from_millis(10)))
        .deadline(Duration::from_secs(5))
        .build_const()
}

const fn hurried() -> Policy {
    Policy::builder(Backoff::exponential(Duration::from_millis(10)))
        .attempt_timeout(LIMIT)
        .build_const()
}

static HURRIED: Policy = hurried();
static JITTERED: Policy = jittered();
static IMMEDIATE: Policy = immediate();
static LIMITED: Policy = limited();

fn async_success(n: u64) {
    for call in 0..n {
        let _ = black_box(poll_once(retry(&JITTERED, || ask(black_box(call)))));
    }
}

fn async_success_run_time(n: u64) {
    let policy = black_box(&JITTERED);
    for call in 0..n {
        let _ = black_box(poll_once(retry(policy, || ask(black_box(call)))));
    }
}

fn async_success_built(n: u64) {
    for call in 0..n {
        let policy = jittered();
        let _ = black_box(poll_once(retry(&policy, || ask(black_box(call)))));
    }
}

fn sync_success(n: u64) {
    for call in 0..n {
        let _ = black_box(blocking::retry(&JITTERED, || answer(black_box(call))).run());
    }
}

fn sync_success_run_time(n: u64) {
    let policy = black_box(&JITTERED);
    for call in 0..n {
        let _ = black_box(blocking::retry(policy, || answer(black_box(call))).run());
    }
}

fn sync_success_built(n: u64) {
    for call in 0..n {
        let policy = jittered();
        let _ = black_box(blocking::retry(&policy, || answer(black_box(call))).run());
    }
}

fn ten_delays(n: u64) {
    for _ in 0..n {
        for delay in JITTERED.waits(SessionRandom::new()) {
            black_box(delay);
        }
    }
}

fn ten_delays_run_time(n: u64) {
    let policy = black_box(&JITTERED);
    for _ in 0..n {
        for delay in policy.waits(SessionRandom::new()) {
            black_box(delay);
        }
    }
}

fn ten_delays_built(n: u64) {
    for _ in 0..n {
        let policy = jittered();
        for delay in policy.waits(SessionRandom::new()) {
            black_box(delay);
        }
    }
}

fn sync_failures(n: u64) {
    let calls = Cell::new(0);
    for _ in 0..n {
        let _ = black_box(blocking::retry(&IMMEDIATE, || fourth_time(&calls)).run());
    }
}

fn sync_failures_run_time(n: u64) {
    let policy = black_box(&IMMEDIATE);
    let calls = Cell::new(0);
    for _ in 0..n {
        let _ = black_box(blocking::retry(policy, || fourth_time(&calls)).run());
    }
}

fn sync_failures_built(n: u64) {
    let calls = Cell::new(0);
    for _ in 0..n {
        let policy = immediate();
        let _ = black_box(blocking::retry(&policy, || fourth_time(&calls)).run());
    }
}

fn async_failures(n: u64) {
    let calls = Cell::new(0);
    for _ in 0..n {
        let _ = black_box(poll_once(retry(&IMMEDIATE, || ask_four_times(&calls))));
    }
}

fn async_failures_run_time(n: u64) {
    let policy = black_box(&IMMEDIATE);
    let calls = Cell::new(0);
    for _ in 0..n {
        let _ = black_box(poll_once(retry(policy, || ask_four_times(&calls))));
    }
}

fn async_failures_built(n: u64) {
    let calls = Cell::new(0);
    for _ in 0..n {
        let policy = immediate();
        let _ = black_box(poll_once(retry(&policy, || ask_four_times(&calls))));
    }
}

fn with_budget(n: u64) {
    let there = black_box(Destination::new(&JITTERED).with_budget(balanced()));
    for call in 0..n {
        let asked = retry(&JITTERED, || ask(black_box(call))).destination(&there);
        let _ = black_box(poll_once(asked));
    }
}

fn with_budget_and_deadline(n: u64) {
    let there = black_box(Destination::new(&LIMITED).with_budget(balanced()));
    for call in 0..n {
        let asked = retry(&LIMITED, || ask(black_box(call))).destination(&there);
        let _ = black_box(poll_once(asked));
    }
}

fn standard_success(n: u64) {
    let there = black_box(Destination::new(Policy::STANDARD));
    for call in 0..n {
        let asked = retry(Policy::STANDARD, || ask(black_box(call))).destination(&there);
        let _ = black_box(poll_once(asked));
    }
}

/// `standard` at one destination, which two threads may share.
#[derive(Debug)]
pub struct Shared(Destination);

impl Default for Shared {
    fn default() -> Self {
        Self(Destination::new(Policy::STANDARD))
    }
}

impl Allowance for Shared {
    fn pair(&self, turn: u64) {
        let asked = retry(Policy::STANDARD, || ask(black_box(turn))).destination(&self.0);
        let _ = black_box(poll_once(asked));
    }
}

fn traced_success(n: u64) {
    for call in 0..n {
        let traced = retry(&JITTERED, || ask(black_box(call))).traced();
        let _ = black_box(poll_once(traced));
    }
}

fn failures_with_budget(n: u64) {
    let there = black_box(Destination::new(&IMMEDIATE).with_budget(plentiful()));
    let calls = Cell::new(0);
    for _ in 0..n {
        let asked = retry(&IMMEDIATE, || ask_four_times(&calls)).destination(&there);
        let answered = black_box(poll_once(asked));
        assert!(answered.is_ok(), "the budget pays for three retries");
    }
}

fn failures_with_budget_and_trace(n: u64) {
    let there = black_box(Destination::new(&IMMEDIATE).with_budget(plentiful()));
    let calls = Cell::new(0);
    for _ in 0..n {
        let asked = retry(&IMMEDIATE, || ask_four_times(&calls)).destination(&there);
        let answered = black_box(poll_once(asked.traced()));
        assert!(answered.is_ok(), "the budget pays for three retries");
    }
}

fn attempt_limit(n: u64) {
    let runtime = runtime();
    let _context = runtime.enter();
    for call in 0..n {
        let _ = black_box(poll_twice(retry(&HURRIED, || ask_later(black_box(call)))));
    }
}

/// A budget that three retries per request do not exhaust.
fn plentiful() -> Budget {
    let config = BudgetConfig {
        initial_tokens: CAPACITY,
        capacity: CAPACITY,
        ..BudgetConfig::DEFAULT
    };
    Budget::new(&config).unwrap_or_else(|error| unreachable!("it is in range: {error}"))
}

const CAPACITY: f64 = 100_000.0;

/// A budget whose requests pay for as many retries, so that a pair does not change it, with the default refill over
/// time.
#[must_use]
pub fn balanced() -> Budget {
    let config = BudgetConfig {
        ratio: 1.0,
        capacity: CAPACITY,
        ..BudgetConfig::DEFAULT
    };
    Budget::new(&config).unwrap_or_else(|error| unreachable!("it is in range: {error}"))
}

impl Allowance for Budget {
    /// The time is an argument, so no clock is read; it moves on by 100 ns with each pair.
    fn pair(&self, turn: u64) {
        self.on_request();
        let now = Instant::from_nanos(turn * 100);
        black_box(self.withdraw(now, FailureKind::Ambiguous));
    }
}

/// A balanced budget with a reading of the clock for each withdrawal, as a driver makes it after a failed attempt.
#[derive(Debug)]
pub struct ByTheClock(pub Budget);

impl Allowance for ByTheClock {
    fn pair(&self, _: u64) {
        self.0.on_request();
        black_box(self.0.withdraw(StdClock.now(), FailureKind::Ambiguous));
    }
}

/// A full budget, as at a healthy destination: a request only, without a withdrawal.
#[derive(Debug)]
pub struct Full(pub Budget);

impl Allowance for Full {
    fn pair(&self, turn: u64) {
        if turn == 0 {
            while self.0.balance() < CAPACITY {
                self.0.on_request();
            }
        }
        self.0.on_request();
    }
}

fn budget_pair(n: u64) {
    let budget = black_box(balanced());
    for turn in 0..n {
        budget.pair(turn);
    }
}

/// The size of its future.
pub fn future_size() -> usize {
    size_of_val(&retry(&JITTERED, || ask(1)))
}
