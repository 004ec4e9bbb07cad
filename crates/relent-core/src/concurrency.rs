//! How many requests a server serves at once: found out, not configured.

use crate::error::{Found, PolicyError};
use crate::time::Instant;

/// Between which bounds a [`Concurrency`] looks for its limit.
///
/// # Default
/// From 1 to 1000, beginning with 20. A limit of which `min` and `max` are the same stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConcurrencyConfig {
    /// The least that are served at once; more than 0.
    pub min: u32,
    /// What it begins with: from `min` to `max`.
    pub initial: u32,
    /// The most that are served at once.
    pub max: u32,
}

impl ConcurrencyConfig {
    /// From 1 to 1000, beginning with 20.
    pub const DEFAULT: Self = Self {
        min: 1,
        initial: 20,
        max: 1000,
    };

    /// Always this many.
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

/// How a request that was served ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Completion {
    /// It has its answer.
    Served,
    /// The answer is a failure of the service, or the request did not need its slot. It says nothing of how
    /// much can be done at once: a service that cannot reach its database fails fast.
    Failed,
    /// It came to nothing for want of time: the caller went away, or a timeout ended it.
    TooLate,
}

/// A request whose service has begun, until [`Concurrency::on_end`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Started {
    at: u64,
    /// The phase that it is a sample of.
    sample: Option<u64>,
}

/// How many requests are served at once, by comparing.
///
/// A service with room serves more per second the more it serves at once, and each takes as long as before;
/// one without serves no more, and each takes longer. So the limit is tried at two values in turn, one a
/// *step* above the other, each for as many requests as it takes to tell them apart. By Little's law the
/// throughput of each is the mean number in flight over the mean time. What the higher value gains, as a
/// share of what it would gain if there were room, is 1 below the capacity, and 0 above it: the limit goes
/// up if it is more than a half, and down if it is less. The step grows while the direction stays,
/// and shrinks when it turns (as in Rprop, Riedmiller and Braun 1993), so that the limit comes from anywhere
/// in a few rounds, and stays within a step.
///
/// Limits that compare with the shortest time ever seen (TCP Vegas, Netflix' concurrency-limits) shrink to
/// nothing when everything becomes slower for another reason, such as a database of which the service
/// waits. Here both values are as slow, and nothing changes; a change in the midst of a
/// comparison costs one wrong step. What is compared is what was served in time: when callers give up, the higher value gains nothing.
/// (Uber's Cinnamon compares throughput for the same reason.)
///
/// Nothing changes while there are fewer requests than the limit lets in, or none end. What never ends, such as a stream, is
/// left out when eight times as many others have ended.
/// Time that steps back stands still.
///
/// ```
/// use core::time::Duration;
/// use relent_core::Instant;
/// use relent_core::slots::{Concurrency, ConcurrencyConfig, Completion};
///
/// let mut concurrency = Concurrency::new(&ConcurrencyConfig { initial: 4, ..ConcurrencyConfig::DEFAULT })?;
/// // Each takes 10 ms, however many they are, and others wait.
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
    /// The lower of the two values, before it is rounded down.
    low: f64,
    /// How much more the higher value is, as a share.
    step: f64,
    /// Where the last round that went far has gone.
    was_up: Option<bool>,
    phase: Phase,
    /// What the lower value has shown, while the higher is tried.
    lower: Option<Measured>,
    latest: u64,
}

/// A step of this share is told from noise, and a limit may be off by as much.
const LEAST_STEP: f64 = 0.2;
const MOST_STEP: f64 = 1.0;
/// Samples: with 16 for a step of 1 the error of a mean is a quarter of it, if times vary as much as their
/// mean; it falls with the root of their number.
const SAMPLES: f64 = 16.0;
/// The slowest are not waited for: this share of the samples, from the top.
const SLOWEST: u32 = 8;
/// So many times the requests of a phase end elsewhere before those of its samples that have not ended are left out. It is about
/// so many times the mean, which of requests that take exponential times one in 3000 does.
const PATIENCE: u32 = 8;

/// One of the two values, while it is tried.
#[derive(Clone, Copy, Debug)]
struct Phase {
    number: u64,
    limit: u32,
    /// Requests that begin before the samples do: those of the other value have to end.
    settling: u32,
    samples: u32,
    /// Samples that have begun, and those of them that have not ended.
    begun: u32,
    open: u32,
    /// When the open ones began, added up, in nanoseconds; as are all times.
    open_since: f64,
    served: u32,
    times: f64,
    in_flight: f64,
    /// Samples that began when the limit was reached.
    full: u32,
    /// Other requests that have ended since the last sample began.
    others: u32,
}

/// What one value has shown.
#[derive(Clone, Copy, Debug)]
struct Measured {
    in_flight: f64,
    throughput: f64,
    /// Whether there was enough to do.
    full: bool,
}

impl Concurrency {
    /// A limit that has seen nothing yet.
    ///
    /// # Errors
    /// Bounds that are 0 or contradict each other.
    pub fn new(config: &ConcurrencyConfig) -> Result<Self, PolicyError> {
        config.check()?;
        let mut this = Self {
            min: f64::from(config.min),
            max: f64::from(config.max),
            low: f64::from(config.initial),
            step: MOST_STEP,
            was_up: None,
            phase: Phase::new(0, config.initial, 0),
            lower: None,
            latest: 0,
        };
        this.begin();
        Ok(this)
    }

