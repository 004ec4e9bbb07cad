//! Compares failures with successes: whether they may be signs of overload.

use super::measure::{Baseline, expected_nanos};
use super::rules::BreakerRule;
use super::run::Run;
use crate::time::{Instant, NANOS_PER_SECOND};

/// The failure latency is the mean of about this many.
const LATENCY_SAMPLES: u32 = 20;
/// A failure with at least this share of a success's service time is a slow failure.
const SERVED_SHARE: f64 = 0.33;
/// A single failure counts as at most this many times the latency of a success.
const MAX_FAILURE_FACTOR: f64 = 2.0;
/// The minimum covers one to two windows of so many nanoseconds, since the network path may become
/// longer.
const MIN_LATENCY_WINDOW_NANOS: u64 = 30_000_000_000;
/// Packet loss leaves the latency of other successes at the baseline. A lost attempt timed out after
/// this many times that latency.
const LOST_LATENCY_FACTOR: f64 = 4.0;
/// A success shortly before it proves packet loss, too: within the expected time of this many requests,
/// and, except after a false alarm, within so many nanoseconds.
const LOSS_REQUESTS: f64 = 3.0;
const MAX_BEFORE_NANOS: u64 = 1_000_000_000;

/// Tells load-induced failures from others. A full service rejects fast, and an overloaded one lets
/// attempts time out. A failure after full service time is not caused by load. Neither is a lost
/// attempt while others succeed with baseline latency.
#[derive(Default, Debug)]
pub(super) struct Evidence {
    /// Mean latency of recent failures, in nanoseconds.
    took: f64,
    count: u32,
    lossy: bool,
    shortest: Shortest,
}

/// Shortest latency of an attempt in nanoseconds: an estimate of the network round trip. BBR and CoDel
/// use the minimum for the same purpose.
#[derive(Debug)]
struct Shortest {
    now: u64,
    before: u64,
    /// When the current window ends.
    ends: u64,
}

impl Default for Shortest {
    fn default() -> Self {
        Self {
            now: u64::MAX,
            before: u64::MAX,
            ends: 0,
        }
    }
}

impl Shortest {
    fn add(&mut self, now: Instant, took: u64) {
        let now = now.as_nanos();
        if now >= self.ends {
            let is_next = now < self.ends.saturating_add(MIN_LATENCY_WINDOW_NANOS);
            self.before = if is_next { self.now } else { u64::MAX };
            self.now = u64::MAX;
            self.ends = now.saturating_add(MIN_LATENCY_WINDOW_NANOS);
        }
        self.now = self.now.min(took);
    }

    /// The minimum of both windows; 0 while unknown.
    fn get(&self) -> f64 {
        match self.now.min(self.before) {
            u64::MAX => 0.0,
            shortest => shortest as f64,
        }
    }
}

impl Evidence {
    /// When the current window ends; [`Instant::ORIGIN`] before the first response.
    pub(super) const fn window_ends(&self) -> Instant {
        Instant::from_nanos(self.shortest.ends)
    }

    /// The minimum of the current window, in nanoseconds.
    pub(super) const fn shortest_of_window(&self) -> u64 {
        self.shortest.now
    }

    /// An attempt got a response, or failed before its timeout, after so many nanoseconds.
    pub(super) fn on_response(&mut self, now: Instant, took: u64) {
        self.shortest.add(now, took);
    }

    /// An attempt failed after so many nanoseconds, neither by overload nor by timeout, or was lost. One
    /// very long attempt is not representative, so its latency is bounded.
    pub(super) fn on_failure(&mut self, took: u64, recent: f64, baseline: &Baseline) {
        let took = match success_nanos(recent, baseline) {
            success if success > 0.0 => (MAX_FAILURE_FACTOR * success).min(took as f64),
            _ => took as f64,
        };
        self.count = self.count.saturating_add(1).min(LATENCY_SAMPLES);
        self.took += (took - self.took) / f64::from(self.count);
    }

    /// An attempt that started then timed out. Returns whether it counts as packet loss: it took far
    /// longer than successes, and one has succeeded since, or shortly before at this `demand`. After a
    /// `false_alarm` that time is longer. `recent` is the mean latency of recent successes, in seconds.
    pub(super) fn on_timeout(
        &mut self,
        now: Instant,
        started: Instant,
        (recent, demand): (f64, f64),
        (baseline, run): (&Baseline, &Run),
        false_alarm: bool,
    ) -> bool {
        let recent = recent * NANOS_PER_SECOND;
        let few = expected_nanos(LOSS_REQUESTS, demand);
        let before = match false_alarm {
            true => few,
            false => few.min(MAX_BEFORE_NANOS),
        };
        self.lossy = BreakerRule::PacketLoss.is_on()
            && recent > 0.0
            && now.nanos_since(started) as f64 >= LOST_LATENCY_FACTOR * baseline.took().max(recent)
            && run.has_success_since(started.minus_nanos(before));
        self.lossy
    }

    /// Whether timeouts count as packet loss.
    pub(super) const fn is_lossy(&self) -> bool {
        self.lossy
    }

    /// Whether failures take about as much service time as successes. The network round trip does not
    /// count. `false` until both a success and a failure are known.
    pub(super) fn fails_after_service(&self, recent: f64, baseline: &Baseline) -> bool {
        let success = success_nanos(recent, baseline);
        let round_trip = self.round_trip(baseline).unwrap_or(0.0);
        let is_worked_on = service_nanos(self.took, round_trip)
            >= SERVED_SHARE * service_nanos(success, round_trip);
        self.count > 0 && success > 0.0 && is_worked_on && BreakerRule::SlowFailure.is_on()
    }

    /// The network round trip within the latency of an attempt. The minimum of a few attempts is too
    /// high: `None` until the baseline is well known.
    fn round_trip(&self, baseline: &Baseline) -> Option<f64> {
        (baseline.is_well_learned() && BreakerRule::RoundTrip.is_on()).then(|| self.shortest.get())
    }
}

/// The service time within the latency of an attempt.
fn service_nanos(took: f64, round_trip: f64) -> f64 {
    (took - round_trip).max(0.0)
}

/// Latency of a success in nanoseconds, recent or baseline, whichever is longer; 0 if neither is known.
fn success_nanos(recent: f64, baseline: &Baseline) -> f64 {
    baseline.took().max(recent * NANOS_PER_SECOND)
}
