//! A limiter for each key, with bounded memory.

use alloc::vec::Vec;

use super::Limiter;
use crate::time::Instant;

/// The number of entries that are checked for each new key.
const KEYS_CHECKED_PER_INSERT: usize = 8;
/// The maximum number of keys.
const MAX_KEYS: u32 = 1 << 31;
/// The end of a chain, or an empty chain.
const END_OF_CHAIN: u32 = u32::MAX;

/// A [`Limiter`] for each key, such as one for each account, with bounded memory.
///
/// # Removal of idle keys
/// A limiter with a full burst and no ticket is equivalent to a new one, so removing it has no
/// effect. Each new key checks the next eight limiters in turn and removes idle ones. There are
/// never many more limiters than keys in use, no periodic cleanup is needed, and the cost of a key
/// is independent of their number.
///
/// # When all are in use
/// If the maximum number of limiters is in use, a new key replaces that one of the eight which is
/// nearest to full. The replaced key gets its missing quota too early, and its ticket finds a full
/// burst. Rejecting new keys instead would let a client with many keys lock out all others. A
/// client with more keys than the maximum gains nothing from the replacement, since a new limiter
/// is full anyway; limit the total of all keys separately. [`forgotten`](Self::forgotten) counts
/// the replacements.
///
/// # Memory
/// About 200 bytes per key, and 100 for each reserved slot; see
/// [`LimiterConfig::horizon`](crate::admission::LimiterConfig::horizon).
///
/// ```
/// use core::time::Duration;
/// use relent_core::Instant;
/// use relent_core::admission::{KeyedLimiter, Limiter, LimiterConfig, Verdict};
///
/// let config = LimiterConfig { burst: 1, ..LimiterConfig::new(1, Duration::from_secs(1)) };
/// let limiter = Limiter::new(&config)?;
/// let mut accounts = KeyedLimiter::new(limiter, 100_000);
/// let (now, ann, bob) = (Instant::ORIGIN, 7, 8);
/// let admitted = Verdict::Admitted { ticket: false };
/// assert_eq!(accounts.limiter(now, ann).admit(now, None, 1), admitted);
/// assert_eq!(accounts.limiter(now, bob).admit(now, None, 1), admitted);
/// assert!(matches!(accounts.limiter(now, ann).admit(now, None, 1), Verdict::Refused(_)));
///
/// // Both are full again, and the next new key removes them.
/// let later = now.saturating_add(Duration::from_secs(60));
/// accounts.limiter(later, 9);
/// assert_eq!((accounts.keys(), accounts.forgotten()), (1, 0));
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct KeyedLimiter {
    /// The template: a limiter that has admitted nothing.
    new: Limiter,
    max_keys: usize,
    entries: Vec<Entry>,
    /// The first entry of each chain. Its length is a power of two, at least the number of entries.
    chains: Vec<u32>,
    /// The entry that is checked next.
    next_checked: usize,
    latest: Instant,
    forgotten: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    key: u64,
    /// The next entry of its chain.
    next: u32,
    limiter: Limiter,
}

impl KeyedLimiter {
    /// Creates a map with a copy of this unused limiter for each of at most `max_keys` keys (from 1
    /// to 2³¹; other values are clamped).
    #[must_use]
    pub const fn new(limiter: Limiter, max_keys: u32) -> Self {
        Self {
            new: limiter,
            max_keys: match max_keys {
                0 => 1,
                1..=MAX_KEYS => max_keys as usize,
                _ => MAX_KEYS as usize,
            },
            entries: Vec::new(),
            chains: Vec::new(),
            next_checked: 0,
            latest: Instant::ORIGIN,
            forgotten: 0,
        }
    }

    /// The limiter of this key at `now`. A key is a hash, such as a caller's, whose lower bits must
    /// differ.
    pub fn limiter(&mut self, now: Instant, key: u64) -> &mut Limiter {
        self.latest = self.latest.max(now);
        let index = match self.find(key) {
            Some(index) => index,
            None => {
                self.evict_idle();
                self.insert(key)
            }
        };
        &mut self.entries[index].limiter
    }

