//! What HTTP means for a retry.
//!
//! Pure functions over the types of [`http`]: [`classify`] turns a response into a
//! [`Failure`](relent_core::Failure) or finds that it is none, [`hint`] reads what the server said
//! about time, [`Outcome`] is whether the request took effect, and [`RequestFacts`] tells whether a request may run
//! twice. None of them reads a clock.
//!
//! # Across layers
//! A client can tell the server which attempt a request is, how much time is left, and how many
//! attempts its calls take ([`CallerFacts`] reads it); a service can [`Mark`] its response, so that nobody
//! above retries what was given up below. All of it is in `docs/headers.md`.
//!
//! # What a server says
//! What is read here can be written, too: [`set_hint`] and [`retry_after`], [`rate_limit`],
//! [`Mark::set`], `problem`, and for gRPC [`grpc::set_pushback`] and `grpc::Status`. No time is written
//! shorter than it was meant. [`ErrorResponse`] is all of it for a request that a
//! [`relent_core::Intake`] has not let in, or whose own call to another service was given up.
//!
//! # Features
//! - `grpc`: the parts of the module [`grpc`] that read protobuf and look at bodies.
//! - `tower`: [`RetryLayer`], which retries the calls of any service of HTTP requests: hyper-util's
//!   client, a tonic channel, a stack of middleware; the module [`body`] for bodies that can be sent again;
//!   and the module `network` for the errors of hyper.
//! - `rustls`: the module `network` knows the errors of rustls, such as a rejected certificate.
//! - `attempt`: the module `attempt`, what an attempt over HTTP is made of, for a transport of your own.
//!   The layer stands on it, and so do the client, the downloads and the middleware of `relent-reqwest`.
//! - `tracing`: a span for each attempt, by OpenTelemetry's semantic
//!   conventions for HTTP, and the [events](https://docs.rs/relent/latest/relent/observe) of waits
//!   and give-ups.
//! - `metrics`: the counters of `relent`, with a name for the destination if it is given one.
//! - `problem`: the module `problem`, problem details (RFC 9457), and those of an [`ErrorResponse`].
//! - `webhook`: the module `webhook`, signatures of webhooks by the specification Standard Webhooks.
//!
//! Comments cite a "design rule" or a requirement such as "R4.7": both are in `docs/rules.md` of the
//! repository, with reasons, sources and tests.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "attempt")]
pub mod attempt;
#[cfg(feature = "attempt")]
pub mod body;
mod caller;
mod classify;
#[cfg(feature = "attempt")]
mod complete;
#[cfg(feature = "attempt")]
mod cross_layer;
#[cfg(feature = "attempt")]
mod deadline;
#[cfg(feature = "attempt")]
mod destinations;
#[cfg(feature = "attempt")]
mod drain;
#[cfg(feature = "attempt")]
mod drained;
mod error_response;
pub mod field;
pub mod grpc;
pub mod headers;
mod hint;
pub mod histogram;
mod http_date;
mod idempotency_key;
#[cfg(feature = "tower")]
pub mod layer;
mod mark;
#[cfg(feature = "attempt")]
pub mod network;
#[cfg(feature = "attempt")]
mod observe;
#[cfg(feature = "attempt")]
mod on_attempt;
mod outcome;
#[cfg(feature = "problem")]
pub mod problem;
pub mod rate_limit;
mod repeatable;
#[cfg(feature = "attempt")]
mod replaced_policy;
#[cfg(feature = "attempt")]
mod replay;
pub mod retry_after;
#[cfg(feature = "attempt")]
mod secret;
mod server_clock;
mod status;
#[cfg(feature = "attempt")]
mod unchanged;
#[cfg(feature = "webhook")]
pub mod webhook;

pub use caller::CallerFacts;
pub use classify::{classify, classify_listed};
pub use error_response::ErrorResponse;
pub use hint::{HintOptions, hint, set_hint};
pub use idempotency_key::{IdempotencyKey, InvalidKey, KeyForm};
#[cfg(all(feature = "tower", feature = "grpc"))]
pub use layer::GrpcLayer;
#[cfg(feature = "tower")]
pub use layer::{Override, RetryLayer, ServiceError};
pub use mark::Mark;
#[cfg(feature = "attempt")]
pub use mark::mark_response;
pub use outcome::Outcome;
pub use repeatable::RequestFacts;
#[cfg(feature = "attempt")]
pub use replay::BoxError;
