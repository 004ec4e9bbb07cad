//! Nodes, partial outages, request classes, changing loads, and restarts, compared with theory.

use std::time::Duration;

use relent_core::{Backoff, Jitter, Policy};
use relent_sim::study::verdict;
use relent_sim::{Metrics, Scenario, run};

fn off() -> Policy {
    retries(0)
}

/// Almost immediate retries, at most `most`.
fn retries(most: u32) -> Policy {
    Policy::builder(Backoff::constant(Duration::from_millis(1)))
        .max_retries(most)
        .build()
        .unwrap()
}

const STREAM: &str = r#"
    clients.arrivals.poisson = { rate = 200, for = "200s" }
    clients.deadline = "10s"
    service.capacity = 4000
"#;

fn scenario(changes: &[(&str, &str)]) -> Scenario {
    Scenario::parse_with(STREAM, changes).unwrap()
}

fn stream(policy: &Policy, changes: &[(&str, &str)]) -> Metrics {
    run(&scenario(changes), policy, 1).unwrap()
}

/// Within four standard errors for a share of the requests.
#[track_caller]
fn assert_goodput(metrics: &Metrics, expected: f64) {
    let error = (expected * (1.0 - expected) / metrics.requests as f64).sqrt();
    assert!(
        (metrics.goodput - expected).abs() <= 4.0 * error + 1e-3,
        "{} of {expected}",
        metrics.goodput
    );
}

const WHOLE_RUN: &str = r#"at = "0s", for = "10m""#;

/// An outage of the whole run with these keys.
fn throughout(keys: &str) -> String {
    format!("[{{ {WHOLE_RUN}, {keys} }}]")
}

/// Each of n randomly chosen nodes is a separate M/M/1 queue: half of its requests take longer than ln 2/(μ − λ).
/// Round robin has less variance, and least-outstanding the shortest wait.
#[test]
fn balancers_differ_in_waiting_times_as_theory_predicts() {
    let p50 = |balancer| {
        let changes = [
            ("service.capacity", "250"),
            ("service.nodes", "4"),
            ("service.balancer", balancer),
            ("clients.attempt_timeout", "10s"),
        ];
        stream(&off(), &changes).p50_ms.unwrap()
    };
    let random = p50("random");
    let expected = 1.0 + 1000.0 * 2.0_f64.ln() / (62.5 - 50.0);
    assert!((random / expected - 1.0).abs() < 0.1, "{random} {expected}");
    assert!(p50("round-robin") < 0.9 * random);
    assert!(p50("least-outstanding") < 0.7 * p50("round-robin"));
}

#[test]
fn one_rejecting_node_of_four_fails_a_quarter_of_the_attempts() {
    let outage = throughout("effect = \"blackout\", nodes = [0]");
    let changes = [
        ("service.nodes", "4"),
        ("service.balancer", "random"),
        ("outages", &*outage),
    ];
    assert_goodput(&stream(&off(), &changes), 0.75);
    // A retry reaches it again with the same probability, unless the node is chosen once per request.
    assert_goodput(&stream(&retries(1), &changes), 1.0 - 1.0 / 16.0);
    let each = [&changes[..], &[("clients.destination", "node")]].concat();
    assert_goodput(&stream(&retries(1), &each), 0.75);
    // Processes that keep their node get all or nothing: Jain's index is the share of those that get all.
    let mut sticky = changes;
    sticky[1] = ("service.sticky", "true");
    let metrics = stream(&retries(3), &sticky);
    assert!(
        (metrics.fairness.unwrap() - 0.75).abs() < 1e-9,
        "{metrics:?}"
    );
    // A node that rejects immediately has the fewest outstanding attempts.
    let mut least = changes;
    least[1] = ("service.balancer", "least-outstanding");
    least[0] = ("service.nodes", "2");
    let busy = [&least[..], &[("service.capacity", "250")]].concat();
    let metrics = stream(&off(), &busy);
    assert!(metrics.goodput < 0.45, "{metrics:?}");
}

