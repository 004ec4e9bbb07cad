//! The event queue: the next event, in an order that does not depend on the machine.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

/// The width of a bucket in bits of nanoseconds: 2²² ns are 4.2 ms, so that the heap stays small.
const BUCKET_BITS_OF_NANOS: u32 = 22;
/// Buckets in a block, and blocks in the ring of blocks, in bits: a block is 17 s, all of them 4.9 h.
const BUCKETS_PER_BLOCK_BITS: u32 = 12;
const BLOCKS_BITS: u32 = 10;
/// The most events among which another is inserted by moving them: up to here that costs less than a heap.
const MAX_MOVED_EVENTS: usize = 64;
/// The number of events foreseen together.
pub(crate) const FORESEEN_TOGETHER: usize = 16;

/// The order of no event.
const NEVER: u128 = u128::MAX;

/// Events by time; those of one instant in the order of insertion.
///
/// A calendar queue with three scales. The current bucket is sorted. Later events of the current block wait unsorted
/// in the bucket of their time, those of a later block in that block, and those beyond all blocks in a heap. An event
/// is moved at most three times, so a million queued clients do not make the next event slower.
///
/// Most events are due a fixed time after they are added: messages in transit, and timeouts of attempts. They are
/// added in the order in which they are due, so they stand in a [`Fifo`] beside the calendar and are never sorted.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    /// The current bucket, the earliest event last.
    near: Vec<Entry<E>>,
    /// Whether events are foreseen, and how many of `near` have not been.
    foresees: bool,
    unforeseen: usize,
    /// Events added to the current bucket that would have been too far from its end.
    overflow: BinaryHeap<Entry<E>>,
    /// The buckets of the current block.
    buckets: Vec<Vec<Entry<E>>>,
    in_buckets: usize,
    /// The blocks after it, as a ring.
    blocks: Vec<Vec<Entry<E>>>,
    in_blocks: usize,
    far: BinaryHeap<Entry<E>>,
    fifos: [VecDeque<Entry<E>>; 2],
    /// The [order](Entry::order) of the first in each fifo.
    firsts: [u128; 2],
    /// The number, counted from time 0, of the first bucket that is not in `near`; its block is the current block.
    front: u64,
    /// Emptied buckets: memory in use follows the events, not the buckets that ever had some.
    spare: Vec<Vec<Entry<E>>>,
    sequence: u32,
    dropped: u64,
}

/// Events that are mostly added in the order in which they are due.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fifo {
    /// Messages in transit: all of them are wanted.
    InTransit,
    /// Timeouts: few of them are wanted when they are due.
    Timeouts,
}

/// The sequence orders events of one instant. A run ends long before it has pushed 2³² of them.
#[derive(Debug)]
struct Entry<E> {
    at: u64,
    sequence: u32,
    event: E,
}

impl<E> Entry<E> {
    /// By time, and within one instant by insertion.
    #[inline]
    const fn order(&self) -> u128 {
        (self.at as u128) << u32::BITS | self.sequence as u128
    }

    const fn bucket(&self) -> u64 {
        self.at >> BUCKET_BITS_OF_NANOS
    }

    const fn block(&self) -> u64 {
        self.at >> (BUCKET_BITS_OF_NANOS + BUCKETS_PER_BLOCK_BITS)
    }
}

impl<E> Queue<E> {
    /// The bytes that a waiting event takes.
    #[cfg(test)]
    pub(crate) const ENTRY: usize = size_of::<Entry<E>>();

    pub(crate) fn new() -> Self {
        Self {
            near: Vec::new(),
            foresees: false,
            unforeseen: 0,
            overflow: BinaryHeap::new(),
            buckets: (0..1 << BUCKETS_PER_BLOCK_BITS)
                .map(|_| Vec::new())
                .collect(),
            in_buckets: 0,
            blocks: (0..1 << BLOCKS_BITS).map(|_| Vec::new()).collect(),
            in_blocks: 0,
            far: BinaryHeap::new(),
            fifos: [VecDeque::new(), VecDeque::new()],
            firsts: [NEVER; 2],
            front: 0,
            spare: Vec::new(),
            sequence: 0,
            dropped: 0,
        }
    }

