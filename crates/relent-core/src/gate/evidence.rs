//! What failures look like beside successes: whether they may be signs of overload.

use super::SECOND;
use super::measure::{Share, Usual, usual_time};
use super::run::Run;
use crate::time::Instant;

/// Failures are remembered as the mean of this many.
const MEMORY: u32 = 20;
/// What takes this share of the time of a success was worked on. A few that vary as exponential times do may
/// be shorter by chance: less is enough for one failure than for many.
const SERVED_ONE: f64 = 0.25;
const SERVED_MANY: f64 = 0.4;
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
}

impl Evidence {
    /// An attempt failed that took so many nanoseconds, and was neither refused as too much nor timed out, or
    /// was lost. What took longer than a success counts as much as one: a single attempt that ran for very long
    /// says nothing of the others.
    pub(super) fn on_failure(&mut self, took: u64, recent: f64, usual: &Usual) {
        let took = match success_takes(recent, usual) {
            success if success > 0.0 => (took as f64).min(success),
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

    /// Whether failures take about as long as successes: then they were worked on. Not known while no success
    /// is.
    pub(super) fn is_served(&self, recent: f64, usual: &Usual) -> bool {
        let success = success_takes(recent, usual);
        let few = (SERVED_MANY - SERVED_ONE) / f64::from(self.count.max(1));
        success > 0.0 && self.took >= (SERVED_MANY - few) * success
    }
}

/// Nanoseconds that a success takes, lately or usually, whichever is longer; 0 if none is known.
fn success_takes(recent: f64, usual: &Usual) -> f64 {
    usual.took().max(recent * SECOND)
}
