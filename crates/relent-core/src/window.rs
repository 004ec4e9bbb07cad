//! Counters over the recent past.

use core::time::Duration;

use crate::time::{Instant, nanos};

const SLOTS_PER_WINDOW: usize = 12;

/// `N` counters over a sliding window of twelve slots: the current slot and the eleven before it.
#[derive(Clone, Debug)]
pub(crate) struct Window<const N: usize> {
    slot_nanos: u64,
    /// The number of the current slot, counted from the origin of time.
    running: u64,
    slots: [[u32; N]; SLOTS_PER_WINDOW],
    totals: [u32; N],
}

impl<const N: usize> Window<N> {
    pub(crate) const fn new(length: Duration) -> Self {
        let slot_nanos = nanos(length) / SLOTS_PER_WINDOW as u64;
        Self {
            slot_nanos: if slot_nanos == 0 { 1 } else { slot_nanos },
            running: 0,
            slots: [[0; N]; SLOTS_PER_WINDOW],
            totals: [0; N],
        }
    }

    pub(crate) fn add(&mut self, now: Instant, counter: usize) {
        self.add_many(now, counter, 1);
    }

    pub(crate) fn add_many(&mut self, now: Instant, counter: usize, more: u32) {
        self.advance(now);
        let slot = &mut self.slots[(self.running % SLOTS_PER_WINDOW as u64) as usize];
        if let (Some(count), Some(total)) = (slot.get_mut(counter), self.totals.get_mut(counter)) {
            // The slot saturates together with the total, so that it can be subtracted from it.
            let more = more.min(u32::MAX - *total);
            *total += more;
            *count += more;
        }
    }

    pub(crate) fn totals(&mut self, now: Instant) -> [u32; N] {
        self.advance(now);
        self.totals
    }

    /// Drops every slot that has left the window, however many slots have passed. An earlier time
    /// counts in the current slot.
    fn advance(&mut self, now: Instant) {
        let target = now.as_nanos() / self.slot_nanos;
        let passed = target
            .saturating_sub(self.running)
            .min(SLOTS_PER_WINDOW as u64);
        for step in 1..=passed {
            let slot = &mut self.slots
                [((self.running.wrapping_add(step)) % SLOTS_PER_WINDOW as u64) as usize];
            for (total, count) in self.totals.iter_mut().zip(slot.iter_mut()) {
                *total -= *count;
                *count = 0;
            }
        }
        if passed == SLOTS_PER_WINDOW as u64 {
            // All slots are empty, so the next index does not matter.
            debug_assert!(self.totals.iter().all(|total| *total == 0));
        }
        self.running = self.running.max(target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// tower's window skips a slot per rotation: a deposit each 99 ms holds 56 to 66, not 101.
    #[test]
    fn tower_window_shrinks() {
        let mut window = Window::<1>::new(Duration::from_secs(12));
        let mut fewest = u32::MAX;
        for tick in 0..1000_u64 {
            let now = Instant::from_nanos(tick * 99_000_000);
            window.add(now, 0);
            if tick > 200 {
                fewest = fewest.min(window.totals(now)[0]);
            }
        }
        // Eleven full seconds of ten or eleven each, and a part of the twelfth.
        assert!(fewest >= 111, "{fewest}");
    }

    proptest! {
        #[test]
        fn the_window_equals_a_list_of_times(steps in proptest::collection::vec(0..30u64, 1..100)) {
            let mut window = Window::<2>::new(Duration::from_nanos(12));
            let mut times: Vec<u64> = Vec::new();
            let mut now = 0;
            for step in steps {
                now += step;
                window.add(Instant::from_nanos(now), 1);
                times.push(now);
                let expected = times.iter().filter(|time| **time + 12 > now).count() as u32;
                prop_assert_eq!(window.totals(Instant::from_nanos(now)), [0, expected]);
            }
        }
    }
}
