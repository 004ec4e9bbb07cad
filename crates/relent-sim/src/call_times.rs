//! Durations of calls, and how long they wait: in backoff, and held at the destination.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::latency::Latencies;
use crate::metrics::Times;
use crate::scenario::{DestinationOf, SECOND, Scenario};

/// No backoff ends: an attempt runs.
const NO_BACKOFF: u64 = u64::MAX;
/// The resolution of the success times of a destination.
const SUCCESS_TICK_NANOS: u64 = SECOND / 100;

/// The waiting times of a call that has waited, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Waits {
    /// When its backoff ends; [`NO_BACKOFF`] while an attempt runs.
    due: u64,
    backoff: u64,
    held: u64,
    held_while_up: u64,
    retried: bool,
}

/// Durations of the calls of a run, and the state of those that have not ended.
#[derive(Debug)]
pub(crate) struct CallTimes {
    /// The calls that wait. A call that makes one immediate attempt has no entry, so the map stays small.
    waiting: HashMap<u32, Waits, BuildHasherDefault<CallNumberHasher>>,
    /// For each destination, a bit per tick in which an attempt succeeded.
    answered: Vec<Vec<u64>>,
    ended: Latencies,
    retried: Latencies,
    backoff: Latencies,
    held: Latencies,
    held_while_up: Latencies,
    faults: FaultPeriods,
    success_after_fault: Latencies,
    unanswered: u64,
}

/// The results of all calls.
pub(crate) struct Summary {
    pub(crate) ended: Option<Times>,
    pub(crate) retried: Option<Times>,
    pub(crate) backoff: Option<Times>,
    pub(crate) held: Option<Times>,
    pub(crate) held_while_up: Option<Times>,
    pub(crate) success_after_fault: Option<Times>,
    pub(crate) unanswered: u64,
}

/// A call that ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) call: u32,
    /// The index of its destination within its process.
    pub(crate) place: u32,
    pub(crate) made: u64,
    pub(crate) succeeded: bool,
}

impl CallTimes {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let places = match scenario.clients.destination {
            DestinationOf::Service => 1,
            DestinationOf::Node => usize::from(scenario.service.nodes),
        };
        Self {
            waiting: HashMap::default(),
            answered: vec![Vec::new(); places],
            ended: Latencies::new(),
            retried: Latencies::new(),
            backoff: Latencies::new(),
            held: Latencies::new(),
            held_while_up: Latencies::new(),
            faults: FaultPeriods::of(scenario),
            success_after_fault: Latencies::new(),
            unanswered: 0,
        }
    }

    /// An attempt at this destination succeeds.
    #[inline]
    pub(crate) fn on_answer(&mut self, place: u32, now: u64) {
        let tick = now / SUCCESS_TICK_NANOS;
        if let Some(bits) = self.answered.get_mut(place as usize) {
            let word = (tick / 64) as usize;
            if bits.len() <= word {
                bits.resize(word + 1, 0);
            }
            bits[word] |= 1 << (tick % 64);
        }
    }

    /// The call is to try again when its backoff is over.
    pub(crate) fn on_backoff(&mut self, call: u32, now: u64, due: u64) {
        let waits = self.waiting.entry(call).or_insert(Waits::NONE);
        waits.backoff += due - now;
        waits.due = due;
        waits.retried = true;
    }

    /// The call starts an attempt. A first attempt is due when the call is made.
    #[inline]
    pub(crate) fn on_attempt(&mut self, call: u32, place: u32, made: u64, first: bool, now: u64) {
        match first {
            true if now == made => {}
            true => {
                let held = now - made;
                let waits = Waits {
                    held,
                    ..Waits::NONE
                };
                self.waiting.insert(call, waits);
            }
            false => {
                if let Some(waits) = self.waiting.get_mut(&call) {
                    let answered = self.answered.get(place as usize);
                    waits.start(now, answered.map_or(&[], Vec::as_slice));
                }
            }
        }
    }

    /// The call ends.
    #[inline]
    pub(crate) fn on_end(&mut self, ended: Ended, now: u64) {
        let Ended { call, made, .. } = ended;
        self.ended.record(now - made);
        if !self.waiting.is_empty()
            && let Some(mut waits) = self.waiting.remove(&call)
        {
            let answered = self.answered.get(ended.place as usize);
            waits.start(now, answered.map_or(&[], Vec::as_slice));
            if waits.retried {
                self.retried.record(now - made);
                self.backoff.record(waits.backoff);
                self.held.record(waits.held);
                self.held_while_up.record(waits.held_while_up);
            }
        }
        if let Some(time) = self.faults.since_first(made, now) {
            match ended.succeeded {
                true => self.success_after_fault.record(time),
                false => self.unanswered += 1,
            }
        }
    }

    /// A call ended on another medium, where its waiting times were not observed.
    pub(crate) fn on_observed(&mut self, ended: Ended, attempts: u32, now: u64) {
        if attempts > 1 {
            self.retried.record(now - ended.made);
        }
        self.on_end(ended, now);
    }

    pub(crate) fn finish(&self) -> Summary {
        Summary {
            ended: times(&self.ended),
            retried: times(&self.retried),
            backoff: times(&self.backoff),
            held: times(&self.held),
            held_while_up: times(&self.held_while_up),
            success_after_fault: times(&self.success_after_fault),
            unanswered: self.unanswered,
        }
    }
}

