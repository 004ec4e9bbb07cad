//! The decision logic of Relent, as plain values without I/O.
//!
//! Every decision (retry or stop, how long to wait, may this request be sent) is made by a value
//! that does no I/O, reads no clock and owns no random source. Time, randomness and outcomes are
//! arguments. The same [`Session`] therefore runs in a blocking loop, a future, a proxy and a
//! simulator of a million clients, and every test is exact. The crate is `no_std` + `alloc`, so the
//! compiler enforces this.
//!
//! ```text
//! outcome ──► Failure{kind, cause, hint} ──► Session::on_failure(policy, now, failure, random, budget)
//!                                                │
//!                                                ▼
//!                                  Retry{after} | Stop{reason, retry_at}
//! ```
//!
//! To retry an operation, use the crate `relent`, which drives these values. To write your own
//! driver, start with [`Session`].
//!
//! # Features
//! - `serde`: [`Policy`] can be read from and written to TOML, JSON and similar formats, with
//!   readable durations.
//! - `server`: the decisions of a server, in the modules [`admission`] and [`idempotency`].
//! - `critical-section`: for processors without compare-and-exchange, such as Cortex-M0.
//!
//! # Systems
//! Any system with `core` and `alloc`. The budget, cooldown, hedges and latencies of a [`destination`] use
//! 64-bit atomics. On processors without them, such as Cortex-M, `portable-atomic` provides
//! lock-based ones; elsewhere that crate is not built. A processor without compare-and-exchange
//! also needs the feature `critical-section` and an implementation of the crate of that name.
//!
//! The rules of decision, with sources and tests, are in `docs/spec/rules.md` of the repository.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]

extern crate alloc;

#[cfg(feature = "server")]
pub mod admission;
pub mod call;
pub mod destination;
mod duration;
mod failure;
mod grpc;
mod hint;
mod histogram;
#[cfg(feature = "server")]
pub mod idempotency;
mod ordered_map;
pub mod policy;
mod random;
mod repeatable;
mod server_time;
mod sync;
pub mod text;
mod time;
mod window;

#[cfg(feature = "server")]
pub use admission::Criticality;
pub use call::Attempt;
pub use call::session::Session;
pub use call::session::decision::Decision;
pub use call::stop::{Stop, StopReason};
pub use call::trace::{Trace, TraceEntry};
pub use destination::{
    BudgetConfig, CircuitBreakerConfig, HedgeConfig, HedgeDelay, RateLimitConfig, ThrottleConfig,
};
pub use duration::{DurationError, format_duration, parse_duration};
pub use failure::{Cause, Failure, FailureKind, Hop, Network, Scope};
pub use grpc::{GrpcCode, GrpcCodeError};
pub use hint::{Advice, Audience, Hint, HintMode, HintSource};
pub use histogram::{BUCKETS, Histogram};
pub use policy::backoff::Backoff;
pub use policy::ceiling::Ceiling;
pub use policy::jitter::Jitter;
pub use policy::pattern::Pattern;
pub use policy::{Policy, PolicyBuilder, PolicyError, Rule};
pub use random::{FixedRandom, Random};
pub use repeatable::Repeatable;
pub use server_time::ServerTime;
pub use time::Instant;
