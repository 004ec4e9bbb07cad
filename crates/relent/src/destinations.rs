//! A map of destinations by name, for a client that calls many.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use relent_core::Policy;

use crate::clock::Clock;
use crate::destination::Destination;

/// Destinations by name, for a client that calls many hosts. Each is created at its first use, with
/// the budget and the circuit breaker of the policy.
///
/// The number of entries is limited ([`Destinations::DEFAULT_MAX_ENTRIES`] by default). Beyond it the least
/// recently used destinations are removed, but never one that is in use.
///
/// ```
/// use relent::{Destinations, Policy};
///
/// let destinations = Destinations::new(Policy::STANDARD);
/// let one = destinations.get_or_create("one.example");
/// assert!(std::sync::Arc::ptr_eq(&one, &destinations.get_or_create("one.example")));
/// assert!(!std::sync::Arc::ptr_eq(&one, &destinations.get_or_create("two.example")));
/// ```
pub struct Destinations {
    most: usize,
    known: Mutex<Known>,
}

struct Known {
    /// The policy of destinations created from now on.
    policy: Arc<Policy>,
    by_name: HashMap<Arc<str>, Arc<Entry>>,
    /// The destination of the last call, which the next call most often uses, too: comparing a name
    /// costs a fraction of hashing it.
    last: Option<(Arc<str>, Arc<Entry>)>,
    /// The number of switches to another destination; orders the entries by last use.
    switches: u64,
}

struct Entry {
    destination: Arc<Destination>,
    /// The value of `switches` at the last switch away from this entry. Only written under the lock.
    last_called: AtomicU64,
}

impl Destinations {
    /// The default maximum number of destinations, 1024.
    pub const DEFAULT_MAX_ENTRIES: usize = 1024;

    /// Creates an empty map.
    pub fn new(policy: impl Into<Arc<Policy>>) -> Self {
        Self {
            most: Self::DEFAULT_MAX_ENTRIES,
            known: Mutex::new(Known {
                policy: policy.into(),
                by_name: HashMap::new(),
                last: None,
                switches: 0,
            }),
        }
    }

    /// The current policy.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.known().policy)
    }

    /// Replaces the policy of all destinations, existing (see [`Destination::set_policy`]) and
    /// future.
    ///
    /// An HTTP client also gives each call its own policy: use the client's `set_policy`, which
    /// sets both.
    ///
    /// ```
    /// use relent::{Destinations, Policy};
    /// use relent::clock::StdClock;
    ///
    /// let origins = Destinations::new(Policy::STANDARD);
    /// let one = origins.get_or_create("https://one.example");
    /// origins.set_policy(Policy::STANDARD.clone().without_retries(), &StdClock);
    /// assert!(one.policy().is_off() && origins.get_or_create("https://two.example").policy().is_off());
    /// ```
    pub fn set_policy(&self, policy: impl Into<Arc<Policy>>, clock: &impl Clock) {
        let policy = policy.into();
        let (before, all) = {
            let known = &mut *self.known();
            let before = std::mem::replace(&mut known.policy, policy);
            let all = known.by_name.values();
            let all: Vec<_> = all.map(|entry| Arc::clone(&entry.destination)).collect();
            (before, all)
        };
        drop(before);
        for destination in all {
            // Another thread may have set a newer policy meanwhile: repeat until ours is current.
            loop {
                let policy = self.policy();
                destination.set_policy(Arc::clone(&policy), clock);
                if Arc::ptr_eq(&policy, &self.policy()) {
                    break;
                }
            }
        }
    }

    /// Sets the maximum number of destinations, at least one.
    #[must_use]
    pub fn max_entries(mut self, most: usize) -> Self {
        self.most = most.max(1);
        self
    }

    /// The destination of this name; created if missing. HTTP clients use the origin (scheme, host
    /// and port) as the name, such as `https://one.example` or `http://one.example:8080`; see RFC
    /// 6454 §6.2.
    #[must_use]
    #[inline]
    pub fn get_or_create(&self, name: &str) -> Arc<Destination> {
        self.last_used(name).unwrap_or_else(|| self.find(name))
    }

    /// The most recently used destination, if it has this name.
    #[doc(hidden)]
    #[inline]
    pub fn last_used(&self, name: &str) -> Option<Arc<Destination>> {
        self.last_used_if(|last| *last == *name)
    }

    /// The most recently used destination, if `is_right` accepts its name. Avoids allocating the
    /// name.
    #[doc(hidden)]
    #[inline]
    pub fn last_used_if(&self, is_right: impl FnOnce(&str) -> bool) -> Option<Arc<Destination>> {
        let known = self.known();
        let (last, entry) = known.last.as_ref()?;
        is_right(last).then(|| Arc::clone(&entry.destination))
    }

    #[inline(never)]
    fn find(&self, name: &str) -> Arc<Destination> {
        self.known().of(name, self.most)
    }

    /// The number of destinations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known().by_name.len()
    }

    /// Whether the map is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    #[inline(never)]
    fn of(&mut self, name: &str, most: usize) -> Arc<Destination> {
        self.switches += 1;
        if let Some((_, before)) = self.last.take() {
            before.last_called.store(self.switches, Ordering::Relaxed);
        }
        let known = self.by_name.get_key_value(name);
        let (name, entry) = match known.map(|(name, entry)| (name.clone(), entry.clone())) {
            Some(known) => known,
            None => {
                if self.by_name.len() >= most {
                    self.evict_idle(most);
                }
                let name: Arc<str> = Arc::from(name);
                let destination = Destination::new(Arc::clone(&self.policy));
                let entry = Arc::new(Entry {
                    destination: Arc::new(destination.named(Arc::clone(&name))),
                    last_called: AtomicU64::new(self.switches),
                });
                self.by_name.insert(Arc::clone(&name), Arc::clone(&entry));
                (name, entry)
            }
        };
        let destination = Arc::clone(&entry.destination);
        self.last = Some((name, entry));
        destination
    }

    /// Removes an eighth of the entries, so that the search for the oldest is rare.
    fn evict_idle(&mut self, most: usize) {
        let idle = self.by_name.values().filter(|entry| entry.is_idle());
        let mut last_called: Vec<u64> = idle.map(|entry| entry.last_called()).collect();
        last_called.sort_unstable();
        let wanted = self.by_name.len() + most / 8 - most;
        let Some(&last) = last_called.get(wanted.min(last_called.len().saturating_sub(1))) else {
            return;
        };
        self.by_name
            .retain(|_, entry| !entry.is_idle() || entry.last_called() > last);
    }
}

