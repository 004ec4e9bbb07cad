//! The numbers of a run as shown in tables: names, units and decimal places.

use crate::metrics::Metrics;
use crate::study::Estimate;

/// A number of a run.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// Its name.
    pub name: &'static str,
    /// Its unit; empty for a count or a share.
    pub unit: &'static str,
    /// The decimal places that are shown.
    pub places: usize,
    /// The highest possible value: 1 for a share, else infinity. None can be less than 0.
    pub most: f64,
    /// Its meaning in a sentence.
    pub meaning: &'static str,
    /// Its value in a run; `None` where it does not exist.
    pub value: fn(&Metrics) -> Option<f64>,
}

/// The time to recover. Where it is missing, the service has not recovered.
const TTR: &str = "ttr";

/// The share that succeeded, of which there is a [bound](crate::bound).
pub const GOODPUT: &str = "goodput";

/// Numbers that only some scenarios have.
const OPTIONAL_MEASURES: [&str; 2] = ["drops", "eff."];

/// All numbers, in the order of the tables.
pub const ALL: [Measure; 12] = [
    Measure {
        name: GOODPUT,
        unit: "",
        places: 4,
        most: 1.0,
        meaning: "successes before the caller's deadline, as a share of the requests",
        value: |m| Some(m.goodput),
    },
    Measure {
        name: "ampl.",
        unit: "",
        places: 2,
        most: f64::INFINITY,
        meaning: "amplification: attempts that reach the service, per success",
        value: |m| m.amplification,
    },
    Measure {
        name: TTR,
        unit: "s",
        places: 1,
        most: f64::INFINITY,
        meaning: "time to recover: from the end of the outage until new requests succeed promptly again",
        value: |m| m.ttr_s,
    },
    Measure {
        name: "drain",
        unit: "s",
        places: 1,
        most: f64::INFINITY,
        meaning: "drain time: until the last request of the outage, or of a herd, has succeeded",
        value: |m| m.drain_s,
    },
    Measure {
        name: "peak",
        unit: "",
        places: 2,
        most: f64::INFINITY,
        meaning: "the most attempts in a second of the two minutes after the outage, over the capacity",
        value: |m| Some(m.peak),
    },
    Measure {
        name: "dupl.",
        unit: "",
        places: 0,
        most: f64::INFINITY,
        meaning: "duplicates: executions beyond one per success",
        value: |m| Some(m.duplicates as f64),
    },
    Measure {
        name: "fair.",
        unit: "",
        places: 3,
        most: 1.0,
        meaning: "fairness: Jain's index over the client processes, or the stations of a medium",
        value: |m| m.fairness,
    },
    Measure {
        name: "drops",
        unit: "",
        places: 0,
        most: f64::INFINITY,
        meaning: "messages that the network lost",
        value: |m| m.drops.map(|drops| drops as f64),
    },
    Measure {
        name: "eff.",
        unit: "",
        places: 4,
        most: 1.0,
        meaning: "efficiency: the share of the time in which the medium carries frames that arrive",
        value: |m| m.efficiency,
    },
    Measure {
        name: "p50",
        unit: "ms",
        places: 1,
        most: f64::INFINITY,
        meaning: "half of the successes take no longer, delays included",
        value: |m| m.p50_ms,
    },
    Measure {
        name: "p99",
        unit: "ms",
        places: 1,
        most: f64::INFINITY,
        meaning: "99 % of the successes take no longer",
        value: |m| m.p99_ms,
    },
    Measure {
        name: "p99.9",
        unit: "ms",
        places: 1,
        most: f64::INFINITY,
        meaning: "99.9 % of the successes take no longer",
        value: |m| m.p999_ms,
    },
];

const HALF_TAKE_NO_LONGER: &str = "half of them take no longer";
const NINETY_NINE_PERCENT_TAKE_NO_LONGER: &str = "99 % of them take no longer";
const LONGEST_TIME: &str = "the longest";

/// A time in seconds, in a table that is all of seconds.
const fn time(
    name: &'static str,
    meaning: &'static str,
    value: fn(&Metrics) -> Option<f64>,
) -> Measure {
    Measure {
        name,
        unit: "",
        places: 2,
        most: f64::INFINITY,
        meaning,
        value,
    }
}

/// Numbers about one subject.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// The subject, which the names of the numbers do not repeat.
    pub name: &'static str,
    /// The numbers, in the order of the tables.
    pub measures: &'static [Measure],
}

