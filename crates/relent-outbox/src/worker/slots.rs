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
/// they take, they hold no slot of the others. An attempt that turns out slow moves over, if there is room.
#[derive(Debug)]
pub(super) struct Slots {
    quick: usize,
    slow: usize,
}

impl Slots {
    pub(super) const fn new(quick: usize, slow: usize) -> Self {
        Self { quick, slow }
    }

    /// Takes a slot, if there is one.
    pub(super) const fn take(&mut self, pool: Pool) -> bool {
        let free = self.of(pool);
        match free.checked_sub(1) {
            Some(left) => {
                *free = left;
                true
            }
            None => false,
        }
    }

    /// Gives a slot back.
    pub(super) const fn give_back(&mut self, pool: Pool) {
        *self.of(pool) += 1;
    }

    /// An attempt is slow that has a quick slot. Which one it has now.
    pub(super) const fn slow_down(&mut self) -> Pool {
        if self.take(Pool::Slow) {
            self.give_back(Pool::Quick);
            Pool::Slow
        } else {
            Pool::Quick
        }
    }

    /// How many are free.
    pub(super) const fn free(&self, pool: Pool) -> usize {
        match pool {
            Pool::Quick => self.quick,
            Pool::Slow => self.slow,
        }
    }

    const fn of(&mut self, pool: Pool) -> &mut usize {
        match pool {
            Pool::Quick => &mut self.quick,
            Pool::Slow => &mut self.slow,
        }
    }
}
