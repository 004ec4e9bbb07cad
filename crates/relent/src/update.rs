//! Optimistic concurrency: repeats a whole read-modify-write after a conflict.

use relent_core::{Failure, Policy};

use crate::classify::{Classify, Judged};
use crate::destination::Destination;
use crate::operation::Alone;
use crate::retry::{DefaultClock, OfDestination, Retry};

/// The outcome of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written<T, E> {
    /// The write took effect.
    Done(T),
    /// Another client has written since the read: 409 ABORTED, 412, or a changed version.
    Conflict(E),
    /// Any other error; not retried here.
    Failed(E),
}

impl<T, E> Written<T, E> {
    /// Converts a result: an error for which `conflict` returns `true` is a
    /// [`Conflict`](Self::Conflict).
    pub fn from_result(result: Result<T, E>, conflict: impl FnOnce(&E) -> bool) -> Self {
        match result {
            Ok(value) => Self::Done(value),
            Err(error) if conflict(&error) => Self::Conflict(error),
            Err(error) => Self::Failed(error),
        }
    }
}

/// Reads, modifies and writes; on a conflict repeats all three, never the write alone. Await the
/// result.
///
/// The write must be conditional on the read (`If-Match`, `WHERE version = …`): only then is the
/// repetition safe.
///
/// A conflict costs no budget and does not count as a failure of the destination. Only the backoff
/// paces competing writers: if a write is slow, start with a backoff of several times its duration.
///
/// Two attempts never run concurrently: the `[hedge]` of the policy does not apply.
///
/// # Errors
/// [`GaveUp`](crate::GaveUp) with the last error.
///
/// ```
/// use std::cell::Cell;
/// use relent::{Policy, Written, update};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let (version, row) = (Cell::new(1), Cell::new(10));
/// let reads = Cell::new(0);
/// let result = update(Policy::STANDARD, async || {
///     let (seen, value) = (version.get(), row.get());
///     reads.set(reads.get() + 1);
///     if reads.get() == 1 {
///         version.set(2); // another client
///     }
///     if version.get() != seen {
///         return Written::Conflict("version moved");
///     }
///     row.set(value + 1);
///     Written::Done(row.get())
/// })
/// .await;
/// assert_eq!((result.unwrap(), reads.get()), (11, 2));
/// # }
/// ```
#[inline]
pub fn update<F, Fut, T, E>(policy: &Policy, whole: F) -> Retry<'_, Alone<F>, ByWritten>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Written<T, E>>,
{
    Retry::new(policy, Alone(whole), DefaultClock::default()).judge_by(ByWritten)
}

impl Destination {
    /// Repeats a whole read-modify-write until it has no conflict or the policy of this destination
    /// gives up. This is [`update`] with this destination and its policy.
    ///
    /// ```
    /// use relent::{Destination, Policy, Written};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let orders = Destination::new(Policy::STANDARD);
    /// let mut writers = 0;
    /// let whole = || {
    ///     writers += 1;
    ///     let written = if writers < 3 { Written::Conflict("version moved") } else { Written::Done(writers) };
    ///     async move { written }
    /// };
    /// assert_eq!(orders.update(whole).await.unwrap(), 3);
    /// # }
    /// ```
    #[inline]
    pub fn update<F, Fut, T, E>(&self, whole: F) -> OfDestination<'_, Alone<F>, ByWritten>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Written<T, E>>,
    {
        Retry::new(Policy::STANDARD, Alone(whole), DefaultClock::default())
            .by_destination(self)
            .judge_by(ByWritten)
    }
}

/// Classifies [`Written`] values.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByWritten;

impl<T, E> Classify<Written<T, E>> for ByWritten {
    type Success = T;
    type Last = E;

    fn judge(&mut self, outcome: Written<T, E>) -> Judged<T, E> {
        match outcome {
            Written::Done(value) => Judged::Success(value),
            Written::Conflict(error) => Judged::Failure(Failure::conflict(), error),
            Written::Failed(error) => Judged::Failure(Failure::permanent(), error),
        }
    }
}
