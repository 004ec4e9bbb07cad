//! Shows what each rule of the circuit breaker is for: without it, a scenario gets worse. The table is
//! docs/spec/circuit-breaker.md. A switch applies to the whole process, so this test has a program of its own.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests may"
)]

use std::fs;
use std::path::{Path, PathBuf};

use relent_core::Policy;
use relent_core::destination::BreakerRule;
use relent_sim::study::run_all;
use relent_sim::{Metrics, Scenario, scenarios};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page() -> String {
    fs::read_to_string(root().join("docs/spec/circuit-breaker.md")).unwrap()
}

/// What stands between backquotes.
fn code(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// A row of the table.
struct Row {
    rule: String,
    scenario: Scenario,
    measure: String,
    worse_by: f64,
}

fn rows(page: &str) -> Vec<Row> {
    let cells = page
        .lines()
        .map(|line| line.split(" | ").collect::<Vec<_>>());
    let rows = cells.filter(|cells| cells.len() == 5 && cells[0].starts_with("| `"));
    rows.map(|cells| {
        let words = code(cells[3]);
        let text = ["found", "everyday"]
            .iter()
            .find_map(|folder| {
                let file = format!("scenarios/{folder}/{}.toml", words[0]);
                fs::read_to_string(root().join(file)).ok()
            })
            .unwrap_or_else(|| scenarios::get(words[0]).unwrap().text.to_owned());
        let changes: Vec<_> = words[1..]
            .iter()
            .map(|it| it.split_once('=').unwrap())
            .collect();
        let (measure, worse_by) = cells[4].trim_end_matches(" |").split_once(' ').unwrap();
        Row {
            rule: code(cells[0])[0].to_owned(),
            scenario: Scenario::parse_with(&text, &changes).unwrap(),
            measure: measure.to_owned(),
            worse_by: worse_by.parse().unwrap(),
        }
    })
    .collect()
}

/// The mean of two seeds, so that more is worse.
fn badness(row: &Row) -> f64 {
    let of = |run: Metrics| match row.measure.as_str() {
        "goodput" => -run.goodput,
        "attempts" => run.attempts as f64 / run.requests as f64,
        "held" => run.held_while_up.map_or(0.0, |held| held.p99_s),
        "answer" => run.success_after_fault.map_or(0.0, |times| times.max_s),
        other => panic!("{other} is not measured"),
    };
    let runs = run_all(&row.scenario, &[Policy::STANDARD], &[2001, 2002], 2, &|| ());
    let runs: Vec<_> = runs
        .into_iter()
        .flatten()
        .map(|run| of(run.unwrap()))
        .collect();
    runs.iter().sum::<f64>() / runs.len() as f64
}

#[test]
fn without_any_rule_of_the_circuit_breaker_its_scenario_gets_worse() {
    let rows = rows(&page());
    let listed = |rule: &BreakerRule| {
        rows.iter()
            .filter(|row| row.rule == format!("{rule:?}"))
            .count()
    };
    let unlisted: Vec<_> = BreakerRule::ALL
        .iter()
        .filter(|rule| listed(rule) != 1)
        .collect();
    assert!(unlisted.is_empty(), "not once in the table: {unlisted:?}");
    let mut useless = Vec::new();
    for row in &rows {
        let rule = BreakerRule::ALL
            .iter()
            .find(|rule| format!("{rule:?}") == row.rule);
        BreakerRule::switch_all_on();
        let with = badness(row);
        rule.unwrap_or_else(|| panic!("no rule is called {}", row.rule))
            .switch_off_only();
        let worse_by = badness(row) - with;
        if worse_by < row.worse_by {
            useless.push(format!(
                "{}: {} is worse by {worse_by:.3}",
                row.rule, row.measure
            ));
        }
    }
    BreakerRule::switch_all_on();
    assert!(useless.is_empty(), "{useless:#?}");
}

/// Source files of a module, without its tests.
fn sources(module: &str) -> Vec<PathBuf> {
    let at = root()
        .join("crates/relent-core/src/destination")
        .join(module);
    let files = fs::read_dir(&at)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let files = files.filter(|file| {
        file.extension().is_some_and(|it| it == "rs") && !file.ends_with("tests.rs")
    });
    files.chain([at.with_extension("rs")]).collect()
}

#[test]
fn the_table_names_every_constant_of_circuit_breaker_and_budget() {
    let page = page();
    let is_name =
        |word: &&str| word.len() > 3 && word.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    let mut named: Vec<_> = code(&page)
        .into_iter()
        .filter(is_name)
        .map(str::to_owned)
        .collect();
    let mut defined = Vec::new();
    for file in ["circuit_breaker", "budget"].into_iter().flat_map(sources) {
        for line in fs::read_to_string(file).unwrap().lines() {
            let line = line
                .trim_start_matches("pub(super) ")
                .trim_start_matches("pub(crate) ");
            if let Some((name, _)) = line
                .strip_prefix("const ")
                .and_then(|line| line.split_once(':'))
            {
                defined.push(name.to_owned());
            }
        }
    }
    named.sort();
    defined.sort();
    assert_eq!(named, defined);
}
