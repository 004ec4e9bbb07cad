//! The table of a scenario: a line for each policy, means with their intervals.

use std::fmt::Write;

use relent_sim::Metrics;
use relent_sim::measure;

/// The table, every line ended. `outage`: is there something to recover from? `bound`: the goodput that could
/// have been had, in a line above all.
pub(super) fn table(rows: &[(&str, Vec<&Metrics>)], outage: bool, bound: Option<f64>) -> String {
    let runs: Vec<Vec<&Metrics>> = rows.iter().map(|(_, runs)| runs.clone()).collect();
    with_columns(&measure::shown(&runs), rows, outage, bound)
}

/// How long callers wait, and for what, in a table of its own; nothing where nobody waits.
pub(super) fn times(rows: &[(&str, Vec<&Metrics>)], outage: bool) -> String {
    let runs: Vec<Vec<&Metrics>> = rows.iter().map(|(_, runs)| runs.clone()).collect();
    match measure::times_shown(&runs) {
        none if none.is_empty() => String::new(),
        columns => with_columns(&columns, rows, outage, None),
    }
}

fn with_columns(
    columns: &[&measure::Measure],
    rows: &[(&str, Vec<&Metrics>)],
    outage: bool,
    bound: Option<f64>,
) -> String {
    let mut lines: Vec<Vec<String>> = vec![
        std::iter::once("policy".to_owned())
            .chain(columns.iter().map(|measure| measure.head()))
            .collect(),
    ];
    if let Some(most) = bound {
        let cells = columns.iter().map(|measure| match measure.name {
            measure::GOODPUT => format!("{most:.4}"),
            _ => String::new(),
        });
        lines.push(std::iter::once("bound".to_owned()).chain(cells).collect());
    }
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
        let mut line = String::new();
        let mut cells = cells.iter().zip(&widths);
        if let Some((name, width)) = cells.next() {
            let _ = write!(line, "{name:width$}");
        }
        for (cell, width) in cells {
            let _ = write!(line, "  {cell:>width$}");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}
