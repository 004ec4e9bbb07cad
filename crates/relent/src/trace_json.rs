//! The trace as a JSON object: the format of `--trace`, described by `docs/schema/trace.schema.json`.

use std::io;
use std::time::{Duration, SystemTime};

use relent_core::{Decision, Instant, TraceEntry};
use serde::Serialize;

use crate::driver::Summary;

/// A session as one JSON object: how it ended, and every attempt of its trace.
///
/// ```
/// use relent::{Policy, VirtualClock, blocking};
/// use relent::trace::TraceJson;
///
/// let gave_up = blocking::retry(Policy::STANDARD, || Err::<(), _>("down"))
///     .traced()
///     .clock(VirtualClock::new())
///     .run()
///     .unwrap_err();
/// let json = TraceJson::new(gave_up.summary()).to_string();
/// assert!(json.starts_with(r#"{"result":"gave_up","reason":"retries_exhausted","retry_at":null,"#));
/// ```
#[derive(Clone, Debug, Serialize)]
pub struct TraceJson {
    result: &'static str,
    reason: Option<&'static str>,
    retry_at: Option<String>,
    elapsed_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<String>,
    #[serde(skip_serializing_if = "is_zero")]
    attempts_dropped: u64,
    attempts: Vec<AttemptJson>,
}

#[derive(Clone, Debug, Serialize)]
struct AttemptJson {
    attempt: u32,
    started_ms: f64,
    ended_ms: f64,
    outcome: String,
    kind: Option<&'static str>,
    hint: Option<HintJson>,
    decision: &'static str,
    wait_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct HintJson {
    source: &'static str,
    delay_ms: Option<f64>,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature is serde's"
)]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn millis(duration: Duration) -> f64 {
    // Computed from integers: 0.1 s is 100 ms, not 100.00000000000001.
    duration.as_nanos() as f64 / 1e6
}

impl TraceJson {
    /// Creates the JSON form of this summary.
    #[must_use]
    pub fn new(summary: &Summary) -> Self {
        let entries = summary.trace.as_ref();
        let origin = entries
            .and_then(|trace| trace.entries().next())
            .map_or(Instant::ORIGIN, |first| first.started);
        Self {
            result: if summary.reason.is_none() {
                "success"
            } else {
                "gave_up"
            },
            reason: summary.reason.map(relent_core::StopReason::name),
            retry_at: summary.retry_at.map(rfc3339),
            elapsed_ms: millis(summary.elapsed),
            idempotency_key: None,
            attempts_dropped: entries.map_or(0, relent_core::Trace::dropped),
            attempts: entries.map_or_else(Vec::new, |trace| {
                trace
                    .entries()
                    .map(|entry| attempt(entry, origin))
                    .collect()
            }),
        }
    }

    /// Adds the idempotency key of the request, so that an operator can safely send the same
    /// request again.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Writes the object and a newline.
    ///
    /// # Errors
    /// The error of the writer.
    pub fn write(&self, mut to: impl io::Write) -> io::Result<()> {
        serde_json::to_writer(&mut to, self)?;
        to.write_all(b"\n")?;
        to.flush()
    }
}

impl std::fmt::Display for TraceJson {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // It contains only strings and numbers, so serialization cannot fail.
        f.write_str(&serde_json::to_string(self).unwrap_or_default())
    }
}

/// Formats a wall-clock time as RFC 3339, such as `2026-01-02T03:04:05Z`.
#[must_use]
pub fn rfc3339(wall: SystemTime) -> String {
    jiff::Timestamp::try_from(wall).map_or_else(
        |_| "beyond the calendar".to_owned(),
        |timestamp| format!("{timestamp:.3}"),
    )
}

fn attempt(entry: &TraceEntry, origin: Instant) -> AttemptJson {
    let hint = entry.failure.map(|failure| failure.hint);
    AttemptJson {
        attempt: entry.attempt,
        started_ms: millis(entry.started.saturating_since(origin)),
        ended_ms: millis(entry.ended.saturating_since(origin)),
        outcome: match (entry.seen, entry.decision) {
            (Some(seen), _) => seen.to_string(),
            (None, Some(_)) => "cancelled".to_owned(),
            (None, None) => "success".to_owned(),
        },
        kind: entry
            .failure
            .map(|failure| failure.kind_of_attempt().name()),
        hint: hint
            .filter(|hint| hint.delay().is_some() || hint.advice != relent_core::Advice::None)
            .map(|hint| HintJson {
                source: hint.source.name(),
                delay_ms: hint.delay().map(millis),
            }),
        decision: match entry.decision {
            None if entry.failure.is_some() => "race",
            None => "success",
            Some(Decision::Retry { .. }) => "retry",
            Some(Decision::Stop(_)) => "stop",
        },
        wait_ms: entry.wait().map(millis),
        note: hint
            .and_then(|hint| hint.malformed)
            .map(|source| format!("{source} was malformed and ignored")),
    }
}

#[cfg(test)]
mod tests {
    use relent_core::{Cause, Failure, Stop, StopReason};

    use super::*;

    #[test]
    fn the_trace_of_a_race_shows_failed_cancelled_and_won_attempts() {
        let entry = |number, seen, failure, decision| TraceEntry {
            attempt: number,
            started: Instant::ORIGIN,
            ended: Instant::ORIGIN,
            seen,
            failure,
            decision,
        };
        let failure = Failure::ambiguous().cause(Cause::Status(502));
        let dropped = Decision::Stop(Stop {
            reason: StopReason::Cancelled,
            retry_at: None,
        });
        let told = [
            entry(2, Some(failure.cause), Some(failure), None),
            entry(1, None, None, Some(dropped)),
            entry(3, None, None, None),
        ]
        .map(|entry| attempt(&entry, Instant::ORIGIN))
        .map(|told| (told.outcome, told.kind, told.decision));
        let expected = [
            ("status 502", Some("ambiguous"), "race"),
            ("cancelled", None, "stop"),
            ("success", None, "success"),
        ]
        .map(|(outcome, kind, decision)| (outcome.to_owned(), kind, decision));
        assert_eq!(told, expected);
    }

    #[test]
    fn instants_are_formatted_as_rfc_3339() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_767_323_045_000);
        assert_eq!(rfc3339(at), "2026-01-02T03:04:05.000Z");
        assert_eq!(
            rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 55)),
            "beyond the calendar"
        );
    }
}
