//! What a gate knows: the demand, how attempts have ended lately, and how they usually end.

use core::time::Duration;

use super::{BUSY, Ended, SECOND};
use crate::time::Instant;
use crate::window::Window;

/// Requests per second over the last minute.
#[derive(Debug)]
pub(super) struct Demand {
    window: Window<1>,
    first: Option<Instant>,
    /// The rate that is kept: those who are parked make no new requests, which is no reason to let
    /// them go more slowly.
    kept: f64,
    /// The [least](Self::least) then.
    kept_least: f64,
}

/// The window is twelve slots of five seconds, of which the last is running.
const SLOT: u64 = 5_000_000_000;
const WHOLE_SLOTS: u64 = 11;
/// A process that has just begun is not taken to go on like this.
const YOUNG: u64 = 1_000_000_000;

impl Demand {
    pub(super) const fn new() -> Self {
        Self {
            window: Window::new(Duration::from_secs(60)),
            first: None,
            kept: 0.0,
            kept_least: 0.0,
        }
    }

    /// Reads of each end: see [`Outbound::touch`](crate::Outbound::touch).
    #[inline]
    pub(super) fn touch(&self) -> u64 {
        let first = self.first.map_or(0, Instant::as_nanos);
        first ^ self.window.touch() ^ self.kept_least.to_bits()
    }

    pub(super) fn add(&mut self, now: Instant) {
        self.add_many(now, 1);
    }

    pub(super) fn add_many(&mut self, now: Instant, count: u64) {
        if count > 0 {
            self.first.get_or_insert(now);
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            self.window.add_many(now, 0, count);
        }
    }

    /// When requests begin to be counted apart from those of now; `None` before the first request.
    pub(super) fn slot_ends(&self, now: Instant) -> Option<Instant> {
        let end = (now.as_nanos() / SLOT)
            .saturating_add(1)
            .saturating_mul(SLOT);
        self.first.map(|_| Instant::from_nanos(end))
    }

    /// Keeps the rate of now.
    pub(super) fn keep(&mut self, now: Instant) {
        self.kept = self.rate(now);
        self.kept_least = self.least(now);
    }

    /// Those who are parked came in so many nanoseconds, and are demand however long they wait.
    pub(super) fn keep_parked(&mut self, parked: usize, came_in: u64) {
        let came_in = came_in.max((WHOLE_SLOTS + 1) * SLOT);
        self.kept = self.kept.max(parked as f64 / came_in as f64 * 1e9);
    }

    /// What the destination is held to a multiple of: the rate of now, or the one that was kept if that
    /// is more.
    pub(super) fn usual(&mut self, now: Instant) -> f64 {
        self.rate(now).max(self.kept)
    }

    /// Requests per second over the last minute, at least: as many as there are less twice what chance adds.
    fn least(&mut self, now: Instant) -> f64 {
        let count = f64::from(self.counted(now));
        let least = (count - 2.0 * libm::sqrt(count)).max(0.0);
        least / self.covered(now) as f64 * 1e9
    }

    /// Whether enough requests are made, or were before anybody was parked, for their rate to be known.
    pub(super) fn is_known(&mut self, now: Instant) -> bool {
        self.kept_least.max(self.least(now)) > 0.0
    }

    fn counted(&mut self, now: Instant) -> u32 {
        let [count] = self.window.totals(now);
        count
    }

    /// Nanoseconds in which that came.
    fn covered(&self, now: Instant) -> u64 {
        let covered = WHOLE_SLOTS * SLOT + now.as_nanos() % SLOT;
        let since = self.first.map_or(0, |first| now.nanos_since(first));
        covered.min(since).max(YOUNG)
    }

    /// Per second. Never zero after a first request, however long ago.
    fn rate(&mut self, now: Instant) -> f64 {
        if self.first.is_none() {
            return 0.0;
        }
        f64::from(self.counted(now).max(1)) / self.covered(now) as f64 * 1e9
    }
}

/// Nobody waits for more seconds than this until so many requests have come.
const LONGEST: f64 = 20.0;

