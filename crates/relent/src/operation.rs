//! The kinds of operations: plain, with attempt number, borrowing, blocking.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;

use relent_core::Attempt;

/// An operation with a typed outcome, made by [`retry`](crate::retry) and its siblings.
pub trait Operation {
    /// The outcome of one attempt.
    type Outcome;
}

/// An operation that makes a future for each attempt.
#[diagnostic::on_unimplemented(
    message = "the attempts of `{Self}` are not futures that can be awaited",
    note = "end `retry_mut(..)` and `retry_on(..)` with `.run().await`, and `blocking::retry(..)` with `.run()`"
)]
pub trait AsyncOperation: Operation {
    /// The future of one attempt.
    type Future: Future<Output = Self::Outcome>;

    /// Whether two attempts may run concurrently, as a hedge requires.
    #[doc(hidden)]
    const MAY_OVERLAP: bool = true;

    /// Starts an attempt.
    fn start(&mut self, attempt: Attempt) -> Self::Future;
}

/// A closure that makes a future.
pub struct Plain<F>(pub(crate) F);

impl<F: FnMut() -> Fut, Fut: Future> Operation for Plain<F> {
    type Outcome = Fut::Output;
}

impl<F: FnMut() -> Fut, Fut: Future> AsyncOperation for Plain<F> {
    type Future = Fut;

    #[inline]
    fn start(&mut self, _: Attempt) -> Fut {
        (self.0)()
    }
}

/// A closure that makes a future; two of its futures never run concurrently.
pub struct NonOverlapping<F>(pub(crate) F);

impl<F: FnMut() -> Fut, Fut: Future> Operation for NonOverlapping<F> {
    type Outcome = Fut::Output;
}

impl<F: FnMut() -> Fut, Fut: Future> AsyncOperation for NonOverlapping<F> {
    type Future = Fut;

    const MAY_OVERLAP: bool = false;

    #[inline]
    fn start(&mut self, _: Attempt) -> Fut {
        (self.0)()
    }
}

/// A closure that takes the [`Attempt`] and makes a future.
pub struct WithAttempt<F>(pub(crate) F);

impl<F: FnMut(Attempt) -> Fut, Fut: Future> Operation for WithAttempt<F> {
    type Outcome = Fut::Output;
}

impl<F: FnMut(Attempt) -> Fut, Fut: Future> AsyncOperation for WithAttempt<F> {
    type Future = Fut;

    #[inline]
    fn start(&mut self, attempt: Attempt) -> Fut {
        (self.0)(attempt)
    }
}

/// A closure whose futures borrow from it.
pub struct Borrowing<F, O>(pub(crate) F, pub(crate) PhantomData<fn() -> O>);

impl<F: AsyncFnMut(Attempt) -> O, O> Operation for Borrowing<F, O> {
    type Outcome = O;
}

/// A boxed future that is `Send` and borrows for `'a`.
pub type BoxFuture<'a, O> = Pin<Box<dyn Future<Output = O> + Send + 'a>>;

/// A closure that makes a future from borrowed state.
pub struct OnState<'s, S, F, O> {
    pub(crate) state: &'s mut S,
    pub(crate) operation: F,
    pub(crate) outcome: PhantomData<fn() -> O>,
}

impl<S, F: for<'a> FnMut(&'a mut S, Attempt) -> BoxFuture<'a, O>, O> Operation
    for OnState<'_, S, F, O>
{
    type Outcome = O;
}

impl<S, F, O> fmt::Debug for OnState<'_, S, F, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnState")
    }
}

/// A closure that blocks.
pub struct Blocking<F, O>(pub(crate) F, pub(crate) PhantomData<fn() -> O>);

impl<F: FnMut(Attempt) -> O, O> Operation for Blocking<F, O> {
    type Outcome = O;
}

macro_rules! opaque_debug {
    ($($name:ident<$($parameter:ident),+>),+) => {$(
        impl<$($parameter),+> fmt::Debug for $name<$($parameter),+> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    )+};
}

opaque_debug!(Plain<F>, NonOverlapping<F>, WithAttempt<F>, Borrowing<F, O>, Blocking<F, O>);
