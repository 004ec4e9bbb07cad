//! Retry semantics of HTTP and gRPC: which requests may be repeated, which responses are failures, and what
//! `Retry-After` and similar headers ask for.
//!
//! Pure functions over the types of [`http`]. [`classify`] turns a failed response into a
//! [`Failure`](relent_core::Failure). [`hint`] reads the delay or retry advice of the server. [`Outcome`] states
//! whether the request took effect, and [`RequestInfo`] whether it may run twice. None of them reads a clock.
//!
//! # Across layers
//! A client can send the attempt number, the time left, and how many attempts its calls take; [`CallerContext`] reads
//! them. A service can [`Mark`] its response, so that no layer above retries a call that was given up below. All
//! headers are described in `docs/headers.md`.
//!
//! # Writing responses
//! A server can write all of these headers: [`set_hint`] and [`retry_after`], [`rate_limit`], [`Mark::set`],
//! `problem`, and for gRPC [`grpc::set_pushback`] and `grpc::Status`. Times are rounded up, never down.
//! [`ErrorResponse`] combines them for a request that a [`relent_core::admission::AdmissionController`] has rejected, or whose own call to
//! another service was given up.
//!
//! # Features
//! - `grpc`: the parts of the module [`grpc`] that read protobuf and message bodies.
//! - `tower`: [`RetryLayer`], which retries the calls of any tower service of HTTP requests (hyper-util's client, a
//!   tonic channel, a stack of middleware); the module [`body`] for bodies that can be sent again; and the module
//!   `network` for the errors of hyper.
//! - `rustls`: the module `network` recognises errors of rustls, such as a rejected certificate.
//! - `attempt`: the module `attempt`, the parts of one HTTP attempt, for a transport of your own. The layer uses it,
//!   and so do the client, the downloads and the middleware of `relent-reqwest`.
//! - `tracing`: a span for each attempt, by OpenTelemetry's semantic
//!   conventions for HTTP, and the [events](https://docs.rs/relent/latest/relent/observe) of waits
//!   and give-ups.
//! - `metrics`: the counters of `relent`, labelled with the destination if it has a name.
//! - `problem`: the module `problem`, problem details (RFC 9457), and those of an [`ErrorResponse`].
//! - `webhook`: the module `webhook`, webhook signatures by the Standard Webhooks specification.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "attempt")]
pub mod attempt;
#[cfg(feature = "attempt")]
pub mod body;
mod caller_headers;
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
mod drained_body;
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
#[cfg(feature = "attempt")]
pub mod network;
mod no_retry_mark;
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
mod unchanged_file;
#[cfg(feature = "webhook")]
pub mod webhook;

pub use caller_headers::CallerContext;
pub use classify::{classify, classify_listed};
pub use error_response::ErrorResponse;
pub use hint::{HintOptions, hint, set_hint};
pub use idempotency_key::{IdempotencyKey, InvalidKey, KeyForm};
#[cfg(all(feature = "tower", feature = "grpc"))]
pub use layer::GrpcLayer;
#[cfg(feature = "tower")]
pub use layer::{Override, RetryLayer, ServiceError};
pub use no_retry_mark::Mark;
#[cfg(feature = "attempt")]
pub use no_retry_mark::mark_response;
pub use outcome::Outcome;
pub use repeatable::RequestInfo;
#[cfg(feature = "attempt")]
pub use replay::BoxError;
