//! Who calls, and when.

use serde::Deserialize;

use super::SECOND;
use super::words::nanos;

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
    /// Whether a request may run twice without harm.
    #[serde(default = "yes")]
    pub repeatable: bool,
    /// Requests that come beside those of `arrivals`.
    #[serde(default)]
    pub backlog: Option<Backlog>,
}

/// Requests that come beside the others, such as those that an outage has held back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Backlog {
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
    /// Independent requests at random for a while, none for a while, and so on.
    Bursts {
        /// Requests per second while they come.
        rate: f64,
        /// How long a burst lasts. The first begins at once.
        #[serde(deserialize_with = "nanos")]
        on: u64,
        /// The pause after a burst.
        #[serde(deserialize_with = "nanos")]
        off: u64,
        /// How long there are bursts.
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

const fn twenty() -> u32 {
    20
}
const fn second() -> u64 {
    SECOND
}
pub(super) const fn five_minutes() -> u64 {
    300 * SECOND
}
const fn yes() -> bool {
    true
}
