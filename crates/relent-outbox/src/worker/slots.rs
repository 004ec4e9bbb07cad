//! How many attempts run at once, so that slow endpoints delay no others.

/// Which slots an attempt is counted among.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pool {
    /// Of endpoints that answer soon, or are not known yet.
    Quick,
    /// Of endpoints that do not.
    Slow,
}

/// The slots for attempts. Those of slow endpoints have a number of their own: however many there are and however long
/// they take, they hold no slot of the others.
///
/// An attempt that turns out slow moves over, and that may make more slow ones than are begun: after a start no endpoint is
/// known yet. It is bounded all the same, since each has a connection.
#[derive(Debug)]
pub(super) struct Slots {
    quick: usize,
    /// Slow attempts, how many are begun at most, and how many there may be.
    slow: usize,
    begun: usize,
    most: usize,
}

impl Slots {
    pub(super) const fn new(quick: usize, slow: usize) -> Self {
        Self {
            quick,
            slow: 0,
            begun: slow,
            most: slow.saturating_mul(4),
        }
    }

    /// Takes a slot, if there is one.
    pub(super) const fn take(&mut self, pool: Pool) -> bool {
        let free = self.free(pool) > 0;
        if free {
            match pool {
                Pool::Quick => self.quick -= 1,
                Pool::Slow => self.slow += 1,
            }
        }
        free
    }

    /// Gives a slot back.
    pub(super) const fn give_back(&mut self, pool: Pool) {
        match pool {
            Pool::Quick => self.quick += 1,
            Pool::Slow => self.slow = self.slow.saturating_sub(1),
        }
    }

    /// An attempt is slow that has a quick slot. Which one it has now.
    pub(super) const fn slow_down(&mut self) -> Pool {
        if self.slow >= self.most {
            return Pool::Quick;
        }
        self.slow += 1;
        self.quick += 1;
        Pool::Slow
    }

    /// How many are free.
    pub(super) const fn free(&self, pool: Pool) -> usize {
        match pool {
            Pool::Quick => self.quick,
            Pool::Slow => self.begun.saturating_sub(self.slow),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_attempts_take_no_slot_of_the_quick_and_are_bounded() {
        let mut slots = Slots::new(2, 1);
        let mut pools = Vec::new();
        for _ in 0..4 {
            assert!(slots.take(Pool::Quick));
            pools.push(slots.slow_down());
        }
        assert_eq!(pools, [Pool::Slow; 4]);
        assert!(!slots.take(Pool::Slow), "more than that are not begun");
        assert!(slots.take(Pool::Quick));
        assert_eq!(
            slots.slow_down(),
            Pool::Quick,
            "nor are there more than four times as many"
        );
        for pool in pools {
            slots.give_back(pool);
        }
        slots.give_back(Pool::Quick);
        assert_eq!((slots.free(Pool::Quick), slots.free(Pool::Slow)), (2, 1));
    }
}
