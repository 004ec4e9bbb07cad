//! Extreme accepted values: every run ends, with valid results.

use proptest::prelude::*;
use relent_core::Policy;
use relent_sim::{Scenario, run};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn any_valid_scenario_runs_to_its_end(
        seed: u64,
        arrivals in prop::sample::select(vec![
            "herd = { clients = 30 }",
            "poisson = { rate = 1e6, for = \"50us\" }",
            "poisson = { rate = 1e-6, for = \"24h\" }",
            "poisson = { rate = 20, for = \"3s\" }",
            "bursts = { rate = 20, on = \"1ns\", off = \"24h\", for = \"24h\" }",
            "bursts = { rate = 20, on = \"100ms\", off = \"200ms\", for = \"3s\" }",
            "closed = { clients = 5, think = \"1ms\", for = \"20ms\" }",
        ]),
        model in prop::sample::select(vec![
            "\"queue\"", "\"row\"", "{ job = { median = \"24h\", sigma = 5 } }",
        ]),
        capacity in prop::sample::select(vec!["1e-6", "3", "1e6"]),
        workers in prop::sample::select(vec![1, 7, 10_000]),
        time in prop::sample::select(vec!["\"exponential\"", "\"constant\"", "{ lognormal = 5 }"]),
        limits in prop::sample::select(vec![
            ("1ns", "24h"), ("24h", "1ns"), ("1s", "10s"), ("24h", "24h"),
        ]),
        effect in prop::sample::select(vec!["\"stall\"", "\"blackout\"", "{ brownout = 1e-300 }"]),
        network in prop::sample::select(vec![("1us", "0s"), ("24h", "24h"), ("1ms", "1ms")]),
        limiter in prop::sample::select(vec!["none", "slots", "24h", "1ns"]),
        shedder in prop::sample::select(vec!["", "shedder = { in_flight = 1 }", "shedder = { target = \"1ns\" }"]),
        layers in 1..=8,
        cancellation: bool,
        reject_cost in prop::sample::select(vec![0, 100]),
        loss in prop::sample::select(vec!["0", "0.3", "1"]),
    ) {
        let text = format!(r#"
            chain = {{ layers = {layers}, mark = false }}
            network = {{ one_way = "{}", deviation = "{}", loss = {loss} }}
            outages = [{{ at = "1s", for = "24h", effect = {effect} }}]
            [clients]
            arrivals.{arrivals}
            attempt_timeout = "{}"
            deadline = "{}"
            [service]
            model = {model}
            capacity = {capacity}
            workers = {workers}
            time = {time}
            cancellation = {cancellation}
            reject_cost = {reject_cost}
            limiter = {{ rate = 1e-6, burst = 3, retry_after = "{limiter}" }}
            {}
        "#, network.0, network.1, limits.0, limits.1,
            if model == "\"queue\"" { shedder } else { "" });
        let scenario = Scenario::parse(&text).unwrap();
        let metrics = run(&scenario, Policy::STANDARD, seed).unwrap();
        prop_assert!(metrics.successes <= metrics.requests);
        prop_assert!((0.0..=1.0).contains(&metrics.goodput));
        prop_assert!(metrics.peak.is_finite());
    }
    #[test]
    fn any_valid_shared_medium_runs_until_the_end_of_the_time(
        seed: u64,
        stations in prop::sample::select(vec![1, 2, 77]),
        slot in prop::sample::select(vec!["1us", "1s"]),
        cable in prop::sample::select(vec![("1e12", 1), ("1", 1), ("1e6", 1_000_000), ("3e6", 48)]),
        access in prop::sample::select(vec!["policy", "share"]),
        lasts in prop::sample::select(vec!["1ns", "50us", "90ms"]),
        deadline in prop::sample::select(vec!["1ns", "24h"]),
    ) {
        let (rate, frame) = cable;
        let text = format!(r#"
            clients.arrivals.saturated = {{ clients = {stations}, for = "{lasts}" }}
            clients.deadline = "{deadline}"
            service.model.medium.slot = "{slot}"
            service.model.medium.rate = {rate}
            service.model.medium.frame = {frame}
            service.model.medium.access = "{access}"
        "#);
        // At 1e12 bits per second the longer times have too many frames.
        prop_assume!(rate != "1e12" || lasts == "1ns");
        let scenario = Scenario::parse(&text).unwrap();
        let metrics = run(&scenario, Policy::STANDARD, seed).unwrap();
        prop_assert!(metrics.successes + metrics.give_ups <= metrics.requests);
        prop_assert!((0.0..=1.0).contains(&metrics.efficiency.unwrap()));
    }
}
