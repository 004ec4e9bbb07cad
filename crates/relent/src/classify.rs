//! Classification of an operation's outcomes.

use std::time::Duration;

use relent_core::{Failure, Hint};

use crate::hook::{Hook, Notice, Queued};

/// The classification of an outcome `O`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutcomeClass<S, O> {
    /// The operation succeeded with this value.
    Success(S),
    /// The attempt failed with this failure. The outcome is part of the caller's result if no
    /// attempt follows.
    Failure(Failure, O),
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
///     fn error(status: &i32) -> Option<&i32> {
///         Some(status)
///     }
///     fn into_error(status: i32) -> Option<i32> {
///         Some(status)
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
    /// The error of a failed outcome, for notices and for the result.
    type Last;

    /// Classifies one outcome. A failure returns the outcome unchanged.
    fn classify_outcome(&mut self, outcome: O) -> OutcomeClass<Self::Success, O>;

    /// The error of a failed outcome, for a [`Notice`]; `None` if it has none.
    fn error(outcome: &O) -> Option<&Self::Last>;

    /// The error of the last failed outcome, for the result; `None` if it has none.
    fn into_error(outcome: O) -> Option<Self::Last>;

    /// Called before each wait. Does nothing by default.
    #[doc(hidden)]
    #[inline]
    fn before_wait(&mut self, notice: &Notice<'_, Self::Last>) {
        let _ = notice;
    }

    /// Called when the next attempt is queued at its destination. Does nothing by default.
    #[doc(hidden)]
    #[inline]
    fn on_queued(&mut self, queued: &Queued) {
        let _ = queued;
    }
}

/// A classification with a [`Hook`]; made by [`Retry::notify`](crate::Retry::notify) and
/// [`Retry::hook`](crate::Retry::hook).
#[derive(Clone, Copy, Debug)]
pub struct Hooked<C, H> {
    pub(crate) classify: C,
    pub(crate) hook: H,
}

impl<O, C: Classify<O>, H: Hook<C::Last>> Classify<O> for Hooked<C, H> {
    type Success = C::Success;
    type Last = C::Last;

    #[inline]
    fn classify_outcome(&mut self, outcome: O) -> OutcomeClass<C::Success, O> {
        self.classify.classify_outcome(outcome)
    }

    #[inline]
    fn error(outcome: &O) -> Option<&C::Last> {
        C::error(outcome)
    }

    #[inline]
    fn into_error(outcome: O) -> Option<C::Last> {
        C::into_error(outcome)
    }

    fn before_wait(&mut self, notice: &Notice<'_, C::Last>) {
        self.classify.before_wait(notice);
        self.hook.before_wait(notice);
    }

    fn on_queued(&mut self, queued: &Queued) {
        self.classify.on_queued(queued);
        self.hook.on_queued(queued);
    }
}

/// The default classification: every `Err` is a failure that may have taken effect, every `Ok` a
/// success.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnyError;

impl<T, E> Classify<Result<T, E>> for AnyError {
    type Success = T;
    type Last = E;

    #[inline]
    fn classify_outcome(&mut self, outcome: Result<T, E>) -> OutcomeClass<T, Result<T, E>> {
        match outcome {
            Ok(value) => OutcomeClass::Success(value),
            failed => OutcomeClass::Failure(Failure::ambiguous(), failed),
        }
    }

    #[inline]
    fn error(outcome: &Result<T, E>) -> Option<&E> {
        outcome.as_ref().err()
    }

    #[inline]
    fn into_error(outcome: Result<T, E>) -> Option<E> {
        outcome.err()
    }
}

/// Classifies errors with a closure.
#[derive(Clone, Copy, Debug)]
pub struct ByError<F>(pub(crate) F);

impl<T, E, F: FnMut(&E) -> Failure> Classify<Result<T, E>> for ByError<F> {
    type Success = T;
    type Last = E;

    #[inline]
    fn classify_outcome(&mut self, outcome: Result<T, E>) -> OutcomeClass<T, Result<T, E>> {
        match outcome {
            Ok(value) => OutcomeClass::Success(value),
            Err(error) => OutcomeClass::Failure((self.0)(&error), Err(error)),
        }
    }

    #[inline]
    fn error(outcome: &Result<T, E>) -> Option<&E> {
        outcome.as_ref().err()
    }

    #[inline]
    fn into_error(outcome: Result<T, E>) -> Option<E> {
        outcome.err()
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

    #[inline]
    fn error(outcome: &O) -> Option<&O> {
        Some(outcome)
    }

    #[inline]
    fn into_error(outcome: O) -> Option<O> {
        Some(outcome)
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

impl<E> RetryableError<E> {
    fn failure(&self) -> Failure {
        match self {
            Self::Permanent(_) => Failure::permanent(),
            Self::Transient(_) => Failure::ambiguous(),
            Self::RetryAfter(_, delay) => Failure::throttled().hint(Hint::after(*delay)),
        }
    }
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
    fn classify_outcome(
        &mut self,
        outcome: Result<T, RetryableError<E>>,
    ) -> OutcomeClass<T, Result<T, RetryableError<E>>> {
        match outcome {
            Ok(value) => OutcomeClass::Success(value),
            Err(error) => OutcomeClass::Failure(error.failure(), Err(error)),
        }
    }

    #[inline]
    fn error(outcome: &Result<T, RetryableError<E>>) -> Option<&E> {
        match outcome.as_ref().err()? {
            RetryableError::Permanent(error)
            | RetryableError::Transient(error)
            | RetryableError::RetryAfter(error, _) => Some(error),
        }
    }

    #[inline]
    fn into_error(outcome: Result<T, RetryableError<E>>) -> Option<E> {
        match outcome.err()? {
            RetryableError::Permanent(error)
            | RetryableError::Transient(error)
            | RetryableError::RetryAfter(error, _) => Some(error),
        }
    }
}
