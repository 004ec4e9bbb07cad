//! Concurrency limit of attempts, so that slow endpoints do not delay others.

/// The pool of slots that an attempt counts in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pool {
    /// Endpoints with a recent fast response.
    Fast,
    /// Endpoints whose speed is not known, or no longer.
    Unknown,
    /// Slow endpoints.
    Slow,
    /// Attempts that started in one of the first two pools and turned out slow.
    Turned,
}

impl Pool {
    /// The pools in which attempts start.
    pub(super) const START_POOLS: [Self; 3] = [Self::Fast, Self::Unknown, Self::Slow];
}

/// The slots of attempts. Slow endpoints have their own slots, so they never hold a slot of others. Unknown endpoints
/// share the slots of fast ones, and hold at most half of them. Fast endpoints thus continue whatever the unknown ones
/// turn out to be.
///
/// A slow attempt moves to the pool `Turned`: after a start no endpoint is known yet, and any may hang. This pool is
/// limited, too, because each attempt has a connection.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    fast: usize,
    /// The attempts of unknown endpoints, and their limit.
    unknown: usize,
    unknown_most: usize,
    slow: usize,
    /// The attempts that turned slow, and their limit.
    turned: usize,
    turned_most: usize,
}

/// The limit of attempts that turned slow, as a multiple of that of slow endpoints.
const TURNED_FACTOR: usize = 8;

impl Slots {
    pub(super) const fn new(fast: usize, slow: usize) -> Self {
        Self {
            fast,
            unknown: 0,
            unknown_most: fast.div_ceil(2),
            slow,
            turned: 0,
            turned_most: slow.saturating_mul(TURNED_FACTOR),
        }
    }

    /// Takes a slot to start an attempt with, if one is free.
    pub(super) const fn take(&mut self, pool: Pool) -> bool {
        let free = self.free(pool) > 0;
        if free {
            match pool {
                Pool::Fast => self.fast -= 1,
                Pool::Unknown => {
                    self.fast -= 1;
                    self.unknown += 1;
                }
                Pool::Slow => self.slow -= 1,
                Pool::Turned => self.turned += 1,
            }
        }
        free
    }

    /// Returns a slot.
    pub(super) const fn give_back(&mut self, pool: Pool) {
        match pool {
            Pool::Fast => self.fast += 1,
            Pool::Unknown => {
                self.fast += 1;
                self.unknown = self.unknown.saturating_sub(1);
            }
            Pool::Slow => self.slow += 1,
            Pool::Turned => self.turned = self.turned.saturating_sub(1),
        }
    }

    /// Moves an attempt that turned slow, if possible. Returns its pool from now on.
    pub(super) const fn move_to_turned_pool(&mut self, pool: Pool) -> Pool {
        if matches!(pool, Pool::Slow | Pool::Turned) || !self.take(Pool::Turned) {
            return pool;
        }
        self.give_back(pool);
        Pool::Turned
    }

    /// The number of free slots.
    pub(super) const fn free(&self, pool: Pool) -> usize {
        match pool {
            Pool::Fast => self.fast,
            Pool::Unknown => {
                let unknown = self.unknown_most.saturating_sub(self.unknown);
                if unknown < self.fast {
                    unknown
                } else {
                    self.fast
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
    fn attempts_that_turn_slow_release_their_slots_and_are_limited() {
        let mut slots = Slots::new(2, 1);
        let mut pools = Vec::new();
        for _ in 0..TURNED_FACTOR {
            assert!(slots.take(Pool::Fast));
            pools.push(slots.move_to_turned_pool(Pool::Fast));
        }
        assert_eq!(pools, [Pool::Turned; TURNED_FACTOR]);
        assert!(slots.take(Pool::Slow), "nor of those that are begun slow");
        assert!(!slots.take(Pool::Slow));
        assert_eq!(slots.move_to_turned_pool(Pool::Slow), Pool::Slow);
        assert!(slots.take(Pool::Fast));
        assert_eq!(slots.move_to_turned_pool(Pool::Fast), Pool::Fast);
        for pool in pools.into_iter().chain([Pool::Fast, Pool::Slow]) {
            slots.give_back(pool);
        }
        assert_eq!((slots.free(Pool::Fast), slots.free(Pool::Slow)), (2, 1));
        assert_eq!(slots.free(Pool::Turned), TURNED_FACTOR);
    }

    #[test]
    fn unknown_endpoints_use_at_most_half_of_the_fast_slots() {
        let mut slots = Slots::new(4, 1);
        assert!(slots.take(Pool::Unknown) && slots.take(Pool::Unknown));
        assert!(!slots.take(Pool::Unknown));
        assert!(slots.take(Pool::Fast) && slots.take(Pool::Fast));
        assert!(!slots.take(Pool::Fast));
        assert_eq!(slots.move_to_turned_pool(Pool::Unknown), Pool::Turned);
        assert_eq!((slots.free(Pool::Fast), slots.free(Pool::Unknown)), (1, 1));
        // A single slot is open to all pools.
        assert!(Slots::new(1, 1).take(Pool::Unknown));
    }
}
