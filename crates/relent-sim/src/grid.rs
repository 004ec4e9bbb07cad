//! Grids: one scenario at every combination of some values, and the bounds for a policy in each cell.

use relent_core::Policy;
use serde::Deserialize;

use crate::metrics::Metrics;
use crate::run::run_bounded;
use crate::scenario::{Scenario, ScenarioError};
use crate::study::in_parallel;

/// The most events of a run. A run with more is given up.
const MAX_EVENTS: u64 = 20_000_000;
/// Runs of a cell whose first run misses a bound: the mean of all decides.
const SEEDS_OF_A_MISSED_BOUND: u64 = 4;
/// The most cells.
const MAX_CELLS: usize = 100_000;

/// A scenario at every combination of values, as a file.
///
/// ```
/// use relent_sim::grid::Grid;
///
/// let grid = Grid::parse(r#"
///     [scenario]
///     clients.arrivals.poisson = { rate = 10, for = "20s" }
///     [[axes]]
///     name = "way"
///     key = "network.one_way"
///     values = ["1ms", "10ms"]
///     [[axes]]
///     name = "processes"
///     key = "clients.processes"
///     values = [1, 20, 2000]
/// "#)?;
/// let cells = grid.cells()?;
/// assert_eq!(cells.len(), 6);
/// assert_eq!(cells[5].values, ["10ms", "2000"]);
/// # Ok::<(), relent_sim::ScenarioError>(())
/// ```
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grid {
    /// A description in one sentence.
    #[serde(default)]
    pub description: String,
    /// The scenario that all cells share.
    scenario: toml::Table,
    /// The keys that differ between cells.
    pub axes: Vec<Axis>,
    /// The bounds for a policy.
    #[serde(default)]
    pub bounds: Bounds,
}

/// One key that differs between cells.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// Its name.
    pub name: String,
    /// The key with its place, such as `network.one_way`.
    key: String,
    /// Its values.
    values: Vec<toml::Value>,
    /// The labels of the values; by default the values themselves.
    #[serde(default)]
    labels: Vec<String>,
}

/// The bounds of each cell; an absent bound is not checked.
#[derive(Clone, Copy, PartialEq, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// The most by which the goodput of the last quarter of the time may be below that of no retries.
    pub lost: Option<f64>,
    /// The most attempts per request.
    pub attempts: Option<f64>,
    /// The longest time for which a retry may be held while the destination responds, in seconds.
    pub held_s: Option<f64>,
    /// The longest time from the end of a fault to the success of a request that was open then, in seconds.
    pub answer_s: Option<f64>,
}

/// One combination of values.
#[derive(Clone, PartialEq, Debug)]
pub struct Cell {
    /// The value of each axis, in their order.
    pub values: Vec<String>,
    /// Its scenario.
    pub scenario: Scenario,
}

/// The results of a policy in a cell, and those of no retries with the same seeds.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct CellResult {
    /// Goodput of the requests of the last quarter of the time, with no retries.
    pub off: f64,
    /// Goodput of the same requests with the policy.
    pub late: f64,
    /// Attempts per request.
    pub attempts: f64,
    /// The longest time for which a retry was held while the destination responded, in seconds.
    pub held_s: f64,
    /// The longest time from the end of a fault to a success, in seconds.
    pub answer_s: f64,
}

