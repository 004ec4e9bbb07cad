//! Endpoints that hints have named.

use std::collections::{BTreeSet, HashSet};

/// So many endpoints are remembered as another's. Then they are forgotten, and one hint of each costs a look again.
const MOST_ELSEWHERE: usize = 1 << 17;

/// Endpoints that hints have named and this worker does not have.
#[derive(Debug, Default)]
pub(super) struct Named {
    /// To be acquired, without a look.
    pub(super) fresh: BTreeSet<i64>,
    /// The next look is for them, since this worker has its share.
    pub(super) sought: HashSet<i64>,
    /// The look that is on its way is for them.
    pub(super) looked_for: HashSet<i64>,
    /// They could not be acquired, or were not found: another's, or disabled. When that ends, a look finds them, if they
    /// have work at that time, or a hint some leases later.
    pub(super) elsewhere: HashSet<i64>,
}

impl Named {
    pub(super) fn look_begins(&mut self) {
        self.looked_for = std::mem::take(&mut self.sought);
    }

    /// A look has found these, and all that there is.
    pub(super) fn found(&mut self, found: &HashSet<i64>) {
        let looked_for = std::mem::take(&mut self.looked_for);
        self.add_elsewhere(looked_for.difference(found).copied());
    }

    /// A look has found nothing that is of use here.
    pub(super) fn nothing_known(&mut self) {
        self.looked_for.clear();
    }

    /// Of those that were to be acquired it has these.
    pub(super) fn acquired(&mut self, wanted: &HashSet<i64>, has: &HashSet<i64>) {
        for id in has {
            self.elsewhere.remove(id);
        }
        self.add_elsewhere(wanted.difference(has).copied());
    }

    /// This worker has room: what was another's may have been given back, by one that has no room for it.
    pub(super) fn ask_again(&mut self) {
        self.elsewhere.clear();
    }

    fn add_elsewhere(&mut self, endpoints: impl Iterator<Item = i64>) {
        if self.elsewhere.len() >= MOST_ELSEWHERE {
            self.elsewhere.clear();
        }
        self.elsewhere.extend(endpoints);
    }
}
