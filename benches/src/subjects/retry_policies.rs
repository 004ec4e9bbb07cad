//! retry-policies: delays only. It reads the clock for each, to return the time of the retry.

use std::hint::black_box;
use std::time::{Duration, SystemTime};

use retry_policies::policies::ExponentialBackoff;
use retry_policies::{Jitter, RetryPolicy};

use crate::{Row, Scenario};

/// Its rows.
pub const ROWS: &[Row] = &[Row::new(Scenario::TenDelays, "retry-policies", ten_delays)];

fn ten_delays(n: u64) {
    for _ in 0..n {
        let policy = ExponentialBackoff::builder()
            .retry_bounds(Duration::from_millis(10), Duration::from_secs(60))
            .jitter(Jitter::Full)
            .build_with_max_retries(10);
        let started = SystemTime::now();
        for retry in 0..10 {
            let _ = black_box(policy.should_retry(started, retry));
        }
    }
}
