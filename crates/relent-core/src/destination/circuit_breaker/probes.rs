//! When a circuit breaker that is down sends probes.

use super::CircuitBreakerConfig;
use super::flapping::is_brief;
use super::measure::{MAX_EXPECTED_NANOS, expected_nanos};
use super::rules::BreakerRule;
use crate::random::{Random, up_to};
use crate::time::{Instant, nanos};

/// In a high-traffic process a new request may probe after the time of this many requests, but no
/// sooner than after so many nanoseconds. Twenty probes per second are enough.
const REQUESTS_PER_PROBE: f64 = 10.0;
const MIN_PROBE_INTERVAL_NANOS: u64 = 50_000_000;
/// After a timeout, a queued request probes after the time in which this many new requests are expected,
/// and a new request after the expected time of one.
const REQUESTS_PER_QUEUED_PROBE: f64 = 3.0;
/// A queued request probes again when the failures have lasted longer by this share. Otherwise very many
/// processes with one request each keep a full service full.
const QUEUED_PROBE_DIVISOR: u64 = 2;
/// After so many nanoseconds of timeouts, only one in `LATE_ATTEMPT_DIVISOR` requests makes its late
/// first attempt. The divisor is smaller if fewer requests arrive in `HELD_SECONDS`.
const LONG_OUTAGE_NANOS: u64 = 3_000_000_000;
const LATE_ATTEMPT_DIVISOR: f64 = 8.0;
const HELD_SECONDS: f64 = 2.0;
/// A probe that takes longer than this many times `max_probe` no longer delays the next one.
const STALE_PROBE_FACTOR: u64 = 2;

#[derive(Clone, Copy, Debug)]
pub(super) struct Down {
    /// Delay between two probes before jitter.
    wait: u64,
    /// When a new request may be the next probe, and when a queued one may.
    due: Instant,
    queued_due: Instant,
    /// When the running probe started, if one is running.
    probing: Option<Instant>,
    failed: bool,
    since: Instant,
    /// Since when only failures were seen.
    failing_since: Instant,
    /// Whether a timeout ended the last probe, or brought the breaker down.
    timed_out: bool,
    /// Requests for a late first attempt since the breaker has been down for long.
    late_requests: u32,
    /// Whether new requests probe without delay while the outage is brief.
    pub(super) is_flapping: bool,
    /// Whether a single timeout brought the breaker down, or two after a false alarm.
    pub(super) by_lone_timeout: bool,
}

impl Down {
    pub(super) fn new(
        now: Instant,
        failing_since: Instant,
        config: &CircuitBreakerConfig,
        demand: f64,
        timed_out: bool,
        random: &mut (impl Random + ?Sized),
    ) -> Self {
        let first = nanos(config.first_probe);
        let mut closed = Self {
            wait: first,
            due: now,
            queued_due: now,
            probing: None,
            failed: false,
            since: now,
            failing_since,
            timed_out,
            late_requests: 0,
            is_flapping: false,
            by_lone_timeout: false,
        };
        closed.plan(now, demand, timed_out, random);
        closed
    }

    /// Plans the next probe after a failed one.
    pub(super) fn on_failed_probe(
        &mut self,
        now: Instant,
        config: &CircuitBreakerConfig,
        demand: f64,
        timed_out: bool,
        random: &mut (impl Random + ?Sized),
    ) {
        self.failed = true;
        self.timed_out = timed_out;
        self.wait = self.wait.saturating_add(self.wait / 2);
        self.wait = self.wait.min(nanos(config.max_probe));
        self.plan(now, demand, timed_out, random);
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
    pub(super) fn apply(&mut self, now: Instant, config: &CircuitBreakerConfig, demand: f64) {
        let most = nanos(config.max_probe);
        self.wait = self.wait.min(most);
        let latest = |requests: f64| {
            let wait = most.max(expected_nanos(requests, demand));
            now.plus_nanos(wait.saturating_add(wait / 4))
        };
        self.due = self.due.min(latest(1.0));
        let queued = latest(REQUESTS_PER_QUEUED_PROBE);
        self.queued_due = self
            .queued_due
            .min(queued.max(now.plus_nanos(self.spacing(now))));
    }

    fn plan(
        &mut self,
        now: Instant,
        demand: f64,
        timed_out: bool,
        random: &mut (impl Random + ?Sized),
    ) {
        let requests = |count| expected_nanos(count, demand);
        // An attempt that waits in a queue until its timeout costs as much as a success.
        let (fresh, queued) = match timed_out && BreakerRule::ProbePace.is_on() {
            true => (requests(1.0), requests(REQUESTS_PER_QUEUED_PROBE)),
            false => (0, 0),
        };
        let mut due = |wait: u64| {
            let quarter = wait / 4;
            let jittered = (wait - quarter).saturating_add(up_to(quarter * 2, random));
            now.plus_nanos(jittered)
        };
        let often = requests(REQUESTS_PER_PROBE).max(MIN_PROBE_INTERVAL_NANOS);
        self.due = due(self.wait.min(often).max(fresh));
        self.queued_due = due(self.wait.max(queued).max(self.spacing(now)));
        self.probing = None;
    }

    /// The least time between two probes of queued requests.
    fn spacing(&self, now: Instant) -> u64 {
        if !BreakerRule::ProbeSpacing.is_on() {
            return 0;
        }
        let share = now.nanos_since(self.failing_since) / QUEUED_PROBE_DIVISOR;
        share.min(MAX_EXPECTED_NANOS)
    }

    /// Whether a new request becomes the next probe.
    pub(super) fn admits(&mut self, now: Instant, config: &CircuitBreakerConfig) -> bool {
        let free = self.probe_expires(config).is_none_or(|end| now >= end);
        let is_due = now >= self.due || self.is_flapping && is_brief(self.since, now);
        let go = is_due && free;
        if go {
            self.probing = Some(now);
        }
        go
    }

    /// When a queued request may probe.
    pub(super) fn next(&self, config: &CircuitBreakerConfig) -> Instant {
        self.probe_expires(config)
            .map_or(self.queued_due, |end| end.max(self.queued_due))
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
    pub(super) fn grants_late_first_attempt(&mut self, now: Instant, demand: f64) -> bool {
        if !BreakerRule::LateAttempt.is_on()
            || !self.timed_out
            || now.nanos_since(self.since) < LONG_OUTAGE_NANOS
        {
            return true;
        }
        let one_in = (demand * HELD_SECONDS).clamp(1.0, LATE_ATTEMPT_DIVISOR) as u32;
        let goes = self.late_requests.is_multiple_of(one_in);
        self.late_requests = self.late_requests.wrapping_add(1);
        goes
    }

    /// Whether no probe has failed: if one succeeds now, going down was a false alarm.
    pub(super) fn is_false_alarm(&self) -> bool {
        !self.failed
    }

    /// Until when the running probe delays the next one.
    fn probe_expires(&self, config: &CircuitBreakerConfig) -> Option<Instant> {
        let stale_after = nanos(config.max_probe).saturating_mul(STALE_PROBE_FACTOR);
        self.probing.map(|went| went.plus_nanos(stale_after))
    }
}
