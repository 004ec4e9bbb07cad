//! What time it is for a server, and how long to wait for an instant that it named.

use core::time::Duration;

/// The time of a server's clock when its answer arrived, since the beginning of 1970.
///
/// A date that a server names means its own clock, and clocks differ (R1.5). So a date is read against
/// the date that the same answer was sent at, never against the local clock if that can be helped
/// (design rule 5): then a wrong clock on either side does not matter.
///
/// ```
/// use core::time::Duration;
/// use relent_core::ServerTime;
///
/// let noon = Duration::from_secs(1_792_584_000);
/// // Sent at noon, ten seconds in a cache: "come back at half a minute past noon".
/// let time = ServerTime::told(noon, 10);
/// assert_eq!(time.until(noon + Duration::from_secs(30)), Duration::from_secs(21));
/// assert_eq!(time.until(noon), Duration::ZERO);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServerTime(Duration);

/// Both dates are told in whole seconds, rounded down: the difference may be short by nearly one.
const WHOLE_SECOND: Duration = Duration::from_secs(1);

impl ServerTime {
    /// As the server told it: the `Date` of its answer, since 1970, and the `Age` in seconds that the
    /// answer has spent in caches (RFC 9110 §6.6.1, RFC 9111 §5.1).
    #[must_use]
    pub const fn told(date: Duration, age: u64) -> Self {
        Self(date.saturating_add(Duration::from_secs(age)))
    }

    /// The local time since 1970, for an answer without a `Date`: as wrong as the two clocks differ.
    #[must_use]
    pub const fn local(now: Duration) -> Self {
        Self(now)
    }

    /// How long to wait for an instant, since 1970, of the server's clock. One second is added, since a
    /// client should not come early; an instant that is past by more means zero.
    #[must_use]
    pub const fn until(self, instant: Duration) -> Duration {
        instant.saturating_add(WHOLE_SECOND).saturating_sub(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_wait_covers_the_whole_seconds_of_both_and_is_never_negative() {
        assert_eq!(ServerTime::told(at(7), 0).until(at(10)), at(4));
        assert_eq!(ServerTime::told(at(7), 2).until(at(10)), at(2));
        assert_eq!(ServerTime::told(at(7), 0).until(at(7)), at(1));
        assert_eq!(ServerTime::told(at(8), 0).until(at(7)), Duration::ZERO);
        let local = ServerTime::local(Duration::from_millis(7300));
        assert_eq!(local.until(at(7)), Duration::from_millis(700));
    }

    #[test]
    fn values_beyond_all_time_saturate() {
        let latest = ServerTime::told(Duration::MAX, u64::MAX);
        assert_eq!(latest.until(Duration::MAX), Duration::ZERO);
        assert_eq!(
            ServerTime::told(at(0), 0).until(Duration::MAX),
            Duration::MAX
        );
    }
}
