//! Classification of an operation's outcomes.

use std::time::Duration;

use relent_core::{Failure, FailureKind, Hint};

/// The classification of an outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutcomeClass<S, L> {
    /// The operation succeeded with this value.
    Success(S),
    /// The attempt failed with this failure. The second value is part of the caller's result if no
    /// attempt follows.
    Failure(Failure, L),
    /// Not a failure, but not completed yet: poll again. With `progress`, the backoff restarts.
    Pending {
        /// Whether the job has progressed since the last poll.
        progress: bool,
    },
}

/// Classifies an outcome `O` of the operation.
///
/// Implement it to support your own type. For errors, [`Retry::when`](crate::Retry::when) and
/// [`Retry::classify`](crate::Retry::classify) take closures.
///
/// ```
/// use relent::Failure;
/// use relent::classify::{Classify, OutcomeClass};
///
/// /// An exit status: 0 is good, 2 cannot be helped.
/// struct ByStatus;
/// impl Classify<i32> for ByStatus {
///     type Success = ();
///     type Last = i32;
///     fn classify_outcome(&mut self, status: i32) -> OutcomeClass<(), i32> {
///         match status {
///             0 => OutcomeClass::Success(()),
///             2 => OutcomeClass::Failure(Failure::permanent(), status),
///             _ => OutcomeClass::Failure(Failure::ambiguous(), status),
///         }
///     }
/// }
/// assert_eq!(ByStatus.classify_outcome(0), OutcomeClass::Success(()));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot tell whether `{O}` is a success",
    note = "the operation has to return a `Result`; for other types say what they mean with \
            `.classify_outcome(..)`"
)]
pub trait Classify<O> {
    /// The value of a success.
    type Success;
    /// The value that is kept of the last failure.
    type Last;

    /// Classifies one outcome.
    fn classify_outcome(&mut self, outcome: O) -> OutcomeClass<Self::Success, Self::Last>;
}

/// The default classification: every `Err` is a failure that may have taken effect, every `Ok` a
/// success.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnyError;

impl<T, E> Classify<Result<T, E>> for AnyError {
    type Success = T;
    type Last = E;

    #[inline]
    fn classify_outcome(&mut self, outcome: Result<T, E>) -> OutcomeClass<T, E> {
        match outcome {
            Ok(value) => OutcomeClass::Success(value),
            Err(error) => OutcomeClass::Failure(Failure::ambiguous(), error),
        }
    }
}

/// Classifies errors with a closure.
#[derive(Clone, Copy, Debug)]
pub struct ByError<F>(pub(crate) F);

impl<T, E, F: FnMut(&E) -> Failure> Classify<Result<T, E>> for ByError<F> {
    type Success = T;
    type Last = E;

    #[inline]
    fn classify_outcome(&mut self, outcome: Result<T, E>) -> OutcomeClass<T, E> {
        match outcome {
            Ok(value) => OutcomeClass::Success(value),
            Err(error) => OutcomeClass::Failure((self.0)(&error), error),
        }
    }
}

/// Classifies the whole outcome with a closure: `None` is a success.
#[derive(Clone, Copy, Debug)]
pub struct ByOutcome<F>(pub(crate) F);

impl<O, F: FnMut(&O) -> Option<Failure>> Classify<O> for ByOutcome<F> {
    type Success = O;
    type Last = O;

    #[inline]
    fn classify_outcome(&mut self, outcome: O) -> OutcomeClass<O, O> {
        match (self.0)(&outcome) {
            None => OutcomeClass::Success(outcome),
            Some(failure) => OutcomeClass::Failure(failure, outcome),
        }
    }
}

/// An error that carries its own classification. The operation returns `Result<T, Marked<E>>`, and
/// [`Retry::classify_by_error`](crate::Retry::classify_by_error) reads it.
///
/// `?` makes an error [`Transient`](Self::Transient).
///
/// ```
/// use relent::{Policy, StopReason, blocking};
/// use relent::classify::RetryableError;
///
/// let result = blocking::retry(Policy::PATIENT, || -> Result<u32, RetryableError<_>> {
///     "12a".parse().map_err(RetryableError::Permanent)
/// })
/// .classify_by_error()
/// .run();
/// assert_eq!(result.unwrap_err().reason(), StopReason::Permanent);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetryableError<E> {
    /// A retry cannot succeed.
    Permanent(E),
    /// The attempt may have taken effect, and a retry may succeed.
    Transient(E),
    /// Rejected by a rate limit; retry after this delay.
    RetryAfter(E, Duration),
}

impl<E> From<E> for RetryableError<E> {
    fn from(error: E) -> Self {
        Self::Transient(error)
    }
}

/// Classifies [`RetryableError`] errors.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByRetryableError;

impl<T, E> Classify<Result<T, RetryableError<E>>> for ByRetryableError {
    type Success = T;
    type Last = E;

    #[inline]
    fn classify_outcome(&mut self, outcome: Result<T, RetryableError<E>>) -> OutcomeClass<T, E> {
        match outcome {
            Ok(value) => OutcomeClass::Success(value),
            Err(RetryableError::Permanent(error)) => {
                OutcomeClass::Failure(Failure::permanent(), error)
            }
            Err(RetryableError::Transient(error)) => {
                OutcomeClass::Failure(Failure::ambiguous(), error)
            }
            Err(RetryableError::RetryAfter(error, delay)) => OutcomeClass::Failure(
                Failure::new(FailureKind::Throttled).hint(Hint::after(delay)),
                error,
            ),
        }
    }
}
