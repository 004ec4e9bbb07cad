//! An adaptive rate: it is reduced after throttling and returns along a cubic (RFC 9438).

use core::time::Duration;

use crate::time::{Instant, nanos};
use crate::window::Window;

/// The factor of a reduction, and the steepness of the cubic, as in RFC 9438 and the AWS SDKs. In
/// the scenario `throttling` and its variants no other pair was better: with 0.85 and 1.6 many
/// processes get more rejections and no more successes.
const REDUCTION_FACTOR: f64 = 0.7;
const CUBIC_STEEPNESS: f64 = 0.4;
/// The minimum rate in attempts per second, as in the AWS SDKs: with fewer attempts a recovery
/// would not be noticed.
const MIN_RATE: f64 = 0.5;
/// The period over which the rate of attempts is measured: this period, or the time since the
/// attempts began if that is shorter, but at least `MIN_MEASURED_NANOS`, a tenth of a second.
const MEASURED_PERIOD: Duration = Duration::from_secs(1);
const MIN_MEASURED_NANOS: u64 = 100_000_000;

#[derive(Debug)]
pub(super) struct Cubic {
    sent: Window<1>,
    /// The start of the attempts without a pause of `MEASURED_PERIOD`.
    since: Instant,
    cut: Option<Cut>,
}

#[derive(Clone, Copy, Debug)]
struct Cut {
    at: Instant,
    /// The rate that was too high.
    top: f64,
    /// Seconds until that rate is reached again.
    regain: f64,
}

impl Cubic {
    pub(super) const fn new() -> Self {
        Self {
            sent: Window::new(MEASURED_PERIOD),
            since: Instant::ORIGIN,
            cut: None,
        }
    }

    pub(super) fn on_attempt(&mut self, now: Instant) {
        if self.sent.totals(now) == [0] {
            self.since = now;
        }
        self.sent.add(now, 0);
    }

    /// Attempts per second. At the start of a burst, an average over a whole second would be far
    /// too low, and so would be the reduced rate.
    fn measured_rate(&mut self, now: Instant) -> f64 {
        let [sent] = self.sent.totals(now);
        let span = now
            .nanos_since(self.since)
            .clamp(MIN_MEASURED_NANOS, nanos(MEASURED_PERIOD));
        f64::from(sent) * 1e9 / span as f64
    }

    /// The current rate; `None` before the first reduction.
    pub(super) fn rate(&self, now: Instant) -> Option<f64> {
        let cut = self.cut?;
        let since = now.nanos_since(cut.at) as f64 / 1e9 - cut.regain;
        Some((cut.top + CUBIC_STEEPNESS * since * since * since).max(MIN_RATE))
    }

    /// The rate to which it returns; `None` before the first reduction.
    pub(super) fn previous_rate(&self) -> Option<f64> {
        self.cut.map(|cut| cut.top.max(MIN_RATE))
    }

    /// Reduces the rate because of an attempt that started at `started`, while `limit` was in
    /// force. Returns `false` if the attempt started before the last reduction, which already
    /// accounts for it.
    pub(super) fn cut(&mut self, now: Instant, started: Instant, limit: Option<f64>) -> bool {
        if self.cut.is_some_and(|cut| started < cut.at) {
            return false;
        }
        let sent = self.measured_rate(now);
        let top = limit.map_or(sent, |limit| sent.min(limit)).max(MIN_RATE);
        self.cut = Some(Cut {
            at: now,
            top,
            regain: cube_root(top * (1.0 - REDUCTION_FACTOR) / CUBIC_STEEPNESS),
        });
        true
    }
}

/// By Newton's method, the same on every machine; `core` has no function for it.
fn cube_root(of: f64) -> f64 {
    // A third of the exponent, and of the mantissa: within a sixteenth of the root.
    let mut root = f64::from_bits(of.to_bits() / 3 + (1023 << 52) / 3 * 2);
    for _ in 0..4 {
        root -= (root * root * root - of) / (3.0 * root * root);
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cube_root_has_the_precision_of_its_type() {
        let mut of = 0.1;
        while of < 1e300 {
            let error = cube_root(of) / libm::cbrt(of) - 1.0;
            assert!(error.abs() <= f64::EPSILON, "{of}: {error}");
            of *= 1.7;
        }
    }
}
