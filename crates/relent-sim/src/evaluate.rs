//! Evaluates whether a policy is worse than no retries, on the same requests.
//!
//! Each comparison is between pairs of runs with the same seed, and a difference counts if it exceeds its 99 %
//! confidence interval. A suspicious result of a few runs is evaluated with other seeds.

use relent_core::Policy;

use crate::generate::{DIMENSIONS, Generated, Generator, generate_by};
use crate::run::run_bounded;
use crate::scenario::Scenario;
use crate::study::in_parallel;

/// The loss of goodput from which a policy counts as worse than no retries.
pub const WORSE_GOODPUT_LOSS: f64 = 0.01;
/// The loss of goodput in the last quarter of the time from which a policy counts as not recovering.
pub const LATE_GOODPUT_LOSS: f64 = 0.1;
/// The factor by which a run is prolonged before a policy counts as not recovering: a backlog or a slow recovery is
/// over by then.
pub const RECOVERY_TIME_FACTOR: u32 = 4;
/// The gain of goodput from which another policy counts as better.
pub const BETTER_GOODPUT_GAIN: f64 = 0.02;
/// Runs of the first pass; a suspicious policy gets [`CLOSE_SEEDS`] more.
const FIRST_SEEDS: u64 = 2;
const CLOSE_SEEDS: u64 = 10;
/// The 99.5 % quantile of Student's t for nine degrees of freedom: those of [`CLOSE_SEEDS`].
const T_99_5_PERCENT: f64 = 3.250;
/// The most events of a run: a hundred or more for each request. A run with more counts as no success.
const MAX_EVENTS: u64 = 4_000_000;

/// A policy and its name.
#[derive(Clone, Copy, Debug)]
pub struct Contender<'a> {
    /// Its name.
    pub name: &'a str,
    /// The policy.
    pub policy: &'a Policy,
}

/// A difference of means, by pairs of runs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Difference {
    /// The mean.
    pub mean: f64,
    /// Half of its 99 % confidence interval.
    pub half_width: f64,
}

impl Difference {
    fn of(values: &[f64]) -> Self {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let half_width = T_99_5_PERCENT * libm::sqrt(squares / (count - 1.0) / count);
        Self { mean, half_width }
    }

    /// Whether it is more than `least` and than its interval.
    #[must_use]
    pub fn exceeds(&self, least: f64) -> bool {
        self.mean > least && self.mean > self.half_width
    }
}

/// Means over the runs of a policy; a run that was given up counts as no success.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Means {
    /// Goodput.
    pub goodput: f64,
    /// Goodput of the requests that are made in the last quarter of the time.
    pub late: f64,
    /// Attempts that reach the service, per request.
    pub attempts: f64,
}

/// The findings about a policy in a scenario.
#[derive(Clone, PartialEq, Debug)]
pub struct Evaluation {
    /// The results of the policy, with the seeds of this evaluation.
    pub means: Means,
    /// The results of no retries, with the same seeds.
    pub off: Means,
    /// The loss of goodput against no retries; `None` if the first pass was not suspicious.
    pub lost: Option<Difference>,
    /// The policy does not recover and no retries do: long after the fault far fewer requests succeed, also in a run
    /// [`RECOVERY_TIME_FACTOR`] times as long.
    pub does_not_recover: bool,
    /// The policy is clearly worse than no retries.
    pub worse: bool,
    /// Other policies that complete clearly more without more attempts, with the gain.
    pub better: Vec<(String, Difference)>,
}

impl Evaluation {
    /// Whether it does not recover or is worse than no retries.
    #[must_use]
    pub const fn is_worse_or_does_not_recover(&self) -> bool {
        self.does_not_recover || self.worse
    }
}

/// A scenario, the results of each contender in it, and the findings.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    /// The scenario.
    pub drawn: Generated,
    /// One for each evaluated policy, in their order.
    pub evaluations: Vec<Evaluation>,
    /// Goodput of no retries, with the first seeds.
    pub off: f64,
    /// Goodput of each of the other policies, in their order, with the first seeds.
    pub others: Vec<f64>,
    /// Goodput of each evaluated policy, with the first seeds.
    pub first: Vec<f64>,
}

/// Runs of one policy.
struct Runs(Vec<Means>);

impl Runs {
    fn of(scenario: &Scenario, policy: &Policy, seeds: std::ops::Range<u64>) -> Self {
        Self::bounded(scenario, policy, seeds, MAX_EVENTS)
    }

    fn bounded(
        scenario: &Scenario,
        policy: &Policy,
        seeds: std::ops::Range<u64>,
        max_events: u64,
    ) -> Self {
        let means = |seed| match run_bounded(scenario, policy, seed, max_events) {
            Ok(metrics) => Means {
                goodput: metrics.goodput,
                late: metrics.late_goodput.unwrap_or(metrics.goodput),
                attempts: metrics.attempts as f64 / metrics.requests.max(1) as f64,
            },
            Err(_) => Means {
                attempts: f64::INFINITY,
                ..Means::default()
            },
        };
        Self(seeds.map(means).collect())
    }