    /// Whether [`pop`](Self::pop) shows events before they are due.
    pub(crate) fn foreseeing(mut self, foresees: bool) -> Self {
        self.foresees = foresees;
        self
    }

    /// Adds an event at `at` nanoseconds.
    pub(crate) fn push(&mut self, at: u64, event: E) {
        let entry = self.entry(at, event);
        self.place(entry);
    }

    /// Adds an event that is, most likely, due after all others of this fifo.
    #[inline]
    pub(crate) fn push_fifo(&mut self, fifo: Fifo, at: u64, event: E) {
        let entry = self.entry(at, event);
        let entries = &mut self.fifos[fifo as usize];
        match entries.back() {
            Some(last) if last.at > at => return self.place(entry),
            Some(_) => {}
            None => self.firsts[fifo as usize] = entry.order(),
        }
        entries.push_back(entry);
    }

    #[inline]
    fn pop_fifo(&mut self, fifo: Fifo) -> Option<Entry<E>> {
        let entries = &mut self.fifos[fifo as usize];
        let entry = entries.pop_front();
        self.firsts[fifo as usize] = order(entries.front());
        entry
    }

    #[inline]
    const fn entry(&mut self, at: u64, event: E) -> Entry<E> {
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(1);
        Entry {
            at,
            sequence,
            event,
        }
    }

    /// Events that were dropped without being returned.
    pub(crate) const fn dropped(&self) -> u64 {
        self.dropped
    }

    fn place(&mut self, entry: Entry<E>) {
        let (bucket, block, now) = (
            entry.bucket(),
            entry.block(),
            self.front >> BUCKETS_PER_BLOCK_BITS,
        );
        if bucket < self.front {
            self.place_near(entry);
        } else if block == now {
            self.in_buckets += 1;
            add(
                &mut self.buckets[(bucket & ((1 << BUCKETS_PER_BLOCK_BITS) - 1)) as usize],
                &mut self.spare,
                entry,
            );
        } else if block < now + (1 << BLOCKS_BITS) {
            self.in_blocks += 1;
            add(
                &mut self.blocks[(block & ((1 << BLOCKS_BITS) - 1)) as usize],
                &mut self.spare,
                entry,
            );
        } else {
            self.far.push(entry);
        }
    }

    /// Takes the next event with its time. Events that `is_wanted` rejects may be dropped before: it is called for
    /// all events of a bucket together, and maybe long before their time. If the queue is
    /// [foreseeing](Self::foreseeing), `foresee` gets the next events of a bucket, up to [`FORESEEN_TOGETHER`], before the
    /// first of them is taken.
    #[inline]
    pub(crate) fn pop(
        &mut self,
        mut is_wanted: impl FnMut(&E) -> bool,
        mut foresee: impl FnMut(&mut dyn Iterator<Item = &E>),
    ) -> Option<(u64, E)> {
        loop {
            let [way, limit] = self.firsts;
            let first = way.min(limit);
            if self.near.is_empty() && self.overflow.is_empty() {
                self.fill_near((first >> u32::BITS) as u64, &mut is_wanted);
            }
            let near = order(self.near.last());
            let entry = if !self.overflow.is_empty()
                && let other = order(self.overflow.peek())
                && other < near.min(first)
            {
                self.overflow.pop()
            } else if near < first {
                if self.near.len() <= self.unforeseen {
                    self.show(&mut foresee);
                }
                self.near.pop()
            } else if way < limit {
                self.pop_fifo(Fifo::InTransit)
            } else {
                let entry = self.pop_fifo(Fifo::Timeouts)?;
                if !is_wanted(&entry.event) {
                    self.dropped += 1;
                    continue;
                }
                Some(entry)
            };
            return entry.map(|entry| (entry.at, entry.event));
        }
    }

