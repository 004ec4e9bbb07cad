//! The most that a backoff may be.

use core::time::Duration;

use crate::backoff::Backoff;

/// The ceiling of a backoff that grows, unless the policy names another.
const DEFAULT_MAX_DELAY: Duration = Duration::from_secs(60);

/// Where the ceiling cuts (published algorithms disagree).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Ceiling {
    /// backoff → ceiling → jitter. The default: clients that have reached the ceiling are still
    /// spread over the jitter's whole range.
    #[default]
    BeforeJitter,
    /// backoff → jitter → ceiling. Lands most clients on one and the same value; here for
    /// algorithms that were published so (R2.3, R3.1, R4.1).
    AfterJitter,
}

/// The ceiling of this backoff where nobody names one: above no wait that it names itself.
pub(crate) const fn default_max_delay(backoff: &Backoff) -> Option<Duration> {
    if !backoff.grows() {
        return None;
    }
    match backoff.longest_named() {
        Some(named) if named.as_nanos() > DEFAULT_MAX_DELAY.as_nanos() => Some(named),
        _ => Some(DEFAULT_MAX_DELAY),
    }
}
