//! Adaptive throttling (Site Reliability Engineering): rejects locally what the server would
//! reject.

use core::time::Duration;

use crate::policy::error::{Found, PolicyError};
use crate::random::Random;
use crate::time::Instant;
use crate::window::Window;

const REQUESTS: usize = 0;
const ACCEPTS: usize = 1;

/// The configuration of adaptive throttling: the `[throttle]` of a policy.
///
/// # Default
/// The published values: K = 2 over two minutes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ThrottleConfig {
    /// K, from 1 up: the number of requests allowed per accepted request. Below 2 it rejects
    /// earlier and notices recovery later.
    pub factor: f64,
    /// The length of the history that counts; above zero.
    pub window: Duration,
}

impl ThrottleConfig {
    /// The published values: K = 2 over two minutes.
    pub const DEFAULT: Self = Self {
        factor: 2.0,
        window: Duration::from_secs(120),
    };

    pub(crate) const fn check(&self) -> Result<(), PolicyError> {
        if !(self.factor >= 1.0 && self.factor.is_finite()) {
            return Err(PolicyError::new(
                "factor",
                Found::Number(self.factor),
                "the K of a throttle is a number from 1 up; 2 is usual",
            ));
        }
        if self.window.is_zero() {
            return Err(PolicyError::new(
                "window",
                Found::Duration(self.window),
                "the window of a throttle lasts longer than nothing; 2m is usual",
            ));
        }
        Ok(())
    }
}

impl Default for ThrottleConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Adaptive throttling: rejects a request locally with probability max(0, (requests −
/// K·accepts)/(requests + 1)), both counted over the recent past ("Handling Overload", Site
/// Reliability Engineering).
///
/// One value per destination, owned by its [`Outbound`](crate::destination::Outbound). The
/// [`Budget`](crate::destination::Budget) limits only retries; this also limits first attempts.
///
/// ```
/// use relent_core::{FixedRandom, Instant};
/// use relent_core::destination::Throttle;
///
/// let mut throttle = Throttle::default();
/// let now = Instant::ORIGIN;
/// for _ in 0..100 {
///     throttle.admit(now, &mut FixedRandom::at(1.0)); // the server accepts none of them
/// }
/// assert!(throttle.refusal_probability(now) > 0.98);
/// ```
#[derive(Clone, Debug)]
pub struct Throttle {
    factor: f64,
    length: Duration,
    window: Window<2>,
}

impl Throttle {
    /// A throttle without a history of its destination.
    ///
    /// # Errors
    /// A K below 1, which would reject requests to a healthy destination; a window of zero.
    pub fn new(config: &ThrottleConfig) -> Result<Self, PolicyError> {
        config.check()?;
        Ok(Self::from_checked(config))
    }

    pub(crate) const fn from_checked(config: &ThrottleConfig) -> Self {
        Self {
            factor: config.factor,
            length: config.window,
            window: Window::new(config.window),
        }
    }

    /// Applies a new configuration. Keeps the counts if the window length is unchanged.
    pub(crate) fn apply(&mut self, config: &ThrottleConfig) {
        self.factor = config.factor;
        if self.length != config.window {
            self.length = config.window;
            self.window = Window::new(config.window);
        }
    }

    /// The current probability of a local rejection.
    pub fn refusal_probability(&mut self, now: Instant) -> f64 {
        let totals = self.window.totals(now);
        let (requests, accepts) = (f64::from(totals[REQUESTS]), f64::from(totals[ACCEPTS]));
        ((requests - self.factor * accepts) / (requests + 1.0)).max(0.0)
    }

    /// Whether a request may be sent. It is counted before it is sent, and also if it is rejected:
    /// counting it afterwards lets a burst through (a published bug of go-zero).
    pub fn admit(&mut self, now: Instant, random: &mut impl Random) -> bool {
        let probability = self.refusal_probability(now);
        self.window.add(now, REQUESTS);
        // Uniform in [0, 1): a draw below the probability rejects.
        let draw = random.next_u64() as f64 / 18_446_744_073_709_551_616.0;
        draw >= probability
    }

    /// Reports that the destination accepted a request: it succeeded, or was rejected as permanent, such as with 404.
    /// A request that was throttled, timed out, or failed in any other way, such as with 500, is not accepted.
    pub fn on_accept(&mut self, now: Instant) {
        self.window.add(now, ACCEPTS);
    }
}

impl Default for Throttle {
    fn default() -> Self {
        Self::from_checked(&ThrottleConfig::DEFAULT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::FixedRandom;

    fn at(seconds: u64) -> Instant {
        Instant::ORIGIN.saturating_add(Duration::from_secs(seconds))
    }

    #[test]
    fn adaptive_throttling_never_rejects_a_healthy_destination() {
        let mut throttle = Throttle::default();
        for second in 0..1000 {
            assert!(throttle.admit(at(second), &mut FixedRandom::at(0.0)));
            throttle.on_accept(at(second));
        }
    }

    #[test]
    fn adaptive_throttling_uses_the_published_formula() {
        let mut throttle = Throttle::default();
        for _ in 0..10 {
            throttle.window.add(at(0), REQUESTS);
        }
        throttle.on_accept(at(0));
        // (10 − 2·1)/(10 + 1)
        assert!((throttle.refusal_probability(at(0)) - 8.0 / 11.0).abs() < 1e-12);
        assert!(!throttle.admit(at(0), &mut FixedRandom::at(0.7)));
        assert!(throttle.admit(at(0), &mut FixedRandom::at(0.8)));
    }

    #[test]
    fn adaptive_throttling_forgets_counts_after_its_window() {
        let mut throttle = Throttle::default();
        for _ in 0..100 {
            throttle.admit(at(0), &mut FixedRandom::at(1.0));
        }
        assert!(throttle.refusal_probability(at(0)) > 0.9);
        assert!(throttle.refusal_probability(at(121)) < 1e-12);
    }

    #[test]
    fn an_invalid_throttle_config_is_rejected() {
        let with = |factor, window| Throttle::new(&ThrottleConfig { factor, window });
        for factor in [0.5, f64::NAN, f64::INFINITY] {
            let error = with(factor, Duration::from_secs(1)).unwrap_err();
            assert_eq!(error.key(), "factor");
        }
        assert_eq!(with(2.0, Duration::ZERO).unwrap_err().key(), "window");
        assert!(with(1.0, Duration::from_nanos(1)).is_ok());
    }
}
