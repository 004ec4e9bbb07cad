//! The cap of a backoff (`max_delay`).

use core::time::Duration;

use crate::policy::backoff::Backoff;

/// The default cap of a growing backoff.
const DEFAULT_MAX_DELAY: Duration = Duration::from_secs(60);

/// The stage at which the cap applies (published algorithms disagree).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Ceiling {
    /// backoff → cap → jitter. The default: clients that have reached the cap are still spread over
    /// the jitter's whole range.
    #[default]
    BeforeJitter,
    /// backoff → jitter → cap. Most clients then get the same delay. For published algorithms that
    /// are defined this way.
    AfterJitter,
}

/// The default cap of this backoff: not below its longest fixed delay.
pub(crate) const fn default_max_delay(backoff: &Backoff) -> Option<Duration> {
    if !backoff.grows() {
        return None;
    }
    match backoff.longest_fixed_delay() {
        Some(named) if named.as_nanos() > DEFAULT_MAX_DELAY.as_nanos() => Some(named),
        _ => Some(DEFAULT_MAX_DELAY),
    }
}
