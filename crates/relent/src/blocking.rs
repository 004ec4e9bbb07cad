//! The blocking form of retry: the same settings, decisions and results, on the calling thread.

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use relent_core::call::{CallPermit, NextStep, Queued};
use relent_core::{Attempt, Policy, Stop};

use crate::after_attempt::{AfterAttempt, after_attempt};
use crate::classify::{AnyError, Classify};
use crate::clock::{BlockingSleeper, Clock, StdClock};
use crate::destination::Destination;
use crate::driver::Driver;
use crate::gave_up::GaveUp;
use crate::operation::Blocking;
use crate::retry::Retry;

pub use crate::ticker::BlockingTicker as Ticker;

/// Calls `operation` until it succeeds or the policy gives up. End it with
/// [`run`](Retry::run).
///
/// Calling this declares that the operation may safely run twice. The closure may use captured
/// `&mut` state. A running operation cannot be interrupted, so its result counts however late it
/// is: a success is returned even after the deadline. After an error, a deadline that has passed
/// meanwhile ends the retries. An attempt timeout has no effect, so use [`retry_with`] to pass the
/// limit to the operation.
///
/// # Errors
/// `run` returns [`GaveUp`] with the last error, the reason and the number of attempts.
///
/// ```
/// use relent::{Policy, VirtualClock, blocking};
///
/// let mut calls = 0;
/// let result = blocking::retry(Policy::STANDARD, || {
///     calls += 1;
///     if calls < 3 { Err("not yet") } else { Ok(calls) }
/// })
/// .clock(VirtualClock::new())
/// .run();
/// assert_eq!(result.unwrap(), 3);
/// ```
#[inline]
pub fn retry<F, O>(
    policy: &Policy,
    mut operation: F,
) -> Retry<'_, Blocking<impl FnMut(Attempt) -> O, O>, AnyError, StdClock>
where
    F: FnMut() -> O,
{
    retry_with(policy, move |_| operation())
}

/// Like [`retry`], for an operation that needs the number of the attempt and the time left for it.
#[inline]
pub fn retry_with<F, O>(
    policy: &Policy,
    operation: F,
) -> Retry<'_, Blocking<F, O>, AnyError, StdClock>
where
    F: FnMut(Attempt) -> O,
{
    Retry::new(policy, Blocking(operation, PhantomData), StdClock)
}

impl Destination {
    /// Like [`Destination::retry`], on this thread; see [`blocking::retry`](crate::blocking::retry). End it with `run`.
    ///
    /// ```
    /// use relent::{Destination, Policy};
    ///
    /// let orders = Destination::new(Policy::STANDARD);
    /// let answer = orders.blocking(|| Ok::<_, std::io::Error>(42)).run();
    /// assert_eq!(answer.unwrap(), 42);
    /// ```
    pub fn blocking<F, O>(
        &self,
        operation: F,
    ) -> Retry<'_, Blocking<impl FnMut(Attempt) -> O, O>, AnyError, StdClock>
    where
        F: FnMut() -> O,
    {
        retry(Policy::STANDARD, operation).by_destination(self)
    }
}

impl<F, O, C, K> Retry<'_, Blocking<F, O>, C, K>
where
    F: FnMut(Attempt) -> O,
    C: Classify<O>,
    K: BlockingSleeper,
{
    /// Runs a blocking operation, on this thread.
    ///
    /// # Errors
    /// As for [`blocking::retry`](crate::blocking::retry).
    #[inline]
    pub fn run(self) -> Result<C::Success, GaveUp<C::Last>> {
        let (Blocking(mut operation, _), mut classify, mut driver) = self.into_parts();
        let mut last = None;
        let stop = loop {
            if driver.clock().is_cancelled() {
                break driver.on_cancel();
            }
            let attempt = match enter(&mut driver, |queued| classify.on_queued(queued)) {
                Ok(permit) => driver.on_attempt(permit),
                Err(stop) => break stop,
            };
            let outcome = Some(operation(attempt));
            match after_attempt(outcome, &mut driver, &mut classify, &mut last) {
                AfterAttempt::Success(value) => return Ok(value),
                AfterAttempt::Wait { after, .. } => {
                    if !after.is_zero() && !driver.clock().block(after) {
                        break driver.on_cancel();
                    }
                }
                AfterAttempt::Stop(stop) => break stop,
            }
        };
        Err(GaveUp::new(
            last.and_then(C::into_error),
            driver.summary(Some(stop)),
        ))
    }
}

