//! Compares failures with successes: whether they may be signs of overload.

use super::SECOND;
use super::measure::{Share, Usual, usual_time};
use super::run::Run;
use crate::time::Instant;

/// The failure latency is the mean of about this many.
const MEMORY: u32 = 20;
/// A failure with at least this share of a success's service time is a slow failure. Exponentially
/// distributed times are shorter by chance, so one failure needs a smaller share than many.
const SERVED_ONE: f64 = 0.25;
const SERVED_MANY: f64 = 0.33;
/// A single failure counts as at most this many times the service time of a success.
const MOST_WORK: f64 = 2.0;
/// The minimum covers one to two windows of so many nanoseconds, since the network path may become
/// longer.
const WINDOW: u64 = 30_000_000_000;
/// Packet loss leaves the latency of other successes at the baseline. A lost attempt timed out after
/// this many times that latency.
const FAR_BEYOND: f64 = 4.0;
/// No success is needed meanwhile if this few requests are made in that time plus a second before it.
/// After a false alarm, the expected time of that many requests replaces the second.
const FEW: f64 = 3.0;
const LONGEST_BEFORE: u64 = 1_000_000_000;
/// A higher share of failures is not random packet loss.
const MOST_LOST: f64 = 0.6;

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
            let is_next = now < self.ends.saturating_add(WINDOW);
            self.before = if is_next { self.now } else { u64::MAX };
            self.now = u64::MAX;
            self.ends = now.saturating_add(WINDOW);
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
    pub(super) fn on_answer(&mut self, now: Instant, took: u64) {
        self.shortest.add(now, took);
    }

    /// An attempt failed after so many nanoseconds, neither by overload nor by timeout, or was lost.
    /// The latency counts as at most twice the service time of a success: one very long attempt is not
    /// representative.
    pub(super) fn on_failure(&mut self, took: u64, recent: f64, usual: &Usual) {
        let took = match success_takes(recent, usual) {
            success if success > 0.0 => {
                let most = self.way(usual).map_or(success, |way| {
                    success + (MOST_WORK - 1.0) * work(success, way)
                });
                (took as f64).min(most)
            }
            _ => took as f64,
        };
        self.count = self.count.saturating_add(1).min(MEMORY);
        self.took += (took - self.took) / f64::from(self.count);
    }

    /// An attempt that started then timed out. Returns whether it counts as packet loss: an attempt has
    /// succeeded since, or shortly before at this `demand`. After a `false_alarm` that time is longer.
    /// `recent` is the mean latency of recent successes, in seconds.
    pub(super) fn on_timeout(
        &mut self,
        now: Instant,
        started: Instant,
        (recent, demand): (f64, f64),
        (usual, run, share): (&Usual, &Run, &Share),
        false_alarm: bool,
    ) -> bool {
        let recent = recent * SECOND;
        let few = usual_time(FEW, demand);
        let before = if false_alarm {
            few
        } else {
            few.min(LONGEST_BEFORE)
        };
        let since = Instant::from_nanos(started.as_nanos().saturating_sub(before));
        self.lossy = recent > 0.0
            && usual.is_as_fast(recent)
            && now.nanos_since(started) as f64 >= FAR_BEYOND * usual.took().max(recent)
            && run.has_answered_since(since)
            && share.get() < MOST_LOST;
        self.lossy
    }

    /// Whether timeouts count as packet loss.
    pub(super) const fn is_lossy(&self) -> bool {
        self.lossy
    }

    /// Whether failures take about as much service time as successes. The network round trip does not
    /// count. `false` until both a success and a failure are known.
    pub(super) fn is_served(&self, recent: f64, usual: &Usual) -> bool {
        let success = success_takes(recent, usual);
        let few = (SERVED_MANY - SERVED_ONE) / f64::from(self.count.max(1));
        let way = self.way(usual).unwrap_or(0.0);
        let is_worked_on = work(self.took, way) >= (SERVED_MANY - few) * work(success, way);
        self.count > 0 && success > 0.0 && is_worked_on
    }

    /// The network round trip within the latency of an attempt. The minimum of a few attempts is too
    /// high: `None` until the baseline is well known.
    fn way(&self, usual: &Usual) -> Option<f64> {
        usual.is_well_learned().then(|| self.shortest.get())
    }
}

/// The service time within the latency of an attempt.
fn work(took: f64, way: f64) -> f64 {
    (took - way).max(0.0)
}

/// Latency of a success in nanoseconds, recent or baseline, whichever is longer; 0 if neither is known.
fn success_takes(recent: f64, usual: &Usual) -> f64 {
    usual.took().max(recent * SECOND)
}
