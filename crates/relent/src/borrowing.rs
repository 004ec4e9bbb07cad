//! The retry loop for operations whose futures borrow from their closure. The type of such a future
//! cannot be named in a struct, so the loop is an `async fn`.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use relent_core::call::CallPermit;
use relent_core::{Attempt, Policy, Random};

use crate::after_attempt::{AfterAttempt, after_attempt};
use crate::classify::Classify;
use crate::clock::Sleeper;
use crate::driver::{Driver, Target};
use crate::gave_up::GaveUp;
use crate::hook::Hook;
use crate::interrupt::{Interrupt, Interruption};
use crate::operation::{Borrowing, BoxFuture, OnState};
use crate::retry::Retry;
use crate::timer::Timer;

/// The caller cancelled.
struct Cancelled;

impl<F, O, C, H, K, R, X, D> Retry<'_, Borrowing<F, O>, C, H, K, R, X, D>
where
    F: AsyncFnMut(Attempt) -> O,
    C: Classify<O>,
    H: Hook<C::Last>,
    K: Sleeper,
    R: Random,
    X: Interrupt,
    D: Target,
{
    /// Runs an operation made by [`retry_mut`](crate::retry_mut).
    ///
    /// # Errors
    /// As for [`retry`](crate::retry).
    pub async fn run(self) -> Result<C::Success, GaveUp<C::Last>> {
        let Self {
            operation: Borrowing(mut operation, _),
            classify,
            hook,
            driver,
            interrupt,
        } = self;
        let mut attempts = Attempts {
            driver: driver.start(),
            classify,
            hook,
            interrupt: pin!(interrupt),
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

impl<S, F, O, C, H, K, R, X, D> Retry<'_, OnState<'_, S, F, O>, C, H, K, R, X, D>
where
    F: for<'a> FnMut(&'a mut S, Attempt) -> BoxFuture<'a, O>,
    C: Classify<O>,
    H: Hook<C::Last>,
    K: Sleeper,
    R: Random,
    X: Interrupt,
    D: Target,
{
    /// Runs an operation made by [`retry_on`](crate::retry_on).
    ///
    /// # Errors
    /// As for [`retry`](crate::retry).
    pub async fn run(self) -> Result<C::Success, GaveUp<C::Last>> {
        let Self {
            operation:
                OnState {
                    state,
                    mut operation,
                    ..
                },
            classify,
            hook,
            driver,
            interrupt,
        } = self;
        let mut attempts = Attempts {
            driver: driver.start(),
            classify,
            hook,
            interrupt: pin!(interrupt),
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

/// The state of a session, except its operation.
struct Attempts<'p, 'x, C: Classify<O>, H, K: Sleeper, R: Random, X, D: Target, O> {
    driver: Driver<'p, K, R, &'p Policy, D>,
    classify: C,
    hook: H,
    interrupt: Pin<&'x mut X>,
    last: Option<C::Last>,
}

impl<C, H, K, R, X, D, O> Attempts<'_, '_, C, H, K, R, X, D, O>
where
    C: Classify<O>,
    H: Hook<C::Last>,
    K: Sleeper,
    R: Random,
    X: Interrupt,
    D: Target,
{
    /// Waits until the destination permits the next attempt.
    async fn enter(&mut self) -> Result<CallPermit, GaveUp<C::Last>> {
        let mut timer = Timer::new();
        let Self {
            driver,
            interrupt,
            hook,
            ..
        } = self;
        let entered = poll_fn(|context| {
            while let Poll::Ready(interruption) = interrupt.as_mut().poll_interrupt(context) {
                match interruption {
                    Interruption::Cancel => return Poll::Ready(Err(driver.on_cancel())),
                    Interruption::Reset => driver.reset(),
                }
            }
            driver.poll_enter_notifying(context, &mut timer, |queued| hook.on_queued(queued))
        });
        entered
            .await
            .map_err(|stop| GaveUp::new(self.last.take(), self.driver.summary(Some(stop))))
    }

    /// Runs one attempt and the wait after it; `None` if another attempt follows.
    async fn run(
        &mut self,
        running: impl Future<Output = O>,
        attempt: Attempt,
    ) -> Option<Result<C::Success, GaveUp<C::Last>>> {
        let limit = attempt.limit.map(|limit| self.driver.clock().sleep(limit));
        let ended = limited(
            pin!(running),
            pin!(limit),
            self.interrupt.as_mut(),
            &mut self.driver,
        )
        .await;
        let Self {
            driver,
            classify,
            hook,
            interrupt,
            last,
        } = self;
        let stop = match ended {
            Err(Cancelled) => driver.on_cancel(),
            Ok(outcome) => match after_attempt(outcome, driver, classify, hook, last) {
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
                    match wait(driver, interrupt.as_mut(), after, hinted).await {
                        Ok(()) => return None,
                        Err(Cancelled) => driver.on_cancel(),
                    }
                }
            },
        };
        Some(Err(GaveUp::new(last.take(), driver.summary(Some(stop)))))
    }
}

/// Runs an attempt up to its limit; `None` if the limit cut it off.
async fn limited<O, K: Sleeper, R: Random, D: Target>(
    mut running: Pin<&mut impl Future<Output = O>>,
    mut limit: Pin<&mut Option<K::Sleep>>,
    mut interrupt: Pin<&mut impl Interrupt>,
    driver: &mut Driver<'_, K, R, &Policy, D>,
) -> Result<Option<O>, Cancelled> {
    poll_fn(|context| {
        while let Poll::Ready(interruption) = interrupt.as_mut().poll_interrupt(context) {
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

async fn wait<K: Sleeper, R: Random, D: Target, X: Interrupt>(
    driver: &mut Driver<'_, K, R, &Policy, D>,
    mut interrupt: Pin<&mut X>,
    after: Duration,
    hinted: bool,
) -> Result<(), Cancelled> {
    let clock = driver.clock();
    let may_reset = X::MAY_RESET && !hinted;
    let mut own = may_reset.then(|| clock.now().saturating_add(after));
    let mut sleep = pin!(clock.sleep(after));
    poll_fn(|context: &mut Context<'_>| {
        while let Poll::Ready(interruption) = interrupt.as_mut().poll_interrupt(context) {
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
