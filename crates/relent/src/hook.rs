//! What a caller hears before each wait, and when an attempt is queued.

use std::fmt;
use std::time::Duration;

use relent_core::{Failure, format_duration};
pub use relent_core::{Queued, QueuedBy};

/// A notice before each wait, and when the next attempt is queued at its destination; never when the policy
/// stops (R4.5). Displays as a line for a log.
#[derive(Debug)]
pub struct Notice<'a, L> {
    /// The attempt that failed; the first is 1. If [`queued`](Self::queued), the one that is to start.
    pub attempt: u32,
    /// The wait before the next attempt. If that is queued then, there is a notice of it. If
    /// [`queued`](Self::queued), how long it waits at most.
    pub wait: Duration,
    /// How it was classified; `None` if queued.
    pub failure: Option<Failure>,
    /// The error, unless the attempt was cut off by its timeout; `None` if queued.
    pub error: Option<&'a L>,
    /// The attempt is queued: by which control of its destination, and for how long at most.
    pub queued: Option<Queued>,
}

impl<L: fmt::Display> fmt::Display for Notice<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(queued) = &self.queued {
            return queued.fmt(f);
        }
        let wait = Duration::from_millis(self.wait.as_millis().try_into().unwrap_or(u64::MAX));
        write!(f, "attempt {} failed", self.attempt)?;
        match (self.error, &self.failure) {
            (Some(error), _) => write!(f, ": {error}")?,
            (None, Some(failure)) => write!(f, ": {}", failure.cause)?,
            (None, None) => {}
        }
        write!(f, "; next in {}", format_duration(wait))
    }
}

/// Hears a [`Notice`] before each wait; made by [`Retry::notify`](crate::Retry::notify).
pub trait Hook<L> {
    /// Called before each wait.
    fn before_wait(&mut self, notice: &Notice<'_, L>);

    /// Called when the next attempt is queued at its destination. Does nothing unless it is implemented.
    #[inline]
    fn on_queued(&mut self, queued: &Queued) {
        let _ = queued;
    }
}

impl<L> Hook<L> for () {
    #[inline]
    fn before_wait(&mut self, _: &Notice<'_, L>) {}
}

/// A closure as a [`Hook`].
#[derive(Clone, Copy, Debug)]
pub struct Notify<F>(pub(crate) F);

impl<L, F: FnMut(&Notice<'_, L>)> Hook<L> for Notify<F> {
    fn before_wait(&mut self, notice: &Notice<'_, L>) {
        (self.0)(notice);
    }

    fn on_queued(&mut self, queued: &Queued) {
        (self.0)(&Notice {
            attempt: queued.attempt,
            wait: queued.at_most.unwrap_or(Duration::MAX),
            failure: None,
            error: None,
            queued: Some(*queued),
        });
    }
}
