//! What a budget is made of.

use crate::error::{Found, PolicyError};

/// The least amount that can be counted.
const LEAST: f64 = 0.001;
/// One token in 31 years.
const LEAST_PER_SECOND: f64 = 1e-9;

/// What a budget is made of; all amounts in tokens, one token being one ordinary retry. They are counted
/// in thousandths, from 0.001 up.
///
/// # Default
/// A reserve of 10, 0.1 per request (10 %, R4.7), 0.1 per second, at most 100, each retry costs 1.
///
/// ```
/// use relent_core::{Budget, BudgetConfig};
///
/// let budget = Budget::new(&BudgetConfig { reserve: 5.0, ..BudgetConfig::DEFAULT })?;
/// assert_eq!(budget.balance(), 5.0);
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BudgetConfig {
    /// Deposited by every request: the ratio of retries to requests.
    pub ratio: f64,
    /// Deposited by every success.
    pub success: f64,
    /// In the budget at the start.
    pub reserve: f64,
    /// Deposited by time, per second, so that a budget without traffic does not stay dead. Exact from
    /// one token in 31 years up.
    pub per_second: f64,
    /// The most the budget holds.
    pub capacity: f64,
    /// What a retry costs.
    pub cost: f64,
    /// What a retry after a throttled failure costs.
    pub throttled_cost: f64,
    /// What a retry after an attempt that timed out costs; `None` for what any other costs. It is granted without where
    /// that is not there but a limited [`Gate`](crate::Gate) paces retries.
    pub timeout_cost: Option<f64>,
    /// A retry is granted only if at least this much would be left.
    pub floor: f64,
    /// What must be left beside the floor by a retry after a failure that may be a sign of overload: after
    /// one that came faster than successes do, or too late, or while no success is known. For a budget
    /// with a [`Gate`](crate::Gate), which tells; without one it has no effect. Whoever has less than the reserve then,
    /// and has had no success since the failure before, waits 4 to 8 s before the retry, within `max_delay`.
    pub overload_floor: f64,
    /// Whether a retry that an empty budget cannot pay for waits at the [`Gate`](crate::Gate), and goes when that finds
    /// room for it ([`Claim::Unpaid`](crate::Claim::Unpaid)). After a timeout it does not, since the next attempt would
    /// cost the destination as much again. Without a gate, or with [`charge_failures`](Self::charge_failures), this has
    /// no effect: an empty budget ends the request.
    pub wait_when_empty: bool,
    /// The cost of the last retry comes back when it succeeds (AWS). With a [`Gate`](crate::Gate) it does not while
    /// failures may be a sign of overload.
    pub refund_on_success: bool,
    /// The cost is taken by every failure, granted a retry or not (gRFC A6), instead of by every
    /// retry.
    pub charge_failures: bool,
}

impl BudgetConfig {
    /// Ten per cent of requests, with a small reserve and a slow refill by time.
    pub const DEFAULT: Self = Self {
        ratio: 0.1,
        success: 0.0,
        reserve: 10.0,
        per_second: 0.1,
        capacity: 100.0,
        cost: 1.0,
        throttled_cost: 1.0,
        timeout_cost: None,
        floor: 0.0,
        overload_floor: 0.0,
        wait_when_empty: false,
        refund_on_success: false,
        charge_failures: false,
    };

    pub(super) const fn timeout_cost_or_cost(&self) -> f64 {
        match self.timeout_cost {
            Some(cost) => cost,
            None => self.cost,
        }
    }

    pub(crate) const fn check(&self) -> Result<(), PolicyError> {
        let amounts = [
            ("ratio", self.ratio),
            ("success", self.success),
            ("reserve", self.reserve),
            ("capacity", self.capacity),
            ("cost", self.cost),
            ("throttled_cost", self.throttled_cost),
            ("timeout_cost", self.timeout_cost_or_cost()),
            ("floor", self.floor),
            ("overload_floor", self.overload_floor),
        ];
        let mut index = 0;
        while index < amounts.len() {
            let (key, amount) = amounts[index];
            // Written so that NaN fails.
            if !(amount >= 0.0 && amount <= 1_000_000.0) {
                return Err(PolicyError::new(
                    key,
                    Found::Number(amount),
                    "an amount of a budget is a number of tokens from 0 to 1000000",
                ));
            }
            if amount > 0.0 && amount < LEAST {
                return Err(PolicyError::new(
                    key,
                    Found::Number(amount),
                    "a budget counts in thousandths of a token: use 0 for nothing, or 0.001 and more",
                ));
            }
            index += 1;
        }
        if !(self.per_second >= 0.0 && self.per_second <= 1_000_000.0)
            || self.per_second > 0.0 && self.per_second < LEAST_PER_SECOND
        {
            return Err(PolicyError::new(
                "per_second",
                Found::Number(self.per_second),
                "the tokens per second of a budget are a number from 0.000000001 to 1000000, or 0 for none",
            ));
        }
        if self.reserve > self.capacity {
            return Err(PolicyError::new(
                "reserve",
                Found::Number(self.reserve),
                "the reserve of a budget may not be above its capacity",
            ));
        }
        let costs = [
            ("cost", self.cost),
            ("throttled_cost", self.throttled_cost),
            ("timeout_cost", self.timeout_cost_or_cost()),
        ];
        let mut index = 0;
        while index < costs.len() {
            let (key, cost) = costs[index];
            if cost > self.capacity {
                return Err(PolicyError::new(
                    key,
                    Found::Number(cost),
                    "a cost above the capacity can never be paid: lower it, or raise the capacity",
                ));
            }
            index += 1;
        }
        // With `charge_failures` a retry is granted above the floor, else down to it.
        let floor = self.floor + self.overload_floor;
        let grants = if self.charge_failures {
            self.capacity > floor
        } else {
            let throttled = self.capacity >= self.throttled_cost + floor;
            let timeout = self.capacity >= self.timeout_cost_or_cost() + floor;
            self.capacity >= self.cost + floor && throttled && timeout
        };
        if !grants {
            return Err(PolicyError::new(
                "capacity",
                Found::Number(self.capacity),
                "a budget that cannot hold its floors and the cost of one retry never grants one: \
                 raise the capacity, or set retries = \"off\"",
            ));
        }
        Ok(())
    }
}

impl Default for BudgetConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}