#[test]
fn failures_and_losses_of_an_outage_have_their_probability_while_it_lasts() {
    for (effect, while_it_lasts) in [
        ("{ failures = 0.3 }", 0.7),
        ("{ loss = 0.1 }", 0.81),
        ("\"blackout\"", 0.0),
    ] {
        // 50 of 200 seconds, in one piece and in fifty.
        for pieces in ["for = \"50s\"", "for = \"1s\", every = \"2s\", times = 50"] {
            let outage = format!("[{{ at = \"20s\", {pieces}, effect = {effect} }}]");
            let metrics = stream(&off(), &[("outages", &outage)]);
            assert_goodput(&metrics, 0.75 + 0.25 * while_it_lasts);
            assert_eq!(metrics.drops.is_some(), effect.contains("loss"));
        }
    }
    // Two overlapping outages, and the failures of the service itself.
    let both = "[{ at = \"0s\", for = \"5m\", effect = { failures = 0.3 } }, \
                 { at = \"0s\", for = \"4m\", effect = { failures = 0.5 } }]";
    let changes = [("outages", both), ("service.failures", "0.1")];
    assert_goodput(&stream(&off(), &changes), 0.7 * 0.5 * 0.9);
}

#[test]
fn a_rolling_outage_takes_one_node_after_the_other() {
    let outage = "[{ at = \"0s\", for = \"50s\", every = \"50s\", times = 4, rolling = true, effect = \"blackout\" }]";
    let changes = [
        ("service.nodes", "4"),
        ("outages", outage),
        ("clients.processes", "40"),
    ];
    assert_goodput(&stream(&off(), &changes), 0.75);
    let metrics = stream(
        &off(),
        &[&changes[..], &[("service.sticky", "true")]].concat(),
    );
    assert_goodput(&metrics, 0.75);
    // Over the whole run, each process loses the same share.
    assert!(metrics.fairness.unwrap() > 0.99, "{metrics:?}");
}

/// Ten clients with 0.1 s of service each: two are completed, a third is being served, and seven are queued.
#[test]
fn queued_attempts_fail_when_a_node_restarts() {
    let text = r#"
        clients.arrivals.herd = { clients = 10 }
        clients.attempt_timeout = "10s"
        service = { capacity = 10, time = "constant" }
        outages = [{ at = "250ms", for = "10ms", effect = "restart" }]
    "#;
    let metrics = run(&Scenario::parse(text).unwrap(), &off(), 1).unwrap();
    assert_eq!((metrics.successes, metrics.give_ups), (3, 7));
    let patient = Policy::builder(Backoff::constant(Duration::from_millis(20)))
        .jitter(Jitter::None)
        .max_retries(1)
        .build()
        .unwrap();
    let metrics = run(&Scenario::parse(text).unwrap(), &patient, 1).unwrap();
    assert_eq!((metrics.successes, metrics.attempts), (10, 17));
}

/// M/M/1/K: with a queue of K − 1 in addition to the one in service, (1 − ρ)ρ^K/(1 − ρ^(K+1)) are rejected.
#[test]
fn a_bounded_queue_rejects_the_share_of_the_mm1k_formula() {
    for (queued, rho) in [(4, 0.8_f64), (0, 0.5), (9, 1.0 + 1e-9)] {
        let k = f64::from(queued + 1);
        let refused = (1.0 - rho) * rho.powf(k) / (1.0 - rho.powf(k + 1.0));
        let changes = [
            ("service.capacity", &*(200.0 / rho).to_string()),
            ("service.queue", &*queued.to_string()),
        ];
        let metrics = stream(&off(), &changes);
        // Rejected requests come in a row: three times the error of independent ones.
        let error = 3.0 * (refused * (1.0 - refused) / metrics.requests as f64).sqrt();
        assert!(
            (1.0 - metrics.goodput - refused).abs() <= 3.0 * error,
            "{queued}: {} of {refused}",
            1.0 - metrics.goodput
        );
    }
}

