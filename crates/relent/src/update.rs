//! Read-modify-write: the whole of it again when somebody else was faster (R3.3).

use relent_core::{Failure, Policy};

use crate::classify::{Classify, Judged};
use crate::destination::Destination;
use crate::operation::Alone;
use crate::retry::{DefaultClock, OfDestination, Retry};

/// How a write ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written<T, E> {
    /// It took effect.
    Done(T),
    /// Somebody else has written since the read: 409 ABORTED, 412, a version that has moved.
    Conflict(E),
    /// Anything else; not repeated here.
    Failed(E),
}

impl<T, E> Written<T, E> {
    /// Sorts a result: an error for which `conflict` says `true` is a [`Conflict`](Self::Conflict).
    pub fn from_result(result: Result<T, E>, conflict: impl FnOnce(&E) -> bool) -> Self {
        match result {
            Ok(value) => Self::Done(value),
            Err(error) if conflict(&error) => Self::Conflict(error),
            Err(error) => Self::Failed(error),
        }
    }
}

/// Reads, modifies and writes; on a conflict repeats all three, never the write alone (R3.3). Await
/// the result.
///
/// The write must be conditional on what was read (`If-Match`, `WHERE version = …`): that is what
/// makes the repetition safe.
///
/// A conflict costs nothing from a budget and is no sign against the destination. What paces those who write
/// the same is the backoff: where a write takes long, begin with several times as long.
///
/// Two of them never run at once: the `[hedge]` of the policy does not apply.
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
///         version.set(2); // somebody else
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
    /// Repeats a whole read-modify-write until no other writer was faster or the policy of this destination
    /// gives up: as [`update`], without saying twice where it goes.
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

/// Reads [`Written`] values.
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