/// How long callers wait, and for what, in seconds; shown in separate tables.
pub const TIMES: [Group; 6] = [
    // From the request to its end, with any outcome.
    Group {
        name: "all requests",
        measures: &[
            time("p99", NINETY_NINE_PERCENT_TAKE_NO_LONGER, |m| {
                Some(m.ended?.p99_s)
            }),
            time("max", LONGEST_TIME, |m| Some(m.ended?.max_s)),
        ],
    },
    // The same for requests that need more than one attempt, and their share.
    Group {
        name: "retried requests",
        measures: &[
            Measure {
                name: "share",
                unit: "",
                places: 4,
                most: 1.0,
                meaning: "the share of the requests that need more than one attempt",
                value: |m| {
                    let retried = m.retried.map_or(0, |times| times.count);
                    (m.requests > 0).then(|| retried as f64 / m.requests as f64)
                },
            },
            time("p50", HALF_TAKE_NO_LONGER, |m| Some(m.retried?.p50_s)),
            time("p99", NINETY_NINE_PERCENT_TAKE_NO_LONGER, |m| {
                Some(m.retried?.p99_s)
            }),
            time("max", LONGEST_TIME, |m| Some(m.retried?.max_s)),
        ],
    },
    // The part of a retried request's time spent in backoff, including Retry-After delays.
    Group {
        name: "retried: backoff",
        measures: &[
            time("p50", HALF_TAKE_NO_LONGER, |m| Some(m.backoff?.p50_s)),
            time("p99", NINETY_NINE_PERCENT_TAKE_NO_LONGER, |m| {
                Some(m.backoff?.p99_s)
            }),
            time("max", LONGEST_TIME, |m| Some(m.backoff?.max_s)),
        ],
    },
    // The part of a retried request's time for which the destination held it after its backoff.
    Group {
        name: "retried: held",
        measures: &[
            time("p50", HALF_TAKE_NO_LONGER, |m| Some(m.held?.p50_s)),
            time("p99", NINETY_NINE_PERCENT_TAKE_NO_LONGER, |m| {
                Some(m.held?.p99_s)
            }),
            time("max", LONGEST_TIME, |m| Some(m.held?.max_s)),
        ],
    },
    // The time for which a retry is held after an attempt of another caller has succeeded.
    Group {
        name: "held while up",
        measures: &[
            time("p99", NINETY_NINE_PERCENT_TAKE_NO_LONGER, |m| {
                Some(m.held_while_up?.p99_s)
            }),
            time("max", LONGEST_TIME, |m| Some(m.held_while_up?.max_s)),
        ],
    },
    // From the end of a fault to the success of a request that was open then.
    Group {
        name: "success after fault",
        measures: &[
            time("p50", HALF_TAKE_NO_LONGER, |m| {
                Some(m.success_after_fault?.p50_s)
            }),
            time("max", LONGEST_TIME, |m| Some(m.success_after_fault?.max_s)),
        ],
    },
];

/// The groups of [`TIMES`] for which some of these runs have a number; none if no request was retried and none was
/// open at the end of a fault.
#[must_use]
pub fn times_shown(rows: &[Vec<&Metrics>]) -> Vec<&'static Group> {
    let mut runs = rows.iter().flatten();
    if !runs.any(|run| run.retried.is_some() || run.success_after_fault.is_some()) {
        return Vec::new();
    }
    let exists = |measure: &Measure| rows.iter().any(|runs| measure.estimate(runs).is_some());
    let groups = TIMES.iter();
    groups
        .filter(|group| group.measures.iter().any(exists))
        .collect()
}

/// All numbers, except those that only some scenarios have and none of these runs does: their columns would be empty.
/// A row has the runs of one policy.
#[must_use]
pub fn shown(rows: &[Vec<&Metrics>]) -> Vec<&'static Measure> {
    let exists = |measure: &&Measure| {
        let any = |runs: &Vec<&Metrics>| measure.estimate(runs).is_some();
        !OPTIONAL_MEASURES.contains(&measure.name) || rows.iter().any(any)
    };
    ALL.iter().filter(exists).collect()
}

impl Measure {
    /// Its name and its unit.
    #[must_use]
    pub fn head(&self) -> String {
        match self.unit {
            "" => self.name.to_owned(),
            unit => format!("{} {unit}", self.name),
        }
    }

    /// The mean over the runs in which it exists, with its interval; `None` if there is none.
    #[must_use]
    pub fn estimate(&self, runs: &[&Metrics]) -> Option<Estimate> {
        Estimate::of(&self.values(runs))
    }

