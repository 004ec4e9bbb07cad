//! Runs several policies and seeds on all cores, and summarizes the results with intervals and in words.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use relent_core::Policy;

use crate::metrics::{ClassCount, Metrics};
use crate::recording::Recording;
use crate::run::{record, run};
use crate::scenario::{SECOND, Scenario};
use crate::too_many_events::TooManyEvents;

/// The result of one run.
pub type RunResult = Result<Metrics, TooManyEvents>;

/// Runs every policy with every seed, on `threads` threads, and calls `on_run` after each run. The result has a list
/// for each policy, in the order of the seeds, and does not depend on the number of threads.
pub fn run_all(
    scenario: &Scenario,
    policies: &[&Policy],
    seeds: &[u64],
    threads: usize,
    on_run: &(dyn Fn() + Sync),
) -> Vec<Vec<RunResult>> {
    let jobs: Vec<(&Policy, u64)> = policies
        .iter()
        .flat_map(|policy| seeds.iter().map(move |seed| (*policy, *seed)))
        .collect();
    let mut outcomes = in_parallel(&jobs, threads, |(policy, seed)| {
        let outcome = run(scenario, policy, *seed);
        on_run();
        outcome
    })
    .into_iter();
    let mut list = || outcomes.by_ref().take(seeds.len()).collect();
    policies.iter().map(|_| list()).collect()
}

/// Records a run of every policy with this seed, on `threads` threads, and calls `on_run` after each run. The result
/// is in the order of the policies.
pub fn record_all(
    scenario: &Scenario,
    policies: &[&Policy],
    seed: u64,
    threads: usize,
    on_run: &(dyn Fn() + Sync),
) -> Vec<Result<Recording, TooManyEvents>> {
    in_parallel(policies, threads, |policy| {
        let recording = record(scenario, policy, seed);
        on_run();
        recording
    })
}

/// The results of `work` for the jobs, in their order.
pub(crate) fn in_parallel<J: Sync, R: Send>(
    jobs: &[J],
    threads: usize,
    work: impl Fn(&J) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..threads.clamp(1, jobs.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(number) else {
                        return;
                    };
                    let result = work(job);
                    done.lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner)
                        .push((number, result));
                }
            });
        }
    });
    let mut done = done
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

/// A mean over seeds with its 95 % confidence interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Half of the interval (Student's t); `None` for a single value.
    pub half_width: Option<f64>,
}

/// The 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

impl Estimate {
    /// From one value per seed; `None` without any.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = values.len();
        if count == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count as f64;
        let half_width = (count > 1).then(|| {
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            let deviation = (squares / (count - 1) as f64).sqrt();
            // Beyond 30 degrees of freedom the last value errs on the wide side.
            let t = T.get(count - 2).copied().unwrap_or(T[T.len() - 1]);
            t * deviation / (count as f64).sqrt()
        });
        Some(Self { mean, half_width })
    }
}

/// The number of runs with an outcome, and of all runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Runs with the outcome.
    pub count: usize,
    /// All runs.
    pub of: usize,
}

impl Share {
    /// The 95 % confidence interval of the probability (Wilson, 1927). It is meaningful also if all runs have the
    /// same outcome; `None` without any run.
    ///
    /// ```
    /// use relent_sim::study::Share;
    ///
    /// let (low, high) = Share { count: 0, of: 10 }.interval().expect("ten runs");
    /// assert!(low == 0.0 && (0.27..0.28).contains(&high));
    /// ```
    #[must_use]
    pub fn interval(&self) -> Option<(f64, f64)> {
        const Z: f64 = 1.96;
        if self.of == 0 {
            return None;
        }
        let (count, of) = (self.count.min(self.of) as f64, self.of as f64);
        let share = count / of;
        let middle = share + Z * Z / (2.0 * of);
        let half = Z * ((share * (1.0 - share) + Z * Z / (4.0 * of)) / of).sqrt();
        let scale = 1.0 + Z * Z / of;
        Some((
            ((middle - half) / scale).max(0.0),
            ((middle + half) / scale).min(1.0),
        ))
    }
}

