//! The two built-in presets of this crate: `standard` and `patient`.

use core::time::Duration;

use crate::destination::budget::BudgetConfig;
use crate::destination::circuit_breaker::CircuitBreakerConfig;
use crate::policy::Policy;
use crate::policy::backoff::Backoff;

static STANDARD: Policy = Policy::builder(Backoff::exponential(Duration::from_millis(100)))
    .max_delay(Duration::from_secs(20))
    .max_retries(7)
    .budget(BudgetConfig {
        per_second: 0.0,
        timeout_cost: Some(3.0),
        overload_reserve: 8.0,
        queue_when_exhausted: true,
        refund_on_success: true,
        ..BudgetConfig::DEFAULT
    })
    .circuit_breaker(CircuitBreakerConfig::DEFAULT)
    .build_const();

static PATIENT: Policy = Policy::builder(Backoff::exponential(Duration::from_secs(1)))
    .max_delay(Duration::from_secs(32))
    .max_retries(10)
    .final_attempt_before_deadline(true)
    .retry_after_jitter(0.25)
    .build_const();

impl Policy {
    /// The preset `standard`, the default for clients that share a destination: 8 attempts (full
    /// jitter from 100 ms, cap 20 s, about six seconds of delays), hints as a floor, a circuit
    /// breaker, and a retry budget of 10 % with 10 initial tokens. Retries that the budget cannot
    /// pay are queued. Budget and circuit breaker work only if they are shared: see
    /// [`Policy::new_budget`] and [`Policy::new_circuit_breaker`].
    ///
    /// While a destination is down, a call is queued until its deadline, for at most five minutes.
    /// Without a deadline no attempt starts later than 30 s after the start of the call, or 9 s if
    /// the destination has never responded: see [`CircuitBreakerConfig`].
    pub const STANDARD: &'static Self = &STANDARD;

    /// The preset `patient`, the default of `relent run` and `relent fetch`, for a single caller
    /// that would rather wait than fail. Full jitter from 1 s doubling to 32 s, 10 retries, hints
    /// as a floor with a jitter of 25 %, a final attempt before a time limit, no budget.
    pub const PATIENT: &'static Self = &PATIENT;
}
