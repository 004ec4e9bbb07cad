//! A sorted map with little memory overhead.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;

/// The maximum number of entries in a block.
const MAX_BLOCK_ENTRIES: usize = 64;
/// The capacity that a block keeps when entries leave, for those that follow.
const MIN_KEPT_CAPACITY: usize = 4;

/// A sorted map in blocks of up to [`MAX_BLOCK_ENTRIES`] entries. A B-tree of the entries is half empty if they
/// are inserted in order, as those of callers are; these blocks are full then. A map of a few
/// entries is one small block. The only entry of a map that never had two is stored inline.
#[derive(Debug)]
pub(crate) struct OrderedMap<K, V>(Entries<K, V>);

#[derive(Debug)]
enum Entries<K, V> {
    None,
    One((K, V)),
    /// Any number, after there were two.
    Many(Box<Blocks<K, V>>),
}

type Block<K, V> = VecDeque<(K, V)>;

#[derive(Debug)]
struct Blocks<K, V> {
    len: usize,
    /// The first entries. Empty only if the map is empty.
    first: Block<K, V>,
    /// The other blocks in order. The key of a block is at most its first key, and above all keys of
    /// the previous block. No block is empty. A B-tree would be 80 kB of code for the five maps of a
    /// destination; a million entries are 16,000 blocks, which move by one copy of memory.
    rest: VecDeque<(K, Block<K, V>)>,
}

impl<K: Ord + Copy, V> Blocks<K, V> {
    fn of_one(entry: (K, V)) -> Self {
        let mut first = Block::with_capacity(2);
        first.push_back(entry);
        Self {
            len: 1,
            first,
            rest: VecDeque::new(),
        }
    }

    /// Whether a key belongs to the first block, as far as the first block alone shows it.
    #[inline]
    fn is_in_first(&self, key: &K) -> bool {
        self.rest.is_empty() || self.first.back().is_some_and(|(last, _)| key <= last)
    }

    /// The number of the block to which the key belongs: 0 is the first.
    #[inline]
    fn number(&self, key: &K) -> usize {
        match self.is_in_first(key) {
            true => 0,
            false => self.rest.partition_point(|(from, _)| from <= key),
        }
    }

    #[inline]
    fn block(&self, number: usize) -> &Block<K, V> {
        match number {
            0 => &self.first,
            _ => &self.rest[number - 1].1,
        }
    }

    #[inline]
    fn block_mut(&mut self, number: usize) -> &mut Block<K, V> {
        match number {
            0 => &mut self.first,
            _ => &mut self.rest[number - 1].1,
        }
    }

    fn last(&self) -> &Block<K, V> {
        self.block(self.rest.len())
    }

    /// Removes this block, which has become empty.
    fn drop_empty(&mut self, number: usize) {
        if number > 0 {
            drop(self.rest.remove(number - 1));
        } else if let Some((_, next)) = self.rest.pop_front() {
            self.first = next;
        }
    }

    fn insert(&mut self, key: K, value: V) -> Option<V> {
        let number = self.number(&key);
        let block = self.block_mut(number);
        match find(block, &key) {
            Ok(at) => return Some(mem::replace(&mut block[at].1, value)),
            Err(at) if block.len() < MAX_BLOCK_ENTRIES => block.insert(at, (key, value)),
            Err(at) => {
                // Insertions in order, from either end, leave a full block behind.
                let (from, upper) = match at {
                    0 => (0, mem::take(block)),
                    MAX_BLOCK_ENTRIES => (MAX_BLOCK_ENTRIES, Block::new()),
                    _ => {
                        // Insertions out of order are rare, so neither half keeps capacity for more
                        // than this one.
                        let mut upper = block.split_off(MAX_BLOCK_ENTRIES / 2);
                        upper.reserve_exact(1);
                        block.shrink_to(MAX_BLOCK_ENTRIES / 2 + 1);
                        (MAX_BLOCK_ENTRIES / 2, upper)
                    }
                };
                let mut upper = upper;
                match at > from || at == MAX_BLOCK_ENTRIES {
                    true => upper.insert(at - from, (key, value)),
                    false => block.insert(at, (key, value)),
                }
                self.rest.insert(number, (upper[0].0, upper));
            }
        }
        self.len += 1;
        None
    }

    fn remove(&mut self, key: &K) -> Option<V> {
        let number = self.number(key);
        let block = self.block_mut(number);
        let at = find(block, key).ok()?;
        let (_, value) = block.remove(at)?;
        if block.is_empty() {
            self.drop_empty(number);
        } else if block.capacity() > MIN_KEPT_CAPACITY && block.len() < block.capacity() / 4 {
            // Shrink, so that a few remaining entries do not keep the memory of many.
            block.shrink_to(block.capacity() / 2);
        }
        self.len -= 1;
        Some(value)
    }

    fn first_from(&self, key: &K) -> Option<&(K, V)> {
        let number = self.number(key);
        let own = self.block(number);
        let in_own = own.get(own.partition_point(|(k, _)| k < key));
        in_own.or_else(|| self.rest.get(number)?.1.front())
    }

    fn get(&self, key: &K) -> Option<&V> {
        let block = self.block(self.number(key));
        let at = find(block, key).ok()?;
        Some(&block[at].1)
    }
}

impl<K, V> Default for OrderedMap<K, V> {
    fn default() -> Self {
        Self(Entries::None)
    }
}

