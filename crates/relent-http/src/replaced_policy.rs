//! A policy that replaces the original one while calls run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use relent::clock::Clock;
use relent_core::Policy;

use crate::destinations::DestinationSource;

/// The policy that has replaced the original one of a client or a layer, if any.
///
/// Until a policy is set, each call costs one atomic load.
#[derive(Debug, Default)]
pub struct ReplacedPolicy {
    is_set: AtomicBool,
    policy: RwLock<Option<Arc<Policy>>>,
}

impl ReplacedPolicy {
    /// The replacing policy, if one was set.
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

    /// Sets the policy of new calls, and of their shared destinations as described at
    /// [`relent::Destination::set_policy`]. If two policies are set concurrently, one of them applies to
    /// both. No lock is held while destinations wake waiters, which may call back.
    pub fn set(&self, policy: Arc<Policy>, destinations: &DestinationSource, clock: &impl Clock) {
        let before = {
            let mut own = self.policy.write().unwrap_or_else(PoisonError::into_inner);
            own.replace(policy)
        };
        drop(before);
        self.is_set.store(true, Ordering::Release);
        while let Some(policy) = self.read() {
            destinations.set_policy(&policy, clock);
            // A policy that was set meanwhile may already be in the destinations: the last one must stay.
            if self.read().is_some_and(|last| Arc::ptr_eq(&last, &policy)) {
                break;
            }
        }
    }
}

/// Makes an independent copy: policies that are set later do not affect it.
impl Clone for ReplacedPolicy {
    fn clone(&self) -> Self {
        let policy = self.get();
        Self {
            is_set: AtomicBool::new(policy.is_some()),
            policy: RwLock::new(policy),
        }
    }
}
