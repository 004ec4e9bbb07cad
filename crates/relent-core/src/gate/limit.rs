//! How many attempts a destination gets that is neither well nor down.

use core::time::Duration;

use super::measure::Usual;
use super::{SECOND, after};
use crate::time::Instant;

/// How much the multiple grows in the first good interval, and at most: each good one in a row
/// doubles the step, but never above the demand itself.
const FIRST_STEP: f64 = 0.12;
const LAST_STEP: f64 = 0.4;
/// How much it grows below the demand while successes are slow: this finds the fair share.
const CREEP: f64 = 0.02;
/// What is left of its part above the demand in an interval with a long queue.
const EASE: f64 = 0.95;
/// Seconds per second by which the mean of a few successes rises by chance.
const NOISE: f64 = 0.12;
const MOST: f64 = 4.0;
/// What a success opens the way to beside the demand, as a multiple of it.
const HEADROOM: f64 = 0.1;
/// What was parked in some time follows in this many times as long: ρ/(1 − ρ) for ρ = 0.8, and a tenth.
const SPREAD: f64 = 4.4;
/// A timer that is late by no more than this costs no release, in nanoseconds.
const LATENESS: u64 = 100_000_000;
/// What parked requests get beside the demand whatever happens, and the multiple that leaves no more.
const LEAST_BESIDE: f64 = 0.02;
pub(super) const BARE: f64 = 1.0 + LEAST_BESIDE;

/// Which part of what was served beside refusals those that wait may ask for when fresh requests no longer do. Half of it
/// is done after a burst as well as all of it, and a queue that is too short to be seen has room again.
const FOLLOWS: f64 = 0.5;

/// Attempts that one request usually takes count up to here: nobody else limits the retries of a limited gate. What
/// fails may be what is too much for a queue that is too short to be seen, and would become usual with each retry more.
const MOST_PER_REQUEST: f64 = 1.05;

fn attempts_per_request(usual: &Usual) -> f64 {
    usual.attempts().min(MOST_PER_REQUEST)
}

/// The least stride, and how many times as long each good judgement makes it.
const LEAST_STRIDE: f32 = 1.0 / 32.0;
const LONGER: f32 = 1.05;

/// How far a limited gate goes beyond the demand at a time, as a share of the usual steps. One that goes too far for a
/// slow service closes before it has seen the queue that it made, and would do so again and again: it goes half as far
/// after each time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stride(f32);

impl Stride {
    pub(super) const WHOLE: Self = Self(1.0);

    /// More failed after a step, or the gate closes for what may come of load.
    pub(super) const fn halve(&mut self) {
        self.0 = (self.0 / 2.0).max(LEAST_STRIDE);
    }

    const fn lengthen(&mut self) {
        self.0 = (self.0 * LONGER).min(1.0);
    }

    /// The multiple of the demand that a success opens the way to.
    pub(super) fn headroom(self) -> f64 {
        (1.0 + HEADROOM * f64::from(self.0)).max(BARE)
    }
}

/// All attempts together are held to a multiple of the demand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub(super) factor: f64,
    /// How much it grows next.
    step: f64,
    /// What it was before it last grew.
    before: f64,
    /// Attempts that one request usually takes.
    per_request: f64,
    /// Attempts that may be made now, where the factor is below 1.
    tokens: f64,
    filled: Instant,
    /// When the next parked request may go, where the factor is above 1.
    pub(super) next: Instant,
    /// Parked requests that go per second at least.
    spread: f64,
    /// Up to which share of the demand those that wait take the place of requests that are not made: more with each
    /// attempt that showed that all is well, and half of what was served where some failed and nothing timed out.
    rest: f64,
    /// From then on there is no limit; [`Instant::MAX`] if that is for what is seen to say.
    pub(super) until: Instant,
    /// When something last spoke against more attempts.
    troubled: Instant,
}

impl Limit {
    pub(super) fn new(now: Instant, factor: f64, usual: &Usual) -> Self {
        let factor = factor.min(MOST);
        Self {
            factor,
            step: FIRST_STEP,
            before: factor,
            per_request: attempts_per_request(usual),
            tokens: 0.0,
            filled: now,
            next: now,
            spread: 0.0,
            rest: 0.0,
            until: Instant::MAX,
            troubled: now,
        }
    }

    /// For a process that sees too little to find out what there is room for: the parked requests
    /// follow evenly, in proportion to the time in which they came together, and no more than `longest`
    /// apart.
    pub(super) fn spread(
        &mut self,
        now: Instant,
        since: Instant,
        longest: Duration,
        parked: usize,
    ) {
        let over = SPREAD * now.nanos_since(since).max(1) as f64 / SECOND;
        self.spread = (parked as f64 / over).max(1.0 / longest.as_secs_f64());
        self.until = after(now, over);
    }

    /// Those that are spread go no more than `longest` apart from now on.
    pub(super) fn spread_within(&mut self, now: Instant, longest: Duration, demand: f64) {
        if self.spread > 0.0 {
            self.spread = self.spread.max(1.0 / longest.as_secs_f64());
            self.next = self.next.min(after(now, 1.0 / self.pace(demand)));
        }
    }

    /// When the parked requests of such a process are to be [spread](Self::spread) although nothing was
    /// seen that opens the way: nothing has spoken against it for this long. `None` if they are already.
    pub(super) fn untroubled(&self, quiet: Duration) -> Option<Instant> {
        (self.until == Instant::MAX).then(|| self.troubled.saturating_add(quiet))
    }

