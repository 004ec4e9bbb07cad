//! Compares simulated and measured numbers, and reports differences.

use std::fmt::Write;

use relent::Policy;
use relent_sim::measure::{self, Measure};
use relent_sim::study::{Estimate, run_all};
use relent_sim::{Arrivals, Metrics, Scenario};

use crate::clock::{Lag, Lateness};
use crate::processes::Measured;

/// The quantile of Student's t for 99.99 % of single runs, from about 50 seeds on: a table of a hundred numbers has
/// an outlier in one of a hundred cases.
const T_99_99_PERCENT: f64 = 4.2;
/// The resolution of timers is a millisecond: those of the request, of the service and of a delay.
const TIMERS_MS: f64 = 3.0;
/// The relative width of the buckets of latencies.
const BUCKET_WIDTH_SHARE: f64 = 1.0 / 128.0;
/// Measures that do not occur in these scenarios.
const OMITTED_MEASURES: [&str; 2] = ["drops", "eff."];

/// A number, simulated and measured.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    /// The measure.
    pub measure: &'static Measure,
    /// Over the simulated seeds; `None` if it exists in none.
    pub simulated: Option<Estimate>,
    /// The interval for one more run if the medium made no difference; `None` if no run has the number.
    pub expected: Option<(f64, f64)>,
    /// Simulated runs without it.
    pub missing: usize,
    /// The value of the simulated run with the same requests and service times.
    pub twin: Option<f64>,
    /// The value over sockets; `None` if it does not exist.
    pub measured: Option<f64>,
}

impl Comparison {
    /// Whether the measured value could be that of one more simulated run.
    #[must_use]
    pub fn agrees(&self) -> bool {
        match (self.measured, self.expected) {
            (Some(value), Some((low, high))) => (low..=high).contains(&value),
            (Some(_), None) => false,
            (None, _) => self.missing > 0,
        }
    }
}

/// Simulates the scenario with `seeds` seeds from `first` on, on all cores.
#[must_use]
pub fn simulate(scenario: &Scenario, policy: &Policy, first: u64, seeds: u64) -> Vec<Metrics> {
    let seeds: Vec<u64> = (0..seeds).map(|seed| first.wrapping_add(seed)).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let runs = run_all(scenario, &[policy], &seeds, threads, &|| ());
    runs.into_iter().flatten().flatten().collect()
}

/// Compares every number with the simulated runs, of which the first has the seed of the measured one.
///
/// A run over sockets counts as one more run. Its value must lie within the interval of 99.99 % of such runs by
/// Student's t, or within the range of the simulated values, since a few numbers have heavy tails. Times may also
/// differ by the resolution of timers, the lag of the event loops and the width of the latency buckets.
#[must_use]
pub fn compare(scenario: &Scenario, simulated: &[Metrics], measured: &Measured) -> Vec<Comparison> {
    let loops = measured.late.loops;
    let lag = match scenario.clients.arrivals {
        // All of it happens while the machine is busiest.
        Arrivals::Herd { .. } => Lag {
            usual: loops.worst,
            ..loops
        },
        _ => loops,
    };
    let runs: Vec<&Metrics> = simulated.iter().collect();
    let measures = measure::ALL
        .iter()
        .filter(|measure| !OMITTED_MEASURES.contains(&measure.name));
    measures
        .map(|measure| {
            let values: Vec<f64> = runs.iter().filter_map(|run| (measure.value)(run)).collect();
            Comparison {
                measure,
                simulated: Estimate::of(&values),
                expected: expected(&values, slack(scenario, measure, &values, lag))
                    .map(|(low, high)| (low, high.min(highest(measure)))),
                missing: runs.len() - values.len(),
                twin: runs.first().and_then(|run| (measure.value)(run)),
                measured: (measure.value)(&measured.metrics),
            }
        })
        .collect()
}

/// The highest possible value.
fn highest(measure: &Measure) -> f64 {
    match measure.name {
        "goodput" | "fair." => 1.0,
        _ => f64::INFINITY,
    }
}

