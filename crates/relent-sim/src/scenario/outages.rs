//! Outages of a service: effects and times.

use serde::Deserialize;

use super::words::{nanos, some_nanos};

/// A fault of the service, of some of its nodes, or for some of its requests. Outages may overlap: their effects add
/// up.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outage {
    /// Its start.
    #[serde(deserialize_with = "nanos")]
    pub at: u64,
    /// Its duration.
    #[serde(rename = "for", deserialize_with = "nanos")]
    pub lasts: u64,
    /// Its effect.
    pub effect: Effect,
    /// The time from one start to the next, if it happens more than once.
    #[serde(default, deserialize_with = "some_nanos")]
    pub every: Option<u64>,
    /// The number of times that it happens.
    #[serde(default = "once")]
    pub times: u32,
    /// The nodes that it affects, from 0; all if empty.
    #[serde(default)]
    pub nodes: Vec<u16>,
    /// Whether it affects one node after the other, as a deployment does: the first time node 0, the next time node
    /// 1.
    #[serde(default)]
    pub rolling: bool,
    /// The names of the classes of requests that it affects; all if empty.
    #[serde(default)]
    pub classes: Vec<String>,
}

/// The effect of an outage.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// Every attempt is rejected immediately, at no cost.
    Blackout,
    /// Attempts are queued, beyond any bound of the queue, but no service begins.
    Stall,
    /// Services that begin take longer: this share of the capacity is left.
    Brownout(f64),
    /// Like a blackout, and attempts that are queued when it begins fail.
    Restart,
    /// The probability of an error after the service, in addition to that of the service.
    Failures(f64),
    /// The probability that an attempt or the response to one is lost: its caller gets no response.
    Loss(f64),
    /// Attempts that fail fast, in addition to those of the service.
    #[serde(rename = "fast_failures")]
    FastFailures(FastFailures),
}

/// Which attempts fail fast: before they are queued, independently of load.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "a probability, { every = 2 } or { every_first = 5 }"
)]
pub enum FastFailures {
    /// Any, with this probability.
    Share(f64),
    /// One attempt in this many that reach a node.
    Every {
        /// The number of attempts.
        every: u32,
    },
    /// One first attempt in this many that reach a node.
    EveryFirst {
        /// The number of first attempts.
        every_first: u32,
    },
}

impl FastFailures {
    /// The share of the first attempts that fail.
    pub(crate) fn share(self) -> f64 {
        match self {
            Self::Share(share) => share,
            Self::Every { every: of } | Self::EveryFirst { every_first: of } => 1.0 / f64::from(of),
        }
    }
}

/// One occurrence of an outage.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Span {
    /// Its start.
    pub at: u64,
    /// Its end.
    pub end: u64,
    /// The number of the outage in [`Scenario::outages`](super::Scenario::outages).
    pub outage: usize,
    /// The only node that it affects, for a rolling outage.
    pub node: Option<u16>,
}

const fn once() -> u32 {
    1
}

impl Outage {
    /// The occurrences of the outage with number `index`, at a service with this many nodes.
    pub(super) fn spans(&self, index: usize, nodes: u16) -> impl Iterator<Item = Span> + '_ {
        let every = self.every.unwrap_or(0);
        (0..u64::from(self.times)).map(move |time| {
            let at = self.at + time * every;
            Span {
                at,
                end: at + self.lasts,
                outage: index,
                // The remainder fits into 16 bits.
                node: self.rolling.then_some((time % u64::from(nodes)) as u16),
            }
        })
    }

    /// The end of its last occurrence.
    pub(super) fn end(&self) -> u64 {
        let before = u64::from(self.times.saturating_sub(1)) * self.every.unwrap_or(0);
        self.at + before + self.lasts
    }

    /// Whether it affects the whole service.
    #[must_use]
    pub const fn is_total(&self) -> bool {
        self.nodes.is_empty() && self.classes.is_empty() && !self.rolling
    }
}
