//! Get an answer out of an unreliable service with few attempts, and keep the attempts from
//! becoming the next outage.
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
//! | ask until a job is done | [`poll`] |
//! | read, modify and write, again on a conflict | [`update`] |
//! | write the loop yourself | [`Ticker`], or [`Driver`](driver::Driver) with everything |
//!
//! Each gives a [`Retry`], which takes what else there is to say: which errors ([`Retry::when`],
//! [`Retry::classify`], [`Retry::marked`]) or values ([`Retry::classify_outcome`]) are failures, who
//! hears of them ([`Retry::notify`]), which [`Destination`] it goes to, what cancels it
//! ([`Retry::cancel_on`]), which clock and random source are used. Calling one of them declares that
//! the operation may run twice without harm; for what may not, [`DriverBuilder::repeatable`](driver::DriverBuilder::repeatable).
//!
//! # What to retry by
//!
//! A [`Policy`] is a value: a preset ([`Policy::STANDARD`] for clients that share a destination,
//! [`Policy::PATIENT`] for one caller that would rather wait), one that is built, or one that is
//! read from TOML or JSON (`NamedPolicy::load`, with the feature `toml`).
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
//! # What you get back
//!
//! The value, or a [`GaveUp`] with the last real error, the [`StopReason`], the number of attempts,
//! the time, and when the server said that coming back makes sense. With [`Retry::traced`] every
//! attempt is explained, in a line of its text. [`Retry::or_last_error`] and [`Retry::or_last_error_else`]
//! give the operation's own error instead, and [`GaveUp`] has a table of what to write for which error
//! type.
//!
//! # Testing
//!
//! A [`VirtualClock`] makes waits take no time and writes them down; [`Draw`](random::Draw) pins the random draws;
//! under tokio's paused time nothing need be injected.
//!
//! # Features
//! - `tokio` (default): waits by tokio's timer. Without it, pass another runtime's timer to
//!   [`Retry::clock`] with [`SleepBy`](clock::SleepBy); the blocking forms need nothing.
//! - `toml`: policy files and the presets by name.
//! - `serde`: [`Policy`] in files of your own, and the trace as JSON.
//! - `tracing`, `metrics`: what sessions tell while they run; see [`observe`].
//! - `js`: clock and random seeds in a browser; see below.
//!
//! # Systems
//! Linux, macOS, Windows and whatever else has the standard library.
//!
//! `wasm32-unknown-unknown` has neither a clock, so that the standard library's panics, nor randomness,
//! so that all pages that failed together would come back together. There the feature `js` is needed,
//! which takes both from the page; without it this crate does not compile. Nothing of the page waits:
//! pass a [`Sleeper`](clock::Sleeper) to [`Retry::clock`]. Tokio's clock is not there, and no thread can be blocked.
//!
//! Without an operating system and without JavaScript there is `relent-core`, which is told time and
//! randomness; for processors without atomics of 64 bits too.
//!
//! Coming from another library: [`cenkalti`] has every function side by side.
//!
//! Comments cite a "design rule" or a requirement such as "R4.7": both are in `docs/rules.md` of the
//! repository, with reasons, sources and tests.
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
mod poll;
#[cfg(feature = "toml")]
pub mod presets;
pub mod race;
pub mod random;
mod retry;
mod summary;
mod ticker;
pub mod timer;
#[cfg(feature = "serde")]
mod trace_json;
mod update;

pub use clock::VirtualClock;
pub use destination::Destination;
pub use destinations::Destinations;
pub use gave_up::GaveUp;
pub use interrupt::Activity;
#[cfg(feature = "toml")]
pub use policy_file::NamedPolicy;
pub use poll::{Polled, poll};
pub use relent_core::{Attempt, Backoff, Failure, Hint, Jitter, Kind, Policy, StopReason};
pub use retry::{Retry, RetryExt, retry, retry_mut, retry_on, retry_with};
pub use summary::Summary;
pub use ticker::Ticker;
pub use update::{Written, update};

/// What policies are made of, and how files of them are read.
pub mod policy {
    #[cfg(feature = "toml")]
    pub use crate::policy_file::{PolicyFile, PolicyFileError, nearest};
    pub use relent_core::{
        BudgetConfig, Ceiling, Charge, DurationError, Finding, GateConfig, HedgeConfig, HedgeDelay,
        HintMode, JitterError, MAX_HEDGES, Pattern, PatternError, Phase, PolicyBuilder,
        PolicyError, RequestRateConfig, Rule, Severity, ThrottleConfig, Waits, format_duration,
        parse_duration,
    };
}

/// What a [`Failure`] says: its cause, how far it reaches, and what the server said about time.
pub mod failure {
    pub use relent_core::{
        Advice, Audience, Cause, GrpcCode, GrpcCodeError, HintSource, Hop, Network, Progress,
        Repeatable, Scope,
    };
}

/// Errors beside [`GaveUp`].
pub mod error {
    pub use crate::dyn_error::DynError;
    pub use crate::gave_up::{FromNoLastError, NoLastError};
    pub use crate::last_error::LastError;
}

/// The account of every attempt.
pub mod trace {
    #[cfg(feature = "serde")]
    pub use crate::trace_json::{TraceJson, rfc3339};
    pub use relent_core::{Histogram, Trace, TraceEntry};
}

/// Types that appear in signatures and are seldom written.
pub mod types {
    pub use crate::future::{OrLastError, RetryFuture};
    pub use crate::poll::ByPolled;
    pub use crate::retry::DefaultClock;
    pub use crate::update::ByWritten;
}