    /// Parked requests that go per second while no fresh ones are made: those that go beside the demand, and those that
    /// take the place of fresh ones.
    pub(super) fn pace(&self, demand: f64) -> f64 {
        self.beside(demand) + self.rest * demand
    }

    /// Parked requests that go per second beside the demand.
    fn beside(&self, demand: f64) -> f64 {
        let beside = (self.factor * self.per_request - 1.0).max(LEAST_BESIDE);
        (beside * demand).max(self.spread).max(1e-9)
    }

    /// The most tokens: what comes at random in a quarter of a second.
    fn capacity(&self, demand: f64) -> f64 {
        (self.factor * demand * 0.25).max(1.0)
    }

    /// Beyond the capacity is what a late timer has not released yet.
    fn fill(&mut self, now: Instant, demand: f64) {
        let rate = self.factor * demand / SECOND;
        let most = self.capacity(demand) + LATENESS as f64 * rate;
        self.tokens = (self.tokens + now.nanos_since(self.filled) as f64 * rate).min(most);
        self.filled = now;
    }

    /// Whether a fresh request may go.
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

    /// When a parked request may go: where fresh ones are held back, what they leave.
    pub(super) fn next(&self, demand: f64) -> Instant {
        if self.factor >= 1.0 {
            return self.next;
        }
        let missing = (self.capacity(demand) - self.tokens).max(0.0);
        after(self.filled, missing / (self.factor * demand).max(1e-9))
    }

    /// Somebody is parked, and is the only one: what nobody was there for is lost.
    pub(super) fn on_first_parked(&mut self, now: Instant, demand: f64) {
        self.next = self.next.max(now);
        self.fill(now, demand);
        self.tokens = self.tokens.min(self.capacity(demand));
    }

    /// A fresh request is made: it takes the place of a parked one, which goes beside the demand at the latest.
    pub(super) fn on_fresh(&mut self, now: Instant, demand: f64) {
        if self.rest > 0.0 {
            let latest = after(now, 1.0 / self.beside(demand));
            self.next = after(self.next, 1.0 / self.pace(demand)).min(latest);
        }
    }

    /// A parked request goes, one pace after the one before, however late it is looked at.
    pub(super) fn on_release(&mut self, now: Instant, demand: f64) {
        if self.factor >= 1.0 {
            let latest = Instant::from_nanos(now.as_nanos().saturating_sub(LATENESS));
            self.next = after(self.next.max(latest), 1.0 / self.pace(demand));
        } else {
            self.fill(now, demand);
            self.tokens = (self.tokens - 1.0).max(0.0);
        }
    }

    /// There is overload: this share of the attempts is left.
    pub(super) fn cut(&mut self, now: Instant, kept: f64, least: f64) {
        self.settle(now, (self.factor * kept).max(least));
        self.spread = 0.0;
        self.until = Instant::MAX;
    }

    /// More fails than usual, but nothing is slow: either the queue over there is short, and refuses
    /// what is more than the demand, or failures have become more frequent whatever the load. What is
    /// made beside the demand is cut; if as much fails without it, that is what is usual now.
    pub(super) fn doubt(&mut self, now: Instant, kept: f64, usual: &Usual) {
        self.per_request = attempts_per_request(usual);
        self.spread = 0.0;
        let factor = if self.is_bare() {
            self.factor
        } else {
            (self.factor * kept).max(BARE)
        };
        self.settle(now, factor);
    }

    /// More failed than usual, nothing timed out, and so many were `served` per second.
    pub(super) fn follow(&mut self, served: f64, demand: f64) {
        self.rest = FOLLOWS * (served / demand.max(1e-9)).min(1.0);
    }

    /// Whether nothing is made beside the demand.
    pub(super) fn is_bare(&self) -> bool {
        self.factor <= BARE
    }

    /// Nothing fails, but there is a queue. While the time that successes take is `rising` by so many
    /// seconds per second, the queue gets that much more than is served.
    pub(super) fn hold(&mut self, now: Instant, long: bool, rising: f64) {
        let factor = if self.factor < 1.0 {
            self.factor + CREEP
        } else {
            // What was too much, less something if the queue has become long.
            let above = self.before.max(1.0) - 1.0;
            let eased = 1.0 + above * if long { EASE } else { 1.0 };
            (self.factor / (1.0 + (rising - NOISE).max(0.0))).clamp(1.0, eased)
        };
        self.settle(now, factor);
    }

    /// All is well. Where little was seen (`weight`, from 0 to 1), little is risked.
    pub(super) fn grow(&mut self, weight: f64, stride: &mut Stride) {
        let step = if self.factor < 1.0 {
            self.step
        } else {
            self.step.min(FIRST_STEP) * f64::from(stride.0)
        };
        stride.lengthen();
        self.before = self.factor;
        self.factor = (self.factor + step * weight).min(MOST);
        self.step = (self.step * 2.0).min(LAST_STEP);
        self.rest = (self.rest + weight).min(1.0);
    }

    fn settle(&mut self, now: Instant, factor: f64) {
        self.troubled = now;
        self.factor = factor;
        self.before = factor;
        self.step = FIRST_STEP;
        self.rest = 0.0;
    }
}