/// The number of requests is the area below the rate.
#[test]
fn a_changing_load_makes_as_many_requests_as_its_area() {
    for (arrivals, expected) in [
        (
            "{ curve = { points = [{ at = \"0s\", rate = 0 }, { at = \"100s\", rate = 200 }, \
             { at = \"100s\", rate = 50 }, { at = \"150s\", rate = 50 }], for = \"200s\" } }",
            10_000.0 + 5000.0,
        ),
        (
            "{ wave = { rate = 100, swing = 1, period = \"50s\", for = \"175s\" } }",
            // The extra half period is above the mean: 2/2π of a period's mean.
            17_500.0 + 100.0 * 50.0 / std::f64::consts::PI,
        ),
        (
            "{ bursts = { rate = 400, on = \"5s\", off = \"15s\", idle = 100, for = \"200s\" } }",
            20_000.0 + 15_000.0,
        ),
    ] {
        let metrics = stream(&off(), &[("clients.arrivals", arrivals)]);
        let error = f64::sqrt(expected);
        assert!(
            (metrics.requests as f64 - expected).abs() <= 4.0 * error,
            "{arrivals}: {}",
            metrics.requests
        );
    }
}

const CLASSES: &str = r#"[
    { name = "read", share = 3 },
    { name = "report", share = 1, cost = 9, time = "constant", deadline = "50ms" },
]"#;

#[test]
fn a_class_may_fail_while_others_do_not() {
    let outage = throughout("effect = \"blackout\", classes = [\"report\"]");
    let changes = [("clients.classes", CLASSES), ("outages", &outage)];
    let metrics = stream(&retries(2), &changes);
    assert_goodput(&metrics, 0.75);
    let [read, report] = metrics.classes[..] else {
        panic!("{metrics:?}");
    };
    assert_eq!(read.successes, read.requests);
    assert_eq!(
        (report.successes, read.requests + report.requests),
        (0, metrics.requests)
    );
    let words = verdict(&scenario(&changes), &[Ok(metrics)]);
    let ends = "; 0.0 % of \"read\"; 100.0 % of \"report\"";
    assert!(words.contains(ends), "{words}");
}

#[test]
fn a_class_has_its_own_times() {
    // A request costs three on average: reports take 90 ms here, and their callers wait for 50.
    let changes = [("clients.classes", CLASSES), ("service.capacity", "100")];
    let scenario = Scenario::parse_with(
        "clients.arrivals.poisson = { rate = 2, for = \"200s\" }",
        &changes,
    )
    .unwrap();
    assert!((scenario.capacity() - 100.0 / 3.0).abs() < 1e-9);
    let metrics = run(&scenario, &off(), 1).unwrap();
    assert_eq!(metrics.classes[1].successes, 0, "{metrics:?}");
    assert_eq!(metrics.classes[0].successes, metrics.classes[0].requests);
}

/// All callers of a destination wait for the `Retry-After` of one rejection, and a restart clears it. With a circuit
/// breaker, a rejection that is not for the rate delays only its own caller.
#[test]
fn a_retry_after_delays_all_callers_until_they_restart() {
    let changes = [
        (
            "outages",
            "[{ at = \"0s\", for = \"1s\", effect = \"blackout\" }]",
        ),
        ("clients.processes", "4"),
        ("clients.arrivals.poisson.for", "60s"),
        ("service.retry_after", "200s"),
    ];
    let ungated = Policy::STANDARD.clone().into_builder().no_circuit_breaker();
    let ungated = ungated.build().unwrap();
    let held = stream(&ungated, &changes);
    assert!(held.attempts <= 40, "{held:?}");
    assert_eq!(held.successes, 0);
    let restarts = "[{ at = \"10s\", over = \"20s\" }]";
    let restarted = stream(
        &ungated,
        &[&changes[..], &[("clients.restarts", restarts)]].concat(),
    );
    // In four steps, 10, 15, 20 and 25 s after the start.
    assert_goodput(&restarted, 1.0 - 17.5 / 60.0);
    // A circuit breaker detects the recovery long before: only callers that received the `Retry-After` wait for it.
    let gated = stream(Policy::STANDARD, &changes);
    assert!(gated.goodput > 0.97, "{gated:?}");
}