/// In how many nanoseconds so many requests usually come, at most.
pub(super) fn usual_time(requests: f64, demand: f64) -> u64 {
    ((requests / demand.max(1e-9)).min(LONGEST) * SECOND) as u64
}

/// How attempts ended since the last judgement.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Tally {
    since: Instant,
    successes: u32,
    pub(super) failures: u32,
    /// Those of them that were refused as too much, and those that ran into their timeouts.
    refused: u32,
    timed_out: u32,
    /// Nanoseconds that the successes took together.
    took: u64,
}

/// A judgement needs this many attempts and this much time, or this much time alone.
const ENOUGH: u32 = 8;
const SOON: u64 = 500_000_000;
const LATE: u64 = 10_000_000_000;
/// Overload is acted upon when this share fails, and at least this many do.
const OVERLOAD: f64 = 0.1;
const OVERLOADS: u32 = 3;
/// One that finds overload may come as early as this, in nanoseconds, if it has seen so many attempts.
const EARLY: u64 = 100_000_000;
const CLEAR: f64 = 16.0;

impl Tally {
    pub(super) fn clear(&mut self, now: Instant) {
        *self = Self {
            since: now,
            ..Self::default()
        };
    }

    /// So many successes, which took so many nanoseconds together.
    pub(super) fn add(&mut self, successes: u32, took: u64) {
        self.successes = self.successes.saturating_add(successes);
        self.took = self.took.saturating_add(took);
    }

    pub(super) fn failure(&mut self, ended: Ended) {
        self.failures = self.failures.saturating_add(1);
        let counter = match ended {
            Ended::Overloaded => &mut self.refused,
            Ended::TimedOut => &mut self.timed_out,
            _ => return,
        };
        *counter = counter.saturating_add(1);
    }

    /// Whether attempts were refused as too many.
    pub(super) fn is_refused(&self) -> bool {
        self.refused > 0
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        let passed = now.nanos_since(self.since);
        passed >= LATE || passed >= SOON && self.attempts() >= f64::from(ENOUGH)
    }

    /// Whether something succeeded and nothing failed.
    pub(super) const fn is_faultless(&self) -> bool {
        self.successes > 0 && self.failures == 0
    }

    /// Whether so many fail that an open gate is limited if they come of overload.
    pub(super) fn is_many(&self) -> bool {
        self.failures >= OVERLOADS && self.failed() >= OVERLOAD
    }

    /// Whether so much has been seen that overload needs no more time to be found.
    pub(super) fn is_clear(&self, now: Instant) -> bool {
        now.nanos_since(self.since) >= EARLY && self.attempts() >= CLEAR
    }

    /// Whether nothing was refused as too much, and nothing timed out.
    pub(super) const fn is_plain(&self) -> bool {
        self.refused == 0 && self.is_answered()
    }

    /// Whether nothing timed out: there is no queue that attempts are left to wait in.
    pub(super) const fn is_answered(&self) -> bool {
        self.timed_out == 0
    }

    /// Whether holding back requests loses little: most attempts failed, and half of those timed out. What is refused
    /// costs less, and a limiter lets in as many whoever asks.
    pub(super) const fn is_lost_anyway(&self) -> bool {
        self.failures > self.successes && self.timed_out >= self.failures.div_ceil(2)
    }

    /// It is not due before.
    pub(super) fn earliest(&self) -> Instant {
        Instant::from_nanos(self.since.as_nanos().saturating_add(SOON))
    }

    /// How long it was counted.
    pub(super) fn seconds(&self, now: Instant) -> f64 {
        now.nanos_since(self.since) as f64 / 1e9
    }

    /// Successes per second.
    pub(super) fn served(&self, now: Instant) -> f64 {
        f64::from(self.successes) / self.seconds(now).max(1e-9)
    }

    fn attempts(&self) -> f64 {
        f64::from(self.successes) + f64::from(self.failures)
    }

    /// The share that failed.
    pub(super) fn failed(&self) -> f64 {
        f64::from(self.failures) / self.attempts().max(1.0)
    }

    /// How much was seen, from 0 to 1.
    pub(super) fn weight(&self) -> f64 {
        (self.attempts() / f64::from(ENOUGH)).min(1.0)
    }