impl Grid {
    /// Reads a grid.
    ///
    /// # Errors
    /// A text that is not TOML, keys that are unknown or missing, axes without values.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let grid: Self = toml::from_str(text).map_err(|error| ScenarioError::toml(text, &error))?;
        for axis in &grid.axes {
            let labels = axis.labels.len();
            if axis.values.is_empty() || (labels > 0 && labels != axis.values.len()) {
                let message = "an axis has values, and a label for each or none";
                return Err(ScenarioError::change(&axis.name, message));
            }
        }
        let cells = grid.axes.iter().map(|axis| axis.values.len());
        match cells.fold(1_usize, usize::saturating_mul) <= MAX_CELLS {
            true => Ok(grid),
            false => Err(ScenarioError::change("axes", "at most 100000 cells")),
        }
    }

    /// All combinations; the last axis varies fastest.
    ///
    /// # Errors
    /// Those of [`Scenario::parse`], with the values of the cell.
    pub fn cells(&self) -> Result<Vec<Cell>, ScenarioError> {
        let mut cells = vec![(Vec::new(), self.scenario.clone())];
        for axis in &self.axes {
            let mut next = Vec::new();
            for (values, table) in &cells {
                for (number, value) in axis.values.iter().enumerate() {
                    let label = axis.label(number, value);
                    let mut table = table.clone();
                    Scenario::set(&mut table, &axis.key, value.clone())
                        .map_err(|message| ScenarioError::change(&axis.key, &message))?;
                    let mut values: Vec<String> = values.clone();
                    values.push(label);
                    next.push((values, table));
                }
            }
            cells = next;
        }
        let cells = cells.into_iter().map(|(values, table)| {
            let scenario = Scenario::of_table(table, &values.join(", "))?;
            Ok(Cell { values, scenario })
        });
        cells.collect()
    }
}

impl Axis {
    fn label(&self, number: usize, value: &toml::Value) -> String {
        match (self.labels.get(number), value) {
            (Some(label), _) => label.clone(),
            (None, toml::Value::String(word)) => word.clone(),
            (None, toml::Value::Integer(number)) => number.to_string(),
            (None, toml::Value::Float(number)) => number.to_string(),
            (None, _) => number.to_string(),
        }
    }
}

impl CellResult {
    /// The result of a run that was given up: it misses every bound, whatever no retries achieve.
    const fn given_up(off: f64) -> Self {
        Self {
            off,
            late: f64::NEG_INFINITY,
            attempts: f64::INFINITY,
            held_s: f64::INFINITY,
            answer_s: f64::INFINITY,
        }
    }
}

impl Bounds {
    /// The bounds that this result misses, as text.
    #[must_use]
    pub fn missed(&self, result: &CellResult) -> Vec<String> {
        let mut missed = Vec::new();
        let mut check = |what: &str, value: f64, most: Option<f64>, places: usize| {
            if let Some(most) = most.filter(|most| value > *most) {
                missed.push(format!("{what} {value:.places$} > {most}"));
            }
        };
        check("lost", result.off - result.late, self.lost, 4);
        check("attempts", result.attempts, self.attempts, 2);
        check("held while up", result.held_s, self.held_s, 1);
        check("answer", result.answer_s, self.answer_s, 1);
        missed
    }
}

/// Runs each policy in each cell, on `threads` threads, and calls `on_cell` after each cell. The results of a cell
/// are in the order of the policies, and do not depend on `threads`. A cell that misses a bound with the first seed
/// is evaluated by the mean of four.
#[must_use]
pub fn play(
    cells: &[Cell],
    bounds: Bounds,
    off: &Policy,
    policies: &[&Policy],
    seed: u64,
    threads: usize,
    on_cell: &(dyn Fn() + Sync),
) -> Vec<Vec<CellResult>> {
    in_parallel(cells, threads, |cell| {
        let late = |metrics: &Metrics| metrics.late_goodput.unwrap_or(metrics.goodput);
        let run = |policy, seed| run_bounded(&cell.scenario, policy, seed, MAX_EVENTS).ok();
        let off = |seed| run(off, seed).as_ref().map_or(0.0, late);
        let one = |policy, seed, off| match run(policy, seed) {
            Some(metrics) => CellResult {
                off,
                late: late(&metrics),
                attempts: metrics.attempts as f64 / metrics.requests.max(1) as f64,
                held_s: metrics.held_while_up.map_or(0.0, |times| times.max_s),
                answer_s: metrics.success_after_fault.map_or(0.0, |times| times.max_s),
            },
            None => CellResult::given_up(off),
        };
        let first = off(seed);
        let results = policies.iter().map(|policy| {
            let result = one(policy, seed, first);
            if bounds.missed(&result).is_empty() {
                return result;
            }
            let more = (1..SEEDS_OF_A_MISSED_BOUND).map(|more| seed.wrapping_add(more));
            let more = more.map(|seed| one(policy, seed, off(seed)));
            let all: Vec<CellResult> = std::iter::once(result).chain(more).collect();
            mean(&all)
        });
        let results = results.collect();
        on_cell();
        results
    })
}

