//! An estimate of a database server's clock.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use crate::idempotency::limits::MAX_WAIT;

/// Returns the end of a wait that begins now. A wait without limit, such as [`Duration::MAX`], ends in a year.
pub(crate) fn end_of_wait(wait: Duration) -> Instant {
    Instant::now() + wait.min(MAX_WAIT)
}

/// Estimates the time of a server at an instant of this process. The estimate is never ahead of the server, unless
/// the server's clock was set back since the last reply. It lags by the transit time of the reply.
///
/// Before the first reply the estimate is in the far past.
#[derive(Debug)]
pub(crate) struct ServerClock {
    began: Instant,
    /// The time of the server at `began`, in microseconds since 1970.
    then: AtomicI64,
}

impl Default for ServerClock {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            then: AtomicI64::new(i64::MIN / 2),
        }
    }
}

impl ServerClock {
    /// Updates the estimate with the time in a reply that has just arrived, in microseconds since 1970. It replaces
    /// the old estimate, since the server may be another one, or its clock may have been set.
    pub(crate) fn learn(&self, now: i64) {
        let then = now.saturating_sub(self.since(Instant::now()));
        self.then.store(then, Ordering::Relaxed);
    }

    /// Returns the estimated time of the server at this instant, in microseconds since 1970.
    pub(crate) fn at(&self, instant: Instant) -> i64 {
        let then = self.then.load(Ordering::Relaxed);
        then.saturating_add(self.since(instant))
    }

    fn since(&self, instant: Instant) -> i64 {
        let since = instant.saturating_duration_since(self.began);
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimated_server_time_is_never_ahead() {
        let clock = ServerClock::default();
        let (now, hour) = (Instant::now(), Duration::from_secs(3600));
        assert!(clock.at(now + hour) < 0, "nothing is known yet");
        // A slow reply makes the estimate lag.
        clock.learn(1_000_000);
        let arrived = Instant::now();
        assert!(clock.at(arrived) <= 1_000_000 + 1);
        let later = clock.at(arrived + hour);
        assert!((3_600_900_000..=3_601_000_001).contains(&later), "{later}");
        // The server's clock was set back.
        clock.learn(5);
        assert!(clock.at(Instant::now()) < 900_000);
    }
}
