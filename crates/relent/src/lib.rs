//! Relent: get an answer out of an unreliable service with the fewest attempts.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod blocking;
mod borrowing;
mod classify;
mod clock;
mod driver;
mod future;
mod gave_up;
mod hook;
mod interrupt;
mod operation;
mod poll;
mod random;
mod retry;
mod settle;
mod ticker;
#[cfg(feature = "serde")]
mod trace_json;
mod update;

pub use classify::{AnyError, ByError, ByMark, ByOutcome, Classify, Judged, Marked, When};
#[cfg(feature = "tokio")]
pub use clock::TokioClock;
pub use clock::{BlockingSleeper, Clock, Sleeper, StdClock, VirtualClock, VirtualSleep};
pub use driver::{Attempt, Driver, DriverBuilder, Summary};
pub use future::RetryFuture;
pub use gave_up::GaveUp;
pub use hook::{Hook, Notice, Notify};
pub use interrupt::{Activity, Both, CancelOn, Interrupt, Interruption, OnActivity};
pub use operation::{
    AsyncOperation, Blocking, Borrowing, BoxFuture, OnState, Operation, Plain, WithAttempt,
};
pub use poll::{ByPolled, Polled, poll};
pub use random::SessionRandom;
pub use retry::{DefaultClock, Retry, RetryExt, retry, retry_mut, retry_on, retry_with};
pub use ticker::Ticker;
#[cfg(feature = "serde")]
pub use trace_json::{TraceJson, rfc3339};
pub use update::{ByWritten, Written, update};

pub use relent_core::{
    Advice, Audience, Backoff, Budget, BudgetConfig, Cause, Ceiling, Decision, Draw, DurationError,
    Failure, Hint, HintMode, HintSource, Histogram, Instant, Jitter, JitterError, Kind, Network,
    Pattern, PatternError, Phase, Policy, PolicyBuilder, PolicyError, Random, Rule, Session, Stop,
    StopReason, Taken, Throttle, Trace, TraceEntry, Waits, format_duration, parse_duration,
};
