//! A run on another medium, measured like a simulated run.

use crate::arrivals::Request;
use crate::call_times::Ended;
use crate::metrics::Metrics;
use crate::recorder::Recorder;
use crate::scenario::Scenario;

/// The outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestOutcome {
    /// When and by which process it was made.
    pub request: Request,
    /// Attempts that its client started.
    pub attempts: u32,
    /// When it ended, in nanoseconds from the start.
    pub ended: u64,
    /// Whether it succeeded; if not, it was given up.
    pub succeeded: bool,
}

/// Observations of a run on another medium than virtual time.
///
/// ```
/// use relent_sim::{Observed, RequestOutcome, Request, Scenario};
///
/// let scenario = Scenario::parse("clients.arrivals.herd = { clients = 1 }")?;
/// let outcome = RequestOutcome {
///     request: Request { at: 0, process: 0 },
///     attempts: 2,
///     ended: 70_000_000,
///     succeeded: true,
/// };
/// let observed = Observed { outcomes: vec![outcome], attempts: vec![0, 60_000_000], executions: 1 };
/// let metrics = observed.metrics(&scenario);
/// assert_eq!((metrics.goodput, metrics.amplification), (1.0, Some(2.0)));
/// # Ok::<(), relent_sim::ScenarioError>(())
/// ```
#[derive(Clone, Default, Debug)]
pub struct Observed {
    /// All requests.
    pub outcomes: Vec<RequestOutcome>,
    /// When each attempt reached the service, in nanoseconds from the start.
    pub attempts: Vec<u64>,
    /// Services that had an effect.
    pub executions: u64,
}

impl Observed {
    /// The measurements, by the same rules as those of a [run](crate::run). There are no events.
    #[must_use]
    pub fn metrics(&self, scenario: &Scenario) -> Metrics {
        let mut recorder = Recorder::new(scenario);
        let mut outcomes = self.outcomes.clone();
        // The drain time is that of the last success.
        outcomes.sort_unstable_by_key(|outcome| outcome.ended);
        for (call, outcome) in (0..).zip(&outcomes) {
            let Request { at, process } = outcome.request;
            recorder.on_request(at, process);
            recorder.on_call_in(0);
            for _ in 0..outcome.attempts {
                recorder.on_call_out(0);
            }
            let ended = Ended {
                call,
                place: 0,
                made: at,
                succeeded: outcome.succeeded,
            };
            let attempts = outcome.attempts;
            recorder
                .calls
                .on_observed(ended, attempts, outcome.ended.max(at));
            match outcome.succeeded {
                true => recorder.on_success(call, process, at, outcome.ended.max(at)),
                false => recorder.on_give_up(),
            }
        }
        for at in &self.attempts {
            recorder.on_attempt(*at);
        }
        for _ in 0..self.executions {
            recorder.on_execution();
        }
        recorder.finish(scenario)
    }
}