/// Waits until the next attempt may start.
#[inline]
fn enter<K: BlockingSleeper>(
    driver: &mut Driver<'_, K>,
    mut notify: impl FnMut(&Queued),
) -> Result<CallPermit, Stop> {
    match driver.enter(None) {
        NextStep::Start(permit) => Ok(permit),
        NextStep::Stop(stop) => Err(stop),
        // Most calls start immediately and need no waker.
        NextStep::Wait { queued, .. } => {
            if let Some(queued) = &queued {
                notify(queued);
            }
            wait_to_enter(driver, &mut notify)
        }
    }
}

#[inline(never)]
fn wait_to_enter<K: BlockingSleeper>(
    driver: &mut Driver<'_, K>,
    notify: &mut dyn FnMut(&Queued),
) -> Result<CallPermit, Stop> {
    let waker = Waker::from(Arc::new(UnparkWaker(thread::current())));
    loop {
        match driver.enter(Some(&waker)) {
            NextStep::Start(permit) => return Ok(permit),
            NextStep::Stop(stop) => return Err(stop),
            NextStep::Wait { after, queued, .. } => {
                if let Some(queued) = &queued {
                    notify(queued);
                }
                if !driver.clock().park(after) {
                    return Err(driver.on_cancel());
                }
            }
        }
    }
}

/// Wakes a thread that waits at a destination.
struct UnparkWaker(Thread);

impl Wake for UnparkWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Cancels blocking sessions from another thread: pass it as their clock.
///
/// A running wait ends immediately, and no wait or attempt starts later. A running operation is not
/// interrupted. Clones share one state.
///
/// ```
/// use std::time::Duration;
/// use relent::{Policy, StopReason, blocking};
///
/// let cancel = blocking::Cancel::new();
/// let from_elsewhere = cancel.clone();
/// std::thread::spawn(move || from_elsewhere.cancel());
/// let gave_up = blocking::retry(Policy::PATIENT, || Err::<(), _>("down"))
///     .clock(&cancel)
///     .run()
///     .unwrap_err();
/// assert_eq!(gave_up.reason(), StopReason::Cancelled);
/// ```
#[derive(Clone, Default)]
pub struct Cancel {
    shared: Arc<(Mutex<CancelState>, Condvar)>,
}

#[derive(Default)]
struct CancelState {
    cancelled: bool,
    /// Threads that wait at a destination. Both the destination and a cancellation wake them.
    parked: Vec<Thread>,
}

impl Cancel {
    /// Creates a clock that is not cancelled.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels every session that uses this clock, now and later.
    pub fn cancel(&self) {
        let mut state = self.state();
        state.cancelled = true;
        for thread in mem::take(&mut state.parked) {
            thread.unpark();
        }
        self.shared.1.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, CancelState> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cancel")
    }
}

impl Clock for Cancel {
    type Sleep = ();

    fn now(&self) -> relent_core::Instant {
        StdClock.now()
    }
}

impl BlockingSleeper for Cancel {
    fn block(&self, duration: Duration) -> bool {
        let waited = self
            .shared
            .1
            .wait_timeout_while(self.state(), duration, |state| !state.cancelled);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !state.cancelled
    }

    fn park(&self, duration: Duration) -> bool {
        let own = thread::current().id();
        let mut state = self.state();
        if !state.cancelled {
            state.parked.push(thread::current());
            drop(state);
            thread::park_timeout(duration);
            state = self.state();
            state.parked.retain(|thread| thread.id() != own);
        }
        !state.cancelled
    }

    fn is_cancelled(&self) -> bool {
        self.state().cancelled
    }
}

/// The extension form of [`retry`]: `operation.retry(&policy).run()`.
///
/// ```
/// use relent::Policy;
/// use relent::blocking::RetryExt;
///
/// let answer = (|| "42".parse::<u32>()).retry(Policy::STANDARD).run();
/// assert_eq!(answer.unwrap(), 42);
/// ```
pub trait RetryExt<O>: FnMut() -> O + Sized {
    /// See [`blocking::retry`](crate::blocking::retry).
    #[inline]
    fn retry(
        self,
        policy: &Policy,
    ) -> Retry<'_, Blocking<impl FnMut(Attempt) -> O, O>, AnyError, StdClock> {
        retry(policy, self)
    }
}

impl<F: FnMut() -> O, O> RetryExt<O> for F {}
