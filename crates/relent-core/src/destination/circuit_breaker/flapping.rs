//! Flapping: a destination that goes down and comes up again within seconds.

use super::limit::NORMAL_FACTOR;
use super::rules::BreakerRule;
use crate::time::Instant;

/// An outage that ends within so many nanoseconds is brief.
const BRIEF_NANOS: u64 = 2_500_000_000;
/// Failures within so many nanoseconds before those that bring the breaker down have the same cause.
const SAME_CAUSE_NANOS: u64 = 100_000_000;
/// After a brief outage the breaker starts with this many times the last multiple without faults.
const BRIEF_OUTAGE_STEP: f64 = 1.2;

/// Whether the last outage was brief and not caused by load. The breaker evaluates twice a second and
/// restarts with little headroom, so it would find no headroom in an uptime of one second. It therefore
/// resumes the last multiple. New requests probe, so that it detects recovery soon.
#[derive(Debug)]
pub(super) struct Flapping {
    /// When the breaker last went down or came up again.
    since: Instant,
    /// Start of the first failed attempt since then and since the last evaluation without failures;
    /// [`Instant::MAX`] for none.
    failed: Instant,
    /// Whether there were timeouts or overload in that time.
    has_load_failures: bool,
    /// Whether plain failures brought it down, and nothing failed before them.
    sudden: bool,
    /// Whether the last outage began like that, and was brief.
    brief: bool,
    /// Attempts as a multiple of the demand, when the breaker came up or at the last evaluation without
    /// faults.
    factor: f64,
}

impl Flapping {
    pub(super) const fn new() -> Self {
        Self {
            since: Instant::ORIGIN,
            failed: Instant::MAX,
            has_load_failures: false,
            sudden: false,
            brief: false,
            factor: NORMAL_FACTOR,
        }
    }

    pub(super) fn on_failure(&mut self, started: Instant, plain_failure: bool) {
        if started >= self.since {
            self.failed = self.failed.min(started);
        }
        self.has_load_failures |= !plain_failure;
    }

    /// Nothing is wrong, and this is the multiple of the demand from now on. The failures that bring
    /// the breaker down may cut it before they do; that does not reduce the headroom.
    pub(super) const fn on_growth(&mut self, factor: f64) {
        self.factor = factor;
    }

    /// An evaluation finds no faults.
    pub(super) const fn on_faultless(&mut self) {
        self.failed = Instant::MAX;
        self.has_load_failures = false;
    }

    /// The breaker goes down; only failures were seen since `run`. Returns whether new requests probe
    /// as long as the outage is brief: the one before was brief, and nothing was wrong in between.
    pub(super) fn on_down(&mut self, now: Instant, run: Instant) -> bool {
        self.sudden = !self.has_load_failures && run.nanos_since(self.failed) <= SAME_CAUSE_NANOS;
        self.brief &= self.sudden;
        self.begin(now);
        self.brief
    }

    /// The breaker comes up. Returns the multiple of the demand to begin with: `headroom`, unless the
    /// outage was brief.
    pub(super) fn on_up(&mut self, now: Instant, headroom: f64) -> f64 {
        self.brief = BreakerRule::Flapping.is_on()
            && self.sudden
            && !self.has_load_failures
            && is_brief(self.since, now);
        self.begin(now);
        self.factor = if self.brief {
            headroom.max(self.factor * BRIEF_OUTAGE_STEP)
        } else {
            headroom
        };
        self.factor
    }

    const fn begin(&mut self, now: Instant) {
        self.since = now;
        self.on_faultless();
    }
}

/// Whether an outage that began at `since` would be brief if it ended now.
pub(super) fn is_brief(since: Instant, now: Instant) -> bool {
    now.nanos_since(since) < BRIEF_NANOS
}
