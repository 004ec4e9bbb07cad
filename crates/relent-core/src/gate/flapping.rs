//! A destination that goes down and comes up again within seconds.

use super::OPEN;
use crate::time::Instant;

/// A gate that opens again within so many nanoseconds was closed briefly.
const BRIEF: u64 = 2_500_000_000;
/// Failures so many nanoseconds before those that close the gate have the same reason.
const EDGE: u64 = 100_000_000;
/// After a brief closure the gate opens with this many times the multiple with which all was well.
const STEP: f64 = 1.2;
/// What is left of its part above the demand where it was too much.
const TOO_MUCH: f64 = 0.5;

/// Whether the gate has last been closed briefly, and nothing says that this came of load. It judges twice a second and
/// opens with little headroom, so in an up time of a second it would not find out what there is room for: it takes up
/// the multiple where it was. And it does not find out late that the destination is up, since the fresh requests probe.
#[derive(Debug)]
pub(super) struct Flapping {
    /// When the gate last closed or opened again.
    since: Instant,
    /// When the first of the attempts started that were made and failed since then, and since a judgement found that none
    /// does; [`Instant::MAX`] for none.
    failed: Instant,
    /// The same of timeouts and attempts that were too much: whether there were any.
    loaded: bool,
    /// Whether a judgement found overload since then: more failed, and what succeeded was slow.
    overload: bool,
    /// Whether it closed for failures at once, and nothing failed before them.
    sudden: bool,
    /// Whether it did so when it last closed, and opened again soon.
    brief: bool,
    /// All attempts as a multiple of the demand, as it opened or when all was well since.
    factor: f64,
}

impl Flapping {
    pub(super) const fn new() -> Self {
        Self {
            since: Instant::ORIGIN,
            failed: Instant::MAX,
            loaded: false,
            overload: false,
            sudden: false,
            brief: false,
            factor: OPEN,
        }
    }

    pub(super) fn on_failure(&mut self, started: Instant, at_once: bool) {
        if started >= self.since {
            self.failed = self.failed.min(started);
        }
        self.loaded |= !at_once;
    }

    pub(super) const fn on_overload(&mut self) {
        self.overload = true;
    }

    /// All was well, and this is the multiple of the demand from now on. The failures that close the gate may be judged
    /// before they do, and cut it: that says nothing of what there is room for.
    pub(super) const fn on_growth(&mut self, factor: f64) {
        self.factor = factor;
    }

    /// A judgement finds that all is well.
    pub(super) const fn on_faultless(&mut self) {
        self.failed = Instant::MAX;
        self.loaded = false;
        self.overload = false;
    }

    /// The gate closes: nothing but failures was heard since `run`. Says whether the fresh requests are to probe for as
    /// long as the closure is brief: the one before was, and all was well in between.
    pub(super) fn on_closed(&mut self, now: Instant, run: Instant) -> bool {
        self.sudden = !self.loaded && run.nanos_since(self.failed) <= EDGE;
        self.brief &= self.sudden;
        if self.overload {
            self.factor = 1.0 + (self.factor - 1.0) * TOO_MUCH;
        }
        self.begin(now);
        self.brief
    }

    /// The gate opens again: the multiple of the demand that it begins with, `headroom` if it was not closed briefly.
    pub(super) fn on_opened(&mut self, now: Instant, headroom: f64) -> f64 {
        self.brief = self.sudden && !self.loaded && is_brief(self.since, now);
        self.begin(now);
        self.factor = if self.brief {
            headroom.max(self.factor * STEP)
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

/// Whether a gate that has been closed since then would have been closed briefly if it opened now.
pub(super) fn is_brief(since: Instant, now: Instant) -> bool {
    now.nanos_since(since) < BRIEF
}