impl<K: Ord + Copy, V> OrderedMap<K, V> {
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        match &self.0 {
            Entries::None => 0,
            Entries::One(_) => 1,
            Entries::Many(blocks) => blocks.len,
        }
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All entries, in order. Few changes need them, so an iterator would be too much code.
    pub(crate) fn all(&self) -> Vec<&(K, V)> {
        let mut all = Vec::with_capacity(self.len());
        match &self.0 {
            Entries::None => {}
            Entries::One(entry) => all.push(entry),
            Entries::Many(blocks) => {
                for number in 0..=blocks.rest.len() {
                    all.extend(blocks.block(number));
                }
            }
        }
        all
    }

    #[inline]
    pub(crate) fn first(&self) -> Option<&(K, V)> {
        match &self.0 {
            Entries::None => None,
            Entries::One(entry) => Some(entry),
            Entries::Many(blocks) => blocks.first.front(),
        }
    }

    pub(crate) fn last(&self) -> Option<&(K, V)> {
        match &self.0 {
            Entries::None => None,
            Entries::One(entry) => Some(entry),
            Entries::Many(blocks) => blocks.last().back(),
        }
    }

    /// The first entry whose key is at least this one.
    pub(crate) fn first_from(&self, key: &K) -> Option<&(K, V)> {
        match &self.0 {
            Entries::None => None,
            Entries::One(entry) => (entry.0 >= *key).then_some(entry),
            Entries::Many(blocks) => blocks.first_from(key),
        }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        match &self.0 {
            Entries::None => None,
            Entries::One((own, value)) => (own == key).then_some(value),
            Entries::Many(blocks) => blocks.get(key),
        }
    }

    /// Returns the previous value of this key.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match &mut self.0 {
            Entries::None => {
                self.0 = Entries::One((key, value));
                None
            }
            Entries::One((own, before)) if *own == key => Some(mem::replace(before, value)),
            Entries::One(_) => {
                if let Entries::One(entry) = mem::replace(&mut self.0, Entries::None) {
                    let mut blocks = Box::new(Blocks::of_one(entry));
                    blocks.insert(key, value);
                    self.0 = Entries::Many(blocks);
                }
                None
            }
            Entries::Many(blocks) => blocks.insert(key, value),
        }
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        match &mut self.0 {
            Entries::None => None,
            Entries::One((own, _)) => {
                if own != key {
                    return None;
                }
                match mem::replace(&mut self.0, Entries::None) {
                    Entries::One((_, value)) => Some(value),
                    Entries::None | Entries::Many(_) => None,
                }
            }
            Entries::Many(blocks) => blocks.remove(key),
        }
    }
}

/// The position of the key in its block, or the position to insert it: usually the first, or after
/// the last.
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
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    impl<K, V> OrderedMap<K, V> {
        /// The number of entries with allocated memory.
        fn capacity(&self) -> usize {
            match &self.0 {
                Entries::None | Entries::One(_) => 1,
                Entries::Many(blocks) => {
                    let rest = blocks.rest.iter().map(|(_, block)| block);
                    let all = rest.chain([&blocks.first]);
                    all.map(VecDeque::capacity).sum()
                }
            }
        }
    }

    #[test]
    fn ordered_insertions_from_either_end_leave_full_blocks() {
        let mut up = OrderedMap::default();
        let mut down = OrderedMap::default();
        for key in 0..100 * MAX_BLOCK_ENTRIES {
            up.insert(key, ());
            down.insert(100 * MAX_BLOCK_ENTRIES - key, ());
        }
        assert_eq!(
            (up.len(), up.capacity()),
            (100 * MAX_BLOCK_ENTRIES, 100 * MAX_BLOCK_ENTRIES)
        );
        assert_eq!(
            (down.len(), down.capacity()),
            (100 * MAX_BLOCK_ENTRIES, 100 * MAX_BLOCK_ENTRIES)
        );
    }

    #[test]
    fn a_single_map_entry_is_stored_inline() {
        assert!(size_of::<OrderedMap<u64, [u64; 2]>>() <= 32);
        let mut map = OrderedMap::default();
        for key in 0..10 {
            map.insert(key, ());
            assert_eq!((map.capacity(), map.first()), (1, Some(&(key, ()))));
            assert_eq!(map.remove(&key), Some(()));
            assert!(map.is_empty());
        }
    }

    #[test]
    fn a_map_shrinks_when_few_entries_remain() {
        let mut map: OrderedMap<usize, ()> =
            (0..100 * MAX_BLOCK_ENTRIES).map(|key| (key, ())).collect();
        for key in (0..100 * MAX_BLOCK_ENTRIES).filter(|key| key % MAX_BLOCK_ENTRIES != 7) {
            map.remove(&key);
        }
        assert_eq!(map.len(), 100);
        assert!(map.capacity() <= 400, "{}", map.capacity());
        map.remove(&7);
        assert_eq!(map.first(), Some(&(MAX_BLOCK_ENTRIES + 7, ())));
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
        /// More keys than three blocks hold.
        #[test]
        fn the_ordered_map_behaves_like_a_btree_map(steps in prop::collection::vec((0_u16..400, 0_u8..5), 1..2000)) {
            let mut model = BTreeMap::new();
            let mut map = OrderedMap::default();
            for (number, (key, step)) in steps.into_iter().enumerate() {
                match step {
                    0 => prop_assert_eq!(map.remove(&key), model.remove(&key)),
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
            let all: Vec<_> = map.all().into_iter().copied().collect();
            prop_assert_eq!(all, model.into_iter().collect::<Vec<_>>());
        }
    }
}
