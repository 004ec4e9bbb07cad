//! Derives a retry policy from the description of a service, with a reason for each value.
//!
//! ```
//! use relent_sim::advise::{Description, Latency};
//!
//! let text = r#"
//!     rate = 80
//!     capacity = 100
//!     processes = 4
//!     deadline = "10s"
//!     repeatable = true
//!     latency = { p50 = "20ms", p99 = "200ms" }
//! "#;
//! let service = Description::parse(text)?;
//! let latency = service.latency().expect("it is described");
//! let advice = relent_sim::advise::advise(&service, &latency);
//! assert!(advice.policy.contains("deadline = \"10s\""));
//! assert!(advice.fault_scenarios.iter().any(|trouble| trouble.name == "blackout"));
//! # Ok::<(), relent_sim::ScenarioError>(())
//! ```

mod description;
mod fault_scenarios;
mod histogram;
mod latency;
mod policy;

pub use description::{Description, FailureDescription};
pub use fault_scenarios::FaultScenario;
pub use histogram::{HistogramOptions, TimeUnit, histogram};
pub use latency::{Latency, Quantiles};

use description::Size;

/// A simulated service whose requests take this many times as long as described is another service.
const MAX_SLOWNESS: f64 = 1.5;

/// The format of a description, with every key and its default (Markdown).
pub const FORMAT: &str = include_str!("advise/SERVICE.md");

/// A policy for a service, and the scenarios to test it in.
#[derive(Clone, PartialEq, Debug)]
pub struct PolicyAdvice {
    /// A policy file: TOML, with the reason of each value in its comments.
    pub policy: String,
    /// The same policy with hedging, if the latency has a tail that hedges might cut. Simulate both to see which is
    /// better.
    pub hedged: Option<String>,
    /// Scenario files in which to compare the policies.
    pub fault_scenarios: Vec<FaultScenario>,
    /// Warnings about the description, as sentences.
    pub description_warnings: Vec<String>,
}

/// Derives a policy by rules; nothing is simulated.
#[must_use]
pub fn advise(service: &Description, latency: &Latency) -> PolicyAdvice {
    let size = service.size(latency);
    let hedges = policy::Hedges::of(service, latency, size);
    let (policy, timeout) = policy::write(service, latency, size, &hedges.without());
    PolicyAdvice {
        policy,
        hedged: hedges
            .may_help()
            .then(|| policy::write(service, latency, size, &hedges).0),
        fault_scenarios: fault_scenarios::of(service, latency, size, timeout),
        description_warnings: description_warnings(service, latency, size),
    }
}

fn description_warnings(service: &Description, latency: &Latency, size: Size) -> Vec<String> {
    let mut description_warnings = Vec::new();
    if service.rate > 0.95 * size.capacity {
        description_warnings.push(format!(
            "{} of {} requests per second: there is no headroom for retries, and a backlog never clears; no \
             policy replaces capacity",
            policy::figure(service.rate),
            policy::figure(size.capacity)
        ));
    }
    if size.slowness > MAX_SLOWNESS {
        description_warnings.push(format!(
            "a request takes {} on average, so a node with this capacity processes less than one request at a time; \
             a simulated request takes {}, so the comparison is of another service",
            policy::time(latency.mean()),
            policy::time(latency.mean() * size.slowness)
        ));
    }
    let p999 = latency.quantile(0.999);
    if p999 > service.deadline as f64 {
        description_warnings.push(format!(
            "one request in a thousand takes {} in normal operation, longer than its caller waits",
            policy::time(p999)
        ));
    }
    if service.failure.share / (1.0 - service.failure.share) * service.rate + service.rate
        > size.capacity
    {
        description_warnings.push(
            "the retries that would hide the failures need more than the capacity".to_owned(),
        );
    }
    let hint = service.failure.retry_after;
    if hint.is_some_and(|hint| hint > service.deadline) {
        description_warnings.push(
            "Retry-After is longer than the deadline: calls stop with `retry_later` and the server's instant"
                .to_owned(),
        );
    }
    description_warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker of a node does 200 requests of 5 ms per second, and 50 are described.
    #[test]
    fn a_capacity_below_one_request_at_a_time_is_warned_of() {
        let warns = |service: &str| {
            let text = format!(
                "rate = 20\nprocesses = 4\ndeadline = \"10s\"\nrepeatable = true\n{service}\n\
                 latency = {{ p50 = \"5ms\", p99 = \"10ms\" }}"
            );
            let service = Description::parse(&text).unwrap();
            let warnings = advise(&service, &service.latency().unwrap()).description_warnings;
            warnings
                .join("\n")
                .contains("less than one request at a time")
        };
        assert!(warns("capacity = 50"));
        assert!(warns("capacity = 800\nnodes = 20"));
        assert!(!warns("capacity = 800"));
        assert!(!warns("capacity = 190"));
        assert!(!warns("concurrency = 1"));
        assert!(warns("concurrency = 1\nnodes = 20"));
    }
}
