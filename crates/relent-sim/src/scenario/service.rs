//! The service, and its responses.

use std::time::Duration;

use relent_core::admission::ShedderConfig;
use relent_core::{Cause, Failure, Network, Scope};
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::outages::FastFailures;
use super::words::{SECOND, five_minutes, nanos, parse, some_nanos};

/// The service.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Service {
    /// How it processes an admitted attempt.
    pub model: Model,
    /// Services per second, of all nodes and workers together.
    pub capacity: f64,
    /// Nodes, each with its own workers and queue.
    pub nodes: u16,
    /// How a node is chosen for an attempt.
    pub balancer: Balancer,
    /// Whether a client process keeps its first node.
    pub sticky: bool,
    /// Attempts that each node serves concurrently.
    pub workers: u32,
    /// The distribution of service times; their mean is nodes · workers / capacity.
    pub time: ServiceTime,
    /// The queue length at which a node rejects; `None` for no limit.
    #[serde(deserialize_with = "queue_bound")]
    pub queue: Option<QueueBound>,
    /// Whether queued attempts of clients that went away are dropped unserved.
    pub cancellation: bool,
    /// The cost of a rejection, as a share of one service; paid while all workers are busy.
    pub reject_cost: f64,
    /// The probability of an error that does not depend on load. The attempt was served, but had no effect.
    pub failures: f64,
    /// Which attempts fail fast: before they are queued, independently of load.
    pub fast_failures: FastFailures,
    /// The HTTP status of its errors and rejections.
    pub status: u16,
    /// The form in which a caller sees its errors and rejections.
    pub failures_as: FailuresAs,
    /// The Retry-After of rejections in an outage or by a full queue, for all callers; `None` for no Retry-After.
    #[serde(deserialize_with = "some_nanos")]
    pub retry_after: Option<u64>,
    /// A rate limiter in front.
    pub limiter: Option<ServiceLimiter>,
    /// A load shedder behind the limiter.
    pub shedder: Option<ServiceShedder>,
}

/// How a service processes an attempt.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Model {
    /// Serves it after those before it.
    Queue,
    /// Lets it read a row and write it back unless another client has written in between: the model of "Exponential
    /// Backoff And Jitter" (AWS Architecture Blog, 2015).
    Row,
    /// Reports whether the request's job is completed, which takes a lognormal time from the request on.
    Job {
        /// The median duration of a job.
        #[serde(deserialize_with = "nanos")]
        median: u64,
        /// The standard deviation of the logarithm.
        sigma: f64,
    },
    /// Lets one station send at a time, on a shared cable: "Ethernet: Distributed Packet Switching for Local Computer
    /// Networks" (Metcalfe and Boggs, 1976).
    Medium {
        /// The time in which every station detects another: the cost of a collision.
        #[serde(deserialize_with = "nanos")]
        slot: u64,
        /// Bits per second.
        rate: f64,
        /// Bits of a frame.
        frame: u32,
        /// The time that the medium is busy in addition to an arriving frame: headers, acknowledgements.
        #[serde(default, deserialize_with = "nanos")]
        overhead: u64,
        /// The duration of a collision; the slot if absent.
        #[serde(default, deserialize_with = "some_nanos")]
        collision: Option<u64>,
        /// When a station sends.
        #[serde(default)]
        access: MediumAccess,
    },
}

/// The form in which a caller sees an error or a rejection.
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

/// How a node is chosen for an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balancer {
    /// Round robin.
    #[default]
    RoundRobin,
    /// A random node.
    Random,
    /// The node with the fewest queued and running attempts; among several the next in turn. A node that rejects
    /// immediately has the fewest.
    LeastOutstanding,
}

/// The queue length at which a node rejects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueBound {
    /// As many attempts as take this time on average, at the present capacity.
    Time(u64),
    /// This many attempts.
    Attempts(u32),
}

/// When a station with a frame sends it, while no other station sends.
#[derive(Clone, Copy, PartialEq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MediumAccess {
    /// Immediately, and after a collision when the policy decides.
    #[default]
    Policy,
    /// With probability 1/stations in each slot: the optimum for stations that do not know of each other's frames.
    Share,
    /// Like stations of a wireless network (IEEE 802.11 DCF). A new frame waits for a random number of idle slots
    /// below this window, and after a collision for as many as fit into the policy's delay. The count stops while any
    /// station sends.
    Window(u32),
}

/// The distribution of service times.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceTime {
    /// Exponentially distributed.
    Exponential,
    /// All equal.
    Constant,
    /// Lognormal with this standard deviation of the logarithm.
    Lognormal(f64),
}

