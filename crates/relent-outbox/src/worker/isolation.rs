//! Isolation: messages that are sent while nothing else runs, one after another.
//!
//! A message needs it if its previous attempt was lost with its worker, and none follows if this one is lost, too. If
//! sending it kills the worker, only this message becomes dead.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// The time in which isolated attempts may start, once nothing else runs; then other messages have their turn.
const MAX_ISOLATION_TIME: Duration = Duration::from_secs(10);

/// The endpoints with a message to send in isolation, and their turn among all others.
#[derive(Debug)]
pub(super) struct Isolation {
    /// In turn.
    endpoints: VecDeque<i64>,
    /// The first of them has its turn.
    is_active: bool,
    /// When the others started to wait for isolated attempts; and until when none may start.
    wanted_since: Option<Instant>,
    allowed_at: Instant,
}

/// The endpoints that may send now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// All others.
    Others,
    /// None, until nothing runs.
    Nobody,
    /// This one.
    Alone(i64),
}

impl Isolation {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            endpoints: VecDeque::new(),
            is_active: false,
            wanted_since: None,
            allowed_at: now,
        }
    }

    /// Adds an endpoint with such a message.
    pub(super) fn add(&mut self, id: i64) {
        self.endpoints.push_back(id);
    }

    /// Whether an endpoint has its turn.
    pub(super) const fn is_active(&self) -> bool {
        self.is_active
    }

    /// Nothing can start, so the others do not wait for isolated attempts.
    pub(super) const fn nothing_waits(&mut self) {
        self.wanted_since = None;
    }

    /// Decides whose turn it is. `is_quiet`: nothing runs, is claimed, or is to be written.
    pub(super) fn turn(&mut self, now: Instant, is_quiet: bool) -> Turn {
        if self.endpoints.is_empty() || now < self.allowed_at {
            return Turn::Others;
        }
        let waited = now.saturating_duration_since(*self.wanted_since.get_or_insert(now));
        if !is_quiet {
            return Turn::Nobody;
        }
        let mut is_over = false;
        if std::mem::take(&mut self.is_active) {
            self.endpoints.pop_front();
            is_over = waited >= MAX_ISOLATION_TIME;
        }
        match self.endpoints.front() {
            Some(&id) if !is_over => {
                self.is_active = true;
                Turn::Alone(id)
            }
            _ => {
                // Others may now send for as long as they have waited.
                self.allowed_at = now + waited;
                self.wanted_since = None;
                Turn::Others
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn isolated_messages_start_one_by_one_while_nothing_else_runs() {
        let now = Instant::now();
        let mut isolation = Isolation::new(now);
        assert_eq!(isolation.turn(now, true), Turn::Others);
        isolation.add(1);
        isolation.add(2);
        assert_eq!(isolation.turn(now, false), Turn::Nobody);
        assert_eq!(isolation.turn(now + SECOND, true), Turn::Alone(1));
        assert!(isolation.is_active());
        assert_eq!(isolation.turn(now + SECOND, false), Turn::Nobody);
        assert_eq!(isolation.turn(now + SECOND, true), Turn::Alone(2));
        assert_eq!(isolation.turn(now + SECOND, true), Turn::Others);
        assert!(!isolation.is_active());
    }

    #[test]
    fn others_send_for_as_long_as_they_have_waited() {
        let now = Instant::now();
        let mut isolation = Isolation::new(now);
        (1..=3).for_each(|id| isolation.add(id));
        assert_eq!(isolation.turn(now, true), Turn::Alone(1));
        let late = now + MAX_ISOLATION_TIME;
        assert_eq!(isolation.turn(late, true), Turn::Others, "its time is over");
        let next = late + MAX_ISOLATION_TIME;
        assert_eq!(isolation.turn(next - SECOND, true), Turn::Others);
        assert_eq!(isolation.turn(next, true), Turn::Alone(2));
    }

    #[test]
    fn time_in_which_nothing_can_start_is_no_wait() {
        let now = Instant::now();
        let mut isolation = Isolation::new(now);
        isolation.add(1);
        isolation.add(2);
        assert_eq!(isolation.turn(now, true), Turn::Alone(1));
        isolation.nothing_waits();
        let later = now + 60 * MAX_ISOLATION_TIME;
        assert_eq!(isolation.turn(later, true), Turn::Alone(2));
    }
}
