//! Whether more retries get more done where failures come at once: it is tried, in steps.

use super::WIDEST;
use super::measure::Share;
use crate::random::{Random, up_to};
use crate::time::Instant;

/// The ratio of retries to requests that is harmless in any case.
const NARROW: f64 = 0.1;
/// The first step beyond it, and how much wider each later one is.
const FIRST: f64 = 0.2;
const GROWTH: f64 = 1.5;
/// A step takes this many attempts.
const ENOUGH: u32 = 30;
/// Nanoseconds for which more is needed before more is tried, give or take a half. A queue that is full for a tenth of
/// a second refuses most of what comes then, to all processes at the same time; if they all tried at once, the queue
/// would stay full, and none would have seen it otherwise.
const LASTING: u64 = 2_000_000_000;
/// More retries are to raise the share that fails by no more than this, and what is chance.
const RISE: f64 = 0.03;
/// Nanoseconds for which nothing is tried after a step that failed, give or take a half; twice as long after
/// each further one.
const PAUSE: u64 = 60_000_000_000;
const LONGEST_PAUSE: u64 = 600_000_000_000;

/// A service that refuses at once may have a bad node, which a retry avoids, or too little room, which a retry
/// takes from somebody else. One sees the difference by what more retries do: with a bad node the share that
/// fails stays, with too little room it rises.
///
/// All processes that call the service find the same, since each of them tries it.
#[derive(Debug)]
pub(super) struct Widening {
    /// The most that is made.
    ratio: f64,
    /// What failed before it was widened, and since.
    narrow: Share,
    wide: Share,
    /// Whether more is needed than is made while it is narrow.
    is_needed: bool,
    /// Attempts in this step.
    attempts: u32,
    /// Nothing is tried before.
    paused_until: Instant,
    pause: u64,
}

impl Widening {
    pub(super) fn new() -> Self {
        Self {
            ratio: NARROW,
            narrow: Share::default(),
            wide: Share::default(),
            is_needed: false,
            attempts: 0,
            paused_until: Instant::ORIGIN,
            pause: PAUSE,
        }
    }

    /// The most retries per request.
    pub(super) const fn ratio(&self) -> f64 {
        self.ratio
    }

    fn is_wide(&self) -> bool {
        self.ratio > NARROW
    }

    /// Nothing is tried for so many nanoseconds, give or take a half.
    fn wait(&mut self, now: Instant, nanos: u64, random: &mut (impl Random + ?Sized)) {
        let wait = (nanos / 2).saturating_add(up_to(nanos, random));
        let until = Instant::from_nanos(now.as_nanos().saturating_add(wait));
        self.paused_until = self.paused_until.max(until);
    }

    /// What fails while it is narrow is counted anew.
    fn narrow_again(&mut self) {
        self.ratio = NARROW;
        self.is_needed = false;
        self.narrow = Share::default();
        self.attempts = 0;
    }

    pub(super) fn on_successes(&mut self, count: u32) {
        self.attempts = self.attempts.saturating_add(count);
        match self.is_wide() {
            true => self.wide.add_successes(count),
            false => self.narrow.add_successes(count),
        }
    }

    /// Something failed; `needed` is the ratio that would hide what fails. While the budget is `bound`, nothing
    /// more is made than while it is narrow, and nothing can be found out. Only this ends a step, so that it
    /// makes no difference when successes are told.
    pub(super) fn on_failure(
        &mut self,
        now: Instant,
        needed: f64,
        bound: bool,
        random: &mut (impl Random + ?Sized),
    ) {
        if bound && self.is_wide() {
            self.narrow_again();
        }
        self.attempts = self.attempts.saturating_add(1);
        if !self.is_wide() {
            let is_needed = needed > NARROW;
            if is_needed != self.is_needed {
                // What failed before is no measure of what fails now.
                self.is_needed = is_needed;
                self.narrow = Share::default();
                self.attempts = 0;
                self.wait(now, LASTING, random);
            }
            self.narrow.add(true);
            if is_needed && !bound && self.attempts >= ENOUGH && now >= self.paused_until {
                self.ratio = FIRST;
                self.wide = Share::default();
                self.attempts = 0;
            }
            return;
        }
        self.wide.add(true);
        if self.attempts < ENOUGH {
            return;
        }
        self.attempts = 0;
        if self.wide.is_above_share(&self.narrow, RISE) {
            self.narrow_again();
            self.wait(now, self.pause, random);
            self.pause = self.pause.saturating_mul(2).min(LONGEST_PAUSE);
        } else {
            self.ratio = (self.ratio * GROWTH).min(WIDEST);
            if self.ratio >= needed {
                self.pause = PAUSE;
            }
        }
    }
}
