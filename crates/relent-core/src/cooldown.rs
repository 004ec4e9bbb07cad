//! A destination's hint, applied to all callers of it.

use core::time::Duration;

use crate::failure::{Failure, Hop, Kind, Scope};
use crate::hint::Audience;
use crate::random::{Random, up_to};
use crate::sync::{AtomicU64, Ordering};
use crate::time::{Instant, nanos, share_of};

/// Until when a destination wants to be left alone: what it said to one caller, kept by all.
///
/// A shared hint with a refusal (429, 503 and the like) holds back every attempt to the destination
/// until then, fresh ones as well. A ticket is its caller's own and starts none (design rule 4), nor
/// does what speaks of [one request](Scope::Request), nor, where there is a [`Gate`](crate::Gate), a refusal
/// that is not because of rate: a 503 says when its caller may come back, and the gate who else is sent. Who
/// is held back comes at random within a share of that time behind it (the caller's
/// [`hint_spread`](crate::Policy::hint_spread)), since all would come at once otherwise.
///
/// Lock-free; share one per destination.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Cooldown, Draw, Failure, Hint, Instant};
///
/// let cooldown = Cooldown::new();
/// let now = Instant::ORIGIN;
/// let refused = Failure::throttled().hint(Hint::after(Duration::from_secs(4)));
/// cooldown.on_failure(now, &refused, Duration::from_secs(300));
/// assert_eq!(cooldown.left(now), Duration::from_secs(4));
/// let wait = cooldown.wait(now, Duration::MAX, 1.0, &mut Draw::at(0.5));
/// assert_eq!(wait, Duration::from_secs(6));
/// ```
#[derive(Debug)]
pub struct Cooldown {
    /// Its end in nanoseconds; 0 for none.
    until: AtomicU64,
    /// How long it was when it began: over a share of it its callers are spread.
    length: AtomicU64,
}

