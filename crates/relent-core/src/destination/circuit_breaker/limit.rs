//! Rate limit of a circuit breaker in the limited state: how many attempts it admits.

use core::time::Duration;

use super::measure::Baseline;
use super::rules::BreakerRule;
use crate::time::{Instant, NANOS_PER_SECOND};

/// The multiple of the demand from which the limited state ends, if nothing is queued.
pub(super) const NORMAL_FACTOR: f64 = 1.2;

/// Additive increase of the multiple.
const STEP: f64 = 0.12;
/// Rise of the mean of a few successes that may be chance, in seconds per second.
const NOISE_SECONDS_PER_SECOND: f64 = 0.12;
const MAX_FACTOR: f64 = 4.0;
/// Rate that a success admits on top of the demand, as a multiple of it.
const INITIAL_HEADROOM: f64 = 0.1;
/// Queued requests are released over this many times the time in which they arrived: ρ/(1 − ρ) for ρ =
/// 0.8, and a tenth.
const SPREAD_FACTOR: f64 = 4.4;
/// A timer that is late by at most so many nanoseconds costs no release.
const MAX_TIMER_LATENESS_NANOS: u64 = 100_000_000;
/// Share of the demand that queued requests always get on top of it, and the multiple that admits no
/// more.
const MIN_EXTRA_SHARE: f64 = 0.02;
pub(super) const DEMAND_ONLY_FACTOR: f64 = 1.0 + MIN_EXTRA_SHARE;

/// Share of the goodput despite rejections that queued requests may use when new ones stop. After a
/// burst, half completes as many as all of it, and leaves headroom in a server queue too short to
/// measure.
const REPLACED_GOODPUT_SHARE: f64 = 0.5;

/// Upper bound of the baseline attempts per request: nothing else limits retries in the limited state.
/// The failures may be rejections by a queue too short to measure, and each further retry would raise
/// the baseline.
const MAX_ATTEMPTS_PER_REQUEST: f64 = 1.05;

fn attempts_per_request(baseline: &Baseline) -> f64 {
    match BreakerRule::OneInTwenty.is_on() {
        true => baseline.attempts().min(MAX_ATTEMPTS_PER_REQUEST),
        false => baseline.attempts(),
    }
}

/// Lower bound of the step scale, and its growth per good evaluation.
const MIN_STEP_SCALE: f32 = 1.0 / 32.0;
const STEP_SCALE_GROWTH: f32 = 1.05;

/// Scale of the steps above the demand. A step too large for a slow service brings the breaker down
/// before it sees the queue that it caused, and would do so repeatedly. So the scale is halved each
/// time.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepScale(f32);

impl StepScale {
    pub(super) const WHOLE: Self = Self(1.0);

    /// More attempts failed after a step, or the breaker goes down for a load-induced reason.
    pub(super) fn halve(&mut self) {
        if BreakerRule::HalvedStep.is_on() {
            self.0 = (self.0 / 2.0).max(MIN_STEP_SCALE);
        }
    }

    const fn lengthen(&mut self) {
        self.0 = (self.0 * STEP_SCALE_GROWTH).min(1.0);
    }

    /// The multiple of the demand that is admitted after a success.
    pub(super) fn headroom(self) -> f64 {
        (1.0 + INITIAL_HEADROOM * f64::from(self.0)).max(DEMAND_ONLY_FACTOR)
    }
}

/// Limits all attempts together to a multiple of the demand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub(super) factor: f64,
    /// The value before the last increase.
    before: f64,
    /// Baseline attempts per request.
    per_request: f64,
    /// Attempts that may start now, if the factor is below 1.
    tokens: f64,
    filled: Instant,
    /// When the next queued request may go, if the factor is at least 1.
    pub(super) next: Instant,
    /// Lower bound of the release rate of queued requests, per second.
    spread: f64,
    /// Share of the demand up to which queued requests replace new ones that are not made. It grows
    /// with each attempt without a fault, and is half the goodput if some failed and none timed out.
    replaceable_share: f64,
    /// When the limit ends; [`Instant::MAX`] if measurements decide.
    pub(super) until: Instant,
    /// Time of the last evidence against more attempts.
    last_setback: Instant,
}

