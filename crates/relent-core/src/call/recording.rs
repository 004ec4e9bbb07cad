//! What few calls need, out of the way of those that do not: the trace, waits of the caller's own, and
//! the race of hedges.

use alloc::boxed::Box;
use core::fmt;
use core::time::Duration;

use super::{Attends, Call, Place};
use crate::decision::{Decision, Stop};
use crate::failure::Failure;
use crate::outbound::Permit;
use crate::race::Race;
use crate::time::Instant;
use crate::trace::{Trace, TraceEntry};

#[derive(Default)]
pub(super) struct Extras<'w> {
    pub(super) trace: Option<Trace>,
    pub(super) waits: Option<Box<dyn Iterator<Item = Duration> + Send + 'w>>,
    pub(super) race: Option<Race>,
    /// The slot of the hedge that was granted and has not begun.
    pub(super) hedge: Option<Permit>,
    /// The attempt of which an outcome is told next: the last that started, unless several run.
    attempt: u32,
    started: Instant,
    /// Whether it runs.
    runs: bool,
    /// How it failed, if another failure decides.
    seen: Option<Failure>,
    /// Whether the failure that decides has been counted: the earlier of a race.
    counted: bool,
}

impl Extras<'_> {
    pub(super) const fn begin(&mut self, attempt: u32, now: Instant) {
        (self.attempt, self.started) = (attempt, now);
        self.runs = true;
        (self.seen, self.counted) = (None, false);
    }

    /// A race begins: which of its attempts ended how is said for each.
    pub(super) const fn begin_race(&mut self, race: Race) {
        self.race = Some(race);
        self.runs = false;
        (self.seen, self.counted) = (None, false);
    }

    /// The race is over with this attempt. `seen`: how it failed, if another failure decides, which was
    /// counted then.
    pub(super) const fn end_race(&mut self, attempt: u32, started: Instant, seen: Option<Failure>) {
        (self.attempt, self.started) = (attempt, started);
        self.counted = seen.is_some();
        self.seen = seen;
    }

    fn push(&mut self, ended: Instant, failure: Option<Failure>, decision: Option<Decision>) {
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

impl<'w, L: Place> Call<'w, L> {
    /// What there is, with the trace that was asked for.
    pub(super) fn extras(&mut self) -> Option<&mut Extras<'w>> {
        self.begin_trace();
        self.extras.as_deref_mut()
    }

    /// Begins the trace, if one was asked for.
    pub(super) fn begin_trace(&mut self) {
        if self.attends == Attends::Extras && self.extras.is_none() {
            let extras = self.extras.get_or_insert_default();
            extras.trace = Some(Trace::new());
            if self.session.attempts() > 0 {
                // It began with the call, or else the trace would have begun with it.
                extras.begin(1, self.session.started());
            }
        }
    }

    /// An attempt begins.
    #[cold]
    pub(super) fn record_begin(&mut self, attempt: u32, now: Instant) {
        if let Some(extras) = self.extras() {
            extras.begin(attempt, now);
        }
    }

    /// The attempt is over.
    pub(super) fn record(
        &mut self,
        ended: Instant,
        failure: Option<Failure>,
        decision: Option<Decision>,
    ) {
        if let Some(extras) = self.extras() {
            extras.push(ended, failure, decision);
        }
    }

    /// The call ends, and not because an attempt failed: the attempt that runs is cut off by it, or else
    /// there is no attempt after the last.
    pub(super) fn record_stop(&mut self, stop: Stop, now: impl FnOnce() -> Instant) {
        let decision = Some(Decision::Stop(stop));
        let Some(extras) = self.extras() else {
            return;
        };
        if extras.trace.is_none() {
            return;
        }
        if extras.runs {
            extras.push(now(), None, decision);
        } else if let Some(last) = self.last_recorded() {
            last.decision = decision;
        }
    }

    pub(super) fn last_recorded(&mut self) -> Option<&mut TraceEntry> {
        self.extras()?.trace.as_mut()?.last_mut()
    }

    /// Whether the failure that decides has been counted when it came.
    pub(super) fn take_counted(&mut self) -> bool {
        let extras = self.extras.as_mut();
        extras.is_some_and(|extras| core::mem::take(&mut extras.counted))
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
