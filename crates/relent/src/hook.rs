//! What a caller hears before each wait.

use std::fmt;
use std::time::Duration;

use relent_core::{Failure, format_duration};

/// Told before each wait, never when the policy stops (R4.5). Displays as a line for a log.
#[derive(Debug)]
pub struct Notice<'a, L> {
    /// The attempt that failed; the first is 1.
    pub attempt: u32,
    /// The wait before the next.
    pub wait: Duration,
    /// How it was classified.
    pub failure: Failure,
    /// The error, unless the attempt was cut off by its timeout.
    pub error: Option<&'a L>,
}

impl<L: fmt::Display> fmt::Display for Notice<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wait = Duration::from_millis(self.wait.as_millis().try_into().unwrap_or(u64::MAX));
        write!(f, "attempt {} failed: ", self.attempt)?;
        match self.error {
            Some(error) => write!(f, "{error}")?,
            None => write!(f, "{}", self.failure.cause)?,
        }
        write!(f, "; next in {}", format_duration(wait))
    }
}

/// Hears a [`Notice`] before each wait; made by [`Retry::notify`](crate::Retry::notify).
pub trait Hook<L> {
    /// Called before each wait.
    fn before_wait(&mut self, notice: &Notice<'_, L>);
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
}
