//! An upper bound of the goodput, which no policy exceeds.

use relent_core::FailureKind;

use crate::arrivals::requests;
use crate::scenario::{Arrivals, Effect, Model, SECOND, Scenario, ServiceTime, Span};

/// The highest share of the requests of a run with this seed that can succeed, or the reason why there is no bound.
///
/// Each success needs one service, which begins before the caller's deadline. The bound is the goodput of an optimal
/// scheduler that knows the future and makes only the attempts that are needed. It serves requests in order of
/// arrival, skips those whose deadline has passed, and works at the mean rate of successful services at that moment.
/// That rate is the capacity that the outages leave, less failures and losses, or the limiter's rate if that is
/// lower. Idle workers may begin immediately. Where service times vary more than exponential ones, as many short
/// services may precede the first long one as Lorden's inequality allows. All requests have the same deadline and
/// mean cost, so no other order completes more (Moore, 1968). The largest flow through a network is concave in its
/// capacities, so the mean over seeds does not exceed the result for the mean rate. A single run can be slightly
/// above it.
///
/// If requests may not run twice, a policy with `assume_repeatable`, or with `not_processed` for their failures, repeats
/// them all the same, and may exceed it.
///
/// It remains a bound although it ignores service and network times, attempt timeouts, short queues, the cost of
/// rejections and restarts of clients.
///
/// ```
/// use relent_sim::{Scenario, bound};
///
/// // For half of the time nothing is served.
/// let blackout = Scenario::parse(r#"
///     clients.arrivals.poisson = { rate = 50, for = "40s" }
///     clients.deadline = "1s"
///     service.capacity = 1000
///     outages = [{ at = "10s", for = "20s", effect = "blackout" }]
/// "#)?;
/// let most = bound(&blackout, 1).expect("a queue has one");
/// assert!((most - 21.0 / 40.0).abs() < 0.05, "{most}");
/// # Ok::<(), relent_sim::ScenarioError>(())
/// ```
///
/// # Errors
/// The reason, in words: no bound is known for this kind of scenario.
pub fn bound(scenario: &Scenario, seed: u64) -> Result<f64, &'static str> {
    let service = &scenario.service;
    match service.model {
        Model::Queue => {}
        Model::Row => return Err("a row that all clients write has no known bound"),
        Model::Job { .. } => return Err("a polling job has no capacity to bound"),
        Model::Medium { .. } => return Err("a shared medium has no known bound"),
    }
    if matches!(scenario.clients.arrivals, Arrivals::Closed { .. }) {
        return Err("requests of closed-loop clients depend on the responses");
    }
    let Some(requests) = requests(scenario, seed) else {
        return Err("requests of several classes have no known bound");
    };
    let rates = Rates::of(scenario);
    let workers = f64::from(service.nodes) * f64::from(service.workers);
    let limiter = service
        .limiter
        .map_or(0.0, |limiter| f64::from(limiter.burst));
    // The number of services that may have begun beyond the rate.
    let ahead = (workers * services_ahead(service.time)).max(limiter) - 1.0;
    let (mut next, mut done) = (0.0_f64, 0_u64);
    for request in &requests {
        let earliest = rates.work(request.at).max(next - ahead);
        let begins = rates.when(earliest).max(request.at);
        let Some(begins) = rates.open(begins) else {
            break;
        };
        if begins > request.at.saturating_add(scenario.clients.deadline) {
            continue;
        }
        done += 1;
        next = next.max(rates.work(begins)) + 1.0;
    }
    // A request that may have run is not repeated: one service for each, or one for each answer if the errors of the
    // service prove that the request did not run.
    let kept = 1.0 - scenario.network.loss;
    let may_run = !matches!(
        service.failure().kind,
        FailureKind::NotProcessed | FailureKind::Throttled
    );
    let once = match (scenario.clients.repeatable, may_run) {
        (true, _) => 1.0,
        (false, true) => (1.0 - service.failures) * kept * kept,
        (false, false) => kept * kept,
    };
    Ok((done as f64 / requests.len().max(1) as f64).min(once))
}

/// The mean of the bound over runs with these seeds, or why there is none.
///
/// # Errors
/// Those of [`bound`].
pub fn mean_bound(scenario: &Scenario, seeds: &[u64]) -> Result<f64, &'static str> {
    let bounds = seeds.iter().map(|seed| bound(scenario, *seed));
    let bounds: Vec<f64> = bounds.collect::<Result<_, _>>()?;
    Ok(bounds.iter().sum::<f64>() / bounds.len().max(1) as f64)
}

