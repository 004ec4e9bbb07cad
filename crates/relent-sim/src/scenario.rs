//! A scenario: a crowd, a network and a service, as data.

mod check;
mod clients;
mod error;
mod outages;
mod service;
pub(crate) mod words;

use serde::Deserialize;

pub use clients::{Arrivals, Class, Clients, DestinationOf, Rate, RequestBacklog, Restart};
pub use error::ScenarioError;
pub(crate) use error::nearest;
pub use outages::{Effect, FastFailures, Outage, Span};
pub use service::{
    Balancer, FailuresAs, MediumAccess, Model, QueueBound, Service, ServiceLimiter,
    ServiceRetryAfter, ServiceShedder, ServiceTime, WaitFormat,
};
pub(crate) use words::SECOND;
use words::nanos;

/// A crowd, a network and a service.
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
    /// What it shows, in a sentence.
    #[serde(default)]
    pub description: String,
    /// Who calls.
    pub clients: Clients,
    /// What is between.
    #[serde(default)]
    pub network: Link,
    /// Who is called.
    #[serde(default)]
    pub service: Service,
    /// What goes wrong with the service.
    #[serde(default)]
    pub outages: Vec<Outage>,
    /// The layers between the clients and the service.
    #[serde(default)]
    pub chain: Chain,
}

/// What is between clients and service.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The time one way takes.
    #[serde(default = "half_a_millisecond", deserialize_with = "nanos")]
    pub one_way: u64,
    /// Its standard deviation: each way takes |N(`one_way`, `deviation`)|.
    #[serde(default, deserialize_with = "nanos")]
    pub deviation: u64,
    /// The probability that a message is lost, on each way. A lost request is never executed, a
    /// lost answer is of one that may be; either way the attempt runs into its timeout.
    #[serde(default)]
    pub loss: f64,
}

/// Layers that each retry.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Chain {
    /// How many layers retry; 1 for clients that call the service directly.
    pub layers: u8,
    /// Whether a layer that has given up says so, and the one above does not retry (design rule 8).
    pub mark: bool,
    /// What a layer hears of its caller.
    pub hears: Hears,
}

/// What a layer hears of the one that has called it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hears {
    /// Nothing: it works for callers that have gone, as long as a deadline of its own lets it.
    #[default]
    Nothing,
    /// That the caller has gone, or has given the attempt up: its connection is closed, and the handler is dropped
    /// with its calls below, as servers in Rust do.
    Cancellation,
    /// How much time the caller has left as well, which travels with each attempt (design rule 8).
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
    /// Reads a scenario.
    ///
    /// # Errors
    /// A text that is not TOML, unknown or missing keys, values that are not accepted; with the line.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self =
            toml::from_str(text).map_err(|error| ScenarioError::toml(text, &error))?;
        scenario
            .check()
            .map_err(|(key, accepted)| ScenarioError::value(text, key, accepted))?;
        Ok(scenario)
    }

    /// Reads a scenario and changes it: each change is a key with its place, as in
    /// `service.failures`, and its value in TOML or as a plain word.
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
    /// Those of [`Scenario::parse`], of the text and of what the changes make of it together.
    pub fn parse_with(text: &str, changes: &[(&str, &str)]) -> Result<Self, ScenarioError> {
        let mut scenario = Self::parse(text)?;
        let mut table: toml::Table =
            toml::from_str(text).map_err(|error| ScenarioError::toml(text, &error))?;
        // Changes may make sense together that do not one by one: if they do not in the end, the first since they
        // last did is to blame.
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

    /// Sets a value in a table that a scenario is to be made of.
    pub(crate) fn set(
        table: &mut toml::Table,
        key: &str,
        value: toml::Value,
    ) -> Result<(), String> {
        words::set(table, key, value)
    }

    /// Makes a scenario of a table; an error names it so.
    pub(crate) fn of_table(table: toml::Table, name: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = table
            .try_into()
            .map_err(|unread| ScenarioError::change(name, unread.message()))?;
        scenario.check().map_err(|(key, accepted)| {
            ScenarioError::change(name, &format!("{key}: {accepted}"))
        })?;
        Ok(scenario)
    }

    /// When the last request is made, at most; 0 for a herd.
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

    /// What the service can do in a second: attempts, or frames of a medium.
    #[must_use]
    pub fn capacity(&self) -> f64 {
        match self.service.model {
            Model::Medium { rate, frame, .. } => rate / f64::from(frame),
            _ => self.service.capacity / self.clients.mean_cost(),
        }
    }
}

impl Scenario {
    /// The share of the attempts that succeed while the service is well.
    pub(crate) fn usual_share(&self) -> f64 {
        let arrives = 1.0 - self.network.loss;
        let fails_not = 1.0 - self.service.fast_failures.share();
        fails_not * (1.0 - self.service.failures) * arrives * arrives
    }

    /// Up to here a request is prompt, in nanoseconds: a second, or what 99.9 % of the attempts take while the
    /// service is well and nobody is queued, if that is longer.
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
    /// Every time that something goes wrong with the service, by outages.
    pub fn spans(&self) -> impl Iterator<Item = Span> + '_ {
        let outages = self.outages.iter().enumerate();
        outages.flat_map(|(index, outage)| outage.spans(index, self.service.nodes))
    }

    /// When the last outage is over; `None` without one.
    #[must_use]
    pub fn outages_end(&self) -> Option<u64> {
        self.outages.iter().map(Outage::end).max()
    }

    /// From then on the service can recover: the end of the last outage, if requests are made after it.
    #[must_use]
    pub fn recovery_begins(&self) -> Option<u64> {
        self.outages_end().filter(|end| *end < self.arrivals_end())
    }
}

#[cfg(test)]
mod tests;
