//! One timer, made when it is first needed and used again.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use relent_core::{Cold, Instant};

use crate::clock::Sleeper;

/// The timer of one session, for its waits and its limits of time, one after the other. There is none
/// before it is first set, and then it is set anew (design rule 10).
///
/// For futures of your own over a [`Driver`](crate::driver::Driver): see
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
pub struct Timer<K: Sleeper>(Cold<Pin<Box<K::Sleep>>>);

impl<K: Sleeper> Timer<K> {
    /// Not set.
    #[must_use]
    pub const fn new() -> Self {
        Self(Cold::new(None))
    }

    /// Runs out after this, whatever it was set for before.
    pub fn set(&mut self, clock: &K, duration: Duration) {
        self.put(clock.sleep(duration));
    }

    /// Runs out at this instant of the clock, whatever it was set for before.
    pub fn set_until(&mut self, clock: &K, until: Instant) {
        self.put(clock.sleep_until(until));
    }

    fn put(&mut self, sleep: K::Sleep) {
        match &mut *self.0 {
            Some(timer) => timer.as_mut().set(sleep),
            None => *self.0 = Some(Box::pin(sleep)),
        }
    }

    /// Ready when it has run out, or was never set. To be set again before it is polled again.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut *self.0 {
            Some(timer) => timer.as_mut().poll(context),
            None => Poll::Ready(()),
        }
    }
}

impl<K: Sleeper> Default for Timer<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Sleeper> fmt::Debug for Timer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer")
            .field("made", &self.0.is_some())
            .finish()
    }
}
