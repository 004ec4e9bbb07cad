//! Endpoints named by hints.

use std::collections::{BTreeSet, HashSet};

/// The number of endpoints remembered as owned by other workers. Beyond it all are forgotten, and one hint of each
/// costs a search again.
const MAX_OWNED_ELSEWHERE: usize = 1 << 17;

/// Endpoints that hints have named and this worker does not own.
#[derive(Debug, Default)]
pub(super) struct HintedEndpoints {
    /// To be acquired without a search.
    pub(super) fresh: BTreeSet<i64>,
    /// To be found by the next search, because this worker already has its share.
    pub(super) to_search: HashSet<i64>,
    /// To be found by the running search.
    pub(super) looked_for: HashSet<i64>,
    /// Not acquired or not found: owned by another worker, or disabled. Once that changes, a search finds those with
    /// work; a hint counts again only some leases later.
    pub(super) owned_elsewhere: HashSet<i64>,
}

impl HintedEndpoints {
    pub(super) fn search_started(&mut self) {
        self.looked_for = std::mem::take(&mut self.to_search);
    }

    /// Handles the complete result of a search.
    pub(super) fn found(&mut self, found: &HashSet<i64>) {
        let looked_for = std::mem::take(&mut self.looked_for);
        self.add_elsewhere(looked_for.difference(found).copied());
    }

    /// Handles a truncated result of a search, which proves no absence.
    pub(super) fn search_truncated(&mut self) {
        self.looked_for.clear();
    }

    /// Handles the result of an acquisition.
    pub(super) fn acquired(&mut self, wanted: &HashSet<i64>, has: &HashSet<i64>) {
        for id in has {
            self.owned_elsewhere.remove(id);
        }
        self.add_elsewhere(wanted.difference(has).copied());
    }

    /// Forgets other workers' endpoints: this worker is below its share, and others may have released theirs.
    pub(super) fn ask_again(&mut self) {
        self.owned_elsewhere.clear();
    }

    fn add_elsewhere(&mut self, endpoints: impl Iterator<Item = i64>) {
        if self.owned_elsewhere.len() >= MAX_OWNED_ELSEWHERE {
            self.owned_elsewhere.clear();
        }
        self.owned_elsewhere.extend(endpoints);
    }
}
