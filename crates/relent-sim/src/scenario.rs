//! A scenario: a crowd, a network and a service, as data.

mod check;
mod clients;
mod error;
mod outages;
pub(crate) mod words;

use std::time::Duration;

use relent_core::ShedderConfig;
use serde::Deserialize;

use clients::five_minutes;
pub use clients::{Arrivals, Class, Clients, DestinationOf, Rate, RequestBacklog, Restart};
pub use error::ScenarioError;
pub(crate) use error::nearest;
pub use outages::{Effect, FastFailures, Outage, Span};
use words::{nanos, queue_bound, retry_after, some_nanos};

/// Nanoseconds in a second.
pub(crate) const SECOND: u64 = 1_000_000_000;

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

/// Who is called.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Service {
    /// What it does with an attempt that gets in.
    pub model: Model,
    /// Services per second, of all nodes and workers together.
    pub capacity: f64,
    /// Nodes, each with workers and a queue of its own.
    pub nodes: u16,
    /// Which node gets an attempt.
    pub balancer: Balancer,
    /// Whether a client process keeps the node that it was given first.
    pub sticky: bool,
    /// Attempts that are served at the same time, by each node.
    pub workers: u32,
    /// How service times vary; their mean is nodes · workers / capacity.
    pub time: ServiceTime,
    /// When a node refuses; `None` for never.
    #[serde(deserialize_with = "queue_bound")]
    pub queue: Option<QueueBound>,
    /// Whether queued attempts of clients that went away are dropped unserved.
    pub cancellation: bool,
    /// What a refusal costs, as a share of one service; paid while the service is busy.
    pub reject_cost: f64,
    /// The probability of an error that does not depend on load. The attempt was served, but had no
    /// effect.
    pub failures: f64,
    /// Which attempts fail at once, before they are queued, whatever the load.
    pub fast_failures: FastFailures,
    /// The HTTP status of its errors and refusals.
    pub status: u16,
    /// What a caller sees of its errors and refusals.
    pub failures_as: FailuresAs,
    /// The time that a refusal names for everybody, in an outage or of a full queue; `None` for no time.
    #[serde(deserialize_with = "some_nanos")]
    pub retry_after: Option<u64>,
    /// A limiter in front.
    pub limiter: Option<ServiceLimiter>,
    /// A shedder behind it.
    pub shedder: Option<ServiceShedder>,
}

/// What a service does with an attempt.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Model {
    /// Serves it when those before it are served.
    Queue,
    /// Lets it read a row and write it back if nobody else has written in between: the model of
    /// "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015).
    Row,
    /// Says whether the request's job is done, which takes a lognormal time from the request on.
    Job {
        /// Half of the jobs take longer.
        #[serde(deserialize_with = "nanos")]
        median: u64,
        /// The standard deviation of the logarithm.
        sigma: f64,
    },
    /// Lets one station send at a time, on a cable that all share: "Ethernet: Distributed Packet
    /// Switching for Local Computer Networks" (Metcalfe and Boggs, 1976).
    Medium {
        /// The time in which every station has heard of another: what a collision costs.
        #[serde(deserialize_with = "nanos")]
        slot: u64,
        /// Bits per second.
        rate: f64,
        /// Bits of a frame.
        frame: u32,
        /// What the medium is taken for beside the frame by one that arrives: headers, acknowledgements.
        #[serde(default, deserialize_with = "nanos")]
        overhead: u64,
        /// What a collision takes; the slot if absent.
        #[serde(default, deserialize_with = "some_nanos")]
        collision: Option<u64>,
        /// When a station sends.
        #[serde(default)]
        access: MediumAccess,
    },
}

/// What a caller sees of an error or a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailuresAs {
    /// A response with the status of the service.
    #[default]
    Status,
    /// The connection is reset after the request was sent.
    Reset,
    /// The connection is refused.
    Refused,
}

/// Which node gets an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balancer {
    /// One after the other.
    #[default]
    RoundRobin,
    /// Any.
    Random,
    /// The one with the fewest attempts queued and served; of several the next in turn. A node that refuses
    /// at once has the fewest.
    LeastOutstanding,
}

/// How much a node queues before it refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueBound {
    /// As many attempts as take this time on average, at the capacity of the moment.
    Time(u64),
    /// So many attempts.
    Attempts(u32),
}

