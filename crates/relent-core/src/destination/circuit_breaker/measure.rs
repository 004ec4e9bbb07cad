//! Measurements of the circuit breaker: the demand, recent outcomes of attempts, and their baseline.

use core::time::Duration;

use super::attempt::BreakerOutcome;
use super::rules::BreakerRule;
use crate::time::{Instant, NANOS_PER_SECOND};
use crate::window::Window;

/// Requests per second from which a process sees enough to hold back first attempts; slower processes
/// never do.
pub(super) const HIGH_TRAFFIC_PER_SECOND: f64 = 4.0;

/// Requests per second over the last minute.
#[derive(Debug)]
pub(super) struct Demand {
    window: Window<1>,
    first: Option<Instant>,
    /// The rate that is kept while the breaker is not normal. Callers of queued requests make no new
    /// ones, which is no reason to release them more slowly.
    kept: f64,
    /// Whether it [was measured](Self::is_measured).
    is_kept_measured: bool,
}

/// The window has twelve slots of five seconds; the last one is running.
const SLOT_NANOS: u64 = 5_000_000_000;
const WHOLE_SLOTS: u64 = 11;
/// Shorter uptimes count as this long, so that the first requests are not extrapolated.
const MIN_UPTIME_NANOS: u64 = 1_000_000_000;

impl Demand {
    pub(super) const fn new() -> Self {
        Self {
            window: Window::new(Duration::from_secs(60)),
            first: None,
            kept: 0.0,
            is_kept_measured: false,
        }
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

    /// When the current slot of the window ends; `None` before the first request.
    pub(super) fn slot_ends(&self, now: Instant) -> Option<Instant> {
        let end = (now.as_nanos() / SLOT_NANOS)
            .saturating_add(1)
            .saturating_mul(SLOT_NANOS);
        self.first.map(|_| Instant::from_nanos(end))
    }

    /// Keeps the current rate.
    pub(super) fn keep(&mut self, now: Instant) {
        self.kept = self.rate(now);
        self.is_kept_measured = self.is_measured(now);
    }

    /// Queued requests that arrived in so many nanoseconds count as demand however long they wait.
    pub(super) fn keep_queued(&mut self, queued: usize, came_in: u64) {
        let came_in = came_in.max((WHOLE_SLOTS + 1) * SLOT_NANOS);
        self.kept = self.kept.max(queued as f64 / came_in as f64 * 1e9);
    }

    /// The demand that the limit is a multiple of: the current rate, or the kept one if that is higher.
    pub(super) fn baseline(&mut self, now: Instant) -> f64 {
        if BreakerRule::KeptDemand.is_on() {
            self.rate(now).max(self.kept)
        } else {
            self.rate(now)
        }
    }

    /// Whether the requests of the last minute are more than two standard deviations: n > 2√n.
    fn is_measured(&mut self, now: Instant) -> bool {
        self.counted(now) > 4
    }

    /// Whether enough requests are made, or were before any was queued, for their rate to be known.
    pub(super) fn is_rate_known(&mut self, now: Instant) -> bool {
        self.is_kept_measured || self.is_measured(now)
    }

    /// Whether the first request was made before the window began.
    pub(super) fn covers_a_minute(&self, now: Instant) -> bool {
        let window = (WHOLE_SLOTS + 1) * SLOT_NANOS;
        self.first
            .is_some_and(|first| now.nanos_since(first) >= window)
    }

    fn counted(&mut self, now: Instant) -> u32 {
        let [count] = self.window.totals(now);
        count
    }

    /// Nanoseconds that the count covers.
    fn covered(&self, now: Instant) -> u64 {
        let covered = WHOLE_SLOTS * SLOT_NANOS + now.as_nanos() % SLOT_NANOS;
        let since = self.first.map_or(0, |first| now.nanos_since(first));
        covered.min(since).max(MIN_UPTIME_NANOS)
    }

    /// Requests per second. Never zero after a first request, however long ago.
    fn rate(&mut self, now: Instant) -> f64 {
        if self.first.is_none() {
            return 0.0;
        }
        f64::from(self.counted(now).max(1)) / self.covered(now) as f64 * 1e9
    }
}

/// Longest time, in nanoseconds, that a process waits for requests to come, or between probes of queued ones.
pub(super) const MAX_EXPECTED_NANOS: u64 = 20_000_000_000;

/// Expected nanoseconds until so many requests have arrived, at most `MAX_EXPECTED_NANOS`.
pub(super) fn expected_nanos(requests: f64, demand: f64) -> u64 {
    let expected = requests / demand.max(1e-9) * NANOS_PER_SECOND;
    (expected as u64).min(MAX_EXPECTED_NANOS)
}

/// Outcomes of attempts since the last evaluation.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Tally {
    since: Instant,
    successes: u32,
    pub(super) failures: u32,
    /// Failures that were rejections because of overload, and timeouts.
    rejected: u32,
    timed_out: u32,
    /// Sum of the latencies of the successes, in nanoseconds.
    took: u64,
}

