//! Trace of the attempts of a call.

use super::extras::Extras;
use super::{Call, CallWork};
use crate::call::session::decision::Decision;
use crate::call::stop::Stop;
use crate::call::trace::{Trace, TraceEntry};
use crate::failure::Failure;
use crate::time::Instant;

impl<'w> Call<'w> {
    /// The extras, with the trace if one was requested.
    pub(super) fn extras(&mut self) -> Option<&mut Extras<'w>> {
        self.begin_trace();
        self.extras.as_deref_mut()
    }

    /// Creates the trace, if one was requested.
    pub(super) fn begin_trace(&mut self) {
        if self.work == CallWork::Extras && self.extras.is_none() {
            let extras = self.extras.get_or_insert_default();
            extras.trace = Some(Trace::new());
            if self.session.attempts() > 0 {
                // Otherwise the trace would have been created before: the attempt began with the call.
                extras.begin(1, self.session.started());
            }
        }
    }

    /// Records that an attempt begins.
    #[cold]
    pub(super) fn record_begin(&mut self, attempt: u32, now: Instant) {
        if let Some(extras) = self.extras() {
            extras.begin(attempt, now);
        }
    }

    /// Records that the attempt is over.
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

    /// Records that the call ends for another reason than a failed attempt: it cancels the running
    /// attempt, or no other attempt follows the last one.
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

    /// Whether the deciding failure was already counted when it occurred.
    pub(super) fn take_counted(&mut self) -> bool {
        let extras = self.extras.as_mut();
        extras.is_some_and(|extras| core::mem::take(&mut extras.counted))
    }
}
