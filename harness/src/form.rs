//! Scales a scenario down to one machine.

use std::ffi::OsStr;
use std::path::Path;

use clap::ValueEnum;

/// A size in which the scenarios are played.
///
/// Rates are scaled, times are not, since the circuit breaker has fixed times: its probes are 0.5 s to 5 s apart, and
/// its memory is a minute. The simulator runs the same scaled scenario, so that only the medium differs.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// For a test: a tenth of the rates and short outages; each scenario takes half a minute
    Quick,
    /// A quarter of rates and processes, and a blackout of 15 s in place of a minute: six minutes for all three
    Short,
    /// A quarter of rates and processes, and all times as in the simulator: the blackout takes ten minutes and
    /// more
    Whole,
}

/// A quarter of the rates, from a quarter of the processes: the traffic of each process, and the probes per capacity,
/// stay the same.
const RATES: [(&str, &str); 3] = [
    ("service.capacity", "250"),
    ("clients.arrivals.poisson.rate", "200"),
    ("clients.processes", "5"),
];
/// The same for a scenario in a file.
const QUARTER: [(&str, &str); 2] = [RATES[0], RATES[2]];
/// Other changes to `scenarios/found`, by file name. A short queue given as a time would hold fewer attempts at a
/// lower rate, so its time is longer.
const FOUND: [(&str, &[(&str, &str)]); 7] = [
    (
        "cold-stall",
        &[
            ("clients.arrivals.poisson.rate", "200"),
            ("clients.arrivals.poisson.for", "60s"),
        ],
    ),
    (
        "short-queue",
        &[
            ("service.capacity", "1000"),
            ("service.queue", "20ms"),
            ("clients.arrivals.poisson.rate", "900"),
            ("clients.arrivals.poisson.for", "60s"),
        ],
    ),
    (
        "bursts",
        &[
            ("clients.arrivals.bursts.rate", "1000"),
            ("clients.arrivals.bursts.for", "60s"),
        ],
    ),
    (
        "one-node-refuses",
        &[("clients.arrivals.poisson.rate", "150")],
    ),
    ("one-node-slow", &[("clients.arrivals.poisson.rate", "150")]),
    (
        "outage-windows",
        &[
            ("clients.arrivals.poisson.rate", "100"),
            ("clients.arrivals.poisson.for", "120s"),
            ("outages.0.times", "4"),
        ],
    ),
    ("most-fail", &[("clients.arrivals.poisson.rate", "25")]),
];
/// Only this machine's own network delay remains.
const NETWORK: [(&str, &str); 1] = [("network.one_way", "100us")];

impl Form {
    /// The changes to the scenario of this name.
    #[must_use]
    pub fn changes(self, scenario: &str) -> Vec<(String, String)> {
        let times: &[(&str, &str)] = match (self, scenario) {
            (Self::Quick, "blackout") => &[
                ("service.capacity", "100"),
                ("clients.arrivals.poisson.rate", "60"),
                ("clients.processes", "4"),
                ("clients.arrivals.poisson.for", "24s"),
                ("clients.deadline", "60s"),
                ("outages.0.at", "5s"),
                ("outages.0.for", "5s"),
            ],
            (Self::Quick, "stall") => &[
                ("service.capacity", "100"),
                ("clients.arrivals.poisson.rate", "60"),
                ("clients.processes", "4"),
                ("clients.arrivals.poisson.for", "24s"),
                ("outages.0.at", "5s"),
                ("outages.0.for", "4s"),
            ],
            (Self::Quick, "brownout") => &[
                ("service.capacity", "100"),
                ("clients.arrivals.poisson.rate", "80"),
                ("clients.processes", "4"),
                ("clients.arrivals.poisson.for", "20s"),
                ("outages.0.at", "5s"),
                ("outages.0.for", "6s"),
            ],
            (Self::Quick, "rate-limit") => &[
                ("clients.arrivals.herd.clients", "300"),
                ("clients.processes", "300"),
            ],
            (Self::Short, "blackout") => &[
                ("clients.arrivals.poisson.for", "110s"),
                ("outages.0.at", "20s"),
                ("outages.0.for", "15s"),
                ("clients.deadline", "100s"),
            ],
            (Self::Short, "stall") => &[
                ("clients.arrivals.poisson.for", "90s"),
                ("outages.0.at", "20s"),
            ],
            _ => &[],
        };
        let rates: &[_] = match scenario {
            "blackout" | "stall" | "brownout" => &RATES,
            _ => &[],
        };
        let stem = Path::new(scenario).file_stem().and_then(OsStr::to_str);
        let found = FOUND.iter().find(|(name, _)| Some(*name) == stem);
        let (quarter, found): (&[_], &[_]) = found.map_or((&[], &[]), |found| (&QUARTER, found.1));
        let all = NETWORK
            .iter()
            .chain(rates)
            .chain(quarter)
            .chain(found)
            .chain(times);
        all.map(|(key, to)| ((*key).to_owned(), (*to).to_owned()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Case;

    #[test]
    fn every_scaled_form_of_every_scenario_is_valid() {
        for form in Form::value_variants() {
            for name in [
                "blackout",
                "stall",
                "rate-limit",
                "brownout",
                "random-failures",
            ] {
                let case = Case {
                    scenario: name.to_owned(),
                    set: form.changes(name),
                    policy: "standard".to_owned(),
                    seed: 1,
                    layers: false,
                    block_ms: 0,
                };
                case.scenario().unwrap();
            }
        }
    }
}