    /// The number of keys in memory.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.entries.len()
    }

    /// The number of limiters that were removed while they were in use.
    #[must_use]
    pub const fn forgotten(&self) -> u64 {
        self.forgotten
    }

    fn find(&self, key: u64) -> Option<usize> {
        let mut index = *self.chains.get(self.chain(key))?;
        while let Some(entry) = self.entries.get(index as usize) {
            if entry.key == key {
                return Some(index as usize);
            }
            index = entry.next;
        }
        None
    }

    const fn chain(&self, key: u64) -> usize {
        // A power of two, or zero.
        key as usize & self.chains.len().wrapping_sub(1)
    }

    /// Removes idle entries among the next few, and at least one entry if the map is full.
    fn evict_idle(&mut self) {
        let mut nearest: Option<(Instant, u64)> = None;
        for _ in 0..KEYS_CHECKED_PER_INSERT.min(self.entries.len()) {
            if self.next_checked >= self.entries.len() {
                self.next_checked = 0;
            }
            let entry = &self.entries[self.next_checked];
            let idle = entry.limiter.idle_from();
            if idle <= self.latest {
                // The last entry takes its place, and is checked next.
                self.remove(self.next_checked);
                continue;
            }
            if nearest.is_none_or(|(other, _)| idle < other) {
                nearest = Some((idle, entry.key));
            }
            self.next_checked += 1;
        }
        if self.entries.len() < self.max_keys {
            return;
        }
        if let Some(index) = nearest.and_then(|(_, key)| self.find(key)) {
            self.remove(index);
            self.forgotten = self.forgotten.saturating_add(1);
        }
    }

    fn insert(&mut self, key: u64) -> usize {
        let index = self.entries.len();
        let mut limiter = self.new.clone();
        limiter.latest = self.latest.as_nanos();
        self.entries.push(Entry {
            key,
            next: END_OF_CHAIN,
            limiter,
        });
        if index < self.chains.len() {
            self.link(index);
        } else {
            self.chains = alloc::vec![END_OF_CHAIN; (index + 1).next_power_of_two()];
            for index in 0..=index {
                self.link(index);
            }
        }
        index
    }

    /// Inserts an entry at the front of its chain.
    fn link(&mut self, index: usize) {
        let chain = self.chain(self.entries[index].key);
        self.entries[index].next = core::mem::replace(&mut self.chains[chain], index as u32);
    }

    /// The place that holds the index of this entry: its chain, or the entry before it.
    fn pointer(&mut self, index: usize) -> &mut u32 {
        let chain = self.chain(self.entries[index].key);
        let mut before = None;
        let mut at = self.chains[chain] as usize;
        while at != index {
            before = Some(at);
            at = self.entries[at].next as usize;
        }
        match before {
            Some(before) => &mut self.entries[before].next,
            None => &mut self.chains[chain],
        }
    }

    fn remove(&mut self, index: usize) {
        let next = self.entries[index].next;
        *self.pointer(index) = next;
        let last = self.entries.len() - 1;
        if index != last {
            *self.pointer(last) = index as u32;
        }
        self.entries.swap_remove(index);
    }
}

impl Limiter {
    /// The time at which it becomes equivalent to an unused limiter, if it is not used before.
    fn idle_from(&self) -> Instant {
        // Used slots no longer matter.
        let reserved = self.reserved.back().filter(|_| !self.tickets.is_empty());
        let lapses = reserved.map(|(slot, _)| slot).max(self.open.back());
        let lapsed = lapses.map_or(0, |slot| slot.saturating_add(self.grace).saturating_add(1));
        let queue_end = match self.queue_end {
            0 => 0,
            queue_end => queue_end.saturating_add(self.tolerance),
        };
        Instant::from_nanos(self.scheduled.max(queue_end).max(lapsed))
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
