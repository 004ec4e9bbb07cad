//! What could have been done at all: no policy gets more requests done than this.

use crate::arrivals::requests;
use crate::scenario::{Arrivals, Effect, Model, SECOND, Scenario, ServiceTime, Span};

/// The most requests of a run with this seed that can succeed, as a share of all, or why there is no bound.
///
/// Each success takes a service of its own that begins before its caller goes away. The bound is what somebody
/// achieves who knows the future and makes just the attempts that are needed: requests are served in the order in
/// which they are made, unless their callers have gone, at the mean rate at which services succeed at that moment
/// (the capacity that the outages leave, less what fails and what is lost), or at the rate of the limiter if that is
/// less. Idle workers may begin at once, and where services vary more than exponential ones, so many short ones may come
/// before the first long one as Lorden's inequality allows. All requests have the same deadline and the same mean cost, so
/// no other order gets more done (Moore, 1968). The largest flow through a network is concave in its capacities, so the
/// mean over seeds of what can be done is not above what the mean rate does; a single run can be a little luckier.
///
/// What it leaves out makes it no less a bound: the time of services and ways, attempt timeouts, queues that are
/// too short, the cost of refusals, restarts of clients.
///
/// ```
/// use relent_sim::{Scenario, bound};
///
/// // Half of the time of its callers nothing is served.
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
/// In words: the kind of scenario that no bound is known for.
pub fn bound(scenario: &Scenario, seed: u64) -> Result<f64, &'static str> {
    let service = &scenario.service;
    match service.model {
        Model::Queue => {}
        Model::Row => return Err("a row that all write has no bound that is worked out here"),
        Model::Job { .. } => return Err("a job is done when it is done: there is no capacity"),
        Model::Medium { .. } => return Err("a medium has no bound that is worked out here"),
    }
    if matches!(scenario.clients.arrivals, Arrivals::Closed { .. }) {
        return Err("what clients that wait for their answers ask depends on the answers");
    }
    let Some(requests) = requests(scenario, seed) else {
        return Err("requests of several classes have no bound that is worked out here");
    };
    let rates = Rates::of(scenario);
    let workers = f64::from(service.nodes) * f64::from(service.workers);
    let limiter = service
        .limiter
        .map_or(0.0, |limiter| f64::from(limiter.burst));
    // So many services more than the rate gives may have begun.
    let ahead = (workers * begun(service.time)).max(limiter) - 1.0;
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
    // What may have run is not repeated: one service for each.
    let kept = 1.0 - scenario.network.loss;
    let once = match scenario.clients.repeatable {
        true => 1.0,
        false => (1.0 - service.failures) * kept * kept,
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

/// How many services more than its rate gives a worker has begun, on average, at most. Those of a mean m that have begun in
/// a time t are no more than t/m + E(S²)/m² (Lorden, "On Excess over the Boundary", 1970), which of lognormal times grows
/// fast with their sigma. Those with a memory or none, such as constant and exponential ones, are no more than t/m + 1.
fn begun(time: ServiceTime) -> f64 {
    match time {
        ServiceTime::Constant | ServiceTime::Exponential => 1.0,
        ServiceTime::Lognormal(sigma) => libm::exp(sigma * sigma),
    }
}

/// How many services succeed per second, by time.
struct Rates {
    /// From then on, this many per nanosecond, and so many until then.
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

    /// What could have been done until then.
    fn work(&self, at: u64) -> f64 {
        let index = self.pieces.partition_point(|(from, ..)| *from <= at);
        let (from, rate, work) = self.pieces[index.saturating_sub(1)];
        work + rate * (at - from) as f64
    }

    /// When so much could have been done.
    fn when(&self, work: f64) -> u64 {
        let index = self.pieces.partition_point(|(.., before)| *before <= work);
        let (from, rate, before) = self.pieces[index.saturating_sub(1)];
        match rate > 0.0 {
            true => from.saturating_add(((work - before).max(0.0) / rate) as u64),
            false => from,
        }
    }

    /// The first time from then on at which services begin.
    fn open(&self, at: u64) -> Option<u64> {
        let index = self.pieces.partition_point(|(from, ..)| *from <= at);
        let mut from_here = self.pieces.iter().skip(index.saturating_sub(1));
        let (from, ..) = from_here.find(|(_, rate, _)| *rate > 0.0)?;
        Some(at.max(*from))
    }
}

/// Services that succeed per second, of all nodes, while these outages last.
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
                    // They take no service.
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
    fn what_is_asked_beyond_the_capacity_cannot_be_done() {
        let overload = "clients.arrivals.poisson = { rate = 200, for = \"100s\" }
             clients.deadline = \"5s\"
             service.capacity = 100";
        // 100 seconds and those of the last deadline.
        let most = of(overload, 1..9);
        assert!((most - 105.0 / 200.0).abs() < 0.01, "{most}");
        let failing = format!("{overload}\nservice.failures = 0.5");
        let most = of(&failing, 1..9);
        assert!((most - 52.5 / 200.0).abs() < 0.01, "{most}");
    }

    /// In its 60 s 500 of 800 per second are served. Those of the 8,000 of its last 10 s that are left wait for
    /// less than their deadline, and so does whoever comes behind them until the spare 200 per second have made up
    /// for it: 48,000 - 30,000 - 8,000 of 240,000 are lost.
    #[test]
    fn the_bound_of_a_brownout_is_what_can_be_worked_out_by_hand() {
        let brownout = crate::scenarios::get("brownout").unwrap().load().unwrap();
        let most = bound(&brownout, 1).unwrap();
        assert!((most - (1.0 - 10.0 / 240.0)).abs() < 0.003, "{most}");
    }

    #[test]
    fn a_request_that_must_not_run_twice_has_one_service() {
        let text = "clients.arrivals.herd = { clients = 10 }
             clients.repeatable = false
             service.failures = 0.25";
        assert_eq!(of(text, 1..2), 0.75);
    }

    #[test]
    fn what_has_no_bound_says_so() {
        for text in [
            "clients.arrivals.closed = { clients = 3, think = \"1s\", for = \"9s\" }",
            "clients.arrivals.herd = { clients = 3 }\nservice.model = \"row\"",
            "clients.arrivals.herd = { clients = 3 }\nclients.classes = [{ name = \"a\", share = 1 }]",
        ] {
            assert!(bound(&Scenario::parse(text).unwrap(), 1).is_err(), "{text}");
        }
    }

    /// Most services are much shorter than the mean, so that in a short time far more get done than the mean rate says.
    #[test]
    fn services_of_which_few_take_most_of_the_time_get_more_done_than_their_mean_says() {
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

    /// No policy gets more done, in scenarios that nobody has thought of.
    #[test]
    fn no_policy_does_more_than_the_bound() {
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