fn mean(results: &[CellResult]) -> CellResult {
    let of = |value: fn(&CellResult) -> f64| {
        results.iter().map(value).sum::<f64>() / results.len().max(1) as f64
    };
    CellResult {
        off: of(|one| one.off),
        late: of(|one| one.late),
        attempts: of(|one| one.attempts),
        held_s: of(|one| one.held_s),
        answer_s: of(|one| one.answer_s),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use relent_core::Backoff;

    const GRID: &str = r#"
        [scenario]
        clients.arrivals.poisson = { rate = 100, for = "40s" }
        service = { capacity = 100, queue = "20ms", reject_cost = 0.5 }
        [[axes]]
        name = "load"
        key = "clients.arrivals.poisson.rate"
        values = [10, 95]
        labels = [".1", ".95"]
        [[axes]]
        name = "fault"
        key = "outages"
        values = [[], [{ at = "5s", for = "2s", effect = "stall" }]]
        labels = ["none", "stall"]
        [bounds]
        lost = 0.02
        attempts = 1.5
    "#;

    #[test]
    fn naive_retries_miss_the_grid_bounds_at_high_load() {
        let grid = Grid::parse(GRID).unwrap();
        let cells = grid.cells().unwrap();
        let names: Vec<String> = cells.iter().map(|cell| cell.values.join(" ")).collect();
        assert_eq!(names, [".1 none", ".1 stall", ".95 none", ".95 stall"]);
        assert_eq!(cells[3].scenario.outages.len(), 1);
        let off = Policy::STANDARD.clone().without_retries();
        let naive = Policy::builder(Backoff::constant(Duration::from_millis(1))).max_retries(9);
        let naive = naive.build().unwrap();
        let play = |threads| {
            let policies = [&naive, &off];
            play(&cells, grid.bounds, &off, &policies, 1, threads, &|| ())
        };
        let results = play(1);
        assert_eq!(results, play(3), "the threads change nothing");
        let missed = |cell: usize, policy: usize| grid.bounds.missed(&results[cell][policy]);
        assert_eq!(missed(0, 0), [""; 0]);
        assert_eq!(missed(2, 0).len(), 2, "{:?}", results[2]);
        assert!(missed(2, 0)[0].starts_with("lost 0."), "{:?}", missed(2, 0));
        for (cell, name) in names.iter().enumerate() {
            assert_eq!(missed(cell, 1), [""; 0], "{name}");
        }
    }

    #[test]
    fn a_run_that_was_given_up_misses_every_grid_bound() {
        // Without retries nothing succeeds, either.
        let given_up = CellResult::given_up(0.0);
        for bound in ["lost", "attempts", "held_s", "answer_s"] {
            let grid = format!("{}{bound} = 0.5", GRID.split("lost =").next().unwrap());
            let bounds = Grid::parse(&grid).unwrap().bounds;
            assert_eq!(bounds.missed(&given_up).len(), 1, "{bound}");
            assert_eq!(bounds.missed(&mean(&[given_up; 4])).len(), 1, "{bound}");
        }
    }

    #[test]
    fn an_axis_has_as_many_labels_as_values_and_known_keys() {
        let fewer = GRID.replace("labels = [\".1\", \".95\"]", "labels = [\".1\"]");
        let error = Grid::parse(&fewer).unwrap_err().to_string();
        assert!(error.contains("a label for each"), "{error}");
        let unknown = GRID.replace("\"outages\"", "\"outage\"");
        let error = Grid::parse(&unknown).unwrap().cells().unwrap_err();
        assert!(error.to_string().contains("outage"), "{error}");
    }
}
