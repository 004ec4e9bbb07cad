//! A cooldown: a destination's `Retry-After`, applied to all its callers.

use core::time::Duration;

use crate::destination::attempt_outcome::AttemptOutcome;
use crate::random::{Random, up_to};
use crate::sync::{AtomicU64, Ordering};
use crate::time::{Instant, nanos, share_of};

/// The time until which a destination asked not to be called, shared by all its callers.
///
/// A shared hint with a rejection (429, 503 and similar) holds back every attempt to the
/// destination until then, first attempts included. These start no cooldown:
/// - a ticket (a slot reserved for one caller),
/// - a failure that concerns [one request](crate::Scope::Request),
/// - with a [`CircuitBreaker`](crate::destination::CircuitBreaker), a rejection other than throttling: after a 503 the circuit
///   breaker decides which other requests are sent.
///
/// Callers return at random times within a share of the cooldown's length after its end (the
/// caller's [`retry_after_jitter`](crate::Policy::retry_after_jitter)). Otherwise all would return at the same
/// moment (a thundering herd).
///
/// Lock-free; share one per destination.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{FixedRandom, Failure, Hint, Instant};
/// use relent_core::destination::{AttemptOutcome, Cooldown};
///
/// let cooldown = Cooldown::new();
/// let now = Instant::ORIGIN;
/// let refused = Failure::throttled().hint(Hint::after(Duration::from_secs(4)));
/// cooldown.on_end(now, &AttemptOutcome::of(&refused), Duration::from_secs(300));
/// assert_eq!(cooldown.left(now), Duration::from_secs(4));
/// let wait = cooldown.wait(now, Duration::MAX, 1.0, &mut FixedRandom::at(0.5));
/// assert_eq!(wait, Duration::from_secs(6));
/// ```
#[derive(Debug)]
pub struct Cooldown {
    /// The end in nanoseconds; 0 for none.
    until: AtomicU64,
    /// The length of the cooldown, which determines the jitter of its callers. See [`Length`].
    length: AtomicU64,
}

/// The length of a cooldown in whole microseconds (40 bits), and a write counter (24 bits), in one
/// word.
///
/// The counter lets a writer notice a concurrent write, even of an equal length. 40 bits are twelve
/// days; for a longer cooldown the jitter is a share of that.
#[derive(Clone, Copy)]
struct Length(u64);

impl Length {
    const COUNT_BITS: u32 = 24;
    const MAX_MICROS: u64 = u64::MAX >> Self::COUNT_BITS;

    const fn nanos(self) -> u64 {
        (self.0 >> Self::COUNT_BITS) * 1000
    }

    /// Rounded up to the microsecond.
    fn replaced_by(self, nanos: u64) -> Self {
        let micros = nanos.div_ceil(1000).min(Self::MAX_MICROS);
        let count = self.0.wrapping_add(1) & ((1 << Self::COUNT_BITS) - 1);
        Self((micros << Self::COUNT_BITS) | count)
    }
}

impl Cooldown {
    /// Creates an inactive cooldown.
    #[must_use]
    pub fn new() -> Self {
        Self {
            until: AtomicU64::new(0),
            length: AtomicU64::new(0),
        }
    }

    /// Handles the end of an attempt: a [request](AttemptOutcome::cooldown) of the server starts or
    /// extends the cooldown, by at most `most` (the policy's
    /// [`max_cooldown`](crate::Policy::max_cooldown)), so that one response does not block a destination
    /// for hours. Returns whether a cooldown starts where there was none.
    pub fn on_end(&self, now: Instant, outcome: &AttemptOutcome, most: Duration) -> bool {
        let Some(request) = outcome.cooldown else {
            return false;
        };
        let delay = nanos(request.delay.min(most));
        if delay == 0 {
            return false;
        }
        let until = now.as_nanos().saturating_add(delay);
        let before = self.until.fetch_max(until, Ordering::Relaxed);
        if before < until {
            self.set_length(until, delay);
        }
        before <= now.as_nanos() && now.as_nanos() < until
    }

    /// Writes the length of the cooldown that ends at `until`, unless another cooldown has replaced
    /// it.
    ///
    /// The stored length belongs to the stored end. A writer that reads its own end after the
    /// length of a later cooldown also sees the later end, because that length is released after
    /// that end.
    fn set_length(&self, until: u64, length: u64) {
        let mut known = self.length.load(Ordering::Acquire);
        while self.until.load(Ordering::Relaxed) == until {
            let own = Length(known).replaced_by(length).0;
            match self
                .length
                .compare_exchange(known, own, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return,
                Err(other) => known = other,
            }
        }
    }

