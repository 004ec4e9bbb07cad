//! What failures look like beside successes: whether they may be signs of overload.

use super::SECOND;
use super::measure::{Share, Usual, usual_time};
use super::run::Run;
use crate::time::Instant;

/// Failures are remembered as the mean of this many.
const MEMORY: u32 = 20;
/// A failure after this share of the work of a success was worked on. A few that vary as exponential times do may
/// be shorter by chance: less is enough for one failure than for many.
const SERVED_ONE: f64 = 0.25;
const SERVED_MANY: f64 = 0.33;
/// A single failure counts for at most this many times the work of a success.
const MOST_WORK: f64 = 2.0;
/// The shortest time is that of one to two windows of so many nanoseconds: a way to the destination may become longer.
const WINDOW: u64 = 30_000_000_000;
/// Lost attempts leave the successes beside them as fast as ever. What timed out had this many times as long.
const FAR_BEYOND: f64 = 4.0;
/// Nothing need have succeeded meanwhile where only so few requests are made in that time and a second, in
/// nanoseconds, before. Where the gate has closed for a single timeout and found out that it need not have, the time in
/// which so few usually come takes the place of the second.
const FEW: f64 = 3.0;
const LONGEST_BEFORE: u64 = 1_000_000_000;
/// Where more fails, it is no chance on the way.
const MOST_LOST: f64 = 0.6;

/// A service that is full refuses at once, and one that does not get to it lets attempts time out. An
/// error that comes after as much work as a success, or an attempt that is lost beside others that
/// succeed as fast as ever, does not come of load.
#[derive(Default, Debug)]
pub(super) struct Evidence {
    /// Nanoseconds that failures took lately.
    took: f64,
    count: u32,
    lossy: bool,
    shortest: Shortest,
}

/// The shortest time between an attempt and its answer, in nanoseconds: that of the way there and back, as far as a
/// caller can know it. BBR and CoDel take the minimum for the same reason.
#[derive(Debug)]
struct Shortest {
    now: u64,
    before: u64,
    /// When the window of now ends.
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

    /// The shortest time of both windows; 0 while none is known.
    fn get(&self) -> f64 {
        match self.now.min(self.before) {
            u64::MAX => 0.0,
            shortest => shortest as f64,
        }
    }
}

impl Evidence {
    /// When the shortest time is taken anew; [`Instant::ORIGIN`] before any attempt was answered.
    pub(super) const fn window_ends(&self) -> Instant {
        Instant::from_nanos(self.shortest.ends)
    }

    /// Nanoseconds of the shortest attempt of this window.
    pub(super) const fn shortest_of_window(&self) -> u64 {
        self.shortest.now
    }

    /// An attempt was answered, or failed before its timeout, after so many nanoseconds.
    pub(super) fn on_answer(&mut self, now: Instant, took: u64) {
        self.shortest.add(now, took);
    }

    /// An attempt failed that took so many nanoseconds, and was neither refused as too much nor timed out, or
    /// was lost. What took much longer than a success counts as twice its work: a single attempt that ran for
    /// very long says nothing of the others.
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

    /// An attempt that started then timed out. Whether it is taken to be lost on the way: something has
    /// succeeded since, or not long before at this `demand`, where after a `false_alarm` more is not long. `recent` is
    /// the mean of the successes lately, in seconds.
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

    /// Whether attempts that time out are taken to be lost on the way.
    pub(super) const fn is_lossy(&self) -> bool {
        self.lossy
    }

    /// Whether failures take about as much work as successes: then they were worked on. From far away both take
    /// mostly the time of the way, which is no work. Not known before both a success and a failure are.
    pub(super) fn is_served(&self, recent: f64, usual: &Usual) -> bool {
        let success = success_takes(recent, usual);
        let few = (SERVED_MANY - SERVED_ONE) / f64::from(self.count.max(1));
        let way = self.way(usual).unwrap_or(0.0);
        let is_worked_on = work(self.took, way) >= (SERVED_MANY - few) * work(success, way);
        self.count > 0 && success > 0.0 && is_worked_on
    }

    /// The part of the time of an attempt that is the way there and back. The shortest of a few attempts does not
    /// show it: `None` until a success is well known.
    fn way(&self, usual: &Usual) -> Option<f64> {
        usual.is_well_learned().then(|| self.shortest.get())
    }
}

/// The part of the time of an attempt that the destination worked.
fn work(took: f64, way: f64) -> f64 {
    (took - way).max(0.0)
}

/// Nanoseconds that a success takes, lately or usually, whichever is longer; 0 if none is known.
fn success_takes(recent: f64, usual: &Usual) -> f64 {
    usual.took().max(recent * SECOND)
}
