//! Hedging: a second attempt beside a slow one.

use core::fmt;
use core::time::Duration;

use alloc::boxed::Box;

use crate::destination::attempt_outcome::AttemptOutcome;
use crate::destination::latencies::Latencies;
use crate::policy::error::{Found, PolicyError};
use crate::sync::{AtomicU64, Ordering};
use crate::time::nanos;

/// The maximum number of hedges beside an attempt, from gRPC's five attempts (gRFC A6).
pub const MAX_HEDGES: u32 = 4;
/// The number of successes after which the percentile is recomputed.
const RECOMPUTE_EVERY_SAMPLES: u64 = 32;
/// The minimum memory of the histogram, in samples.
const MIN_MEMORY_SAMPLES: u32 = 2048;
/// The default bounds of a percentile delay.
pub(crate) const DEFAULT_LEAST_DELAY: Duration = Duration::from_millis(1);
pub(crate) const DEFAULT_MOST_DELAY: Duration = Duration::from_secs(10);
/// No hedge, since too few samples are known.
const NO_HEDGE_NANOS: u64 = u64::MAX;

/// The delay before the next hedge, from the start of the attempt before it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum HedgeDelay {
    /// A fixed delay. Zero starts all attempts immediately.
    Fixed(Duration),
    /// A percentile of recent success latencies.
    Percentile {
        /// The percentile: with 0.95 about one request in twenty is sent twice ("The Tail at
        /// Scale").
        percentile: f64,
        /// The minimum delay.
        least: Duration,
        /// The maximum delay.
        most: Duration,
        /// The minimum number of recorded successes. By default ten samples lie beyond the
        /// percentile.
        samples: u32,
    },
}

/// Hedging: when a slow attempt is joined by another, and by how many (`[hedge]` of a policy).
///
/// ```
/// use core::time::Duration;
/// use relent_core::HedgeConfig;
/// use relent_core::destination::Hedge;
///
/// let after_50_ms = Hedge::new(&HedgeConfig::after(Duration::from_millis(50)))?;
/// assert_eq!(after_50_ms.delay(), Some(Duration::from_millis(50)));
///
/// // Nothing is known yet of this destination's latencies.
/// let slowest_twentieth = Hedge::new(&HedgeConfig::percentile(0.95))?;
/// assert_eq!(slowest_twentieth.delay(), None);
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HedgeConfig {
    /// The delay.
    pub delay: HedgeDelay,
    /// The maximum number of hedges beside an attempt, from 1 to [`MAX_HEDGES`]; the default is 1.
    pub max_hedges: u32,
}

impl HedgeConfig {
    /// One hedge after a fixed time.
    #[must_use]
    pub const fn after(delay: Duration) -> Self {
        Self {
            delay: HedgeDelay::Fixed(delay),
            max_hedges: 1,
        }
    }

    /// One hedge after this percentile of recent success latencies, between 1 ms and 10 s.
    #[must_use]
    pub const fn percentile(percentile: f64) -> Self {
        Self {
            delay: HedgeDelay::Percentile {
                percentile,
                least: DEFAULT_LEAST_DELAY,
                most: DEFAULT_MOST_DELAY,
                samples: default_samples(percentile),
            },
            max_hedges: 1,
        }
    }

    /// Whether success latencies must be recorded. The [destination](crate::Policy::new_hedge) does
    /// so, since latencies of different hosts must not be mixed.
    #[must_use]
    pub const fn uses_latencies(&self) -> bool {
        matches!(self.delay, HedgeDelay::Percentile { .. })
    }

    /// Sets the maximum number of hedges, from 1 to [`MAX_HEDGES`].
    #[must_use]
    pub const fn max_hedges(mut self, hedges: u32) -> Self {
        self.max_hedges = hedges;
        self
    }

    pub(crate) const fn check(&self) -> Result<(), PolicyError> {
        if self.max_hedges == 0 || self.max_hedges > MAX_HEDGES {
            return Err(PolicyError::new(
                "max_hedges",
                Found::Count(self.max_hedges),
                "from 1 to 4 hedges; for none, leave hedging out",
            ));
        }
        let HedgeDelay::Percentile {
            percentile,
            least,
            most,
            samples,
        } = self.delay
        else {
            return Ok(());
        };
        // Written so that NaN fails.
        if !(percentile >= 0.5 && percentile <= 0.999) {
            return Err(PolicyError::new(
                "percentile",
                Found::Number(percentile),
                "a share from 0.5, which sends every second request twice, to 0.999; 0.95 is usual",
            ));
        }
        if nanos(least) > nanos(most) {
            return Err(PolicyError::new(
                "least",
                Found::Duration(least),
                "the least delay of a hedge may not be above the most",
            ));
        }
        if (samples as f64) < 1.0 / (1.0 - percentile) - 0.5 || samples > 1_000_000 {
            return Err(PolicyError::new(
                "samples",
                Found::Count(samples),
                "at least one sample beyond the percentile, which is 20 for 0.95, at most 1000000",
            ));
        }
        Ok(())
    }
}

/// Ten samples beyond the percentile. The cast saturates.
pub(crate) const fn default_samples(percentile: f64) -> u32 {
    (10.0 / (1.0 - percentile) + 0.5) as u32
}

