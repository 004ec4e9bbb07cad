//! Invariants of every run, on a machine of any speed.

use std::collections::HashMap;

use relent::Policy;
use relent_sim::{Request, RequestOutcome, Scenario, requests};

use crate::processes::Measured;
use crate::wire::AttemptRecord;

/// Contradictions in the records of a run, as text. None of them depends on time. Each request of the scenario ends
/// once, within the attempts of its policy. The service receives no attempt twice and none that its client did not
/// make. No request succeeds without being executed, and no non-repeatable request is executed twice.
#[must_use]
pub fn contradictions(
    scenario: &Scenario,
    policy: &Policy,
    seed: u64,
    measured: &Measured,
) -> Vec<String> {
    let asked = requests(scenario, seed).unwrap_or_default();
    let most = policy
        .max_retries()
        .map_or(u32::MAX, |retries| retries.saturating_add(1));
    let mut wrong = Vec::new();
    let mut ended: HashMap<u64, RequestOutcome> = HashMap::new();
    for (name, outcome) in &measured.ended {
        if ended.insert(*name, *outcome).is_some() {
            wrong.push(format!("request {name} ended twice"));
        }
    }
    let mut arrived: HashMap<u64, Vec<&AttemptRecord>> = HashMap::new();
    for arrival in &measured.arrivals {
        arrived.entry(arrival.request).or_default().push(arrival);
    }
    for (name, request) in (0..).zip(&asked) {
        let arrivals = arrived.remove(&name).unwrap_or_default();
        match ended.remove(&name) {
            None => wrong.push(format!("request {name} did not end")),
            Some(outcome) => {
                let of = request_is_wrong(request, &outcome, &arrivals, most, scenario);
                wrong.extend(of.into_iter().map(|what| format!("request {name} {what}")));
            }
        }
    }
    for name in ended.keys().chain(arrived.keys()) {
        wrong.push(format!("request {name} is none of the scenario"));
    }
    let executed = measured.arrivals.iter().filter(|one| one.executed).count() as u64;
    if executed != measured.executions {
        let executions = measured.executions;
        wrong.push(format!(
            "the service counts {executions} executions, of {executed} attempts"
        ));
    }
    wrong
}

fn request_is_wrong(
    request: &Request,
    outcome: &RequestOutcome,
    arrivals: &[&AttemptRecord],
    most: u32,
    scenario: &Scenario,
) -> Vec<&'static str> {
    let mut numbers: Vec<u32> = arrivals.iter().map(|arrival| arrival.attempt).collect();
    numbers.sort_unstable();
    let executions = arrivals.iter().filter(|arrival| arrival.executed).count();
    let checks = [
        (outcome.request != *request, "was made as another"),
        (outcome.ended < request.at, "ended before it was made"),
        (
            outcome.attempts > most,
            "had more attempts than its policy has",
        ),
        (
            numbers.windows(2).any(|pair| pair[0] == pair[1]),
            "reached the service twice with one attempt",
        ),
        (
            numbers
                .iter()
                .any(|number| !(1..=outcome.attempts).contains(number)),
            "reached the service with an attempt that its client did not make",
        ),
        (
            outcome.succeeded && executions == 0,
            "succeeded and was not executed",
        ),
        (
            !scenario.clients.repeatable && executions > 1,
            "was executed twice and must not be",
        ),
    ];
    let wrong = checks.into_iter().filter(|(applies, _)| *applies);
    wrong.map(|(_, what)| what).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use relent_sim::Observed;

    use super::*;
    use crate::agreement::Share;
    use crate::clock::{Lag, Lateness};

    const SEED: u64 = 3;

    fn scenario(repeatable: bool) -> Scenario {
        let text = format!(
            "clients = {{ arrivals.herd = {{ clients = 2 }}, repeatable = {repeatable} }}\n\
             service = {{ capacity = 10 }}"
        );
        Scenario::parse(&text).unwrap()
    }

    fn policy() -> Policy {
        let policy = Policy::STANDARD.clone().into_builder();
        policy.max_retries(1).build().unwrap()
    }

    fn arrival(request: u64, attempt: u32, executed: bool) -> AttemptRecord {
        AttemptRecord {
            at: 1,
            request,
            attempt,
            executed,
        }
    }

    /// Two requests: one succeeds with its second attempt, the other with its first.
    fn run() -> Measured {
        let asked = requests(&scenario(true), SEED).unwrap();
        let ended = |name: usize, attempts| {
            let outcome = RequestOutcome {
                request: asked[name],
                attempts,
                ended: 100,
                succeeded: true,
            };
            (name as u64, outcome)
        };
        Measured {
            metrics: Observed::default().metrics(&scenario(true)),
            ended: vec![ended(0, 2), ended(1, 1)],
            arrivals: vec![
                arrival(0, 1, false),
                arrival(1, 1, true),
                arrival(0, 2, true),
            ],
            executions: 2,
            late: Lateness::default(),
            machine: Lag::default(),
            share: Share::default(),
            odd: BTreeMap::new(),
        }
    }

    fn check(measured: &Measured, repeatable: bool) -> Vec<String> {
        contradictions(&scenario(repeatable), &policy(), SEED, measured)
    }

    #[test]
    fn a_run_whose_records_agree_has_no_contradictions() {
        assert_eq!(check(&run(), true), Vec::<String>::new());
        assert_eq!(check(&run(), false), Vec::<String>::new());
    }

    #[test]
    fn every_contradiction_is_found_at_any_machine_lag() {
        type Change = fn(&mut Measured);
        let cases: [(Change, &str); 11] = [
            (|run| run.ended.truncate(1), "request 1 did not end"),
            (|run| run.ended.push(run.ended[0]), "request 0 ended twice"),
            (
                |run| run.ended[0].1.request.process += 1,
                "was made as another",
            ),
            (
                |run| run.ended.push((7, run.ended[0].1)),
                "request 7 is none of the scenario",
            ),
            (
                |run| run.arrivals[0].request = 9,
                "request 9 is none of the scenario",
            ),
            (|run| run.ended[0].1.attempts = 3, "more attempts than"),
            (
                |run| run.arrivals.push(arrival(1, 1, false)),
                "twice with one attempt",
            ),
            (
                |run| run.arrivals.push(arrival(1, 2, false)),
                "did not make",
            ),
            (
                |run| {
                    run.arrivals[1].executed = false;
                    run.executions = 1;
                },
                "succeeded and was not executed",
            ),
            (|run| run.executions = 3, "the service counts 3 executions"),
            (
                |run| {
                    run.arrivals[0].executed = true;
                    run.executions = 3;
                },
                "executed twice",
            ),
        ];
        for (change, what) in cases {
            let mut run = run();
            run.machine.usual = u64::MAX;
            change(&mut run);
            let wrong = check(&run, false);
            assert!(
                wrong.iter().any(|wrong| wrong.contains(what)),
                "{what}: {wrong:?}"
            );
        }
        // A repeatable request may be executed twice.
        let mut twice = run();
        twice.arrivals[0].executed = true;
        twice.executions = 3;
        assert_eq!(check(&twice, true), Vec::<String>::new());
    }
}
