//! Scenarios: clients, a network and a service, as data.

mod check;
mod clients;
mod error;
mod outages;
mod service;
pub(crate) mod words;

use serde::Deserialize;

pub use clients::{Arrivals, Class, Clients, DestinationOf, Rate, RequestBacklog, Restart};
pub use error::ScenarioError;
pub use outages::{Effect, FastFailures, Outage, Span};
pub use service::{
    Balancer, FailuresAs, MediumAccess, Model, QueueBound, Service, ServiceLimiter,
    ServiceRetryAfter, ServiceShedder, ServiceTime, WaitFormat,
};
pub(crate) use words::SECOND;
use words::nanos;

/// The number of consecutive good seconds that count as recovered.
pub(crate) const RECOVERY_SECONDS: u64 = 10;

/// Clients, a network and a service.
///
#[doc = include_str!("../scenarios/FORMAT.md")]
///
/// ```
/// use relent_sim::Scenario;
///
/// let scenario = Scenario::parse(r#"
///     clients.arrivals.poisson = { rate = 50, for = "20s" }
///     service.capacity = 60
/// "#)?;
/// assert_eq!(scenario.service.capacity, 60.0);
/// let error = Scenario::parse("clients.arivals = 3").unwrap_err().to_string();
/// assert!(error.contains("line 1"), "{error}");
/// # Ok::<(), relent_sim::ScenarioError>(())
/// ```
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// A description in one sentence.
    #[serde(default)]
    pub description: String,
    /// The clients.
    pub clients: Clients,
    /// The network between clients and service.
    #[serde(default)]
    pub network: Link,
    /// The service.
    #[serde(default)]
    pub service: Service,
    /// The faults of the service.
    #[serde(default)]
    pub outages: Vec<Outage>,
    /// The layers between the clients and the service.
    #[serde(default)]
    pub chain: Chain,
}

/// The network between clients and service.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The time that one way takes, in nanoseconds.
    #[serde(default = "half_a_millisecond", deserialize_with = "nanos")]
    pub one_way: u64,
    /// Its standard deviation, in nanoseconds: each way takes |N(`one_way`, `deviation`)|.
    #[serde(default, deserialize_with = "nanos")]
    pub deviation: u64,
    /// The probability that a message is lost, on each way. A lost request is never executed, a lost response belongs
    /// to a request that may be; either way the attempt runs into its timeout.
    #[serde(default)]
    pub loss: f64,
}

/// Layers that each retry.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Chain {
    /// How many layers retry; 1 for clients that call the service directly.
    pub layers: u8,
    /// Whether a layer that has given up marks its response, so that the layer above does not retry.
    pub mark: bool,
    /// Whether cancellation or the deadline of the caller reaches a layer.
    pub hears: Hears,
}

/// The information that a layer gets about its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hears {
    /// Nothing: the layer works for callers that have gone, up to a deadline of its own.
    #[default]
    Nothing,
    /// Cancellation: when the caller has gone or given up the attempt, its connection is closed, and the handler is
    /// dropped with its calls below, as servers in Rust do.
    Cancellation,
    /// Also the time left: the caller's deadline travels with each attempt.
    Deadline,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            one_way: half_a_millisecond(),
            deviation: 0,
            loss: 0.0,
        }
    }
}

impl Default for Chain {
    fn default() -> Self {
        Self {
            layers: 1,
            mark: false,
            hears: Hears::Nothing,
        }
    }
}

const fn half_a_millisecond() -> u64 {
    500_000
}
impl Scenario {
    /// The JSON Schema of a scenario, for editors.
    pub const SCHEMA: &str = include_str!("scenario/schema.json");

