//! Server time, and the wait for an instant on a server's clock.

use core::time::Duration;

/// The time of a server's clock when its response arrived, since the beginning of 1970.
///
/// A date from a server refers to the server's clock, which may differ from the local one. A date
/// is therefore compared with the `Date` of the same response, and with the local clock only if
/// there is none: then a wrong clock on either side does not matter.
///
/// ```
/// use core::time::Duration;
/// use relent_core::ServerTime;
///
/// let noon = Duration::from_secs(1_792_584_000);
/// // Sent at noon, ten seconds in a cache: "retry at half a minute past noon".
/// let time = ServerTime::told(noon, 10);
/// assert_eq!(time.until(noon + Duration::from_secs(30)), Duration::from_secs(21));
/// assert_eq!(time.until(noon), Duration::ZERO);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServerTime(Duration);

/// Both dates are whole seconds, rounded down: the difference may be too short by nearly one.
const WHOLE_SECOND: Duration = Duration::from_secs(1);

impl ServerTime {
    /// The server time from a response: its `Date`, since 1970, plus its `Age` in caches in seconds
    /// (RFC 9110 §6.6.1, RFC 9111 §5.1).
    #[must_use]
    pub const fn told(date: Duration, age: u64) -> Self {
        Self(date.saturating_add(Duration::from_secs(age)))
    }

    /// The local time since 1970, for a response without a `Date`: wrong by the difference of the
    /// clocks.
    #[must_use]
    pub const fn local(now: Duration) -> Self {
        Self(now)
    }

    /// The wait for an instant of the server's clock, given since 1970. Adds one second, so that a
    /// client is not early; zero for an instant that passed more than a second ago.
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
    fn a_server_date_wait_covers_rounding_and_is_never_negative() {
        assert_eq!(ServerTime::told(at(7), 0).until(at(10)), at(4));
        assert_eq!(ServerTime::told(at(7), 2).until(at(10)), at(2));
        assert_eq!(ServerTime::told(at(7), 0).until(at(7)), at(1));
        assert_eq!(ServerTime::told(at(8), 0).until(at(7)), Duration::ZERO);
        let local = ServerTime::local(Duration::from_millis(7300));
        assert_eq!(local.until(at(7)), Duration::from_millis(700));
    }

    #[test]
    fn server_times_saturate() {
        let latest = ServerTime::told(Duration::MAX, u64::MAX);
        assert_eq!(latest.until(Duration::MAX), Duration::ZERO);
        assert_eq!(
            ServerTime::told(at(0), 0).until(Duration::MAX),
            Duration::MAX
        );
    }
}
