//! The server's part in safe retries.
//!
//! A client that got no answer does not know whether its request took effect. It can ask again without harm
//! only if the server drops duplicates. [`idempotency`] does that for any tower service: a request with an
//! `Idempotency-Key` runs once, and whoever repeats it gets the first answer.
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
//!     // Whoever has authenticated the request leaves the account in its extensions.
//!     request.extensions.get::<u64>().map(u64::to_string)
//! });
//! let app: Router = Router::new().route("/payments", post(pay)).layer(layer);
//! ```
//!
//! [`admission`] limits rates, and tells each refused caller when to come back.
//! [`overload`] lets no more requests in than the service can serve in time, and answers the others at once. A
//! [`ServerLayer`] is [`overload`] and [`idempotency`] in the right order, and around them what limits rates, if you
//! give it that.
//!
//! # Features
//! - `axum`: layers inside of axum's `nest` read the URI that the client has sent. Without it they need an
//!   [operation](idempotency#in-a-nested-router).
//! - `grpc`: gRPC clients get a gRPC status, with pushback and `RetryInfo`.
//! - `metrics`, `tracing`: what the layers do, as metrics and events ([`observe`]).
//! - `sqlite`: the store `Sqlite`, and the module `sqlite` that it writes by.
//! - `postgres`: the store `Postgres`, and the module `postgres` with its connections.
//! - `sqlx`: `postgres`, and its store over a `PgPool` of sqlx 0.8.
//! - `redis`: the store `Redis`.
//! - `webhook`: the module `webhook`, for messages that are repeated until they are acknowledged.
//!
//! With `sqlite` or `postgres` there is `exactly_once`, too: a handler whose effects and answer are
//! written in one transaction.
//!
//! Comments cite a "design rule" or a requirement such as "R4.9": both are in `docs/rules.md` of the
//! repository, with reasons, sources and tests.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod admission;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod exactly_once;
pub mod idempotency;
mod layer;
mod loan;
pub mod observe;
mod on_store_failure;
pub mod overload;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod precondition;
mod refusal;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod server_clock;
#[cfg(all(test, unix, any(feature = "postgres", feature = "redis")))]
mod servers;
mod shares;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod store;
#[cfg(feature = "webhook")]
pub mod webhook;

/// The examples of the page compile.
#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../docs/idempotency.md")]
struct Page;

pub use layer::ServerLayer;
pub use refusal::Body;
