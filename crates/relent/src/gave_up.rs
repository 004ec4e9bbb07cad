//! The error of a session that gave up.

use std::error::Error;
use std::fmt;
use std::time::{Duration, SystemTime};

use relent_core::{StopReason, Trace, format_duration};

use crate::driver::Summary;

/// Relent gave up: why, after how many attempts, and the last real error.
///
/// `L` is what the operation's failures are made of, mostly its error type.
///
/// ```
/// use relent::{Policy, VirtualClock, blocking};
///
/// let clock = VirtualClock::new();
/// let gave_up = blocking::retry(Policy::STANDARD, || Err::<(), _>("refused"))
///     .clock(&clock)
///     .run()
///     .unwrap_err();
/// assert_eq!(gave_up.attempts(), 8);
/// assert_eq!(gave_up.error(), Some(&"refused"));
/// assert!(gave_up.to_string().starts_with("gave up after 8 attempts"));
/// ```
pub struct GaveUp<L> {
    last: Option<L>,
    summary: Box<Summary>,
}

impl<L> GaveUp<L> {
    /// The error of a loop of your own around a [`Driver`](crate::Driver): its last error, and
    /// [`Driver::summary`](crate::Driver::summary).
    pub fn new(last: Option<L>, summary: Summary) -> Self {
        Self {
            last,
            summary: Box::new(summary),
        }
    }

    /// Why.
    #[must_use]
    pub fn reason(&self) -> StopReason {
        self.summary.reason.unwrap_or(StopReason::Cancelled)
    }

    /// The number of attempts that were started.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.summary.attempts
    }

    /// How long it took; see [`Summary::elapsed`].
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.summary.elapsed
    }

    /// When the server said that coming back makes sense. With [`StopReason::RetryLater`] it is
    /// always there: put the work aside until then.
    #[must_use]
    pub fn retry_at(&self) -> Option<SystemTime> {
        self.summary.retry_at
    }

    /// Every attempt, if a trace was asked for.
    #[must_use]
    pub fn trace(&self) -> Option<&Trace> {
        self.summary.trace.as_ref()
    }

    /// The last error of the operation, also when the retry that was to follow it was held back.
    /// `None` if no attempt came to an end of its own: there was none, all were cut off by time, or
    /// polling never failed.
    #[must_use]
    pub fn error(&self) -> Option<&L> {
        self.last.as_ref()
    }

    /// The last error of the operation, by value; see [`error`](Self::error).
    #[must_use]
    pub fn into_error(self) -> Option<L> {
        self.last
    }

    /// The whole account of the session.
    #[must_use]
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.attempts() == 1 { "" } else { "s" };
        // Whole milliseconds: nobody reads the nanoseconds of a failure.
        let elapsed =
            Duration::from_millis(self.elapsed().as_millis().try_into().unwrap_or(u64::MAX));
        write!(
            f,
            "gave up after {} attempt{plural} in {}: {}",
            self.attempts(),
            format_duration(elapsed),
            self.reason()
        )
    }
}

impl<L: fmt::Display> fmt::Display for GaveUp<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        match &self.last {
            Some(error) => write!(f, " (last error: {error})"),
            None => Ok(()),
        }
    }
}

impl<L: fmt::Debug> fmt::Debug for GaveUp<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GaveUp")
            .field("reason", &self.reason())
            .field("attempts", &self.attempts())
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

impl<L: Error + 'static> Error for GaveUp<L> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.last
            .as_ref()
            .map(|error| error as &(dyn Error + 'static))
    }
}
