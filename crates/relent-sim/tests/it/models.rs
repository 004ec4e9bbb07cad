//! The models of network, arrivals and layers, compared with theory.

use std::time::Duration;

use relent_core::{Backoff, Policy};
use relent_sim::{Metrics, Scenario, run, scenarios};

fn until_it_succeeds() -> Policy {
    Policy::builder(Backoff::constant(Duration::from_millis(10)))
        .unlimited_retries()
        .build()
        .unwrap()
}

const LOSSY: &str = r#"
    clients.arrivals.poisson = { rate = 100, for = "300s" }
    clients.attempt_timeout = "200ms"
    service.capacity = 10000
    network.loss = 0.2
"#;

fn lossy(policy: &Policy, changes: &[(&str, &str)]) -> Metrics {
    run(&Scenario::parse_with(LOSSY, changes).unwrap(), policy, 1).unwrap()
}

/// For 20 % of the executed attempts the response is lost: p/(1 − p) duplicates for each success.
#[test]
fn a_lost_response_causes_a_duplicate_of_a_repeatable_request() {
    let metrics = lossy(&until_it_succeeds(), &[]);
    assert_eq!(metrics.successes, metrics.requests);
    let (requests, p) = (metrics.requests as f64, 0.2);
    let duplicates = metrics.duplicates as f64 / requests;
    // Geometric: the variance is p/(1 − p)².
    let error = (p / (1.0_f64 - p).powi(2) / requests).sqrt();
    assert!(
        (duplicates - p / (1.0 - p)).abs() <= 4.0 * error,
        "{metrics:?}"
    );
    // Each success takes 1/(1 − p)² attempts, of which a share 1 − (1 − p)² loses one message.
    let drops = metrics.drops.unwrap() as f64 / requests;
    assert!((drops - 0.36 / 0.64).abs() < 0.03, "{metrics:?}");
}

#[test]
fn non_repeatable_requests_run_once_and_lost_ones_fail() {
    let changes = [("clients.repeatable", "false")];
    let metrics = lossy(&until_it_succeeds(), &changes);
    // Each lost response belongs to an execution of which the client never learns.
    assert!(metrics.attempts <= metrics.requests);
    let error = (0.64 * 0.36 / metrics.requests as f64).sqrt();
    assert!((metrics.goodput - 0.64).abs() <= 4.0 * error, "{metrics:?}");
    assert_eq!(metrics.give_ups, metrics.requests - metrics.successes);
}

#[test]
fn a_network_that_loses_nothing_has_no_drops() {
    let metrics = lossy(&until_it_succeeds(), &[("network.loss", "0")]);
    assert_eq!((metrics.drops, metrics.duplicates), (None, 0));
    assert_eq!(metrics.goodput, 1.0);
    let all = lossy(
        &until_it_succeeds(),
        &[("network.loss", "1"), ("clients.deadline", "2s")],
    );
    assert_eq!((all.attempts, all.successes), (0, 0));
}

/// Bursts at 1.5 times the capacity, a third of the time: the work is that of a steady stream, but requests of a
/// burst wait for each other.
#[test]
fn bursts_wait_longer_than_a_steady_stream_of_the_same_rate() {
    let with = |arrivals: &str| {
        let text = format!("clients.arrivals.{arrivals}\nservice.capacity = 100");
        run(&Scenario::parse(&text).unwrap(), Policy::STANDARD, 1).unwrap()
    };
    let bursts = with("bursts = { rate = 150, on = \"200ms\", off = \"400ms\", for = \"300s\" }");
    let steady = with("poisson = { rate = 50, for = \"300s\" }");
    assert!(bursts.requests.abs_diff(steady.requests) < 5 * 123 * 2);
    assert_eq!((bursts.goodput, steady.goodput), (1.0, 1.0));
    assert!(bursts.p50_ms.unwrap() > 2.0 * steady.p50_ms.unwrap());
}

