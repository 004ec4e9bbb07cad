//! What HTTP means for a retry.
//!
//! Pure functions over the types of [`http`]: [`classify`] turns a response into a
//! [`Failure`](relent_core::Failure) or finds that it is none, [`hint`] reads what the server said
//! about time, and [`RequestFacts`] tells whether a request may run twice. None of them reads a
//! clock.
//!
//! # Features
//! - `grpc`: the parts of the module [`grpc`] that read protobuf and look at bodies.
//! - `reqwest`: the module `client`, a client that retries and resumes; the module `network`, which
//!   classifies the errors of reqwest; and the module `dns`, a resolver whose errors can be told
//!   apart.
//! - `json`, `form`, `query`: what reqwest's features of the same names add to a request.
//!
//! Coming from another library: `fetch_retry` has every option side by side.

mod classify;
#[cfg(feature = "reqwest")]
pub mod client;
#[cfg(feature = "reqwest")]
pub mod dns;
#[cfg(feature = "reqwest")]
#[doc = include_str!("../docs/fetch_retry.md")]
pub mod fetch_retry {}
mod field;
pub mod grpc;
pub mod headers;
mod hint;
mod http_date;
mod idempotency_key;
#[cfg(feature = "reqwest")]
pub mod network;
mod rate_limit;
mod repeatable;
pub mod retry_after;
mod server_clock;

pub use classify::classify;
#[cfg(feature = "reqwest")]
pub use client::{
    AttemptError, Body, Client, Download, Error, Failed, InvalidRoute, Last, RequestBuilder,
    Response, Route, Sink,
};
pub use hint::{HintOptions, hint};
pub use idempotency_key::{IdempotencyKey, InvalidKey, KeyForm};
pub use rate_limit::XRateLimitReset;
pub use repeatable::RequestFacts;