#[test]
fn a_client_restart_ends_its_open_requests() {
    let changes = [
        (
            "clients.arrivals",
            "{ closed = { clients = 50, think = \"1ms\", for = \"100s\" } }",
        ),
        ("service.capacity", "100"),
        ("clients.attempt_timeout", "10s"),
        (
            "clients.restarts",
            "[{ at = \"20s\" }, { at = \"30s\", over = \"20s\" }]",
        ),
    ];
    let metrics = stream(&off(), &changes);
    // Each of the fifty is lost twice, except clients that think, and makes another request.
    let lost = metrics.requests - metrics.successes;
    assert!((80..=100).contains(&lost), "{metrics:?}");
    assert_eq!(metrics.give_ups, 0);
    assert!(metrics.requests > 9000, "{metrics:?}");
}

#[test]
fn invalid_nodes_classes_outages_and_loads_are_reported() {
    for (key, value, part) in [
        ("service.nodes", "0", "from 1 to 1000"),
        ("service.balancer", "random", "need 2 nodes"),
        ("service.queue", "-3", "a time or a number of attempts"),
        ("service.retry_after", "0s", "above 0"),
        ("clients.destination", "host", "unknown word"),
        ("clients.restarts", "[{ at = \"25h\" }]", "24h"),
        (
            "clients.classes",
            "[{ name = \"a\", share = 0 }]",
            "above 0",
        ),
        (
            "clients.classes",
            "[{ name = \"a\", share = 1 }, { name = \"a\", share = 1 }]",
            "no other class",
        ),
        (
            "clients.arrivals",
            "{ curve = { points = [{ at = \"1s\", rate = 5 }], for = \"9s\" } }",
            "the first at 0s",
        ),
        (
            "clients.arrivals",
            "{ wave = { rate = 5, swing = 2, period = \"9s\", for = \"9s\" } }",
            "from 0 to 1",
        ),
    ] {
        let error = Scenario::parse_with(STREAM, &[(key, value)]).unwrap_err();
        assert!(error.to_string().contains(part), "{key}: {error}");
    }
    for (keys, part) in [
        ("effect = { failures = 2 }", "from 0 to 1"),
        ("effect = \"blackout\", nodes = [1]", "below service.nodes"),
        (
            "effect = \"blackout\", classes = [\"x\"]",
            "names of clients.classes",
        ),
        (
            "effect = \"blackout\", every = \"20m\"",
            "needs `every` and `times`",
        ),
        (
            "effect = \"blackout\", every = \"5m\", times = 3",
            "no shorter",
        ),
        ("effect = \"blackout\", every = \"20m\", times = 300", "24h"),
        (
            "effect = \"blackout\", rolling = true, nodes = [0]",
            "leave out `nodes`",
        ),
    ] {
        let outages = throughout(keys);
        let error = Scenario::parse_with(STREAM, &[("outages", &outages)]).unwrap_err();
        assert!(error.to_string().contains(part), "{keys}: {error}");
    }
}

/// Attempts that fail fast are not queued, and callers see them in the form that the service sets.
#[test]
fn fast_failures_occur_by_probability_and_by_count() {
    let off_goodput = |fast: &str, expected: f64| {
        let metrics = stream(&off(), &[("service.fast_failures", fast)]);
        assert_goodput(&metrics, expected);
        metrics
    };
    off_goodput("0.3", 0.7);
    for count in ["{ every = 4 }", "{ every_first = 4 }"] {
        let metrics = off_goodput(count, 0.75);
        assert_eq!(metrics.successes, metrics.requests - metrics.requests / 4);
    }
    // A retry is no first attempt, and nothing fails twice.
    let first = [("service.fast_failures", "{ every_first = 1 }")];
    let metrics = stream(&retries(1), &first);
    assert_eq!(metrics.goodput, 1.0);
    assert_eq!(metrics.amplification, Some(2.0));
    // Only in an outage.
    let trouble = throughout("effect = { fast_failures = 0.5 }");
    assert_goodput(&stream(&off(), &[("outages", &trouble)]), 0.5);
}

