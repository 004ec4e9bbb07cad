//! What goes wrong with a service, and when.

use serde::Deserialize;

use super::words::{nanos, some_nanos};

/// Something that goes wrong with the service, or with some of its nodes, or for some of its requests. Outages
/// may overlap: what they do then adds up.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outage {
    /// When it begins.
    #[serde(deserialize_with = "nanos")]
    pub at: u64,
    /// How long it lasts.
    #[serde(rename = "for", deserialize_with = "nanos")]
    pub lasts: u64,
    /// What happens.
    pub effect: Effect,
    /// From one beginning to the next, if it happens more than once.
    #[serde(default, deserialize_with = "some_nanos")]
    pub every: Option<u64>,
    /// How often it happens.
    #[serde(default = "once")]
    pub times: u32,
    /// The nodes that it concerns, counted from 0; all if empty.
    #[serde(default)]
    pub nodes: Vec<u16>,
    /// Whether it concerns one node after the other, as a deployment does: the first time node 0, the next
    /// time node 1.
    #[serde(default)]
    pub rolling: bool,
    /// The names of the classes of requests that it concerns; all if empty.
    #[serde(default)]
    pub classes: Vec<String>,
}

/// What happens in an outage.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// Every attempt is refused at once, at no cost.
    Blackout,
    /// Attempts are queued, but no service begins.
    Stall,
    /// Services that begin take longer: this share of the capacity is left.
    Brownout(f64),
    /// As a blackout, and what is queued when it begins fails.
    Restart,
    /// The probability of an error after the service, beside that of the service.
    Failures(f64),
    /// The probability that an attempt, or the answer to one, is lost: its caller hears nothing.
    Loss(f64),
    /// Attempts that fail at once, beside those of the service.
    #[serde(rename = "fast_failures")]
    FastFailures(FastFailures),
}

/// Which attempts fail at once, before they are queued, whatever the load.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "a probability, { every = 2 } or { every_first = 5 }"
)]
pub enum FastFailures {
    /// Any, with this probability.
    Share(f64),
    /// One attempt of so many that reach a node.
    Every {
        /// How many.
        every: u32,
    },
    /// One first attempt of so many that reach a node.
    EveryFirst {
        /// How many.
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

/// One time that an outage happens.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Span {
    /// When it begins.
    pub at: u64,
    /// When it is over.
    pub end: u64,
    /// The number of the outage in [`Scenario::outages`](super::Scenario::outages).
    pub outage: usize,
    /// The only node that it concerns, of a rolling outage.
    pub node: Option<u16>,
}

const fn once() -> u32 {
    1
}

impl Outage {
    /// When it happens, each time. Of the number `index`, at a service of so many nodes.
    pub(super) fn spans(&self, index: usize, nodes: u16) -> impl Iterator<Item = Span> + '_ {
        let every = self.every.unwrap_or(0);
        (0..u64::from(self.times)).map(move |time| {
            let at = self.at + time * every;
            Span {
                at,
                end: at + self.lasts,
                outage: index,
                // The remainder is below a number of 16 bits.
                node: self.rolling.then_some((time % u64::from(nodes)) as u16),
            }
        })
    }

    /// When it is over for the last time.
    pub(super) fn end(&self) -> u64 {
        let before = u64::from(self.times.saturating_sub(1)) * self.every.unwrap_or(0);
        self.at + before + self.lasts
    }

    /// Whether it concerns the whole service.
    #[must_use]
    pub const fn is_total(&self) -> bool {
        self.nodes.is_empty() && self.classes.is_empty() && !self.rolling
    }
}
