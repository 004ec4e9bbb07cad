//! The throughput of stations of a wireless network, by the published model ("Performance Analysis of the IEEE 802.11
//! Distributed Coordination Function", Bianchi, IEEE JSAC 18, 2000).

use std::time::Duration;

use relent_core::{Backoff, Jitter, Policy};
use relent_sim::{Metrics, Scenario, run};

/// In microseconds, as in the paper (1 Mbit/s, basic access): payload and headers of 8584 bits and an
/// acknowledgement of 240, SIFS 28, DIFS 128 and 1 for each way.
const SLOT: f64 = 50.0;
const PAYLOAD: f64 = 8184.0;
const SUCCESS: f64 = 8982.0;
const COLLISION: f64 = 8713.0;

/// The throughput of n stations with the windows W, 2W, … 2^m·W, as a share of the channel.
fn bianchi(stations: u32, window: u32, doublings: i32) -> f64 {
    let (n, w) = (f64::from(stations), f64::from(window));
    let sends = |p: f64| {
        let sum: f64 = (0..doublings).map(|i| (2.0 * p).powi(i)).sum();
        2.0 / (1.0 + w + p * w * sum)
    };
    // p = 1 − (1 − τ)^(n−1) grows with τ, and τ falls with p: there is one solution.
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..100 {
        let p = f64::midpoint(low, high);
        match 1.0 - (1.0 - sends(p)).powf(n - 1.0) > p {
            true => low = p,
            false => high = p,
        }
    }
    let tau = sends(low);
    let some = 1.0 - (1.0 - tau).powf(n);
    let one = n * tau * (1.0 - tau).powf(n - 1.0);
    one * PAYLOAD / ((1.0 - some) * SLOT + one * SUCCESS + (some - one) * COLLISION)
}

/// A delay of as many slots as below the window, doubled at most `doublings` times.
fn backoff(window: u32, doublings: i32) -> Policy {
    let slots = |slots: u32| Duration::from_micros(50) * slots;
    let most = window * 2_u32.pow(doublings as u32);
    Policy::builder(Backoff::exponential(slots(window * 2).min(slots(most))))
        .max_delay(slots(most))
        .jitter(Jitter::Full)
        .unlimited_retries()
        .build()
        .unwrap()
}

fn simulated(stations: u32, window: u32, doublings: i32) -> Metrics {
    let text = format!(
        r#"
        clients.arrivals.saturated = {{ clients = {stations}, for = "300s" }}
        clients.deadline = "24h"
        [service.model.medium]
        slot = "50us"
        rate = 1e6
        frame = {PAYLOAD:.0}
        overhead = "{}us"
        collision = "{COLLISION}us"
        access = {{ window = {window} }}
        "#,
        SUCCESS - PAYLOAD,
    );
    let scenario = Scenario::parse(&text).unwrap();
    run(&scenario, &backoff(window, doublings), 1).unwrap()
}

#[test]
fn stations_with_a_window_match_bianchis_formula() {
    for (window, doublings) in [(32, 3), (32, 5), (128, 3)] {
        for stations in [5, 10, 20, 50] {
            let expected = bianchi(stations, window, doublings);
            let metrics = simulated(stations, window, doublings);
            let efficiency = metrics.efficiency.unwrap();
            assert!(
                (efficiency - expected).abs() <= 0.01,
                "n = {stations}, W = {window}, m = {doublings}: {efficiency} of {expected}"
            );
        }
    }
}

/// The paper's approximation of the maximum for many stations, independent of their number: the formula reaches it
/// with the best window, and so does the simulator.
#[test]
fn the_best_window_reaches_the_maximum_of_the_paper() {
    let k = f64::sqrt(COLLISION / SLOT / 2.0);
    let lost = k * (f64::exp(1.0 / k) - 1.0) - 1.0;
    let most = PAYLOAD / (SUCCESS + SLOT * k + COLLISION * lost);
    for stations in [50, 200] {
        let window = f64::from(stations) * 2.0 * k;
        let window = window.round() as u32;
        let expected = bianchi(stations, window, 0);
        assert!((expected - most).abs() < 0.002, "{expected} of {most}");
        let efficiency = simulated(stations, window, 0).efficiency.unwrap();
        assert!((efficiency - most).abs() < 0.01, "{efficiency} of {most}");
    }
}

/// A station whose caller goes away before the end of a delay has its next frame only then.
#[test]
fn a_frame_never_arrives_before_its_station_has_it() {
    let text = format!(
        r#"
        clients.arrivals.saturated = {{ clients = 20, for = "20s" }}
        clients.deadline = "50ms"
        [service.model.medium]
        slot = "50us"
        rate = 1e6
        frame = {PAYLOAD:.0}
        access = {{ window = 8 }}
        "#
    );
    let scenario = Scenario::parse(&text).unwrap();
    let metrics = run(&scenario, Policy::PATIENT, 1).unwrap();
    assert!(metrics.successes > 100, "{metrics:?}");
    // Beside its deadline, a frame is sent for 8 ms.
    assert!(metrics.p999_ms.unwrap() < 20_000.0, "{metrics:?}");
}