    /// Reads a scenario.
    ///
    /// # Errors
    /// A text that is not TOML, unknown or missing keys, invalid values; with the line.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self =
            toml::from_str(text).map_err(|error| ScenarioError::toml(text, &error))?;
        scenario
            .check()
            .map_err(|(key, accepted)| ScenarioError::value(text, key, accepted))?;
        Ok(scenario)
    }

    /// Reads a scenario and changes it: each change is a key with its path, as in `service.failures`, and its value
    /// in TOML or as a plain word.
    ///
    /// ```
    /// use relent_sim::Scenario;
    ///
    /// let text = "clients.arrivals.herd = { clients = 10 }";
    /// let changed = Scenario::parse_with(text, &[("network.one_way", "20ms")])?;
    /// assert_eq!(changed.network.one_way, 20_000_000);
    /// # Ok::<(), relent_sim::ScenarioError>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Scenario::parse`], for the text and for the result of all changes.
    pub fn parse_with(text: &str, changes: &[(&str, &str)]) -> Result<Self, ScenarioError> {
        let mut scenario = Self::parse(text)?;
        let mut table: toml::Table =
            toml::from_str(text).map_err(|error| ScenarioError::toml(text, &error))?;
        // Changes may be valid only together. If the end result is invalid, the error names the first change since it
        // was last valid.
        let mut to_blame = None;
        for (key, value) in changes {
            let error = |message: &str| ScenarioError::change(&format!("{key}={value}"), message);
            words::change(&mut table, key, value).map_err(|message| error(&message))?;
            let changed: Result<Self, _> = table.clone().try_into();
            scenario = changed.map_err(|unread| error(unread.message()))?;
            to_blame = match (scenario.check(), to_blame) {
                (Ok(()), _) => None,
                (Err((key, accepted)), None) => Some(error(&format!("{key}: {accepted}"))),
                (Err(_), earlier) => earlier,
            };
        }
        to_blame.map_or(Ok(scenario), Err)
    }

    /// Sets a value in a table from which a scenario will be made.
    pub(crate) fn set(
        table: &mut toml::Table,
        key: &str,
        value: toml::Value,
    ) -> Result<(), String> {
        words::set(table, key, value)
    }

    /// Makes a scenario from a table; an error contains this name.
    pub(crate) fn of_table(table: toml::Table, name: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = table
            .try_into()
            .map_err(|unread| ScenarioError::change(name, unread.message()))?;
        scenario.check().map_err(|(key, accepted)| {
            ScenarioError::change(name, &format!("{key}: {accepted}"))
        })?;
        Ok(scenario)
    }

    /// The time of the last request, at most, in nanoseconds; 0 for a herd.
    #[must_use]
    pub const fn arrivals_end(&self) -> u64 {
        match self.clients.arrivals {
            Arrivals::Poisson { lasts, .. }
            | Arrivals::Closed { lasts, .. }
            | Arrivals::Bursts { lasts, .. }
            | Arrivals::Curve { lasts, .. }
            | Arrivals::Wave { lasts, .. }
            | Arrivals::Saturated { lasts, .. } => lasts,
            Arrivals::Herd { .. } => 0,
        }
    }

    /// The capacity per second: attempts, or frames of a medium.
    #[must_use]
    pub fn capacity(&self) -> f64 {
        match self.service.model {
            Model::Medium { rate, frame, .. } => rate / f64::from(frame),
            _ => self.service.capacity / self.clients.mean_cost(),
        }
    }
}

impl Scenario {
    /// The share of the attempts that succeed in normal operation.
    pub(crate) fn baseline_share(&self) -> f64 {
        let arrives = 1.0 - self.network.loss;
        let fails_not = 1.0 - self.service.fast_failures.share();
        fails_not * (1.0 - self.service.failures) * arrives * arrives
    }

    /// The longest duration of a prompt request, in nanoseconds: a second, or the time of 99.9 % of the attempts in
    /// normal operation with an empty queue, if that is longer.
    #[must_use]
    pub fn prompt(&self) -> u64 {
        let service = &self.service;
        if !matches!(service.model, Model::Queue) {
            return SECOND;
        }
        let mean = f64::from(service.nodes) * f64::from(service.workers) / service.capacity;
        let classes = &self.clients.classes;
        let kinds = classes
            .iter()
            .map(|class| class.cost * class.time.unwrap_or(service.time).slowest());
        let slowest = match classes.is_empty() {
            true => service.time.slowest(),
            false => kinds.fold(0.0, f64::max),
        };
        let ways = 2 * self.network.one_way + 6 * self.network.deviation;
        let usual = (mean * slowest * SECOND as f64) as u64;
        SECOND.max(usual.saturating_add(ways))
    }
}

impl Scenario {
    /// Every period in which an outage affects the service.
    pub fn spans(&self) -> impl Iterator<Item = Span> + '_ {
        let outages = self.outages.iter().enumerate();
        outages.flat_map(|(index, outage)| outage.spans(index, self.service.nodes))
    }

    /// The end of the last outage, in nanoseconds; `None` without one.
    #[must_use]
    pub fn outages_end(&self) -> Option<u64> {
        self.outages.iter().map(Outage::end).max()
    }

    /// The time from which the service can recover: the end of the last outage, if requests are made in at least the
    /// ten whole seconds after it that a [recovery](crate::Metrics::ttr_s) takes to be seen.
    #[must_use]
    pub fn recovery_begins(&self) -> Option<u64> {
        let seen = |end: u64| end.div_ceil(SECOND) + RECOVERY_SECONDS;
        self.outages_end()
            .filter(|end| seen(*end) <= self.arrivals_end() / SECOND)
    }
}

#[cfg(test)]
mod tests;
