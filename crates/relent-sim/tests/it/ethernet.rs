//! The throughput of stations on a shared cable (Metcalfe and Boggs, 1976).

use std::time::Duration;

use relent_core::{Backoff, Policy};
use relent_sim::{Metrics, Scenario, run, scenarios};

/// The preset.
fn preset() -> Policy {
    let text = include_str!("../../../relent/policies/ethernet.toml");
    toml::from_str(text).unwrap()
}

fn preset_of_1976() -> Policy {
    let slotted = Backoff::slotted(Duration::from_micros(16));
    preset().into_builder().backoff(slotted).build().unwrap()
}

/// The cable of 1976, 16 µs and 3 Mb/s, for the time of 20,000 frames.
fn on_cable(policy: &Policy, stations: u32, bits: u32, access: &str) -> Metrics {
    let lasts = 20_000.0 * f64::from(bits) / 3e6;
    // Contention takes the rest of the time: with 48 bits more than half of it.
    let lasts = lasts.max(2.0);
    let changes = [
        ("clients.arrivals.saturated.clients", stations.to_string()),
        (
            "clients.arrivals.saturated.for",
            format!("{}ms", (lasts * 1000.0) as u64),
        ),
        ("service.model.medium.slot", "16us".to_owned()),
        ("service.model.medium.rate", "3e6".to_owned()),
        ("service.model.medium.frame", bits.to_string()),
        ("service.model.medium.access", access.to_owned()),
    ];
    let changes: Vec<_> = changes
        .iter()
        .map(|(key, to)| (*key, to.as_str()))
        .collect();
    let text = scenarios::get("ethernet").unwrap().text;
    run(&Scenario::parse_with(text, &changes).unwrap(), policy, 1).unwrap()
}

const FRAMES: [u32; 4] = [4096, 1024, 512, 48];

/// The table of the paper, for these stations and [`FRAMES`].
const PUBLISHED: [(u32, [f64; 4]); 3] = [
    (2, [0.9884, 0.9552, 0.9143, 0.5000]),
    (10, [0.9818, 0.9310, 0.8709, 0.3874]),
    (64, [0.9805, 0.9263, 0.8627, 0.3708]),
];

#[test]
fn stations_that_send_with_a_probability_of_one_in_q_reproduce_the_published_table() {
    for (stations, row) in PUBLISHED {
        for (bits, published) in FRAMES.into_iter().zip(row) {
            let metrics = on_cable(&preset(), stations, bits, "share");
            let efficiency = metrics.efficiency.unwrap();
            assert!(
                (efficiency - published).abs() <= 0.004,
                "{stations} stations, {bits} bits: {efficiency} of {published}"
            );
        }
    }
}

/// On the other cable, 51.2 µs and 10 Mb/s, by the formula of the paper.
#[test]
fn the_ethernet_formula_also_holds_at_ten_megabits() {
    for stations in [2_u32, 10, 64] {
        let others = f64::from(stations - 1);
        let acquires = (1.0 - 1.0 / f64::from(stations)).powf(others);
        let waits = (1.0 - acquires) / acquires;
        let frame = 4096.0 / 10.0;
        let expected = frame / (frame + waits * 51.2);
        let changes = [
            ("clients.arrivals.saturated.clients", &*stations.to_string()),
            ("service.model.medium.access", "share"),
        ];
        let text = scenarios::get("ethernet").unwrap().text;
        let scenario = Scenario::parse_with(text, &changes).unwrap();
        let efficiency = run(&scenario, &preset(), 1).unwrap().efficiency.unwrap();
        assert!(
            (efficiency - expected).abs() <= 0.004,
            "{stations}: {efficiency} of {expected}"
        );
    }
}

/// A station that has just sent restarts its backoff, and the other, which has collided before, waits longer and
/// longer: one of the two captures the cable until the other gives up.
#[test]
fn binary_exponential_backoff_lets_one_of_two_stations_capture_the_cable() {
    let metrics = on_cable(&preset_of_1976(), 2, 48, "policy");
    let efficiency = metrics.efficiency.unwrap();
    assert!((efficiency - 0.99).abs() < 0.005, "{efficiency}");
    // Hardly any frame collides; a fair share would cost every second slot.
    assert!(metrics.amplification.unwrap() < 1.02, "{metrics:?}");
    assert!(metrics.give_ups > 0, "who does not get the cable gives up");
}

#[test]
fn binary_exponential_backoff_is_worse_than_one_in_q_among_many_stations() {
    for (stations, frames) in [(64, &FRAMES[..2]), (256, &FRAMES[..])] {
        for &bits in frames {
            let share = on_cable(&preset_of_1976(), stations, bits, "share");
            let metrics = on_cable(&preset_of_1976(), stations, bits, "policy");
            assert!(
                metrics.efficiency.unwrap() < share.efficiency.unwrap() - 0.01,
                "{stations} stations, {bits} bits: {metrics:?}"
            );
        }
    }
}

#[test]
fn every_frame_is_sent_or_given_up_after_sixteen_attempts() {
    let metrics = on_cable(&preset_of_1976(), 64, 512, "policy");
    let waiting = metrics.requests - metrics.successes - metrics.give_ups;
    assert!(waiting <= 64, "{metrics:?}");
    let collided = metrics.attempts - metrics.successes;
    assert!(collided >= 16 * metrics.give_ups, "{metrics:?}");
    assert_eq!(metrics.duplicates, 0);
    // The stations are alike.
    assert!(metrics.fairness.unwrap() > 0.9, "{metrics:?}");
}