    /// What is left of a rate after more failures than usual; few attempts say little.
    pub(super) fn kept(&self, usual: &Usual) -> f64 {
        let beyond = f64::from(self.failures) - usual.failed * self.attempts();
        1.0 - beyond.max(0.0) / (self.attempts() + 3.0)
    }

    /// How long a success took, in nanoseconds.
    pub(super) fn mean(&self) -> Option<f64> {
        (self.successes > 0).then(|| self.took as f64 / f64::from(self.successes))
    }
}

/// How long a success usually takes, in nanoseconds (0 for unknown), and which share of attempts
/// fails: learned while the gate is open and nothing is slow.
#[derive(Default, Debug)]
pub(super) struct Usual {
    took: f64,
    failed: f64,
    /// Judgements that it was learned from, up to as many as it remembers.
    learned: u32,
}

const REMEMBERED: u32 = 16;
/// More than so many times what successes take now is a queue that was there from the start.
const STALE: f64 = 5.0;

/// A queue is half as long again as usual and ten milliseconds; a long one twice and a fifth of a
/// second: what is left below a timeout of a second is time to act.
const SLOW: (f64, f64) = (1.5, 1e7);
const VERY_SLOW: (f64, f64) = (2.0, 2e8);
/// So slow is one success in twenty by chance, if they vary as exponential times do.
const FAR: (f64, f64) = (3.0, 1e7);
/// So few successes are not as fast as ever; and so are those that take longer than this.
const FAST: u32 = 3;
const UNLIKE: (f64, f64) = (1.5, 0.0);
/// So many times as long as usual is silence, less where there is seldom anything to be heard; or
/// this long.
const MANY: f64 = 10.0;
const MANY_SMALL: f64 = 3.0;
const SILENCE: u64 = 250_000_000;
const SEVERAL: f64 = 8.0;
/// No more is usual where failures may come of load: a queue may have refused the rest. And no more counts in what a
/// request takes on average.
const MOST_USUAL: f64 = 0.5;
/// A gate that began in an outage or in a queue has seen how it is without when it has learned from so many judgements
/// while it was open.
const WELL_LEARNED: u32 = 4;

impl Usual {
    /// Learns slowly, and little from what is far above it: a queue that builds up is not usual. Learns at once from what
    /// is far below it.
    pub(super) fn learn(&mut self, tally: &Tally) {
        let Some(mean) = tally.mean() else { return };
        self.learn_failed(tally);
        if self.took == 0.0 {
            self.took = mean;
        } else {
            self.took += (mean.min(2.0 * self.took) - self.took) / f64::from(REMEMBERED);
            self.took = self.took.min(STALE * mean);
        }
    }

    /// Learns from a limited gate what successes take, until an open one has taught enough: nothing is slow before that is
    /// known, and in a queue all would be. The fastest is the nearest to how it is without one.
    pub(super) fn learn_while_limited(&mut self, tally: &Tally) {
        if let Some(mean) = tally.mean()
            && (self.took == 0.0 || self.learned < WELL_LEARNED && mean < self.took)
            && tally.is_faultless()
        {
            self.took = mean;
        }
    }

    pub(super) fn learn_failed(&mut self, tally: &Tally) {
        self.learned = (self.learned + 1).min(REMEMBERED);
        self.failed += (tally.failed() - self.failed) / f64::from(self.learned);
    }

    /// The same, but sooner: what fails is known not to come of the gate's own attempts, and may have changed.
    pub(super) fn learn_failed_anew(&mut self, tally: &Tally) {
        self.learned = self.learned.min(WELL_LEARNED);
        self.learn_failed(tally);
    }

    /// Whether it was learned from enough judgements.
    pub(super) const fn is_well_learned(&self) -> bool {
        self.learned >= WELL_LEARNED
    }

    /// Nanoseconds; 0 for unknown.
    pub(super) const fn took(&self) -> f64 {
        self.took
    }

    /// Attempts that a request usually takes.
    pub(super) fn attempts(&self) -> f64 {
        1.0 / (1.0 - self.failed.min(MOST_USUAL))
    }