/// The number of services, on average and at most, that a worker has begun beyond its rate. At most t/m + E(S²)/m²
/// services of mean m begin in a time t (Lorden, "On Excess over the Boundary", 1970). For lognormal times this grows
/// fast with sigma. For constant and exponential times it is at most t/m + 1.
fn services_ahead(time: ServiceTime) -> f64 {
    match time {
        ServiceTime::Constant | ServiceTime::Exponential => 1.0,
        ServiceTime::Lognormal(sigma) => libm::exp(sigma * sigma),
    }
}

/// The rate of successful services over time.
struct Rates {
    /// Start of the piece, services per nanosecond from then on, and services possible before it.
    pieces: Vec<(u64, f64, f64)>,
}

impl Rates {
    fn of(scenario: &Scenario) -> Self {
        let spans: Vec<Span> = scenario.spans().collect();
        let mut times: Vec<u64> = spans.iter().flat_map(|span| [span.at, span.end]).collect();
        times.push(0);
        times.sort_unstable();
        times.dedup();
        let mut pieces: Vec<(u64, f64, f64)> = Vec::new();
        for at in times {
            let now: Vec<&Span> = spans
                .iter()
                .filter(|span| (span.at..span.end).contains(&at))
                .collect();
            let rate = rate(scenario, &now) / SECOND as f64;
            let work = pieces
                .last()
                .map_or(0.0, |(from, rate, work)| work + rate * (at - from) as f64);
            pieces.push((at, rate, work));
        }
        Self { pieces }
    }

    /// Services possible until `at`.
    fn work(&self, at: u64) -> f64 {
        let index = self.pieces.partition_point(|(from, ..)| *from <= at);
        let (from, rate, work) = self.pieces[index.saturating_sub(1)];
        work + rate * (at - from) as f64
    }

    /// The time at which this many services have become possible.
    fn when(&self, work: f64) -> u64 {
        let index = self.pieces.partition_point(|(.., before)| *before <= work);
        let (from, rate, before) = self.pieces[index.saturating_sub(1)];
        match rate > 0.0 {
            true => from.saturating_add(((work - before).max(0.0) / rate) as u64),
            false => from,
        }
    }

    /// The first time at or after `at` at which services can begin.
    fn open(&self, at: u64) -> Option<u64> {
        let index = self.pieces.partition_point(|(from, ..)| *from <= at);
        let mut from_here = self.pieces.iter().skip(index.saturating_sub(1));
        let (from, ..) = from_here.find(|(_, rate, _)| *rate > 0.0)?;
        Some(at.max(*from))
    }
}

