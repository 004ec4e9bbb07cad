//! Rarely needed parts of a call, stored apart: the trace, the caller's own delays, and the race of
//! hedges.

use alloc::boxed::Box;
use core::fmt;
use core::time::Duration;

use crate::call::race::Race;
use crate::call::session::decision::Decision;
use crate::call::trace::{Trace, TraceEntry};
use crate::destination::outbound::Permit;
use crate::failure::Failure;
use crate::time::Instant;

#[derive(Default)]
pub(super) struct Extras<'w> {
    pub(super) trace: Option<Trace>,
    pub(super) waits: Option<Box<dyn Iterator<Item = Duration> + Send + 'w>>,
    pub(super) race: Option<Race>,
    /// The slot of a hedge that was granted and has not begun.
    pub(super) hedge: Option<Permit>,
    /// The attempt that the next outcome belongs to: the last one started, unless several run.
    attempt: u32,
    started: Instant,
    /// Whether it is running.
    pub(super) runs: bool,
    /// Its failure, if the decision is based on another one.
    seen: Option<Failure>,
    /// Whether the deciding failure was already counted: an earlier one of a race.
    pub(super) counted: bool,
}

impl Extras<'_> {
    pub(super) const fn begin(&mut self, attempt: u32, now: Instant) {
        (self.attempt, self.started) = (attempt, now);
        self.runs = true;
        (self.seen, self.counted) = (None, false);
    }

    /// A race begins: outcomes are then reported for each attempt.
    pub(super) const fn begin_race(&mut self, race: Race) {
        self.race = Some(race);
        self.runs = false;
        (self.seen, self.counted) = (None, false);
    }

    /// This attempt ends the race. `seen`: its failure, if the decision is based on another one, which
    /// was already counted.
    pub(super) const fn end_race(&mut self, attempt: u32, started: Instant, seen: Option<Failure>) {
        (self.attempt, self.started) = (attempt, started);
        self.counted = seen.is_some();
        self.seen = seen;
    }

    pub(super) fn push(
        &mut self,
        ended: Instant,
        failure: Option<Failure>,
        decision: Option<Decision>,
    ) {
        self.runs = false;
        let failure = self.seen.take().or(failure);
        if let Some(trace) = &mut self.trace {
            trace.push(TraceEntry {
                attempt: self.attempt,
                started: self.started,
                ended,
                seen: failure.map(|failure| failure.cause),
                failure,
                decision,
            });
        }
    }
}

impl fmt::Debug for Extras<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extras")
            .field("trace", &self.trace)
            .field("race", &self.race)
            .finish_non_exhaustive()
    }
}
