//! The input of a report: a scenario with the results of its policies.

use crate::recording::Recording;
use crate::scenario::{Arrivals, Scenario};
use crate::study::RunResult;
use crate::too_many_events::TooManyEvents;

/// A scenario, and the results of every policy in it.
#[derive(Clone, Debug)]
pub struct Section<'a> {
    /// Its name, or that of its file.
    pub name: &'a str,
    /// The scenario.
    pub scenario: &'a Scenario,
    /// Its file.
    pub text: &'a str,
    /// The changes to it: keys and values.
    pub changes: &'a [(String, String)],
    /// The seeds of the runs. Charts over time show the first.
    pub seeds: &'a [u64],
    /// The runs of no retries with the same seeds, with which the policies are compared; without them there are no
    /// warnings.
    pub off: Option<&'a [RunResult]>,
    /// The policies, in their order.
    pub entries: Vec<PolicyRuns<'a>>,
}

/// The results of one policy in a scenario.
#[derive(Clone, Debug)]
pub struct PolicyRuns<'a> {
    /// The name of the policy, or of its file.
    pub name: &'a str,
    /// The policy as TOML.
    pub text: &'a str,
    /// The results of its runs, one for each seed.
    pub runs: &'a [RunResult],
    /// Its run with the first seed.
    pub recording: Result<&'a Recording, TooManyEvents>,
    /// For a herd: the run of the policy without its jitter; `None` if there is no such policy ([`without_jitter`](super::without_jitter)).
    pub without_jitter: Option<Result<&'a Recording, TooManyEvents>>,
}

impl Section<'_> {
    /// Whether all clients start simultaneously: then a raster shows more than rates.
    pub(super) const fn is_herd(&self) -> bool {
        matches!(self.scenario.clients.arrivals, Arrivals::Herd { .. })
    }
}
