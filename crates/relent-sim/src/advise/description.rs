//! Descriptions of services.

use serde::Deserialize;

use super::latency::{Latency, Quantiles};
use crate::scenario::words::{nanos, some_nanos};
use crate::scenario::{SECOND, ScenarioError};

/// The most workers at a node that are simulated.
pub(super) const MAX_WORKERS_OF_A_NODE: f64 = 10_000.0;

/// The capacity of a service, and its workers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Size {
    /// Requests per second.
    pub(super) capacity: f64,
    /// Workers of each node.
    pub(super) workers: u32,
    /// The mean service time of these workers over the mean latency.
    pub(super) slowness: f64,
}

/// A service, its callers, and its failures.
///
#[doc = include_str!("SERVICE.md")]
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// The name of the service in the policy file.
    #[serde(default = "service")]
    pub name: String,
    /// Requests per second of all callers.
    pub rate: f64,
    /// Its capacity in requests per second.
    pub capacity: Option<f64>,
    /// Requests that it processes concurrently.
    pub concurrency: Option<u32>,
    /// Nodes that share the capacity.
    #[serde(default = "one")]
    pub nodes: u16,
    /// Client processes.
    pub processes: u32,
    /// The caller of a request goes away after this, in nanoseconds.
    #[serde(deserialize_with = "nanos")]
    pub deadline: u64,
    /// Whether a request may safely run twice.
    pub repeatable: bool,
    /// Its latency in normal operation.
    pub latency: Option<Quantiles>,
    /// Its failures.
    #[serde(default)]
    pub failure: FailureDescription,
}

/// How a service fails.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FailureDescription {
    /// The share of the attempts that fails independently of load.
    pub share: f64,
    /// The HTTP status of its errors and rejections.
    pub status: u16,
    /// The Retry-After of its rejections, in nanoseconds.
    #[serde(deserialize_with = "some_nanos")]
    pub retry_after: Option<u64>,
    /// The typical duration of an outage, in nanoseconds.
    #[serde(deserialize_with = "nanos")]
    pub outage: u64,
}

impl Default for FailureDescription {
    fn default() -> Self {
        Self {
            share: 0.0,
            status: 503,
            retry_after: None,
            outage: 30 * SECOND,
        }
    }
}

fn service() -> String {
    "service".to_owned()
}
const fn one() -> u16 {
    1
}

impl Description {
    /// The JSON Schema of a description, for editors.
    pub const SCHEMA: &str = include_str!("schema.json");

