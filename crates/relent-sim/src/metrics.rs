//! Measurements of a run.

use serde::Serialize;

/// The measurements of one run.
///
/// Goodput, amplification and time to recover belong together: each alone misleads.
#[derive(Clone, PartialEq, Debug)]
pub struct Metrics {
    /// Successes before the caller's deadline, as a share of the requests.
    pub goodput: f64,
    /// Attempts that reach the service, per success; `None` without a success.
    pub amplification: Option<f64>,
    /// Whole seconds from the end of the last outage to the recovery: the first second that begins ten in which at
    /// least 99 % of the new requests are [prompt](crate::Scenario::prompt). If some attempts fail whatever the load,
    /// it is 99 % of the share that succeeds without retries in normal operation. `None` if that does not happen
    /// while requests are made, or there is no outage.
    pub ttr_s: Option<f64>,
    /// Drain time: seconds from the end of the last outage (for a herd: from its start) to the last success of a
    /// request made before. `None` if none succeeds after it, or if there is no outage and no herd.
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
    /// Requests that the policy gave up before their deadline.
    pub give_ups: u64,
    /// Messages that the network lost; `None` where it loses none.
    pub drops: Option<u64>,
    /// Jain's fairness index over the client processes, from the share of each one's requests that succeed; for a
    /// medium from the frames that each station sends. From 1/n, where one of n gets everything, to 1, where all get
    /// the same; `None` where nothing succeeds.
    pub fairness: Option<f64>,
    /// The share of the time in which the medium carries frames that arrive; `None` where the
    /// service is not a medium.
    pub efficiency: Option<f64>,
    /// Calls into and out of each layer of a chain, from the clients down.
    pub layers: Vec<Layer>,
    /// The counts of each class of requests, in the order of the scenario; empty without classes.
    pub classes: Vec<ClassCount>,
    /// Attempts in the last ten seconds in which requests are made, divided by the capacity in that time; 0 if
    /// requests are made for less than ten seconds.
    pub late_load: f64,
    /// Goodput of the requests made in the last quarter of the time in which requests are made; `None` without any.
    pub late_goodput: Option<f64>,
    /// Durations of all requests, with any outcome.
    pub ended: Option<Times>,
    /// Durations of the requests that needed more than one attempt, from request to end, with any outcome. `None` if
    /// there are none. The next three cover the same requests, and are unknown for a run on another medium.
    pub retried: Option<Times>,
    /// The part of that time spent in backoff, including Retry-After delays.
    pub backoff: Option<Times>,
    /// The part of that time for which the destination held them, for any reason, after their backoff.
    pub held: Option<Times>,
    /// The longest time for which one of their retries was held while the destination responded: from the first
    /// success of another caller after its backoff. That caller may be in another process. The resolution is 10 ms.
    pub held_while_up: Option<Times>,
    /// For requests that were open at the end of a fault: the time from then to their success, without the time of
    /// later faults. `None` if there are none.
    pub success_after_fault: Option<Times>,
    /// The number of those requests that never succeeded.
    pub unanswered: u64,
    /// Events of the run: the cost of its simulation.
    pub events: u64,
}

/// Durations for some of the requests of a run, in seconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Times {
    /// The number of requests.
    pub count: u64,
    /// The median.
    pub p50_s: f64,
    /// The 99th percentile.
    pub p99_s: f64,
    /// The longest.
    pub max_s: f64,
}

/// Calls into a layer and out of it: its amplification is `calls_out` divided by `calls_in`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Layer {
    /// Calls to the layer.
    pub calls_in: u64,
    /// Attempts that it starts: calls to the layer below or to the service.
    pub calls_out: u64,
}

/// The results of the requests of a class.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ClassCount {
    /// Requests made.
    pub requests: u64,
    /// Requests that succeeded before their deadline.
    pub successes: u64,
}