impl Limit {
    pub(super) fn new(now: Instant, factor: f64, baseline: &Baseline) -> Self {
        let factor = factor.min(MAX_FACTOR);
        Self {
            factor,
            before: factor,
            per_request: attempts_per_request(baseline),
            tokens: 0.0,
            filled: now,
            next: now,
            spread: 0.0,
            replaceable_share: 0.0,
            until: Instant::MAX,
            last_setback: now,
        }
    }

    /// For a process that sees too little to measure headroom: queued requests are released evenly, in
    /// proportion to the time in which they arrived, and at most `longest` apart.
    pub(super) fn spread(
        &mut self,
        now: Instant,
        since: Instant,
        longest: Duration,
        queued: usize,
    ) {
        let over = SPREAD_FACTOR * now.nanos_since(since).max(1) as f64 / NANOS_PER_SECOND;
        self.spread = (queued as f64 / over).max(1.0 / longest.as_secs_f64());
        self.until = now.plus_seconds(over);
    }

    /// Spread requests go at most `longest` apart from now on.
    pub(super) fn spread_within(&mut self, now: Instant, longest: Duration, demand: f64) {
        if self.spread > 0.0 {
            self.spread = self.spread.max(1.0 / longest.as_secs_f64());
            self.next = self.next.min(now.plus_seconds(1.0 / self.pace(demand)));
        }
    }

    /// When to [spread](Self::spread) the queued requests of such a process without positive evidence:
    /// `quiet` after the last negative evidence. `None` if they are spread already.
    pub(super) fn spread_at(&self, quiet: Duration) -> Option<Instant> {
        (self.until == Instant::MAX).then(|| self.last_setback.saturating_add(quiet))
    }

    /// Queued requests released per second while no new ones are made: those on top of the demand, and
    /// those that replace new ones.
    pub(super) fn pace(&self, demand: f64) -> f64 {
        self.extra_pace(demand) + self.replaceable_share * demand
    }

    /// Queued requests released per second on top of the demand.
    fn extra_pace(&self, demand: f64) -> f64 {
        let extra_pace = (self.factor * self.per_request - 1.0).max(MIN_EXTRA_SHARE);
        (extra_pace * demand).max(self.spread).max(1e-9)
    }

    /// Token capacity: the requests of a quarter of a second, to allow for random arrivals.
    fn capacity(&self, demand: f64) -> f64 {
        (self.factor * demand * 0.25).max(1.0)
    }

    /// Tokens beyond the capacity are those that a late timer has not used yet.
    fn fill(&mut self, now: Instant, demand: f64) {
        let rate = self.factor * demand / NANOS_PER_SECOND;
        let most = self.capacity(demand) + MAX_TIMER_LATENESS_NANOS as f64 * rate;
        self.tokens = (self.tokens + now.nanos_since(self.filled) as f64 * rate).min(most);
        // A thread that read its clock before the last one, and got the lock after it, must not move this
        // back: the time in between would count twice.
        self.filled = self.filled.max(now);
    }

    /// Whether a new request may go.
    pub(super) fn admits(&mut self, now: Instant, demand: f64) -> bool {
        if self.factor >= 1.0 {
            return true;
        }
        self.fill(now, demand);
        self.tokens = self.tokens.min(self.capacity(demand));
        let admits = self.tokens >= 1.0;
        if admits {
            self.tokens -= 1.0;
        }
        admits
    }

    /// When a queued request may go. If new ones are held back, it gets the tokens that they leave.
    pub(super) fn next(&self, demand: f64) -> Instant {
        if self.factor >= 1.0 {
            return self.next;
        }
        let missing = (self.capacity(demand) - self.tokens).max(0.0);
        self.filled
            .plus_seconds(missing / (self.factor * demand).max(1e-9))
    }