    /// Reads a description.
    ///
    /// # Errors
    /// A text that is not TOML, unknown or missing keys, invalid values; with the line.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let service: Self =
            toml::from_str(text).map_err(|error| ScenarioError::toml(text, &error))?;
        service
            .check()
            .map_err(|(key, accepted)| ScenarioError::value(text, key, accepted))?;
        if let Some(quantiles) = &service.latency {
            quantiles
                .latency()
                .map_err(|(key, accepted)| ScenarioError::value(text, key, accepted))?;
        }
        Ok(service)
    }

    fn check(&self) -> Result<(), (&'static str, &'static str)> {
        let positive = |rate: f64| (1e-3..=1e6).contains(&rate);
        let day = |time: u64| (1..=86_400 * SECOND).contains(&time);
        let rules = [
            (
                !self.name.is_empty() && !self.name.contains(char::is_control),
                "name",
                "a name in one line",
            ),
            (
                positive(self.rate),
                "rate",
                "a number of requests per second from 0.001 to 1000000",
            ),
            (
                self.capacity.is_some() != self.concurrency.is_some(),
                "capacity",
                "either `capacity`, in requests per second, or `concurrency`, in requests at the same time",
            ),
            (
                self.capacity.is_none_or(positive),
                "capacity",
                "a number of requests per second from 0.001 to 1000000",
            ),
            (
                self.concurrency
                    .is_none_or(|all| (1..=100_000).contains(&all)),
                "concurrency",
                "a number of requests at the same time from 1 to 100000",
            ),
            (
                (1..=1000).contains(&self.nodes),
                "nodes",
                "a number from 1 to 1000",
            ),
            (
                (1..=1_000_000).contains(&self.processes),
                "processes",
                "a number from 1 to 1000000",
            ),
            (
                (10_000_000..=86_400 * SECOND).contains(&self.deadline),
                "deadline",
                "a time from 10ms to 24h",
            ),
            (
                (0.0..=0.9).contains(&self.failure.share),
                "share",
                "a share of the attempts from 0 to 0.9",
            ),
            (
                (500..600).contains(&self.failure.status),
                "status",
                "an HTTP status from 500 to 599; other errors are not outages, and a limit that is kept by 429 is for \
                 [rate_limit] in the policy file",
            ),
            (
                self.failure.retry_after.is_none_or(day),
                "retry_after",
                "a time above 0, up to 24h",
            ),
            (
                (SECOND..=86_400 * SECOND).contains(&self.failure.outage),
                "outage",
                "a time from 1s to 24h",
            ),
        ];
        match rules.into_iter().find(|(holds, ..)| !holds) {
            Some((_, key, accepted)) => Err((key, accepted)),
            None => Ok(()),
        }
    }

    /// Its latency in normal operation, if the description has one.
    #[must_use]
    pub fn latency(&self) -> Option<Latency> {
        self.latency.as_ref()?.latency().ok()
    }

    pub(super) fn size(&self, latency: &Latency) -> Size {
        let mean = latency.mean() / SECOND as f64;
        let nodes = f64::from(self.nodes);
        let at_once = match (self.concurrency, self.capacity) {
            (Some(all), _) => f64::from(all),
            (None, capacity) => capacity.unwrap_or(self.rate) * mean,
        };
        let workers = libm::round(at_once / nodes).clamp(1.0, MAX_WORKERS_OF_A_NODE);
        let capacity = self.capacity.unwrap_or(at_once / mean);
        let capacity = capacity.clamp(1e-3, 1e6);
        Size {
            capacity,
            workers: workers as u32,
            slowness: workers * nodes / capacity / mean,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: &str = "rate = 80\ncapacity = 100\nprocesses = 4\ndeadline = \"10s\"\nrepeatable = true\n\
        [latency]\np50 = \"20ms\"\np99 = \"200ms\"\n";

    #[test]
    fn an_invalid_description_error_names_key_line_and_accepted_values() {
        for (from, to, line, part) in [
            ("rate = 80", "rate = -1", 1, "from 0.001"),
            ("rate = 80", "rate = nan", 1, "from 0.001"),
            ("rate = 80", "rates = 80", 1, "rates"),
            ("capacity = 100", "concurrency = 0", 2, "from 1 to 100000"),
            ("processes = 4", "processes = 0", 3, "from 1 to 1000000"),
            ("\"10s\"", "\"1ms\"", 4, "10ms"),
            ("\"10s\"", "10", 4, "string"),
            ("p50 = \"20ms\"", "p50 = \"300ms\"", 7, "longer than"),
            ("p50 = \"20ms\"", "p60 = \"20ms\"", 7, "p60"),
        ] {
            let error = Description::parse(&WELL.replace(from, to)).unwrap_err();
            let text = error.to_string();
            let found = error.line();
            assert!(text.contains(part), "{to}: {text}");
            // For two contradictory quantiles, the error names the later one.
            assert!(
                found == Some(line) || found == Some(line + 1),
                "{to}: {text}"
            );
        }
        let both = WELL.replace("capacity", "concurrency = 3\ncapacity");
        let error = Description::parse(&both).unwrap_err().to_string();
        assert!(error.contains("either `capacity`"), "{error}");
        assert!(
            Description::parse("")
                .unwrap_err()
                .to_string()
                .contains("rate")
        );
    }

    #[test]
    fn the_documented_description_format_can_be_parsed() {
        let toml = super::super::FORMAT.split("```toml").nth(1).unwrap();
        let toml = toml.split("```").next().unwrap();
        let service = Description::parse(toml).unwrap();
        assert_eq!((service.rate, service.processes), (800.0, 20));
    }

    #[test]
    fn capacity_and_concurrency_are_equivalent_by_littles_law() {
        let by_capacity = Description::parse(WELL).unwrap();
        let latency = by_capacity.latency().unwrap();
        let size = by_capacity.size(&latency);
        let at_once = WELL.replace("capacity = 100", "concurrency = 4");
        let other = Description::parse(&at_once).unwrap().size(&latency);
        assert_eq!(size.workers, 3, "100 per second of {} ns", latency.mean());
        assert!((other.capacity - 4.0 / (latency.mean() / 1e9)).abs() < 1e-9);
    }
}
