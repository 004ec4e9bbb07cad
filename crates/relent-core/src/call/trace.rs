//! Trace of a session: its attempts with outcome, kind, hint, decision and reason.

use alloc::collections::VecDeque;
use alloc::string::String;
use core::fmt;
use core::time::Duration;

use crate::call::session::decision::Decision;
use crate::call::stop::{Stop, StopReason};
use crate::duration::format_duration;
use crate::failure::{Cause, Failure};
use crate::time::Instant;

/// One attempt of a trace: plain data, created without allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceEntry {
    /// The number of the attempt; the first is 1.
    pub attempt: u32,
    /// When it started.
    pub started: Instant,
    /// When it ended.
    pub ended: Instant,
    /// The observed result, such as a status; `None` for a success without details.
    pub seen: Option<Cause>,
    /// The failure, with kind, cause and hint. `None` for a success, and for an attempt that lost the
    /// race, whose decision is to stop as cancelled.
    pub failure: Option<Failure>,
    /// The decision of the session; `None` for a success, and for a failure while other attempts of the
    /// race continued.
    pub decision: Option<Decision>,
}

impl TraceEntry {
    /// The delay before the next attempt, if there is one.
    #[must_use]
    pub const fn wait(&self) -> Option<Duration> {
        match self.decision {
            Some(Decision::Retry { after }) => Some(after),
            _ => None,
        }
    }
}

/// One line: the result of the attempt, how long it took, and the decision.
impl fmt::Display for TraceEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.line(f, Duration::ZERO)
    }
}

impl TraceEntry {
    /// The line of an attempt that its destination held for so long, in addition to the delay before
    /// it.
    fn line(&self, f: &mut fmt::Formatter<'_>, held: Duration) -> fmt::Result {
        write!(f, "attempt {}", self.attempt)?;
        if held >= Duration::from_millis(1) {
            write!(f, " (held back for {})", readable(held))?;
        }
        let took = readable(self.ended.saturating_since(self.started));
        let Some(failure) = &self.failure else {
            return match (self.decision, self.seen) {
                (None, Some(seen)) => write!(f, ": succeeded after {took} ({seen})"),
                (None, None) => write!(f, ": succeeded after {took}"),
                (Some(_), _) => write!(
                    f,
                    ": dropped after {took}, since another attempt was faster"
                ),
            };
        };
        match failure.cause {
            Cause::Error => write!(f, ": failed after {took}")?,
            Cause::Timeout => write!(f, ": timed out after {took}")?,
            cause => write!(f, ": {cause} after {took}")?,
        }
        if let Some(delay) = failure.hint.delay() {
            write!(f, ", {} {}", failure.hint.source.name(), readable(delay))?;
        }
        match self.decision {
            Some(Decision::Retry { after }) => write!(f, "; next in {}", readable(after)),
            Some(Decision::Stop(Stop {
                reason: StopReason::Cancelled,
                ..
            })) => f.write_str("; cancelled"),
            Some(Decision::Stop(stop)) => write!(f, "; gave up: {}", stop.reason),
            None => f.write_str("; another attempt went on"),
        }
    }
}

/// A duration for people: whole milliseconds, or microseconds if it is shorter than one.
fn readable(duration: Duration) -> String {
    let unit = if duration < Duration::from_millis(1) {
        1_000
    } else {
        1_000_000
    };
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    format_duration(Duration::from_nanos(nanos - nanos % unit))
}

/// The attempts of one session, which explain why it gave up. Displays as one line for each attempt.
///
/// It keeps the latest [`Trace::LIMIT`] attempts, so that an endless session does not exhaust memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Trace {
    entries: VecDeque<TraceEntry>,
    dropped: u64,
}

impl Trace {
    /// The most attempts that a trace holds.
    pub const LIMIT: usize = 1024;

