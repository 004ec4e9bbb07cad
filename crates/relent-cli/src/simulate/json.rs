//! The results as JSON.

use relent::Policy;
use relent_sim::study::RunResult;
use relent_sim::{Metrics, Scenario, Times, bound};
use serde::Serialize;

use super::input::NamedItem;

#[derive(Serialize)]
struct Line<'a> {
    scenario: &'a str,
    seed: u64,
    bound: Option<f64>,
    runs: Vec<Run<'a>>,
}

#[derive(Serialize)]
struct Run<'a> {
    policy: &'a str,
    goodput: f64,
    amplification: Option<f64>,
    ttr_s: Option<f64>,
    drain_s: Option<f64>,
    peak: f64,
    duplicates: u64,
    fairness: Option<f64>,
    efficiency: Option<f64>,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    p999_ms: Option<f64>,
    attempts: u64,
    requests: u64,
    successes: u64,
    give_ups: u64,
    drops: Option<u64>,
    layers: Vec<LayerCounts>,
    classes: Vec<ClassCounts<'a>>,
    ended: Option<Times>,
    retried: Option<Times>,
    backoff: Option<Times>,
    held: Option<Times>,
    held_while_up: Option<Times>,
    success_after_fault: Option<Times>,
    unanswered: u64,
}

/// The results of a class of requests.
#[derive(Serialize)]
struct ClassCounts<'a> {
    name: &'a str,
    requests: u64,
    successes: u64,
}

fn classes<'a>(scenario: &'a Scenario, metrics: &Metrics) -> Vec<ClassCounts<'a>> {
    let counts = scenario.clients.classes.iter().zip(&metrics.classes);
    let counts = counts.map(|(class, count)| ClassCounts {
        name: &class.name,
        requests: count.requests,
        successes: count.successes,
    });
    counts.collect()
}

/// The calls into and out of a layer of a chain.
#[derive(Serialize)]
struct LayerCounts {
    calls_in: u64,
    calls_out: u64,
}

fn layers(metrics: &Metrics) -> Vec<LayerCounts> {
    let counts = |layer: &relent_sim::Layer| LayerCounts {
        calls_in: layer.calls_in,
        calls_out: layer.calls_out,
    };
    metrics.layers.iter().map(counts).collect()
}

/// Formats one line for each seed. Runs that were given up have no numbers, and are left out.
pub(super) fn json(
    scenario: &NamedItem<Scenario>,
    policies: &[NamedItem<Policy>],
    seeds: &[u64],
    results: &[Vec<RunResult>],
) -> String {
    let mut text = String::new();
    for (index, seed) in seeds.iter().enumerate() {
        let runs = policies.iter().zip(results).filter_map(|(policy, runs)| {
            let metrics = runs.get(index)?.as_ref().ok()?;
            Some(Run {
                policy: &policy.name,
                goodput: metrics.goodput,
                amplification: metrics.amplification,
                ttr_s: metrics.ttr_s,
                drain_s: metrics.drain_s,
                peak: metrics.peak,
                duplicates: metrics.duplicates,
                fairness: metrics.fairness,
                efficiency: metrics.efficiency,
                p50_ms: metrics.p50_ms,
                p99_ms: metrics.p99_ms,
                p999_ms: metrics.p999_ms,
                attempts: metrics.attempts,
                requests: metrics.requests,
                successes: metrics.successes,
                give_ups: metrics.give_ups,
                drops: metrics.drops,
                layers: layers(metrics),
                classes: classes(&scenario.value, metrics),
                ended: metrics.ended,
                retried: metrics.retried,
                backoff: metrics.backoff,
                held: metrics.held,
                held_while_up: metrics.held_while_up,
                success_after_fault: metrics.success_after_fault,
                unanswered: metrics.unanswered,
            })
        });
        let line = Line {
            scenario: &scenario.name,
            seed: *seed,
            bound: bound(&scenario.value, *seed).ok(),
            runs: runs.collect(),
        };
        // A line has only numbers and names, so serializing cannot fail.
        text.push_str(&serde_json::to_string(&line).unwrap_or_default());
        text.push('\n');
    }
    text
}
