//! Server-side idempotency, rate limiting and load shedding as tower layers.
//!
//! A client that gets no response does not know whether its request took effect. It can retry safely only if the
//! server drops duplicates. [`idempotency`] does that for any tower service: a request with an `Idempotency-Key` runs
//! once, and its duplicates get the first response.
//!
//! ```
//! use axum::{Router, routing::post};
//! use relent_server::idempotency::IdempotencyLayer;
//! use relent_server::store::Memory;
//!
//! async fn pay() -> &'static str {
//!     "paid"
//! }
//!
//! let layer = IdempotencyLayer::new(Memory::new(), |request| {
//!     // The authentication layer stores the account in the extensions.
//!     request.extensions.get::<u64>().map(u64::to_string)
//! });
//! let app: Router = Router::new().route("/payments", post(pay)).layer(layer);
//! ```
//!
//! [`admission`] limits rates and gives each rejected caller its own `Retry-After`. [`overload`] admits only as many
//! requests as the service can serve in time, and rejects the others immediately. [`ServerLayer`] combines
//! [`overload`] and [`idempotency`] in the right order, optionally inside a rate limiter.
//!
//! # Features
//! - `axum`: layers inside axum's `nest` read the URI that the client sent. Without it they need an
//!   [operation](idempotency#in-a-nested-router).
//! - `grpc`: gRPC clients get a gRPC status, with pushback and `RetryInfo`.
//! - `metrics`, `tracing`: metrics and events of the layers ([`observe`]).
//! - `sqlite`: the store `Sqlite`, and the module `sqlite` with its writer thread.
//! - `postgres`: the store `Postgres`, and the module `postgres` with its connection pools.
//! - `sqlx`: `postgres`, and its store over a `PgPool` of sqlx 0.8.
//! - `redis`: the store `Redis`.
//! - `webhook`: the module `webhook`, for messages that are repeated until they are acknowledged.
//!
//! The features `sqlite` and `postgres` also enable `transactional` (transactional idempotency): the effects of a
//! handler and its response are written in one transaction.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod admission;
mod fair_shares;
pub mod idempotency;
mod layer;
pub mod observe;
mod on_store_failure;
pub mod overload;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod precondition;
mod quota_refund;
mod refusal;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod server_clock;
#[cfg(all(test, unix, any(feature = "postgres", feature = "redis")))]
mod servers;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod store;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod transactional;
#[cfg(feature = "webhook")]
pub mod webhook;

/// Compiles the examples of the page.
#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../docs/idempotency.md")]
struct Page;

pub use layer::ServerLayer;
pub use refusal::Body;