    /// The queue is no longer empty: tokens that accrued while it was are lost.
    pub(super) fn on_first_queued(&mut self, now: Instant, demand: f64) {
        self.next = self.next.max(now);
        self.fill(now, demand);
        self.tokens = self.tokens.min(self.capacity(demand));
    }

    /// A new request is made. It delays the next queued one, but not beyond its interval on top of the
    /// demand.
    pub(super) fn on_first_attempt(&mut self, now: Instant, demand: f64) {
        if self.replaceable_share > 0.0 {
            let latest = now.plus_seconds(1.0 / self.extra_pace(demand));
            self.next = self.next.plus_seconds(1.0 / self.pace(demand)).min(latest);
        }
    }

    /// A queued request goes, one interval after the one before, even if the timer is late.
    pub(super) fn on_release(&mut self, now: Instant, demand: f64) {
        if self.factor >= 1.0 {
            let latest = now.minus_nanos(MAX_TIMER_LATENESS_NANOS);
            self.next = self.next.max(latest).plus_seconds(1.0 / self.pace(demand));
        } else {
            self.fill(now, demand);
            self.tokens = (self.tokens - 1.0).max(0.0);
        }
    }

    /// Overload: keeps this share of the attempts.
    pub(super) fn cut(&mut self, now: Instant, kept: f64, least: f64) {
        self.restart_growth(now, (self.factor * kept).max(least));
        self.spread = 0.0;
        self.until = Instant::MAX;
    }

    /// More attempts fail than the baseline, but nothing is slow. Either a short server queue rejects
    /// the excess, or failures have become more frequent at any load. Attempts on top of the demand are
    /// cut. If as many fail without them, that is the new baseline.
    pub(super) fn reduce_extra(&mut self, now: Instant, kept: f64, baseline: &Baseline) {
        self.per_request = attempts_per_request(baseline);
        self.spread = 0.0;
        let factor = if self.is_demand_only() {
            self.factor
        } else {
            (self.factor * kept).max(DEMAND_ONLY_FACTOR)
        };
        self.restart_growth(now, factor);
    }

    /// More attempts failed than the baseline and none timed out; `served` succeeded per second.
    pub(super) fn set_replaceable_share(&mut self, served: f64, demand: f64) {
        self.replaceable_share = REPLACED_GOODPUT_SHARE * (served / demand.max(1e-9)).min(1.0);
    }

    /// Whether nothing is admitted on top of the demand.
    pub(super) fn is_demand_only(&self) -> bool {
        self.factor <= DEMAND_ONLY_FACTOR
    }

    /// Nothing fails, but there is a queue: the last increase was too much. While latency is `rising` by
    /// so many seconds per second, the queue receives that much more than is served.
    pub(super) fn hold(&mut self, now: Instant, rising: f64) {
        let factor = match self.factor < 1.0 {
            true => self.factor,
            false if !BreakerRule::FallBack.is_on() => self.factor,
            false => {
                let excess = (rising - NOISE_SECONDS_PER_SECOND).max(0.0);
                (self.factor / (1.0 + excess)).clamp(1.0, self.before.max(1.0))
            }
        };
        self.restart_growth(now, factor);
    }

    /// Nothing fails and nothing is slow. If little was seen (`weight`, from 0 to 1), the step is
    /// small.
    pub(super) fn grow(&mut self, weight: f64, step_scale: &mut StepScale) {
        let step = match self.factor < 1.0 {
            true => STEP,
            false => STEP * f64::from(step_scale.0),
        };
        step_scale.lengthen();
        self.before = self.factor;
        self.factor = (self.factor + step * weight).min(MAX_FACTOR);
        if BreakerRule::Replace.is_on() {
            self.replaceable_share = (self.replaceable_share + weight).min(1.0);
        }
    }

    fn restart_growth(&mut self, now: Instant, factor: f64) {
        self.last_setback = now;
        self.factor = factor;
        self.before = factor;
        self.replaceable_share = 0.0;
    }
}
