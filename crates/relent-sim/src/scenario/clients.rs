//! The clients, and the times of their requests.

use serde::Deserialize;

use super::service::ServiceTime;
use super::words::{SECOND, five_minutes, nanos, some_nanos};

/// The clients. Times are in nanoseconds, here and below.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clients {
    /// The times of the requests.
    pub arrivals: Arrivals,
    /// Client processes, each with its own budget.
    #[serde(default = "twenty")]
    pub processes: u32,
    /// The time given to one attempt.
    #[serde(default = "second", deserialize_with = "nanos")]
    pub attempt_timeout: u64,
    /// The caller of a request goes away after this time.
    #[serde(default = "five_minutes", deserialize_with = "nanos")]
    pub deadline: u64,
    /// The clock of each process is off by up to this, in either direction.
    #[serde(default, deserialize_with = "nanos")]
    pub clock_skew: u64,
    /// The scope of a budget, a cooldown and a circuit breaker within a process.
    #[serde(default)]
    pub destination: DestinationOf,
    /// Whether a request may safely run twice.
    #[serde(default = "yes")]
    pub repeatable: bool,
    /// Requests in addition to those of `arrivals`.
    #[serde(default)]
    pub backlog: Option<RequestBacklog>,
    /// Classes of requests; empty if all are alike.
    #[serde(default)]
    pub classes: Vec<Class>,
    /// Restarts of processes.
    #[serde(default)]
    pub restarts: Vec<Restart>,
}

/// The unit that a client treats as one destination: it shares a budget, a cooldown and a circuit breaker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DestinationOf {
    /// All nodes together, as behind a load balancer with one address.
    #[default]
    Service,
    /// Each node. The balancer chooses it once per request, for all its attempts.
    Node,
}

/// A class of requests.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// Its name in outages and results.
    pub name: String,
    /// Its share of the requests, relative to the other classes.
    pub share: f64,
    /// The mean duration of its services, as a multiple of nodes · workers / capacity.
    #[serde(default = "unit")]
    pub cost: f64,
    /// The distribution of its service times; default: that of the service.
    #[serde(default)]
    pub time: Option<ServiceTime>,
    /// The time after which its callers go away; default: that of all clients.
    #[serde(default, deserialize_with = "some_nanos")]
    pub deadline: Option<u64>,
    /// The time given to one of its attempts; default: that of all clients.
    #[serde(default, deserialize_with = "some_nanos")]
    pub attempt_timeout: Option<u64>,
}

/// A restart of client processes. Their open requests end without a response, and their learned state is lost. They
/// make new requests immediately.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restart {
    /// The time of the first restarts.
    #[serde(deserialize_with = "nanos")]
    pub at: u64,
    /// The others follow within this time, in up to a hundred steps; 0 for a simultaneous restart.
    #[serde(default, deserialize_with = "nanos")]
    pub over: u64,
    /// The numbers of the processes to restart, in this order, from 0; all if empty.
    #[serde(default)]
    pub processes: Vec<u32>,
}

/// A request rate at a point in time.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// The time, in nanoseconds.
    #[serde(deserialize_with = "nanos")]
    pub at: u64,
    /// Requests per second.
    pub rate: f64,
}

/// Additional requests, such as those that an outage has held back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestBacklog {
    /// The number of requests.
    pub requests: u32,
    /// The earliest time of a request.
    #[serde(default, deserialize_with = "nanos")]
    pub at: u64,
    /// They come at random times within this period; 0 for all simultaneously.
    #[serde(default, deserialize_with = "nanos")]
    pub over: u64,
}

/// The times of requests.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Arrivals {
    /// Independent requests at random.
    Poisson {
        /// Requests per second.
        rate: f64,
        /// The duration of the arrivals.
        #[serde(rename = "for", deserialize_with = "nanos")]
        lasts: u64,
    },
    /// A thundering herd: all clients simultaneously.
    Herd {
        /// The number of clients, with one request each.
        clients: u32,
    },
    /// Closed-loop clients, which wait for the end of one request before they make the next.
    Closed {
        /// The number of clients.
        clients: u32,
        /// The time from the end of a request to the next; exponential with this mean.
        #[serde(deserialize_with = "nanos")]
        think: u64,
        /// The duration in which requests are made, in nanoseconds.
        #[serde(rename = "for", deserialize_with = "nanos")]
        lasts: u64,
    },
    /// Independent requests at random in bursts, with fewer or none in between.
    Bursts {
        /// Requests per second within a burst.
        rate: f64,
        /// The duration of a burst. The first begins at 0.
        #[serde(deserialize_with = "nanos")]
        on: u64,
        /// The pause after a burst.
        #[serde(deserialize_with = "nanos")]
        off: u64,
        /// Requests per second in the pause.
        #[serde(default)]
        idle: f64,
        /// The duration of the whole pattern.
        #[serde(rename = "for", deserialize_with = "nanos")]
        lasts: u64,
    },
    /// Independent requests at random, at a rate that is linear between points.
    Curve {
        /// The points, in order, the first at 0; two at the same time are a step. The rate is constant after the
        /// last.
        points: Vec<Rate>,
        /// The duration in which requests are made, in nanoseconds.
        #[serde(rename = "for", deserialize_with = "nanos")]
        lasts: u64,
    },
    /// Independent requests at random, at a rate that oscillates like that of a day: rate · (1 + swing · sin(2π ·
    /// time / period)).
    Wave {
        /// The mean rate, in requests per second.
        rate: f64,
        /// The amplitude as a share of the mean, up to 1.
        swing: f64,
        /// The time from peak to peak.
        #[serde(deserialize_with = "nanos")]
        period: u64,
        /// The duration in which requests are made, in nanoseconds.
        #[serde(rename = "for", deserialize_with = "nanos")]
        lasts: u64,
    },
    /// Stations that have the next frame to send as soon as one is sent or given up; only for
    /// [`Model::Medium`](super::Model::Medium).
    Saturated {
        /// The number of stations.
        clients: u32,
        /// The duration in which frames are sent.
        #[serde(rename = "for", deserialize_with = "nanos")]
        lasts: u64,
    },
}

impl Arrivals {
    /// Prolongs the arrivals by this factor; a herd arrives once.
    pub(crate) fn prolong(&mut self, times: u32) {
        match self {
            Self::Poisson { lasts, .. }
            | Self::Closed { lasts, .. }
            | Self::Bursts { lasts, .. }
            | Self::Curve { lasts, .. }
            | Self::Wave { lasts, .. }
            | Self::Saturated { lasts, .. } => *lasts = lasts.saturating_mul(u64::from(times)),
            Self::Herd { .. } => {}
        }
    }
}

impl Clients {
    /// The mean cost of a request.
    pub(crate) fn mean_cost(&self) -> f64 {
        let shares: f64 = self.classes.iter().map(|class| class.share).sum();
        let costs = self.classes.iter().map(|class| class.share * class.cost);
        match self.classes.is_empty() {
            true => 1.0,
            false => costs.sum::<f64>() / shares,
        }
    }
}

const fn unit() -> f64 {
    1.0
}
const fn twenty() -> u32 {
    20
}
const fn second() -> u64 {
    SECOND
}
const fn yes() -> bool {
    true
}
