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
//! - `critical-section`: for processors without compare-and-exchange, such as Cortex-M0.
//!
//! # Systems
//! Any system with `core` and `alloc`. [`Budget`], [`Cooldown`], [`Hedge`] and [`Latencies`] use
//! 64-bit atomics. On processors without them, such as Cortex-M, `portable-atomic` provides
//! lock-based ones; elsewhere that crate is not built. A processor without compare-and-exchange
//! also needs the feature `critical-section` and an implementation of the crate of that name.
//!
//! The rules of decision, with sources and tests, are in `docs/spec/rules.md` of the repository.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]

extern crate alloc;

mod backoff;
mod batch;
mod budget;
mod call;
mod ceiling;
pub mod claim;
mod cold;
mod concurrency;
mod cooldown;
mod criticality;
mod decision;
mod destination;
mod duration;
mod error;
mod failure;
mod fast_path;
#[cfg(feature = "serde")]
mod form;
mod gate;
mod grpc;
#[cfg(all(test, not(loom)))]
mod harm_tests;
mod hedge;
mod hint;
mod histogram;
mod intake;
mod jitter;
mod latencies;
mod limiter;
mod ordered_map;
mod outbound;
mod pattern;
mod policy;
mod presets;
mod progress;
mod race;
mod random;
mod repeatable;
mod request_rate;
mod server_time;
mod session;
mod shedder;
pub mod slots;
mod spread;
mod sync;
mod throttle;
mod time;
mod trace;
mod waits;
mod window;

pub use backoff::{Backoff, Phase};
pub use batch::Lanes;
pub use budget::{Budget, BudgetConfig, Charge, Lesson, Taken};
pub use call::{
    Attempt, Call, CallOptions, Entered, Environment, Leave, Next, Place, Queued, QueuedBy, Racer,
};
pub use ceiling::Ceiling;
pub use cold::Cold;
pub use cooldown::Cooldown;
pub use criticality::Criticality;
pub use decision::{Decision, Stop, StopReason};
pub use destination::{Access, Destination};
pub use duration::{DurationError, format_duration, parse_duration};
pub use error::PolicyError;
pub use failure::{Cause, Failure, Hop, Kind, Network, Scope};
pub use gate::{Caller, Claim, Ended, Gate, GateConfig, Pass};
pub use grpc::{GrpcCode, GrpcCodeError};
pub use hedge::{Hedge, HedgeConfig, HedgeDelay, MAX_HEDGES};
pub use hint::{Advice, Audience, Hint, HintMode, HintSource};
pub use histogram::{BUCKETS, Histogram};
pub use intake::{Admitted, Intake, Rejected};
pub use jitter::{Jitter, JitterError};
pub use latencies::Latencies;
pub use limiter::{KeyedLimiter, Limiter, LimiterConfig, Refusal, Verdict};
pub use outbound::{Answer, Asking, Holding, Outbound, Permit};
pub use pattern::{Pattern, PatternError};
pub use policy::{Finding, MAX_RULES, Policy, PolicyBuilder, Rule, Severity};
pub use progress::Progress;
pub use race::{Race, Raced};
pub use random::{Draw, Random};
pub use repeatable::Repeatable;
pub use request_rate::{RequestRate, RequestRateConfig};
pub use server_time::ServerTime;
pub use session::{NotASession, Session};
pub use shedder::{Arrival, Shed, Shedder, ShedderConfig};
pub use spread::Backlog;
pub use throttle::{Throttle, ThrottleConfig};
pub use time::Instant;
pub use trace::{Trace, TraceEntry};
pub use waits::Waits;