/// An evaluation needs this many attempts and this much time, or `MAX_WINDOW_NANOS` alone.
const MIN_ATTEMPTS: u32 = 8;
const MIN_WINDOW_NANOS: u64 = 500_000_000;
const MAX_WINDOW_NANOS: u64 = 10_000_000_000;
/// Overload is acted upon when so many attempts fail.
const MIN_OVERLOAD_FAILURES: u32 = 3;
impl Tally {
    pub(super) fn clear(&mut self, now: Instant) {
        *self = Self {
            since: now,
            ..Self::default()
        };
    }

    /// Adds so many successes with this sum of latencies in nanoseconds.
    pub(super) fn add(&mut self, successes: u32, took: u64) {
        self.successes = self.successes.saturating_add(successes);
        self.took = self.took.saturating_add(took);
    }

    pub(super) fn failure(&mut self, ended: BreakerOutcome) {
        self.failures = self.failures.saturating_add(1);
        let counter = match ended {
            BreakerOutcome::Overloaded => &mut self.rejected,
            BreakerOutcome::TimedOut => &mut self.timed_out,
            _ => return,
        };
        *counter = counter.saturating_add(1);
    }

    /// Whether the server rejected most attempts because there are too many (429).
    pub(super) fn is_mostly_rejected(&self) -> bool {
        f64::from(self.rejected) * 2.0 >= self.attempts()
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        let passed = now.nanos_since(self.since);
        passed >= MAX_WINDOW_NANOS
            || passed >= MIN_WINDOW_NANOS && self.attempts() >= f64::from(MIN_ATTEMPTS)
    }

    /// Whether something succeeded and nothing failed.
    pub(super) const fn is_faultless(&self) -> bool {
        self.successes > 0 && self.failures == 0
    }

    /// Whether enough attempts failed to limit a normal breaker if the cause is overload.
    pub(super) const fn has_many_failures(&self) -> bool {
        self.failures >= MIN_OVERLOAD_FAILURES
    }

    /// Whether nothing was rejected because of overload, and nothing timed out.
    pub(super) const fn has_only_plain_failures(&self) -> bool {
        self.rejected == 0 && self.has_no_timeouts()
    }

    /// Whether nothing timed out, so that no queue delays attempts beyond their timeouts.
    pub(super) const fn has_no_timeouts(&self) -> bool {
        self.timed_out == 0
    }

    /// Whether holding back requests loses little: most attempts failed, and half of those timed out.
    /// Rejections cost less, and a server-side limiter admits the same number whatever its clients
    /// send.
    pub(super) const fn loses_little_if_held(&self) -> bool {
        self.failures > self.successes && self.timed_out >= self.failures.div_ceil(2)
    }

    /// The earliest time of the next regular evaluation.
    pub(super) fn earliest(&self) -> Instant {
        self.since.plus_nanos(MIN_WINDOW_NANOS)
    }

    /// Seconds since counting began.
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