    fn means(&self) -> Means {
        let mean =
            |of: fn(&Means) -> f64| self.0.iter().map(of).sum::<f64>() / self.0.len().max(1) as f64;
        Means {
            goodput: mean(|run| run.goodput),
            late: mean(|run| run.late),
            attempts: mean(|run| run.attempts),
        }
    }

    /// The difference to another, run by run.
    fn beyond(&self, other: &Self, of: fn(&Means) -> f64) -> Difference {
        let pairs = self.0.iter().zip(&other.0);
        let differences: Vec<f64> = pairs.map(|(one, other)| of(one) - of(other)).collect();
        Difference::of(&differences)
    }
}

/// Evaluates a policy in a scenario, against no retries and other policies.
///
/// ```
/// use std::time::Duration;
/// use relent_core::{Backoff, Policy};
/// use relent_sim::Scenario;
/// use relent_sim::evaluate::evaluate;
///
/// let stall = Scenario::parse(r#"
///     clients.arrivals.poisson = { rate = 80, for = "60s" }
///     clients.deadline = "10s"
///     service.capacity = 100
///     outages = [{ at = "10s", for = "3s", effect = "stall" }]
/// "#)?;
/// let off = Policy::builder(Backoff::None).max_retries(0).build()?;
/// let naive = Policy::builder(Backoff::constant(Duration::from_millis(1))).max_retries(10).build()?;
/// assert!(evaluate(&stall, &off, &naive, &[]).does_not_recover);
/// assert!(!evaluate(&stall, &off, &off, &[]).is_worse_or_does_not_recover());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn evaluate(
    scenario: &Scenario,
    off: &Policy,
    policy: &Policy,
    others: &[Contender<'_>],
) -> Evaluation {
    let first = 1..1 + FIRST_SEEDS;
    let runs = |policy| Runs::of(scenario, policy, first.clone());
    let others: Vec<_> = others
        .iter()
        .map(|other| (*other, runs(other.policy)))
        .collect();
    evaluate_closely(scenario, off, policy, &runs(off), &runs(policy), &others)
}

