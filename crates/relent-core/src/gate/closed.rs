//! When a closed gate probes.

use super::GateConfig;
use super::flapping::is_brief;
use super::measure::usual_time;
use crate::random::{Random, up_to};
use crate::time::{Instant, nanos};

/// Who asks often probes often: a fresh request may be the next probe after as many would be made, but no sooner than
/// after so many nanoseconds. What is found out twenty times per second is known soon enough.
const ONE_OF: f64 = 10.0;
const SOONEST: u64 = 50_000_000;
/// Each wait of the fresh ones is half as long again as the one before, of the parked ones five times.
const GROWTH: u64 = 5;
/// Who asks seldom lets a parked request probe when this many fresh ones should have come by
/// themselves, and a fresh one after a timeout when one should have.
const EXPECTED: f64 = 3.0;
/// A gate that has been closed for this long by attempts that are left to wait, in nanoseconds, lets one in so many of those
/// go who ask for their last chance, but one in as many as come in so many seconds if those are fewer.
const LONG: u64 = 3_000_000_000;
const ONE_IN: f64 = 8.0;
const HELD_SECONDS: f64 = 2.0;
/// A probe that takes this many times the most between two probes does not hold up the next one.
const PATIENCE: u64 = 2;

#[derive(Clone, Copy, Debug)]
pub(super) struct Closed {
    /// Between two probes, before jitter; and the same for the parked ones, as far as it has grown.
    wait: u64,
    parked_wait: u64,
    /// When a fresh request may be the next probe, and when a parked one.
    due: Instant,
    parked_due: Instant,
    /// When the probe that is out went, if one is.
    probing: Option<Instant>,
    failed: bool,
    since: Instant,
    /// Whether what closed it, or the last probe, was left to wait or refused as too much.
    overloaded: bool,
    /// Requests that have asked for their last chance since it has been closed for long.
    asked: u32,
    /// Whether fresh requests probe without a wait while the closure is brief.
    pub(super) flaps: bool,
    /// Whether nothing but one timeout closed it, or two after a false alarm.
    pub(super) lone: bool,
}

impl Closed {
    pub(super) fn new(
        now: Instant,
        config: &GateConfig,
        demand: f64,
        overloaded: bool,
        random: &mut (impl Random + ?Sized),
    ) -> Self {
        let first = nanos(config.first_probe);
        let mut closed = Self {
            wait: first,
            parked_wait: first,
            due: now,
            parked_due: now,
            probing: None,
            failed: false,
            since: now,
            overloaded,
            asked: 0,
            flaps: false,
            lone: false,
        };
        closed.plan(now, demand, overloaded, random);
        closed
    }

    /// The next probe after one that failed.
    pub(super) fn on_failed_probe(
        &mut self,
        now: Instant,
        config: &GateConfig,
        demand: f64,
        overloaded: bool,
        random: &mut (impl Random + ?Sized),
    ) {
        self.failed = true;
        self.overloaded = overloaded;
        self.wait = self.wait.saturating_add(self.wait / 2);
        self.wait = self.wait.min(nanos(config.max_probe));
        self.parked_wait = self.parked_wait.saturating_mul(GROWTH);
        self.plan(now, demand, overloaded, random);
    }

    /// A probe was told to come back later, which says neither that the destination is up nor that it is
    /// down. The next goes as long after it as it went after the one before.
    pub(super) fn on_deferred_probe(
        &mut self,
        now: Instant,
        demand: f64,
        random: &mut (impl Random + ?Sized),
    ) {
        self.plan(now, demand, false, random);
    }

    /// Goes by this from now on.
    pub(super) fn apply(&mut self, now: Instant, config: &GateConfig, demand: f64) {
        let most = nanos(config.max_probe);
        self.wait = self.wait.min(most);
        let latest = |requests: f64| {
            let wait = most.max(usual_time(requests, demand));
            Instant::from_nanos(now.as_nanos().saturating_add(wait).saturating_add(wait / 4))
        };
        self.due = self.due.min(latest(1.0));
        self.parked_due = self.parked_due.min(latest(EXPECTED));
    }

    fn plan(
        &mut self,
        now: Instant,
        demand: f64,
        overloaded: bool,
        random: &mut (impl Random + ?Sized),
    ) {
        let requests = |count| usual_time(count, demand);
        // An attempt that is left to wait in a queue costs as much as one that is answered.
        let (fresh, parked) = if overloaded {
            (requests(1.0), requests(EXPECTED))
        } else {
            (0, requests(EXPECTED).min(self.parked_wait))
        };
        let mut due = |wait: u64| {
            let quarter = wait / 4;
            let jittered = (wait - quarter).saturating_add(up_to(quarter * 2, random));
            Instant::from_nanos(now.as_nanos().saturating_add(jittered))
        };
        let often = requests(ONE_OF).max(SOONEST);
        self.due = due(self.wait.min(often).max(fresh));
        self.parked_due = due(self.wait.max(parked));
        self.probing = None;
    }

    /// Whether a fresh request is the next probe.
    pub(super) fn admits(&mut self, now: Instant, config: &GateConfig) -> bool {
        let free = self.lease(config).is_none_or(|end| now >= end);
        let is_due = now >= self.due || self.flaps && is_brief(self.since, now);
        let go = is_due && free;
        if go {
            self.probing = Some(now);
        }
        go
    }

    /// When a parked request is.
    pub(super) fn next(&self, config: &GateConfig) -> Instant {
        self.lease(config)
            .map_or(self.parked_due, |end| end.max(self.parked_due))
    }

    pub(super) fn on_probe(&mut self, now: Instant) {
        self.probing = Some(now);
    }

    /// Nothing is to be learned from the probe that is out.
    pub(super) fn on_lost_probe(&mut self) {
        self.probing = None;
    }

    /// Whether a request whose time is nearly over makes one attempt, as it would without retries. One that succeeds
    /// opens the gate, so all that went before have failed. If each would succeed with probability s, and one in n goes,
    /// n/s ask until one succeeds: of those held back n would have succeeded, whatever s is. All go where attempts fail at
    /// once, since those wait in no queue.
    pub(super) fn takes_chance(&mut self, now: Instant, demand: f64) -> bool {
        if !self.overloaded || now.nanos_since(self.since) < LONG {
            return true;
        }
        let one_in = (demand * HELD_SECONDS).clamp(1.0, ONE_IN) as u32;
        let goes = self.asked.is_multiple_of(one_in);
        self.asked = self.asked.wrapping_add(1);
        goes
    }

    /// Whether no probe has failed: if one succeeds now, the gate need not have closed.
    pub(super) fn is_unfounded(&self) -> bool {
        !self.failed
    }

    /// Until when the probe that is out holds up the next one.
    fn lease(&self, config: &GateConfig) -> Option<Instant> {
        let patience = nanos(config.max_probe).saturating_mul(PATIENCE);
        self.probing
            .map(|went| Instant::from_nanos(went.as_nanos().saturating_add(patience)))
    }
}
