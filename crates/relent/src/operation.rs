//! The kinds of operations: plain, with attempt number, borrowing, blocking.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use relent_core::Attempt;

use crate::interrupt::{Interrupt, Interruption};

/// An operation with a typed outcome, made by [`retry`](crate::retry) and its siblings.
pub trait Operation {
    /// The outcome of one attempt.
    type Outcome;
    /// The future of one attempt; `()` if it borrows from the operation, or blocks.
    type Future;
}

/// The future of one attempt, which an async call awaits. Every future has it; there is nothing to
/// implement.
///
/// For a closure without a future the compiler error names the blocking form:
///
/// ```compile_fail,E0277
/// # use relent::{Policy, retry};
/// let call = retry(Policy::STANDARD, || "12".parse::<u32>()); // write `relent::blocking::retry`
/// ```
#[diagnostic::on_unimplemented(
    message = "the operation returns `{Self}`, which is not a future",
    label = "this operation is not async",
    note = "for blocking code use `relent::blocking`, such as `relent::blocking::retry(..)`, and end it with `.run()`",
    note = "for an async call the closure has to return a future, such as `|| fetch()` with an `async fn fetch()`"
)]
pub trait AttemptFuture: Future {}

#[diagnostic::do_not_recommend]
impl<F: Future> AttemptFuture for F {}

/// An operation that makes a future for each attempt.
#[diagnostic::on_unimplemented(
    message = "the attempts of `{Self}` are not futures that can be awaited",
    note = "end `retry_mut(..)` and `retry_on(..)` with `.run().await`, and `blocking::retry(..)` with `.run()`"
)]
pub trait AsyncOperation: Operation<Future: Future<Output = <Self as Operation>::Outcome>> {
    /// Whether two attempts may run concurrently, as a hedge requires.
    #[doc(hidden)]
    const MAY_OVERLAP: bool = true;

    /// Whether an interrupt may restart the backoff.
    #[doc(hidden)]
    const MAY_RESET: bool = false;

    /// Starts an attempt.
    fn start(&mut self, attempt: Attempt) -> Self::Future;

    /// Polls for an interruption; wakes the task when there is one.
    #[doc(hidden)]
    #[inline]
    fn poll_interrupt(&mut self, context: &mut Context<'_>) -> Poll<Interruption> {
        let _ = context;
        Poll::Pending
    }
}

/// An asynchronous operation with its interrupts: cancellation and activity. A blocking operation has
/// none:
///
/// ```compile_fail,E0599
/// # use relent::{Policy, blocking};
/// let call = blocking::retry(Policy::STANDARD, || Ok::<_, String>(1));
/// let call = call.cancel_on(std::future::ready(())); // pass a `blocking::Cancel` as the clock
/// ```
pub struct Async<O, X = ()> {
    pub(crate) operation: O,
    pub(crate) interrupt: X,
}

impl<O> Async<O> {
    pub(crate) const fn new(operation: O) -> Self {
        Self {
            operation,
            interrupt: (),
        }
    }
}

impl<O: Operation, X> Operation for Async<O, X> {
    type Outcome = O::Outcome;
    type Future = O::Future;
}

impl<O: AsyncOperation, X: Interrupt> AsyncOperation for Async<O, X> {
    const MAY_OVERLAP: bool = O::MAY_OVERLAP;
    const MAY_RESET: bool = X::MAY_RESET;

    #[inline]
    fn start(&mut self, attempt: Attempt) -> O::Future {
        self.operation.start(attempt)
    }

    #[inline]
    fn poll_interrupt(&mut self, context: &mut Context<'_>) -> Poll<Interruption> {
        self.interrupt.poll_interrupt(context)
    }
}

/// A closure that makes a future.
pub struct Plain<F>(pub(crate) F);

impl<F: FnMut() -> Fut, Fut: Future> Operation for Plain<F> {
    type Outcome = Fut::Output;
    type Future = Fut;
}

impl<F: FnMut() -> Fut, Fut: Future> AsyncOperation for Plain<F> {
    #[inline]
    fn start(&mut self, _: Attempt) -> Fut {
        (self.0)()
    }
}

/// A closure that makes a future; two of its futures never run concurrently.
pub struct NonOverlapping<F>(pub(crate) F);

impl<F: FnMut() -> Fut, Fut: Future> Operation for NonOverlapping<F> {
    type Outcome = Fut::Output;
    type Future = Fut;
}

impl<F: FnMut() -> Fut, Fut: Future> AsyncOperation for NonOverlapping<F> {
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
    type Future = Fut;
}

impl<F: FnMut(Attempt) -> Fut, Fut: Future> AsyncOperation for WithAttempt<F> {
    #[inline]
    fn start(&mut self, attempt: Attempt) -> Fut {
        (self.0)(attempt)
    }
}

/// A closure whose futures borrow from it.
pub struct Borrowing<F, O>(pub(crate) F, pub(crate) PhantomData<fn() -> O>);

impl<F: AsyncFnMut(Attempt) -> O, O> Operation for Borrowing<F, O> {
    type Outcome = O;
    type Future = ();
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
    type Future = ();
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
    type Future = ();
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

opaque_debug!(Async<O, X>, Plain<F>, NonOverlapping<F>, WithAttempt<F>, Borrowing<F, O>, Blocking<F, O>);
