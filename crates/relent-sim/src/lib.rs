//! What a crowd does with a retry policy.
//!
//! A policy is a promise about a crowd. This crate keeps it to that promise before production does:
//! a discrete-event simulator in virtual time whose clients are the very [`Call`](relent_core::Call)s
//! that run in production, at the very [`Destination`](relent_core::Destination): retries, budget,
//! cooldown, gate, request rate, throttle and hedges are decided there and nowhere else.
//! Time is in integer nanoseconds, every stream is seeded, and a run is the same on every machine.
//!
//! - [`Scenario`]: a crowd, a network and a service, as data; [`scenarios`] are those that come along.
//! - [`run`]: one policy, one seed; [`Metrics`]: what was measured.
//! - [`record`]: the same run, with what happened when: [`Recording`].
//! - [`trace`]: when each client made its attempts.
//! - [`requests`], [`Serving`] and [`Observed`]: the parts of a run for a load test that has a medium
//!   of its own, such as sockets: who asks when, the service by a clock from outside, and the numbers.
//! - [`study`]: several policies and seeds on all cores; [`ranking`]: which is best, and which does harm.
//! - [`bound`]: what could have been done at all.
//! - [`advise`]: a policy for a service that is described.
//! - [`grid`]: one scenario at every combination of values.
//! - [`generate`]: random scenarios; [`judge`]: whether a policy does harm in them.
//! - `report`, with the feature of that name: charts of all that, as a page or as a picture.
//!
//! # What is modelled, and what is not
//! Services begin in the order of arrival; an outage changes those that begin, not those that run.
//! A caller goes away at its deadline, of which a policy without one of its own knows nothing. An
//! attempt whose caller has gone away is served all the same, unless the service cancels; so is one that
//! a hedge has overtaken. All attempts count for the amplification, hedges too. Refusing
//! costs time only while all workers are busy. Stations on a shared medium are a model of their own,
//! in slots. Not modelled: connections, and what depends on the size of a message.
//!
//! Comments cite a "design rule" or a requirement such as "R4.7": both are in `docs/rules.md` of the
//! repository, with reasons, sources and tests.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod advise;
mod arrivals;
mod bound;
mod call_times;
mod class;
mod client;
mod cluster;
mod destinations;
pub mod generate;
pub mod grid;
pub mod judge;
mod latency;
mod limiter;
pub mod measure;
mod medium;
mod metrics;
mod network;
mod observed;
mod population;
mod queue;
pub mod ranking;
mod recorder;
mod recording;
#[cfg(feature = "report")]
pub mod report;
mod run;
mod scenario;
pub mod scenarios;
mod series;
mod server;
mod serving;
mod slab;
mod stream;
pub mod study;
mod tape;
mod too_many_events;
mod wait_header;
mod world;

pub use arrivals::{Request, requests};
pub use bound::{bound, mean_bound};
pub use metrics::{ClassCount, Layer, Metrics, Times};
pub use observed::{Observed, RequestOutcome};
pub use recording::Recording;
pub use run::{record, run, trace};
pub use scenario::{
    Arrivals, Balancer, Chain, Class, Clients, DestinationOf, Effect, FailuresAs, FastFailures,
    Hears, Link, MediumAccess, Model, Outage, QueueBound, Rate, RequestBacklog, Restart, Scenario,
    ScenarioError, Service, ServiceLimiter, ServiceRetryAfter, ServiceShedder, ServiceTime, Span,
    WaitFormat,
};
pub use series::{Bin, Series};
pub use serving::{ArrivingAttempt, ServiceAnswer, Serving, Wait};
pub use stream::Stream;
pub use tape::Row;
pub use too_many_events::TooManyEvents;
