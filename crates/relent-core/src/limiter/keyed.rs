//! A limiter for each key, within a bounded memory.

use alloc::vec::Vec;

use super::Limiter;
use crate::time::Instant;

/// So many limiters are looked at when a new key comes.
const LOOK: usize = 8;
/// So many keys can be numbered.
const MOST_KEYS: u32 = 1 << 31;
/// The end of a chain, and an empty one.
const NONE: u32 = u32::MAX;

/// A [`Limiter`] for each key, such as one for each account, in a memory that is bounded.
///
/// # What is forgotten
/// A limiter that is full again and holds no ticket is as good as a new one, so nobody notices that it is
/// forgotten. Each new key looks at the next eight limiters in turn and forgets those. So there are
/// never many more of them than keys that are in use, nothing has to be called from time to time, and a
/// key costs the same however many there are.
///
/// # When all are in use
/// With as many of them in use as there is room for the one that is nearest to full among those eight is forgotten for
/// a new key: what its key gets too early is what was missing, and who comes with its ticket finds a full
/// burst. The alternative, to refuse new keys, would let whoever has many of them lock out
/// everybody else. Who can have more keys than that gains nothing by it, for a new one is full
/// anyway; what all of them get together needs a limit of its own.
/// [`forgotten`](Self::forgotten) counts them.
///
/// # Memory
/// About 200 bytes a key, and 100 for each slot that is reserved in its limiter, see
/// [`LimiterConfig::horizon`](crate::LimiterConfig::horizon).
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Instant, KeyedLimiter, Limiter, LimiterConfig, Verdict};
///
/// let config = LimiterConfig { burst: 1, ..LimiterConfig::new(1, Duration::from_secs(1)) };
/// let limiter = Limiter::new(&config)?;
/// let mut accounts = KeyedLimiter::new(limiter, 100_000);
/// let (now, ann, bob) = (Instant::ORIGIN, 7, 8);
/// let admitted = Verdict::Admitted { ticket: false };
/// assert_eq!(accounts.limiter(now, ann).judge(now, None, 1), admitted);
/// assert_eq!(accounts.limiter(now, bob).judge(now, None, 1), admitted);
/// assert!(matches!(accounts.limiter(now, ann).judge(now, None, 1), Verdict::Refused(_)));
///
/// // Both are full again, and the next new key forgets them.
/// let later = now.saturating_add(Duration::from_secs(60));
/// accounts.limiter(later, 9);
/// assert_eq!((accounts.keys(), accounts.forgotten()), (1, 0));
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct KeyedLimiter {
    /// One that has admitted nothing.
    new: Limiter,
    max_keys: usize,
    entries: Vec<Entry>,
    /// The first entry of each chain; a power of two, and at least as many as entries.
    chains: Vec<u32>,
    /// The entry that is looked at next.
    hand: usize,
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
    /// A limiter like this one, which has admitted nothing yet, for each of at most so many keys. 0 counts as 1,
    /// and what is beyond 2³¹ as that.
    #[must_use]
    pub const fn new(limiter: Limiter, max_keys: u32) -> Self {
        Self {
            new: limiter,
            max_keys: match max_keys {
                0 => 1,
                1..=MOST_KEYS => max_keys as usize,
                _ => MOST_KEYS as usize,
            },
            entries: Vec::new(),
            chains: Vec::new(),
            hand: 0,
            latest: Instant::ORIGIN,
            forgotten: 0,
        }
    }

    /// The limiter of this key, to be asked at `now`. A key is a hash, as that of a caller is: its
    /// lower bits have to differ.
    pub fn limiter(&mut self, now: Instant, key: u64) -> &mut Limiter {
        self.latest = self.latest.max(now);
        let index = match self.find(key) {
            Some(index) => index,
            None => {
                self.make_room();
                self.insert(key)
            }
        };
        &mut self.entries[index].limiter
    }

    /// How many keys are remembered.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.entries.len()
    }

    /// How many limiters were forgotten while they were in use, since all were.
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
        // A power of two, or none.
        key as usize & self.chains.len().wrapping_sub(1)
    }

    /// Forgets what is idle among the next few, and one of them at least if there is no room.
    fn make_room(&mut self) {
        let mut nearest: Option<(Instant, u64)> = None;
        for _ in 0..LOOK.min(self.entries.len()) {
            if self.hand >= self.entries.len() {
                self.hand = 0;
            }
            let entry = &self.entries[self.hand];
            let idle = entry.limiter.idle_from();
            if idle <= self.latest {
                // The last one comes in its place, and is looked at next.
                self.remove(self.hand);
                continue;
            }
            if nearest.is_none_or(|(other, _)| idle < other) {
                nearest = Some((idle, entry.key));
            }
            self.hand += 1;
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
            next: NONE,
            limiter,
        });
        if index < self.chains.len() {
            self.link(index);
        } else {
            self.chains = alloc::vec![NONE; (index + 1).next_power_of_two()];
            for index in 0..=index {
                self.link(index);
            }
        }
        index
    }

    /// Puts an entry in front of its chain.
    fn link(&mut self, index: usize) {
        let chain = self.chain(self.entries[index].key);
        self.entries[index].next = core::mem::replace(&mut self.chains[chain], index as u32);
    }

    /// Where the number of this entry stands: in its chain, or in the entry before it.
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
    /// From when on it is as one that has admitted nothing, if nobody asks it before.
    fn idle_from(&self) -> Instant {
        // Slots that were used mean nothing any more.
        let reserved = self.reserved.back().filter(|_| !self.tickets.is_empty());
        let lapses = reserved.map(|(slot, _)| slot).max(self.open.back());
        let lapsed = lapses.map_or(0, |slot| slot.saturating_add(self.grace).saturating_add(1));
        let line = match self.line {
            0 => 0,
            line => line.saturating_add(self.tolerance),
        };
        Instant::from_nanos(self.scheduled.max(line).max(lapsed))
    }
}

#[cfg(all(test, not(loom)))]
#[path = "keyed_tests.rs"]
mod tests;
