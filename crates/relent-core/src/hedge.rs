//! When an attempt that takes long is joined by another.

use core::fmt;
use core::time::Duration;

use alloc::boxed::Box;

use crate::error::{Found, PolicyError};
use crate::failure::{Failure, Kind, Scope};
use crate::hint::Advice;
use crate::latencies::Latencies;
use crate::sync::{AtomicU64, Ordering};
use crate::time::nanos;

/// The most hedges beside an attempt: gRPC's five attempts (gRFC A6).
pub const MAX_HEDGES: u32 = 4;
/// The percentile is worked out anew after this many successes.
const EVERY: u64 = 32;
/// What the histogram remembers at least, in samples.
const MEMORY: u32 = 2048;
/// What a percentile that says no more is held between.
pub(crate) const LEAST: Duration = Duration::from_millis(1);
pub(crate) const MOST: Duration = Duration::from_secs(10);
/// No hedge: too little is known.
const NEVER: u64 = u64::MAX;

/// When the next hedge goes out, counted from the attempt before it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum HedgeDelay {
    /// After this time, if there is no outcome yet. Zero sends all at once.
    Fixed(Duration),
    /// After the time that this share of recent successes did not exceed.
    Percentile {
        /// The share: 0.95 sends about one request in twenty twice ("The Tail at Scale").
        percentile: f64,
        /// No hedge sooner than this.
        least: Duration,
        /// No hedge is put off longer than this.
        most: Duration,
        /// No hedge before so many successes are known: ten beyond the percentile, unless said
        /// otherwise.
        samples: u32,
    },
}