/// When a station with a frame sends it, while nobody else does.
#[derive(Clone, Copy, PartialEq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MediumAccess {
    /// At once, and after a collision when the policy says.
    #[default]
    Policy,
    /// With probability 1/stations in each slot: the best that stations can do which do not know of
    /// each other's frames.
    Share,
    /// As stations of a wireless network (IEEE 802.11 DCF): a new frame waits for a random number of idle
    /// slots below this window, and after a collision for as many as fit into the policy's wait. While
    /// somebody sends nobody counts on.
    Window(u32),
}

/// How service times vary.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceTime {
    /// Exponentially distributed.
    Exponential,
    /// All the same.
    Constant,
    /// Lognormal with this standard deviation of the logarithm.
    Lognormal(f64),
}

/// A limiter that answers 429: [`relent_core::Limiter`]. Each request is a caller of its own.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceLimiter {
    /// Attempts per second.
    pub rate: f64,
    /// Attempts at once after a pause.
    #[serde(default = "one")]
    pub burst: u32,
    /// What it says about time.
    #[serde(default, deserialize_with = "retry_after")]
    pub retry_after: ServiceRetryAfter,
    /// How it writes a time.
    #[serde(default)]
    pub format: WaitFormat,
    /// How far ahead slots are reserved.
    #[serde(default = "five_minutes", deserialize_with = "nanos")]
    pub horizon: u64,
    /// How long after its slot a caller is still let in.
    #[serde(default = "three_seconds", deserialize_with = "nanos")]
    pub grace: u64,
}

/// A shedder that turns attempts away when they come faster than they are served:
/// [`relent_core::Shedder`].
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceShedder {
    /// The queue delay up to which nothing is shed.
    #[serde(default = "twenty_milliseconds", deserialize_with = "nanos")]
    pub target: u64,
    /// How long it has to stay above that.
    #[serde(default = "tenth_of_a_second", deserialize_with = "nanos")]
    pub interval: u64,
    /// The most attempts that are queued or served; `None` for no bound.
    pub in_flight: Option<u32>,
}

impl From<&ServiceShedder> for ShedderConfig {
    fn from(shedder: &ServiceShedder) -> Self {
        Self {
            target: Duration::from_nanos(shedder.target),
            interval: Duration::from_nanos(shedder.interval),
            in_flight: shedder.in_flight.unwrap_or(u32::MAX),
            ..Self::DEFAULT
        }
    }
}

/// How an answer writes the time to wait (R1.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WaitFormat {
    /// As a delay in milliseconds.
    #[default]
    Milliseconds,
    /// As a delay in whole seconds, rounded up.
    Seconds,
    /// As a date, in an answer that has a `Date` too.
    Date,
    /// As a date, in an answer without a `Date`.
    LoneDate,
}

/// What a limiter says about time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ServiceRetryAfter {
    /// Nothing.
    #[default]
    Nothing,
    /// The same to everybody.
    Shared(u64),
    /// A slot reserved for this caller (a ticket, in milliseconds); beyond the horizon the time
    /// until there may be one.
    Slots,
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

impl Default for Service {
    fn default() -> Self {
        Self {
            model: Model::Queue,
            capacity: 1000.0,
            nodes: 1,
            balancer: Balancer::RoundRobin,
            sticky: false,
            workers: 1,
            time: ServiceTime::Exponential,
            queue: None,
            cancellation: false,
            reject_cost: 0.0,
            failures: 0.0,
            fast_failures: FastFailures::Share(0.0),
            status: 503,
            failures_as: FailuresAs::Status,
            retry_after: None,
            limiter: None,
            shedder: None,
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

const fn three_seconds() -> u64 {
    3 * SECOND
}
const fn twenty_milliseconds() -> u64 {
    SECOND / 50
}
const fn tenth_of_a_second() -> u64 {
    SECOND / 10
}
const fn half_a_millisecond() -> u64 {
    500_000
}
const fn one() -> u32 {
    1
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

impl ServiceTime {
    /// What one service in a thousand exceeds, as a multiple of the mean.
    fn slowest(self) -> f64 {
        // The quantile of the standard normal distribution.
        const Z: f64 = 3.090;
        match self {
            Self::Constant => 1.0,
            Self::Exponential => libm::log(1000.0),
            Self::Lognormal(sigma) => libm::exp(Z * sigma - sigma * sigma / 2.0),
        }
    }
}

#[cfg(test)]
mod tests;
