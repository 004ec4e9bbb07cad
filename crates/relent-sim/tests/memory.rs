//! The memory of waiting clients. It is measured for the whole process, so no other test may run in it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests may")]

use std::fs;

use relent_core::Policy;
use relent_sim::{Scenario, run, scenarios};

/// The peak memory of this process so far, in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.unwrap().trim().strip_suffix(" kB").unwrap();
    1024 * kibibytes.parse::<u64>().unwrap()
}

/// An outage of a minute: all clients that arrive in it are queued at its end, all in one process.
fn queue_clients(clients: u32) {
    let rate = f64::from(clients) / 60.0;
    let changes = [
        ("clients.arrivals.poisson.for", "120s".to_owned()),
        ("clients.arrivals.poisson.rate", rate.to_string()),
        ("clients.processes", "1".to_owned()),
        ("service.capacity", (rate / 0.8).to_string()),
    ];
    let changes: Vec<_> = changes.iter().map(|(key, to)| (*key, &**to)).collect();
    let blackout = scenarios::get("blackout").unwrap().text;
    let scenario = Scenario::parse_with(blackout, &changes).unwrap();
    let metrics = run(&scenario, Policy::STANDARD, 1).unwrap();
    assert!(metrics.goodput > 0.999, "{metrics:?}");
}

/// The client, its event, its entry in the circuit breaker's queue, and the memory between them.
#[test]
fn a_queued_simulated_client_takes_at_most_200_bytes() {
    queue_clients(1000);
    let few = peak();
    let many = 1_000_000;
    queue_clients(many);
    let each = (peak() - few) as f64 / f64::from(many - 1000);
    assert!(each <= 200.0, "{each:.1} bytes");
    assert!(each >= 150.0, "{each:.1} bytes: were they parked at once?");
}
