//! Simulates many clients that share a retry policy, in virtual time, with the same decision code that runs in
//! production.
//!
//! This is a discrete-event simulator. Its clients are real [`Call`](relent_core::call::Call)s at real
//! [`Destination`](relent_core::destination::Destination)s: retries, retry budget, cooldown, circuit breaker, rate limit, throttle
//! and hedges are decided there and nowhere else. Time is in integer nanoseconds, every random stream is seeded, and a
//! run is the same on every machine.
//!
//! - [`Scenario`]: clients, a network and a service, as data; [`scenarios`] has the built-in ones.
//! - [`run`]: one policy, one seed; [`Metrics`]: its measurements.
//! - [`record`]: the same run with its counts over time, as a [`Recording`].
//! - [`trace`]: the times of the attempts of each client.
//! - [`requests`], [`Serving`] and [`Observed`]: the parts of a run for a load test on another medium, such as
//!   sockets: the requests, the service driven by an external clock, and the measurements.
//! - [`study`]: several policies and seeds on all cores; [`ranking`]: the best policies, and those that are worse than
//!   no retries.
//! - [`bound`]: an upper bound of the goodput of any policy.
//! - [`advise`]: a policy for a described service.
//! - [`grid`]: one scenario at every combination of values.
//! - [`generate`]: random scenarios; [`evaluate`]: whether a policy is worse than no retries in them.
//! - `report`, with the feature of that name: charts of the results, as a page or as a picture.
//!
//! # What is modelled, and what is not
//! Services begin in the order of arrival. An outage affects services that begin during it, not those already running.
//! A caller goes away at its deadline. The queue of its destination knows that time, as if the caller had set a
//! deadline; a policy without a deadline of its own plans its delays without it. So the limits of a circuit breaker for
//! calls without a deadline never apply. An attempt whose caller has gone, or that a hedge has overtaken, is still
//! served, unless the service cancels. All attempts count for the amplification, including hedges. A rejection costs
//! time only while all workers are busy. Stations on a shared medium are a separate model, in slots. The rejections of
//! a load shedder have no Retry-After. Connections, and effects of the size of a message, are not modelled.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod advise;
mod arrivals;
mod bound;
mod call_times;
mod class;
mod client;
mod cluster;
mod destinations;
pub mod evaluate;
mod event_log;
pub mod generate;
pub mod grid;
mod latency;
mod limiter_response;
pub mod measure;
mod metrics;
mod network;
mod observed;
mod population;
mod queue;
mod random_stream;
pub mod ranking;
mod recorder;
mod recording;
#[cfg(feature = "report")]
pub mod report;
mod retry_after;
mod run;
mod scenario;
pub mod scenarios;
mod series;
mod server;
mod serving;
mod shared_medium;
mod slab;
pub mod study;
mod too_many_events;
mod world;

pub use arrivals::{Request, requests};
pub use bound::{bound, mean_bound};
pub use event_log::Row;
pub use metrics::{ClassCount, Layer, Metrics, Times};
pub use observed::{Observed, RequestOutcome};
pub use random_stream::Stream;
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
pub use too_many_events::TooManyEvents;
