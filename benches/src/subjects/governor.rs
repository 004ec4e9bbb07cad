//! governor: a rate limiter, not a budget. One `check` stands beside a pair: its deposits are the
//! time that passes, read from a clock inside it.

use std::hint::black_box;
use std::num::NonZeroU32;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

use crate::work::Allowance;
use crate::{Row, Scenario};

/// Its rows.
pub const ROWS: &[Row] = &[Row::new(
    Scenario::BudgetPair,
    "governor, one check",
    one_check,
)];

impl Allowance for DefaultDirectRateLimiter {
    fn pair(&self, _: u64) {
        let _ = black_box(self.check());
    }
}

/// A limiter that never refuses.
#[must_use]
pub fn generous() -> DefaultDirectRateLimiter {
    RateLimiter::direct(Quota::per_second(NonZeroU32::MAX))
}

fn one_check(n: u64) {
    let limiter = black_box(generous());
    for turn in 0..n {
        limiter.pair(turn);
    }
}