    /// Shortens a running cooldown to end at most `most` from now.
    pub(crate) fn shorten(&self, now: Instant, most: Duration) {
        let until = now.saturating_add(most).as_nanos();
        let until = self.until.fetch_min(until, Ordering::Relaxed).min(until);
        let length = Length(self.length.load(Ordering::Acquire)).nanos();
        self.set_length(until, length.min(nanos(most)));
    }

    /// Whether there is one that has not been [forgotten](Self::clear_if_ended). Without one, the
    /// clock need not be read.
    #[inline]
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.until.load(Ordering::Relaxed) != 0
    }

    /// Removes a cooldown that has ended. Keeps one that has started meanwhile.
    pub fn clear_if_ended(&self, now: Instant) {
        let until = self.until.load(Ordering::Relaxed);
        if until != 0 && until <= now.as_nanos() {
            let _ = self
                .until
                .compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Whether it is running at this instant.
    #[inline]
    #[must_use]
    pub fn is_running(&self, now: Instant) -> bool {
        now.as_nanos() < self.until.load(Ordering::Relaxed)
    }

    /// The remaining time; zero if there is none.
    #[must_use]
    pub fn left(&self, now: Instant) -> Duration {
        let until = Instant::from_nanos(self.until.load(Ordering::Relaxed));
        until.saturating_since(now)
    }

    /// The delay of an attempt that would start now: the remaining time plus a random jitter of at
    /// most `share` (from 0 to 1) of the cooldown's length, limited to `room`. Zero without a
    /// cooldown. The remaining time is returned even if it exceeds `room`.
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
        // A length that has not been written yet is at least the remaining time.
        let length = Length(self.length.load(Ordering::Relaxed))
            .nanos()
            .max(left);
        let spread = share_of(length, share);
        let spread = spread.min(nanos(room).saturating_sub(left));
        Duration::from_nanos(left.saturating_add(up_to(spread, random)))
    }
}

impl Default for Cooldown {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
impl Cooldown {
    /// Handles an attempt with this failure.
    pub(crate) fn on_failure(
        &self,
        now: Instant,
        failure: &crate::failure::Failure,
        most: Duration,
    ) -> bool {
        self.on_end(now, &AttemptOutcome::of(failure), most)
    }
}

/// Run with `RUSTFLAGS="--cfg loom" cargo test -p relent-core --lib loom`.
#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::failure::Failure;
    use crate::hint::Hint;
    use crate::random::FixedRandom;

