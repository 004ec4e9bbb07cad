//! `relent simulate --grid`: runs policies at every combination of values, and lists the bounds that they miss.

use std::fmt::Write;
use std::path::Path;

use relent::Policy;
use relent_sim::grid::{Cell, CellResult, Grid, play};

use super::{MAX_SCENARIO_BYTES, NamedItem, SimulateArgs, policy, progress, ranked, read_at_most};
use crate::console::print;
use crate::quit::ExitError;

/// Runs the policies, and prints the results of each cell.
///
/// # Errors
/// The grid is wrong, a bound is missed, or the output cannot be written.
pub(super) fn run(
    args: &SimulateArgs,
    file: &Path,
    policies: &[NamedItem<Policy>],
    threads: usize,
) -> Result<(), ExitError> {
    let text = read_at_most(file, MAX_SCENARIO_BYTES, "a grid has at most 1 MiB")
        .map_err(ExitError::usage)?;
    let wrong = |error| ExitError::usage(format!("{}: {error}", file.display()));
    let grid = Grid::parse(&text).map_err(wrong)?;
    let cells = grid.cells().map_err(wrong)?;
    let off = policy(ranked::OFF).map_err(ExitError::failed)?;
    let played: Vec<&NamedItem<Policy>> = policies
        .iter()
        .filter(|one| one.name != ranked::OFF)
        .collect();
    let values: Vec<&Policy> = played.iter().map(|one| &one.value).collect();
    let bar = progress(cells.len());
    let on_cell = || bar.inc(1);
    let (bounds, seed) = (grid.bounds, args.seed);
    let results = play(&cells, bounds, &off, &values, seed, threads, &on_cell);
    bar.finish_and_clear();
    let mut missed = 0;
    for (index, one) in played.iter().enumerate() {
        let rows: Vec<(&Cell, CellResult)> = cells
            .iter()
            .zip(&results)
            .filter_map(|(cell, results)| Some((cell, *results.get(index)?)))
            .collect();
        let (text, misses) = report(&one.name, &grid, &rows);
        missed += misses;
        print(&text).map_err(ExitError::failed)?;
    }
    match missed {
        0 => Ok(()),
        missed => Err(ExitError::failed(format!(
            "{missed} of {} cells miss a bound",
            cells.len() * played.len()
        ))),
    }
}

/// Returns the lines of one policy, and the number of cells that miss a bound.
fn report(name: &str, grid: &Grid, rows: &[(&Cell, CellResult)]) -> (String, usize) {
    let widths: Vec<usize> = grid
        .axes
        .iter()
        .enumerate()
        .map(|(axis, of)| {
            let values = rows.iter().filter_map(|(cell, _)| cell.values.get(axis));
            let longest = values.map(String::len).max().unwrap_or(0);
            longest.max(of.name.len())
        })
        .collect();
    let line = |text: &mut String, values: &mut dyn Iterator<Item = &String>| {
        for (value, width) in values.zip(&widths) {
            let _ = write!(text, "{value:<width$}  ");
        }
    };
    let mut text = match grid.description.as_str() {
        "" => format!("{name}\n\n"),
        description => format!("{name}: {description}\n\n"),
    };
    line(&mut text, &mut grid.axes.iter().map(|axis| &axis.name));
    text += "   off    late  attempts   held  answer\n";
    let mut misses = String::new();
    let mut missed = 0;
    for (cell, result) in rows {
        line(&mut text, &mut cell.values.iter());
        let CellResult {
            off,
            late,
            attempts,
            held_s,
            answer_s,
        } = result;
        let _ = writeln!(
            text,
            "{off:.4}  {late:.4}  {attempts:>8.2}  {held_s:>5.1}  {answer_s:>6.1}"
        );
        let bounds = grid.bounds.missed(result);
        if !bounds.is_empty() {
            missed += 1;
            line(&mut misses, &mut cell.values.iter());
            let _ = writeln!(misses, "{}", bounds.join("; "));
        }
    }
    let _ = writeln!(text, "\n{missed} of {} cells miss a bound", rows.len());
    text += &misses;
    text.push('\n');
    (text, missed)
}
