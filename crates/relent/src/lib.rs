//! Retries calls to unreliable services with few attempts and without overloading them.
//!
//! ```
//! use relent::{Policy, retry};
//!
//! # use std::io;
//! # struct Order;
//! # async fn fetch_order() -> io::Result<Order> { Ok(Order) }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // In a function that returns `anyhow::Result` or `Result<_, Box<dyn Error>>`:
//! let order = retry(Policy::STANDARD, fetch_order).await?;
//!
//! // In one that fails with the same type as `fetch_order`, also if that is `anyhow::Error`:
//! async fn order_again() -> io::Result<Order> {
//!     retry(Policy::STANDARD, fetch_order).or_last_error().await
//! }
//! # order_again().await?;
//! # Ok(()) }
//! ```
//!
//! # Which function?
//!
//! | to | call |
//! |---|---|
//! | retry an async operation | [`retry`], or `operation.retry(&policy)` with [`RetryExt`] |
//! | send a second attempt when the first takes long | [`hedge`](policy::PolicyBuilder::hedge) in the policy |
//! | know the attempt number and the time left in it | [`retry_with`] |
//! | use captured `&mut` state in it | [`retry_mut`]; in a spawned task [`retry_on`] |
//! | retry a blocking operation | [`blocking::retry`] |
//! | poll until a job is done | [`poll_until`] |
//! | read, modify and write, and repeat all three on a conflict | [`retry_on_conflict`] |
//! | write the loop yourself | [`Ticker`], or [`Driver`](driver::Driver) with everything |
//!
//! The functions return a [`Retry`]: await it, or end the borrowing and the blocking forms with `run`. Its methods
//! set the rest: which errors ([`Retry::when`],
//! [`Retry::classify`], [`Retry::classify_by_error`]) or values ([`Retry::classify_outcome`]) are failures, a
//! callback for them ([`Retry::notify`]), the [`Destination`], cancellation ([`Retry::cancel_on`]),
//! the clock and the random source. Calling one of these functions, other than
//! [`retry_on_conflict`], declares that the operation may safely run twice. For an operation that may
//! not, use [`DriverBuilder::repeatable`](driver::DriverBuilder::repeatable).
//!
//! # Policies
//!
//! A [`Policy`] is a value: a preset, a policy built in code, or one read from TOML or JSON
//! (`NamedPolicy::load`, with the feature `toml`). Use [`Policy::STANDARD`] for clients that share
//! a destination, and [`Policy::PATIENT`] for a single caller that would rather wait than fail.
//!
//! ```
//! use std::time::Duration;
//! use relent::{Backoff, Jitter, Policy};
//!
//! static POLICY: Policy = Policy::builder(Backoff::exponential(Duration::from_millis(100)))
//!     .max_delay(Duration::from_secs(5))
//!     .jitter(Jitter::Full)
//!     .max_retries(4)
//!     .deadline(Duration::from_secs(10))
//!     .build_const();
//! ```
//!
//! # The result
//!
//! The value, or a [`GaveUp`] with the last error, the [`StopReason`], the number of attempts, the
//! elapsed time, and the time at which the server asked the client to return. With
//! [`Retry::traced`] its text has one line for each attempt. [`Retry::or_last_error`] and
//! [`Retry::or_last_error_else`] return the operation's own error instead. [`GaveUp`] has a table
//! that shows what to write for which error type.
//!
//! # Testing
//!
//! With a [`VirtualClock`] waits take no time and are recorded. [`FixedRandom`](random::FixedRandom) fixes the
//! random numbers. Under tokio's paused time no clock needs to be injected.
//!
//! # Features
//! - `tokio` (default): waits with tokio's timer. Without it, pass another runtime's timer to
//!   [`Retry::clock`] with [`SleepBy`](clock::SleepBy). The blocking forms need no runtime.
//! - `toml`: policy files and the presets by name.
//! - `serde`: [`Policy`] in your own files, and the trace as JSON.
//! - `tracing`, `metrics`: events and metrics of running sessions; see [`observe`].
//! - `js`: clock and random seeds in a browser; see below.
//!
//! # Systems
//! Linux, macOS, Windows and every other system with the standard library.
//!
//! On `wasm32-unknown-unknown` the standard library's clock panics, and there is no source of
//! randomness, so that all pages that failed together would retry together. The feature `js` takes
//! both from the browser; without it this crate does not compile. No timer is included: pass a
//! [`Sleeper`](clock::Sleeper) to [`Retry::clock`]. Tokio's clock is not available, and no thread
//! can block.
//!
//! Without an operating system and without JavaScript, use `relent-core`, which takes time and
//! randomness as arguments. It also supports processors without 64-bit atomics.
//!
//! Coming from another library? [`cenkalti`] maps every function of cenkalti/backoff.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(all(target_arch = "wasm32", target_os = "unknown", not(feature = "js")))]
compile_error!(
    "relent needs a clock and randomness, and wasm32-unknown-unknown has neither: in a browser enable \
     the feature `js` of relent; elsewhere use relent-core, which is told both"
);

