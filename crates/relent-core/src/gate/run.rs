//! Failures in a row, and whether they can still be chance.

use super::measure::Share;
use crate::time::Instant;

/// In a process that attempts without a pause, chance closes the gate once in this many seconds; and
/// no more than this share of the failures of one that hardly ever does.
const ONCE_IN: f64 = 1000.0;
const CHANCE: f64 = 0.003;
/// One failure says nothing, however unusual it is; and those of a moment have one reason, such as a
/// queue that is full just then.
const FEWEST: u32 = 2;
const MOMENT: u64 = 100_000_000;
/// Timeouts that are taken for silence after a false alarm, in place of one.
const AGAIN: u32 = 2;
/// Failures more likely than this are taken to be as likely as this: a long outage is not usual.
const LIKELIEST: f64 = 0.9;

#[derive(Default, Debug)]
pub(super) struct Run {
    length: u32,
    /// Attempts of the run that ran into their timeouts.
    silent: u32,
    /// Since when nothing but failures was heard.
    since: Instant,
    /// When something last succeeded.
    answered: Instant,
    /// How likely one attempt fails by chance, as of the beginning of the run, and all of the run do.
    one: f64,
    all: f64,
}

impl Run {
    /// Whether something succeeded after this instant.
    pub(super) fn has_answered_since(&self, then: Instant) -> bool {
        self.answered > then
    }

    /// Since when nothing but failures was heard, if anything has failed since the last success.
    pub(super) const fn since(&self) -> Instant {
        self.since
    }

    /// Whether two or more have failed in a row.
    pub(super) const fn is_repeated(&self) -> bool {
        self.length >= FEWEST
    }

    /// Whether no more has failed than one timeout, or two, which are taken for silence.
    pub(super) const fn is_lone(&self) -> bool {
        self.length == self.silent && self.length <= AGAIN
    }

    pub(super) fn on_success(&mut self, now: Instant) {
        self.length = 0;
        self.silent = 0;
        self.answered = now;
    }

    /// Counts a failure; `silent` if the attempt ran into its timeout, and `share` is of what failed
    /// before it.
    pub(super) fn on_failure(&mut self, started: Instant, silent: bool, share: &Share) {
        if self.length == 0 {
            self.since = started.max(self.answered);
            self.one = share.likely().min(LIKELIEST);
            self.all = 1.0;
        }
        self.length = self.length.saturating_add(1);
        self.all *= self.one;
        self.silent = self.silent.saturating_add(u32::from(silent));
    }

    /// Whether so many failures at this demand are no chance any more.
    pub(super) fn is_outage(&self, now: Instant, demand: f64) -> bool {
        self.length >= FEWEST
            && now.nanos_since(self.since) >= MOMENT
            && self.all < CHANCE.min(1.0 / (demand * ONCE_IN).max(1e-9))
    }

    /// Whether nothing was heard for so long that the destination is taken to be down: an attempt ran
    /// into its timeout, and nothing succeeded in these nanoseconds. If that was a false alarm the last
    /// time, it takes two of them and twice the time.
    pub(super) fn is_silence(&self, now: Instant, nanos: u64, false_alarm: bool) -> bool {
        let times = if false_alarm { AGAIN } else { 1 };
        self.silent >= times && now.nanos_since(self.since) >= nanos * u64::from(times)
    }
}
