//! Compares runs over sockets with the simulator.
//!
//! Whether a number agrees depends on the machine being on time. A run that the machine disturbed, by measured lag,
//! is repeated with other requests. If every run was disturbed, the test reports that and passes: it proves nothing.
//! Invariants that do not depend on time must hold in every run.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{LazyLock, RwLock};

use relent_harness::agreement::{Agreement, verdict_of};
use relent_harness::case::Case;
use relent_harness::compare::{Comparison, compare, simulate, table};
use relent_harness::form::Form;
use relent_harness::processes::{Measured, measure};
use relent_harness::records::contradictions;
use relent_sim::{Arrivals, Metrics};

const PROGRAM: &str = env!("CARGO_BIN_EXE_sockets");
/// Simulated runs for a comparison.
const SEEDS: u64 = 50;
/// The most runs, if the machine disturbs them.
const TRIES: u64 = 3;
/// The numbers that characterize a policy.
const CHARACTERISTIC_MEASURES: [&str; 4] = ["goodput", "ampl.", "ttr", "drain"];
/// The variable with the file to which disturbed tests are appended.
const LIST: &str = "RELENT_DISTURBED";

/// The simulated cases: scenario, policy, and whether the service is behind the layers of `relent-server`.
const SIMULATED: [(&str, &str, bool); 6] = [
    ("blackout", "standard", false),
    ("stall", "standard", false),
    ("rate-limit", "standard", false),
    ("stall", "off", false),
    ("brownout", "standard", true),
    ("blackout", "standard", true),
];
/// Changes for the layers: ten requests are served concurrently, a queue of 20 ms is the target, and a rejection is
/// almost free. The process is dead during a blackout. Requests continue long enough for a recovery.
const LAYERED: [(&str, &str); 5] = [
    ("service.workers", "10"),
    ("service.shedder.target", "20ms"),
    ("service.queue", "unbounded"),
    ("service.reject_cost", "0"),
    ("clients.arrivals.poisson.for", "40s"),
];
/// The failures of an attempt whose connection is cut or refused.
const CUT: [&str; 3] = [
    "connection_refused",
    "connection_reset",
    "connection_closed",
];

/// The simulated runs, with a separate seed for every try. All run before the first run over sockets, since they take
/// all processors.
static RUNS: LazyLock<Vec<Vec<Metrics>>> = LazyLock::new(|| {
    let all = SIMULATED.iter().map(|&(scenario, policy, layers)| {
        let case = case(scenario, policy, layers, 1);
        let scenario = case.scenario().unwrap();
        let policy = case.policy(&scenario).unwrap();
        simulate(&scenario, &policy, 1, SEEDS + TRIES)
    });
    all.collect()
});

/// A herd has the machine to itself, since it needs all of it for a moment; other runs share it.
static MACHINE: RwLock<()> = RwLock::new(());

/// The simulated runs for a comparison with this seed: the first has the same requests and service times.
fn simulated(scenario: &str, policy: &str, layers: bool, seed: u64) -> &'static [Metrics] {
    let is = |one: &(&str, &str, bool)| *one == (scenario, policy, layers);
    let index = SIMULATED.iter().position(is).unwrap();
    let first = usize::try_from(seed - 1).unwrap();
    &RUNS[index][first..][..SEEDS as usize]
}

fn case(scenario: &str, policy: &str, layers: bool, seed: u64) -> Case {
    let mut set = Form::Quick.changes(scenario);
    if layers {
        let change = |(key, to): &(&str, &str)| ((*key).to_owned(), (*to).to_owned());
        set.extend(LAYERED.iter().map(change));
        if scenario == "blackout" {
            set.push(change(&("outages.0.effect", "restart")));
        }
    }
    Case {
        scenario: scenario.to_owned(),
        set,
        policy: policy.to_owned(),
        seed,
        layers,
        block_ms: 0,
    }
}

struct Run {
    comparisons: Vec<Comparison>,
    /// The simulated run with the same requests and service times.
    twin: Metrics,
    measured: Measured,
}

/// Runs the scenario, and repeats it while it differs from the simulated policy and the machine disturbed it. Returns
/// the verdict, and the table of the last run.
fn play(
    scenario: &str,
    simulated_policy: &str,
    layers: bool,
    change: impl Fn(&mut Case),
    differs: impl Fn(&Run) -> Option<String>,
) -> (Agreement, String) {
    let mut seed = 1;
    loop {
        let simulated = simulated(scenario, simulated_policy, layers, seed);
        let mut case = case(scenario, simulated_policy, layers, seed);
        change(&mut case);
        let scenario = case.scenario().unwrap();
        let herd = matches!(scenario.clients.arrivals, Arrivals::Herd { .. });
        let measured = {
            let _alone = herd.then(|| MACHINE.write());
            let _shared = (!herd).then(|| MACHINE.read());
            measure(Path::new(PROGRAM), &case).unwrap()
        };
        let comparisons = compare(&scenario, simulated, &measured);
        let text = table(&case.policy, &comparisons, &measured);

        // On a machine of any load.
        let policy = case.policy(&scenario).unwrap();
        let wrong = contradictions(&scenario, &policy, seed, &measured);
        assert!(wrong.is_empty(), "{wrong:#?}\n{text}");
        let mut odd = measured.odd.keys();
        assert!(
            odd.all(|how| layers && CUT.contains(&how.as_str())),
            "no attempt ends so in the simulator\n{text}"
        );

        let run = Run {
            twin: simulated[0].clone(),
            comparisons,
            measured,
        };
        let (late, share) = (run.measured.late, run.measured.share);
        let machine = run.measured.machine;
        let verdict = verdict_of(late.loops, machine, share, herd, differs(&run));
        match verdict {
            Agreement::Disturbed(what) if seed < TRIES => {
                say(&format!("disturbed, so it is made again: {what}\n{text}"));
                seed += 1;
            }
            verdict => return (verdict, text),
        }
    }
}

