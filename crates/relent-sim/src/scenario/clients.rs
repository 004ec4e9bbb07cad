//! Who calls, and when.

use serde::Deserialize;

use super::service::ServiceTime;
use super::words::{SECOND, five_minutes, nanos, some_nanos};

/// Who calls. Times are in nanoseconds, here and below.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clients {
    /// When requests are made.
    pub arrivals: Arrivals,
    /// Client processes, each with a budget of its own.
    #[serde(default = "twenty")]
    pub processes: u32,
    /// The time given to one attempt.
    #[serde(default = "second", deserialize_with = "nanos")]
    pub attempt_timeout: u64,
    /// After this the caller of a request goes away.
    #[serde(default = "five_minutes", deserialize_with = "nanos")]
    pub deadline: u64,
    /// The clock of each process is wrong by up to this, either way.
    #[serde(default, deserialize_with = "nanos")]
    pub clock_skew: u64,
    /// What shares a budget, a cooldown and a gate in a process.
    #[serde(default)]
    pub destination: DestinationOf,
    /// Whether a request may run twice without harm.
    #[serde(default = "yes")]
    pub repeatable: bool,
    /// Requests that come beside those of `arrivals`.
    #[serde(default)]
    pub backlog: Option<RequestBacklog>,
    /// Kinds of requests; empty if all are alike.
    #[serde(default)]
    pub classes: Vec<Class>,
    /// When processes are restarted.
    #[serde(default)]
    pub restarts: Vec<Restart>,
}

/// What a client takes for one destination: what shares a budget, a cooldown and a gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DestinationOf {
    /// All nodes together, as behind a balancer with one address.
    #[default]
    Service,
    /// Each node. Which one is chosen for a request, with all its attempts.
    Node,
}

/// A kind of requests.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// What outages and results call it.
    pub name: String,
    /// Its share of the requests, relative to the other classes.
    pub share: f64,
    /// How long its services take on average, as a multiple of nodes · workers / capacity.
    #[serde(default = "unit")]
    pub cost: f64,
    /// How its service times vary, if not as those of the service.
    #[serde(default)]
    pub time: Option<ServiceTime>,
    /// When its callers go away, if not as others.
    #[serde(default, deserialize_with = "some_nanos")]
    pub deadline: Option<u64>,
    /// The time given to one of its attempts, if not as for others.
    #[serde(default, deserialize_with = "some_nanos")]
    pub attempt_timeout: Option<u64>,
}

/// A restart of client processes. The requests that they are making end without an answer, and what they
/// had learned of the service is lost. New requests are made at once.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restart {
    /// When the first are restarted.
    #[serde(deserialize_with = "nanos")]
    pub at: u64,
    /// Within this time the others follow, in up to a hundred steps; 0 for all at once.
    #[serde(default, deserialize_with = "nanos")]
    pub over: u64,
    /// The processes that are restarted, in this order, counted from 0; all if empty.
    #[serde(default)]
    pub processes: Vec<u32>,
}

/// A rate at a moment.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// When.
    #[serde(deserialize_with = "nanos")]
    pub at: u64,
    /// Requests per second.
    pub rate: f64,
}

/// Requests that come beside the others, such as those that an outage has held back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestBacklog {
    /// How many.
    pub requests: u32,
    /// When the first may come.
    #[serde(default, deserialize_with = "nanos")]
    pub at: u64,
    /// They come at random within this time; 0 for all at once.
    #[serde(default, deserialize_with = "nanos")]
    pub over: u64,
}

/// When requests are made.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Arrivals {
    /// Independent requests at random.
    Poisson {
        /// Requests per second.
        rate: f64,
        /// How long they come.
        #[serde(rename = "for", deserialize_with = "nanos")]
        lasts: u64,
    },
    /// Everybody at once.
    Herd {
        /// How many, with one request each.
        clients: u32,
    },
    /// Clients that wait for the end of one request before they make the next.
    Closed {
        /// How many.
        clients: u32,
        /// From the end of a request to the next; exponential with this mean.
        #[serde(deserialize_with = "nanos")]
        think: u64,
        /// How long requests are made.
        #[serde(rename = "for", deserialize_with = "nanos")]
        lasts: u64,
    },
    /// Independent requests at random for a while, fewer or none for a while, and so on.
    Bursts {
        /// Requests per second while they come.
        rate: f64,
        /// How long a burst lasts. The first begins at once.
        #[serde(deserialize_with = "nanos")]
        on: u64,
        /// The pause after a burst.
        #[serde(deserialize_with = "nanos")]
        off: u64,
        /// Requests per second in the pause.
        #[serde(default)]
        idle: f64,
        /// How long there are bursts.
        #[serde(rename = "for", deserialize_with = "nanos")]
        lasts: u64,
    },
    /// Independent requests at random, at a rate that goes from point to point in straight lines.
    Curve {
        /// The points, in order, the first at 0; two at the same time are a step. After the last the rate
        /// stays.
        points: Vec<Rate>,
        /// How long requests are made.
        #[serde(rename = "for", deserialize_with = "nanos")]
        lasts: u64,
    },
    /// Independent requests at random, at a rate that goes up and down like that of a day:
    /// rate · (1 + swing · sin(2π · time / period)).
    Wave {
        /// The mean, in requests per second.
        rate: f64,
        /// How far it goes up and down, as a share of the mean, up to 1.
        swing: f64,
        /// From peak to peak.
        #[serde(deserialize_with = "nanos")]
        period: u64,
        /// How long requests are made.
        #[serde(rename = "for", deserialize_with = "nanos")]
        lasts: u64,
    },
    /// Stations that have the next frame to send as soon as one is sent or given up; of
    /// [`Model::Medium`](super::Model::Medium) only.
    Saturated {
        /// How many.
        clients: u32,
        /// How long frames are sent.
        #[serde(rename = "for", deserialize_with = "nanos")]
        lasts: u64,
    },
}

impl Arrivals {
    /// Makes requests come so many times as long; a herd comes once.
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
