//! What is measured of a run.

use crate::latency::Latencies;
use crate::recording::{Recording, Tape};
use crate::scenario::{Arrivals, SECOND, Scenario};

/// What was measured of one run.
///
/// Goodput, amplification and time to recover belong together: each alone misleads.
#[derive(Clone, PartialEq, Debug)]
pub struct Metrics {
    /// Successes before the caller's deadline, as a share of the requests.
    pub goodput: f64,
    /// Attempts that reach the service, per success; `None` without a success.
    pub amplification: Option<f64>,
    /// Whole seconds from the end of the last outage to the first second that begins ten in which at
    /// least 99 % of the new requests finish within a second of being made. `None` if that never
    /// happens while requests are made, or there is no outage.
    pub ttr_s: Option<f64>,
    /// Seconds from the end of the last outage (for a herd: from its start) to the last success of a
    /// request made before. `None` if none succeeds after it, or there is neither.
    pub drain_s: Option<f64>,
    /// The most attempts in one second of the 120 s after the last outage (from the start if there
    /// is none), over the capacity.
    pub peak: f64,
    /// Executions beyond one per success.
    pub duplicates: u64,
    /// Half of the successes took no longer, waits included, in milliseconds.
    pub p50_ms: Option<f64>,
    /// 99 % took no longer.
    pub p99_ms: Option<f64>,
    /// 99.9 % took no longer.
    pub p999_ms: Option<f64>,
    /// Attempts that reached the service.
    pub attempts: u64,
    /// Requests made.
    pub requests: u64,
    /// Requests that succeeded before their deadline.
    pub successes: u64,
    /// Attempts in the last ten seconds in which requests are made, over what the service could have
    /// served in them; 0 where requests are made for less than ten seconds.
    pub late_load: f64,
    /// Events of the run: what it cost to simulate.
    pub events: u64,
}

/// Seconds in a row that have to be good, and how good.
const GOOD_SECONDS: usize = 10;
const GOOD_SHARE: f64 = 0.99;
/// Where the peak is looked for.
const PEAK_SECONDS: usize = 120;

/// What happened in one second.
#[derive(Clone, Copy, Default, Debug)]
struct Count {
    requests: u32,
    /// Of them, finished within a second.
    prompt: u32,
    attempts: u32,
}

/// Collects what [`Metrics`] are made of.
#[derive(Debug)]
pub(crate) struct Recorder {
    seconds: Vec<Count>,
    latencies: Latencies,
    attempts: u64,
    requests: u64,
    successes: u64,
    executions: u64,
    events: u64,
    /// Requests made up to here are the backlog.
    backlog_until: Option<u64>,
    backlog_done: Option<u64>,
    /// What happened when; plain runs do not keep it.
    tape: Option<Box<Tape>>,
}

impl Recorder {
    /// Keeps what happened when as well.
    pub(crate) fn recording(scenario: &Scenario) -> Self {
        Self {
            tape: Some(Box::new(Tape::new(scenario))),
            ..Self::new(scenario)
        }
    }

    pub(crate) fn new(scenario: &Scenario) -> Self {
        let herd = matches!(scenario.clients.arrivals, Arrivals::Herd { .. });
        Self {
            seconds: Vec::new(),
            latencies: Latencies::new(),
            attempts: 0,
            requests: 0,
            successes: 0,
            executions: 0,
            events: 0,
            backlog_until: scenario.outages_end().or(herd.then_some(0)),
            backlog_done: None,
            tape: None,
        }
    }

    fn second(&mut self, at: u64) -> &mut Count {
        let index = (at / SECOND) as usize;
        if self.seconds.len() <= index {
            self.seconds.resize(index + 1, Count::default());
        }
        &mut self.seconds[index]
    }

    pub(crate) fn on_request(&mut self, now: u64) {
        self.requests += 1;
        self.second(now).requests += 1;
        if let Some(tape) = &mut self.tape {
            tape.on_request(now);
        }
    }

    /// The request is made as this call.
    pub(crate) fn on_call(&mut self, call: u32) {
        if let Some(tape) = &mut self.tape {
            tape.on_call(call);
        }
    }

    /// A client starts an attempt of its call.
    pub(crate) fn on_start(&mut self, call: u32, now: u64) {
        if let Some(tape) = &mut self.tape {
            tape.on_start(call, now);
        }
    }

    pub(crate) fn on_attempt(&mut self, now: u64) {
        self.attempts += 1;
        self.second(now).attempts += 1;
        if let Some(tape) = &mut self.tape {
            tape.on_attempt(now);
        }
    }

    pub(crate) fn on_execution(&mut self) {
        self.executions += 1;
    }