/// Successful services per second of all nodes during these outages.
fn rate(scenario: &Scenario, now: &[&Span]) -> f64 {
    let service = &scenario.service;
    let node = |node: u16| {
        let mut share = (1.0 - service.failures) * (1.0 - scenario.network.loss);
        for span in now {
            let outage = &scenario.outages[span.outage];
            let here = match span.node {
                Some(only) => only == node,
                None => outage.nodes.is_empty() || outage.nodes.contains(&node),
            };
            if here {
                share *= match outage.effect {
                    Effect::Blackout | Effect::Stall | Effect::Restart => 0.0,
                    Effect::Brownout(left) => left,
                    Effect::Failures(share) | Effect::Loss(share) => 1.0 - share,
                    // Fast failures use no capacity.
                    Effect::FastFailures(_) => 1.0,
                };
            }
        }
        share
    };
    let nodes: f64 = (0..service.nodes).map(node).sum();
    let capacity = service.capacity / f64::from(service.nodes) * nodes;
    match service.limiter {
        Some(limiter) => capacity.min(limiter.rate),
        None => capacity,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use relent_core::Policy;

    use crate::generate::generate;
    use crate::run::run_bounded;

    fn of(text: &str, seeds: std::ops::Range<u64>) -> f64 {
        let scenario = Scenario::parse(text).unwrap();
        let count = seeds.end - seeds.start;
        seeds
            .map(|seed| bound(&scenario, seed).unwrap())
            .sum::<f64>()
            / count as f64
    }

    #[test]
    fn the_bound_excludes_requests_beyond_the_capacity() {
        let overload = "clients.arrivals.poisson = { rate = 200, for = \"100s\" }
             clients.deadline = \"5s\"
             service.capacity = 100";
        // 100 seconds plus the last deadline.
        let most = of(overload, 1..9);
        assert!((most - 105.0 / 200.0).abs() < 0.01, "{most}");
        let failing = format!("{overload}\nservice.failures = 0.5");
        let most = of(&failing, 1..9);
        assert!((most - 52.5 / 200.0).abs() < 0.01, "{most}");
    }

    /// For 60 s, 500 of 800 requests per second are served. The 8,000 requests left from the last 10 s are within
    /// their deadline, and so are later ones until the spare 200 per second have cleared the queue: 48,000 - 30,000 -
    /// 8,000 of 240,000 are lost.
    #[test]
    fn the_bound_of_a_brownout_matches_a_hand_calculation() {
        let brownout = crate::scenarios::get("brownout").unwrap().load().unwrap();
        let most = bound(&brownout, 1).unwrap();
        assert!((most - (1.0 - 10.0 / 240.0)).abs() < 0.003, "{most}");
    }

    #[test]
    fn the_bound_gives_a_non_repeatable_request_one_service() {
        let text = "clients.arrivals.herd = { clients = 10 }
             clients.repeatable = false
             service.failures = 0.25";
        assert_eq!(of(text, 1..2), 0.75);
    }

    /// A refused connection and a 429 prove that the request did not run, so it may be repeated.
    #[test]
    fn the_bound_allows_retries_of_failures_that_prove_that_nothing_ran() {
        for form in ["failures_as = \"refused\"", "status = 429"] {
            let text = format!(
                "clients.arrivals.herd = {{ clients = 40 }}
                 clients.repeatable = false
                 [service]
                 failures = 0.25
                 {form}"
            );
            let scenario = Scenario::parse(&text).unwrap();
            let metrics = run_bounded(&scenario, Policy::PATIENT, 1, 1_000_000).unwrap();
            assert!(metrics.goodput > 0.9, "{form}: {}", metrics.goodput);
            assert!(of(&text, 1..2) >= metrics.goodput, "{form}");
        }
    }

    #[test]
    fn scenarios_without_a_bound_return_an_error() {
        for text in [
            "clients.arrivals.closed = { clients = 3, think = \"1s\", for = \"9s\" }",
            "clients.arrivals.herd = { clients = 3 }\nservice.model = \"row\"",
            "clients.arrivals.herd = { clients = 3 }\nclients.classes = [{ name = \"a\", share = 1 }]",
        ] {
            assert!(bound(&Scenario::parse(text).unwrap(), 1).is_err(), "{text}");
        }
    }

    /// Most services are much shorter than the mean, so in a short time many more complete than the mean rate
    /// predicts.
    #[test]
    fn the_bound_allows_for_heavy_tailed_service_times() {
        let text = "clients.arrivals.poisson = { rate = 100, for = \"60s\" }
             clients.deadline = \"2s\"
             clients.attempt_timeout = \"2s\"
             service = { capacity = 20, workers = 400, time = { lognormal = 3.0 }, cancellation = true }";
        let scenario = Scenario::parse(text).unwrap();
        let off = Policy::STANDARD.clone().without_retries();
        let metrics = run_bounded(&scenario, &off, 1, 1_000_000).unwrap();
        assert!(metrics.goodput > 0.5, "{}", metrics.goodput);
        assert!(of(text, 1..2) >= metrics.goodput);
    }

    /// No policy exceeds the bound, in random scenarios.
    #[test]
    fn no_policy_exceeds_the_bound_in_random_scenarios() {
        let mut held = 0;
        for number in 0..60 {
            let scenario = Scenario::parse(&generate(number).text).unwrap();
            for policy in [Policy::STANDARD, Policy::PATIENT] {
                let Ok(metrics) = run_bounded(&scenario, policy, 1, 1_000_000) else {
                    continue;
                };
                let Ok(most) = bound(&scenario, 1) else {
                    continue;
                };
                held += 1;
                // 12,000 services vary by a hundredth.
                let goodput = metrics.goodput;
                assert!(goodput <= most + 0.03, "{number}: {goodput} above {most}");
            }
        }
        assert!(held >= 60, "{held}");
    }
}