mod after_attempt;
pub mod blocking;
#[doc = include_str!("../docs/cenkalti.md")]
pub mod cenkalti {}
mod borrowing;
pub mod classify;
pub mod clock;
pub mod destination;
mod destinations;
pub mod driver;
mod dyn_error;
mod future;
mod gave_up;
mod hedged;
pub mod hook;
pub mod interrupt;
mod last_error;
pub mod observe;
pub mod operation;
#[cfg(feature = "toml")]
mod policy_file;
#[cfg(feature = "toml")]
mod policy_lookup;
mod poll_until;
#[cfg(feature = "toml")]
pub mod presets;
pub mod race;
pub mod random;
mod retry;
mod retry_on_conflict;
mod state;
mod summary;
mod ticker;
pub mod timer;
#[cfg(feature = "serde")]
mod trace_json;

pub use clock::VirtualClock;
pub use destination::Destination;
pub use destinations::Destinations;
pub use gave_up::GaveUp;
pub use interrupt::Activity;
#[cfg(feature = "toml")]
pub use policy_file::NamedPolicy;
pub use poll_until::{PollOutcome, poll_until};
pub use relent_core::{Attempt, Backoff, Failure, FailureKind, Hint, Jitter, Policy, StopReason};
pub use retry::{Retry, RetryExt, retry, retry_mut, retry_on, retry_with};
pub use retry_on_conflict::{WriteOutcome, retry_on_conflict};
pub use summary::Summary;
pub use ticker::Ticker;

/// The parts of a policy, and reading policy files.
pub mod policy {
    #[cfg(feature = "toml")]
    pub use crate::policy_file::{PolicyFile, PolicyFileError, nearest};
    pub use relent_core::destination::{Charge, MAX_HEDGES};
    pub use relent_core::policy::{Finding, JitterError, PatternError, Phase, Severity, Waits};
    pub use relent_core::{
        BudgetConfig, Ceiling, CircuitBreakerConfig, DurationError, HedgeConfig, HedgeDelay,
        HintMode, Pattern, PolicyBuilder, PolicyError, RateLimitConfig, Rule, ThrottleConfig,
        format_duration, parse_duration,
    };
}

/// The parts of a [`Failure`]: its cause, its scope, and the server's hint about when to retry.
pub mod failure {
    pub use relent_core::call::Progress;
    pub use relent_core::{
        Advice, Audience, Cause, GrpcCode, GrpcCodeError, HintSource, Hop, Network, Repeatable,
        Scope,
    };
}

/// Error types other than [`GaveUp`].
pub mod error {
    pub use crate::dyn_error::DynError;
    pub use crate::gave_up::{FromNoLastError, NoLastError};
    pub use crate::last_error::LastError;
}

/// The trace: a record of every attempt.
pub mod trace {
    #[cfg(feature = "serde")]
    pub use crate::trace_json::{TraceJson, rfc3339};
    pub use relent_core::{Histogram, Trace, TraceEntry};
}

/// Types that appear in signatures and are rarely written out.
pub mod types {
    pub use crate::future::OrLastError;
    pub use crate::poll_until::ByPollOutcome;
    pub use crate::retry::DefaultClock;
    pub use crate::retry_on_conflict::ByWriteOutcome;
}
