//! The tables of a scenario: a line for each policy, with means and their intervals.

use relent_sim::Metrics;
use relent_sim::measure::{self, Measure};

/// The most characters of a line in the tables of times.
const WIDTH: usize = 100;
/// The gap between columns, and between groups of them.
const GAP: &str = "  ";
const GROUP_GAP: &str = "    ";

/// The policies and their runs.
type Rows<'a> = [(&'a str, Vec<&'a Metrics>)];

/// A group of columns, from left to right; each column has its cells from the head down.
struct ColumnGroup {
    name: &'static str,
    columns: Vec<Vec<String>>,
    widths: Vec<usize>,
}

impl ColumnGroup {
    fn new(name: &'static str, columns: Vec<Vec<String>>) -> Self {
        let widest = |cells: &Vec<String>| cells.iter().map(|cell| length(cell)).max();
        let mut group = Self {
            name,
            widths: columns.iter().filter_map(widest).collect(),
            columns,
        };
        let missing = length(name).saturating_sub(group.width());
        if let Some(first) = group.widths.first_mut() {
            *first += missing;
        }
        group
    }

    /// Creates the columns of measures. `bound` is the value in the goodput column of a line above all policies.
    fn of<'m>(
        name: &'static str,
        measures: impl IntoIterator<Item = &'m Measure>,
        rows: &Rows<'_>,
        outage: bool,
        bound: Option<f64>,
    ) -> Self {
        let column = |measure: &Measure| {
            let bound = bound.map(|most| match measure.name {
                measure::GOODPUT => format!("{most:.4}"),
                _ => String::new(),
            });
            let cells = rows.iter().map(|(_, runs)| measure.cell(runs, outage));
            let head = std::iter::once(measure.head());
            head.chain(bound).chain(cells).collect()
        };
        Self::new(name, measures.into_iter().map(column).collect())
    }

    /// Creates the column with the names of the policies.
    fn policies(rows: &Rows<'_>, bound: bool) -> Self {
        let bound = bound.then_some("bound");
        let names = rows.iter().map(|(name, _)| *name);
        let cells = std::iter::once("policy").chain(bound).chain(names);
        Self::new("", vec![cells.map(str::to_owned).collect()])
    }

    fn width(&self) -> usize {
        let gaps = GAP.len() * self.widths.len().saturating_sub(1);
        self.widths.iter().sum::<usize>() + gaps
    }

    fn line(&self, row: usize) -> String {
        let cells = self.columns.iter().zip(&self.widths);
        let cells = cells.map(|(cells, &width)| {
            let cell = cells.get(row).map_or("", String::as_str);
            format!("{cell:>width$}")
        });
        cells.collect::<Vec<_>>().join(GAP)
    }
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// Formats the table; every line ends with a newline. `outage`: whether there is an outage to recover from. `bound`:
/// the optimal goodput, in a line above all policies.
pub(super) fn table(rows: &Rows<'_>, outage: bool, bound: Option<f64>) -> String {
    let runs: Vec<Vec<&Metrics>> = rows.iter().map(|(_, runs)| runs.clone()).collect();
    let numbers = ColumnGroup::of("", measure::shown(&runs), rows, outage, bound);
    text(&ColumnGroup::policies(rows, bound.is_some()), &[numbers])
}

/// Formats how long callers wait, and for what, in as many tables as lines of [`WIDTH`] require; empty if no caller
/// waits.
pub(super) fn times(rows: &Rows<'_>, outage: bool) -> String {
    let runs: Vec<Vec<&Metrics>> = rows.iter().map(|(_, runs)| runs.clone()).collect();
    let policies = ColumnGroup::policies(rows, false);
    let mut tables: Vec<Vec<ColumnGroup>> = Vec::new();
    let mut width = WIDTH;
    for group in measure::times_shown(&runs) {
        let group = ColumnGroup::of(group.name, group.measures, rows, outage, None);
        let more = GROUP_GAP.len() + group.width();
        width += more;
        match tables.last_mut().filter(|_| width <= WIDTH) {
            Some(table) => table.push(group),
            None => {
                width = policies.width() + more;
                tables.push(vec![group]);
            }
        }
    }
    if tables.is_empty() {
        return String::new();
    }
    let tables = tables.iter().map(|groups| text(&policies, groups));
    let tables: Vec<String> = tables.collect();
    format!(
        "How long callers wait, in seconds:\n\n{}",
        tables.join("\n")
    )
}

/// Formats one table: a line of the groups' names, if any, and a line for each row.
fn text(policies: &ColumnGroup, groups: &[ColumnGroup]) -> String {
    let mut text = String::new();
    let mut add = |begin: &str, parts: Vec<String>| {
        let begin = format!("{begin:width$}", width = policies.width());
        let gap = match groups {
            [_] => GAP,
            _ => GROUP_GAP,
        };
        let parts = std::iter::once(begin).chain(parts);
        let line = parts.collect::<Vec<_>>().join(gap);
        text.push_str(line.trim_end());
        text.push('\n');
    };
    if groups.iter().any(|group| !group.name.is_empty()) {
        let names = groups
            .iter()
            .map(|group| format!("{:width$}", group.name, width = group.width()));
        add("", names.collect());
    }
    let names = policies.columns.iter().flatten();
    for (row, name) in names.enumerate() {
        add(name, groups.iter().map(|group| group.line(row)).collect());
    }
    text
}

#[cfg(test)]
mod tests {
    use relent::Policy;
    use relent_sim::{Scenario, Times, run};

    use super::*;

    #[test]
    fn time_tables_are_complete_and_at_most_100_columns_wide() {
        let scenario = Scenario::parse("clients.arrivals.herd = { clients = 3 }").unwrap();
        let made = run(&scenario, Policy::STANDARD, 1).unwrap();
        let waits = |second: f64| {
            Some(Times {
                count: 1,
                p50_s: second,
                p99_s: 2.0 * second,
                max_s: 3.0 * second,
            })
        };
        let all = |second: f64| Metrics {
            ended: waits(second),
            retried: waits(second),
            backoff: waits(second),
            held: waits(second),
            held_while_up: waits(second),
            success_after_fault: waits(second),
            ..made.clone()
        };
        let runs = [234.56, 987.65].map(all);
        let rows = [("a-name-of-20-letters", runs.iter().collect::<Vec<_>>())];
        let text = times(&rows, true);
        assert!(text.lines().all(|line| length(line) <= WIDTH), "{text}");
        // Six groups, of 2, 4, 3, 3, 2 and 2 numbers.
        let cells = text.lines().filter(|line| line.starts_with("a-name"));
        let cells: usize = cells.map(|line| line.split_whitespace().count() - 1).sum();
        assert_eq!(cells, 16, "{text}");
        for group in measure::TIMES {
            assert_eq!(text.matches(group.name).count(), 1, "{text}");
        }

        let alone = [("off", vec![&made])];
        assert_eq!(times(&alone, true), "", "nobody waits");
    }
}
