//! The evaluation of random scenarios: it finds a known bad policy, and never objects to no retries.

use std::time::Duration;

use relent_core::{Backoff, Jitter, Policy};
use relent_sim::Scenario;
use relent_sim::evaluate::{Case, Contender, Evaluation, evaluate_all, tally};
use relent_sim::generate::Generator;

fn off() -> Policy {
    Policy::builder(Backoff::None)
        .max_retries(0)
        .build()
        .unwrap()
}

/// Five immediate retries, in any state of the service.
fn naive() -> Policy {
    Policy::builder(Backoff::constant(Duration::from_millis(1)))
        .jitter(Jitter::None)
        .max_retries(5)
        .build()
        .unwrap()
}

fn number(cases: &[Case], policy: usize, is: fn(&Evaluation) -> bool) -> usize {
    let evaluations = cases.iter().map(|case| &case.evaluations[policy]);
    evaluations.filter(|evaluation| is(evaluation)).count()
}

#[test]
#[ignore = "slow: scripts/test --all runs it"]
fn naive_retries_are_found_worse_and_no_retries_never_are() {
    let numbers: Vec<u64> = (1..=24).collect();
    let (off, naive) = (off(), naive());
    let others = [Contender {
        name: "naive",
        policy: &naive,
    }];
    let evaluated = |threads| {
        evaluate_all(
            Generator::Broad,
            &numbers,
            &off,
            &[&naive, &off],
            &others,
            threads,
            &|| (),
        )
    };
    let cases = evaluated(2);
    assert_eq!(cases.len(), numbers.len());
    assert!(
        number(&cases, 0, |one| one.does_not_recover) >= 2,
        "{cases:#?}"
    );
    assert!(number(&cases, 0, |one| one.worse) >= 4, "{cases:#?}");
    assert_eq!(
        number(&cases, 1, Evaluation::is_worse_or_does_not_recover),
        0,
        "{cases:#?}"
    );
    // Retries take attempts, and no policy is better than itself.
    assert_eq!(number(&cases, 0, |one| !one.better.is_empty()), 0);
    let worse: usize = tally(&cases, 0)
        .iter()
        .filter(|tally| tally.of.0 == "load")
        .map(|tally| tally.worse)
        .sum();
    assert_eq!(worse, number(&cases, 0, |one| one.worse));
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let (off, naive) = (off(), naive());
    let evaluated = |threads| {
        evaluate_all(
            Generator::Everyday,
            &[3, 4, 5],
            &off,
            &[&naive],
            &[],
            threads,
            &|| (),
        )
    };
    assert_eq!(evaluated(1), evaluated(3));
}

/// Scenarios that were found once are kept, as files that can be run.
#[test]
fn every_found_scenario_is_valid_and_has_a_description() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/found");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let scenario = Scenario::parse(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        assert!(!scenario.description.is_empty(), "{path:?}");
        assert!(text.starts_with("# "), "{path:?}");
        files += 1;
    }
    assert!(files >= 15, "{files}");
}