/// Prints also if the output of passing tests is captured.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Reports that this test proves nothing, where it is visible.
fn report_disturbed(what: &str, text: &str) {
    let test = std::thread::current();
    let test = test.name().unwrap_or("agreement");
    let line =
        format!("DISTURBED: {test}: the machine was too busy in each of {TRIES} runs ({what})");
    say(&format!("{line}\n{text}"));
    if let Some(list) = std::env::var_os(LIST) {
        let mut list = File::options()
            .append(true)
            .create(true)
            .open(list)
            .unwrap();
        writeln!(list, "{line}").unwrap();
    }
}

/// The test passes if the run agrees, and is reported if the machine disturbed it.
fn agrees(scenario: &str, policy: &str, layers: bool, differs: impl Fn(&Run) -> Option<String>) {
    match play(scenario, policy, layers, |_| {}, differs) {
        (Agreement::Agrees, _) => {}
        (Agreement::Differs(what), text) => panic!("{what}\n{text}"),
        (Agreement::Disturbed(what), text) => report_disturbed(&what, &text),
    }
}

/// The test passes if the planted defect is found, and is reported if the machine disturbed the run.
fn is_found(scenario: &str, policy: &str, plant: impl Fn(&mut Case)) {
    match play(scenario, policy, false, plant, characteristic) {
        (Agreement::Agrees, text) => panic!("the planted defect was not found\n{text}"),
        (Agreement::Differs(_), _) => {}
        (Agreement::Disturbed(what), text) => report_disturbed(&what, &text),
    }
}

/// Every characteristic number could be that of one more simulated run, and at most this share of the requests that
/// succeed in the run with the same seed is lost.
fn characteristic_with_loss(run: &Run, lost: f64) -> Option<String> {
    let (twin, measured) = (run.twin.goodput, run.measured.metrics.goodput);
    if measured < twin - lost {
        return Some(format!("goodput is {measured}, and not {twin}"));
    }
    let characteristic = |one: &&Comparison| CHARACTERISTIC_MEASURES.contains(&one.measure.name);
    let mut characteristic = run.comparisons.iter().filter(characteristic);
    let differs = characteristic.find(|one| !one.agrees())?;
    Some(format!("{} differs", differs.measure.name))
}

/// Every characteristic number could be that of one more simulated run, as 99.99 % of them are. Hardly any request is
/// lost that is not lost in the run with the same seed.
fn characteristic(run: &Run) -> Option<String> {
    characteristic_with_loss(run, 0.002)
}

#[test]
fn a_blackout_over_sockets_matches_the_simulated_one() {
    agrees("blackout", "standard", false, characteristic);
}

#[test]
fn a_stall_over_sockets_matches_the_simulated_one() {
    agrees("stall", "standard", false, characteristic);
}

#[test]
fn a_herd_at_a_rate_limit_over_sockets_matches_the_simulated_one() {
    agrees("rate-limit", "standard", false, characteristic);
}

/// The layers order waiters by other rules than the simulated queue (a retry goes last), and send another Retry-After
/// with rejections. So single requests have other outcomes, but the characteristic numbers are those of a simulated
/// run.
fn layered(run: &Run) -> Option<String> {
    characteristic_with_loss(run, 0.03)
}

/// Half of the capacity is gone for six seconds: 80 requests per second on 50.
#[test]
fn a_brownout_behind_the_layers_matches_the_simulated_one() {
    agrees("brownout", "standard", true, layered);
}

/// The process is dead for five seconds: connections are cut, and then refused.
#[test]
fn a_dead_service_behind_the_layers_matches_the_simulated_blackout() {
    agrees("blackout", "standard", true, layered);
}

/// Without retries only arrivals and service times are random, and those are the same. Only requests with a response
/// just before or after their timeout differ.
#[test]
fn without_retries_the_same_requests_succeed_as_in_the_simulator() {
    agrees("stall", "off", false, |run| {
        let (twin, measured) = (&run.twin, &run.measured.metrics);
        if measured.attempts != twin.attempts {
            let (attempts, expected) = (measured.attempts, twin.attempts);
            return Some(format!("{attempts} attempts arrived, not {expected}"));
        }
        // After the stall, the wait of a new request falls by 0.4 s per second, from above the attempt timeout to
        // below. For 2·slack/0.4 seconds it is closer to the timeout than the medium is exact. It does not fall
        // evenly: three times as many of the 60 requests per second.
        let slack = 0.003 + run.measured.late.loops.usual as f64 / 1e9;
        let most = (3.0 * 60.0 * 2.0 * slack / 0.4).ceil() as u64;
        let differ = measured.successes.abs_diff(twin.successes);
        (differ > most).then(|| format!("{differ} requests ended otherwise, of at most {most}"))
    });
}

#[test]
fn a_policy_that_is_not_the_simulated_one_is_found() {
    is_found("stall", "standard", |case| {
        case.policy = "aws-standard".to_owned();
    });
}

/// 15 requests per second in each process.
#[test]
fn blocking_code_is_found_and_not_mistaken_for_a_busy_machine() {
    is_found("stall", "standard", |case| case.block_ms = 50);
}
