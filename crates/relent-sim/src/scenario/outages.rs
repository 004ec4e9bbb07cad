//! What goes wrong with a service, and when.

use serde::Deserialize;

use super::check::{Checked, LONGEST, ensure, time};
use super::words::{nanos, some_nanos};
use super::{Model, Scenario};

/// The most outages of a run, with every repetition.
const MOST_SPANS: u64 = 10_000;

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

    pub(super) fn check(self) -> Checked {
        let accepted = match self {
            Self::Share(share) => (0.0..=1.0).contains(&share),
            Self::Every { every: of } | Self::EveryFirst { every_first: of } => of > 0,
        };
        ensure(
            accepted,
            "fast_failures",
            "a probability from 0 to 1, or one of 1 and more",
        )
    }
}

/// One time that an outage happens.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Span {
    /// When it begins.
    pub at: u64,
    /// When it is over.
    pub end: u64,
    /// The number of the outage in [`Scenario::outages`].
    pub outage: usize,
    /// The only node that it concerns, of a rolling outage.
    pub node: Option<u16>,
}

const fn once() -> u32 {
    1
}

impl Outage {
    /// When it happens, each time. Of the number `index`, at a service of so many nodes.
    fn spans(&self, index: usize, nodes: u16) -> impl Iterator<Item = Span> + '_ {
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
    fn end(&self) -> u64 {
        let before = u64::from(self.times.saturating_sub(1)) * self.every.unwrap_or(0);
        self.at + before + self.lasts
    }

    /// Whether it concerns the whole service.
    #[must_use]
    pub const fn is_total(&self) -> bool {
        self.nodes.is_empty() && self.classes.is_empty() && !self.rolling
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

    pub(super) fn check_outages(&self) -> Checked {
        let mut spans = 0;
        for outage in &self.outages {
            ensure(outage.at <= LONGEST, "at", "a time up to 24h")?;
            time(outage.lasts, "for")?;
            self.check_effect(outage)?;
            ensure(outage.times >= 1, "times", "at least 1")?;
            ensure(
                outage.every.is_some() == (outage.times > 1),
                "times",
                "an outage that happens again needs `every` and `times`, of 2 and more",
            )?;
            if let Some(every) = outage.every {
                ensure(
                    every >= outage.lasts,
                    "every",
                    "from one beginning to the next: no shorter than `for`",
                )?;
                ensure(
                    u64::from(outage.times) <= LONGEST / every,
                    "times",
                    "no outage after 24h",
                )?;
            }
            spans += u64::from(outage.times);
            ensure(
                outage.nodes.iter().all(|node| *node < self.service.nodes),
                "nodes",
                "a list of numbers from 0, each below service.nodes",
            )?;
            ensure(
                !outage.rolling || outage.nodes.is_empty(),
                "rolling",
                "one node after the other: leave out `nodes`",
            )?;
            let known = |name: &String| {
                let mut classes = self.clients.classes.iter();
                classes.any(|class| class.name == *name)
            };
            ensure(
                outage.classes.iter().all(known),
                "classes",
                "a list of names of clients.classes",
            )?;
        }
        ensure(
            spans <= MOST_SPANS,
            "times",
            "at most 10000 outages in one run",
        )
    }

    fn check_effect(&self, outage: &Outage) -> Checked {
        const SHARE: &str = "a probability from 0 to 1";
        match outage.effect {
            Effect::Brownout(share) => ensure(
                share > 0.0 && share <= 1.0,
                "brownout",
                "the share of the capacity that is left, above 0 up to 1; for none: \"stall\"",
            ),
            Effect::Failures(share) => ensure((0.0..=1.0).contains(&share), "failures", SHARE),
            Effect::Loss(share) => ensure((0.0..=1.0).contains(&share), "loss", SHARE),
            Effect::Stall | Effect::Restart => ensure(
                outage.classes.is_empty(),
                "effect",
                "a stall or a restart concerns all classes: leave out `classes`",
            ),
            Effect::FastFailures(which) => which.check(),
            Effect::Blackout => Ok(()),
        }?;
        let needs_queue = !outage.is_total()
            || matches!(
                outage.effect,
                Effect::Restart | Effect::Failures(_) | Effect::Loss(_) | Effect::FastFailures(_)
            );
        ensure(
            self.service.model == Model::Queue || !needs_queue,
            "effect",
            "other models than \"queue\" have only a \"blackout\", a \"stall\" or a brownout, of all requests",
        )
    }
}
