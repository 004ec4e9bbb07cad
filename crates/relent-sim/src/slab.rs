//! Values with numbers that are reused.

use std::ops::{Index, IndexMut};

/// The key of a value in a [`Slab`]. Its stamp distinguishes it from earlier values with the same number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key {
    pub(crate) index: u32,
    pub(crate) stamp: u32,
}

impl Key {
    /// The key of no value.
    pub(crate) const NONE: Self = Self {
        index: u32::MAX,
        stamp: 0,
    };
}

/// A value that can store a number while it is free.
pub(crate) trait Linked {
    /// The number of the next free value.
    fn link(&mut self) -> &mut u32;
}

/// No number: no further free value.
const NONE: u32 = u32::MAX;

/// Values that keep their place, so that an event names one by a number.
///
/// The stamps are separate from the values, so an event with an outdated key needs no access to the value's memory.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    values: Vec<T>,
    stamps: Vec<u32>,
    /// The value that was freed last.
    free: u32,
}

impl<T: Linked> Slab<T> {
    /// The bytes of a value and its stamp. Both vectors grow by doubling, so as much again may be unused for a while.
    #[cfg(test)]
    pub(crate) const ENTRY: usize = size_of::<T>() + size_of::<u32>();

    pub(crate) const fn new() -> Self {
        Self {
            values: Vec::new(),
            stamps: Vec::new(),
            free: NONE,
        }
    }

    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> Key {
        let index = self.free;
        match self.values.get_mut(index as usize) {
            Some(free) => {
                self.free = *free.link();
                *free = value;
                self.key(index)
            }
            None => {
                self.values.push(value);
                self.stamps.push(0);
                self.key((self.values.len() - 1) as u32)
            }
        }
    }

    /// Frees the value of this number.
    pub(crate) fn free(&mut self, index: u32) {
        self.stamp(index);
        *self.values[index as usize].link() = self.free;
        self.free = index;
    }

    /// Returns a new key for the same value; older keys become invalid.
    pub(crate) fn stamp(&mut self, index: u32) -> Key {
        let stamp = &mut self.stamps[index as usize];
        *stamp = stamp.wrapping_add(1);
        Key {
            index,
            stamp: *stamp,
        }
    }

    /// The key of the value that has this number now.
    pub(crate) fn key(&self, index: u32) -> Key {
        Key {
            index,
            stamp: self.stamps[index as usize],
        }
    }

    /// Whether the key belongs to the value that has its number now.
    pub(crate) fn has(&self, key: Key) -> bool {
        self.stamps.get(key.index as usize) == Some(&key.stamp)
    }

    /// The numbers of all values in use.
    pub(crate) fn taken(&mut self) -> Vec<u32> {
        let mut free = vec![false; self.values.len()];
        let mut index = self.free;
        while let Some(value) = self.values.get_mut(index as usize) {
            free[index as usize] = true;
            index = *value.link();
        }
        let all = (0..).zip(free);
        all.filter_map(|(index, free)| (!free).then_some(index))
            .collect()
    }

    /// The value of this key, unless it has been freed.
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        self.has(key).then(|| &self[key.index])
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.has(key).then(|| &mut self[key.index])
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, index: u32) -> &T {
        &self.values[index as usize]
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.values[index as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Linked for u32 {
        fn link(&mut self) -> &mut u32 {
            self
        }
    }

    #[test]
    fn a_key_of_a_freed_value_does_not_match_its_successor() {
        let mut slab = Slab::new();
        let one = slab.insert(7);
        assert_eq!(slab.get(one), Some(&7));
        slab.free(one.index);
        assert_eq!(slab.get(one), None);
        let other = slab.insert(8);
        assert_eq!((other.index, slab.has(one)), (one.index, false));
        assert_eq!(slab.get(other), Some(&8));
        assert!(!slab.has(Key::NONE));
    }

    #[test]
    fn the_number_freed_last_is_reused_first() {
        let mut slab = Slab::new();
        let keys = [10, 11, 12, 13].map(|value| slab.insert(value));
        for index in [2, 0, 3] {
            slab.free(keys[index].index);
        }
        assert_eq!(slab.taken(), [1]);
        let numbers = [20, 21, 22, 23].map(|value| slab.insert(value).index);
        assert_eq!(numbers, [3, 0, 2, 4]);
        assert_eq!(slab.taken(), [0, 1, 2, 3, 4]);
        assert_eq!([slab[0], slab[1], slab[2]], [21, 11, 22]);
    }
}
