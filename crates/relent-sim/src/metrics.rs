//! What was measured of a run.

use serde::Serialize;

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
    /// least 99 % of the new requests are [prompt](crate::Scenario::prompt), or 99 % of those that succeed
    /// without retries while the service is well, if some fail whatever the load. `None` if that never
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
    /// Requests that the policy gave up before their deadline.
    pub give_ups: u64,
    /// Messages that the network lost; `None` where it loses none.
    pub drops: Option<u64>,
    /// Jain's index of fairness over the client processes: of the share of its requests that each
    /// gets done; for a medium of the frames that each station sends. From 1/n, where one of n gets
    /// everything, to 1, where all get the same; `None` where nobody gets anything.
    pub fairness: Option<f64>,
    /// The share of the time in which the medium carries frames that arrive; `None` where the
    /// service is not a medium.
    pub efficiency: Option<f64>,
    /// What goes in and out of each layer of a chain, from the clients down.
    pub layers: Vec<Layer>,
    /// What became of each class of requests, in the order of the scenario; empty without classes.
    pub classes: Vec<ClassCount>,
    /// Attempts in the last ten seconds in which requests are made, over what the service could have
    /// served in them; 0 where requests are made for less than ten seconds.
    pub late_load: f64,
    /// Successes before the caller's deadline of the requests made in the last quarter of the time in which
    /// requests are made, as a share of those; `None` without any.
    pub late_goodput: Option<f64>,
    /// How long all requests took, whatever came of them.
    pub ended: Option<Times>,
    /// How long those took that needed more than one attempt: from when they are made to their end, whatever
    /// came of them. `None` if there are none. The same requests are counted in the three that follow, which are
    /// not known of a run on another medium.
    pub retried: Option<Times>,
    /// What of that was their own backoff, with what servers said about time: what the session says to wait.
    pub backoff: Option<Times>,
    /// What of that they were held at the destination, for whatever reason, before an attempt whose backoff was over.
    pub held: Option<Times>,
    /// How long one of their retries was held at most while the destination answered: from the first success of
    /// somebody else that came after its backoff. Somebody else may be in another process. Known to 10 ms.
    pub held_answered: Option<Times>,
    /// Of the requests that were open when a trouble was over: the time from then to their success, without
    /// what further troubles took of it. `None` if there are none.
    pub back: Option<Times>,
    /// Of those, how many never succeeded.
    pub unanswered: u64,
    /// Events of the run: what it cost to simulate.
    pub events: u64,
}

/// How long something took for some of the requests of a run, in seconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Times {
    /// How many requests.
    pub count: u64,
    /// For half of them it took no longer.
    pub p50_s: f64,
    /// For 99 % it took no longer.
    pub p99_s: f64,
    /// The longest.
    pub max_s: f64,
}

/// What goes into a layer and out of it: amplification is what goes out over what comes in.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Layer {
    /// Calls to the layer.
    pub calls_in: u64,
    /// Attempts that it starts: calls of the layer below, or of the service.
    pub calls_out: u64,
}

/// What became of the requests of a class.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ClassCount {
    /// Requests made.
    pub requests: u64,
    /// Of them, succeeded before their deadline.
    pub successes: u64,
}
