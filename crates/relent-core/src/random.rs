//! Randomness as an argument.

use alloc::boxed::Box;

/// A source of random bits, the argument of every random decision.
///
/// The core has no generator: a driver has one stream per session, and a test fixes the values with
/// [`FixedRandom`].
///
/// ```
/// use relent_core::Random;
///
/// struct Counter(u64);
/// impl Random for Counter {
///     fn next_u64(&mut self) -> u64 {
///         self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
///         self.0
///     }
/// }
/// assert_ne!(Counter(0).next_u64(), 0);
/// ```
pub trait Random {
    /// The next 64 random bits.
    fn next_u64(&mut self) -> u64;
}

impl<R: Random + ?Sized> Random for &mut R {
    #[inline]
    fn next_u64(&mut self) -> u64 {
        (**self).next_u64()
    }
}

impl<R: Random + ?Sized> Random for Box<R> {
    #[inline]
    fn next_u64(&mut self) -> u64 {
        (**self).next_u64()
    }
}

/// A random source that always returns the same point of a range: 0 for the lower end, ½ for the
/// middle, 1 for the upper end.
///
/// ```
/// use core::time::Duration;
/// use relent_core::{Backoff, FixedRandom, Jitter, Policy};
///
/// let policy = Policy::builder(Backoff::constant(Duration::from_secs(2)))
///     .jitter(Jitter::Full)
///     .build()?;
/// assert_eq!(policy.waits(FixedRandom::at(0.5)).next(), Some(Duration::from_secs(1)));
/// assert_eq!(policy.waits(FixedRandom::at(1.0)).next(), Some(Duration::from_secs(2)));
/// # Ok::<(), relent_core::PolicyError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FixedRandom(u64);

impl FixedRandom {
    /// Creates the source for this point, from 0 to 1. Values outside are clamped, NaN counts as 0.
    #[must_use]
    pub const fn at(point: f64) -> Self {
        // 2⁶⁴ as a float; the cast saturates, so 1.0 becomes `u64::MAX`, the upper end.
        Self((point * 18_446_744_073_709_551_616.0) as u64)
    }
}

impl Random for FixedRandom {
    #[inline]
    fn next_u64(&mut self) -> u64 {
        self.0
    }
}

/// A uniform draw from `0..=most`.
#[inline]
pub(crate) fn up_to(most: u64, random: &mut (impl Random + ?Sized)) -> u64 {
    // The high half of bits · (most + 1): no division, and a bias below 2⁻⁶⁴·most. Written as bits
    // · most + bits, which needs only one 64-bit multiplication.
    let bits = u128::from(random.next_u64());
    ((bits * u128::from(most) + bits) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn random_draws_reach_both_ends_of_the_range() {
        assert_eq!(up_to(1000, &mut FixedRandom::at(0.0)), 0);
        assert_eq!(up_to(1000, &mut FixedRandom::at(0.5)), 500);
        assert_eq!(up_to(1000, &mut FixedRandom::at(1.0)), 1000);
        assert_eq!(up_to(u64::MAX, &mut FixedRandom::at(1.0)), u64::MAX);
        assert_eq!(up_to(0, &mut FixedRandom::at(1.0)), 0);
        assert_eq!(up_to(1000, &mut FixedRandom::at(f64::NAN)), 0);
        assert_eq!(up_to(1000, &mut FixedRandom::at(-1.0)), 0);
    }

    proptest! {
        #[test]
        fn a_random_draw_stays_in_its_range(most: u64, bits: u64) {
            prop_assert!(up_to(most, &mut FixedRandom(bits)) <= most);
        }
    }
}