/// Summarizes the runs of a policy in one line of text.
///
/// The words are thresholds on [`Metrics`]. "Does not recover: offered load stays above capacity" means that in most
/// runs the service does not recover while requests are made, and is offered more than its capacity in their last ten
/// seconds.
#[must_use]
pub fn verdict(scenario: &Scenario, runs: &[RunResult]) -> String {
    let ended: Vec<&Metrics> = runs.iter().filter_map(|run| run.as_ref().ok()).collect();
    if ended.is_empty() {
        return runs.first().map_or_else(String::new, |run| match run {
            Err(error) => error.to_string(),
            Ok(_) => String::new(),
        });
    }
    let most = |holds: &dyn Fn(&Metrics) -> bool| {
        ended.iter().filter(|metrics| holds(metrics)).count() * 2 > ended.len()
    };
    let mut words = Vec::new();
    if ended.len() < runs.len() {
        words.push(format!(
            "{} of {} runs were given up: too many attempts",
            runs.len() - ended.len(),
            runs.len()
        ));
    }
    if let Some(end) = scenario.recovery_begins() {
        let after = scenario.arrivals_end().saturating_sub(end) / SECOND;
        if let Some(sentence) = describe_partial_recovery(&ended) {
            words.push(sentence);
        } else if most(&|metrics| metrics.ttr_s.is_none()) {
            words.push(match most(&|metrics| metrics.late_load > 1.0) {
                true => "does not recover: offered load after the outage stays above capacity"
                    .to_owned(),
                false => format!("does not recover within the {after} s after the outage"),
            });
        } else {
            let times: Vec<f64> = ended.iter().filter_map(|metrics| metrics.ttr_s).collect();
            let slowest = times.iter().copied().fold(0.0, f64::max);
            words.push(match slowest {
                0.0 => "recovers immediately after the outage".to_owned(),
                slowest => format!("recovers within {slowest:.0} s after the outage"),
            });
        }
    }
    let mean = |value: &dyn Fn(&Metrics) -> f64| {
        ended.iter().map(|metrics| value(metrics)).sum::<f64>() / ended.len() as f64
    };
    if ended.iter().any(|metrics| metrics.efficiency.is_some()) {
        let carries = mean(&|metrics| metrics.efficiency.unwrap_or_default());
        words.push(format!(
            "the medium carries frames for {:.1} % of the time",
            carries * 100.0
        ));
    }
    let lost = 1.0 - mean(&|metrics| metrics.goodput);
    words.push(match lost {
        lost if lost >= 0.0005 => format!("loses {:.1} % of the requests", lost * 100.0),
        lost if lost > 0.0 => "loses less than 0.1 % of the requests".to_owned(),
        _ => "loses nothing".to_owned(),
    });
    for (number, class) in scenario.clients.classes.iter().enumerate() {
        let count = |of: fn(&ClassCount) -> u64| {
            let counts = ended
                .iter()
                .filter_map(|metrics| metrics.classes.get(number));
            counts.map(of).sum::<u64>()
        };
        let (done, made) = (
            count(|class| class.successes),
            count(|class| class.requests),
        );
        let lost = 100.0 * (1.0 - done as f64 / made.max(1) as f64);
        words.push(format!("{lost:.1} % of {:?}", class.name));
    }
    let attempts = mean(&|metrics| metrics.attempts as f64 / (metrics.requests.max(1)) as f64);
    if attempts >= 3.0 {
        words.push(format!("makes {attempts:.1} attempts per request"));
    }
    words.join("; ")
}