impl Cooldown {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            until: AtomicU64::new(0),
            length: AtomicU64::new(0),
        }
    }

    /// An attempt failed; if the server said to everybody when to come back, nobody goes there
    /// before. What is longer than `most` (the policy's `max_hint`) counts as that: one answer does
    /// not close a destination for hours. What [another destination](Hop::Elsewhere) said begins none.
    /// Returns whether one begins where there was none.
    pub fn on_failure(&self, now: Instant, failure: &Failure, most: Duration) -> bool {
        let Some(delay) = failure.hint.delay_nanos() else {
            return false;
        };
        let refused = matches!(
            failure.kind,
            Kind::Throttled | Kind::Overloaded | Kind::NotProcessed
        );
        let shared =
            failure.hint.audience == Audience::Shared && failure.scope == Scope::Destination;
        if !refused || !shared || failure.hop == Hop::Elsewhere {
            return false;
        }
        let delay = delay.min(nanos(most));
        let until = now.as_nanos().saturating_add(delay);
        let before = self.until.fetch_max(until, Ordering::Relaxed);
        if before < until {
            self.length.store(delay, Ordering::Relaxed);
        }
        before <= now.as_nanos() && now.as_nanos() < until
    }

    /// One that runs lasts no longer than `most` from now on.
    pub(crate) fn shorten(&self, now: Instant, most: Duration) {
        let until = now.saturating_add(most).as_nanos();
        self.until.fetch_min(until, Ordering::Relaxed);
        self.length.fetch_min(nanos(most), Ordering::Relaxed);
    }

    /// Whether there is one that has not been [forgotten](Self::forget_past): without, nobody needs to
    /// know the time.
    #[inline]
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.until.load(Ordering::Relaxed) != 0
    }

    /// Forgets one that is over. Does nothing about one that has begun meanwhile.
    pub fn forget_past(&self, now: Instant) {
        let until = self.until.load(Ordering::Relaxed);
        if until != 0 && until <= now.as_nanos() {
            let _ = self
                .until
                .compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Whether it runs at this instant.
    #[inline]
    #[must_use]
    pub fn is_running(&self, now: Instant) -> bool {
        now.as_nanos() < self.until.load(Ordering::Relaxed)
    }

    /// How much of it is left; zero if there is none.
    #[must_use]
    pub fn left(&self, now: Instant) -> Duration {
        let until = Instant::from_nanos(self.until.load(Ordering::Relaxed));
        until.saturating_since(now)
    }

    /// How long an attempt waits that would start now: what is left, and behind it a spread of at
    /// most `share` (from 0 to 1) of the whole length of the cooldown, limited to what fits into
    /// `room`. Zero if there is no cooldown. Where even what is left does not fit, that is the answer.
    pub fn wait(
        &self,
        now: Instant,
        room: Duration,
        share: f64,
        random: &mut (impl Random + ?Sized),
    ) -> Duration {
        let left = nanos(self.left(now));
        if left == 0 {
            return Duration::ZERO;
        }
        let spread = share_of(self.length.load(Ordering::Relaxed), share);
        let spread = spread.min(nanos(room).saturating_sub(left));
        Duration::from_nanos(left.saturating_add(up_to(spread, random)))
    }
}

impl Default for Cooldown {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::hint::Hint;
    use crate::random::Draw;

    const SECOND: Duration = Duration::from_secs(1);
    const MOST: Duration = Duration::from_secs(300);

    fn at(seconds: u64) -> Instant {
        Instant::ORIGIN.saturating_add(Duration::from_secs(seconds))
    }

    fn hinted(failure: Failure, seconds: u64) -> Failure {
        failure.hint(Hint::after(Duration::from_secs(seconds)))
    }

    #[test]
    fn what_speaks_of_one_request_holds_nobody_else_back() {
        let cooldown = Cooldown::new();
        let locked = hinted(Failure::throttled(), 4).scope(Scope::Request);
        assert!(!cooldown.on_failure(at(0), &locked, MOST));
        assert_eq!(cooldown.left(at(0)), Duration::ZERO);
    }

    #[test]
    fn only_what_is_over_is_forgotten() {
        let cooldown = Cooldown::new();
        assert!(!cooldown.has_begun());
        cooldown.on_failure(at(10), &hinted(Failure::throttled(), 4), MOST);
        cooldown.forget_past(at(13));
        assert!(cooldown.has_begun());
        cooldown.forget_past(at(14));
        assert!(!cooldown.has_begun());
        cooldown.on_failure(at(14), &hinted(Failure::throttled(), 2), MOST);
        assert_eq!(cooldown.left(at(15)), SECOND);
    }

    #[test]
    fn a_shared_hint_holds_back_everybody_until_then() {
        let cooldown = Cooldown::new();
        let refused = |seconds| hinted(Failure::throttled(), seconds);
        assert!(cooldown.on_failure(at(0), &refused(10), MOST), "it begins");
        assert_eq!(cooldown.left(at(3)), 7 * SECOND);
        assert_eq!(cooldown.left(at(10)), Duration::ZERO);
        assert_eq!(
            cooldown.wait(at(11), MOST, 1.0, &mut Draw::at(1.0)),
            Duration::ZERO
        );
        // A later, shorter one does not cut it short.
        assert!(!cooldown.on_failure(at(4), &refused(2), MOST));
        assert_eq!(cooldown.left(at(4)), 6 * SECOND);
        assert!(
            !cooldown.on_failure(at(5), &refused(20), MOST),
            "it goes on"
        );
        assert!(cooldown.on_failure(at(25), &refused(1), MOST));
    }

    #[test]
    fn a_ticket_starts_none_and_neither_does_what_was_no_refusal() {
        let cooldown = Cooldown::new();
        let ticket = Hint::after(SECOND).for_audience(Audience::TicketSeconds);
        cooldown.on_failure(at(0), &Failure::throttled().hint(ticket), MOST);
        cooldown.on_failure(at(0), &hinted(Failure::ambiguous(), 10), MOST);
        cooldown.on_failure(at(0), &hinted(Failure::permanent(), 10), MOST);
        cooldown.on_failure(at(0), &Failure::throttled(), MOST);
        assert_eq!(cooldown.left(at(0)), Duration::ZERO);
    }

    #[test]
    fn callers_are_spread_behind_it_as_far_as_their_time_allows() {
        let cooldown = Cooldown::new();
        cooldown.on_failure(at(0), &hinted(Failure::not_processed(), 10), MOST);
        let wait = |room, point| cooldown.wait(at(4), room, 1.0, &mut Draw::at(point));
        assert_eq!(wait(MOST, 0.0), 6 * SECOND);
        assert_eq!(wait(MOST, 1.0), 16 * SECOND);
        assert_eq!(wait(8 * SECOND, 1.0), 8 * SECOND);
        assert_eq!(wait(5 * SECOND, 1.0), 6 * SECOND, "does not fit");
        let quarter = cooldown.wait(at(4), MOST, 0.25, &mut Draw::at(1.0));
        assert_eq!(
            quarter,
            6 * SECOND + 2500 * Duration::from_millis(1),
            "of 10 s"
        );
    }

    #[test]
    fn one_answer_does_not_close_a_destination_for_hours() {
        let cooldown = Cooldown::new();
        cooldown.on_failure(at(0), &hinted(Failure::throttled(), 86_400), MOST);
        assert_eq!(cooldown.left(at(0)), MOST);
    }
}
