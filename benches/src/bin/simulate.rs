//! Prints the cost of a simulator event: processor time as Linux counts it, so that other work on the machine does
//! not count.
//!
//! `blackout` is the built-in scenario. The other rows are the same outage with the given number of clients queued at
//! its end, and with proportional arrivals and capacity: with a good event queue all rows have the same cost per
//! event. The median of several runs counts.

use std::env;
use std::error::Error;
use std::fs;

use relent::{Policy, presets};
use relent_sim::{Scenario, run, scenarios};

/// Runs, of which the median counts.
const RUNS: u64 = 5;
/// The least events of a measured run: small scenarios are repeated.
const EVENTS: u64 = 2_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    if let [_, once, policy, sets @ ..] = &env::args().collect::<Vec<_>>()[..]
        && once == "once"
    {
        return run_once(policy, sets);
    }
    let patient = &Policy::PATIENT;
    let blackout = scenarios::get("blackout")
        .ok_or("there is a scenario blackout")?
        .text;
    let scenario = Scenario::parse(blackout)?;
    for name in ["off", "standard", "patient", "cenkalti"] {
        let policy = match name {
            "off" => Policy::builder(relent::Backoff::None)
                .max_retries(0)
                .build()?,
            name => presets::get(name).ok_or("a preset")?.load()?.policy,
        };
        report(&format!("blackout, {name}"), &scenario, &policy)?;
    }
    for parked in [1_000, 10_000, 100_000, 1_000_000] {
        // Clients that arrive during the 60 s of the outage are queued at its end.
        let rate = f64::from(parked) / 60.0;
        let changes = [
            ("clients.arrivals.poisson.rate", rate.to_string()),
            ("clients.arrivals.poisson.for", "180s".to_owned()),
            ("service.capacity", (rate / 0.8).to_string()),
        ];
        let changes: Vec<_> = changes
            .iter()
            .map(|(key, to)| (*key, to.as_str()))
            .collect();
        let scenario = Scenario::parse_with(blackout, &changes)?;
        report(&format!("{parked} parked clients"), &scenario, patient)?;
    }
    Ok(())
}

fn report(name: &str, scenario: &Scenario, policy: &Policy) -> Result<(), Box<dyn Error>> {
    let mut per_event = Vec::new();
    let mut events_of_one = 0;
    for first in 0..RUNS {
        let (mut events, mut seed) = (0, first * 1_000_000);
        let started = running_time()?;
        while events < EVENTS {
            let metrics = run(scenario, policy, seed)?;
            events_of_one = metrics.events;
            events += metrics.events.max(1);
            seed += 1;
        }
        per_event.push((running_time()? - started) as f64 / events as f64);
    }
    per_event.sort_by(f64::total_cmp);
    let median = per_event[per_event.len() / 2];
    println!(
        "{name}\t{events_of_one}\t{median:.1}\t{:.2}",
        1000.0 / median
    );
    Ok(())
}

/// The processor time of this process, in nanoseconds.
fn running_time() -> Result<u64, Box<dyn Error>> {
    let path = "/proc/self/schedstat";
    let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let first = text.split(' ').next().unwrap_or_default();
    Ok(first.parse()?)
}

fn run_once(policy: &str, sets: &[String]) -> Result<(), Box<dyn Error>> {
    let blackout = scenarios::get("blackout")
        .ok_or("there is a scenario blackout")?
        .text;
    let changes: Vec<_> = sets.iter().filter_map(|set| set.split_once('=')).collect();
    let scenario = Scenario::parse_with(blackout, &changes)?;
    let policy = presets::get(policy).ok_or("a preset")?.load()?.policy;
    let before = running_time()?;
    let metrics = run(&scenario, &policy, 1)?;
    let took = running_time()? - before;
    println!(
        "{} events {:.1} ns each {}",
        metrics.events,
        took as f64 / metrics.events as f64,
        metrics.attempts
    );
    for line in fs::read_to_string("/proc/self/status")?
        .lines()
        .filter(|line| line.starts_with("VmHWM"))
    {
        println!("{line}");
    }
    Ok(())
}
