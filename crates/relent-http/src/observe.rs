//! What an attempt over HTTP tells: a span, with the feature `tracing`, by OpenTelemetry's semantic
//! conventions for HTTP clients. They want one span for each request that goes out, and none around
//! them all.
//!
//! The name of the span and of its fields are in `observe/span.rs`, the only place where they are
//! written; `docs/observability.md` has them in one table.

#[cfg(feature = "tracing")]
mod not_retried;
#[cfg(not(feature = "tracing"))]
mod silent;
#[cfg(feature = "tracing")]
mod span;
#[cfg(feature = "tracing")]
mod url;

use relent::driver::{DriverBuilder, Target};
use relent_core::{Policy, Random};
use std::ops::Deref;

#[cfg(feature = "tracing")]
pub use not_retried::not_retried;
#[cfg(all(feature = "tower", not(feature = "tracing")))]
pub(crate) use silent::not_ready;
#[cfg(not(feature = "tracing"))]
pub use silent::{AttemptSpan, not_retried};
#[cfg(feature = "tracing")]
pub use span::AttemptSpan;
#[cfg(all(feature = "tower", feature = "tracing"))]
pub(crate) use span::not_ready;

/// The name of the destination in metrics, if it was given one. Without the feature `metrics` it is
/// nothing.
#[derive(Clone, Debug, Default)]
pub struct Named {
    #[cfg(feature = "metrics")]
    label: Option<relent::observe::Label>,
}

impl Named {
    #[cfg(feature = "metrics")]
    /// This name.
    pub fn new(name: impl Into<std::sync::Arc<str>>) -> Self {
        Self {
            label: Some(relent::observe::Label::new(name)),
        }
    }

    /// Names the destination in what this driver tells.
    #[inline]
    pub fn name<'p, K, R, P, D>(
        &self,
        driver: DriverBuilder<'p, K, R, P, D>,
    ) -> DriverBuilder<'p, K, R, P, D>
    where
        K: relent::clock::Clock,
        R: Random,
        P: Deref<Target = Policy>,
        D: Target,
    {
        #[cfg(feature = "metrics")]
        if let Some(label) = &self.label {
            return driver.label(label.clone());
        }
        driver
    }
}