/// `None` if there are none.
fn times(latencies: &Latencies) -> Option<Times> {
    let seconds = |nanos: u64| nanos as f64 / SECOND as f64;
    let most = latencies.most();
    let quantile = |share| Some(seconds(latencies.quantile(share)?.min(most)));
    Some(Times {
        count: latencies.total(),
        p50_s: quantile(0.5)?,
        p99_s: quantile(0.99)?,
        max_s: seconds(most),
    })
}

impl Waits {
    const NONE: Self = Self {
        due: NO_BACKOFF,
        backoff: 0,
        held: 0,
        held_while_up: 0,
        retried: false,
    };

    /// An attempt starts, or the call ends before one does.
    fn start(&mut self, now: u64, answered: &[u64]) {
        let due = std::mem::replace(&mut self.due, NO_BACKOFF);
        if due == NO_BACKOFF {
            return;
        }
        if due > now {
            // The caller left during the backoff.
            self.backoff -= due - now;
            return;
        }
        self.held += now - due;
        if let Some(from) = first_success(answered, due, now) {
            self.held_while_up = self.held_while_up.max(now - from);
        }
    }
}

/// The beginning of the first tick after `from` and before `until` in which an attempt succeeded.
fn first_success(answered: &[u64], from: u64, until: u64) -> Option<u64> {
    let first = from / SUCCESS_TICK_NANOS + 1;
    let end = until / SUCCESS_TICK_NANOS;
    let mut word = (first / 64) as usize;
    let mut bits = answered.get(word)? & (u64::MAX << (first % 64));
    while bits == 0 {
        word += 1;
        if word as u64 * 64 >= end {
            return None;
        }
        bits = *answered.get(word)?;
    }
    let tick = word as u64 * 64 + u64::from(bits.trailing_zeros());
    (tick < end).then_some(tick * SUCCESS_TICK_NANOS)
}

/// The periods in which the service has a fault: start and end, in order, without overlaps.
#[derive(Debug)]
struct FaultPeriods(Vec<(u64, u64)>);

impl FaultPeriods {
    fn of(scenario: &Scenario) -> Self {
        let mut spans: Vec<(u64, u64)> = scenario.spans().map(|span| (span.at, span.end)).collect();
        spans.sort_unstable();
        let mut faults: Vec<(u64, u64)> = Vec::new();
        for (from, until) in spans {
            match faults.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(until),
                _ => faults.push((from, until)),
            }
        }
        Self(faults)
    }

    /// For a request that was open at the end of a fault: the time since then, without the time of later faults.
    #[inline]
    fn since_first(&self, made: u64, now: u64) -> Option<u64> {
        let last = self.0.last()?;
        if made > last.1 {
            return None;
        }
        let first = self.0.partition_point(|trouble| trouble.1 < made);
        let (_, back) = *self.0.get(first)?;
        let later = self.0[first + 1..].iter();
        let later = later.take_while(|(from, _)| *from < now);
        let wrong: u64 = later.map(|(from, until)| now.min(*until) - from).sum();
        (now > back).then(|| now - back - wrong)
    }
}

/// A hash for call numbers, which count up from 0.
#[derive(Clone, Copy, Default, Debug)]
struct CallNumberHasher(u64);

