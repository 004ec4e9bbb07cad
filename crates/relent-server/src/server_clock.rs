//! The clock of a database server, as far as a process knows it by the replies.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

/// What the clock of a server shows at an instant of this process. It is never taken to be later than it is, unless it was
/// set back since the last reply: a reply is older than its arrival, by as much as it was under way.
///
/// Before the first reply each time of the server is taken to be in the far past.
#[derive(Debug)]
pub(crate) struct ServerClock {
    began: Instant,
    /// The time of the server when this process was at `began`, in microseconds since 1970.
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
    /// A reply that has just arrived tells the time of the server, in microseconds since 1970. It takes the place of those
    /// before, since the server may be another one, or its clock may have been set.
    pub(crate) fn learn(&self, now: i64) {
        let then = now.saturating_sub(self.since(Instant::now()));
        self.then.store(then, Ordering::Relaxed);
    }

    /// The time of the server at this instant, in microseconds since 1970.
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_time_of_the_server_is_never_taken_to_be_later_than_it_is() {
        let clock = ServerClock::default();
        let (now, hour) = (Instant::now(), Duration::from_secs(3600));
        assert!(clock.at(now + hour) < 0, "nothing is known yet");
        // A reply that is on its way for a while is older than it seems.
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
