//! Fault scenarios for a described service, in which to compare policies.

use super::description::{Description, MAX_WORKERS_OF_A_NODE, Size};
use super::latency::Latency;
use super::policy::{exact, figure};
use crate::scenario::SECOND;

/// About this many requests are simulated in each scenario: enough to distinguish a difference of 0.1 %.
const TARGET_REQUESTS: f64 = 40_000.0;
/// The most requests if fewer would leave a node with fewer than [`MIN_WORKERS_OF_A_NODE`] of its workers.
const MAX_REQUESTS: f64 = 160_000.0;
const MIN_WORKERS_OF_A_NODE: u32 = 8;
/// The start of the fault, its longest simulated duration, and the least time after it, in seconds.
const FAULT_START_SECONDS: u64 = 30;
const MAX_FAULT_SECONDS: u64 = 60;
const MIN_SECONDS_AFTER_FAULT: u64 = 60;
/// The duration of a stall in seconds: its backlog grows with it, and is as bad after ten seconds.
const STALL_SECONDS: u64 = 10;

/// A fault scenario that fits a description.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FaultScenario {
    /// Its name.
    pub name: &'static str,
    /// Its scenario file.
    pub text: String,
}

/// The fault scenarios, with this attempt timeout in nanoseconds.
pub(super) fn of(
    service: &Description,
    latency: &Latency,
    size: Size,
    timeout: u64,
) -> Vec<FaultScenario> {
    let outage = (service.failure.outage / SECOND).clamp(1, MAX_FAULT_SECONDS);
    let stall = outage.min(STALL_SECONDS);
    let half = stall.div_ceil(2);
    let fault_scenarios: [(&str, String, String); 6] = [
        (
            "well",
            match service.failure.share > 0.0 {
                true => format!(
                    "no outage, only the baseline failures of {} %",
                    figure(100.0 * service.failure.share)
                ),
                false => "no outage".to_owned(),
            },
            String::new(),
        ),
        (
            "blackout",
            format!("immediate {} for {outage} s", service.failure.status),
            outage_of(outage, "\"blackout\""),
        ),
        (
            "brownout",
            format!("half of the capacity for {outage} s"),
            outage_of(outage, "{ brownout = 0.5 }"),
        ),
        (
            "stall",
            format!("nothing is served for {stall} s, and all requests are queued"),
            outage_of(stall, "\"stall\""),
        ),
        (
            "half-fail",
            format!("every second attempt fails for {outage} s, whatever the load"),
            outage_of(outage, "{ failures = 0.5 }"),
        ),
        (
            "cold-stall",
            format!("nothing is served for {stall} s, and in its middle all clients restart"),
            format!(
                "{}\n[[clients.restarts]]\nat = \"{}s\"\n",
                outage_of(stall, "\"stall\""),
                FAULT_START_SECONDS + half
            ),
        ),
    ];
    let fault_scenarios = fault_scenarios
        .into_iter()
        .map(|(name, description, more)| FaultScenario {
            name,
            text: format!(
                "description = {:?}\n\n{}{more}",
                format!("{}: {description}", service.name),
                base(service, latency, size, timeout, outage)
            ),
        });
    fault_scenarios.collect()
}

fn outage_of(seconds: u64, effect: &str) -> String {
    format!(
        "\n[[outages]]\nat = \"{FAULT_START_SECONDS}s\"\nfor = \"{seconds}s\"\neffect = {effect}\n"
    )
}

