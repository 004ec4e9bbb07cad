//! Ranks several policies in one scenario, and warns of those that are worse than no retries.

use std::fmt;

use crate::evaluate::{LATE_GOODPUT_LOSS, WORSE_GOODPUT_LOSS};
use crate::metrics::Metrics;
use crate::scenario::{Model, Scenario};
use crate::study::{Estimate, RunResult};

/// Goodputs that differ by less than this are ranked by attempts.
const EQUAL_GOODPUT_DIFFERENCE: f64 = 0.001;
/// The attempts, as a multiple of those needed, from which a policy multiplies load.
const MULTIPLIED_LOAD_FACTOR: f64 = 2.0;

/// The indices of the policies, the best first: by goodput, and if that differs by less than 0.001, by fewest
/// attempts. A run that was given up counts as no success.
///
/// ```
/// use relent_core::Policy;
/// use relent_sim::{Scenario, ranking, study};
///
/// let scenario = Scenario::parse(r#"
///     clients.arrivals.poisson = { rate = 50, for = "20s" }
///     service.failures = 0.5
/// "#)?;
/// let off = Policy::STANDARD.clone().without_retries();
/// let runs = study::run_all(&scenario, &[&off, Policy::STANDARD], &[1, 2], 1, &|| ());
/// assert_eq!(ranking::best_first(&runs), [1, 0]);
/// # Ok::<(), relent_sim::ScenarioError>(())
/// ```
#[must_use]
pub fn best_first(runs: &[Vec<RunResult>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..runs.len()).collect();
    let steps = |index: &usize| (goodput(&runs[*index]) / EQUAL_GOODPUT_DIFFERENCE).round();
    order.sort_by(|one, other| {
        let by_goodput = steps(other).total_cmp(&steps(one));
        by_goodput.then(attempts(&runs[*one]).total_cmp(&attempts(&runs[*other])))
    });
    order
}

/// The mean goodput of runs.
#[must_use]
pub fn goodput(runs: &[RunResult]) -> f64 {
    mean(runs, |metrics| metrics.goodput, 0.0)
}

/// The mean of the attempts that reach the service, per request.
#[must_use]
pub fn attempts(runs: &[RunResult]) -> f64 {
    let per_request = |metrics: &Metrics| metrics.attempts as f64 / metrics.requests.max(1) as f64;
    mean(runs, per_request, f64::INFINITY)
}

fn mean(runs: &[RunResult], of: impl Fn(&Metrics) -> f64, given_up: f64) -> f64 {
    let values = runs.iter().map(|run| run.as_ref().map_or(given_up, &of));
    values.sum::<f64>() / runs.len().max(1) as f64
}

/// A warning about a policy.
#[derive(Clone, PartialEq, Debug)]
pub enum Warning {
    /// It is worse than no retries: by this share of all requests, with half of its 95 % confidence interval.
    Worse {
        /// The difference.
        lost: f64,
        /// Half of the interval; `None` for a single run.
        half_width: Option<f64>,
    },
    /// It does not recover in some runs in which no retries do.
    DoesNotRecover {
        /// The number of these runs.
        runs: usize,
        /// The number of all runs.
        of: usize,
    },
    /// It makes far more attempts than are needed.
    MultipliesLoad {
        /// Attempts per request; infinite if a run was given up.
        attempts: f64,
        /// Attempts per request that suffice in normal operation.
        needed: f64,
    },
}

impl Warning {
    /// The warning in a few words, without its numbers.
    #[must_use]
    pub const fn what(&self) -> &'static str {
        match self {
            Self::Worse { .. } => "is worse than no retries",
            Self::DoesNotRecover { .. } => "does not recover",
            Self::MultipliesLoad { .. } => "multiplies load",
        }
    }
}

/// A sentence without the name of the policy.
impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = self.what();
        match *self {
            Self::Worse { lost, half_width } => {
                write!(
                    f,
                    "{what}: it loses {:.1} % more of all requests",
                    100.0 * lost
                )?;
                match half_width {
                    Some(half) => write!(f, " (±{:.1} %)", 100.0 * half),
                    None => f.write_str(", in one run"),
                }
            }
            Self::DoesNotRecover { runs, of } => {
                let plural = if of == 1 { "" } else { "s" };
                write!(
                    f,
                    "{what} in {runs} of {of} run{plural}, while no retries do"
                )
            }
            Self::MultipliesLoad { attempts, needed } if attempts.is_finite() => write!(
                f,
                "{what}: {attempts:.1} attempts per request, where {needed:.1} suffice in normal operation"
            ),
            Self::MultipliesLoad { .. } => write!(f, "{what}: more attempts than can be simulated"),
        }
    }
}

