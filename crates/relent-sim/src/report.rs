//! Reports and pictures of the results of policies.
//!
//! [`html`] makes one file that a browser shows without any network; [`svg`] makes one picture. The input is a
//! [`Section`] for each scenario; nothing is run here.

mod bars;
mod canvas;
mod chart;
mod frame;
mod latency;
mod over_time;
mod page;
mod palette;
mod picture;
mod raster;

use std::fmt;

use relent_core::{Jitter, Policy};

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
    /// For a herd: the run of the policy without its jitter; `None` if there is no such policy ([`without_jitter`]).
    pub without_jitter: Option<Result<&'a Recording, TooManyEvents>>,
}

/// A chart cannot be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReportError(String);

impl fmt::Display for ReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot be drawn: {}", self.0)
    }
}

impl std::error::Error for ReportError {}

impl From<canvas::DrawError> for ReportError {
    fn from(error: canvas::DrawError) -> Self {
        Self(error.to_string())
    }
}

impl Section<'_> {
    /// Whether all clients start simultaneously: then a raster shows more than rates.
    const fn is_herd(&self) -> bool {
        matches!(self.scenario.clients.arrivals, Arrivals::Herd { .. })
    }
}

/// A copy of the policy without jitter; `None` if it has none or does not retry. Randomness of the backoff itself
/// stays.
///
/// ```
/// use relent_core::{Jitter, Policy};
/// use relent_sim::report::without_jitter;
///
/// let plain = without_jitter(Policy::STANDARD).expect("it has jitter");
/// assert_eq!(plain.jitter(), Jitter::None);
/// assert_eq!(without_jitter(&plain), None);
/// ```
#[must_use]
pub fn without_jitter(policy: &Policy) -> Option<Policy> {
    if policy.jitter() == Jitter::None || policy.max_retries() == Some(0) {
        return None;
    }
    policy
        .clone()
        .into_builder()
        .jitter(Jitter::None)
        .build()
        .ok()
}

/// One HTML file with everything about these scenarios: it loads nothing, has no script, and follows
/// the reader's preference for light or dark. The same input gives the same file.
///
/// # Errors
/// A chart that cannot be laid out.
pub fn html(sections: &[Section<'_>]) -> Result<String, ReportError> {
    Ok(page::page(sections)?)
}

/// One picture as SVG: for a herd the attempts of its clients, otherwise the rates over time; a panel for each
/// policy. It loads nothing: its text is in the reader's own font, and it follows the preference for light or dark.
///
/// # Errors
/// A chart that cannot be laid out.
pub fn svg(section: &Section<'_>) -> Result<String, ReportError> {
    Ok(picture::svg(section)?)
}

#[cfg(test)]
mod tests;
