//! The two presets that need no file: `standard` and `patient`.

use core::time::Duration;

use crate::backoff::Backoff;
use crate::budget::BudgetConfig;
use crate::gate::GateConfig;
use crate::policy::Policy;

static STANDARD: Policy = Policy::builder(Backoff::exponential(Duration::from_millis(100)))
    .max_delay(Duration::from_secs(20))
    .max_retries(7)
    .budget(BudgetConfig {
        per_second: 0.0,
        timeout_cost: Some(3.0),
        overload_floor: 8.0,
        wait_when_empty: true,
        refund_on_success: true,
        ..BudgetConfig::DEFAULT
    })
    .gate(GateConfig::DEFAULT)
    .build_const();

static PATIENT: Policy = Policy::builder(Backoff::exponential(Duration::from_secs(1)))
    .max_delay(Duration::from_secs(32))
    .max_retries(10)
    .cut_last_wait(true)
    .hint_spread(0.25)
    .build_const();

impl Policy {
    /// The preset `standard`, the default for clients that share a destination: 8 attempts (full
    /// jitter from 100 ms, ceiling 20 s, about six seconds of waits), hints as a floor, a budget of
    /// 10 % with a reserve of 10 that is waited for when it is empty, and a gate. The last two act where they are shared: see
    /// [`Policy::new_budget`] and [`Policy::new_gate`].
    ///
    /// While a destination is down, a call with a deadline is queued until then, for five minutes at most. A call
    /// without one starts no attempt later than 30 s after it began, and 9 s while the destination has never
    /// responded: see [`GateConfig`].
    pub const STANDARD: &'static Self = &STANDARD;

    /// The preset `patient`, the default of `relent run` and `relent fetch`: one caller that would
    /// rather wait. Full jitter from 1 s doubling to 32 s, 10 retries, hints as a floor with a spread of a
    /// quarter, one last attempt before a time limit, no budget.
    pub const PATIENT: &'static Self = &PATIENT;
}
