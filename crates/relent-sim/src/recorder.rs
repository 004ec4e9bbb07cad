//! Collects the measurements of a run, and its events over time if a recording is wanted.

use std::hint::black_box;

use crate::call_times::{CallTimes, Summary};
use crate::event_log::EventLog;
use crate::latency::Latencies;
use crate::metrics::{ClassCount, Layer, Metrics};
use crate::recording::Recording;
use crate::scenario::{Arrivals, Effect, RECOVERY_SECONDS, SECOND, Scenario};

/// The number of consecutive good seconds that count as recovered, and the share of prompt requests in them.
const GOOD_SECONDS: usize = RECOVERY_SECONDS as usize;
const GOOD_PROMPT_SHARE: f64 = 0.99;
/// The time after the outage in which the peak is sought.
const PEAK_SECONDS: usize = 120;

/// Counts of one second.
#[derive(Clone, Copy, Default, Debug)]
struct Count {
    requests: u32,
    /// Requests of this second that were prompt.
    prompt: u32,
    attempts: u32,
}

/// Counts of one process or station.
#[derive(Clone, Copy, Default, Debug)]
struct RequestCounts {
    requests: u32,
    successes: u32,
}

/// Collects the data for [`Metrics`].
#[derive(Debug)]
pub(crate) struct Recorder {
    seconds: Vec<Count>,
    latencies: Latencies,
    attempts: u64,
    requests: u64,
    successes: u64,
    executions: u64,
    give_ups: u64,
    drops: u64,
    /// Processes, or stations of a medium.
    parties: Vec<RequestCounts>,
    layers: Vec<Layer>,
    classes: Vec<ClassCount>,
    /// The time in which the medium carried frames, and the whole time.
    medium: Option<(u64, u64)>,
    events: u64,
    /// A request that takes no longer is prompt, in nanoseconds.
    prompt: u64,
    /// Start of the last quarter of the time in which requests are made, and the successes among its requests.
    late_from: u64,
    late_successes: u64,
    /// Requests made up to this time are the backlog.
    backlog_until: Option<u64>,
    backlog_done: Option<u64>,
    pub(crate) calls: CallTimes,
    /// Counts and rows over time; `None` for plain runs.
    event_log: Option<Box<EventLog>>,
}

impl Recorder {
    /// Also keeps counts over time.
    pub(crate) fn recording(scenario: &Scenario) -> Self {
        Self {
            event_log: Some(Box::new(EventLog::new(scenario))),
            ..Self::new(scenario)
        }
    }

    /// Also keeps the attempts of each client.
    pub(crate) fn tracing(scenario: &Scenario) -> Self {
        Self {
            event_log: Some(Box::new(EventLog::of_all(scenario))),
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
            give_ups: 0,
            drops: 0,
            parties: Vec::new(),
            layers: vec![Layer::default(); usize::from(scenario.chain.layers)],
            classes: vec![ClassCount::default(); scenario.clients.classes.len()],
            medium: None,
            events: 0,
            prompt: scenario.prompt(),
            late_from: late_from(scenario),
            late_successes: 0,
            backlog_until: scenario.outages_end().or(herd.then_some(0)),
            backlog_done: None,
            calls: CallTimes::new(scenario),
            event_log: None,
        }
    }

    fn second(&mut self, at: u64) -> &mut Count {
        let index = (at / SECOND) as usize;
        if self.seconds.len() <= index {
            self.seconds.resize(index + 1, Count::default());
        }
        &mut self.seconds[index]
    }

    fn party(&mut self, index: u32) -> &mut RequestCounts {
        let index = index as usize;
        if self.parties.len() <= index {
            self.parties.resize(index + 1, RequestCounts::default());
        }
        &mut self.parties[index]
    }

    /// Prefetches the counts of this party.
    #[inline]
    pub(crate) fn prefetch(&self, party: u32) {
        black_box(self.parties.get(party as usize).map(|party| party.requests));
    }

    /// A process, or a station of a medium, makes a request.
    pub(crate) fn on_request(&mut self, now: u64, party: u32) {
        self.party(party).requests += 1;
        self.requests += 1;
        self.second(now).requests += 1;
        if let Some(event_log) = &mut self.event_log {
            event_log.on_request(now);
        }
    }

    /// The request is made as this call.
    pub(crate) fn on_call(&mut self, call: u32) {
        if let Some(event_log) = &mut self.event_log {
            event_log.on_call(call);
        }
    }

