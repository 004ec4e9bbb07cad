//! The table of a scenario: a line for each policy, means with their intervals.

use std::fmt::Write;

use relent_sim::Metrics;
use relent_sim::measure::{self, Measure};

/// What only some scenarios have: a column that would be empty is left out.
const OPTIONAL: [&str; 2] = ["drops", "eff."];

/// The table, every line ended. `outage`: is there something to recover from?
pub(super) fn table(rows: &[(&str, Vec<&Metrics>)], outage: bool) -> String {
    let exists = |measure: &&Measure| {
        let any = |(_, runs): &(_, Vec<&Metrics>)| measure.estimate(runs).is_some();
        !OPTIONAL.contains(&measure.name) || rows.iter().any(any)
    };
    let columns: Vec<&Measure> = measure::ALL.iter().filter(exists).collect();
    let mut lines: Vec<Vec<String>> = vec![
        std::iter::once("policy".to_owned())
            .chain(columns.iter().map(|measure| measure.head()))
            .collect(),
    ];
    for (name, runs) in rows {
        let cells = columns.iter().map(|measure| measure.cell(runs, outage));
        lines.push(std::iter::once((*name).to_owned()).chain(cells).collect());
    }
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|cells| cells.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..=columns.len()).map(width).collect();
    let mut text = String::new();
    for cells in &lines {
        let mut cells = cells.iter().zip(&widths);
        if let Some((name, width)) = cells.next() {
            let _ = write!(text, "{name:width$}");
        }
        for (cell, width) in cells {
            let _ = write!(text, "  {cell:>width$}");
        }
        text.push('\n');
    }
    text
}
