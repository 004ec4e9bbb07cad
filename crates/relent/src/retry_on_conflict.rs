//! Optimistic concurrency: repeats a whole read-modify-write after a conflict.

use relent_core::{Failure, Policy, Repeatable};

use crate::classify::{Classify, OutcomeClass};
use crate::destination::Destination;
use crate::operation::{Async, AttemptFuture, NonOverlapping};
use crate::retry::{DefaultClock, Retry};

/// The outcome of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteOutcome<T, E> {
    /// The write took effect.
    Done(T),
    /// Another client has written since the read: 409 ABORTED, 412, or a changed version. Not a 412 after
    /// [`StopReason::OutcomeUnknown`](crate::StopReason::OutcomeUnknown): it can be the effect of this
    /// client's own write.
    Conflict(E),
    /// Any other error; not retried here.
    Failed(E),
}

impl<T, E> WriteOutcome<T, E> {
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
/// repetition after a conflict safe.
///
/// An attempt that the policy's `attempt_timeout` cuts off may have written, and a new read would
/// then see that write. So the call ends with
/// [`StopReason::NotRepeatable`](crate::StopReason::NotRepeatable), unless the policy has
/// [`assume_repeatable`](crate::policy::PolicyBuilder::assume_repeatable): for a modification that may
/// apply twice, such as setting a value.
///
/// The same holds for a client inside that retries the write by itself: the write times out, takes
/// effect, and its retry gets 412. Such a client reports
/// [`StopReason::OutcomeUnknown`](crate::StopReason::OutcomeUnknown), which is
/// [`Failed`](WriteOutcome::Failed) and no conflict.
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
/// use relent::{Policy, WriteOutcome, retry_on_conflict};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let (version, row) = (Cell::new(1), Cell::new(10));
/// let reads = Cell::new(0);
/// let result = retry_on_conflict(Policy::STANDARD, async || {
///     let (seen, value) = (version.get(), row.get());
///     reads.set(reads.get() + 1);
///     if reads.get() == 1 {
///         version.set(2); // another client
///     }
///     if version.get() != seen {
///         return WriteOutcome::Conflict("version moved");
///     }
///     row.set(value + 1);
///     WriteOutcome::Done(row.get())
/// })
/// .await;
/// assert_eq!((result.unwrap(), reads.get()), (11, 2));
/// # }
/// ```
#[inline]
pub fn retry_on_conflict<F, Fut, T, E>(
    policy: &Policy,
    whole: F,
) -> Retry<'_, Async<NonOverlapping<F>>, ByWriteOutcome>
where
    F: FnMut() -> Fut,
    Fut: AttemptFuture<Output = WriteOutcome<T, E>>,
{
    let operation = Async::new(NonOverlapping(whole));
    let mut call = Retry::new(policy, operation, DefaultClock::default());
    // The condition makes a conflict safe to repeat, but not a write without an outcome: the next read
    // would see its effect, and the modification would apply twice.
    call.driver.set_repeatable(Repeatable::known(false));
    call.classify_with(ByWriteOutcome)
}

impl Destination {
    /// Repeats a whole read-modify-write until it has no conflict or the policy of this destination
    /// gives up. This is [`retry_on_conflict`] with this destination and its policy.
    ///
    /// ```
    /// use relent::{Destination, Policy, WriteOutcome};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let orders = Destination::new(Policy::STANDARD);
    /// let mut writers = 0;
    /// let whole = || {
    ///     writers += 1;
    ///     let written = if writers < 3 { WriteOutcome::Conflict("version moved") } else { WriteOutcome::Done(writers) };
    ///     async move { written }
    /// };
    /// assert_eq!(orders.retry_on_conflict(whole).await.unwrap(), 3);
    /// # }
    /// ```
    #[inline]
    pub fn retry_on_conflict<F, Fut, T, E>(
        &self,
        whole: F,
    ) -> Retry<'_, Async<NonOverlapping<F>>, ByWriteOutcome>
    where
        F: FnMut() -> Fut,
        Fut: AttemptFuture<Output = WriteOutcome<T, E>>,
    {
        retry_on_conflict(Policy::STANDARD, whole).by_destination(self)
    }
}

/// Classifies [`WriteOutcome`] values.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByWriteOutcome;

impl<T, E> Classify<WriteOutcome<T, E>> for ByWriteOutcome {
    type Success = T;
    type Last = E;

    fn classify_outcome(
        &mut self,
        outcome: WriteOutcome<T, E>,
    ) -> OutcomeClass<T, WriteOutcome<T, E>> {
        match outcome {
            WriteOutcome::Done(value) => OutcomeClass::Success(value),
            conflict @ WriteOutcome::Conflict(_) => {
                OutcomeClass::Failure(Failure::conflict(), conflict)
            }
            failed @ WriteOutcome::Failed(_) => OutcomeClass::Failure(Failure::permanent(), failed),
        }
    }

    fn error(outcome: &WriteOutcome<T, E>) -> Option<&E> {
        match outcome {
            WriteOutcome::Done(_) => None,
            WriteOutcome::Conflict(error) | WriteOutcome::Failed(error) => Some(error),
        }
    }

    fn into_error(outcome: WriteOutcome<T, E>) -> Option<E> {
        match outcome {
            WriteOutcome::Done(_) => None,
            WriteOutcome::Conflict(error) | WriteOutcome::Failed(error) => Some(error),
        }
    }
}