impl Hasher for CallNumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        // Fibonacci hashing (Knuth, volume 3, 6.4).
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = SECOND / 1000;

    fn scenario(outages: &str) -> Scenario {
        let text = format!("clients.arrivals.poisson = {{ rate = 1, for = \"30s\" }}\n{outages}");
        Scenario::parse(&text).unwrap()
    }

    fn ended(call: u32, made: u64) -> Ended {
        Ended {
            call,
            place: 0,
            made,
            succeeded: true,
        }
    }

    #[test]
    fn a_retry_is_held_from_the_end_of_its_backoff() {
        let mut times = CallTimes::new(&scenario(""));
        times.on_attempt(7, 0, 0, true, 0);
        times.on_backoff(7, 50 * MS, 150 * MS);
        // Other calls succeed long before it, and once while it is held.
        times.on_answer(0, 20 * MS);
        times.on_answer(0, 1000 * MS);
        times.on_attempt(7, 0, 0, false, 4000 * MS);
        times.on_end(ended(7, 0), 4100 * MS);
        let summary = times.finish();
        let max = |times: Option<Times>| times.map(|times| times.max_s);
        assert_eq!(max(summary.retried), Some(4.1));
        assert_eq!(max(summary.backoff), Some(0.1));
        assert_eq!(max(summary.held), Some(3.85));
        assert_eq!(max(summary.held_while_up), Some(3.0));
        assert_eq!(summary.success_after_fault, None, "there was no fault");
    }

    #[test]
    fn a_call_that_ends_while_waiting_for_a_retry_counts_as_retried() {
        let mut times = CallTimes::new(&scenario(""));
        for (call, end) in [(1, 500 * MS), (2, 3000 * MS)] {
            times.on_attempt(call, 0, 0, true, 0);
            times.on_backoff(call, 100 * MS, 1000 * MS);
            times.on_end(ended(call, 0), end);
        }
        // This one is held, but needs no retry.
        times.on_attempt(3, 0, 0, true, 9000 * MS);
        times.on_end(ended(3, 0), 9001 * MS);
        let summary = times.finish();
        let retried = summary.retried.unwrap();
        assert_eq!((retried.count, retried.max_s), (2, 3.0));
        assert_eq!(summary.backoff.unwrap().max_s, 0.9);
        assert_eq!(summary.held.unwrap().max_s, 2.0, "none in its backoff");
        assert_eq!(
            summary.held_while_up.unwrap().max_s,
            0.0,
            "nobody succeeded"
        );
        assert_eq!(summary.ended.unwrap().count, 3);
    }

    #[test]
    fn time_to_success_after_a_fault_excludes_later_faults() {
        let outages = "outages = [
            { at = \"1s\", for = \"2s\", effect = \"blackout\", every = \"4s\", times = 2 },
            { at = \"2s\", for = \"2s\", effect = \"stall\" },
        ]";
        // There is a fault from 1 to 4 s and from 5 to 7 s.
        let faults = FaultPeriods::of(&scenario(outages));
        assert_eq!(faults.0, [(SECOND, 4 * SECOND), (5 * SECOND, 7 * SECOND)]);
        let since = |made, now| faults.since_first(made * SECOND, now * SECOND);
        assert_eq!(since(0, 3), None, "it ends before the trouble does");
        assert_eq!(since(8, 9), None, "it is made when all is over");
        assert_eq!(since(2, 9), Some(3 * SECOND));
        assert_eq!(since(2, 6), Some(SECOND));
        assert_eq!(since(4, 5), Some(SECOND));
        assert_eq!(since(5, 9), Some(2 * SECOND));
    }

    #[test]
    fn the_first_success_after_a_backoff_is_found_at_any_distance() {
        let mut times = CallTimes::new(&scenario(""));
        for second in [3, 200] {
            times.on_answer(0, second * SECOND + 5 * MS);
        }
        let first = |from, until| first_success(&times.answered[0], from * SECOND, until * SECOND);
        assert_eq!(first(0, 3), None);
        assert_eq!(first(0, 4), Some(3 * SECOND));
        assert_eq!(first(4, 199), None);
        assert_eq!(first(4, 300), Some(200 * SECOND));
        assert_eq!(first(201, 300), None);
    }
}