/// A rate limiter that responds with 429: [`relent_core::admission::Limiter`]. Each request is a separate caller.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceLimiter {
    /// Attempts per second.
    pub rate: f64,
    /// Attempts in a burst after a pause.
    #[serde(default = "one")]
    pub burst: u32,
    /// The Retry-After of its rejections.
    #[serde(default, deserialize_with = "retry_after")]
    pub retry_after: ServiceRetryAfter,
    /// The format of the Retry-After.
    #[serde(default)]
    pub format: WaitFormat,
    /// How far ahead slots are reserved.
    #[serde(default = "five_minutes", deserialize_with = "nanos")]
    pub horizon: u64,
    /// How long after its slot a caller is still admitted.
    #[serde(default = "three_seconds", deserialize_with = "nanos")]
    pub grace: u64,
}

/// A load shedder that rejects attempts when they arrive faster than they are served: [`relent_core::admission::Shedder`].
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceShedder {
    /// The queue delay up to which nothing is shed.
    #[serde(default = "twenty_milliseconds", deserialize_with = "nanos")]
    pub target: u64,
    /// How long the delay must stay above the target.
    #[serde(default = "tenth_of_a_second", deserialize_with = "nanos")]
    pub interval: u64,
    /// The most attempts that are queued or running; `None` for no bound.
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

/// The format of a Retry-After in a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WaitFormat {
    /// As a delay in milliseconds.
    #[default]
    Milliseconds,
    /// As a delay in whole seconds, rounded up.
    Seconds,
    /// As a date, in a response that also has a `Date`.
    Date,
    /// As a date, in a response without a `Date`.
    LoneDate,
}

/// The Retry-After of a limiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ServiceRetryAfter {
    /// None.
    #[default]
    Nothing,
    /// The same for all callers.
    Shared(u64),
    /// A slot reserved for this caller, in milliseconds; beyond the horizon the time until there may be one.
    Slots,
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

impl Service {
    /// The failure that a caller sees in an error or a rejection without Retry-After.
    pub(crate) fn failure(&self) -> Failure {
        match self.failures_as {
            FailuresAs::Status => failure_of_status(self.status),
            FailuresAs::Reset => Failure::network(Network::Reset),
            FailuresAs::Refused => Failure::network(Network::Connect),
        }
    }

    /// The failure that a caller sees in a rejection with a Retry-After, without its hint.
    pub(crate) fn failure_with_retry_after(&self) -> Failure {
        let cause = Cause::Status(self.status);
        match self.status {
            408 | 503 => Failure::not_processed().cause(cause),
            413 => Failure::not_processed().cause(cause).scope(Scope::Request),
            _ => failure_of_status(self.status),
        }
    }
}

/// The kind and the scope of a status of 400 or above without a hint, as HTTP clients of Relent see them.
fn failure_of_status(status: u16) -> Failure {
    let failure = match status {
        421 | 425 => Failure::not_processed(),
        429 => Failure::throttled(),
        408 => Failure::ambiguous(),
        400..=499 | 501 | 505 | 511 => Failure::permanent(),
        _ => Failure::ambiguous(),
    };
    let scope = match status {
        408 | 429 => Scope::Destination,
        400..=499 => Scope::Request,
        _ => Scope::Destination,
    };
    failure.cause(Cause::Status(status)).scope(scope)
}

impl ServiceTime {
    /// The 99.9th percentile, as a multiple of the mean.
    pub(super) fn slowest(self) -> f64 {
        // The quantile of the standard normal distribution.
        const Z: f64 = 3.090;
        match self {
            Self::Constant => 1.0,
            Self::Exponential => libm::log(1000.0),
            Self::Lognormal(sigma) => libm::exp(Z * sigma - sigma * sigma / 2.0),
        }
    }
}

/// Reads "unbounded" as `None`, otherwise the time or the number of attempts that a queue may hold.
fn queue_bound<'de, D: Deserializer<'de>>(from: D) -> Result<Option<QueueBound>, D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "a queue is \"unbounded\" or holds a time or a number of attempts"
    )]
    enum WriteOutcome {
        Attempts(u32),
        Word(String),
    }
    match WriteOutcome::deserialize(from)? {
        WriteOutcome::Attempts(attempts) => Ok(Some(QueueBound::Attempts(attempts))),
        WriteOutcome::Word(word) if word == "unbounded" => Ok(None),
        WriteOutcome::Word(time) => match parse(&time) {
            Ok(time) => Ok(Some(QueueBound::Time(time))),
            Err(error) => Err(D::Error::custom(format!(
                "a queue is \"unbounded\" or holds a time or a number of attempts: {error}"
            ))),
        },
    }
}

/// Reads the Retry-After setting of a limiter.
fn retry_after<'de, D: Deserializer<'de>>(from: D) -> Result<ServiceRetryAfter, D::Error> {
    let text = String::deserialize(from)?;
    match text.as_str() {
        "none" => Ok(ServiceRetryAfter::Nothing),
        "slots" => Ok(ServiceRetryAfter::Slots),
        time => parse(time).map(ServiceRetryAfter::Shared).map_err(|error| {
            D::Error::custom(format!(
                "the retry_after of a limiter is \"none\", \"slots\" or one time for all: {error}"
            ))
        }),
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
const fn one() -> u32 {
    1
}
