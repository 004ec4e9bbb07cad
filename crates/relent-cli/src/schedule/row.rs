//! A row of the schedule.

use std::time::Duration;

use serde::Serialize;

/// One retry.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct Row {
    pub(super) retry: u32,
    #[serde(rename = "delay_ms", serialize_with = "millis")]
    pub(super) delay: Duration,
    #[serde(rename = "min_ms", serialize_with = "millis")]
    pub(super) min: Duration,
    #[serde(rename = "max_ms", serialize_with = "millis")]
    pub(super) max: Duration,
    #[serde(rename = "total_ms", serialize_with = "millis")]
    pub(super) total: Duration,
}

fn millis<S: serde::Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(duration.as_nanos() as f64 / 1e6)
}
