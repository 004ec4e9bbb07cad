//! Notifications of the caller: before each wait, and when an attempt is queued.

use std::fmt;
use std::time::Duration;

pub use relent_core::call::{Queued, QueuedBy};
use relent_core::{Failure, format_duration};

/// A notice of a failure before the wait that follows, or of an attempt that is queued at its
/// destination. There is none when the policy stops. Displays as a log line.
#[derive(Debug)]
pub struct Notice<'a, L> {
    /// The failed attempt; the first is 1. If [`queued`](Self::queued), the attempt that waits to
    /// start.
    pub attempt: u32,
    /// The wait before the next attempt; if that attempt is queued afterwards, another notice
    /// follows. If [`queued`](Self::queued), the longest wait in the queue.
    pub wait: Duration,
    /// The classified failure; `None` if queued.
    pub failure: Option<Failure>,
    /// The error, unless the attempt was cut off by its timeout; `None` if queued.
    pub error: Option<&'a L>,
    /// Set if the attempt is queued: the control that queues it, and the longest wait.
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

/// Receives a [`Notice`] before each wait; made by [`Retry::notify`](crate::Retry::notify).
pub trait Hook<L> {
    /// Called before each wait.
    fn before_wait(&mut self, notice: &Notice<'_, L>);

    /// Called when the next attempt is queued at its destination. Does nothing by default.
    #[inline]
    fn on_queued(&mut self, queued: &Queued) {
        let _ = queued;
    }
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
