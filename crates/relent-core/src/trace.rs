//! The list of attempts with outcome, kind, hint, decision and reason.

use alloc::collections::VecDeque;
use core::time::Duration;

use crate::decision::Decision;
use crate::failure::{Cause, Failure};
use crate::time::Instant;

/// One attempt as it went: plain data, made without allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceEntry {
    /// The number of the attempt; the first is 1.
    pub attempt: u32,
    /// When it started.
    pub started: Instant,
    /// When it ended.
    pub ended: Instant,
    /// What was seen of it, such as a status; `None` for a success that says nothing more.
    pub seen: Option<Cause>,
    /// How it failed, with kind, cause and hint; `None` for a success, and for an attempt that was
    /// dropped because another won the race, whose decision is to stop as cancelled.
    pub failure: Option<Failure>,
    /// What the session decided; `None` for a success, and for a failure while other attempts of the
    /// race went on.
    pub decision: Option<Decision>,
}

impl TraceEntry {
    /// The wait before the next attempt, if there is one.
    #[must_use]
    pub const fn wait(&self) -> Option<Duration> {
        match self.decision {
            Some(Decision::Retry { after }) => Some(after),
            _ => None,
        }
    }
}

/// The attempts of one session, so that every give-up can be explained.
///
/// It keeps the latest [`Trace::LIMIT`] attempts: an endless session does not fill the memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Trace {
    entries: VecDeque<TraceEntry>,
    dropped: u64,
}

impl Trace {
    /// The most attempts a trace holds.
    pub const LIMIT: usize = 1024;

    /// An empty trace.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            dropped: 0,
        }
    }

    /// Adds an attempt; the oldest makes room.
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

    /// How many attempts were left out to make room.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_session_does_not_fill_the_memory() {
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
