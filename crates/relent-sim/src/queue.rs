//! The event queue: what happens next, in an order that never depends on the machine.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Buckets in the ring, and the width of one in bits of nanoseconds: 2²⁶ ns are 67 ms, and the ring
/// reaches 275 s ahead.
const BUCKETS: u64 = 4096;
const WIDTH: u32 = 26;

/// Events by time; those of one instant in the order in which they were added.
///
/// The near future is a binary heap; what is further away waits unsorted in a ring of buckets, so
/// that a million parked clients do not make the next event slower. Beyond the ring there is a
/// second heap.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    near: BinaryHeap<Entry<E>>,
    ring: Vec<Vec<Entry<E>>>,
    far: BinaryHeap<Entry<E>>,
    /// The number of the first bucket that is not in `near`.
    front: u64,
    in_ring: usize,
    sequence: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: u64,
    sequence: u64,
    event: E,
}

impl<E> Queue<E> {
    pub(crate) fn new() -> Self {
        Self {
            near: BinaryHeap::new(),
            ring: (0..BUCKETS).map(|_| Vec::new()).collect(),
            far: BinaryHeap::new(),
            front: 0,
            in_ring: 0,
            sequence: 0,
        }
    }

    /// Adds an event at `at` nanoseconds.
    pub(crate) fn push(&mut self, at: u64, event: E) {
        let entry = Entry {
            at,
            sequence: self.sequence,
            event,
        };
        self.sequence += 1;
        self.place(entry);
    }

    fn place(&mut self, entry: Entry<E>) {
        let bucket = entry.at >> WIDTH;
        if bucket < self.front {
            self.near.push(entry);
        } else if bucket < self.front + BUCKETS {
            self.ring[(bucket % BUCKETS) as usize].push(entry);
            self.in_ring += 1;
        } else {
            self.far.push(entry);
        }
    }

    /// Takes the next event with its time.
    pub(crate) fn pop(&mut self) -> Option<(u64, E)> {
        while self.near.is_empty() {
            if self.in_ring == 0 {
                // Jump to where there is something.
                self.front = self.far.peek()?.at >> WIDTH;
            }
            while let Some(entry) = self.far.peek()
                && entry.at >> WIDTH < self.front + BUCKETS
                && let Some(entry) = self.far.pop()
            {
                self.place(entry);
            }
            let bucket = &mut self.ring[(self.front % BUCKETS) as usize];
            self.in_ring -= bucket.len();
            self.near.extend(bucket.drain(..));
            self.front += 1;
        }
        self.near.pop().map(|entry| (entry.at, entry.event))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    /// The heap's greatest is the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn events_come_by_time_and_then_in_the_order_they_were_added(
            steps in prop::collection::vec((0_u32..45, any::<u16>(), 0_u8..3), 1..300)
        ) {
            let mut queue = Queue::new();
            let mut model: Vec<(u64, u64)> = Vec::new();
            let (mut now, mut number) = (0, 0);
            for (scale, ahead, pops) in steps {
                let at = now + (u64::from(ahead) << scale >> 8);
                queue.push(at, number);
                model.push((at, number));
                number += 1;
                for _ in 0..pops {
                    model.sort_unstable();
                    let expected = (!model.is_empty()).then(|| model.remove(0));
                    prop_assert_eq!(queue.pop(), expected);
                    now = expected.map_or(now, |(at, _)| at);
                }
            }
            model.sort_unstable();
            for expected in model {
                prop_assert_eq!(queue.pop(), Some(expected));
            }
            prop_assert_eq!(queue.pop(), None);
        }
    }
}
