//! How many attempts run at once, so that slow endpoints delay no others.

/// Which slots an attempt is counted among.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pool {
    /// Of endpoints that have answered soon lately.
    Quick,
    /// Of endpoints that are not known yet, or not any more.
    Unknown,
    /// Of endpoints that do not answer soon.
    Slow,
    /// Of attempts that were begun as one of the first two, and take long.
    Turned,
}

impl Pool {
    /// Those that attempts are begun in.
    pub(super) const BEGUN: [Self; 3] = [Self::Quick, Self::Unknown, Self::Slow];
}

/// The slots for attempts. Those of slow endpoints have a number of their own: however many there are and however long
/// they take, they hold no slot of the others. Endpoints that are not known share the slots of the quick ones, and hold
/// half of them at most, so that endpoints that answer go on whatever the unknown ones turn out to be.
///
/// An attempt that takes long gives its slot up, and has one of those that have turned slow: after a start no endpoint is
/// known yet, and any may begin to hang. These are bounded, too, since each has a connection.
#[derive(Debug)]
pub(super) struct Slots {
    quick: usize,
    /// Attempts of unknown endpoints, and how many there may be.
    unknown: usize,
    unknown_most: usize,
    slow: usize,
    /// Attempts that have turned slow, and how many there may be.
    turned: usize,
    turned_most: usize,
}

/// Attempts that turn slow may be so many times as many as slow ones are begun.
const TURNED: usize = 8;

impl Slots {
    pub(super) const fn new(quick: usize, slow: usize) -> Self {
        Self {
            quick,
            unknown: 0,
            unknown_most: quick.div_ceil(2),
            slow,
            turned: 0,
            turned_most: slow.saturating_mul(TURNED),
        }
    }

    /// Takes a slot to begin an attempt with, if there is one.
    pub(super) const fn take(&mut self, pool: Pool) -> bool {
        let free = self.free(pool) > 0;
        if free {
            match pool {
                Pool::Quick => self.quick -= 1,
                Pool::Unknown => {
                    self.quick -= 1;
                    self.unknown += 1;
                }
                Pool::Slow => self.slow -= 1,
                Pool::Turned => self.turned += 1,
            }
        }
        free
    }

    /// Gives a slot back.
    pub(super) const fn give_back(&mut self, pool: Pool) {
        match pool {
            Pool::Quick => self.quick += 1,
            Pool::Unknown => {
                self.quick += 1;
                self.unknown = self.unknown.saturating_sub(1);
            }
            Pool::Slow => self.slow += 1,
            Pool::Turned => self.turned = self.turned.saturating_sub(1),
        }
    }

    /// An attempt takes long that has a slot of this pool. Which one it has now.
    pub(super) const fn turn_slow(&mut self, pool: Pool) -> Pool {
        if matches!(pool, Pool::Slow | Pool::Turned) || !self.take(Pool::Turned) {
            return pool;
        }
        self.give_back(pool);
        Pool::Turned
    }

    /// How many are free.
    pub(super) const fn free(&self, pool: Pool) -> usize {
        match pool {
            Pool::Quick => self.quick,
            Pool::Unknown => {
                let unknown = self.unknown_most.saturating_sub(self.unknown);
                if unknown < self.quick {
                    unknown
                } else {
                    self.quick
                }
            }
            Pool::Slow => self.slow,
            Pool::Turned => self.turned_most.saturating_sub(self.turned),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_that_turn_slow_take_no_slot_of_the_others_and_are_bounded() {
        let mut slots = Slots::new(2, 1);
        let mut pools = Vec::new();
        for _ in 0..TURNED {
            assert!(slots.take(Pool::Quick));
            pools.push(slots.turn_slow(Pool::Quick));
        }
        assert_eq!(pools, [Pool::Turned; TURNED]);
        assert!(slots.take(Pool::Slow), "nor of those that are begun slow");
        assert!(!slots.take(Pool::Slow));
        assert_eq!(slots.turn_slow(Pool::Slow), Pool::Slow);
        assert!(slots.take(Pool::Quick));
        assert_eq!(slots.turn_slow(Pool::Quick), Pool::Quick);
        for pool in pools.into_iter().chain([Pool::Quick, Pool::Slow]) {
            slots.give_back(pool);
        }
        assert_eq!((slots.free(Pool::Quick), slots.free(Pool::Slow)), (2, 1));
        assert_eq!(slots.free(Pool::Turned), TURNED);
    }

    #[test]
    fn unknown_endpoints_leave_half_of_the_quick_slots() {
        let mut slots = Slots::new(4, 1);
        assert!(slots.take(Pool::Unknown) && slots.take(Pool::Unknown));
        assert!(!slots.take(Pool::Unknown));
        assert!(slots.take(Pool::Quick) && slots.take(Pool::Quick));
        assert!(!slots.take(Pool::Quick));
        assert_eq!(slots.turn_slow(Pool::Unknown), Pool::Turned);
        assert_eq!((slots.free(Pool::Quick), slots.free(Pool::Unknown)), (1, 1));
        // One slot is for everybody.
        assert!(Slots::new(1, 1).take(Pool::Unknown));
    }
}