    #[test]
    fn loom_the_longest_of_concurrent_cooldowns_sets_the_jitter() {
        // The first cooldown has the length of the longest, so that a length alone does not reveal
        // its writer.
        for lengths in [[0, 20, 12], [20, 20, 12], [12, 20, 12], [20, 12, 12]] {
            loom::model(move || {
                let begin = |cooldown: &Cooldown, at: u64, seconds: u64| {
                    let now = Instant::ORIGIN.saturating_add(Duration::from_secs(at));
                    let hint = Hint::after(Duration::from_secs(seconds));
                    let refused = Failure::throttled().hint(hint);
                    cooldown.on_failure(now, &refused, Duration::from_secs(300));
                };
                let cooldown = Arc::new(Cooldown::new());
                begin(&cooldown, 0, lengths[0]);
                let threads = [lengths[1], lengths[2]].map(|seconds| {
                    let cooldown = Arc::clone(&cooldown);
                    thread::spawn(move || begin(&cooldown, 100, seconds))
                });
                for thread in threads {
                    thread.join().unwrap();
                }
                let longest = lengths[1].max(lengths[2]);
                let now = Instant::ORIGIN.saturating_add(Duration::from_secs(100));
                let wait = cooldown.wait(now, Duration::MAX, 1.0, &mut FixedRandom::at(1.0));
                assert_eq!(wait, Duration::from_secs(2 * longest));
            });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::failure::{Failure, Scope};
    use crate::hint::{Audience, Hint};
    use crate::random::FixedRandom;

    const SECOND: Duration = Duration::from_secs(1);
    const MAX_HINT: Duration = Duration::from_secs(300);

    fn at(seconds: u64) -> Instant {
        Instant::ORIGIN.saturating_add(Duration::from_secs(seconds))
    }

    fn hinted(failure: Failure, seconds: u64) -> Failure {
        failure.hint(Hint::after(Duration::from_secs(seconds)))
    }

    #[test]
    fn a_hint_about_one_request_starts_no_cooldown() {
        let cooldown = Cooldown::new();
        let locked = hinted(Failure::throttled(), 4).scope(Scope::Request);
        assert!(!cooldown.on_failure(at(0), &locked, MAX_HINT));
        assert_eq!(cooldown.left(at(0)), Duration::ZERO);
    }

    #[test]
    fn only_an_ended_cooldown_is_removed() {
        let cooldown = Cooldown::new();
        assert!(!cooldown.has_begun());
        cooldown.on_failure(at(10), &hinted(Failure::throttled(), 4), MAX_HINT);
        cooldown.clear_if_ended(at(13));
        assert!(cooldown.has_begun());
        cooldown.clear_if_ended(at(14));
        assert!(!cooldown.has_begun());
        cooldown.on_failure(at(14), &hinted(Failure::throttled(), 2), MAX_HINT);
        assert_eq!(cooldown.left(at(15)), SECOND);
    }

    #[test]
    fn a_shared_hint_starts_a_cooldown_for_all_callers() {
        let cooldown = Cooldown::new();
        let refused = |seconds| hinted(Failure::throttled(), seconds);
        assert!(
            cooldown.on_failure(at(0), &refused(10), MAX_HINT),
            "it begins"
        );
        assert_eq!(cooldown.left(at(3)), 7 * SECOND);
        assert_eq!(cooldown.left(at(10)), Duration::ZERO);
        assert_eq!(
            cooldown.wait(at(11), MAX_HINT, 1.0, &mut FixedRandom::at(1.0)),
            Duration::ZERO
        );
        // A later, shorter one does not shorten it.
        assert!(!cooldown.on_failure(at(4), &refused(2), MAX_HINT));
        assert_eq!(cooldown.left(at(4)), 6 * SECOND);
        assert!(
            !cooldown.on_failure(at(5), &refused(20), MAX_HINT),
            "it goes on"
        );
        assert!(cooldown.on_failure(at(25), &refused(1), MAX_HINT));
    }

    #[test]
    fn tickets_and_failures_without_rejection_start_no_cooldown() {
        let cooldown = Cooldown::new();
        let ticket = Hint::after(SECOND).for_audience(Audience::TicketSeconds);
        cooldown.on_failure(at(0), &Failure::throttled().hint(ticket), MAX_HINT);
        cooldown.on_failure(at(0), &hinted(Failure::ambiguous(), 10), MAX_HINT);
        cooldown.on_failure(at(0), &hinted(Failure::permanent(), 10), MAX_HINT);
        cooldown.on_failure(at(0), &Failure::throttled(), MAX_HINT);
        assert_eq!(cooldown.left(at(0)), Duration::ZERO);
    }

    #[test]
    fn callers_return_with_jitter_after_a_cooldown_within_their_limits() {
        let cooldown = Cooldown::new();
        cooldown.on_failure(at(0), &hinted(Failure::not_processed(), 10), MAX_HINT);
        let wait = |room, point| cooldown.wait(at(4), room, 1.0, &mut FixedRandom::at(point));
        assert_eq!(wait(MAX_HINT, 0.0), 6 * SECOND);
        assert_eq!(wait(MAX_HINT, 1.0), 16 * SECOND);
        assert_eq!(wait(8 * SECOND, 1.0), 8 * SECOND);
        assert_eq!(wait(5 * SECOND, 1.0), 6 * SECOND, "does not fit");
        let quarter = cooldown.wait(at(4), MAX_HINT, 0.25, &mut FixedRandom::at(1.0));
        assert_eq!(
            quarter,
            6 * SECOND + 2500 * Duration::from_millis(1),
            "of 10 s"
        );
    }

    #[test]
    fn a_cooldown_is_limited_by_max_hint() {
        let cooldown = Cooldown::new();
        cooldown.on_failure(at(0), &hinted(Failure::throttled(), 86_400), MAX_HINT);
        assert_eq!(cooldown.left(at(0)), MAX_HINT);
    }
}