    /// The request of this call, made at `made`, succeeded.
    pub(crate) fn on_success(&mut self, call: u32, made: u64, now: u64) {
        self.successes += 1;
        self.latencies.record(now - made);
        if let Some(tape) = &mut self.tape {
            tape.on_success(call, now);
        }
        if now - made <= SECOND {
            self.second(made).prompt += 1;
        }
        if let Some(until) = self.backlog_until
            && made <= until
            && now > until
        {
            self.backlog_done = Some(now - until);
        }
    }

    /// The run is over, after so many events.
    pub(crate) fn on_end(&mut self, events: u64) {
        self.events = events;
    }

    /// The recording, of a recorder that keeps one.
    pub(crate) fn finish_recording(self, scenario: &Scenario) -> Recording {
        let metrics = self.finish(scenario);
        let tape = self.tape.unwrap_or_else(|| Box::new(Tape::new(scenario)));
        Recording {
            metrics,
            series: tape.series,
            rows: tape.rows,
            latencies: self.latencies,
        }
    }

    pub(crate) fn finish(&self, scenario: &Scenario) -> Metrics {
        let capacity = scenario.service.capacity;
        let per = |count: u64, of: u64| (of > 0).then(|| count as f64 / of as f64);
        let millis = |share| {
            self.latencies
                .quantile(share)
                .map(|nanos| nanos as f64 / 1e6)
        };
        let end = scenario.outages_end().unwrap_or(0);
        let made_until = (scenario.arrivals_end() / SECOND) as usize;
        let attempts = |from: usize, to: usize| {
            let from = from.min(self.seconds.len());
            self.seconds[from..to.min(self.seconds.len()).max(from)]
                .iter()
                .map(|second| second.attempts)
        };
        let first = (end / SECOND) as usize;
        let peak = attempts(first, first + PEAK_SECONDS).max().unwrap_or(0);
        let late: u32 = match made_until.checked_sub(GOOD_SECONDS) {
            Some(from) => attempts(from, made_until).sum(),
            None => 0,
        };
        Metrics {
            goodput: per(self.successes, self.requests).unwrap_or(0.0),
            amplification: per(self.attempts, self.successes),
            ttr_s: scenario
                .outages_end()
                .and_then(|end| self.recovery(end, made_until)),
            drain_s: self.backlog_done.map(|nanos| nanos as f64 / SECOND as f64),
            peak: f64::from(peak) / capacity,
            duplicates: self.executions.saturating_sub(self.successes),
            p50_ms: millis(0.5),
            p99_ms: millis(0.99),
            p999_ms: millis(0.999),
            attempts: self.attempts,
            requests: self.requests,
            successes: self.successes,
            late_load: f64::from(late) / (capacity * GOOD_SECONDS as f64),
            events: self.events,
        }
    }

    fn recovery(&self, end: u64, made_until: usize) -> Option<f64> {
        // A second that the outage reaches into is not after it.
        let first = end.div_ceil(SECOND) as usize;
        let made = &self.seconds[..made_until.min(self.seconds.len())];
        let after = made.get(first..)?;
        let good = |window: &[Count]| {
            let requests: u32 = window.iter().map(|second| second.requests).sum();
            let prompt: u32 = window.iter().map(|second| second.prompt).sum();
            requests > 0 && f64::from(prompt) >= GOOD_SHARE * f64::from(requests)
        };
        after
            .windows(GOOD_SECONDS)
            .position(good)
            .map(|seconds| seconds as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
        clients.arrivals.poisson = { rate = 1, for = \"30s\" }
        service.capacity = 2
        outages = [{ at = \"2s\", for = \"3s\", effect = \"blackout\" }]
    ";

    #[test]
    fn the_time_to_recover_begins_ten_good_seconds() {
        let scenario = Scenario::parse(TEXT).unwrap();
        let mut recorder = Recorder::new(&scenario);
        for second in 0..30 {
            let made = second * SECOND;
            recorder.on_request(made);
            // Requests of the seconds 5 to 8 are slow, and that of second 12.
            let slow = (5..9).contains(&second) || second == 12;
            recorder.on_attempt(made);
            recorder.on_success(0, made, made + if slow { 4 * SECOND } else { SECOND });
        }
        let metrics = recorder.finish(&scenario);
        assert_eq!(metrics.ttr_s, Some(8.0), "the seconds 13 to 22 are good");
        assert_eq!(metrics.drain_s, Some(4.0), "made at 5 s, done at 9 s");
        assert_eq!((metrics.peak, metrics.late_load), (0.5, 0.5));
    }

    #[test]
    fn without_a_success_nothing_is_divided_by_it() {
        let scenario = Scenario::parse(TEXT).unwrap();
        let mut recorder = Recorder::new(&scenario);
        recorder.on_request(0);
        recorder.on_attempt(0);
        let metrics = recorder.finish(&scenario);
        assert_eq!(metrics.goodput, 0.0);
        assert_eq!(metrics.amplification, None);
        assert_eq!(
            (metrics.ttr_s, metrics.drain_s, metrics.p50_ms),
            (None, None, None)
        );
    }
}
