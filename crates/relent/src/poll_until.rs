//! Polling until a job is completed.

use relent_core::{Failure, Policy};

use crate::classify::{Classify, OutcomeClass};
use crate::destination::Destination;
use crate::operation::{Async, AttemptFuture, Plain};
use crate::retry::{Retry, retry};

/// The result of one poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PollOutcome<T> {
    /// The job is completed.
    Done(T),
    /// The job is not completed, and nothing has changed: poll less and less often.
    Pending,
    /// The job is not completed, but has progressed: poll often again.
    Progress,
}

/// Calls `look` until it returns [`PollOutcome::Done`] or the policy gives up. Await the result.
///
/// A policy with [`Backoff::elapsed`](crate::Backoff::elapsed) polls about ln(T/i)/ln(1+f) times
/// for a job that takes T. An `Err` of `look` ends the polling; if a poll may fail, wrap it in its
/// own [`retry`](crate::retry). With [`activity`](Retry::activity), polling speeds up when the user
/// returns.
///
/// # Errors
/// [`GaveUp`](crate::GaveUp): with the error of `look`, or without one if the policy gave up.
///
/// ```
/// use std::time::Duration;
/// use relent::{Backoff, Policy, PollOutcome, poll_until};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = Policy::builder(Backoff::elapsed(Duration::from_secs(1), 0.5))
///     .unlimited_retries()
///     .deadline(Duration::from_secs(3600))
///     .build()?;
/// let started = tokio::time::Instant::now();
/// let mut looks = 0;
/// let state = poll_until(&policy, || {
///     looks += 1;
///     let done = started.elapsed() > Duration::from_secs(60);
///     async move { Ok::<_, std::io::Error>(if done { PollOutcome::Done("paid") } else { PollOutcome::Pending }) }
/// })
/// .await?;
/// assert_eq!(state, "paid");
/// assert!(looks < 20, "{looks}");
/// # Ok(()) }
/// ```
#[inline]
pub fn poll_until<F, Fut, T, E>(
    policy: &Policy,
    look: F,
) -> Retry<'_, Async<Plain<F>>, ByPollOutcome>
where
    F: FnMut() -> Fut,
    Fut: AttemptFuture<Output = Result<PollOutcome<T>, E>>,
{
    retry(policy, look).classify_with(ByPollOutcome)
}

impl Destination {
    /// Calls `look` until it returns [`PollOutcome::Done`] or the policy of this destination gives up.
    /// This is [`poll_until`] with this destination and its policy.
    ///
    /// ```
    /// use relent::{Destination, Policy, PollOutcome};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let jobs = Destination::new(Policy::STANDARD);
    /// let mut looks = 0;
    /// let look = || {
    ///     looks += 1;
    ///     let state = if looks < 3 { PollOutcome::Pending } else { PollOutcome::Done("paid") };
    ///     async move { Ok::<_, std::io::Error>(state) }
    /// };
    /// assert_eq!(jobs.poll_until(look).await.unwrap(), "paid");
    /// # }
    /// ```
    #[inline]
    pub fn poll_until<F, Fut, T, E>(&self, look: F) -> Retry<'_, Async<Plain<F>>, ByPollOutcome>
    where
        F: FnMut() -> Fut,
        Fut: AttemptFuture<Output = Result<PollOutcome<T>, E>>,
    {
        self.retry(look).classify_with(ByPollOutcome)
    }
}

/// Classifies [`PollOutcome`] values.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByPollOutcome;

impl<T, E> Classify<Result<PollOutcome<T>, E>> for ByPollOutcome {
    type Success = T;
    type Last = E;

    fn classify_outcome(
        &mut self,
        outcome: Result<PollOutcome<T>, E>,
    ) -> OutcomeClass<T, Result<PollOutcome<T>, E>> {
        match outcome {
            Ok(PollOutcome::Done(value)) => OutcomeClass::Success(value),
            Ok(PollOutcome::Pending) => OutcomeClass::Pending { progress: false },
            Ok(PollOutcome::Progress) => OutcomeClass::Pending { progress: true },
            failed => OutcomeClass::Failure(Failure::permanent(), failed),
        }
    }

    fn error(outcome: &Result<PollOutcome<T>, E>) -> Option<&E> {
        outcome.as_ref().err()
    }

    fn into_error(outcome: Result<PollOutcome<T>, E>) -> Option<E> {
        outcome.err()
    }
}