/// If only some of the runs recover: the number of runs and the mean goodput of both kinds. A mean of all would
/// describe no run.
fn describe_partial_recovery(ended: &[&Metrics]) -> Option<String> {
    let (well, never): (Vec<&Metrics>, Vec<&Metrics>) =
        ended.iter().partition(|metrics| metrics.ttr_s.is_some());
    if well.is_empty() || never.is_empty() {
        return None;
    }
    let share = Share {
        count: well.len(),
        of: ended.len(),
    };
    let (low, high) = share.interval()?;
    let goodput = |runs: &[&Metrics]| {
        runs.iter().map(|metrics| metrics.goodput).sum::<f64>() / runs.len() as f64
    };
    Some(format!(
        "recovers in {} of {} runs ({:.0} to {:.0} % of all by their 95 % interval), with a goodput of {:.4}; in {} it \
         does not, with {:.4}",
        well.len(),
        ended.len(),
        100.0 * low,
        100.0 * high,
        goodput(&well),
        never.len(),
        goodput(&never),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_share_is_the_wilson_interval() {
        // From Brown, Cai and DasGupta (2001); 3 of 10 calculated by hand.
        let (low, high) = Share { count: 3, of: 10 }.interval().unwrap();
        assert!((low - 0.1078).abs() < 1e-3 && (high - 0.6032).abs() < 1e-3);
        let (low, high) = Share { count: 10, of: 10 }.interval().unwrap();
        assert!((low - 0.7225).abs() < 1e-3 && high == 1.0);
        assert_eq!(Share { count: 0, of: 0 }.interval(), None);
    }

    #[test]
    fn the_verdict_separates_runs_that_recover_from_runs_that_do_not() {
        let scenario = Scenario::parse(
            "clients.arrivals.poisson = { rate = 40, for = \"40s\" }
             outages = [{ at = \"5s\", for = \"2s\", effect = \"blackout\" }]",
        )
        .unwrap();
        let run = run(&scenario, Policy::STANDARD, 1).unwrap();
        let stuck = Metrics {
            ttr_s: None,
            goodput: 0.25,
            ..run.clone()
        };
        let runs = [Ok(run.clone()), Ok(stuck.clone()), Ok(run.clone())];
        let words = verdict(&scenario, &runs);
        assert!(
            words.starts_with("recovers in 2 of 3 runs (21 to 94 %"),
            "{words}"
        );
        assert!(words.contains("in 1 it does not, with 0.2500"), "{words}");
        let cell = crate::measure::ALL[0].cell(&[&run, &stuck], true);
        assert!(!cell.contains('±'), "{cell}");
    }

    #[test]
    fn the_interval_of_a_mean_uses_students_t() {
        // 1, 2, 3: mean 2, deviation 1, t₂ = 4.303.
        let estimate = Estimate::of(&[1.0, 2.0, 3.0]).unwrap();
        assert_eq!(estimate.mean, 2.0);
        assert!((estimate.half_width.unwrap() - 4.303 / 3.0_f64.sqrt()).abs() < 1e-12);
        assert_eq!(Estimate::of(&[5.0]).unwrap().half_width, None);
        assert_eq!(Estimate::of(&[]), None);
    }

    #[test]
    fn the_number_of_threads_changes_nothing() {
        let scenario = Scenario::parse(
            "clients.arrivals.poisson = { rate = 200, for = \"5s\" }\nservice.failures = 0.2",
        )
        .unwrap();
        let policies = [Policy::STANDARD, Policy::PATIENT];
        let study = |threads| run_all(&scenario, &policies, &[1, 2, 3], threads, &|| ());
        let alone = study(1);
        assert_eq!(alone, study(4));
        assert_ne!(alone[0][0], alone[0][1], "seeds differ");
        assert_ne!(alone[0][0], alone[1][0], "policies differ");
        assert_eq!(study(1)[0].len(), 3);
        let recorded = record_all(&scenario, &policies, 2, 4, &|| ());
        let recorded = recorded.into_iter().map(|run| run.map(|run| run.metrics));
        let second: Vec<RunResult> = alone.iter().map(|runs| runs[1].clone()).collect();
        assert_eq!(recorded.collect::<Vec<_>>(), second);
    }
}
