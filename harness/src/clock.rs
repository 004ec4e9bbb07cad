//! One time for all processes, and how late they are.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The instant from which a run counts its time.
#[derive(Clone, Copy, Debug)]
pub struct Start(Instant);

impl Start {
    /// So many nanoseconds after 1970, by the clock of the machine, which all processes share. It is
    /// read once: what sets it during a run changes nothing.
    #[must_use]
    pub fn at(wall: u128) -> Self {
        let ahead = wall.saturating_sub(wall_clock());
        Self(Instant::now() + Duration::from_nanos(u64::try_from(ahead).unwrap_or(0)))
    }

    /// Nanoseconds since the start; 0 before it.
    #[must_use]
    pub fn now(self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The instant so many nanoseconds after the start.
    #[must_use]
    pub fn instant(self, nanos: u64) -> tokio::time::Instant {
        (self.0 + Duration::from_nanos(nanos)).into()
    }
}

/// Nanoseconds since 1970.
#[must_use]
pub fn wall_clock() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos())
}

/// How late an event loop is: by how much a timer that was due is run later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Lag {
    /// 95 % of the time by no more than this, in nanoseconds.
    pub usual: u64,
    /// At worst by this, in nanoseconds.
    pub worst: u64,
}

impl Lag {
    /// Of two processes the later.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            usual: self.usual.max(other.usual),
            worst: self.worst.max(other.worst),
        }
    }

    fn of(mut late: Vec<u64>) -> Self {
        late.sort_unstable();
        let at = |index: usize| late.get(index).copied().unwrap_or(0);
        Self {
            usual: at(late.len() * 95 / 100),
            worst: at(late.len().saturating_sub(1)),
        }
    }
}

/// How often an event loop is looked at.
const EVERY: Duration = Duration::from_millis(5);

/// Watches the event loop that it runs on.
#[derive(Default, Debug)]
pub struct Watch(Vec<u64>);

impl Watch {
    /// Goes on until it is dropped.
    pub async fn watch(&mut self) {
        loop {
            let due = tokio::time::Instant::now() + EVERY;
            tokio::time::sleep_until(due).await;
            let late = due.elapsed().as_nanos();
            self.0.push(u64::try_from(late).unwrap_or(u64::MAX));
        }
    }

    /// What was seen.
    #[must_use]
    pub fn lag(self) -> Lag {
        Lag::of(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_is_late_once_in_a_while_has_a_worst_and_a_usual_lag() {
        let mut late = vec![10; 960];
        late.extend([1000; 40]);
        let lag = Lag::of(late);
        assert_eq!((lag.usual, lag.worst), (10, 1000));
        assert_eq!(Lag::of(Vec::new()), Lag::default());
    }

    #[test]
    fn time_counts_from_the_start_in_every_process() {
        let wall = wall_clock();
        let (one, other) = (Start::at(wall), Start::at(wall));
        let (first, second) = (one.now(), other.now());
        assert!(first.abs_diff(second) < 1_000_000_000);
        assert_eq!(
            Start::at(wall + 3_600_000_000_000).now(),
            0,
            "an hour from now"
        );
    }
}