/// The hedging state of a destination, shared by all its callers. Lock-free.
///
/// A [`Race`](crate::call::Race) handles one call; this holds the common state. First, the recent success
/// latencies, from the first attempt of a race to the first success. If the latency of the winner
/// were recorded instead, winning hedges would hide the slow attempts, and at 0.95 every fifth
/// request would soon be sent twice. Second, whether the last outcome of the destination was a
/// rejection (throttled or overloaded): then there are no hedges until the next success.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Failure, HedgeConfig};
/// use relent_core::destination::{AttemptOutcome, Hedge};
///
/// let hedge = Hedge::new(&HedgeConfig::after(Duration::from_millis(50)))?;
/// hedge.on_failure(&AttemptOutcome::of(&Failure::throttled()));
/// assert_eq!(hedge.delay(), None);
/// hedge.on_success(Duration::from_millis(3));
/// assert_eq!(hedge.delay(), Some(Duration::from_millis(50)));
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
pub struct Hedge {
    /// Nanoseconds; `NO_HEDGE_NANOS` while too few samples are known.
    delay: AtomicU64,
    max_hedges: u32,
    observed: Option<Box<LatencyObserver>>,
    /// 1 if the last outcome was a rejection, else 0.
    refused: AtomicU64,
}

struct LatencyObserver {
    latencies: Latencies,
    percentile: f64,
    least: u64,
    most: u64,
    samples: u64,
}

impl Hedge {
    /// A hedge without samples of its destination.
    ///
    /// # Errors
    /// No hedges or more than [`MAX_HEDGES`], a percentile outside 0.5 to 0.999, contradictory
    /// bounds, too few samples for the percentile.
    pub fn new(config: &HedgeConfig) -> Result<Self, PolicyError> {
        config.check()?;
        Ok(Self::from_checked(config))
    }

    /// Like [`new`](Self::new), and takes over the latencies and the last outcome of another hedge
    /// of the same destination.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_history_of(config: &HedgeConfig, other: &Self) -> Result<Self, PolicyError> {
        let mut hedge = Self::new(config)?;
        let refused = other.refused.load(Ordering::Relaxed);
        hedge.refused = AtomicU64::new(refused);
        if let (Some(observed), Some(other)) = (&mut hedge.observed, &other.observed) {
            observed.latencies.copy_from(&other.latencies);
            hedge.update();
        }
        Ok(hedge)
    }

    pub(crate) fn from_checked(config: &HedgeConfig) -> Self {
        let (delay, observed) = match config.delay {
            HedgeDelay::Fixed(delay) => (nanos(delay).min(NO_HEDGE_NANOS - 1), None),
            HedgeDelay::Percentile {
                percentile,
                least,
                most,
                samples,
            } => {
                let observed = LatencyObserver {
                    // Large enough to hold sufficient samples after it is halved.
                    latencies: Latencies::new(samples.saturating_mul(4).max(MIN_MEMORY_SAMPLES)),
                    percentile,
                    least: nanos(least),
                    most: nanos(most),
                    samples: u64::from(samples),
                };
                (NO_HEDGE_NANOS, Some(Box::new(observed)))
            }
        };
        Self {
            delay: AtomicU64::new(delay),
            max_hedges: config.max_hedges,
            observed,
            refused: AtomicU64::new(0),
        }
    }

    /// The delay before a hedge joins; `None` for no hedge, because too few samples are known or
    /// the last outcome was a rejection.
    #[must_use]
    pub fn delay(&self) -> Option<Duration> {
        let delay = self.delay.load(Ordering::Relaxed);
        (delay != NO_HEDGE_NANOS && self.refused.load(Ordering::Relaxed) == 0)
            .then(|| Duration::from_nanos(delay))
    }

    /// The maximum number of hedges beside an attempt.
    #[must_use]
    pub const fn max_hedges(&self) -> u32 {
        self.max_hedges
    }

    /// Reports that a race was won, this long after its first attempt started.
    pub fn on_success(&self, latency: Duration) {
        self.set_rejected(0);
        let Some(observed) = &self.observed else {
            return;
        };
        let samples = observed.latencies.record(latency);
        let known = self.delay.load(Ordering::Relaxed) != NO_HEDGE_NANOS;
        if samples.is_multiple_of(RECOMPUTE_EVERY_SAMPLES) || !known && samples >= observed.samples
        {
            self.update();
        }
    }

    /// Recomputes the percentile, if there are enough samples.
    fn update(&self) {
        if let Some(observed) = &self.observed
            && observed.latencies.samples() >= observed.samples
            && let Some(percentile) = observed.latencies.percentile(observed.percentile)
        {
            let delay = nanos(percentile).clamp(observed.least, observed.most);
            self.delay
                .store(delay.min(NO_HEDGE_NANOS - 1), Ordering::Relaxed);
        }
    }

    /// Reports that an attempt failed.
    pub fn on_failure(&self, outcome: &AttemptOutcome) {
        if outcome.pauses_hedges {
            self.set_rejected(1);
        }
    }

    fn set_rejected(&self, refused: u64) {
        // Rarely written, often read.
        if self.refused.load(Ordering::Relaxed) != refused {
            self.refused.store(refused, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Hedge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hedge")
            .field("delay", &self.delay())
            .field("max_hedges", &self.max_hedges)
            .finish_non_exhaustive()
    }
}