    /// The 95 % confidence interval of its mean, cut to the possible values. `None` for a single run, and if only
    /// some of the runs recover, since their mean describes no run. `outage`: whether there is an outage to recover
    /// from.
    #[must_use]
    pub fn interval(&self, runs: &[&Metrics], outage: bool) -> Option<(f64, f64)> {
        let Estimate { mean, half_width } = self.estimate(runs)?;
        let half = half_width.filter(|_| !self.recovers_in_some(runs, outage))?;
        Some(((mean - half).max(0.0), (mean + half).min(self.most)))
    }

    pub(crate) fn values(&self, runs: &[&Metrics]) -> Vec<f64> {
        runs.iter().filter_map(|run| (self.value)(run)).collect()
    }

    /// The mean and half of its 95 % confidence interval, or the bound of the interval if it is cut at 0 or at the
    /// highest possible value. The interval is left out where nothing varies; a missing value is shown in words.
    /// `outage`: whether there is an outage to recover from.
    ///
    /// ```
    /// use relent_core::Policy;
    /// use relent_sim::{measure, run, scenarios};
    ///
    /// let herd = scenarios::get("herd").expect("a scenario").load()?;
    /// let runs = [run(&herd, Policy::PATIENT, 1)?];
    /// let goodput = measure::ALL[0].cell(&[&runs[0]], false);
    /// assert_eq!(goodput, "1.0000");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn cell(&self, runs: &[&Metrics], outage: bool) -> String {
        let values = self.values(runs);
        let missing = runs.len() - values.len();
        let Some(estimate) = Estimate::of(&values) else {
            let never = self.name == TTR && outage && missing > 0;
            return if never { "never" } else { "-" }.to_owned();
        };
        // More than four digits are not significant.
        let places = match estimate.mean.abs() {
            1000.0.. => 0,
            100.0.. => self.places.min(1),
            _ => self.places,
        };
        let mean = format!("{:.places$}", estimate.mean);
        // If only some of the runs recover, their mean has no interval: the verdict has the counts.
        let interval = self.interval(runs, outage);
        let half_width = estimate.half_width.filter(|_| interval.is_some());
        let cell = match (half_width.map(|half| format!("{half:.places$}")), interval) {
            (Some(half), Some((low, high)))
                if half.bytes().any(|byte| (b'1'..=b'9').contains(&byte)) =>
            {
                let unlimited = self.most.is_infinite();
                match (low > 0.0 || unlimited, high < self.most || unlimited) {
                    (true, true) => format!("{mean}±{half}"),
                    (true, false) => format!("{mean} (≥{low:.places$})"),
                    (false, true) => format!("{mean} (≤{high:.places$})"),
                    // The runs determine nothing.
                    (false, false) => format!("{mean} (0 to 1)"),
                }
            }
            _ => mean,
        };
        match self.name == TTR && missing > 0 {
            true => format!("{cell}, {missing} never"),
            false => cell,
        }
    }

    /// Whether its outage is one from which only some of these runs recover.
    pub(crate) fn recovers_in_some(&self, runs: &[&Metrics], outage: bool) -> bool {
        let recovered = runs.iter().filter(|run| run.ttr_s.is_some()).count();
        outage && self.name != TTR && (1..runs.len()).contains(&recovered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::run;
    use crate::scenario::Scenario;
    use relent_core::Policy;

    #[test]
    fn the_interval_of_a_share_stays_between_0_and_1() {
        let scenario = Scenario::parse("clients.arrivals.herd = { clients = 3 }").unwrap();
        let metrics = run(&scenario, Policy::STANDARD, 1).unwrap();
        let cell = |goodputs: &[f64]| {
            let runs = goodputs.iter().map(|&goodput| Metrics {
                goodput,
                ..metrics.clone()
            });
            let runs: Vec<Metrics> = runs.collect();
            let runs: Vec<&Metrics> = runs.iter().collect();
            if let Some((low, high)) = ALL[0].interval(&runs, false) {
                assert!(0.0 <= low && low <= high && high <= 1.0, "{low} to {high}");
            }
            ALL[0].cell(&runs, false)
        };
        assert_eq!(cell(&[0.5, 0.501, 0.502]), "0.5010±0.0025");
        assert_eq!(cell(&[1.0, 0.999, 0.998]), "0.9990 (≥0.9965)");
        assert_eq!(cell(&[0.0, 0.001, 0.002]), "0.0010 (≤0.0035)");
        assert_eq!(cell(&[0.0, 1.0]), "0.5000 (0 to 1)");
        assert_eq!(cell(&[1.0, 1.0]), "1.0000");
    }
}