    /// How many may be served at once now.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.phase.limit
    }

    /// A request begins at `now`, and so many are in flight with it.
    pub fn on_start(&mut self, now: Instant, in_flight: u32) -> Started {
        self.latest = self.latest.max(now.as_nanos());
        let at = self.latest;
        let has_measured = self.phase.begun > 0 || self.lower.is_some();
        if in_flight < self.phase.limit / 2 && has_measured {
            // What is measured at one load is not compared with what is measured at another.
            self.lower = None;
            self.begin();
        }
        let phase = &mut self.phase;
        let is_sample = phase.settling == 0 && phase.begun < phase.samples;
        phase.settling = phase.settling.saturating_sub(1);
        if is_sample {
            phase.begun += 1;
            phase.open += 1;
            phase.open_since += at as f64;
            phase.in_flight += f64::from(in_flight);
            phase.full += u32::from(in_flight >= phase.limit);
        }
        Started {
            at,
            sample: is_sample.then_some(phase.number),
        }
    }

    /// It ended at `now`.
    pub fn on_end(&mut self, now: Instant, started: Started, ended: Completion) {
        self.latest = self.latest.max(now.as_nanos());
        let now = self.latest;
        let phase = &mut self.phase;
        if started.sample != Some(phase.number) {
            phase.others = phase
                .others
                .saturating_add(u32::from(phase.begun == phase.samples));
            self.conclude(now);
            return;
        }
        phase.open -= 1;
        phase.open_since -= started.at as f64;
        if ended == Completion::Failed {
            // Another takes its place.
            phase.begun -= 1;
            let mean = phase.in_flight / f64::from(phase.begun + 1);
            phase.in_flight -= mean;
            phase.full = phase.full.min(phase.begun);
            phase.others = 0;
            return;
        }
        phase.times += (now - started.at) as f64;
        phase.served += u32::from(ended == Completion::Served);
        self.conclude(now);
    }

    /// Goes on to the next phase if this one has shown enough.
    fn conclude(&mut self, now: u64) {
        let phase = &mut self.phase;
        if phase.begun < phase.samples {
            return;
        }
        if phase.open > phase.samples / SLOWEST {
            let patience = PATIENCE.saturating_mul(phase.samples.saturating_add(phase.limit));
            if phase.others < patience {
                return;
            }
            if phase.open == phase.begun {
                // It has shown nothing, and is tried once more.
                self.begin();
                return;
            }
            phase.leave_out_open();
        }
        let measured = self.phase.measured(now);
        match self.lower.take() {
            None => self.lower = Some(measured),
            Some(lower) => self.compare(lower, measured),
        }
        self.begin();
    }

    fn compare(&mut self, lower: Measured, higher: Measured) {
        if !(lower.full && higher.full && higher.in_flight > lower.in_flight) {
            return;
        }
        let possible = higher.in_flight / lower.in_flight - 1.0;
        let gained = if higher.throughput <= 0.0 {
            0.0
        } else {
            // Without any at the lower value it is infinite.
            (higher.throughput / lower.throughput - 1.0) / possible
        };
        // By the whole step up if all of it was gained, by the whole step down if nothing was.
        let by = (2.0 * gained - 1.0).clamp(-1.0, 1.0);
        let factor = 1.0 + self.step * by.abs();
        let is_up = by > 0.0;
        let low = if is_up {
            self.low * factor
        } else {
            self.low / factor
        };
        self.low = low.clamp(self.min, self.max);
        match self.was_up {
            // At a bound it can only turn.
            Some(was_up) if was_up != is_up || self.low != low => {
                self.step = (self.step / 2.0).max(LEAST_STEP);
            }
            Some(_) if by.abs() > 0.5 => self.step = (self.step * 1.5).min(MOST_STEP),
            _ => {}
        }
        self.was_up = Some(is_up);
    }

    /// Begins to try the lower value, or the higher if the lower has been.
    fn begin(&mut self) {
        // The bounds are 32 bits, and so is all between them.
        let ratio = 1.0 + self.step;
        let lowest = self.low.min(self.max / ratio).max(self.min);
        let highest = (lowest * ratio).max(lowest + 1.0).min(self.max) as u32;
        let lowest = lowest as u32;
        let limit = if self.lower.is_some() {
            highest
        } else {
            lowest
        };
        let step = f64::from(highest) / f64::from(lowest) - 1.0;
        // No number above 400: where both are the same, nothing is compared.
        let samples = (SAMPLES / (step * step).clamp(0.04, 1.0)) as u32;
        self.phase = Phase::new(self.phase.number + 1, limit, samples);
    }
}

impl Phase {
    const fn new(number: u64, limit: u32, samples: u32) -> Self {
        Self {
            number,
            limit,
            settling: limit,
            samples,
            begun: 0,
            open: 0,
            open_since: 0.0,
            served: 0,
            times: 0.0,
            in_flight: 0.0,
            full: 0,
            others: 0,
        }
    }

    /// As if those that have not ended were none of its samples.
    fn leave_out_open(&mut self) {
        let ended = self.begun - self.open;
        self.in_flight *= f64::from(ended) / f64::from(self.begun);
        self.full = self.full.min(ended);
        self.begun = ended;
        (self.open, self.open_since) = (0, 0.0);
    }

    /// What it has shown; those that have not ended have lasted until now.
    fn measured(&self, now: u64) -> Measured {
        let begun = f64::from(self.begun);
        let open = f64::from(self.open) * now as f64 - self.open_since;
        let ended = f64::from(self.begun - self.open);
        let time = (self.times + open.max(0.0)) / begun;
        let in_flight = self.in_flight / begun;
        Measured {
            in_flight,
            // A time of 0 is one that no clock can see.
            throughput: in_flight * f64::from(self.served) / ended / time.max(1.0),
            full: self.full > self.begun / 2,
        }
    }
}