/// Calls into a layer are calls out of the one above.
#[test]
fn each_layer_of_a_chain_multiplies_by_its_attempts() {
    let text = r#"
        clients.arrivals.poisson = { rate = 5, for = "60s" }
        clients.attempt_timeout = "300s"
        service.failures = 1
        chain.layers = 3
    "#;
    let policy = Policy::builder(Backoff::constant(Duration::from_millis(10)))
        .max_retries(3)
        .build()
        .unwrap();
    let layers = |mark| {
        let scenario = Scenario::parse_with(text, &[("chain.mark", mark)]).unwrap();
        let metrics = run(&scenario, &policy, 1).unwrap();
        let [top, middle, low] = metrics.layers[..] else {
            panic!("{metrics:?}");
        };
        assert_eq!(top.calls_in, metrics.requests);
        assert_eq!(top.calls_out, middle.calls_in);
        assert_eq!(middle.calls_out, low.calls_in);
        assert_eq!(low.calls_out, metrics.attempts);
        [top, middle, low].map(|layer| layer.calls_out as f64 / layer.calls_in as f64)
    };
    assert_eq!(layers("false"), [4.0, 4.0, 4.0]);
    assert_eq!(layers("true"), [1.0, 1.0, 4.0]);
}

/// Nothing is served, so every attempt times out. If cancellation propagates, a layer then cancels its calls below,
/// which would otherwise go on with three retries.
#[test]
fn a_layer_with_propagation_stops_work_for_callers_that_have_gone() {
    let text = r#"
        clients.arrivals.poisson = { rate = 5, for = "60s" }
        clients.attempt_timeout = "100ms"
        clients.deadline = "10s"
        outages = [{ at = "0s", for = "90s", effect = "stall" }]
        chain.layers = 2
    "#;
    let policy = Policy::builder(Backoff::constant(Duration::from_millis(10)))
        .max_retries(3)
        .build()
        .unwrap();
    for (hears, calls) in [
        ("nothing", [4.0, 4.0]),
        ("cancellation", [4.0, 1.0]),
        ("deadline", [4.0, 1.0]),
    ] {
        let scenario = Scenario::parse_with(text, &[("chain.hears", hears)]).unwrap();
        let metrics = run(&scenario, &policy, 1).unwrap();
        let [top, low] = metrics.layers[..] else {
            panic!("{metrics:?}");
        };
        let each = [top, low].map(|layer| layer.calls_out as f64 / layer.calls_in as f64);
        assert_eq!(each, calls, "{hears}");
    }
    let alone = text.replace("chain.layers = 2", "chain.hears = \"deadline\"");
    let error = Scenario::parse(&alone).unwrap_err().to_string();
    assert!(error.contains("only for a chain"), "{error}");
}

/// Clients that wait until they are admitted.
fn patient() -> Policy {
    Policy::builder(Backoff::constant(Duration::from_secs(1)))
        .unlimited_retries()
        .build()
        .unwrap()
}

fn skewed(format: &str, skew: &str) -> Metrics {
    let changes = [
        ("service.limiter.format", format),
        ("clients.clock_skew", skew),
    ];
    let text = scenarios::get("clock-skew").unwrap().text;
    run(
        &Scenario::parse_with(text, &changes).unwrap(),
        &patient(),
        1,
    )
    .unwrap()
}

#[test]
fn delays_and_dates_with_a_date_header_are_immune_to_clock_skew() {
    for (format, rounding) in [("milliseconds", 0.1), ("seconds", 2.0), ("date", 3.0)] {
        let metrics = skewed(format, "30s");
        assert_eq!(metrics, skewed(format, "0s"), "{format}");
        let drain = metrics.drain_s.unwrap();
        // 9.9 s, the rounding, and the Retry-After jitter.
        assert!(
            drain >= 9.9 && drain <= 9.9 + rounding + 0.1,
            "{format}: {drain}"
        );
        assert!(metrics.amplification.unwrap() <= 2.0, "{metrics:?}");
    }
}

#[test]
fn a_retry_after_date_without_date_header_suffers_clock_skew() {
    let right = skewed("lone-date", "0s");
    assert!(right.drain_s.unwrap() <= 13.0, "{right:?}");
    assert!(right.amplification.unwrap() <= 2.0, "{right:?}");
    let wrong = skewed("lone-date", "30s");
    // A client with a slow clock comes up to 30 s late, one with a fast clock retries too early.
    assert!(wrong.drain_s.unwrap() > 30.0, "{wrong:?}");
    assert!(wrong.amplification.unwrap() > 2.5, "{wrong:?}");
}
