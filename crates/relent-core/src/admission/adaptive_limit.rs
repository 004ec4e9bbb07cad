//! An adaptive concurrency limit, found by measuring throughput.

use crate::policy::error::{Found, PolicyError};
use crate::time::Instant;

/// The bounds within which a [`Concurrency`] searches for its limit.
///
/// # Default
/// From 1 to 1000, starting at 20. If `min` equals `max` the limit is fixed.
///
/// # When to set the bounds
/// - Each request takes 10 s or more, and hundreds are served concurrently: set `initial` near that
///   number. A comparison takes as long as its requests, so the search takes minutes.
/// - Requests slow each other down, as with a lock or a small pool: set `max` to the concurrency
///   with the highest throughput in a load test. The search tries limits above and below the best
///   one, and each try costs throughput.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConcurrencyConfig {
    /// The minimum limit; above 0.
    pub min: u32,
    /// The initial limit: from `min` to `max`.
    pub initial: u32,
    /// The maximum limit.
    pub max: u32,
}

impl ConcurrencyConfig {
    /// From 1 to 1000, starting at 20.
    pub const DEFAULT: Self = Self {
        min: 1,
        initial: 20,
        max: 1000,
    };

    /// A fixed limit.
    #[must_use]
    pub const fn fixed(limit: u32) -> Self {
        Self {
            min: limit,
            initial: limit,
            max: limit,
        }
    }

    fn check(&self) -> Result<(), PolicyError> {
        if self.min == 0 {
            return Err(PolicyError::new(
                "min",
                Found::Count(0),
                "at least 1 request has to be served at once, or nothing is ever served",
            ));
        }
        if self.max < self.min {
            return Err(PolicyError::new(
                "max",
                Found::Count(self.max),
                "the most that are served at once may not be below the least",
            ));
        }
        if self.initial < self.min || self.initial > self.max {
            return Err(PolicyError::new(
                "initial",
                Found::Count(self.initial),
                "the limit begins between its bounds, min and max",
            ));
        }
        Ok(())
    }
}

impl Default for ConcurrencyConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The outcome of a served request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Completion {
    /// The request was answered.
    Served,
    /// The service failed, or the request did not need its slot. It says nothing about the
    /// capacity: a service that cannot reach its database fails fast.
    Failed,
    /// The request ran out of time: the caller disconnected, or a timeout ended it.
    TooLate,
}

/// A started request; pass it to [`Concurrency::on_end`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Started {
    at: u64,
    /// The number of the trial that it is a sample of.
    sample: Option<u64>,
}

/// An adaptive concurrency limit: it sets the number of concurrent requests by comparing
/// throughput.
///
/// With headroom, a service completes more requests per second at a higher concurrency, and each
/// takes as long as before. Without headroom the throughput stays the same, and each request takes
/// longer. The limit does not change while it is not reached. When it is reached:
///
/// 1. A higher limit is tried. If it is not reached, it meets the demand and is kept: a service
///    that is never full rejects nothing. It counts as not reached after sixteen requests per
///    additional slot; by then a load 10 % above the capacity has filled it.
/// 2. If it is reached, throughput is measured there and at the previous limit: by Little's law it
///    is the mean number in flight divided by the mean time. The gain of the higher limit, as a
///    share of the gain with full headroom, is 1 below the capacity and 0 above it. The limit rises
///    if the share is above a fifth, and falls if it is below.
///
/// A coarse comparison, with twice the limit and few samples, alternates with a fine one. The
/// coarse one finds headroom, and doubles the limit while there is some; the fine one finds the
/// capacity. Its step grows while the direction stays, and shrinks when it turns (as in Rprop,
/// Riedmiller and Braun 1993).
///
/// Limits that compare with the shortest latency ever seen (TCP Vegas, Netflix' concurrency-limits)
/// shrink to the minimum when everything slows down for another reason, such as a slow database.
/// Here both limits are equally slow, and nothing changes; a slowdown during a comparison costs one
/// wrong step. Only requests served in time count: if callers give up, the higher limit gains
/// nothing. (Uber's Cinnamon compares throughput for the same reason.)
///
/// Nothing changes while all requests fail or none end. Requests that never end, such as streams,
/// are left out after eight times as many others have ended. A time before the latest one counts as
/// the latest.
///
/// ```
/// use core::time::Duration;
/// use relent_core::Instant;
/// use relent_core::admission::{Concurrency, ConcurrencyConfig, Completion};
///
/// let mut concurrency = Concurrency::new(&ConcurrencyConfig { initial: 4, ..ConcurrencyConfig::DEFAULT })?;
/// // Each takes 10 ms at any concurrency, and others wait.
/// let (mut now, mut started) = (Instant::ORIGIN, std::collections::VecDeque::new());
/// for _ in 0..2000 {
///     while started.len() < concurrency.limit() as usize {
///         started.push_back(concurrency.on_start(now, started.len() as u32 + 1));
///     }
///     now = now.saturating_add(Duration::from_millis(10) / started.len() as u32);
///     let Some(oldest) = started.pop_front() else { break };
///     concurrency.on_end(now, oldest, Completion::Served);
/// }
/// assert!(concurrency.limit() > 100);
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Concurrency {
    min: f64,
    max: f64,
    /// The limit outside of a trial, before rounding.
    base: f64,
    /// The relative increase of the higher limit in a fine comparison.
    step: f64,
    /// The direction of the last comparison.
    last_step_was_up: Option<bool>,
    /// Whether the next comparison is coarse.
    is_coarse: bool,
    trial: Trial,
    /// The measurement at one of the two limits, while the other is tried.
    known: Option<Measurement>,
    /// Whether the latest request to end was not a failure.
    last_end_was_no_failure: bool,
    latest: u64,
}

