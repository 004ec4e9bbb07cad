//! The attempt summary that every result carries.

use std::fmt;
use std::time::{Duration, SystemTime};

use relent_core::{StopReason, Trace, format_duration};

/// How a call ended: the attempt summary that every result carries.
///
/// Displays as one line, and with a trace as one more line for each attempt:
///
/// ```
/// use std::time::Duration;
/// use relent::{Backoff, Jitter, Policy, retry};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), relent::policy::PolicyError> {
/// let policy = Policy::builder(Backoff::constant(Duration::from_secs(2)))
///     .jitter(Jitter::None)
///     .max_retries(1)
///     .attempt_timeout(Duration::from_secs(1))
///     .build()?;
/// let silent = std::future::pending::<Result<(), std::io::Error>>;
/// let gave_up = retry(&policy, silent).traced().await.unwrap_err();
/// assert_eq!(
///     gave_up.summary().to_string(),
///     "gave up after 2 attempts in 4s: the retries are used up (each attempt timed out after 1s)\n\
///      attempt 1: timed out after 1s; next in 2s\n\
///      attempt 2: timed out after 1s; gave up: the retries are used up"
/// );
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// The number of attempts.
    pub attempts: u32,
    /// The time since the call began, all attempts and delays included.
    pub elapsed: Duration,
    /// The reason for giving up; `None` for a success.
    pub reason: Option<StopReason>,
    /// The time at which another call may succeed, if it is known: that of the server's `Retry-After`,
    /// or of the next slot of the rate limit.
    pub retry_at: Option<SystemTime>,
    /// The attempt timeout, if the policy has one and it ended every attempt; then there is no last
    /// error.
    pub timed_out: Option<Duration>,
    /// The longest time without a deadline, if the call gave up because its caller set no deadline:
    /// see
    /// [`CircuitBreakerConfig::max_queue_time_without_deadline`](crate::policy::CircuitBreakerConfig::max_queue_time_without_deadline).
    pub without_deadline: Option<Duration>,
    /// The trace of every attempt, if one was requested.
    pub trace: Option<Trace>,
}

impl Summary {
    /// The first line, without the part in brackets.
    pub(crate) fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.attempts == 1 { "" } else { "s" };
        // Whole milliseconds: finer figures only distract.
        let elapsed =
            Duration::from_millis(self.elapsed.as_millis().try_into().unwrap_or(u64::MAX));
        let (attempts, elapsed) = (self.attempts, format_duration(elapsed));
        match self.reason {
            None => write!(f, "succeeded after {attempts} attempt{plural} in {elapsed}"),
            Some(reason) => {
                write!(f, "gave up after {attempts} attempt{plural} in {elapsed}: ")?;
                let limit = self.without_deadline.map(format_duration);
                match limit
                    .map(|limit| format!("without a deadline no attempt starts after {limit}"))
                {
                    // This limit is no `max_elapsed`, which the reason names.
                    Some(limit) if reason == StopReason::MaxElapsed => f.write_str(&limit),
                    Some(limit) => write!(f, "{reason}, and {limit}"),
                    None => write!(f, "{reason}"),
                }
            }
        }
    }

    /// The attempt timeout in brackets, if it ended every attempt.
    pub(crate) fn failures(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(timeout) = self.timed_out else {
            return Ok(());
        };
        let which = if self.attempts == 1 { "the" } else { "each" };
        write!(
            f,
            " ({which} attempt timed out after {})",
            format_duration(timeout)
        )
    }

    /// One line for each attempt, if there is a trace.
    pub(crate) fn lines(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.trace {
            Some(trace) if trace.entries().len() > 0 => write!(f, "\n{trace}"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        self.failures(f)?;
        self.lines(f)
    }
}