/// The service and its callers, scaled down if there are too many requests to simulate.
fn base(service: &Description, latency: &Latency, size: Size, timeout: u64, outage: u64) -> String {
    let after = MIN_SECONDS_AFTER_FAULT
        .max(3 * outage)
        .max((service.deadline / SECOND).min(2 * MAX_FAULT_SECONDS));
    let lasts = FAULT_START_SECONDS + outage + after;
    let nodes = f64::from(service.nodes);
    let workers = nodes * f64::from(size.workers);
    // Reduce nodes before the workers of one: workers that share a queue wait less than those with a queue each, and
    // a service that copes with its load must still do so. So a node stays whole, or keeps some workers if that would
    // take too long. At least one worker stays, unless a service takes so little that nothing depends on it.
    let requests = service.rate * lasts as f64;
    let some = f64::from(size.workers.min(MIN_WORKERS_OF_A_NODE)) / workers;
    let one = (1.0 / workers).min(20.0 * SECOND as f64 / (timeout as f64 * size.capacity));
    let smaller = (TARGET_REQUESTS / requests)
        .max(some.min(MAX_REQUESTS / requests))
        .max(one)
        .min(1.0);
    let left = workers * smaller;
    let nodes =
        libm::round(left / f64::from(size.workers)).max(libm::ceil(left / MAX_WORKERS_OF_A_NODE));
    let nodes = nodes.max(1.0);
    let at_node = libm::round(left / nodes).max(1.0);
    // The service time does not change.
    let smaller = match left >= 1.0 {
        true => nodes * at_node / workers,
        false => smaller,
    };
    let [rate, capacity] = [service.rate, size.capacity].map(|per_second| per_second * smaller);
    let processes = libm::round(f64::from(service.processes) * smaller).max(1.0);
    // A run has at most ten million requests.
    let lasts = lasts
        .min((5e6 / rate) as u64)
        .max(FAULT_START_SECONDS + outage + 1);
    let mut text = match smaller < 1.0 {
        true => format!(
            "# One part in {} of the service and its callers: rates, processes and workers.\n",
            figure(1.0 / smaller)
        ),
        false => String::new(),
    };
    text += &format!(
        "[clients]\n\
         arrivals.poisson = {{ rate = {rate:.6}, for = \"{lasts}s\" }}\n\
         processes = {processes}\n\
         attempt_timeout = \"{}\"\n\
         deadline = \"{}\"\n\
         repeatable = {}\n\n\
         [service]\n\
         capacity = {capacity:.6}\n\
         workers = {at_node}\n\
         nodes = {nodes}\n\
         time = {{ lognormal = {:.4} }}\n\
         failures = {}\n\
         status = {}\n\
         reject_cost = 0.1\n",
        exact(timeout),
        exact(service.deadline),
        service.repeatable,
        latency.sigma(),
        service.failure.share,
        service.failure.status,
    );
    if let Some(after) = service.failure.retry_after {
        text += &format!("retry_after = \"{}\"\n", exact(after));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scenario;
    use crate::run::run;
    use relent_core::Policy;

    /// A third of a service whose nodes have the most workers that a node may have: they fill more than one.
    #[test]
    fn a_node_of_a_scaled_service_keeps_the_worker_limit() {
        let text = "rate = 404\ncapacity = 878648\nnodes = 3\nprocesses = 1\ndeadline = \"10ms\"\n\
            repeatable = false\nlatency = { p50 = \"9447us\", p99 = \"342836us\" }";
        let service = Description::parse(text).unwrap();
        let advice = super::super::advise(&service, &service.latency().unwrap());
        for fault_scenario in &advice.fault_scenarios {
            let accepted = Scenario::parse(&fault_scenario.text);
            assert!(
                accepted.is_ok(),
                "{}\n{}",
                accepted.unwrap_err(),
                fault_scenario.text
            );
        }
    }

    /// More than 200 workers in 40 nodes, 90 % of which are busy. As four nodes with a worker each, it would lose 10
    /// % of the requests to queues that the service does not have.
    #[test]
    fn a_large_healthy_service_stays_healthy_when_scaled_down() {
        let text = "rate = 45000\ncapacity = 50000\nnodes = 40\nprocesses = 2000\ndeadline = \"500ms\"\n\
            repeatable = true\nfailure = { outage = \"20s\" }\n\
            latency = { p50 = \"3ms\", p90 = \"8ms\", p99 = \"40ms\", p999 = \"150ms\" }";
        let service = Description::parse(text).unwrap();
        let advice = super::super::advise(&service, &service.latency().unwrap());
        let well = Scenario::parse(&advice.fault_scenarios[0].text).unwrap();
        let off = Policy::STANDARD.clone().without_retries();
        let metrics = run(&well, &off, 1).unwrap();
        assert!(metrics.requests < 200_000, "{}", metrics.requests);
        assert!(metrics.goodput > 0.998, "{}", metrics.goodput);
    }
}