/// The minimum step of a fine comparison: smaller differences are lost in noise.
const MIN_STEP: f64 = 0.2;
/// The step of a coarse comparison, and the maximum of a fine one.
const MAX_STEP: f64 = 1.0;
/// The limit rises if the higher limit gains more than this share of the possible gain.
const MIN_GAINED_SHARE: f64 = 0.2;
/// The distance of the gained share from `MIN_GAINED_SHARE` at which the limit moves by a whole step.
const FULL_STEP_GAIN: f64 = 0.7;
/// If a coarse or a fine comparison gains more than this share, the higher limit is taken, and
/// twice as much is tried next.
const DOUBLING_GAINED_SHARES: (f64, f64) = (0.35, 0.6);
/// Samples of a coarse comparison at each limit: the standard error of their mean is an eighth of
/// it if latencies are exponential. At least half the limit, which takes no longer.
const COARSE_SAMPLES: f64 = 64.0;
/// Samples of a fine comparison with a step of 1. A smaller step needs more, as its noise does: by its
/// square at the lower limit, and by its cube at the higher.
const FINE_SAMPLES: f64 = 32.0;
/// A higher limit that is not reached after this many requests per additional slot meets the
/// demand.
const UNREACHED_REQUESTS_PER_SLOT: u32 = 16;
/// A trial does not wait for its slowest samples: at most one in this many.
const OPEN_SAMPLES_DIVISOR: u32 = 8;
/// Open samples are left out after this many times the trial's requests have ended elsewhere. That
/// is about this many mean latencies, which one exponential latency in 3000 exceeds.
const OPEN_SAMPLES_PATIENCE: u32 = 8;

/// The purpose of the current limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TrialStage {
    /// No trial until the limit is reached.
    Watch,
    /// The higher limit is on trial.
    Higher,
    /// The lower limit is on trial, after the higher.
    Lower,
}

/// A limit while it is in force.
#[derive(Clone, Copy, Debug)]
struct Trial {
    stage: TrialStage,
    number: u64,
    limit: u32,
    /// Requests that may start before the limit must be reached; 0 once it was, or if it need not
    /// be.
    settling: u32,
    samples: u32,
    /// Started samples, and those of them that have not ended.
    begun: u32,
    open: u32,
    /// The sum of the start times of the open samples; all times are in nanoseconds.
    open_since: f64,
    served: u32,
    times: f64,
    in_flight: f64,
    /// Other requests that have ended since the last sample started.
    others: u32,
}

/// The measurement of a limit.
#[derive(Clone, Copy, Debug)]
struct Measurement {
    limit: u32,
    in_flight: f64,
    throughput: f64,
}

impl Concurrency {
    /// A limit without measurements.
    ///
    /// # Errors
    /// Bounds that are 0 or contradict each other.
    pub fn new(config: &ConcurrencyConfig) -> Result<Self, PolicyError> {
        config.check()?;
        Ok(Self {
            min: f64::from(config.min),
            max: f64::from(config.max),
            base: f64::from(config.initial),
            step: MAX_STEP,
            last_step_was_up: None,
            is_coarse: true,
            trial: Trial::new(TrialStage::Watch, 0, config.initial),
            known: None,
            last_end_was_no_failure: false,
            latest: 0,
        })
    }