impl Entry {
    fn last_called(&self) -> u64 {
        self.last_called.load(Ordering::Relaxed)
    }

    /// Whether no call uses it.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.destination) == 1
    }
}

impl fmt::Debug for Destinations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Destinations")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may panic")]
mod tests {
    use super::*;
    use crate::clock::StdClock;

    #[test]
    fn memory_is_bounded_and_least_recently_used_destinations_are_evicted() {
        let destinations = Destinations::new(Policy::STANDARD).max_entries(64);
        let held = destinations.get_or_create("held");
        for number in 0..10_000 {
            let _ = destinations.get_or_create(&format!("host-{number}"));
            let _ = destinations.get_or_create("often");
            assert!(destinations.len() <= 64);
        }
        assert!(
            Arc::ptr_eq(&held, &destinations.get_or_create("held")),
            "in use"
        );
        let before = destinations.len();
        let _ = destinations.get_or_create("often");
        assert_eq!(destinations.len(), before, "still known");
    }

    #[test]
    fn repeated_calls_to_one_destination_count_as_recent_use() {
        let destinations = Destinations::new(Policy::STANDARD).max_entries(8);
        for number in 0..8 {
            let _ = destinations.get_or_create(&number.to_string());
        }
        // Comparing the name without a lookup counts as a use, too.
        let budget = |name| std::ptr::from_ref(destinations.get_or_create(name).budget().unwrap());
        let first = budget("0");
        for _ in 0..100 {
            assert_eq!(budget("0"), first);
        }
        let _ = destinations.get_or_create("8");
        assert_eq!(budget("0"), first);
    }

    #[test]
    fn two_concurrent_set_policy_calls_leave_one_policy_everywhere() {
        let policies = [3, 5].map(|retries| {
            let policy = Policy::STANDARD.clone().into_builder().max_retries(retries);
            Arc::new(policy.build().unwrap())
        });
        let destinations = Destinations::new(policies[0].clone());
        let all: Vec<_> = ["one", "two", "three"]
            .map(|name| destinations.get_or_create(name))
            .into();
        for _ in 0..500 {
            std::thread::scope(|scope| {
                for policy in &policies {
                    let set = || destinations.set_policy(Arc::clone(policy), &StdClock);
                    scope.spawn(set);
                }
            });
            let in_force = destinations.policy();
            assert!(all.iter().all(|one| Arc::ptr_eq(&one.policy(), &in_force)));
            let later = destinations.get_or_create("another");
            assert!(Arc::ptr_eq(&later.policy(), &in_force));
        }
    }

    #[test]
    fn a_destination_in_use_is_never_evicted() {
        let destinations = Destinations::new(Policy::STANDARD).max_entries(4);
        let held: Vec<_> = (0..9)
            .map(|number| destinations.get_or_create(&number.to_string()))
            .collect();
        for (number, one) in held.iter().enumerate() {
            assert!(Arc::ptr_eq(
                one,
                &destinations.get_or_create(&number.to_string())
            ));
        }
        drop(held);
        let _ = destinations.get_or_create("another");
        assert!(destinations.len() < 9);
    }
}
