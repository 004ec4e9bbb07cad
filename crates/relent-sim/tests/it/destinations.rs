//! State that the calls of one process share, as in production.

use std::time::Duration;

use relent_core::{Backoff, BudgetConfig, HedgeConfig, Policy, PolicyBuilder, ThrottleConfig};
use relent_sim::{Recording, Scenario, record, run};

const REFUSED: &str = r#"
    clients.arrivals.poisson = { rate = 100, for = "8s" }
    clients.processes = 1
    [service.limiter]
    rate = 1
    retry_after = "10s"
"#;

fn refused(policy: &Policy, changes: &[(&str, &str)]) -> Recording {
    record(&Scenario::parse_with(REFUSED, changes).unwrap(), policy, 1).unwrap()
}

/// Attempts that reach the service from `from` to `to`, in milliseconds.
fn attempts(recording: &Recording, from: u64, to: u64) -> u64 {
    let width = recording.series.width / 1_000_000;
    let bins = recording.series.bins.iter().zip(0..);
    bins.filter(|(_, number)| (from..to).contains(&(number * width)))
        .map(|(bin, _)| bin.attempts)
        .sum()
}

/// After one call receives a `Retry-After`, all calls of its process wait.
#[test]
fn during_a_cooldown_no_call_of_the_process_makes_an_attempt() {
    let policy = Policy::builder(Backoff::constant(Duration::from_secs(1)));
    let policy = policy.max_retries(2).build().unwrap();
    let one = refused(&policy, &[]);
    assert!(one.metrics.requests > 700);
    // The first few go before the first rejection arrives.
    assert!(attempts(&one, 0, 500) <= 4, "{:?}", one.metrics);
    assert_eq!(attempts(&one, 500, 9_900), 0);
    // The first attempt after the cooldown is rejected, and starts the next cooldown.
    assert!((1..700).contains(&attempts(&one, 9_900, 60_000)));
    // Each process has its own cooldown.
    let many = refused(&policy, &[("clients.processes", "20")]);
    let told = attempts(&many, 0, 5_000);
    assert!((20..60).contains(&told), "{told}");
    assert_eq!(attempts(&many, 5_000, 9_900), 0);
}

/// A reserved slot belongs to its caller.
#[test]
fn a_reserved_slot_delays_only_its_own_caller() {
    let changes = [
        ("service.limiter.retry_after", "slots"),
        ("service.limiter.rate", "10"),
    ];
    let policy = Policy::builder(Backoff::constant(Duration::from_secs(1)));
    let policy = policy.max_retries(1).build().unwrap();
    let recording = refused(&policy, &changes);
    let first = attempts(&recording, 0, 8_000);
    assert!(first >= recording.metrics.requests, "{first}");
    assert_eq!(recording.metrics.goodput, 1.0, "{:?}", recording.metrics);
}

/// Disabled retries disable the cooldown, too.
#[test]
fn a_policy_without_retries_keeps_no_cooldown() {
    let off = Policy::STANDARD.clone().into_builder().retries_off(true);
    let recording = refused(&off.build().unwrap(), &[]);
    assert_eq!(recording.metrics.attempts, recording.metrics.requests);
}

/// There is no response, but a request that the throttle rejects makes no attempt.
#[test]
fn a_throttled_request_fails_without_an_attempt() {
    let text = r#"
        clients.arrivals.poisson = { rate = 50, for = "60s" }
        clients.processes = 1
        service.queue = "10ms"
        outages = [{ at = "10s", for = "30s", effect = "blackout" }]
    "#;
    let scenario = Scenario::parse(text).unwrap();
    let policy = || Policy::builder(Backoff::constant(Duration::from_secs(1))).max_retries(0);
    let metrics = |policy: PolicyBuilder| run(&scenario, &policy.build().unwrap(), 1).unwrap();
    let plain = metrics(policy());
    let config = ThrottleConfig {
        window: Duration::from_secs(5),
        ..ThrottleConfig::DEFAULT
    };
    let throttled = metrics(policy().throttle(config));
    assert_eq!(throttled.requests, plain.requests);
    // Of 1500 requests in the blackout, hardly any is sent once the window has only failures.
    assert!(
        throttled.attempts + 1000 < plain.attempts,
        "{} of {}",
        throttled.attempts,
        plain.attempts
    );
    assert_eq!(throttled.give_ups, throttled.requests - throttled.successes);
    assert!(throttled.goodput <= plain.goodput, "{throttled:?}");
}

/// "The Tail at Scale": a few per cent more attempts remove the slowest ones.
#[test]
fn hedges_cut_the_latency_tail_with_few_extra_attempts() {
    let text = r#"
        clients.arrivals.poisson = { rate = 50, for = "300s" }
        clients.attempt_timeout = "10s"
        service.capacity = 1000
        service.workers = 50
        service.time = { lognormal = 1.5 }
    "#;
    let scenario = Scenario::parse(text).unwrap();
    let policy = || Policy::builder(Backoff::constant(Duration::from_secs(1))).max_retries(1);
    let metrics = |policy: PolicyBuilder| run(&scenario, &policy.build().unwrap(), 1).unwrap();
    let plain = metrics(policy());
    let hedged = metrics(policy().hedge(HedgeConfig::percentile(0.95)));
    assert_eq!((plain.goodput, hedged.goodput), (1.0, 1.0));
    let more = hedged.attempts as f64 / plain.attempts as f64 - 1.0;
    assert!((0.02..0.08).contains(&more), "{more}");
    let [with, without] = [hedged, plain].map(|metrics| metrics.p999_ms.unwrap());
    assert!(with < 0.6 * without, "{with} of {without} ms");
    // A slow one gets a second attempt, and both are executed, since the service does not cancel.
    let budget = BudgetConfig {
        ratio: 0.0,
        initial_tokens: 0.0,
        per_second: 0.0,
        ..BudgetConfig::DEFAULT
    };
    let none = metrics(policy().hedge(HedgeConfig::percentile(0.95)).budget(budget));
    assert_eq!(none.attempts, none.requests, "hedges are paid for");
}
