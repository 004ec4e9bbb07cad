//! The speed of an endpoint, by which its attempts get slots.

use std::time::Duration;

use tokio::time::Instant;

use super::slots::Pool;

/// The time for which an endpoint counts as fast after a fast response.
const FAST_FOR: Duration = Duration::from_secs(60);

/// What is known of the speed of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Speed {
    /// An attempt that takes this time is slow.
    slow_after: Duration,
    /// The end of the last fast attempt. Without a recent one, one attempt runs at a time, so that an endpoint that
    /// begins to hang holds one slot.
    answered: Option<Instant>,
    /// An attempt has ended, so its speed is known.
    is_known: bool,
    /// Its last attempt was slow.
    is_slow: bool,
}

impl Speed {
    /// The speed of an endpoint without an attempt. `is_slow`: it must not use slots of fast endpoints.
    pub(super) const fn new(slow_after: Duration, is_slow: bool) -> Self {
        Self {
            slow_after,
            answered: None,
            is_known: false,
            is_slow,
        }
    }

    /// Forgets all attempts.
    pub(super) const fn reset(&mut self) {
        *self = Self::new(self.slow_after, false);
    }

    /// Records the duration of an attempt.
    pub(super) fn answered(&mut self, now: Instant, took: Duration) {
        self.is_known = true;
        self.is_slow = took >= self.slow_after;
        self.answered = (!self.is_slow).then_some(now);
    }

    /// A running attempt has become slow.
    pub(super) const fn turn_slow(&mut self) {
        self.is_slow = true;
    }

    /// The pool in which its next attempt starts.
    pub(super) fn pool(&self, now: Instant) -> Pool {
        match self.is_slow {
            true => Pool::Slow,
            false if self.has_answered_within(now, FAST_FOR) => Pool::Fast,
            false => Pool::Unknown,
        }
    }

    /// Whether several attempts may run at a time: it is known to be slow, or was fast lately.
    pub(super) fn allows_several(&self, now: Instant) -> bool {
        self.is_known && self.is_slow || self.has_answered_within(now, self.slow_after)
    }

    fn has_answered_within(&self, now: Instant, within: Duration) -> bool {
        self.answered
            .is_some_and(|at| now.saturating_duration_since(at) <= within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_endpoint_is_fast_for_a_minute_after_a_fast_response() {
        let now = Instant::now();
        let mut speed = Speed::new(SECOND, false);
        assert_eq!(speed.pool(now), Pool::Unknown);
        speed.answered(now, SECOND / 2);
        assert_eq!(speed.pool(now + FAST_FOR), Pool::Fast);
        assert_eq!(speed.pool(now + FAST_FOR + SECOND), Pool::Unknown);
        speed.answered(now, SECOND);
        assert_eq!(speed.pool(now), Pool::Slow);
    }

    #[test]
    fn several_attempts_run_only_while_the_speed_is_known() {
        let now = Instant::now();
        let mut speed = Speed::new(SECOND, false);
        assert!(!speed.allows_several(now));
        speed.answered(now, SECOND / 2);
        assert!(speed.allows_several(now + SECOND));
        assert!(
            !speed.allows_several(now + 2 * SECOND),
            "it may hang by now"
        );
        speed.answered(now, 2 * SECOND);
        assert!(speed.allows_several(now + 9 * SECOND), "it has slow slots");
        assert!(!Speed::new(SECOND, true).allows_several(now));
    }
}
