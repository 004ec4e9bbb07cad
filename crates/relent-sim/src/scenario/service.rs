//! The service that is called, and what it answers.

use std::time::Duration;

use relent_core::ShedderConfig;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::outages::FastFailures;
use super::words::{SECOND, five_minutes, nanos, parse, some_nanos};

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

impl ServiceTime {
    /// What one service in a thousand exceeds, as a multiple of the mean.
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

/// Reads "unbounded" as nothing, or the time or the number of attempts that a queue may hold.
fn queue_bound<'de, D: Deserializer<'de>>(from: D) -> Result<Option<QueueBound>, D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "a queue is \"unbounded\" or holds a time or a number of attempts"
    )]
    enum Written {
        Attempts(u32),
        Word(String),
    }
    match Written::deserialize(from)? {
        Written::Attempts(attempts) => Ok(Some(QueueBound::Attempts(attempts))),
        Written::Word(word) if word == "unbounded" => Ok(None),
        Written::Word(time) => match parse(&time) {
            Ok(time) => Ok(Some(QueueBound::Time(time))),
            Err(error) => Err(D::Error::custom(format!(
                "a queue is \"unbounded\" or holds a time or a number of attempts: {error}"
            ))),
        },
    }
}

/// Reads what a limiter says.
fn retry_after<'de, D: Deserializer<'de>>(from: D) -> Result<ServiceRetryAfter, D::Error> {
    let text = String::deserialize(from)?;
    match text.as_str() {
        "none" => Ok(ServiceRetryAfter::Nothing),
        "slots" => Ok(ServiceRetryAfter::Slots),
        time => parse(time).map(ServiceRetryAfter::Shared).map_err(|error| {
            D::Error::custom(format!(
                "a limiter says \"none\", \"slots\" or the same time to all: {error}"
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
