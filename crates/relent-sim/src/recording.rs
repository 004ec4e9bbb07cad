//! A run with its events over time, for charts.

use crate::event_log::Row;
use crate::latency::Latencies;
use crate::metrics::Metrics;
use crate::series::Series;

/// A run with its counts over time.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The measurements: the same as without recording.
    pub metrics: Metrics,
    /// Counts over time.
    pub series: Series,
    /// At most 100 clients, spread evenly over the herd; empty where requests are not made by a herd.
    pub rows: Vec<Row>,
    pub(crate) latencies: Latencies,
}

impl Recording {
    /// The time in nanoseconds that this share of the successes did not exceed, waits included;
    /// `None` without a success.
    #[must_use]
    pub fn latency(&self, share: f64) -> Option<u64> {
        self.latencies.quantile(share)
    }
}
