//! The results of one scenario: the policies, ranked, with `off` and the bound.

use std::fmt::Write;

use relent_sim::study::{RunResult, verdict};
use relent_sim::{Scenario, mean_bound, ranking};

use super::input::NamedItem;
use super::table;

/// The name of the policy without retries.
pub(crate) const OFF: &str = "off";

/// The runs of a policy.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    pub(crate) name: &'a str,
    pub(crate) runs: &'a [RunResult],
}

/// Returns the warnings for all policies, with their names; each policy is compared with `off`.
pub(crate) fn warnings<'a>(
    scenario: &Scenario,
    rows: &[Row<'a>],
) -> Vec<(&'a str, ranking::Warning)> {
    let Some(off) = rows.iter().find(|row| row.name == OFF) else {
        return Vec::new();
    };
    let of = |row: &Row<'a>| {
        let found = ranking::warnings(scenario, row.runs, off.runs).into_iter();
        let name = row.name;
        found.map(move |warning| (name, warning))
    };
    rows.iter().flat_map(of).collect()
}

/// Formats the tables, verdicts and warnings.
pub(super) fn report(scenario: &NamedItem<Scenario>, rows: &[Row<'_>], seeds: &[u64]) -> String {
    let mut text = match scenario.value.description.as_str() {
        "" => format!("{}\n", scenario.name),
        description => format!("{}: {description}\n", scenario.name),
    };
    let _ = match seeds {
        [only] => writeln!(text, "seed {only}; best first\n"),
        _ => writeln!(
            text,
            "{} seeds from {}; best first\n",
            seeds.len(),
            seeds[0]
        ),
    };
    let runs: Vec<Vec<RunResult>> = rows.iter().map(|row| row.runs.to_vec()).collect();
    let order = ranking::best_first(&runs);
    let ranked: Vec<Row<'_>> = order
        .into_iter()
        .filter_map(|index| rows.get(index).copied())
        .collect();
    let cells: Vec<_> = ranked
        .iter()
        .map(|row| (row.name, row.runs.iter().flatten().collect()))
        .collect();
    let bound = mean_bound(&scenario.value, seeds);
    let outage = scenario.value.recovery_begins().is_some();
    text.push_str(&table::table(&cells, outage, bound.ok()));
    text.push('\n');
    let times = table::times(&cells, outage);
    if !times.is_empty() {
        let _ = writeln!(text, "{times}");
    }
    if let Err(why) = bound {
        let _ = writeln!(text, "no bound: {why}");
    }
    for row in &ranked {
        let _ = writeln!(text, "{}: {}", row.name, verdict(&scenario.value, row.runs));
    }
    for (name, warning) in warnings(&scenario.value, &ranked) {
        let _ = writeln!(text, "warning: {name} {warning}");
    }
    text.push('\n');
    text
}
