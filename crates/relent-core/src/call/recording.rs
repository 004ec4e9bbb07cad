//! What a call records of its attempts.

use super::extras::Extras;
use super::{Attends, Call, Place};
use crate::decision::{Decision, Stop};
use crate::failure::Failure;
use crate::time::Instant;
use crate::trace::{Trace, TraceEntry};

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
