//! A run assembled from its parts equals the simulated run.

use relent_core::Policy;
use relent_sim::{
    ArrivingAttempt, Metrics, Observed, RequestOutcome, Scenario, ServiceAnswer, Serving, requests,
    run,
};

const OUTAGES: &str = r#"
    outages = [
        { at = "10s", for = "5s", effect = "blackout" },
        { at = "20s", for = "5s", effect = { brownout = 0.5 } },
        { at = "30s", for = "1s", effect = "stall" },
    ]
    [clients]
    arrivals.poisson = { rate = 90, for = "60s" }
    backlog = { requests = 300, at = "40s", over = "1s" }
    attempt_timeout = "60s"
    [service]
    capacity = 100
    workers = 2
    queue = "200ms"
    reject_cost = 0.3
    failures = 0.02
"#;

/// One attempt for each request, with the responses in order of time.
fn put_together(scenario: &Scenario, seed: u64) -> Metrics {
    let way = scenario.network.one_way;
    let requests = requests(scenario, seed).unwrap();
    let mut serving = Serving::new(scenario, seed);
    let mut observed = Observed::default();
    let mut ended = vec![(0, false); requests.len()];
    let mut end = |id: u32, at: u64, answer| {
        ended[id as usize] = (at + way, answer == ServiceAnswer::Success);
    };
    for (id, request) in (0..).zip(&requests) {
        let now = request.at + way;
        observed.attempts.push(now);
        // Without any delay, so that each response has its exact time.
        while let Some(at) = serving.next().filter(|at| *at <= now) {
            serving.advance(at);
            serving
                .answers()
                .for_each(|(id, answer)| end(id, at, answer));
        }
        let (number, key) = (1, Some(u64::from(id)));
        if let Some(answer) = serving.arrive(now, ArrivingAttempt { id, number, key }) {
            end(id, now, answer);
        }
    }
    while let Some(at) = serving.next() {
        serving.advance(at);
        serving
            .answers()
            .for_each(|(id, answer)| end(id, at, answer));
    }
    observed.executions = serving.executions();
    let outcomes = requests.iter().zip(ended);
    observed.outcomes = outcomes
        .map(|(request, (ended, succeeded))| RequestOutcome {
            request: *request,
            attempts: 1,
            ended,
            succeeded,
        })
        .collect();
    observed.metrics(scenario)
}

#[test]
fn serving_with_an_external_clock_equals_the_simulated_run() {
    let off = Policy::STANDARD.clone().into_builder().retries_off(true);
    let off = off.build().unwrap();
    for changes in [
        &[][..],
        &[
            ("service.limiter.rate", "70"),
            ("service.limiter.retry_after", "slots"),
        ],
        &[("service.shedder.target", "20ms")],
    ] {
        let scenario = Scenario::parse_with(OUTAGES, changes).unwrap();
        for seed in 1..=4 {
            let simulated = run(&scenario, &off, seed).unwrap();
            let mut by_hand = put_together(&scenario, seed);
            by_hand.events = simulated.events;
            assert!(simulated.goodput < 0.95, "there are outages");
            assert_eq!(by_hand, simulated, "{changes:?}, seed {seed}");
        }
    }
}

#[test]
fn a_late_advance_returns_all_responses_due_until_then() {
    let scenario = Scenario::parse_with(OUTAGES, &[("service.failures", "0")]).unwrap();
    let mut serving = Serving::new(&scenario, 1);
    for id in 0..5 {
        let (number, key) = (1, None);
        assert_eq!(serving.arrive(0, ArrivingAttempt { id, number, key }), None);
    }
    serving.advance(9_000_000_000);
    let mut answers: Vec<_> = serving.answers().collect();
    answers.sort_unstable_by_key(|(id, _)| *id);
    let all: Vec<_> = (0..5).map(|id| (id, ServiceAnswer::Success)).collect();
    assert_eq!(answers, all);
    // The start of the first outage is next.
    assert_eq!(serving.next(), Some(10_000_000_000));
}