    /// Share of the attempts that failed.
    pub(super) fn failed(&self) -> f64 {
        f64::from(self.failures) / self.attempts().max(1.0)
    }

    /// How much was seen, from 0 to 1.
    pub(super) fn weight(&self) -> f64 {
        if BreakerRule::Weight.is_on() {
            (self.attempts() / f64::from(MIN_ATTEMPTS)).min(1.0)
        } else {
            1.0
        }
    }

    /// Factor on the rate after more failures than the baseline. It stays near 1 after few attempts.
    pub(super) fn kept(&self, baseline: &Baseline) -> f64 {
        let beyond = f64::from(self.failures) - baseline.failed * self.attempts();
        1.0 - beyond.max(0.0) / (self.attempts() + 3.0)
    }

    /// Mean latency of a success, in nanoseconds.
    pub(super) fn mean(&self) -> Option<f64> {
        (self.successes > 0).then(|| self.took as f64 / f64::from(self.successes))
    }
}

/// Baseline latency of a success in nanoseconds (0 for unknown), and baseline share of failures.
/// Learned while the breaker is normal and nothing is slow.
#[derive(Default, Debug)]
pub(super) struct Baseline {
    took: f64,
    failed: f64,
    /// Evaluations that it was learned from, at most `REMEMBERED_WINDOWS`.
    learned: u32,
}

const REMEMBERED_WINDOWS: u32 = 16;

/// A success in a queue takes more than so many times the baseline plus so many nanoseconds.
const SLOW_THRESHOLD: (f64, f64) = (1.5, 1e7);
/// Fewer successes do not show baseline latency; neither do those that take longer than this.
const MIN_FAST_SUCCESSES: u32 = 3;
const NOT_FAST_THRESHOLD: (f64, f64) = (1.5, 0.0);
/// Silence is so many times the baseline (less in a low-traffic process), or this long.
const SILENCE_FACTOR: f64 = 10.0;
const SILENCE_FACTOR_LOW_TRAFFIC: f64 = 3.0;
const SILENCE_NANOS: u64 = 250_000_000;
const SILENCE_REQUESTS: f64 = 8.0;
/// Upper bound of the baseline share of failures where they may be caused by load: a queue may have
/// rejected the rest.
const MAX_BASELINE_FAILURES: f64 = 0.5;
/// A breaker that began in an outage or in a queue knows the baseline after so many evaluations in the
/// normal state.
const WELL_LEARNED_WINDOWS: u32 = 4;

impl Baseline {
    /// Learns slowly.
    pub(super) fn learn(&mut self, tally: &Tally) {
        let Some(mean) = tally.mean() else { return };
        self.learn_failure_share(tally);
        if self.took == 0.0 {
            self.took = mean;
        } else {
            self.took += (mean - self.took) / f64::from(REMEMBERED_WINDOWS);
        }
    }

    /// Learns latency in the limited state until the normal state has provided enough: without a
    /// baseline nothing is slow. The lowest value is nearest to the latency without a queue.
    pub(super) fn learn_while_limited(&mut self, tally: &Tally) {
        if let Some(mean) = tally.mean()
            && (self.took == 0.0 || self.learned < WELL_LEARNED_WINDOWS && mean < self.took)
            && tally.is_faultless()
        {
            self.took = mean;
        }
    }

    pub(super) fn learn_failure_share(&mut self, tally: &Tally) {
        self.learned = (self.learned + 1).min(REMEMBERED_WINDOWS);
        self.failed += (tally.failed() - self.failed) / f64::from(self.learned);
    }

    /// Learns faster: the failures are not caused by the client's own attempts, and their share may
    /// have changed.
    pub(super) fn relearn_failure_share(&mut self, tally: &Tally) {
        if BreakerRule::Relearn.is_on() {
            self.learned = self.learned.min(WELL_LEARNED_WINDOWS);
        }
        self.learn_failure_share(tally);
    }