    /// The current limit.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.trial.limit
    }

    /// Reports that a request starts at `now`; `in_flight` includes it.
    pub fn on_start(&mut self, now: Instant, in_flight: u32) -> Started {
        self.latest = self.latest.max(now.as_nanos());
        let at = self.latest;
        let is_sample = self.is_sample(in_flight);
        let trial = &mut self.trial;
        if is_sample {
            trial.begun += 1;
            trial.open += 1;
            trial.open_since += at as f64;
            trial.in_flight += f64::from(in_flight);
        }
        Started {
            at,
            sample: is_sample.then_some(trial.number),
        }
    }

    /// Whether a request that starts with this many in flight is a sample of the trial. May begin
    /// or end a trial.
    fn is_sample(&mut self, in_flight: u32) -> bool {
        let trial = &mut self.trial;
        let is_reached = in_flight >= trial.limit;
        if trial.stage == TrialStage::Watch {
            if is_reached && self.last_end_was_no_failure {
                self.try_higher();
            }
            return false;
        }
        if trial.settling > 0 && is_reached {
            trial.settling = 0;
        } else if trial.settling > 0 {
            trial.settling -= 1;
            if trial.settling == 0 {
                self.end_trial();
            }
            return false;
        }
        if trial.begun > 0 && in_flight < trial.limit / 2 {
            // Measurements at different loads are not comparable.
            self.end_trial();
            return false;
        }
        trial.begun < trial.samples
    }

    /// Reports that the request ended at `now`.
    pub fn on_end(&mut self, now: Instant, started: Started, ended: Completion) {
        self.latest = self.latest.max(now.as_nanos());
        self.last_end_was_no_failure = ended != Completion::Failed;
        let now = self.latest;
        let trial = &mut self.trial;
        if trial.stage == TrialStage::Watch {
            return;
        }
        if started.sample != Some(trial.number) {
            trial.others = trial
                .others
                .saturating_add(u32::from(trial.begun == trial.samples));
            self.conclude(now);
            return;
        }
        trial.open -= 1;
        trial.open_since -= started.at as f64;
        if ended == Completion::Failed {
            // Another request takes its place as a sample.
            trial.begun -= 1;
            let mean = trial.in_flight / f64::from(trial.begun + 1);
            trial.in_flight -= mean;
            trial.others = 0;
            return;
        }
        trial.times += (now - started.at) as f64;
        trial.served += u32::from(ended == Completion::Served);
        self.conclude(now);
    }

    /// Ends the trial if it has enough samples.
    fn conclude(&mut self, now: u64) {
        let trial = &mut self.trial;
        if trial.begun < trial.samples {
            return;
        }
        if trial.open > trial.samples / OPEN_SAMPLES_DIVISOR {
            let patience =
                OPEN_SAMPLES_PATIENCE.saturating_mul(trial.samples.saturating_add(trial.limit));
            if trial.others < patience {
                return;
            }
            if trial.open == trial.begun {
                // No sample has ended: no result.
                self.watch();
                return;
            }
            trial.leave_out_open();
        }
        let measured = trial.measured(now);
        match (trial.stage, self.known) {
            (TrialStage::Higher, Some(lower)) => self.compare(lower, measured),
            (TrialStage::Lower, Some(higher)) => self.compare(measured, higher),
            (TrialStage::Higher, None) => {
                self.known = Some(measured);
                self.try_lower();
            }
            (TrialStage::Watch | TrialStage::Lower, _) => self.watch(),
        }
    }

    fn compare(&mut self, lower: Measurement, higher: Measurement) {
        if higher.in_flight <= lower.in_flight {
            self.watch();
            return;
        }
        let possible = higher.in_flight / lower.in_flight - 1.0;
        let gained = if higher.throughput <= 0.0 {
            0.0
        } else {
            // Infinite if the lower limit has no throughput.
            (higher.throughput / lower.throughput - 1.0) / possible
        };
        let was_coarse = core::mem::replace(&mut self.is_coarse, true);
        let headroom = if was_coarse {
            DOUBLING_GAINED_SHARES.0
        } else {
            DOUBLING_GAINED_SHARES.1
        };
        if gained > headroom {
            self.base = f64::from(higher.limit);
            self.last_step_was_up = Some(true);
            if was_coarse {
                self.step = MAX_STEP;
            }
            self.known = Some(higher);
            self.try_higher();
            return;
        }
        if !was_coarse || self.step >= MAX_STEP {
            self.move_base(((gained - MIN_GAINED_SHARE) / FULL_STEP_GAIN).clamp(-1.0, 1.0));
        }
        if was_coarse {
            self.is_coarse = false;
            self.watch();
        } else {
            self.known = Some(lower);
            self.try_higher();
        }
    }

    /// Moves the base by this share of a step.
    fn move_base(&mut self, by: f64) {
        let factor = 1.0 + self.step * by.abs();
        let is_up = by > 0.0;
        let base = if is_up {
            self.base * factor
        } else {
            self.base / factor
        };
        self.base = base.clamp(self.min, self.max);
        match self.last_step_was_up {
            // At a bound it can only turn.
            Some(last_step_was_up) if last_step_was_up != is_up || self.base != base => {
                self.step = (self.step / 2.0).max(MIN_STEP);
            }
            Some(_) if by.abs() > MIN_GAINED_SHARE => self.step = (self.step * 2.0).min(MAX_STEP),
            _ => {}
        }
        self.last_step_was_up = Some(is_up);
    }

    /// Ends a trial without a comparison: a higher limit meets the demand and is kept.
    fn end_trial(&mut self) {
        if self.trial.stage == TrialStage::Higher {
            self.base = f64::from(self.trial.limit);
        }
        self.watch();
    }

    fn watch(&mut self) {
        self.known = None;
        self.trial = self.trial.next(TrialStage::Watch, self.lowest());
    }

    fn try_higher(&mut self) {
        if self.min >= self.max {
            return;
        }
        if self.lowest() >= self.max as u32 {
            // At the maximum only lower limits can be tried.
            self.is_coarse = false;
            self.known = None;
            if self.last_step_was_up == Some(true) {
                self.step = MIN_STEP;
            }
            self.move_base(-1.0);
            self.base = self.base.min(self.max - 1.0);
        }
        let (lowest, step) = match self.known {
            Some(known) if self.is_coarse => (known.limit, MAX_STEP),
            _ if self.is_coarse => (self.lowest(), MAX_STEP),
            _ => (self.lowest(), self.step),
        };
        // The bounds are 32 bits, and so is every value between them.
        let limit = rounded((f64::from(lowest) * (1.0 + step)).min(self.max));
        let limit = limit.max(lowest + 1);
        let step = difference(lowest, limit);
        let more = limit.saturating_sub(self.trial.limit).max(1);
        let samples = if self.is_coarse {
            COARSE_SAMPLES.max(f64::from(limit / 2))
        } else {
            // More samples here: where both limits are equally good, the higher one is better, and
            // it is in force for longer.
            FINE_SAMPLES / (step * step * step)
        };
        self.trial = self.trial.next(TrialStage::Higher, limit);
        self.trial.settling = more.saturating_mul(UNREACHED_REQUESTS_PER_SLOT);
        self.trial.samples = samples as u32;
    }

    fn try_lower(&mut self) {
        let limit = self.lowest();
        let samples = if self.is_coarse {
            COARSE_SAMPLES.max(f64::from(limit / 2))
        } else {
            let step = difference(limit, self.trial.limit);
            FINE_SAMPLES / (step * step)
        };
        self.trial = self.trial.next(TrialStage::Lower, limit);
        self.trial.samples = samples as u32;
    }

    fn lowest(&self) -> u32 {
        rounded(self.base)
    }
}

