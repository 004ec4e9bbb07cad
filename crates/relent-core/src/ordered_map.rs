//! A map in the order of its keys that takes little memory beside what it holds.

use alloc::collections::btree_map::OccupiedEntry;
use alloc::collections::{BTreeMap, VecDeque};
use core::mem;

/// The most entries of a block.
const MOST: usize = 64;

/// A map in the order of its keys, in blocks of up to [`MOST`] entries which a B-tree finds. A B-tree of the entries
/// themselves is half empty if they come in order, as callers do; these blocks are full then, and a map of a few
/// entries is small.
#[derive(Debug)]
pub(crate) struct OrderedMap<K, V> {
    /// Each by a key that is at most its first and above all of the block before. None is empty.
    blocks: BTreeMap<K, VecDeque<(K, V)>>,
    len: usize,
}

impl<K, V> Default for OrderedMap<K, V> {
    fn default() -> Self {
        Self {
            blocks: BTreeMap::new(),
            len: 0,
        }
    }
}

impl<K: Ord + Copy, V> OrderedMap<K, V> {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(K, V)> {
        self.blocks.values().flatten()
    }

    pub(crate) fn first(&self) -> Option<&(K, V)> {
        self.blocks.first_key_value()?.1.front()
    }

    pub(crate) fn last(&self) -> Option<&(K, V)> {
        self.blocks.last_key_value()?.1.back()
    }

    /// The first whose key is not below this one.
    pub(crate) fn first_from(&self, key: &K) -> Option<&(K, V)> {
        let own = self.blocks.range(..=key).next_back();
        let in_own = own.and_then(|(_, block)| block.get(block.partition_point(|(k, _)| k < key)));
        in_own.or_else(|| self.blocks.range(key..).next()?.1.front())
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        let (_, block) = self.blocks.range(..=key).next_back()?;
        let at = find(block, key).ok()?;
        Some(&block[at].1)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let (_, block) = self.blocks.range_mut(..=key).next_back()?;
        let at = find(block, key).ok()?;
        Some(&mut block[at].1)
    }

    /// Returns what was there before by this key.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let Some((_, block)) = self.blocks.range_mut(..=key).next_back() else {
            self.insert_before_all(key, value);
            return None;
        };
        match find(block, &key) {
            Ok(at) => return Some(mem::replace(&mut block[at].1, value)),
            Err(at) if block.len() < MOST => block.insert(at, (key, value)),
            Err(at) => {
                // What comes in order leaves a full block behind.
                let from = if at == MOST { MOST } else { MOST / 2 };
                let mut upper = block.split_off(from);
                match at.checked_sub(from) {
                    Some(at) => upper.insert(at, (key, value)),
                    None => block.insert(at, (key, value)),
                }
                self.blocks.insert(upper[0].0, upper);
            }
        }
        self.len += 1;
        None
    }

    fn insert_before_all(&mut self, key: K, value: V) {
        let first = self.blocks.first_entry();
        let first = first.filter(|first| first.get().len() < MOST);
        let mut block = first.map(OccupiedEntry::remove).unwrap_or_default();
        block.push_front((key, value));
        self.blocks.insert(key, block);
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.remove_if(key, |_| true)
    }

    /// Removes it if it is such a one.
    pub(crate) fn remove_if(&mut self, key: &K, wanted: impl FnOnce(&V) -> bool) -> Option<V> {
        let (&first, block) = self.blocks.range_mut(..=key).next_back()?;
        let at = find(block, key).ok()?;
        if !wanted(&block[at].1) {
            return None;
        }
        let (_, value) = block.remove(at)?;
        if block.is_empty() {
            self.blocks.remove(&first);
        } else if block.len() < block.capacity() / 4 {
            // The few that stay do not keep the memory of the many that left.
            block.shrink_to(block.capacity() / 2);
        }
        self.len -= 1;
        Some(value)
    }
}

/// Where the key is in its block, or would be: most often it is the first, or comes after all.
#[inline]
fn find<K: Ord, V>(block: &VecDeque<(K, V)>, key: &K) -> Result<usize, usize> {
    match (block.front(), block.back()) {
        (Some((first, _)), _) if first == key => Ok(0),
        (_, Some((last, _))) if last < key => Err(block.len()),
        _ => block.binary_search_by(|(k, _)| k.cmp(key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    impl<K, V> OrderedMap<K, V> {
        /// Entries for which there is memory.
        fn capacity(&self) -> usize {
            self.blocks.values().map(VecDeque::capacity).sum()
        }
    }

    #[test]
    fn what_comes_in_order_from_either_end_leaves_no_room_unused() {
        let mut up = OrderedMap::default();
        let mut down = OrderedMap::default();
        for key in 0..100 * MOST {
            up.insert(key, ());
            down.insert(100 * MOST - key, ());
        }
        assert_eq!((up.len(), up.capacity()), (100 * MOST, 100 * MOST));
        assert_eq!((down.len(), down.capacity()), (100 * MOST, 100 * MOST));
    }

    #[test]
    fn the_few_that_stay_take_the_memory_of_a_few() {
        let mut map: OrderedMap<usize, ()> = (0..100 * MOST).map(|key| (key, ())).collect();
        for key in (0..100 * MOST).filter(|key| key % MOST != 7) {
            map.remove(&key);
        }
        assert_eq!(map.len(), 100);
        assert!(map.capacity() <= 400, "{}", map.capacity());
        map.remove(&7);
        assert_eq!(map.first(), Some(&(MOST + 7, ())));
    }

    impl<K: Ord + Copy, V> FromIterator<(K, V)> for OrderedMap<K, V> {
        fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
            let mut map = Self::default();
            for (key, value) in entries {
                map.insert(key, value);
            }
            map
        }
    }

    proptest! {
        /// More keys than three blocks have.
        #[test]
        fn it_is_what_a_b_tree_is(steps in prop::collection::vec((0_u16..400, 0_u8..6), 1..2000)) {
            let mut model = BTreeMap::new();
            let mut map = OrderedMap::default();
            for (number, (key, step)) in steps.into_iter().enumerate() {
                match step {
                    0 => prop_assert_eq!(map.remove(&key), model.remove(&key)),
                    2 => prop_assert_eq!(map.remove_if(&key, |_| false), None),
                    1 => prop_assert_eq!(map.get_mut(&key), model.get_mut(&key)),
                    _ => prop_assert_eq!(map.insert(key, number), model.insert(key, number)),
                }
                prop_assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
                prop_assert_eq!(map.get(&key), model.get(&key));
                let pair = |(key, value): (&u16, &usize)| (*key, *value);
                let from = model.range(key..).next().map(pair);
                prop_assert_eq!(map.first_from(&key).copied(), from);
                prop_assert_eq!(map.first().copied(), model.first_key_value().map(pair));
                prop_assert_eq!(map.last().copied(), model.last_key_value().map(pair));
            }
            let all: Vec<_> = map.iter().copied().collect();
            prop_assert_eq!(all, model.into_iter().collect::<Vec<_>>());
        }
    }
}