    /// Shows the next events of the bucket to `foresee`.
    #[inline(never)]
    fn show(&mut self, foresee: &mut impl FnMut(&mut dyn Iterator<Item = &E>)) {
        self.unforeseen = self.near.len().saturating_sub(FORESEEN_TOGETHER);
        let soon = &self.near[self.unforeseen..];
        foresee(&mut soon.iter().map(|entry| &entry.event));
    }

    /// Opens the buckets up to the next that has events, but none after `until`.
    #[inline]
    fn fill_near(&mut self, until: u64, is_wanted: &mut impl FnMut(&E) -> bool) {
        while self.near.is_empty() && until >> BUCKET_BITS_OF_NANOS >= self.front {
            if self.in_buckets == 0 {
                match self.next_block() {
                    Some(block)
                        if block <= until >> (BUCKET_BITS_OF_NANOS + BUCKETS_PER_BLOCK_BITS) =>
                    {
                        self.front = block << BUCKETS_PER_BLOCK_BITS;
                        self.open_block();
                    }
                    _ => return,
                }
            }
            let bucket =
                &mut self.buckets[(self.front & ((1 << BUCKETS_PER_BLOCK_BITS) - 1)) as usize];
            self.front += 1;
            if !bucket.is_empty() {
                self.in_buckets -= bucket.len();
                let mut entries = std::mem::take(bucket);
                let before = entries.len();
                entries.retain(|entry| is_wanted(&entry.event));
                self.dropped += (before - entries.len()) as u64;
                entries.sort_unstable();
                let emptied = std::mem::replace(&mut self.near, entries);
                self.spare.push(emptied);
                if self.foresees {
                    self.unforeseen = self.near.len();
                }
            }
            if self.front & ((1 << BUCKETS_PER_BLOCK_BITS) - 1) == 0 {
                self.open_block();
            }
        }
    }

    #[inline]
    fn place_near(&mut self, entry: Entry<E>) {
        if self.near.len() >= MAX_MOVED_EVENTS {
            return self.overflow.push(entry);
        }
        // It was added last, so it comes after those of its instant, which have higher positions here.
        let place = self.near.partition_point(|other| other.at > entry.at);
        self.near.insert(place, entry);
    }

    /// The next block that has events; `None` if there is none.
    fn next_block(&self) -> Option<u64> {
        if self.in_blocks == 0 {
            return self.far.peek().map(Entry::block);
        }
        let mut block = (self.front >> BUCKETS_PER_BLOCK_BITS) + 1;
        while self.blocks[(block & ((1 << BLOCKS_BITS) - 1)) as usize].is_empty() {
            block += 1;
        }
        Some(block)
    }

    /// Starts a block at the front: its events move to its buckets, and events that the ring of blocks now covers
    /// move from the heap into the ring.
    fn open_block(&mut self) {
        let block = self.front >> BUCKETS_PER_BLOCK_BITS;
        let entries = std::mem::take(&mut self.blocks[(block & ((1 << BLOCKS_BITS) - 1)) as usize]);
        self.in_blocks -= entries.len();
        for entry in entries {
            self.place(entry);
        }
        while let Some(entry) = self.far.peek()
            && entry.block() < block + (1 << BLOCKS_BITS)
            && let Some(entry) = self.far.pop()
        {
            self.place(entry);
        }
    }
}

/// The order of an event; after all others if there is none.
#[inline]
const fn order<E>(entry: Option<&Entry<E>>) -> u128 {
    match entry {
        Some(entry) => entry.order(),
        None => NEVER,
    }
}

