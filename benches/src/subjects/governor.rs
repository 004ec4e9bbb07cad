//! governor: a rate limiter, not a budget. One `check` is compared with a pair: its deposits are passing time.
//! Instructions are counted with its fake clock, because the real one starts by calibrating itself.

use std::hint::black_box;
use std::num::NonZeroU32;

use governor::clock::{Clock, FakeRelativeClock};
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

use crate::work::Allowance;
use crate::{Row, Scenario};

/// Its rows.
pub const ROWS: &[Row] = &[Row::new(
    Scenario::BudgetPair,
    "governor, one check, no clock",
    one_check,
)];

/// A limiter with a clock.
type Limiter<C> = RateLimiter<NotKeyed, InMemoryState, C, NoOpMiddleware<<C as Clock>::Instant>>;

impl<C: Clock + Sync> Allowance for Limiter<C>
where
    C::Instant: Sync,
{
    fn pair(&self, _: u64) {
        let _ = black_box(self.check());
    }
}

fn quota() -> Quota {
    Quota::per_second(NonZeroU32::MAX)
}

/// A limiter that never rejects.
#[must_use]
pub fn generous() -> DefaultDirectRateLimiter {
    RateLimiter::direct(quota())
}

fn one_check(n: u64) {
    let clock = FakeRelativeClock::default();
    let limiter = black_box(RateLimiter::direct_with_clock(quota(), clock));
    for turn in 0..n {
        limiter.pair(turn);
    }
}