/// A positive number within 32 bits.
fn rounded(limit: f64) -> u32 {
    (limit + 0.5) as u32
}

/// The relative difference of the limits, which are rounded to whole requests, within the bounds of
/// a step.
fn difference(lowest: u32, highest: u32) -> f64 {
    (f64::from(highest) / f64::from(lowest) - 1.0).clamp(MIN_STEP, MAX_STEP)
}

impl Trial {
    const fn new(stage: TrialStage, number: u64, limit: u32) -> Self {
        Self {
            stage,
            number,
            limit,
            settling: 0,
            samples: 0,
            begun: 0,
            open: 0,
            open_since: 0.0,
            served: 0,
            times: 0.0,
            in_flight: 0.0,
            others: 0,
        }
    }

    const fn next(&self, stage: TrialStage, limit: u32) -> Self {
        Self::new(stage, self.number + 1, limit)
    }

    /// Removes the open requests from the samples.
    fn leave_out_open(&mut self) {
        let ended = self.begun - self.open;
        self.in_flight *= f64::from(ended) / f64::from(self.begun);
        self.begun = ended;
        (self.open, self.open_since) = (0, 0.0);
    }

    /// The measurement; open requests count with their time until now.
    fn measured(&self, now: u64) -> Measurement {
        let begun = f64::from(self.begun);
        let open = f64::from(self.open) * now as f64 - self.open_since;
        let ended = f64::from(self.begun - self.open);
        let time = (self.times + open.max(0.0)) / begun;
        let in_flight = self.in_flight / begun;
        Measurement {
            limit: self.limit,
            in_flight,
            // A time of 0 is below the resolution of the clock.
            throughput: in_flight * f64::from(self.served) / ended / time.max(1.0),
        }
    }
}
