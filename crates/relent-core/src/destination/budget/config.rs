//! Configuration of the retry budget.

use crate::policy::error::{Found, PolicyError};

/// Smallest amount that can be counted, in tokens.
const MIN_AMOUNT: f64 = 0.001;
/// One token in 31 years.
const MIN_PER_SECOND: f64 = 1e-9;

/// Configuration of the retry budget. Amounts are in tokens, counted in thousandths, from 0.001 up. One
/// token is one ordinary retry.
///
/// # Default
/// 10 initial tokens, 0.1 per request (10 %), 0.1 per second, at most 100; each retry costs 1.
///
/// ```
/// use relent_core::BudgetConfig;
/// use relent_core::destination::Budget;
///
/// let budget = Budget::new(&BudgetConfig { initial_tokens: 5.0, ..BudgetConfig::DEFAULT })?;
/// assert_eq!(budget.balance(), 5.0);
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BudgetConfig {
    /// Tokens deposited by every request: the ratio of retries to requests.
    pub ratio: f64,
    /// Tokens deposited by every success.
    pub success: f64,
    /// Tokens at the start.
    pub initial_tokens: f64,
    /// Tokens deposited per second, so that a budget without traffic recovers. At least one token in 31
    /// years, or 0.
    pub per_second: f64,
    /// The most tokens that the budget holds.
    pub capacity: f64,
    /// Cost of a retry.
    pub cost: f64,
    /// Cost of a retry after a throttled failure.
    pub throttled_cost: f64,
    /// Cost of a retry after a timeout; `None` means `cost`. While the [`CircuitBreaker`](crate::destination::CircuitBreaker) limits the
    /// rate, the retry is granted even if the budget cannot pay.
    pub timeout_cost: Option<f64>,
    /// Minimum balance: a retry is granted only if at least this much is left.
    pub min_tokens: f64,
    /// Reserve on top of the minimum balance after a failure that may be a sign of overload: one faster
    /// than successes, a timeout, or any before the first success. The [`CircuitBreaker`](crate::destination::CircuitBreaker) detects
    /// such failures; without one this has no effect. After two failures in a row, with less than the
    /// initial tokens left, the retry is also delayed by 4 to 8 s, within `max_delay`.
    pub overload_reserve: f64,
    /// Whether a retry is queued at the [`CircuitBreaker`](crate::destination::CircuitBreaker) when the budget is exhausted, until there
    /// is headroom ([`AttemptKind::UnfundedRetry`](crate::destination::AttemptKind::UnfundedRetry)). Not after a timeout, since the next
    /// attempt would cost the destination as much again. Without a circuit breaker, or with
    /// [`charge_failures`](Self::charge_failures), this has no effect: an exhausted budget ends the
    /// request.
    pub queue_when_exhausted: bool,
    /// Whether a successful last retry gets its cost back (AWS). With a [`CircuitBreaker`](crate::destination::CircuitBreaker), not
    /// while failures may be a sign of overload.
    pub refund_on_success: bool,
    /// Whether every failure takes the cost, with or without a retry (gRFC A6), instead of every retry.
    pub charge_failures: bool,
}

impl BudgetConfig {
    /// 10 % of the requests, with a few initial tokens and a slow refill by time.
    pub const DEFAULT: Self = Self {
        ratio: 0.1,
        success: 0.0,
        initial_tokens: 10.0,
        per_second: 0.1,
        capacity: 100.0,
        cost: 1.0,
        throttled_cost: 1.0,
        timeout_cost: None,
        min_tokens: 0.0,
        overload_reserve: 0.0,
        queue_when_exhausted: false,
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
            ("initial_tokens", self.initial_tokens),
            ("capacity", self.capacity),
            ("cost", self.cost),
            ("throttled_cost", self.throttled_cost),
            ("timeout_cost", self.timeout_cost_or_cost()),
            ("min_tokens", self.min_tokens),
            ("overload_reserve", self.overload_reserve),
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
            if amount > 0.0 && amount < MIN_AMOUNT {
                return Err(PolicyError::new(
                    key,
                    Found::Number(amount),
                    "a budget counts in thousandths of a token: use 0 for nothing, or 0.001 and more",
                ));
            }
            index += 1;
        }
        if !(self.per_second >= 0.0 && self.per_second <= 1_000_000.0)
            || self.per_second > 0.0 && self.per_second < MIN_PER_SECOND
        {
            return Err(PolicyError::new(
                "per_second",
                Found::Number(self.per_second),
                "the tokens per second of a budget are a number from 0.000000001 to 1000000, or 0 for none",
            ));
        }
        if self.initial_tokens > self.capacity {
            return Err(PolicyError::new(
                "initial_tokens",
                Found::Number(self.initial_tokens),
                "initial_tokens may not exceed the capacity",
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
        // With `charge_failures` a retry needs a balance above the minimum; otherwise the minimum has
        // to remain.
        let floor = self.min_tokens + self.overload_reserve;
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
