//! When a circuit breaker that is down sends probes.

use super::GateConfig;
use super::flapping::is_brief;
use super::measure::usual_time;
use crate::random::{Random, up_to};
use crate::time::{Instant, nanos};

/// In a high-traffic process a new request may probe after the time of this many requests, but no
/// sooner than after so many nanoseconds. Twenty probes per second are enough.
const ONE_OF: f64 = 10.0;
const SOONEST: u64 = 50_000_000;
/// Growth of the delay of queued probes after each failed one. That of new requests grows by half.
const GROWTH: u64 = 5;
/// In a low-traffic process a queued request probes after the time in which this many new requests are
/// expected. After a timeout, a new request probes after the expected time of one.
const EXPECTED: f64 = 3.0;
/// After so many nanoseconds of timeouts or overload, only one in `ONE_IN` requests makes its late
/// first attempt. The divisor is smaller if fewer requests arrive in `HELD_SECONDS`.
const LONG: u64 = 3_000_000_000;
const ONE_IN: f64 = 8.0;
const HELD_SECONDS: f64 = 2.0;
/// A probe that takes longer than this many times `max_probe` no longer delays the next one.
const PATIENCE: u64 = 2;

#[derive(Clone, Copy, Debug)]
pub(super) struct Closed {
    /// Delay between two probes before jitter, for new and for queued requests.
    wait: u64,
    parked_wait: u64,
    /// When a new request may be the next probe, and when a queued one may.
    due: Instant,
    parked_due: Instant,
    /// When the running probe started, if one is running.
    probing: Option<Instant>,
    failed: bool,
    since: Instant,
    /// Whether a timeout or overload ended the last probe, or brought the breaker down.
    overloaded: bool,
    /// Requests for a late first attempt since the breaker has been down for long.
    asked: u32,
    /// Whether new requests probe without delay while the outage is brief.
    pub(super) flaps: bool,
    /// Whether a single timeout brought the breaker down, or two after a false alarm.
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

    /// Plans the next probe after a failed one.
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

    /// A probe got a `Retry-After`, which shows neither that the destination is up nor that it is down.
    /// The delay to the next one stays the same.
    pub(super) fn on_deferred_probe(
        &mut self,
        now: Instant,
        demand: f64,
        random: &mut (impl Random + ?Sized),
    ) {
        self.plan(now, demand, false, random);
    }

    /// Applies a new configuration.
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
        // An attempt that waits in a queue until its timeout costs as much as a success.
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

    /// Whether a new request becomes the next probe.
    pub(super) fn admits(&mut self, now: Instant, config: &GateConfig) -> bool {
        let free = self.lease(config).is_none_or(|end| now >= end);
        let is_due = now >= self.due || self.flaps && is_brief(self.since, now);
        let go = is_due && free;
        if go {
            self.probing = Some(now);
        }
        go
    }

    /// When a queued request may probe.
    pub(super) fn next(&self, config: &GateConfig) -> Instant {
        self.lease(config)
            .map_or(self.parked_due, |end| end.max(self.parked_due))
    }

    pub(super) fn on_probe(&mut self, now: Instant) {
        self.probing = Some(now);
    }

    /// The running probe ended without information.
    pub(super) fn on_lost_probe(&mut self) {
        self.probing = None;
    }

    /// Whether a request whose time is nearly over makes one late attempt, as it would without retries.
    /// A success ends the down state, so all earlier ones have failed. Let each succeed with
    /// probability s, and let one in n be sent. Then n/s requests ask until one succeeds, so n of those
    /// held back would have succeeded, whatever s is. All are sent where attempts fail fast, since
    /// those occupy no queue.
    pub(super) fn takes_chance(&mut self, now: Instant, demand: f64) -> bool {
        if !self.overloaded || now.nanos_since(self.since) < LONG {
            return true;
        }
        let one_in = (demand * HELD_SECONDS).clamp(1.0, ONE_IN) as u32;
        let goes = self.asked.is_multiple_of(one_in);
        self.asked = self.asked.wrapping_add(1);
        goes
    }

    /// Whether no probe has failed: if one succeeds now, going down was a false alarm.
    pub(super) fn is_unfounded(&self) -> bool {
        !self.failed
    }

    /// Until when the running probe delays the next one.
    fn lease(&self, config: &GateConfig) -> Option<Instant> {
        let patience = nanos(config.max_probe).saturating_mul(PATIENCE);
        self.probing
            .map(|went| Instant::from_nanos(went.as_nanos().saturating_add(patience)))
    }
}
