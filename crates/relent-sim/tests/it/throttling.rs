//! The client-side rate limit, with a service whose rejections have no Retry-After.

use relent_core::{Policy, PolicyBuilder, RateLimitConfig};
use relent_sim::study::run_all;
use relent_sim::{Scenario, scenarios};

/// Goodput, and failed attempts per success, on seeds that were not used for tuning.
fn goodput_and_waste(policy: PolicyBuilder, changes: &[(&str, &str)]) -> (f64, f64) {
    let text = scenarios::get("throttling").unwrap().text;
    let scenario = Scenario::parse_with(text, changes).unwrap();
    let seeds: Vec<u64> = (1001..=1004).collect();
    let runs = run_all(&scenario, &[&policy.build().unwrap()], &seeds, 2, &|| ());
    let runs: Vec<_> = runs.into_iter().flatten().map(Result::unwrap).collect();
    let count = runs.len() as f64;
    let goodput = runs.iter().map(|run| run.goodput).sum::<f64>() / count;
    let attempts: u64 = runs.iter().map(|run| run.attempts).sum();
    let successes: u64 = runs.iter().map(|run| run.successes).sum();
    (goodput, attempts as f64 / successes as f64 - 1.0)
}

fn policies() -> [PolicyBuilder; 2] {
    [Policy::STANDARD, Policy::PATIENT].map(|policy| policy.clone().into_builder())
}

/// A circuit breaker alone completes about as much, since queued retries of a burst follow after it; but it gets far
/// more rejections. Without a breaker, an adaptive client also completes more.
#[test]
fn an_adaptive_rate_limit_has_fewer_rejections_and_little_loss() {
    for (processes, least) in [("1", 0.99), ("4", 0.99), ("100", 0.78)] {
        for policy in policies() {
            let changes = [("clients.processes", processes)];
            let (plain, plain_waste) = goodput_and_waste(policy.clone(), &changes);
            let adaptive = policy.rate_limit(RateLimitConfig::ADAPTIVE);
            let gated = adaptive
                .clone()
                .build()
                .unwrap()
                .circuit_breaker()
                .is_some();
            let (goodput, waste) = goodput_and_waste(adaptive, &changes);
            assert!(goodput >= least, "{processes}: {goodput}");
            let lost = if gated { 0.025 } else { 0.0 };
            assert!(
                goodput + lost + 0.0005 >= plain,
                "{processes}: {goodput}, {plain}"
            );
            // The circuit breaker alone avoids some rejections, so the factor is larger for many processes.
            let most = if processes == "100" { 0.85 } else { 0.15 };
            assert!(
                waste <= most * plain_waste,
                "{processes}: {waste}, {plain_waste}"
            );
        }
    }
}

#[test]
fn a_matching_fixed_rate_limit_is_never_rejected_and_loses_nothing() {
    for policy in policies() {
        let fixed = policy.rate_limit(RateLimitConfig::new(150.0 / 4.0));
        let (goodput, waste) = goodput_and_waste(fixed, &[]);
        assert!(goodput >= 0.9999 && waste <= 0.001, "{goodput}, {waste}");
    }
}

/// Reserved slots are better than any estimate, and adapting does not disturb them.
#[test]
fn with_reserved_slots_an_adaptive_rate_limit_changes_nothing() {
    let [policy, _] = policies();
    let changes = [("service.limiter.retry_after", "slots")];
    let plain = goodput_and_waste(policy.clone(), &changes);
    let adaptive = policy.rate_limit(RateLimitConfig::ADAPTIVE);
    assert_eq!(goodput_and_waste(adaptive, &changes), plain);
}