    /// Whether more fails than usual. Where what fails is `served`, it does not come of load, and as much as there is
    /// may be usual.
    pub(super) fn is_failing(&self, tally: &Tally, served: bool) -> bool {
        let most = if served { 1.0 } else { MOST_USUAL };
        tally.failed() > 1.5 * self.failed.min(most) + 0.02
    }

    /// Whether it is too much: most failures are timeouts, and there are no successes as fast as ever beside
    /// them. Without a queue, something was lost on the way.
    pub(super) fn is_too_much(&self, tally: &Tally) -> bool {
        let fast = tally.successes >= FAST && !self.is_beyond(UNLIKE, tally);
        tally.timed_out * 2 >= tally.failures.max(1) && !fast
    }

    /// Few successes take longer by chance: it has to be more than twice their standard deviation, if they vary
    /// as exponential times do.
    pub(super) fn is_slow(&self, tally: &Tally) -> bool {
        let (times, more) = SLOW;
        let chance = 1.0 + 2.0 / libm::sqrt(f64::from(tally.successes.max(1)));
        self.is_beyond((times.max(chance), more), tally)
    }

    /// Whether successes that take so many nanoseconds are known to be as fast as ever.
    pub(super) fn is_as_fast(&self, took: f64) -> bool {
        self.took > 0.0 && !self.is_less(SLOW, took)
    }

    pub(super) fn is_very_slow(&self, tally: &Tally) -> bool {
        self.is_beyond(VERY_SLOW, tally)
    }

    /// After how many nanoseconds without an answer nothing is heard any more, at this demand: in that time
    /// several requests are made, so that it is no chance that none of them succeeds.
    pub(super) fn silence(&self, demand: f64) -> u64 {
        let small = demand < BUSY;
        let times = if small { MANY_SMALL } else { MANY };
        let silence = match self.took > 0.0 {
            true => SILENCE.min((self.took * times) as u64),
            false => SILENCE,
        };
        match small {
            true => silence,
            false => silence.max((SEVERAL / demand * 1e9) as u64),
        }
    }

    /// Whether one success took so long that it alone speaks of a queue.
    pub(super) fn is_far_below(&self, took: u64) -> bool {
        self.is_less(FAR, took as f64)
    }

    /// The most nanoseconds that are not far below.
    pub(super) fn longest_fast(&self) -> u64 {
        let (times, more) = FAR;
        match self.took > 0.0 {
            true => (times * self.took + more) as u64,
            false => u64::MAX,
        }
    }

    fn is_beyond(&self, threshold: (f64, f64), tally: &Tally) -> bool {
        tally
            .mean()
            .is_some_and(|mean| self.is_less(threshold, mean))
    }

    fn is_less(&self, (times, more): (f64, f64), took: f64) -> bool {
        self.took > 0.0 && took > times * self.took + more
    }
}

/// The share of attempts that fail, over the last hundred or so.
#[derive(Default, Debug)]
pub(super) struct Share {
    value: f64,
    count: u32,
}

const MEMORY: u32 = 100;

impl Share {
    pub(super) fn add(&mut self, failed: bool) {
        self.count = (self.count + 1).min(MEMORY);
        self.value += (f64::from(u8::from(failed)) - self.value) / f64::from(self.count);
    }

    /// So many that did not fail, which comes to the same as one after the other.
    pub(super) fn add_successes(&mut self, count: u32) {
        if self.value == 0.0 {
            self.count = self.count.saturating_add(count).min(MEMORY);
            return;
        }
        for _ in 0..count {
            self.add(false);
        }
    }

    /// How likely the next attempt fails, as far as one can say who has seen so few.
    pub(super) fn likely(&self) -> f64 {
        let count = f64::from(self.count);
        (self.value * count + 1.0) / (count + 3.0)
    }

    /// Whether more than `limit` fails, by more than twice the standard deviation of so many.
    pub(super) fn is_above(&self, limit: f64) -> bool {
        let above = (self.value - limit).max(0.0);
        above * above > 4.0 * limit * (1.0 - limit) / f64::from(self.count.max(1))
    }

    pub(super) const fn get(&self) -> f64 {
        self.value
    }
}
