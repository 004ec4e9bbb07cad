//! The numbers of a run as tables show them: their names, units and places.

use crate::metrics::Metrics;
use crate::study::Estimate;

/// A number of a run.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// What it is called.
    pub name: &'static str,
    /// Its unit; empty for a count or a share.
    pub unit: &'static str,
    /// The decimal places that are shown.
    pub places: usize,
    /// What it says, in a sentence.
    pub meaning: &'static str,
    /// Its value in a run; `None` where it does not exist.
    pub value: fn(&Metrics) -> Option<f64>,
}

/// The number that tells when the service is well again: where it is missing, it never was.
const TTR: &str = "ttr";

/// What only some scenarios have.
const OPTIONAL: [&str; 2] = ["drops", "eff."];

/// All numbers, in the order of the tables.
pub const ALL: [Measure; 12] = [
    Measure {
        name: "goodput",
        unit: "",
        places: 4,
        meaning: "successes before the caller's deadline, as a share of the requests",
        value: |m| Some(m.goodput),
    },
    Measure {
        name: "ampl.",
        unit: "",
        places: 2,
        meaning: "amplification: attempts that reach the service, per success",
        value: |m| m.amplification,
    },
    Measure {
        name: TTR,
        unit: "s",
        places: 1,
        meaning: "time to recover: from the end of the outage until new requests are well again",
        value: |m| m.ttr_s,
    },
    Measure {
        name: "drain",
        unit: "s",
        places: 1,
        meaning: "until the last request of the outage, or of a herd, has succeeded",
        value: |m| m.drain_s,
    },
    Measure {
        name: "peak",
        unit: "",
        places: 2,
        meaning: "the most attempts in a second after the outage, over the capacity",
        value: |m| Some(m.peak),
    },
    Measure {
        name: "dupl.",
        unit: "",
        places: 0,
        meaning: "duplicates: executions beyond one per success",
        value: |m| Some(m.duplicates as f64),
    },
    Measure {
        name: "fair.",
        unit: "",
        places: 3,
        meaning: "fairness: Jain's index over the client processes, or the stations of a medium",
        value: |m| m.fairness,
    },
    Measure {
        name: "drops",
        unit: "",
        places: 0,
        meaning: "messages that the network lost",
        value: |m| m.drops.map(|drops| drops as f64),
    },
    Measure {
        name: "eff.",
        unit: "",
        places: 4,
        meaning: "efficiency: the share of the time in which the medium carries frames that arrive",
        value: |m| m.efficiency,
    },
    Measure {
        name: "p50",
        unit: "ms",
        places: 1,
        meaning: "half of the successes take no longer, waits included",
        value: |m| m.p50_ms,
    },
    Measure {
        name: "p99",
        unit: "ms",
        places: 1,
        meaning: "99 % of the successes take no longer",
        value: |m| m.p99_ms,
    },
    Measure {
        name: "p99.9",
        unit: "ms",
        places: 1,
        meaning: "99.9 % of the successes take no longer",
        value: |m| m.p999_ms,
    },
];

/// All numbers but those that only some scenarios have and none of these runs does: a column that
/// would be empty is left out. A row has the runs of one policy.
#[must_use]
pub fn shown(rows: &[Vec<&Metrics>]) -> Vec<&'static Measure> {
    let exists = |measure: &&Measure| {
        let any = |runs: &Vec<&Metrics>| measure.estimate(runs).is_some();
        !OPTIONAL.contains(&measure.name) || rows.iter().any(any)
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

    fn values(&self, runs: &[&Metrics]) -> Vec<f64> {
        runs.iter().filter_map(|run| (self.value)(run)).collect()
    }

    /// The mean and half of its 95 % confidence interval, which is left out where nothing varies;
    /// in words where it does not exist. `outage`: is there something to recover from?
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
        // Places after a thousand say nothing.
        let places = match estimate.mean.abs() >= 1000.0 {
            true => 0,
            false => self.places,
        };
        let mean = format!("{:.places$}", estimate.mean);
        // Runs of two kinds have no interval about their mean: the verdict says how many are of each.
        let half_width = match self.recovers_in_some(runs, outage) {
            true => None,
            false => estimate.half_width,
        };
        let cell = match half_width.map(|half| format!("{half:.places$}")) {
            Some(half) if half.bytes().any(|byte| (b'1'..=b'9').contains(&byte)) => {
                format!("{mean}±{half}")
            }
            _ => mean,
        };
        match self.name == TTR && missing > 0 {
            true => format!("{cell}, {missing} never"),
            false => cell,
        }
    }

    /// Whether it tells of an outage that only some of these runs recover from.
    fn recovers_in_some(&self, runs: &[&Metrics], outage: bool) -> bool {
        let recovered = runs.iter().filter(|run| run.ttr_s.is_some()).count();
        outage && self.name != TTR && (1..runs.len()).contains(&recovered)
    }
}
