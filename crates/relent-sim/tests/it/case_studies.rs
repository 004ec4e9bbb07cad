//! Known incidents of other systems, and their remedies. Three layers are in `ground_truth.rs`.

use std::time::Duration;

use relent_core::{Backoff, BudgetConfig, Policy, PolicyBuilder};
use relent_sim::study::run_all;
use relent_sim::{Metrics, Scenario, scenarios};

fn runs(name: &str, changes: &[(&str, &str)], policy: PolicyBuilder, seeds: u64) -> Vec<Metrics> {
    let text = scenarios::get(name).unwrap().text;
    let scenario = Scenario::parse_with(text, changes).unwrap();
    let seeds: Vec<u64> = (1..=seeds).collect();
    let runs = run_all(&scenario, &[&policy.build().unwrap()], &seeds, 2, &|| ());
    runs.into_iter().flatten().map(Result::unwrap).collect()
}

fn attempts(most: u32) -> PolicyBuilder {
    Policy::builder(Backoff::exponential(Duration::from_millis(100))).max_retries(most - 1)
}

/// A budget with a ratio and nothing else.
fn budget(ratio: f64) -> BudgetConfig {
    BudgetConfig {
        ratio,
        initial_tokens: 0.0,
        per_second: 0.0,
        capacity: 10.0,
        ..BudgetConfig::DEFAULT
    }
}

#[test]
fn retries_of_clients_and_proxy_prevent_recovery() {
    for metrics in runs("proxy-avalanche", &[], attempts(2), 3) {
        assert_eq!(metrics.ttr_s, None, "{metrics:?}");
        // λn²/C = 3.2: every request is lost for as long as requests are made.
        assert!((metrics.late_load - 3.2).abs() < 0.1, "{metrics:?}");
    }
}

#[test]
fn a_retry_budget_in_each_layer_ends_the_retry_avalanche() {
    let (capacity, rate, lasts, timeout, b) = (1000.0, 800.0, 10.0, 1.0, 0.05_f64);
    let factor = (1.0 + b).powi(2);
    let left = capacity - rate * factor;
    let queued = rate * lasts - capacity * timeout + rate * (factor - 1.0) * (lasts - timeout);
    let expected = queued / left;
    let runs = runs("proxy-avalanche", &[], attempts(10).budget(budget(b)), 8);
    let ttr = runs.iter().map(|run| run.ttr_s.unwrap()).sum::<f64>() / runs.len() as f64;
    let error = (2.0 * capacity * expected).sqrt() / left / (runs.len() as f64).sqrt();
    // Whole seconds, and the window of ten, add up to two.
    assert!(
        (ttr - expected).abs() <= 3.0 * error + 2.0,
        "{ttr} of {expected}"
    );
}

#[test]
fn repeatable_requests_with_lost_responses_run_twice() {
    for metrics in runs("duplicates", &[], attempts(20), 3) {
        assert_eq!(metrics.goodput, 1.0, "{metrics:?}");
        let (requests, p) = (metrics.requests as f64, 0.05_f64);
        let error = (p / (1.0 - p).powi(2) / requests).sqrt();
        let share = metrics.duplicates as f64 / requests;
        assert!((share - p / (1.0 - p)).abs() <= 4.0 * error, "{metrics:?}");
    }
}

#[test]
fn requests_that_are_not_repeatable_never_run_twice() {
    let changes = [("clients.repeatable", "false")];
    for metrics in runs("duplicates", &changes, attempts(20), 3) {
        let layer = metrics.layers[0];
        assert_eq!(layer.calls_out, layer.calls_in, "one attempt each");
        let error = (0.9025 * 0.0975 / metrics.requests as f64).sqrt();
        assert!(
            (metrics.goodput - 0.9025).abs() <= 4.0 * error,
            "{metrics:?}"
        );
    }
}