/// Warnings about a policy, compared with no retries with the same seeds.
#[must_use]
pub fn warnings(scenario: &Scenario, runs: &[RunResult], off: &[RunResult]) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let done = |run: &RunResult| run.as_ref().map_or(0.0, |metrics| metrics.goodput);
    let pairs = off.iter().zip(runs);
    let lost: Vec<f64> = pairs.map(|(off, run)| done(off) - done(run)).collect();
    if let Some(lost) = Estimate::of(&lost)
        && lost.mean > WORSE_GOODPUT_LOSS
        && lost.half_width.is_none_or(|half| lost.mean > half)
    {
        warnings.push(Warning::Worse {
            lost: lost.mean,
            half_width: lost.half_width,
        });
    }
    let late = |metrics: &Metrics| metrics.late_goodput.unwrap_or(metrics.goodput);
    let not_recovered = off.iter().zip(runs).filter(|(off, run)| match (off, run) {
        (Ok(off), Ok(run)) => {
            off.ttr_s.is_some() && run.ttr_s.is_none() && late(off) - late(run) > LATE_GOODPUT_LOSS
        }
        (off, run) => off.is_ok() && run.is_err(),
    });
    let not_recovered = not_recovered.count();
    if scenario.outages_end().is_some() && not_recovered > 0 {
        warnings.push(Warning::DoesNotRecover {
            runs: not_recovered,
            of: runs.len(),
        });
    }
    let attempts = attempts(runs);
    let service = &scenario.service;
    let succeed = (1.0 - service.failures) * (1.0 - service.fast_failures.share());
    let needed = 1.0 / succeed.max(0.05);
    // For conflicts on a row, and for jobs, the number of attempts needed is unknown.
    if scenario.service.model == Model::Queue && attempts >= MULTIPLIED_LOAD_FACTOR * needed {
        warnings.push(Warning::MultipliesLoad { attempts, needed });
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::run_all;
    use relent_core::{Backoff, Policy};
    use std::time::Duration;

    #[test]
    fn a_policy_that_prevents_recovery_is_ranked_last_with_warnings() {
        let scenario = Scenario::parse(
            "clients.arrivals.poisson = { rate = 80, for = \"60s\" }
             clients.deadline = \"10s\"
             service.capacity = 100
             outages = [{ at = \"10s\", for = \"3s\", effect = \"stall\" }]",
        )
        .unwrap();
        let off = Policy::STANDARD.clone().without_retries();
        let naive = Policy::builder(Backoff::constant(Duration::from_millis(1)));
        let naive = naive.max_retries(10).build().unwrap();
        let runs = run_all(&scenario, &[&naive, &off], &[1, 2, 3], 1, &|| ());
        assert_eq!(best_first(&runs), [1, 0]);
        let found = warnings(&scenario, &runs[0], &runs[1]);
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        let found = found.join("\n");
        for part in [
            "worse than no retries",
            "does not recover in 3 of 3",
            "multiplies load",
        ] {
            assert!(found.contains(part), "{part}: {found}");
        }
        assert_eq!(warnings(&scenario, &runs[1], &runs[1]), Vec::new());
    }

    #[test]
    fn policies_with_equal_goodput_are_ranked_by_attempts() {
        let scenario = Scenario::parse(
            "clients.arrivals.poisson = { rate = 100, for = \"20s\" }\nservice.failures = 0.001",
        )
        .unwrap();
        let twice =
            Policy::builder(Backoff::None).hedge(relent_core::HedgeConfig::after(Duration::ZERO));
        let twice = twice.max_retries(3).build().unwrap();
        let runs = run_all(&scenario, &[&twice, Policy::STANDARD], &[1, 2], 1, &|| ());
        assert_eq!(best_first(&runs), [1, 0]);
    }
}
