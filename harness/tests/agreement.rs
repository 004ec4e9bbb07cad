//! What the simulator says is what sockets do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests may"
)]

use std::path::Path;

use relent_harness::case::Case;
use relent_harness::compare::{BUSY, Comparison, compare, simulate, table};
use relent_harness::crowd::{Measured, measure};
use relent_harness::form::Form;
use relent_sim::Metrics;

const PROGRAM: &str = env!("CARGO_BIN_EXE_sockets");
/// Simulated runs that are compared with.
const SEEDS: u64 = 50;
/// A run during which the machine was too busy is made again, so many times at most.
const TRIES: u64 = 3;
/// The numbers that say what a policy does.
const TELLING: [&str; 4] = ["goodput", "ampl.", "ttr", "drain"];

struct Run {
    comparisons: Vec<Comparison>,
    /// The simulated run with the same requests and service times.
    twin: Metrics,
    measured: Measured,
    text: String,
}

/// Plays the scenario, and again while it does not turn out as it should and the machine was too busy
/// to tell.
fn play(scenario: &str, policy: &str, judge: impl Fn(&Run) -> Result<(), String>) {
    for seed in 1..=TRIES {
        let case = Case {
            scenario: scenario.to_owned(),
            set: Form::Quick.changes(scenario),
            policy: policy.to_owned(),
            seed,
        };
        let scenario = case.scenario().unwrap();
        let policy = case.policy(&scenario).unwrap();
        let simulated = simulate(&scenario, &policy, seed, SEEDS);
        let measured = measure(Path::new(PROGRAM), &case).unwrap();
        let comparisons = compare(&scenario, &simulated, &measured);
        let run = Run {
            text: table(&case.policy, &comparisons, &measured),
            twin: simulated[0].clone(),
            comparisons,
            measured,
        };
        // However busy the machine is, no attempt ends as none does in the simulator.
        assert!(run.measured.odd.is_empty(), "{}", run.text);
        match judge(&run) {
            Ok(()) => return,
            Err(what) if seed == TRIES => panic!("{what}\n{}", run.text),
            Err(what) if run.measured.lag.usual <= BUSY => panic!("{what}\n{}", run.text),
            Err(what) => eprintln!(
                "again, since the machine was too busy: {what}\n{}",
                run.text
            ),
        }
    }
}

/// Every telling number is what one more simulated run might give: 99.99 % of them would.
fn agrees(scenario: &str) {
    play(scenario, "standard", |run| {
        assert_eq!(
            run.measured.metrics.goodput, 1.0,
            "nothing is lost\n{}",
            run.text
        );
        let telling = |one: &&Comparison| TELLING.contains(&one.measure.name);
        let mut telling = run.comparisons.iter().filter(telling);
        match telling.find(|one| !one.agrees()) {
            Some(one) => Err(format!("{} differs", one.measure.name)),
            None => Ok(()),
        }
    });
}

#[test]
fn a_blackout_over_sockets_is_the_simulated_one() {
    agrees("blackout");
}

#[test]
fn a_stall_over_sockets_is_the_simulated_one() {
    agrees("stall");
}

#[test]
fn a_herd_at_a_rate_limit_over_sockets_is_the_simulated_one() {
    agrees("rate-limit");
}

/// Without retries there is no chance but in arrivals and service times, and those are the same: only
/// requests differ which would be answered just in time or just too late.
#[test]
fn without_retries_the_same_requests_succeed_as_in_the_simulator() {
    play("stall", "off", |run| {
        let (twin, measured) = (&run.twin, &run.measured.metrics);
        assert_eq!(measured.requests, twin.requests);
        assert_eq!(measured.attempts, twin.attempts);
        // After the stall the wait of a new request falls by 0.4 s in each second, from above the
        // attempt timeout to below: for 2·slack/0.4 seconds it is nearer to it than the medium is
        // exact. It does not fall evenly: three times as many of the 60 requests per second.
        let slack = 0.003 + run.measured.lag.usual as f64 / 1e9;
        let most = (3.0 * 60.0 * 2.0 * slack / 0.4).ceil() as u64;
        let differ = measured.successes.abs_diff(twin.successes);
        match differ <= most {
            true => Ok(()),
            false => Err(format!(
                "{differ} requests ended otherwise, of at most {most}"
            )),
        }
    });
}