    /// An empty trace.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            dropped: 0,
        }
    }

    /// Adds an attempt; removes the oldest one if the trace is full.
    pub fn push(&mut self, entry: TraceEntry) {
        if self.entries.len() == Self::LIMIT {
            self.entries.pop_front();
            self.dropped += 1;
        }
        self.entries.push_back(entry);
    }

    /// The attempts, oldest first.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &TraceEntry> {
        self.entries.iter()
    }

    /// The latest attempt, to complete it.
    pub fn last_mut(&mut self) -> Option<&mut TraceEntry> {
        self.entries.back_mut()
    }

    /// Number of attempts that were removed because the trace was full.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// One line for each attempt, and one for those that were removed.
impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut next: Option<Instant> = None;
        if self.dropped > 0 {
            write!(f, "({} earlier attempts are not shown)", self.dropped)?;
        }
        for (index, entry) in self.entries.iter().enumerate() {
            if index > 0 || self.dropped > 0 {
                f.write_str("\n")?;
            }
            let held = next.map_or(Duration::ZERO, |next| entry.started.saturating_since(next));
            entry.line(f, held)?;
            next = entry.wait().map(|wait| entry.ended.saturating_add(wait));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;
    use crate::failure::Network;
    use crate::hint::{Hint, HintSource};

    #[test]
    fn a_trace_displays_one_line_for_each_attempt() {
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let entry = |attempt, started: u64, ended: u64, failure, decision| TraceEntry {
            attempt,
            started: at(started),
            ended: at(ended),
            seen: None,
            failure,
            decision,
        };
        let retry = |millis| {
            Some(Decision::Retry {
                after: Duration::from_millis(millis),
            })
        };
        let busy =
            Hint::after(Duration::from_secs(2)).from_source(HintSource::header("retry-after"));
        let stop = |reason| {
            Some(Decision::Stop(Stop {
                reason,
                retry_at: None,
            }))
        };
        let mut trace = Trace::new();
        trace.push(entry(
            1,
            0,
            2,
            Some(Failure::network(Network::Connect)),
            retry(100),
        ));
        trace.push(entry(
            2,
            102,
            1102,
            Some(Failure::ambiguous().cause(Cause::Timeout)),
            retry(200),
        ));
        let busy = Failure::throttled().cause(Cause::Status(503)).hint(busy);
        trace.push(entry(3, 4302, 4310, Some(busy), retry(2500)));
        trace.push(entry(
            4,
            6810,
            6811,
            Some(Failure::ambiguous()),
            stop(StopReason::Budget),
        ));
        assert_eq!(
            trace.to_string(),
            "attempt 1: connection refused after 2ms; next in 100ms\n\
             attempt 2: timed out after 1s; next in 200ms\n\
             attempt 3 (held back for 3s): status 503 after 8ms, retry-after 2s; next in 2.5s\n\
             attempt 4: failed after 1ms; gave up: the retry budget of the destination is used up"
        );
        let mut raced = Trace::new();
        raced.push(entry(1, 0, 5, Some(Failure::ambiguous()), None));
        raced.push(entry(2, 1, 7, None, stop(StopReason::Cancelled)));
        raced.push(TraceEntry {
            seen: Some(Cause::Status(200)),
            ..entry(3, 2, 7, None, None)
        });
        assert_eq!(
            raced.to_string(),
            "attempt 1: failed after 5ms; another attempt went on\n\
             attempt 2: dropped after 6ms, since another attempt was faster\n\
             attempt 3: succeeded after 5ms (status 200)"
        );
        assert_eq!(Trace::new().to_string(), "");
    }

    #[test]
    fn an_endless_session_keeps_a_bounded_trace() {
        let mut trace = Trace::new();
        for attempt in 1..=3000 {
            let (started, ended) = (Instant::ORIGIN, Instant::ORIGIN);
            trace.push(TraceEntry {
                attempt,
                started,
                ended,
                seen: None,
                failure: None,
                decision: None,
            });
        }
        assert_eq!((trace.entries().len(), trace.dropped()), (1024, 1976));
        assert_eq!(trace.last_mut().map(|entry| entry.attempt), Some(3000));
    }
}