    /// Whether it was learned from enough evaluations.
    pub(super) const fn is_well_learned(&self) -> bool {
        self.learned >= WELL_LEARNED_WINDOWS
    }

    /// Baseline latency in nanoseconds; 0 for unknown.
    pub(super) const fn took(&self) -> f64 {
        self.took
    }

    /// Baseline attempts per request.
    pub(super) fn attempts(&self) -> f64 {
        1.0 / (1.0 - self.failed.min(MAX_BASELINE_FAILURES))
    }

    /// Whether more attempts fail than the baseline. Failures with full service time (`served`) are not
    /// caused by load, so their baseline has no upper bound.
    pub(super) fn fails_above_baseline(&self, tally: &Tally, served: bool) -> bool {
        let most = match served || !BreakerRule::BaselineShare.is_on() {
            true => 1.0,
            false => MAX_BASELINE_FAILURES,
        };
        tally.failed() > 1.5 * self.failed.min(most) + 0.02
    }

    /// Whether there is overload: most failures are timeouts, and no successes with baseline latency
    /// came with them. Such successes show that there is no queue, and that timeouts were packet loss.
    pub(super) fn is_overload_by_timeouts(&self, tally: &Tally) -> bool {
        let fast = tally.successes >= MIN_FAST_SUCCESSES
            && !tally
                .mean()
                .is_some_and(|mean| self.is_over_threshold(NOT_FAST_THRESHOLD, mean));
        tally.timed_out * 2 >= tally.failures.max(1) && !(fast && BreakerRule::FastSuccess.is_on())
    }

    /// Whether successes took so long that there is a queue.
    pub(super) fn is_slow(&self, tally: &Tally) -> bool {
        tally.mean().is_some_and(|mean| self.is_slow_success(mean))
    }

    /// Whether a success of this latency in nanoseconds was in a queue.
    pub(super) fn is_slow_success(&self, took: f64) -> bool {
        self.is_over_threshold(SLOW_THRESHOLD, took)
    }

    /// Nanoseconds without a success that count as silence at this demand. Several requests are made in
    /// that time, so chance does not explain that none succeeds.
    pub(super) fn silence(&self, demand: f64) -> u64 {
        let small = demand < HIGH_TRAFFIC_PER_SECOND;
        let times = if small {
            SILENCE_FACTOR_LOW_TRAFFIC
        } else {
            SILENCE_FACTOR
        };
        let silence = match self.took > 0.0 {
            true => SILENCE_NANOS.min((self.took * times) as u64),
            false => SILENCE_NANOS,
        };
        match small {
            true => silence,
            false if BreakerRule::SilenceOfRequests.is_on() => {
                silence.max((SILENCE_REQUESTS / demand * 1e9) as u64)
            }
            false => silence,
        }
    }

    fn is_over_threshold(&self, (times, more): (f64, f64), took: f64) -> bool {
        self.took > 0.0 && took > times * self.took + more
    }
}

/// Share of attempts that fail, over about the last hundred.
#[derive(Default, Debug)]
pub(super) struct Share {
    value: f64,
    count: u32,
}

const SHARE_SAMPLES: u32 = 100;

impl Share {
    pub(super) fn add(&mut self, failed: bool) {
        self.count = (self.count + 1).min(SHARE_SAMPLES);
        self.value += (f64::from(u8::from(failed)) - self.value) / f64::from(self.count);
    }

    /// Adds so many successes; equivalent to adding them one by one.
    pub(super) fn add_successes(&mut self, count: u32) {
        if self.value == 0.0 {
            self.count = self.count.saturating_add(count).min(SHARE_SAMPLES);
            return;
        }
        for _ in 0..count {
            self.add(false);
        }
    }

    /// Estimated probability that the next attempt fails, with a prior for few samples.
    pub(super) fn failure_probability(&self) -> f64 {
        let count = f64::from(self.count);
        (self.value * count + 1.0) / (count + 3.0)
    }

    pub(super) const fn get(&self) -> f64 {
        self.value
    }
}