/// The most by which the medium may change a number, in either direction.
fn slack(scenario: &Scenario, measure: &Measure, values: &[f64], lag: Lag) -> f64 {
    let millis = |nanos: u64| nanos as f64 / 1e6;
    let most = values.iter().copied().fold(0.0, f64::max);
    match (measure.name, measure.unit) {
        ("p50" | "p99", _) => TIMERS_MS + millis(lag.usual) + most * BUCKET_WIDTH_SHARE,
        (_, "ms") => TIMERS_MS + millis(lag.worst) + most * BUCKET_WIDTH_SHARE,
        // Counted in whole seconds.
        ("ttr", _) => 1.0,
        (_, "s") => (TIMERS_MS + millis(lag.worst)) / 1e3,
        // Within a second: as many events may move to the next second.
        ("peak", _) => most * millis(lag.worst) / 1e3,
        ("ampl.", _) => permits_while_late(scenario, lag),
        _ => 0.0,
    }
}

/// The attempts per request that a herd saves or spends by arriving late at a rate limit, which accrues permits in
/// the meantime.
fn permits_while_late(scenario: &Scenario, lag: Lag) -> f64 {
    match (&scenario.clients.arrivals, &scenario.service.limiter) {
        (Arrivals::Herd { clients }, Some(limiter)) => {
            limiter.rate * lag.worst as f64 / 1e9 / f64::from(*clients)
        }
        _ => 0.0,
    }
}

fn expected(values: &[f64], slack: f64) -> Option<(f64, f64)> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let deviation = (squares / (count - 1.0).max(1.0)).sqrt();
    let half = T_99_99_PERCENT * deviation * (1.0 + 1.0 / count).sqrt();
    let low = values.iter().copied().reduce(f64::min)?;
    let high = values.iter().copied().reduce(f64::max)?;
    // No number is below 0.
    let low = (low.min(mean - half) - slack).max(0.0);
    Some((low, high.max(mean + half) + slack))
}

/// The comparison as a table, with the differences in words.
#[must_use]
pub fn table(policy: &str, comparisons: &[Comparison], measured: &Measured) -> String {
    let mut text = format!(
        "{policy:12}{:>12}{:>27}{:>12}{:>12}\n",
        "simulated", "99.99 % of runs within", "same seed", "sockets"
    );
    for comparison in comparisons {
        let places = comparison.measure.places.max(2);
        let number = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.places$}"));
        let within = comparison.expected.map_or("-".to_owned(), |(low, high)| {
            format!("{low:.places$} to {high:.places$}")
        });
        let _ = writeln!(
            text,
            "  {:10}{:>12}{within:>27}{:>12}{:>12}{}",
            comparison.measure.head(),
            number(comparison.simulated.map(|estimate| estimate.mean)),
            number(comparison.twin),
            number(comparison.measured),
            if comparison.agrees() { "" } else { "  differs" },
        );
    }
    let millis = |nanos: u64| nanos as f64 / 1e6;
    let Lateness { loops, machine } = measured.late;
    let _ = writeln!(
        text,
        "  event loops late by {:.1} ms (95 %), {:.1} ms at worst, of which the machine {:.1} ms and {:.1} ms",
        millis(loops.usual),
        millis(loops.worst),
        millis(machine.usual),
        millis(machine.worst),
    );
    let _ = writeln!(
        text,
        "  the run took {:.1} % of the machine, others {:.1} %",
        measured.share.own * 100.0,
        measured.share.others * 100.0
    );
    if measured.disturbed() {
        text.push_str(
            "  DISTURBED: the machine was too busy, and these numbers say more about it than about retries\n",
        );
    }
    for (what, count) in &measured.odd {
        let _ = writeln!(
            text,
            "  {count} attempts ended as none does in the simulator: {what}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_herd_saves_the_permits_that_accrue_meanwhile() {
        let lag = Lag {
            usual: 0,
            worst: 150_000_000,
        };
        let scenario = |name: &str| relent_sim::scenarios::get(name).unwrap().load().unwrap();
        // 100 permits per second for 1,000 clients.
        assert!((permits_while_late(&scenario("rate-limit"), lag) - 0.015).abs() < 1e-9);
        assert_eq!(permits_while_late(&scenario("blackout"), lag), 0.0);
    }

    #[test]
    fn the_expected_interval_of_one_more_run_follows_the_others() {
        assert_eq!(expected(&[], 1.0), None);
        assert_eq!(expected(&[5.0; 50], 0.0), Some((5.0, 5.0)));
        let (low, high) = expected(&[1.0, 2.0, 3.0], 0.5).unwrap();
        let half = T_99_99_PERCENT * (4.0_f64 / 3.0).sqrt();
        assert!(low == 0.0 && (high - (2.0 + half + 0.5)).abs() < 1e-9);
    }
}
