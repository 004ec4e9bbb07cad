//! Limits for all requests together, shared fairly among principals.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The account of a request. The empty one is for layers without accounts, and may use everything.
pub(crate) type Principal = Arc<str>;

/// A limited resource of all requests together.
///
/// A principal may hold as much as is free. So a single principal gets at most half, and k principals get 1/(k + 1)
/// each. There is always some left for the next one, without a setting. (Switches share buffers among queues by this
/// rule: Choudhury and Hahne, "Dynamic queue length thresholds", 1998.)
#[derive(Clone, Debug)]
pub(crate) struct Shares(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    most: usize,
    used: usize,
    by_principal: HashMap<Principal, usize>,
}

impl Shares {
    pub(crate) fn new(most: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            most,
            used: 0,
            by_principal: HashMap::new(),
        })))
    }

    /// Changes the limit. Held shares stay held.
    pub(crate) fn set_most(&self, most: usize) {
        self.lock().most = most;
    }

    /// Takes this amount for a principal; `None` if the limit, or the principal's share of it, is reached.
    pub(crate) fn take(&self, principal: &Principal, amount: usize) -> Option<Share> {
        let mut share = Share {
            shares: self.clone(),
            principal: Arc::clone(principal),
            amount: 0,
        };
        share.grow(amount).then_some(share)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The share of one request, given back on drop.
#[derive(Debug)]
pub(crate) struct Share {
    shares: Shares,
    principal: Principal,
    amount: usize,
}

impl Share {
    /// Takes more, if that is within the limits.
    pub(crate) fn grow(&mut self, more: usize) -> bool {
        let mut state = self.shares.lock();
        let free = state.most.saturating_sub(state.used);
        let mine = state.by_principal.get(&self.principal).copied();
        let fits = more <= free
            && (self.principal.is_empty() || mine.unwrap_or(0).saturating_add(more) <= free);
        if fits {
            self.amount += state.add(&self.principal, more);
        }
        fits
    }

    /// Takes more despite the limits, for a body that has its own limit.
    pub(crate) fn grow_anyway(&mut self, more: usize) {
        self.amount += self.shares.lock().add(&self.principal, more);
    }
}

impl State {
    fn add(&mut self, principal: &Principal, more: usize) -> usize {
        self.used = self.used.saturating_add(more);
        if !principal.is_empty() {
            let mine = self.by_principal.entry(Arc::clone(principal)).or_default();
            *mine = mine.saturating_add(more);
        }
        more
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut state = self.shares.lock();
        state.used = state.used.saturating_sub(self.amount);
        if let Some(mine) = state.by_principal.get_mut(&self.principal) {
            *mine = mine.saturating_sub(self.amount);
            if *mine == 0 {
                state.by_principal.remove(&self.principal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(shares: &Shares, principal: &str) -> Vec<Share> {
        let principal = Principal::from(principal);
        std::iter::from_fn(|| shares.take(&principal, 1)).collect()
    }

    #[test]
    fn a_principal_may_hold_as_much_as_is_free() {
        let shares = Shares::new(1000);
        let first = all(&shares, "a");
        assert_eq!(first.len(), 500);
        let second = all(&shares, "b");
        assert_eq!(second.len(), 250);
        assert!(!all(&shares, "c").is_empty(), "there is always some left");
        drop(first);
        assert_eq!(all(&shares, "d").len(), 375);
    }

    #[test]
    fn the_empty_principal_may_use_everything() {
        let shares = Shares::new(3);
        let mut taken = all(&shares, "");
        assert_eq!(taken.len(), 3);
        assert!(!taken[0].grow(1));
        taken[0].grow_anyway(2);
        taken.truncate(1);
        assert!(shares.take(&"".into(), 1).is_none(), "it holds three");
        drop(taken);
        assert_eq!(all(&shares, "").len(), 3);
        assert!(shares.lock().by_principal.is_empty());
    }
}
