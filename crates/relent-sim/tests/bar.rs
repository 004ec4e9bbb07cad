//! The bar for the project's own default: every row at once, on seeds that nothing was tuned on.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests may"
)]

use relent_core::Policy;
use relent_sim::study::run_all;
use relent_sim::{Metrics, Scenario, scenarios};

fn runs_of(policy: &Policy, name: &str, changes: &[(&str, &str)]) -> Vec<Metrics> {
    let text = scenarios::get(name).unwrap().text;
    let scenario = Scenario::parse_with(text, changes).unwrap();
    let seeds: Vec<u64> = (1001..=1008).collect();
    let runs = run_all(&scenario, &[policy], &seeds, 2, &|| ());
    runs.into_iter().flatten().map(Result::unwrap).collect()
}

fn runs(name: &str, changes: &[(&str, &str)]) -> Vec<Metrics> {
    runs_of(Policy::STANDARD, name, changes)
}

fn mean(runs: &[Metrics], value: impl Fn(&Metrics) -> f64) -> f64 {
    runs.iter().map(value).sum::<f64>() / runs.len() as f64
}

fn goodput(runs: &[Metrics]) -> f64 {
    mean(runs, |metrics| metrics.goodput)
}

fn amplification(runs: &[Metrics]) -> f64 {
    mean(runs, |metrics| metrics.amplification.unwrap())
}

/// The drain is at least ρD/(1 − ρ) = 240 s.
#[test]
fn a_blackout_loses_nothing_and_is_drained_in_a_tenth_more_than_it_must_take() {
    for cost in ["0.1", "0.01"] {
        let runs = runs("blackout", &[("service.reject_cost", cost)]);
        let drain = mean(&runs, |metrics| metrics.drain_s.unwrap());
        assert!(goodput(&runs) >= 0.9995, "{}", goodput(&runs));
        assert!(amplification(&runs) <= 1.05, "{}", amplification(&runs));
        assert!(drain <= 1.10 * 240.0, "{drain}");
    }
}

/// At most 0.933 can be had.
#[test]
fn a_brownout_keeps_what_can_be_kept() {
    let runs = runs("brownout", &[]);
    assert!(goodput(&runs) >= 0.93, "{}", goodput(&runs));
}

#[test]
fn a_herd_at_a_rate_limit_is_served_by_slots() {
    let runs = runs("rate-limit", &[("clients.arrivals.herd.clients", "10000")]);
    let drain = mean(&runs, |metrics| metrics.drain_s.unwrap());
    assert!(drain <= 101.0, "{drain}");
    assert!(amplification(&runs) <= 2.05, "{}", amplification(&runs));
}

#[test]
fn failures_that_do_not_depend_on_load_are_hidden() {
    let one_in_ten = runs("random-failures", &[("service.failures", "0.1")]);
    assert!(goodput(&one_in_ten) >= 0.9998, "{}", goodput(&one_in_ten));
    let half = runs("random-failures", &[("service.failures", "0.5")]);
    assert!(goodput(&half) >= 0.99, "{}", goodput(&half));
    assert!(amplification(&half) <= 2.05, "{}", amplification(&half));
}

/// Without retries it takes 35 s, and an oracle 7.
#[test]
fn a_stall_is_over_soon_and_never_later_than_without_retries() {
    for (processes, most) in [("20", 14.0), ("10000", 35.0)] {
        let runs = runs("stall", &[("clients.processes", processes)]);
        let ttr = mean(&runs, |metrics| metrics.ttr_s.unwrap());
        assert!(ttr <= most, "{processes}: {ttr}");
    }
}

#[test]
fn a_chain_retries_at_the_layer_that_failed_and_no_other() {
    for failures in ["0.1", "0.5", "1"] {
        let changes = [("chain.mark", "true"), ("service.failures", failures)];
        for metrics in runs("chain", &changes) {
            let ratio = |layer: usize| {
                let layer = &metrics.layers[layer];
                layer.calls_out as f64 / layer.calls_in as f64
            };
            for above in 0..2 {
                assert!(ratio(above) <= 1.01, "{failures}: {}", ratio(above));
            }
            // With the leaf down, even the layer that retries makes few calls.
            if failures == "1" {
                assert!(ratio(2) <= 1.2, "{}", ratio(2));
            }
        }
    }
}

/// Design rule 14: off is off. Nothing is parked either.
#[test]
fn without_retries_there_is_no_gate() {
    let off = Policy::STANDARD.clone().into_builder().retries_off(true);
    let runs = runs_of(&off.build().unwrap(), "blackout", &[]);
    assert!((goodput(&runs) - 0.9).abs() < 0.002, "{}", goodput(&runs));
}
