//! Decisions of a server before it serves a request: rate limits, load shedding and concurrency limits.
//!
//! [`AdmissionController`] combines rate limiters and a load shedder. [`ConcurrencyLimiter`] bounds how many requests
//! are served concurrently, and queues or rejects the others.

mod adaptive_limit;
mod concurrency_limiter;
mod controller;
mod criticality;
mod load_shedder;
mod rate_limiter;

pub use adaptive_limit::{Completion, Concurrency, ConcurrencyConfig, Started};
pub use concurrency_limiter::{
    ConcurrencyLimiter, ConcurrencyLimiterConfig, Dequeued, Enqueued, QueuePosition, Slot,
};
pub use controller::{AdmissionController, Admitted, Rejected};
pub use criticality::Criticality;
pub use load_shedder::{Arrival, Shed, Shedder, ShedderConfig};
pub use rate_limiter::{KeyedLimiter, Limiter, LimiterConfig, Refusal, Verdict};
