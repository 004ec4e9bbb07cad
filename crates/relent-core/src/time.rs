//! Time as an argument: instants on the driver's time line, and conversions to nanoseconds.

use core::time::Duration;

pub(crate) const NANOS_PER_SECOND: f64 = 1e9;

/// A point in time, in nanoseconds since an origin that the driver chooses.
///
/// Decisions never read a clock; the time is an argument. A driver on a real machine counts from an
/// arbitrary start of its monotonic clock, a simulator from zero. All arithmetic saturates: 2⁶⁴ ns
/// are 584 years.
///
/// ```
/// use core::time::Duration;
/// use relent_core::Instant;
///
/// let start = Instant::ORIGIN;
/// let later = start.saturating_add(Duration::from_secs(2));
/// assert_eq!(later.saturating_since(start), Duration::from_secs(2));
/// assert_eq!(start.saturating_since(later), Duration::ZERO);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(u64);

impl Instant {
    /// The start of the time line.
    pub const ORIGIN: Self = Self(0);
    /// The end of the time line, at which sums saturate.
    pub const MAX: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after the origin.
    #[inline]
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the origin.
    #[inline]
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This instant plus `duration`, at most [`Instant::MAX`].
    #[inline]
    #[must_use]
    pub const fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }

    /// The time from `earlier` to this instant; zero if `earlier` is not earlier.
    #[inline]
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// This instant plus so many nanoseconds, at most [`Instant::MAX`].
    #[inline]
    pub(crate) const fn plus_nanos(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// This instant minus so many nanoseconds, at least [`Instant::ORIGIN`].
    pub(crate) const fn minus_nanos(self, nanos: u64) -> Self {
        Self(self.0.saturating_sub(nanos))
    }

    /// This instant plus so many seconds, at most [`Instant::MAX`].
    pub(crate) const fn plus_seconds(self, seconds: f64) -> Self {
        self.plus_nanos((seconds * NANOS_PER_SECOND) as u64)
    }

    /// Like [`saturating_since`](Self::saturating_since) in nanoseconds: creating a `Duration`
    /// costs a division.
    #[inline]
    pub(crate) const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The nanoseconds of a duration, saturating at `u64::MAX`.
#[inline]
pub(crate) const fn nanos(duration: Duration) -> u64 {
    // `Duration::as_nanos` is a u128; this stays in one register.
    match duration.as_secs().checked_mul(1_000_000_000) {
        Some(whole) => whole.saturating_add(duration.subsec_nanos() as u64),
        None => u64::MAX,
    }
}

/// This share, from 0 to 1, of a time in nanoseconds. Never more than the whole; a share of 1 is
/// exact. Other shares are exact to the nanosecond below 104 days.
#[inline]
pub(crate) fn share_of(nanos: u64, share: f64) -> u64 {
    if share == 1.0 {
        return nanos;
    }
    ((nanos as f64 * share) as u64).min(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_saturate_instead_of_overflowing() {
        assert_eq!(nanos(Duration::MAX), u64::MAX);
        assert_eq!(nanos(Duration::from_nanos(u64::MAX)), u64::MAX);
        assert_eq!(nanos(Duration::from_nanos(1_500_000_001)), 1_500_000_001);
        assert_eq!(Instant::MAX.saturating_add(Duration::MAX), Instant::MAX);
    }
}