/// Whether a non-repeatable operation is retried depends on the kind of the failure.
#[test]
fn callers_see_failures_in_the_form_that_the_service_sets() {
    let goodput = |changes: &[(&str, &str)]| {
        let first = [
            ("service.fast_failures", "{ every_first = 1 }"),
            ("clients.repeatable", "false"),
        ];
        stream(&retries(1), &[&first, changes].concat()).goodput
    };
    assert_eq!(goodput(&[]), 0.0, "a 503 may have run");
    assert_eq!(goodput(&[("service.status", "429")]), 1.0);
    assert_eq!(goodput(&[("service.failures_as", "reset")]), 0.0);
    assert_eq!(goodput(&[("service.failures_as", "refused")]), 1.0);
}

/// The kinds of statuses are those of the HTTP clients.
#[test]
fn a_status_that_a_retry_cannot_cure_is_not_retried() {
    let goodput = |status: u16| {
        let changes = [
            ("service.fast_failures", "{ every_first = 1 }"),
            ("service.status", &status.to_string()),
        ];
        stream(&retries(1), &changes).goodput
    };
    for status in [408, 421, 425, 429, 500, 502, 503, 504, 529] {
        assert_eq!(goodput(status), 1.0, "{status}");
    }
    for status in [400, 404, 409, 413, 501, 505, 511] {
        assert_eq!(goodput(status), 0.0, "{status}");
    }
}

/// The files load, and each everyday scenario has a description.
#[test]
fn everyday_scenarios_and_grids_load() {
    let files = |folder: &str| {
        let folder = format!("{}/../../scenarios/{folder}", env!("CARGO_MANIFEST_DIR"));
        let files = std::fs::read_dir(folder).unwrap();
        let files = files.map(|file| file.unwrap().path());
        let files = files.filter(|path| path.extension().is_some_and(|end| end == "toml"));
        let texts: Vec<_> = files
            .map(|path| (std::fs::read_to_string(&path).unwrap(), path))
            .collect();
        texts
    };
    let everyday = files("everyday");
    assert!(everyday.len() >= 11);
    for (text, path) in everyday {
        let scenario = Scenario::parse(&text).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        assert!(!scenario.description.is_empty(), "{path:?}");
    }
    let cells = files("grids").into_iter().map(|(text, path)| {
        let cells = relent_sim::grid::Grid::parse(&text).and_then(|grid| grid.cells());
        cells.unwrap_or_else(|e| panic!("{path:?}: {e}")).len()
    });
    let mut cells: Vec<usize> = cells.collect();
    cells.sort_unstable();
    assert_eq!(cells, [144, 648]);
}

/// Over a long distance a rejection takes almost as long as a success, but that does not make it a slow failure.
#[test]
fn a_distant_short_queue_gets_no_more_load_than_a_near_one() {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../scenarios/everyday/far-and-full.toml"
    );
    let text = std::fs::read_to_string(file).unwrap();
    for way in ["1ms", "10ms", "100ms"] {
        let scenario = Scenario::parse_with(&text, &[("network.one_way", way)]).unwrap();
        let off = run(&scenario, &off(), 1).unwrap();
        let standard = run(&scenario, Policy::STANDARD, 1).unwrap();
        let attempts = standard.attempts as f64 / standard.requests as f64;
        assert!(attempts < 1.5, "{way}: {attempts}");
        let lost = off.goodput - standard.goodput;
        assert!(lost < 0.02, "{way}: {lost}");
    }
}
