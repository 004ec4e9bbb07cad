//! Consecutive failures, and whether chance explains them.

use super::measure::Share;
use super::rules::BreakerRule;
use crate::time::Instant;

/// In a process that attempts without a pause, chance brings the breaker down once in this many
/// seconds. In a process with few attempts, it does so after at most this share of the failures.
const FALSE_ALARM_SECONDS: f64 = 1000.0;
const MAX_CHANCE: f64 = 0.003;
/// A single failure proves nothing. Failures within this many nanoseconds have one cause, such as a
/// queue that is full at that moment.
const MIN_RUN: u32 = 2;
const MIN_RUN_NANOS: u64 = 100_000_000;
/// After so many failures in a row, a low-traffic process assumes an outage that many processes see.
const LONG_RUN: u32 = 3;
/// Timeouts that count as silence after a false alarm, instead of one.
const SILENT_AFTER_FALSE_ALARM: u32 = 2;

#[derive(Default, Debug)]
pub(super) struct Run {
    length: u32,
    /// Attempts of the run that timed out.
    silent: u32,
    /// Since when only failures were seen.
    since: Instant,
    /// When an attempt last succeeded.
    answered: Instant,
    /// Probability that one attempt fails by chance, as of the start of the run, and that all of the
    /// run do.
    one: f64,
    all: f64,
}

impl Run {
    /// Whether an attempt succeeded after this instant.
    pub(super) fn has_success_since(&self, then: Instant) -> bool {
        self.answered > then
    }

    /// Since when only failures were seen, if any attempt has failed since the last success.
    pub(super) const fn since(&self) -> Instant {
        self.since
    }

    /// Whether at least two attempts failed in a row.
    pub(super) const fn is_repeated(&self) -> bool {
        self.length >= MIN_RUN
    }

    /// Whether so many attempts failed in a row that the destination may be down.
    pub(super) const fn is_long(&self) -> bool {
        self.length >= LONG_RUN
    }

    /// Whether the run is a single timeout, or two, which count as silence.
    pub(super) const fn is_lone_timeout(&self) -> bool {
        self.length == self.silent && self.length <= SILENT_AFTER_FALSE_ALARM
    }

    pub(super) fn on_success(&mut self, now: Instant) {
        self.length = 0;
        self.silent = 0;
        self.answered = now;
    }

    /// Counts a failure. `silent`: the attempt timed out. `share`: failures before this one.
    pub(super) fn on_failure(&mut self, started: Instant, silent: bool, share: &Share) {
        if self.length == 0 {
            self.since = started.max(self.answered);
            self.one = share.failure_probability();
            self.all = 1.0;
        }
        self.length = self.length.saturating_add(1);
        self.all *= self.one;
        self.silent = self.silent.saturating_add(u32::from(silent));
    }

    /// Whether chance no longer explains the run at this demand.
    pub(super) fn is_outage(&self, now: Instant, demand: f64) -> bool {
        BreakerRule::Chance.is_on()
            && self.length >= MIN_RUN
            && now.nanos_since(self.since) >= MIN_RUN_NANOS
            && self.all < MAX_CHANCE.min(1.0 / (demand * FALSE_ALARM_SECONDS).max(1e-9))
    }

    /// Whether the destination is down because it is silent: an attempt timed out, and nothing
    /// succeeded in these nanoseconds. After a false alarm it takes two timeouts and twice the time.
    pub(super) fn is_silence(&self, now: Instant, nanos: u64, false_alarm: bool) -> bool {
        let times = if false_alarm {
            SILENT_AFTER_FALSE_ALARM
        } else {
            1
        };
        BreakerRule::Silence.is_on()
            && self.silent >= times
            && now.nanos_since(self.since) >= nanos * u64::from(times)
    }
}
