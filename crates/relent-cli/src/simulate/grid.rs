//! `relent simulate grid`: runs policies at every combination of values, and lists the bounds that they miss.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use relent::Policy;
use relent_sim::grid::{Cell, CellResult, Grid, play};

use super::input::{MAX_SCENARIO_BYTES, NamedItem, load_policy, read_at_most};
use super::options::{PolicyList, Threads};
use super::progress::progress;
use super::ranked;
use crate::console::print;
use crate::exit_status::ExitError;
use crate::options::seed;

/// The end of `relent simulate grid --help`.
pub(super) const AFTER_HELP: &str = "\
Examples:
  The default policy at every distance and load of a file in scenarios/grids,
  where their format is described:
      relent simulate grid scenarios/grids/far.toml

A line for each cell shows the share of requests that complete in the last
quarter of the time with off and with the policy (late), attempts per request,
the longest time for which a retry is held while the destination responds
(held), and from the end of a fault to a success (answer). A cell that misses a
bound of the file is evaluated by the means over four seeds.

Exit status: 0; 1 if a bound is missed, or the result cannot be written; 2 if
the options, a policy or the file are wrong.";

/// The arguments of `relent simulate grid`.
#[derive(Args, Debug)]
pub(crate) struct GridArgs {
    /// A scenario with axes of values, and bounds
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    policies: PolicyList,

    /// The first seed
    #[arg(long, value_name = "N", value_parser = seed, default_value = "1", allow_hyphen_values = true)]
    seed: u64,

    #[command(flatten)]
    threads: Threads,
}

/// Runs the policies, and prints the results of each cell.
///
/// # Errors
/// The grid is wrong, a bound is missed, or the output cannot be written.
pub(super) fn run(args: &GridArgs) -> Result<(), ExitError> {
    let policies = args.policies.load()?;
    let text = read_at_most(&args.file, MAX_SCENARIO_BYTES, "a grid has at most 1 MiB")
        .map_err(ExitError::usage)?;
    let wrong = |error| ExitError::usage(format!("{}: {error}", args.file.display()));
    let grid = Grid::parse(&text).map_err(wrong)?;
    let cells = grid.cells().map_err(wrong)?;
    let off = load_policy(ranked::OFF)?.value;
    let played: Vec<&NamedItem<Policy>> = policies
        .iter()
        .filter(|one| one.name != ranked::OFF)
        .collect();
    let values: Vec<&Policy> = played.iter().map(|one| &one.value).collect();
    let bar = progress(cells.len());
    let on_cell = || bar.inc(1);
    let (bounds, seed, threads) = (grid.bounds, args.seed, args.threads.count());
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