/// Adds an entry to a bucket; a bucket without memory takes over that of an emptied one.
fn add<E>(bucket: &mut Vec<Entry<E>>, spare: &mut Vec<Vec<Entry<E>>>, entry: Entry<E>) {
    if bucket.capacity() == 0
        && let Some(emptied) = spare.pop()
    {
        *bucket = emptied;
    }
    bucket.push(entry);
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
    /// The greatest of the heap is the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.order().cmp(&self.order())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn unwanted_events_may_be_dropped_and_the_rest_stays_in_order(
            times in prop::collection::vec(0_u64..1 << 50, 1..300)
        ) {
            let mut queue = Queue::new();
            for (number, at) in times.iter().enumerate() {
                match number % 2 {
                    0 => queue.push(*at, number),
                    _ => queue.push_fifo(Fifo::Timeouts, *at, number),
                }
            }
            let mut expected: Vec<_> = times.iter().copied().zip(0..).collect();
            expected.sort_unstable();
            let mut came = Vec::new();
            while let Some(event) = queue.pop(|number| number % 3 > 0, |_| ()) {
                came.push(event);
            }
            prop_assert_eq!(came.len() as u64 + queue.dropped(), times.len() as u64);
            came.retain(|(_, number)| number % 3 > 0);
            expected.retain(|(_, number)| number % 3 > 0);
            prop_assert_eq!(came, expected);
        }

        #[test]
        fn events_of_a_bucket_are_foreseen_once_shortly_before_they_are_due(
            times in prop::collection::vec(0_u64..30 << BUCKET_BITS_OF_NANOS, 1..300)
        ) {
            let mut queue = Queue::new().foreseeing(true);
            for (number, at) in times.iter().enumerate() {
                queue.push(*at, number);
            }
            let mut soon = Vec::new();
            while let Some((_, number)) = queue.pop(|_| true, |shown| soon.extend(shown.copied())) {
                prop_assert!(soon.len() <= FORESEEN_TOGETHER);
                let place = soon.iter().position(|shown| *shown == number);
                prop_assert!(place.is_some());
                soon.swap_remove(place.unwrap());
            }
            prop_assert!(soon.is_empty());
        }

        /// More events than are inserted by moving, at few instants.
        #[test]
        fn many_events_in_one_bucket_are_popped_in_order(
            times in prop::collection::vec(0_u64..40, 3 * MAX_MOVED_EVENTS),
            before in 0..2 * MAX_MOVED_EVENTS,
        ) {
            let mut queue = Queue::new();
            let mut expected: Vec<_> = times.iter().map(|at| at + 1).zip(1..).collect();
            for (at, number) in &expected[..before] {
                queue.push(*at, *number);
            }
            // It opens the bucket: later events are added to sorted ones.
            queue.push(0, 0);
            prop_assert_eq!(queue.pop(|_| true, |_| ()), Some((0, 0)));
            for (at, number) in &expected[before..] {
                queue.push(*at, *number);
            }
            expected.sort_unstable();
            for event in expected {
                prop_assert_eq!(queue.pop(|_| true, |_| ()), Some(event));
            }
            prop_assert_eq!(queue.pop(|_| true, |_| ()), None);
        }

        #[test]
        fn events_are_popped_by_time_and_then_by_insertion(
            steps in prop::collection::vec((0_u32..60, any::<u16>(), 0_u8..3, 0_u8..3), 1..300)
        ) {
            let mut queue = Queue::new();
            let mut model: Vec<(u64, u64)> = Vec::new();
            let (mut now, mut number) = (0_u64, 0);
            for (scale, ahead, pops, fifo) in steps {
                let at = now.saturating_add((u128::from(ahead) << scale >> 8).min(u128::from(u64::MAX)) as u64);
                match fifo {
                    0 => queue.push(at, number),
                    1 => queue.push_fifo(Fifo::InTransit, at, number),
                    _ => queue.push_fifo(Fifo::Timeouts, at, number),
                }
                model.push((at, number));
                number += 1;
                for _ in 0..pops {
                    model.sort_unstable();
                    let expected = (!model.is_empty()).then(|| model.remove(0));
                    prop_assert_eq!(queue.pop(|_| true, |_| ()), expected);
                    now = expected.map_or(now, |(at, _)| at);
                }
            }
            model.sort_unstable();
            for expected in model {
                prop_assert_eq!(queue.pop(|_| true, |_| ()), Some(expected));
            }
            prop_assert_eq!(queue.pop(|_| true, |_| ()), None);
        }
    }
}
