//! Polling: asking again until a job is done (R4.3, R4.4).

use relent_core::{Failure, Policy};

use crate::classify::{Classify, Judged};
use crate::destination::Destination;
use crate::operation::Plain;
use crate::retry::{DefaultClock, OfDestination, Retry};

/// What a look at the job showed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Polled<T> {
    /// It is done.
    Done(T),
    /// It is not done, and nothing has changed: look less and less often.
    Pending,
    /// It is not done, but it has moved: look often again (R4.4).
    Progress,
}

/// Asks `look` until it answers [`Polled::Done`] or the policy gives up. Await the result.
///
/// A policy with [`Backoff::elapsed`](crate::Backoff::elapsed) asks about ln(T/i)/ln(1+f) times for
/// a job of length T. An `Err` of `look` ends the polling; wrap the look in a
/// [`retry`](crate::retry) of its own where it may fail. With
/// [`activity`](Retry::activity), polling quickens when a person comes back.
///
/// # Errors
/// [`GaveUp`](crate::GaveUp): with the error of `look`, or without one if the policy gave up
/// waiting.
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
    /// Asks `look` until it answers [`Polled::Done`] or the policy of this destination gives up: as
    /// [`poll`], without saying twice where it goes.
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

/// Reads [`Polled`] values.
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
