//! Searches for work: the time of the next one, and the limit and result of the last one.

use std::time::Duration;

use tokio::time::Instant;

/// The shortest time between two searches for work, even if there are many hints.
pub(super) const MIN_SEARCH_INTERVAL: Duration = Duration::from_millis(5);
/// The number of endpoints that a search for work returns in addition to those that the worker owns.
const MAX_EXTRA_ENDPOINTS: usize = 2048;

/// When the worker looks for endpoints with due messages.
#[derive(Debug)]
pub(super) struct Search {
    /// The time between two searches without a hint.
    interval: Duration,
    next_at: Instant,
    began: Instant,
    limit: usize,
    /// The last search reached its limit, so there may be more.
    was_truncated: bool,
}

impl Search {
    pub(super) const fn new(now: Instant, interval: Duration) -> Self {
        Self {
            interval,
            next_at: now,
            began: now,
            limit: MAX_EXTRA_ENDPOINTS,
            was_truncated: false,
        }
    }

    /// The time of the next search.
    pub(super) const fn next_at(&self) -> Instant {
        self.next_at
    }

    /// Searches soon: there may be work.
    pub(super) fn soon(&mut self, now: Instant) {
        self.within(now, MIN_SEARCH_INTERVAL);
    }

    /// Searches within this time.
    pub(super) fn within(&mut self, now: Instant, wait: Duration) {
        self.next_at = self.next_at.min(now + wait);
    }

    /// Searches again soon, whenever the next search would be.
    pub(super) fn again(&mut self, now: Instant) {
        self.next_at = now + MIN_SEARCH_INTERVAL;
    }

    /// Searches not before that time, as the store fails.
    pub(super) const fn postpone(&mut self, until: Instant) {
        self.next_at = until;
    }

    /// Starts a search by a worker that owns this number of endpoints. Returns the limit of its result.
    pub(super) fn begin(&mut self, now: Instant, owned: usize) -> usize {
        self.next_at = now + self.interval;
        self.began = now;
        self.limit = MAX_EXTRA_ENDPOINTS + owned;
        self.limit
    }

    /// The start of the last search. It does not know of later acquisitions.
    pub(super) const fn began(&self) -> Instant {
        self.began
    }

    /// Records the number of endpoints that the search has found. Returns whether there may be more.
    pub(super) const fn found(&mut self, count: usize) -> bool {
        self.was_truncated = count >= self.limit;
        self.was_truncated
    }

    /// Whether the last search reached its limit.
    pub(super) const fn was_truncated(&self) -> bool {
        self.was_truncated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_bring_a_search_forward_but_not_below_the_shortest_interval() {
        let now = Instant::now();
        let mut search = Search::new(now, Duration::from_secs(1));
        search.begin(now, 0);
        assert_eq!(search.next_at(), now + Duration::from_secs(1));
        search.soon(now);
        search.within(now, Duration::from_secs(5));
        assert_eq!(search.next_at(), now + MIN_SEARCH_INTERVAL);
        search.postpone(now + Duration::from_secs(9));
        assert_eq!(search.next_at(), now + Duration::from_secs(9));
    }

    #[test]
    fn a_result_as_long_as_its_limit_may_be_truncated() {
        let now = Instant::now();
        let mut search = Search::new(now, Duration::from_secs(1));
        let limit = search.begin(now, 10);
        assert!(!search.found(limit - 1) && !search.was_truncated());
        assert!(search.found(limit) && search.was_truncated());
    }
}
