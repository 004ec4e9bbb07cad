//! The retry loop for operations whose futures borrow from their closure. The type of such a future
//! cannot be named in a struct, so the loop is an `async fn`.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use relent_core::call::CallPermit;
use relent_core::{Attempt, Stop};

use crate::after_attempt::{AfterAttempt, after_attempt};
use crate::classify::Classify;
use crate::clock::Sleeper;
use crate::driver::Driver;
use crate::gave_up::GaveUp;
use crate::interrupt::{Interrupt, Interruption};
use crate::operation::{Async, Borrowing, BoxFuture, OnState};
use crate::retry::Retry;
use crate::timer::Timer;

/// The caller cancelled.
struct Cancelled;

impl<F, O, X, C, K> Retry<'_, Async<Borrowing<F, O>, X>, C, K>
where
    F: AsyncFnMut(Attempt) -> O,
    X: Interrupt,
    C: Classify<O>,
    K: Sleeper,
{
    /// Runs an operation made by [`retry_mut`](crate::retry_mut).
    ///
    /// # Errors
    /// As for [`retry`](crate::retry).
    pub async fn run(self) -> Result<C::Success, GaveUp<C::Last>> {
        let (operation, classify, driver) = self.into_parts();
        let Async {
            operation: Borrowing(mut operation, _),
            interrupt,
        } = operation;
        let mut attempts = Attempts {
            driver,
            classify,
            interrupt,
            last: None,
        };
        loop {
            let permit = attempts.enter().await?;
            let attempt = attempts.driver.on_attempt(permit);
            if let Some(result) = attempts.run(operation(attempt), attempt).await {
                return result;
            }
        }
    }
}

impl<S, F, O, X, C, K> Retry<'_, Async<OnState<'_, S, F, O>, X>, C, K>
where
    F: for<'a> FnMut(&'a mut S, Attempt) -> BoxFuture<'a, O>,
    X: Interrupt,
    C: Classify<O>,
    K: Sleeper,
{
    /// Runs an operation made by [`retry_on`](crate::retry_on).
    ///
    /// # Errors
    /// As for [`retry`](crate::retry).
    pub async fn run(self) -> Result<C::Success, GaveUp<C::Last>> {
        let (operation, classify, driver) = self.into_parts();
        let Async {
            operation:
                OnState {
                    state,
                    mut operation,
                    ..
                },
            interrupt,
        } = operation;
        let mut attempts = Attempts {
            driver,
            classify,
            interrupt,
            last: None,
        };
        loop {
            let permit = attempts.enter().await?;
            let attempt = attempts.driver.on_attempt(permit);
            if let Some(result) = attempts.run(operation(state, attempt), attempt).await {
                return result;
            }
        }
    }
}

/// The state of a call, except its operation. `last` is the outcome of the last failure.
struct Attempts<'p, X, C, K: Sleeper, O> {
    driver: Driver<'p, K>,
    classify: C,
    interrupt: X,
    last: Option<O>,
}

impl<X, C, K, O> Attempts<'_, X, C, K, O>
where
    X: Interrupt,
    C: Classify<O>,
    K: Sleeper,
{
    /// Waits until the destination permits the next attempt.
    async fn enter(&mut self) -> Result<CallPermit, GaveUp<C::Last>> {
        let mut timer = Timer::new();
        let Self {
            driver,
            classify,
            interrupt,
            ..
        } = self;
        let entered = poll_fn(|context| {
            while let Poll::Ready(interruption) = interrupt.poll_interrupt(context) {
                match interruption {
                    Interruption::Cancel => return Poll::Ready(Err(driver.on_cancel())),
                    Interruption::Reset => driver.reset(),
                }
            }
            driver.poll_enter_notifying(context, &mut timer, |queued| classify.on_queued(queued))
        });
        entered.await.map_err(|stop| self.give_up(stop))
    }

    fn give_up(&mut self, stop: Stop) -> GaveUp<C::Last> {
        let last = self.last.take().and_then(C::into_error);
        GaveUp::new(last, self.driver.summary(Some(stop)))
    }

    /// Runs one attempt and the wait after it; `None` if another attempt follows.
    async fn run(
        &mut self,
        running: impl Future<Output = O>,
        attempt: Attempt,
    ) -> Option<Result<C::Success, GaveUp<C::Last>>> {
        let limit = attempt.limit.map(|limit| self.driver.clock().sleep(limit));
        let Self {
            driver,
            classify,
            interrupt,
            last,
        } = self;
        let ended = limited(pin!(running), pin!(limit), interrupt, driver).await;
        let stop = match ended {
            Err(Cancelled) => driver.on_cancel(),
            Ok(outcome) => match after_attempt(outcome, driver, classify, last) {
                AfterAttempt::Success(value) => return Some(Ok(value)),
                AfterAttempt::Stop(stop) => stop,
                AfterAttempt::Wait {
                    after: Duration::ZERO,
                    ..
                } => {
                    yield_now().await;
                    return None;
                }
                AfterAttempt::Wait { after, hinted } => {
                    match wait(driver, interrupt, after, hinted).await {
                        Ok(()) => return None,
                        Err(Cancelled) => driver.on_cancel(),
                    }
                }
            },
        };
        Some(Err(self.give_up(stop)))
    }
}

/// Runs an attempt up to its limit; `None` if the limit cut it off.
async fn limited<O, K: Sleeper>(
    mut running: Pin<&mut impl Future<Output = O>>,
    mut limit: Pin<&mut Option<K::Sleep>>,
    interrupt: &mut impl Interrupt,
    driver: &mut Driver<'_, K>,
) -> Result<Option<O>, Cancelled> {
    poll_fn(|context| {
        while let Poll::Ready(interruption) = interrupt.poll_interrupt(context) {
            match interruption {
                Interruption::Cancel => return Poll::Ready(Err(Cancelled)),
                Interruption::Reset => driver.reset(),
            }
        }
        if let Poll::Ready(outcome) = running.as_mut().poll(context) {
            return Poll::Ready(Ok(Some(outcome)));
        }
        match limit.as_mut().as_pin_mut() {
            Some(limit) => limit.poll(context).map(|()| Ok(None)),
            None => Poll::Pending,
        }
    })
    .await
}

async fn wait<K: Sleeper, X: Interrupt>(
    driver: &mut Driver<'_, K>,
    interrupt: &mut X,
    after: Duration,
    hinted: bool,
) -> Result<(), Cancelled> {
    let clock = driver.clock();
    let may_reset = X::MAY_RESET && !hinted;
    let mut own = may_reset.then(|| clock.now().saturating_add(after));
    let mut sleep = pin!(clock.sleep(after));
    poll_fn(|context: &mut Context<'_>| {
        while let Poll::Ready(interruption) = interrupt.poll_interrupt(context) {
            match interruption {
                Interruption::Cancel => return Poll::Ready(Err(Cancelled)),
                Interruption::Reset => match own.take() {
                    Some(until) => {
                        let left = driver.shorten_delay(until);
                        sleep.set(driver.clock().sleep(left));
                    }
                    None => driver.reset(),
                },
            }
        }
        sleep.as_mut().poll(context).map(Ok)
    })
    .await
}

/// Lets other tasks run once.
async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
