//! A timer that is created at its first use and then reused.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use relent_core::Instant;

use crate::clock::{Clock, Sleeper};

/// The timer of one session, for its waits and its time limits. It is allocated when it is first
/// set and reset afterwards, so that a session without a wait allocates nothing.
///
/// For your own futures over a [`Driver`](crate::driver::Driver): see
/// [`poll_enter`](crate::driver::Driver::poll_enter).
///
/// ```
/// use std::future::poll_fn;
/// use std::time::Duration;
/// use relent::clock::TokioClock;
/// use relent::timer::Timer;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let begun = tokio::time::Instant::now();
/// let mut timer = Timer::new();
/// timer.set(&TokioClock, Duration::from_secs(5));
/// poll_fn(|context| timer.poll(context)).await;
/// assert!(begun.elapsed() >= Duration::from_secs(5));
/// # }
/// ```
pub struct Timer<K: Clock>(Option<Pin<Box<K::Sleep>>>);

impl<K: Clock> Timer<K> {
    /// Creates a timer that is not set.
    #[must_use]
    pub const fn new() -> Self {
        Self(None)
    }
}

impl<K: Sleeper> Timer<K> {
    /// Sets the timer to expire after `duration`, replacing an earlier setting.
    pub fn set(&mut self, clock: &K, duration: Duration) {
        self.put(clock.sleep(duration));
    }

    /// Sets the timer to expire at this instant of the clock, replacing an earlier setting.
    pub fn set_until(&mut self, clock: &K, until: Instant) {
        self.put(clock.sleep_until(until));
    }

    fn put(&mut self, sleep: K::Sleep) {
        match &mut self.0 {
            Some(timer) => timer.as_mut().set(sleep),
            None => self.0 = Some(Box::pin(sleep)),
        }
    }

    /// Ready when it has expired or was never set. Set it again before you poll it again.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Some(timer) => timer.as_mut().poll(context),
            None => Poll::Ready(()),
        }
    }
}

impl<K: Clock> Default for Timer<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Clock> fmt::Debug for Timer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer")
            .field("made", &self.0.is_some())
            .finish()
    }
}