/// When an attempt that takes long is joined by another, and by how many: the `[hedge]` of a policy.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Hedge, HedgeConfig};
///
/// let after_50_ms = Hedge::new(&HedgeConfig::after(Duration::from_millis(50)))?;
/// assert_eq!(after_50_ms.delay(), Some(Duration::from_millis(50)));
///
/// // Nothing is known yet of how long this destination takes.
/// let slowest_twentieth = Hedge::new(&HedgeConfig::percentile(0.95))?;
/// assert_eq!(slowest_twentieth.delay(), None);
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HedgeConfig {
    /// When.
    pub delay: HedgeDelay,
    /// The most hedges beside an attempt, 1 unless said otherwise, from 1 to [`MAX_HEDGES`].
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

    /// One hedge after the time that this share of recent successes did not exceed, between 1 ms and
    /// 10 s.
    #[must_use]
    pub const fn percentile(percentile: f64) -> Self {
        Self {
            delay: HedgeDelay::Percentile {
                percentile,
                least: LEAST,
                most: MOST,
                samples: usual_samples(percentile),
            },
            max_hedges: 1,
        }
    }

    /// Whether somebody has to remember how long successes took: the
    /// [destination](crate::Policy::new_hedge), since those of different hosts do not mix.
    #[must_use]
    pub const fn learns(&self) -> bool {
        matches!(self.delay, HedgeDelay::Percentile { .. })
    }

    /// The same with up to this many hedges, from 1 to [`MAX_HEDGES`].
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

/// Ten beyond the percentile. The cast saturates.
pub(crate) const fn usual_samples(percentile: f64) -> u32 {
    (10.0 / (1.0 - percentile) + 0.5) as u32
}

/// When an attempt that takes long is joined by another, shared by all callers of a destination:
/// lock-free.
///
/// The loop of attempts is told by a [`Race`](crate::Race); this holds what its callers have in
/// common. How long recent successes took, counted from the first attempt of a race to the first
/// success: were the latency of the winner counted instead, hedges that win would make the slow
/// attempts disappear from what is known, and 0.95 would drift to sending every fifth request
/// twice. And whether the destination's last outcome was a refusal, throttled or overloaded: then it
/// has no hedges until the next success.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Failure, Hedge, HedgeConfig};
///
/// let hedge = Hedge::new(&HedgeConfig::after(Duration::from_millis(50)))?;
/// hedge.on_failure(&Failure::throttled());
/// assert_eq!(hedge.delay(), None);
/// hedge.on_success(Duration::from_millis(3));
/// assert_eq!(hedge.delay(), Some(Duration::from_millis(50)));
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
pub struct Hedge {
    /// In nanoseconds; `NEVER` while too little is known.
    delay: AtomicU64,
    max_hedges: u32,
    observed: Option<Box<Observed>>,
    /// 1 if the last outcome was a refusal, else 0.
    refused: AtomicU64,
}

struct Observed {
    latencies: Latencies,
    percentile: f64,
    least: u64,
    most: u64,
    samples: u64,
}

impl Hedge {
    /// A hedge that knows nothing of its destination yet.
    ///
    /// # Errors
    /// No hedges or more than [`MAX_HEDGES`], a percentile outside 0.5 to 0.999, bounds that
    /// contradict each other, samples that cannot tell the percentile.
    pub fn new(config: &HedgeConfig) -> Result<Self, PolicyError> {
        config.check()?;
        Ok(Self::from_checked(config))
    }

    /// The same for a destination of which another hedge knows something already: how long its successes
    /// took, and whether it refused last.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn learning_from(config: &HedgeConfig, other: &Self) -> Result<Self, PolicyError> {
        let mut hedge = Self::new(config)?;
        let refused = other.refused.load(Ordering::Relaxed);
        hedge.refused = AtomicU64::new(refused);
        if let (Some(observed), Some(other)) = (&mut hedge.observed, &other.observed) {
            observed.latencies.take_over(&other.latencies);
            hedge.update();
        }
        Ok(hedge)
    }

    pub(crate) fn from_checked(config: &HedgeConfig) -> Self {
        let (delay, observed) = match config.delay {
            HedgeDelay::Fixed(delay) => (nanos(delay).min(NEVER - 1), None),
            HedgeDelay::Percentile {
                percentile,
                least,
                most,
                samples,
            } => {
                let observed = Observed {
                    // Halved when it is full, it still holds enough.
                    latencies: Latencies::new(samples.saturating_mul(4).max(MEMORY)),
                    percentile,
                    least: nanos(least),
                    most: nanos(most),
                    samples: u64::from(samples),
                };
                (NEVER, Some(Box::new(observed)))
            }
        };
        Self {
            delay: AtomicU64::new(delay),
            max_hedges: config.max_hedges,
            observed,
            refused: AtomicU64::new(0),
        }
    }

    /// How long an attempt runs before a hedge joins it; `None` for no hedge, because too little is
    /// known or the last outcome was a refusal.
    #[must_use]
    pub fn delay(&self) -> Option<Duration> {
        let delay = self.delay.load(Ordering::Relaxed);
        (delay != NEVER && self.refused.load(Ordering::Relaxed) == 0)
            .then(|| Duration::from_nanos(delay))
    }

    /// The most hedges beside an attempt.
    #[must_use]
    pub const fn max_hedges(&self) -> u32 {
        self.max_hedges
    }

    /// A race was won, this long after its first attempt started.
    pub fn on_success(&self, latency: Duration) {
        self.refuse(0);
        let Some(observed) = &self.observed else {
            return;
        };
        let samples = observed.latencies.record(latency);
        let known = self.delay.load(Ordering::Relaxed) != NEVER;
        if samples.is_multiple_of(EVERY) || !known && samples >= observed.samples {
            self.update();
        }
    }

    /// Works out the percentile, if enough is known.
    fn update(&self) {
        if let Some(observed) = &self.observed
            && observed.latencies.samples() >= observed.samples
            && let Some(percentile) = observed.latencies.percentile(observed.percentile)
        {
            let delay = nanos(percentile).clamp(observed.least, observed.most);
            self.delay.store(delay.min(NEVER - 1), Ordering::Relaxed);
        }
    }

    /// An attempt failed.
    pub fn on_failure(&self, failure: &Failure) {
        if is_refusal(failure) && matches!(failure.scope, Scope::Destination) {
            self.refuse(1);
        }
    }

    fn refuse(&self, refused: u64) {
        // Seldom changed, often read.
        if self.refused.load(Ordering::Relaxed) != refused {
            self.refused.store(refused, Ordering::Relaxed);
        }
    }
}

/// Whether the destination refused, because of rate or load.
const fn is_refusal(failure: &Failure) -> bool {
    matches!(failure.kind, Kind::Throttled | Kind::Overloaded)
}

/// Whether the server wants to be left alone for now.
pub(crate) const fn is_pushback(failure: &Failure) -> bool {
    is_refusal(failure)
        || failure.as_if_in_progress
        || failure.hint.delay_nanos().is_some()
        || matches!(failure.hint.advice, Advice::DoNotRetry)
}

impl fmt::Debug for Hedge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hedge")
            .field("delay", &self.delay())
            .field("max_hedges", &self.max_hedges)
            .finish_non_exhaustive()
    }
}