    /// A client starts an attempt of its call.
    pub(crate) fn on_start(&mut self, call: u32, now: u64) {
        if let Some(event_log) = &mut self.event_log {
            event_log.on_start(call, now);
        }
    }

    pub(crate) fn on_attempt(&mut self, now: u64) {
        self.attempts += 1;
        self.second(now).attempts += 1;
        if let Some(event_log) = &mut self.event_log {
            event_log.on_attempt(now);
        }
    }

    pub(crate) fn on_execution(&mut self) {
        self.executions += 1;
    }

    pub(crate) fn on_give_up(&mut self) {
        self.give_ups += 1;
    }

    pub(crate) fn on_drop(&mut self) {
        self.drops += 1;
    }

    /// A call to this layer.
    pub(crate) fn on_call_in(&mut self, layer: u8) {
        self.layers[usize::from(layer)].calls_in += 1;
    }

    /// This layer starts an attempt.
    pub(crate) fn on_call_out(&mut self, layer: u8) {
        self.layers[usize::from(layer)].calls_out += 1;
    }

    /// The time in which the medium carried frames, and the whole time, in nanoseconds.
    pub(crate) fn on_medium(&mut self, used: u64, time: u64) {
        self.medium = Some((used, time));
    }

    /// The request of this call, which the party made at `made`, succeeded.
    pub(crate) fn on_success(&mut self, call: u32, party: u32, made: u64, now: u64) {
        self.party(party).successes += 1;
        self.successes += 1;
        self.late_successes += u64::from(made >= self.late_from);
        self.latencies.record(now - made);
        if let Some(event_log) = &mut self.event_log {
            event_log.on_success(call, now);
        }
        if now - made <= self.prompt {
            self.second(made).prompt += 1;
        }
        if let Some(until) = self.backlog_until
            && made <= until
            && now > until
        {
            self.backlog_done = Some(now - until);
        }
    }

    /// A request of this class is made, or succeeds.
    pub(crate) fn on_class(&mut self, class: u8, succeeds: bool) {
        if let Some(class) = self.classes.get_mut(usize::from(class)) {
            match succeeds {
                true => class.successes += 1,
                false => class.requests += 1,
            }
        }
    }

    /// The run ends, after this many events.
    pub(crate) fn on_end(&mut self, events: u64) {
        self.events = events;
    }

    /// The recording, of a recorder that keeps one.
    pub(crate) fn finish_recording(self, scenario: &Scenario) -> Recording {
        let metrics = self.finish(scenario);
        let event_log = self
            .event_log
            .unwrap_or_else(|| Box::new(EventLog::new(scenario)));
        Recording {
            metrics,
            series: event_log.series,
            rows: event_log.rows,
            latencies: self.latencies,
        }
    }

    pub(crate) fn finish(&self, scenario: &Scenario) -> Metrics {
        let capacity = scenario.capacity();
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
        let last = self.seconds.iter().skip((self.late_from / SECOND) as usize);
        let asked = last.map(|second| u64::from(second.requests)).sum();
        let Summary {
            ended,
            retried,
            backoff,
            held,
            held_while_up,
            success_after_fault,
            unanswered,
        } = self.calls.finish();
        Metrics {
            goodput: per(self.successes, self.requests).unwrap_or(0.0),
            amplification: per(self.attempts, self.successes),
            ttr_s: scenario
                .outages_end()
                .and_then(|end| self.recovery(end, made_until, scenario.baseline_share())),
            drain_s: self.backlog_done.map(|nanos| nanos as f64 / SECOND as f64),
            peak: f64::from(peak) / capacity,
            duplicates: self.executions.saturating_sub(self.successes),
            p50_ms: millis(0.5),
            p99_ms: millis(0.99),
            p999_ms: millis(0.999),
            attempts: self.attempts,
            requests: self.requests,
            successes: self.successes,
            give_ups: self.give_ups,
            drops: loses(scenario).then_some(self.drops),
            fairness: self.fairness(),
            efficiency: self.medium.and_then(|(used, time)| per(used, time)),
            layers: self.layers.clone(),
            classes: self.classes.clone(),
            late_load: f64::from(late) / (capacity * GOOD_SECONDS as f64),
            late_goodput: per(self.late_successes, asked),
            ended,
            retried,
            backoff,
            held,
            held_while_up,
            success_after_fault,
            unanswered,
            events: self.events,
        }
    }

