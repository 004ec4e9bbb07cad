//! The table of a scenario: a line for each policy, means with their intervals.

use std::fmt::Write;

use relent_sim::Metrics;
use relent_sim::study::Estimate;

/// A column: its head, its decimal places, and its number in one run.
type Column = (&'static str, usize, fn(&Metrics) -> Option<f64>);

const COLUMNS: [Column; 9] = [
    ("goodput", 4, |m| Some(m.goodput)),
    ("ampl.", 2, |m| m.amplification),
    ("ttr s", 1, |m| m.ttr_s),
    ("drain s", 1, |m| m.drain_s),
    ("peak", 2, |m| Some(m.peak)),
    ("dupl.", 0, |m| Some(m.duplicates as f64)),
    ("p50 ms", 1, |m| m.p50_ms),
    ("p99 ms", 1, |m| m.p99_ms),
    ("p99.9 ms", 1, |m| m.p999_ms),
];

/// The table, every line ended. `outage`: is there something to recover from?
pub(super) fn table(rows: &[(&str, Vec<&Metrics>)], outage: bool) -> String {
    let mut lines: Vec<Vec<String>> = vec![
        std::iter::once("policy".to_owned())
            .chain(COLUMNS.iter().map(|(head, ..)| (*head).to_owned()))
            .collect(),
    ];
    for (name, runs) in rows {
        let mut cells = vec![(*name).to_owned()];
        for (head, places, value) in COLUMNS {
            let found: Vec<f64> = runs.iter().filter_map(|run| value(run)).collect();
            let missing = runs.len() - found.len();
            cells.push(match Estimate::of(&found) {
                None if head == "ttr s" && outage && !runs.is_empty() => "never".to_owned(),
                None => "-".to_owned(),
                Some(_) if head == "ttr s" && missing > 0 => {
                    format!("{}, {missing} never", cell(&found, places))
                }
                Some(_) => cell(&found, places),
            });
        }
        lines.push(cells);
    }
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|cells| cells.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..=COLUMNS.len()).map(width).collect();
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

/// A mean and half of its interval, which is left out where nothing varies.
fn cell(values: &[f64], places: usize) -> String {
    let Some(estimate) = Estimate::of(values) else {
        return "-".to_owned();
    };
    let mean = format!("{:.places$}", estimate.mean);
    match estimate.half_width.map(|half| format!("{half:.places$}")) {
        Some(half) if half.bytes().any(|byte| (b'1'..=b'9').contains(&byte)) => {
            format!("{mean}±{half}")
        }
        _ => mean,
    }
}
