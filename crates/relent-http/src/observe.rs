//! Telemetry of an HTTP attempt: a span, with the feature `tracing`, by OpenTelemetry's semantic
//! conventions for HTTP clients. They require one span for each outgoing request, and none around
//! all of them.
//!
//! Only `observe/span.rs` contains the names of the span and of its fields; `docs/observability.md`
//! lists them.

#[cfg(feature = "tracing")]
mod not_retried;
#[cfg(not(feature = "tracing"))]
mod silent;
#[cfg(feature = "tracing")]
mod span;
#[cfg(feature = "tracing")]
mod url;

use relent::driver::DriverBuilder;

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

/// The name of the destination in metrics, if it has one. Without the feature `metrics` it is
/// empty.
#[derive(Clone, Debug, Default)]
pub struct MetricLabel {
    #[cfg(feature = "metrics")]
    label: Option<relent::observe::Label>,
}

impl MetricLabel {
    #[cfg(feature = "metrics")]
    /// Creates a label with this name.
    pub fn new(name: impl Into<std::sync::Arc<str>>) -> Self {
        Self {
            label: Some(relent::observe::Label::new(name)),
        }
    }

    /// Labels the metrics and events of this driver with the name.
    #[inline]
    pub fn name<'p, K: relent::clock::Clock>(
        &self,
        driver: DriverBuilder<'p, K>,
    ) -> DriverBuilder<'p, K> {
        #[cfg(feature = "metrics")]
        if let Some(label) = &self.label {
            return driver.label(label.clone());
        }
        driver
    }
}