    /// Jain's index (Σx)²/(n·Σx²) (Jain, Chiu and Hawe, 1984).
    fn fairness(&self) -> Option<f64> {
        let asking = self.parties.iter().filter(|party| party.requests > 0);
        let shares = asking.map(|party| match self.medium {
            Some(_) => f64::from(party.successes),
            None => f64::from(party.successes) / f64::from(party.requests),
        });
        let (count, sum, squares) = shares.fold((0.0, 0.0, 0.0), |(count, sum, squares), x| {
            (count + 1.0, sum + x, squares + x * x)
        });
        (squares > 0.0).then(|| sum * sum / (count * squares))
    }

    /// The first time at which as many new requests are prompt as `baseline_share`, the share without retries in
    /// normal operation.
    fn recovery(&self, end: u64, made_until: usize, baseline_share: f64) -> Option<f64> {
        // A second that overlaps the outage is not after it.
        let first = end.div_ceil(SECOND) as usize;
        let made = &self.seconds[..made_until.min(self.seconds.len())];
        let after = made.get(first..)?;
        let good = |window: &[Count]| {
            let requests: u32 = window.iter().map(|second| second.requests).sum();
            let prompt: u32 = window.iter().map(|second| second.prompt).sum();
            requests > 0
                && f64::from(prompt) >= GOOD_PROMPT_SHARE * baseline_share * f64::from(requests)
        };
        after
            .windows(GOOD_SECONDS)
            .position(good)
            .map(|seconds| seconds as f64)
    }
}

/// The start of the last quarter of the time in which requests are made, at a whole second.
const fn late_from(scenario: &Scenario) -> u64 {
    let made = scenario.arrivals_end() / SECOND;
    (made - made / 4) * SECOND
}

/// Whether messages get lost.
fn loses(scenario: &Scenario) -> bool {
    let mut outages = scenario.outages.iter();
    scenario.network.loss > 0.0 || outages.any(|outage| matches!(outage.effect, Effect::Loss(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
        clients.arrivals.poisson = { rate = 1, for = \"30s\" }
        service.capacity = 2
        outages = [{ at = \"2s\", for = \"3s\", effect = \"blackout\" }]
    ";

    /// Without retries, a service that fails for 10 % of the requests recovers to that level.
    #[test]
    fn a_service_with_random_failures_recovers_to_its_baseline() {
        let text = "clients.arrivals.poisson = { rate = 100, for = \"60s\" }
            service = { capacity = 1000, failures = 0.1 }
            network.loss = 0.01
            outages = [{ at = \"10s\", for = \"10s\", effect = \"blackout\" }]";
        let scenario = Scenario::parse(text).unwrap();
        let off = relent_core::Policy::STANDARD.clone().without_retries();
        let ttr = crate::run(&scenario, &off, 1).unwrap().ttr_s;
        assert!(ttr.is_some_and(|seconds| seconds <= 5.0), "{ttr:?}");
    }

    #[test]
    fn time_to_recover_ends_at_the_first_of_ten_good_seconds() {
        let scenario = Scenario::parse(TEXT).unwrap();
        let mut recorder = Recorder::new(&scenario);
        for second in 0..30 {
            let made = second * SECOND;
            recorder.on_request(made, 0);
            // Requests of the seconds 5 to 8 are slow, and that of second 12.
            let slow = (5..9).contains(&second) || second == 12;
            recorder.on_attempt(made);
            recorder.on_success(0, 0, made, made + if slow { 4 * SECOND } else { SECOND });
        }
        let metrics = recorder.finish(&scenario);
        assert_eq!(metrics.ttr_s, Some(8.0), "the seconds 13 to 22 are good");
        assert_eq!(metrics.drain_s, Some(4.0), "made at 5 s, done at 9 s");
        assert_eq!((metrics.peak, metrics.late_load), (0.5, 0.5));
    }

    #[test]
    fn fairness_is_jains_index() {
        let scenario = Scenario::parse(TEXT).unwrap();
        let mut recorder = Recorder::new(&scenario);
        assert_eq!(recorder.finish(&scenario).fairness, None);
        // One process completes both of its requests, one half of them, one none; one makes none.
        for party in [0, 0, 1, 1, 2, 2] {
            recorder.on_request(0, party);
        }
        for party in [0, 0, 1] {
            recorder.on_success(0, party, 0, 1);
        }
        let fairness = recorder.finish(&scenario).fairness;
        assert_eq!(fairness, Some(1.5 * 1.5 / (3.0 * 1.25)));
    }

    #[test]
    fn metrics_of_a_run_without_success_have_no_ratios_per_success() {
        let scenario = Scenario::parse(TEXT).unwrap();
        let mut recorder = Recorder::new(&scenario);
        recorder.on_request(0, 0);
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
