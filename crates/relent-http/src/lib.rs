//! What HTTP means for a retry.
//!
//! Pure functions over the types of [`http`]: [`classify`] turns a response into a
//! [`Failure`](relent_core::Failure) or finds that it is none, [`hint`] reads what the server said
//! about time, and [`RequestFacts`] tells whether a request may run twice. None of them reads a
//! clock.
//!
//! # Across layers
//! A client can tell the server which attempt a request is, how much time is left, and how many
//! attempts its calls take ([`Caller`] reads it); a service can [`Mark`] its response, so that nobody
//! above retries what was given up below. All of it is in `docs/headers.md`.
//!
//! # Features
//! - `grpc`: the parts of the module [`grpc`] that read protobuf and look at bodies.
//! - `tower`: [`RetryLayer`], which retries the calls of any service of HTTP requests: hyper-util's
//!   client, a tonic channel, a stack of middleware; [`Replay`], for bodies that can be sent again;
//!   and the module `network` for the errors of hyper.
//! - `rustls`: the module `network` knows the errors of rustls, such as a rejected certificate.
//! - `reqwest`: the module `client`, a client that retries, hedges and resumes; the module `network`, which
//!   classifies the errors of reqwest; and the module `dns`, a resolver whose errors can be told
//!   apart.
//! - `middleware`: the same for a stack of reqwest-middleware.
//! - `tracing`: a span for each attempt of the client and the layer, by OpenTelemetry's semantic
//!   conventions for HTTP, and the [events](https://docs.rs/relent/latest/relent/observe) of waits
//!   and give-ups.
//! - `metrics`: the counters of `relent`, with a name for the destination if it is given one.
//! - `json`, `form`, `multipart`, `query`: what reqwest's features of the same names add to a request.
//!
//! Coming from another library: `fetch_retry` has every option side by side.
//!
//! Comments cite a "design rule" or a requirement such as "R4.7": both are in `docs/rules.md` of the
//! repository, with reasons, sources and tests.

mod caller;
mod classify;
#[cfg(feature = "reqwest")]
pub mod client;
#[cfg(any(feature = "reqwest", feature = "tower"))]
mod complete;
#[cfg(any(feature = "reqwest", feature = "tower"))]
mod cross_layer;
#[cfg(any(feature = "reqwest", feature = "tower"))]
mod deadline;
#[cfg(any(feature = "reqwest", feature = "tower"))]
mod destinations;
#[cfg(feature = "reqwest")]
pub mod dns;
#[cfg(any(feature = "reqwest", feature = "tower"))]
mod drain;
#[cfg(any(feature = "reqwest", feature = "tower"))]
mod drained;
#[cfg(feature = "reqwest")]
#[doc = include_str!("../docs/fetch_retry.md")]
pub mod fetch_retry {}
mod field;
pub mod grpc;
pub mod headers;
mod hint;
pub mod histogram;
mod http_date;
mod idempotency_key;
#[cfg(feature = "tower")]
mod layer;
mod mark;
#[cfg(any(feature = "reqwest", feature = "tower"))]
pub mod network;
#[cfg(any(feature = "reqwest", feature = "tower"))]
mod observe;
mod rate_limit;
mod repeatable;
#[cfg(any(feature = "reqwest", feature = "tower"))]
mod replay;
pub mod retry_after;
#[cfg(any(feature = "reqwest", all(feature = "tower", feature = "tracing")))]
mod secret;
mod server_clock;
#[cfg(any(feature = "reqwest", feature = "tower"))]
mod unchanged;

pub use caller::Caller;
pub use classify::{classify, classify_listed};
#[cfg(feature = "middleware")]
pub use client::RetryMiddleware;
#[cfg(feature = "reqwest")]
pub use client::{
    AttemptError, Body, Client, Download, Error, Failed, InvalidRoute, Last, NotResumable,
    RequestBuilder, Response, Resumable, Route, Sink, ToWriter,
};
#[cfg(any(feature = "reqwest", feature = "tower"))]
pub use complete::Truncated;
#[cfg(any(feature = "reqwest", feature = "tower"))]
pub use drained::NotKept;
pub use hint::{HintOptions, hint};
pub use idempotency_key::{IdempotencyKey, InvalidKey, KeyForm};
#[cfg(feature = "tower")]
pub use layer::{
    AnsweredBy, FreshConnection, MapBody, Override, ReadinessError, ResponseBody, ResponseFuture,
    Retry, RetryLayer, ServiceError, Unchanged,
};
#[cfg(all(feature = "tower", feature = "grpc"))]
pub use layer::{Attempts, CallFuture, GrpcLayer, GrpcRetry};
pub use mark::Mark;
#[cfg(any(feature = "reqwest", feature = "tower"))]
pub use mark::mark_response;
pub use rate_limit::XRateLimitReset;
pub use repeatable::RequestFacts;
#[cfg(any(feature = "reqwest", feature = "tower"))]
pub use replay::{
    BoxError, ByType, Content, NotReplayable, Reopen, Replay, ReplayBody, Superseded,
};
