//! The evaluation of random scenarios: it finds a known bad policy, and never objects to no retries.

use std::time::Duration;

use relent_core::{Backoff, Jitter, Policy};
use relent_sim::Scenario;
use relent_sim::generate::Generator;
use relent_sim::judge::{Case, Contender, Judgement, judge_all, tally};

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

fn number(cases: &[Case], policy: usize, is: fn(&Judgement) -> bool) -> usize {
    let judgements = cases.iter().map(|case| &case.judgements[policy]);
    judgements.filter(|judgement| is(judgement)).count()
}

#[test]
fn naive_retries_are_guilty_and_no_retries_never_are() {
    let numbers: Vec<u64> = (1..=24).collect();
    let (off, naive) = (off(), naive());
    let others = [Contender {
        name: "naive",
        policy: &naive,
    }];
    let judged = |threads| {
        judge_all(
            Generator::Broad,
            &numbers,
            &off,
            &[&naive, &off],
            &others,
            threads,
            &|| (),
        )
    };
    let cases = judged(2);
    assert_eq!(cases.len(), numbers.len());
    assert!(number(&cases, 0, |one| one.trap) >= 2, "{cases:#?}");
    assert!(number(&cases, 0, |one| one.harm) >= 4, "{cases:#?}");
    assert_eq!(number(&cases, 1, Judgement::is_guilty), 0, "{cases:#?}");
    // Retries take attempts, and no policy is better than itself.
    assert_eq!(number(&cases, 0, |one| !one.better.is_empty()), 0);
    let harms: usize = tally(&cases, 0)
        .iter()
        .filter(|tally| tally.of.0 == "load")
        .map(|tally| tally.harms)
        .sum();
    assert_eq!(harms, number(&cases, 0, |one| one.harm));
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let (off, naive) = (off(), naive());
    let judged = |threads| {
        judge_all(
            Generator::Everyday,
            &[3, 4, 5],
            &off,
            &[&naive],
            &[],
            threads,
            &|| (),
        )
    };
    assert_eq!(judged(1), judged(3));
}

/// Scenarios that were found once are kept, as files that can be run.
#[test]
fn every_scenario_that_was_found_is_accepted_and_says_what_it_shows() {
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
