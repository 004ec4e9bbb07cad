//! The policy that was set in place of the first, while calls run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use relent::clock::Clock;
use relent_core::Policy;

use crate::destinations::DestinationSource;

/// The policy that was set in place of the one that a client or a layer was made with.
///
/// Until there is one, a call pays for one load of an atomic.
#[derive(Debug, Default)]
pub struct ReplacedPolicy {
    is_set: AtomicBool,
    policy: RwLock<Option<Arc<Policy>>>,
}

impl ReplacedPolicy {
    /// It, if there is one.
    #[inline]
    #[must_use]
    pub fn get(&self) -> Option<Arc<Policy>> {
        match self.is_set.load(Ordering::Acquire) {
            true => self.read(),
            false => None,
        }
    }

    #[cold]
    fn read(&self) -> Option<Arc<Policy>> {
        let policy = self.policy.read();
        policy.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on new calls go by this policy, and so does what they share, as
    /// [`relent::Destination::set_policy`] describes. Of two policies that are set at once, one is in force for
    /// both. No lock is held while destinations wake those who wait, who may come back here.
    pub fn set(&self, policy: Arc<Policy>, destinations: &DestinationSource, clock: &impl Clock) {
        let before = {
            let mut own = self.policy.write().unwrap_or_else(PoisonError::into_inner);
            own.replace(policy)
        };
        drop(before);
        self.is_set.store(true, Ordering::Release);
        while let Some(policy) = self.read() {
            destinations.set_policy(&policy, clock);
            // Another one that is set meanwhile may have been there already: the last one stays.
            if self.read().is_some_and(|last| Arc::ptr_eq(&last, &policy)) {
                break;
            }
        }
    }
}

/// What goes by another policy from then on.
impl Clone for ReplacedPolicy {
    fn clone(&self) -> Self {
        let policy = self.get();
        Self {
            is_set: AtomicBool::new(policy.is_some()),
            policy: RwLock::new(policy),
        }
    }
}
