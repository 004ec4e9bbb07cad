//! Polling until a job is completed.

use relent_core::{Failure, Policy};

use crate::classify::{Classify, Judged};
use crate::destination::Destination;
use crate::operation::Plain;
use crate::retry::{DefaultClock, OfDestination, Retry};

/// The result of one poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Polled<T> {
    /// The job is completed.
    Done(T),
    /// The job is not completed, and nothing has changed: poll less and less often.
    Pending,
    /// The job is not completed, but has progressed: poll often again.
    Progress,
}

/// Calls `look` until it returns [`Polled::Done`] or the policy gives up. Await the result.
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
/// use relent::{Backoff, Policy, Polled, poll};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = Policy::builder(Backoff::elapsed(Duration::from_secs(1), 0.5))
///     .unlimited_retries()
///     .deadline(Duration::from_secs(3600))
///     .build()?;
/// let started = tokio::time::Instant::now();
/// let mut looks = 0;
/// let state = poll(&policy, || {
///     looks += 1;
///     let done = started.elapsed() > Duration::from_secs(60);
///     async move { Ok::<_, std::io::Error>(if done { Polled::Done("paid") } else { Polled::Pending }) }
/// })
/// .await?;
/// assert_eq!(state, "paid");
/// assert!(looks < 20, "{looks}");
/// # Ok(()) }
/// ```
#[inline]
pub fn poll<F, Fut, T, E>(policy: &Policy, look: F) -> Retry<'_, Plain<F>, ByPolled>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Polled<T>, E>>,
{
    Retry::new(policy, Plain(look), DefaultClock::default()).judge_by(ByPolled)
}

impl Destination {
    /// Calls `look` until it returns [`Polled::Done`] or the policy of this destination gives up.
    /// This is [`poll`] with this destination and its policy.
    ///
    /// ```
    /// use relent::{Destination, Policy, Polled};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let jobs = Destination::new(Policy::STANDARD);
    /// let mut looks = 0;
    /// let look = || {
    ///     looks += 1;
    ///     let state = if looks < 3 { Polled::Pending } else { Polled::Done("paid") };
    ///     async move { Ok::<_, std::io::Error>(state) }
    /// };
    /// assert_eq!(jobs.poll(look).await.unwrap(), "paid");
    /// # }
    /// ```
    #[inline]
    pub fn poll<F, Fut, T, E>(&self, look: F) -> OfDestination<'_, Plain<F>, ByPolled>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<Polled<T>, E>>,
    {
        Retry::new(Policy::STANDARD, Plain(look), DefaultClock::default())
            .by_destination(self)
            .judge_by(ByPolled)
    }
}

/// Classifies [`Polled`] values.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByPolled;

impl<T, E> Classify<Result<Polled<T>, E>> for ByPolled {
    type Success = T;
    type Last = E;

    fn judge(&mut self, outcome: Result<Polled<T>, E>) -> Judged<T, E> {
        match outcome {
            Ok(Polled::Done(value)) => Judged::Success(value),
            Ok(Polled::Pending) => Judged::Pending { progress: false },
            Ok(Polled::Progress) => Judged::Pending { progress: true },
            Err(error) => Judged::Failure(Failure::permanent(), error),
        }
    }
}
