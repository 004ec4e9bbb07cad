//! Ownership of endpoints: those to acquire, as named by hints and found by searches, and those to release.

use std::collections::{BTreeSet, HashSet, VecDeque};

use crate::store::Fence;

/// The number of endpoints remembered as owned by other workers. Beyond it all are forgotten, and one hint of each
/// costs a search again.
const MAX_OWNED_ELSEWHERE: usize = 1 << 17;

/// The endpoints that this worker is about to acquire or to release.
#[derive(Debug, Default)]
pub(super) struct Ownership {
    /// Named by hints, to be acquired without a search.
    hinted: BTreeSet<i64>,
    /// Named by hints beyond the share of the worker, to be found by the next search; and by the running one.
    to_search: HashSet<i64>,
    searched: HashSet<i64>,
    /// Not acquired or not found: owned by another worker, or disabled. Once that changes, a search finds those with
    /// work; a hint counts again only some leases later.
    owned_elsewhere: HashSet<i64>,
    /// Found by the last search.
    found: VecDeque<i64>,
    /// Named in the running call.
    acquiring: HashSet<i64>,
    to_release: Vec<(i64, Fence)>,
    /// Some of them have due messages, as far as is known.
    release_due: bool,
}

impl Ownership {
    /// Whether a hint of this endpoint changes nothing: it is about to be acquired, or cannot be.
    pub(super) fn ignores_hint(&self, id: i64) -> bool {
        self.is_acquiring(id) || self.owned_elsewhere.contains(&id)
    }

    pub(super) fn is_acquiring(&self, id: i64) -> bool {
        self.acquiring.contains(&id)
    }

    /// The number of endpoints that it is about to acquire because of hints.
    pub(super) fn hinted(&self) -> usize {
        self.acquiring.len() + self.hinted.len()
    }

    /// Notes a hint of an endpoint that fits the share of the worker.
    pub(super) fn hint(&mut self, id: i64) {
        self.hinted.insert(id);
    }

    /// Notes a hint of an endpoint beyond the share, which the next search looks for. If it has no owner, the worker
    /// releases others for it.
    pub(super) fn hint_beyond_share(&mut self, id: i64) {
        self.to_search.insert(id);
    }

    pub(super) fn search_begins(&mut self) {
        self.searched = std::mem::take(&mut self.to_search);
    }

    /// Handles the result of a search. A truncated one proves no absence.
    pub(super) fn search_ends(&mut self, found: impl Iterator<Item = i64>, is_truncated: bool) {
        let mut missed = std::mem::take(&mut self.searched);
        if !is_truncated {
            for id in found {
                missed.remove(&id);
            }
            self.add_elsewhere(missed);
        }
        self.found.clear();
    }

    /// Notes an endpoint that a search has found.
    pub(super) fn found(&mut self, id: i64) {
        self.found.push_back(id);
    }

    /// The number of endpoints to acquire.
    pub(super) fn wanted(&self) -> usize {
        self.hinted.len() + self.found.len()
    }

    /// Forgets the endpoints to acquire.
    pub(super) fn want_none(&mut self) {
        self.hinted.clear();
        self.found.clear();
    }

    /// Chooses up to `most` endpoints to acquire now. A hint may have named one that a search has found, too, and that
    /// the worker owns by now.
    pub(super) fn begin_acquire(
        &mut self,
        most: usize,
        is_owned: impl Fn(&i64) -> bool,
    ) -> Vec<i64> {
        while self.acquiring.len() < most
            && let Some(id) = (self.hinted.pop_first()).or_else(|| self.found.pop_front())
        {
            if !is_owned(&id) {
                self.acquiring.insert(id);
            }
        }
        self.acquiring.iter().copied().collect()
    }

    /// Handles the result of an acquisition; without an endpoint if it failed.
    pub(super) fn end_acquire(&mut self, acquired: impl Iterator<Item = i64>) {
        let mut missed = std::mem::take(&mut self.acquiring);
        for id in acquired {
            missed.remove(&id);
            self.owned_elsewhere.remove(&id);
        }
        self.add_elsewhere(missed);
    }

    /// Forgets other workers' endpoints: this worker is below its share, and others may have released theirs.
    pub(super) fn ask_again(&mut self) {
        self.owned_elsewhere.clear();
    }

    /// Forgets all hints: the worker acquires nothing, or could not acquire them so far.
    pub(super) fn forget_hints(&mut self) {
        self.hinted.clear();
        self.to_search.clear();
        self.searched.clear();
        self.owned_elsewhere.clear();
    }

    /// Releases an endpoint by the next call.
    pub(super) fn release(&mut self, id: i64, fence: Fence, is_due: bool) {
        self.to_release.push((id, fence));
        self.release_due |= is_due;
    }

    /// Whether endpoints are to be released.
    pub(super) const fn has_releases(&self) -> bool {
        !self.to_release.is_empty()
    }

    /// Takes the endpoints to release.
    pub(super) fn begin_release(&mut self) -> Vec<(i64, Fence)> {
        std::mem::take(&mut self.to_release)
    }

    /// Handles the end of a release. Returns whether a released endpoint has due messages.
    pub(super) const fn end_release(&mut self) -> bool {
        std::mem::replace(&mut self.release_due, false)
    }

    fn add_elsewhere(&mut self, endpoints: HashSet<i64>) {
        if self.owned_elsewhere.len() >= MAX_OWNED_ELSEWHERE {
            self.owned_elsewhere.clear();
        }
        self.owned_elsewhere.extend(endpoints);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hinted_endpoints_come_before_found_ones_and_owned_ones_are_skipped() {
        let mut ownership = Ownership::default();
        for id in [7, 8, 9] {
            ownership.found(id);
        }
        ownership.hint(3);
        assert_eq!(ownership.wanted(), 4);
        let mut chosen = ownership.begin_acquire(2, |id| *id == 7);
        chosen.sort_unstable();
        assert_eq!((chosen, ownership.wanted()), (vec![3, 8], 1));
        assert!(ownership.ignores_hint(3), "it is about to be acquired");
    }

    #[test]
    fn a_missed_endpoint_ignores_hints_until_the_worker_asks_again() {
        let mut ownership = Ownership::default();
        ownership.hint(1);
        ownership.hint(2);
        ownership.begin_acquire(9, |_| false);
        ownership.end_acquire([1].into_iter());
        assert!(!ownership.ignores_hint(1) && ownership.ignores_hint(2));
        ownership.ask_again();
        assert!(!ownership.ignores_hint(2));
    }

    #[test]
    fn only_a_complete_search_proves_that_another_worker_owns_an_endpoint() {
        let mut ownership = Ownership::default();
        for is_truncated in [true, false] {
            ownership.hint_beyond_share(1);
            ownership.hint_beyond_share(2);
            ownership.search_begins();
            ownership.search_ends([2].into_iter(), is_truncated);
            assert_eq!(ownership.ignores_hint(1), !is_truncated);
            assert!(!ownership.ignores_hint(2));
        }
    }

    #[test]
    fn a_release_reports_once_whether_messages_were_due() {
        let mut ownership = Ownership::default();
        let fence = Fence(1);
        ownership.release(1, fence, true);
        ownership.release(2, fence, false);
        assert_eq!(ownership.begin_release().len(), 2);
        assert!(!ownership.has_releases());
        assert!(ownership.end_release() && !ownership.end_release());
    }
}
