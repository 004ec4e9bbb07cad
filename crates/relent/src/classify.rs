//! What an outcome of the operation means.

use std::time::Duration;

use relent_core::{Failure, Hint, Kind};

/// What a classifier makes of an outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judged<S, L> {
    /// Done, with this value.
    Success(S),
    /// The attempt failed like this; the rest is what the caller gets if it was the last.
    Failure(Failure, L),
    /// Nothing failed, but there is nothing yet either: ask again (polling). With `progress`, the
    /// backoff begins anew (R4.4).
    Pending {
        /// Whether something has moved since the last look.
        progress: bool,
    },
}

/// Decides what an outcome `O` of the operation means.
///
/// Implement it to teach Relent a type of your own; for errors,
/// [`Retry::when`](crate::Retry::when) and [`Retry::classify`](crate::Retry::classify) take
/// closures.
///
/// ```
/// use relent::Failure;
/// use relent::classify::{Classify, Judged};
///
/// /// An exit status: 0 is good, 2 cannot be helped.
/// struct ByStatus;
/// impl Classify<i32> for ByStatus {
///     type Success = ();
///     type Last = i32;
///     fn judge(&mut self, status: i32) -> Judged<(), i32> {
///         match status {
///             0 => Judged::Success(()),
///             2 => Judged::Failure(Failure::permanent(), status),
///             _ => Judged::Failure(Failure::ambiguous(), status),
///         }
///     }
/// }
/// assert_eq!(ByStatus.judge(0), Judged::Success(()));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot tell whether `{O}` is a success",
    note = "the operation has to return a `Result`; for other types say what they mean with \
            `.classify_outcome(..)`"
)]
pub trait Classify<O> {
    /// What a success carries.
    type Success;
    /// What is kept of the last failure.
    type Last;

    /// Judges one outcome.
    fn judge(&mut self, outcome: O) -> Judged<Self::Success, Self::Last>;
}

/// The default: every `Err` is a failure that may have taken effect (design rule 1), every `Ok` a
/// success.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnyError;

impl<T, E> Classify<Result<T, E>> for AnyError {
    type Success = T;
    type Last = E;

    #[inline]
    fn judge(&mut self, outcome: Result<T, E>) -> Judged<T, E> {
        match outcome {
            Ok(value) => Judged::Success(value),
            Err(error) => Judged::Failure(Failure::ambiguous(), error),
        }
    }
}

/// The closure says what kind of failure an error is.
#[derive(Clone, Copy, Debug)]
pub struct ByError<F>(pub(crate) F);

impl<T, E, F: FnMut(&E) -> Failure> Classify<Result<T, E>> for ByError<F> {
    type Success = T;
    type Last = E;

    #[inline]
    fn judge(&mut self, outcome: Result<T, E>) -> Judged<T, E> {
        match outcome {
            Ok(value) => Judged::Success(value),
            Err(error) => Judged::Failure((self.0)(&error), error),
        }
    }
}

/// The closure looks at the whole outcome: `None` is a success, whatever it holds.
#[derive(Clone, Copy, Debug)]
pub struct ByOutcome<F>(pub(crate) F);

impl<O, F: FnMut(&O) -> Option<Failure>> Classify<O> for ByOutcome<F> {
    type Success = O;
    type Last = O;

    #[inline]
    fn judge(&mut self, outcome: O) -> Judged<O, O> {
        match (self.0)(&outcome) {
            None => Judged::Success(outcome),
            Some(failure) => Judged::Failure(failure, outcome),
        }
    }
}

/// An error that says itself whether repeating can help: the operation returns
/// `Result<T, Marked<E>>`, and [`Retry::marked`](crate::Retry::marked) reads it.
///
/// `?` makes an error [`Transient`](Self::Transient).
///
/// ```
/// use relent::{Policy, StopReason, blocking};
/// use relent::classify::Marked;
///
/// let result = blocking::retry(Policy::PATIENT, || -> Result<u32, Marked<_>> {
///     "12a".parse().map_err(Marked::Permanent)
/// })
/// .marked()
/// .run();
/// assert_eq!(result.unwrap_err().reason(), StopReason::Permanent);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Marked<E> {
    /// Repeating cannot help.
    Permanent(E),
    /// It may have taken effect, and may work next time.
    Transient(E),
    /// Refused because of rate; come back after this delay.
    RetryAfter(E, Duration),
}

impl<E> From<E> for Marked<E> {
    fn from(error: E) -> Self {
        Self::Transient(error)
    }
}

/// Reads [`Marked`] errors.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByMark;

impl<T, E> Classify<Result<T, Marked<E>>> for ByMark {
    type Success = T;
    type Last = E;

    #[inline]
    fn judge(&mut self, outcome: Result<T, Marked<E>>) -> Judged<T, E> {
        match outcome {
            Ok(value) => Judged::Success(value),
            Err(Marked::Permanent(error)) => Judged::Failure(Failure::permanent(), error),
            Err(Marked::Transient(error)) => Judged::Failure(Failure::ambiguous(), error),
            Err(Marked::RetryAfter(error, delay)) => Judged::Failure(
                Failure::new(Kind::Throttled).hint(Hint::after(delay)),
                error,
            ),
        }
    }
}