/// Evaluates with other seeds if these runs are suspicious.
fn evaluate_closely(
    scenario: &Scenario,
    off_policy: &Policy,
    policy: &Policy,
    off: &Runs,
    runs: &Runs,
    others: &[(Contender<'_>, Runs)],
) -> Evaluation {
    let (means, without) = (runs.means(), off.means());
    // Half of each threshold is suspicious.
    let suspicious = without.goodput - means.goodput > WORSE_GOODPUT_LOSS / 2.0
        || without.late - means.late > LATE_GOODPUT_LOSS / 2.0;
    let rivals = others.iter().filter(|(_, other)| {
        let other = other.means();
        other.goodput - means.goodput > BETTER_GOODPUT_GAIN / 2.0
            && other.attempts <= 1.01 * means.attempts
    });
    let rivals: Vec<_> = rivals.map(|(other, _)| *other).collect();
    if !suspicious && rivals.is_empty() {
        return Evaluation {
            means,
            off: without,
            lost: None,
            does_not_recover: false,
            worse: false,
            better: Vec::new(),
        };
    }
    let seeds = 1001..1001 + CLOSE_SEEDS;
    let fresh = |policy| Runs::of(scenario, policy, seeds.clone());
    let (runs, off) = (fresh(policy), fresh(off_policy));
    let means = runs.means();
    let lost = off.beyond(&runs, |run| run.goodput);
    let better = rivals.into_iter().filter_map(|other| {
        let others = fresh(other.policy);
        let more = others.beyond(&runs, |run| run.goodput);
        let wins = more.exceeds(BETTER_GOODPUT_GAIN) && others.means().attempts <= means.attempts;
        wins.then(|| (other.name.to_owned(), more))
    });
    Evaluation {
        means,
        off: off.means(),
        lost: Some(lost),
        does_not_recover: off.beyond(&runs, |run| run.late).exceeds(LATE_GOODPUT_LOSS)
            && never_recovers(scenario, off_policy, policy, seeds.clone()),
        worse: lost.exceeds(WORSE_GOODPUT_LOSS),
        better: better.collect(),
    }
}

/// Whether it still does not recover when requests continue for much longer after the same fault.
fn never_recovers(
    scenario: &Scenario,
    off: &Policy,
    policy: &Policy,
    seeds: std::ops::Range<u64>,
) -> bool {
    let mut longer = scenario.clone();
    longer.clients.arrivals.prolong(RECOVERY_TIME_FACTOR);
    let max_events = MAX_EVENTS * u64::from(RECOVERY_TIME_FACTOR);
    let runs = |policy| Runs::bounded(&longer, policy, seeds.clone(), max_events);
    let difference = runs(off).beyond(&runs(policy), |run| run.late);
    difference.exceeds(LATE_GOODPUT_LOSS)
}

/// Draws scenarios and evaluates policies in each, on `threads` threads, and calls `on_case` after each. The cases
/// are in the order of the numbers, and do not depend on `threads`.
///
/// A scenario that cannot be parsed is skipped; the generators draw none.
pub fn evaluate_all(
    generator: Generator,
    numbers: &[u64],
    off: &Policy,
    policies: &[&Policy],
    others: &[Contender<'_>],
    threads: usize,
    on_case: &(dyn Fn() + Sync),
) -> Vec<Case> {
    let cases = in_parallel(numbers, threads, |number| {
        let drawn = generate_by(generator, *number);
        let scenario = Scenario::parse(&drawn.text).ok()?;
        let first = 1..1 + FIRST_SEEDS;
        let runs = |policy| Runs::of(&scenario, policy, first.clone());
        let others: Vec<_> = others
            .iter()
            .map(|other| (*other, runs(other.policy)))
            .collect();
        let without = runs(off);
        let evaluated: Vec<Runs> = policies.iter().map(|policy| runs(policy)).collect();
        let evaluations = policies.iter().zip(&evaluated);
        let evaluations = evaluations.map(|(policy, runs)| {
            evaluate_closely(&scenario, off, policy, &without, runs, &others)
        });
        let case = Case {
            evaluations: evaluations.collect(),
            off: without.means().goodput,
            others: others
                .iter()
                .map(|(_, runs)| runs.means().goodput)
                .collect(),
            first: evaluated.iter().map(|runs| runs.means().goodput).collect(),
            drawn,
        };
        on_case();
        Some(case)
    });
    cases.into_iter().flatten().collect()
}

/// How often each finding occurs at a level of a dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tally {
    /// The dimension and the level.
    pub of: (&'static str, &'static str),
    /// The number of scenarios.
    pub cases: usize,
    /// Scenarios in which the policy does not recover.
    pub does_not_recover: usize,
    /// Scenarios in which it is worse than no retries.
    pub worse: usize,
    /// Scenarios in which another policy is better.
    pub better: usize,
}

/// Counts the findings about the policy of this index, by level, in the order of [`DIMENSIONS`].
#[must_use]
pub fn tally(cases: &[Case], policy: usize) -> Vec<Tally> {
    let levels = DIMENSIONS.iter().flat_map(|dimension| {
        let mut names = Vec::new();
        for generator in Generator::ALL {
            for level in dimension.levels_of(generator) {
                if !names.contains(&(dimension.name, level.name)) {
                    names.push((dimension.name, level.name));
                }
            }
        }
        names
    });
    let count = |of: (&'static str, &'static str)| {
        let cases = cases.iter().filter(|case| case.drawn.levels.contains(&of));
        let evaluated: Vec<&Evaluation> = cases
            .filter_map(|case| case.evaluations.get(policy))
            .collect();
        let number = |is: fn(&Evaluation) -> bool| evaluated.iter().filter(|one| is(one)).count();
        Tally {
            of,
            cases: evaluated.len(),
            does_not_recover: number(|one| one.does_not_recover),
            worse: number(|one| one.worse),
            better: number(|one| !one.better.is_empty()),
        }
    };
    levels.map(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use relent_core::Backoff;

    fn off() -> Policy {
        let off = Policy::builder(Backoff::None).max_retries(0);
        off.build().unwrap()
    }

    /// A budget of 20 % leaves 4 of 100 services per second for the queue after a stall of 5 s. Clearing it takes 15
    /// s with no retries, and longer than the rest of the run with this policy: worse than no retries, but it does
    /// recover.
    #[test]
    fn a_late_recovery_is_worse_than_no_retries_but_does_recover() {
        let scenario = Scenario::parse(
            "clients.arrivals.poisson = { rate = 80, for = \"60s\" }
             clients.deadline = \"10s\"
             clients.processes = 1
             service.capacity = 100
             outages = [{ at = \"5s\", for = \"5s\", effect = \"stall\" }]",
        )
        .unwrap();
        let budget = relent_core::BudgetConfig {
            ratio: 0.2,
            ..relent_core::BudgetConfig::DEFAULT
        };
        let slow = Policy::builder(Backoff::constant(std::time::Duration::from_millis(50)))
            .max_retries(3)
            .budget(budget)
            .build()
            .unwrap();
        let late = |policy| Runs::of(&scenario, policy, 1..5).means().late;
        assert!(
            late(&off()) - late(&slow) > LATE_GOODPUT_LOSS,
            "it seems not to recover"
        );
        let evaluation = evaluate(&scenario, &off(), &slow, &[]);
        assert!(
            evaluation.worse && !evaluation.does_not_recover,
            "{evaluation:?}"
        );
    }

    #[test]
    fn prolonging_a_run_extends_arrivals_and_keeps_outages() {
        let text =
            "clients.arrivals.bursts = { rate = 9, on = \"1s\", off = \"2s\", for = \"30s\" }
             outages = [{ at = \"5s\", for = \"2s\", effect = \"stall\" }]";
        let scenario = Scenario::parse(text).unwrap();
        let mut longer = scenario.clone();
        longer.clients.arrivals.prolong(4);
        assert_eq!(longer.arrivals_end(), 4 * scenario.arrivals_end());
        assert_eq!(longer.outages, scenario.outages);
    }
}
