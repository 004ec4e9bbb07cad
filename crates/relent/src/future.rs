//! [`Retry`] as a future, implemented by hand: it boxes neither the operation nor its attempt, and
//! allocates only for a wait, for `cancel_on` and for attempts of a policy with a hedge.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use relent_core::{Failure, Stop};

use crate::after_attempt::{AfterAttempt, classify_outcome, decide};
use crate::classify::Classify;
use crate::clock::Sleeper;
use crate::driver::{CallPermit, Driver};
use crate::gave_up::{FromNoLastError, GaveUp, NoLastError};
use crate::hedged::Racing;
use crate::interrupt::Interruption;
use crate::operation::{AsyncOperation, Operation};
use crate::retry::Retry;
use crate::state::{Limit, State, StateProjection};
use crate::summary::Summary;
use crate::timer::Timer;

type StateOf<O, K> = State<<O as Operation>::Future, <O as Operation>::Outcome, K>;

/// The result of a call.
impl<O, C, K> Future for Retry<'_, O, C, K>
where
    O: AsyncOperation,
    C: Classify<O::Outcome>,
    K: Sleeper,
{
    type Output = Result<C::Success, GaveUp<C::Last>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let end = ready!(self.as_mut().poll_end(context, false));
        Poll::Ready(end.map_err(|stop| {
            let (last, summary) = self.end(Some(stop));
            GaveUp::new(last, summary)
        }))
    }
}

impl<O, C, K> Retry<'_, O, C, K>
where
    O: AsyncOperation,
    C: Classify<O::Outcome>,
    K: Sleeper,
{
    /// Awaits the call and returns the attempt summary, also after a success: attempts, time, and
    /// with [`traced`](Self::traced) every attempt.
    ///
    /// ```
    /// use relent::{Policy, retry};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let (result, summary) =
    ///     retry(Policy::STANDARD, || async { Ok::<_, &str>(1) }).traced().with_summary().await;
    /// assert_eq!(result.unwrap(), 1);
    /// assert_eq!(summary.attempts, 1);
    /// # }
    /// ```
    pub async fn with_summary(self) -> (Result<C::Success, Option<C::Last>>, Summary) {
        let mut call = std::pin::pin!(self);
        let end = std::future::poll_fn(|context| call.as_mut().poll_end(context, true)).await;
        match end {
            Ok(value) => (Ok(value), call.end(None).1),
            Err(stop) => {
                let (last, summary) = call.end(Some(stop));
                (Err(last), summary)
            }
        }
    }

    /// Awaits the call and returns the operation's own error in place of a [`GaveUp`]: for a
    /// function with the same error type as the operation.
    ///
    /// ```
    /// use std::io;
    /// use relent::{Policy, retry};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// async fn fetch() -> io::Result<String> {
    ///     Err(io::ErrorKind::ConnectionReset.into())
    /// }
    /// async fn order() -> io::Result<String> {
    ///     retry(Policy::STANDARD, fetch).or_last_error().await
    /// }
    /// assert_eq!(order().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    /// # }
    /// ```
    ///
    /// # Errors
    /// The last error; without one, the conversion of a [`NoLastError`].
    pub fn or_last_error(self) -> OrLastError<Self, C::Last>
    where
        C::Last: FromNoLastError,
    {
        self.or_last_error_else(C::Last::from_no_last_error)
    }

    /// Like [`or_last_error`](Self::or_last_error), for an error type that is not
    /// `From<NoLastError>`, such as your own enum or a type of another crate. `otherwise` makes the
    /// error of a call that ends without an error of its operation.
    ///
    /// Such a call made no attempt, for example because its destination was down until its limits
    /// ended, or a time limit cut off every attempt.
    ///
    /// ```
    /// use std::time::Duration;
    /// use relent::{Backoff, Policy, retry};
    ///
    /// #[derive(Debug, PartialEq)]
    /// enum MyError {
    ///     Refused,
    ///     NoAnswer,
    /// }
    ///
    /// async fn order() -> Result<u32, MyError> {
    ///     let policy = Policy::builder(Backoff::None).attempt_timeout(Duration::from_secs(1));
    ///     let policy = policy.build().expect("nothing contradicts itself");
    ///     let silent = std::future::pending::<Result<u32, MyError>>;
    ///     let answer = retry(&policy, silent).or_last_error_else(|_| MyError::NoAnswer).await?;
    ///     if answer == 0 { Err(MyError::Refused) } else { Ok(answer) }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// assert_eq!(order().await, Err(MyError::NoAnswer));
    /// # }
    /// ```
    ///
    /// # Errors
    /// The last error; without one, the result of `otherwise`.
    pub fn or_last_error_else<F>(self, otherwise: F) -> OrLastError<Self, C::Last, F>
    where
        F: FnOnce(NoLastError) -> C::Last,
    {
        OrLastError {
            future: self,
            otherwise: Some(otherwise),
            last: PhantomData,
        }
    }
}

impl<O, C, K> Retry<'_, O, C, K>
where
    O: AsyncOperation,
    C: Classify<O::Outcome>,
    K: Sleeper,
{
    /// Polls the call to its end, before its summary. `seen`: whether the caller uses the summary of
    /// a success.
    #[inline]
    fn poll_end(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        seen: bool,
    ) -> Poll<Result<C::Success, Stop>> {
        let mut this = self.project();
        let driver = this.driver;
        let stop = loop {
            match this.operation.poll_interrupt(context) {
                Poll::Pending => {}
                Poll::Ready(Interruption::Cancel) => {
                    break cancel::<O, K>(driver, this.state.as_mut(), this.last);
                }
                Poll::Ready(Interruption::Reset) => {
                    reset::<O, K>(driver, this.state.as_mut(), this.timer);
                    // Poll the interrupt again, or it would not wake the task.
                    continue;
                }
            }
            if let StateProjection::Ready = this.state.as_mut().project() {
                let classify = &mut *this.classify;
                let entered = driver.poll_enter_notifying(context, this.timer, |queued| {
                    classify.on_queued(queued);
                });
                let permit = match ready!(entered) {
                    Ok(permit) => permit,
                    Err(stop) => break stop,
                };
                let state = this.state.as_mut();
                if O::MAY_OVERLAP && driver.policy().hedge().is_some() {
                    if let Err(stop) = begin_hedged(driver, this.operation, state, permit) {
                        break stop;
                    }
                } else {
                    begin(driver, this.operation, state, permit);
                }
            }
            let settled = match this.state.as_mut().project() {
                StateProjection::Ready => continue,
                StateProjection::Done => return Poll::Pending,
                StateProjection::Racing { racing } => {
                    let start = |attempt| this.operation.start(attempt);
                    ready!(racing.poll(driver, start, this.classify, this.last, context))
                }
                StateProjection::Running { attempt, limit } => {
                    let outcome = match attempt.poll(context) {
                        Poll::Ready(outcome) => Some(outcome),
                        Poll::Pending => {
                            match *limit {
                                Limit::Never => return Poll::Pending,
                                Limit::At(end) => {
                                    this.timer.set_until(driver.clock(), end);
                                    *limit = Limit::Timer;
                                }
                                Limit::Timer => {}
                            }
                            ready!(this.timer.poll(context));
                            None
                        }
                    };
                    match classify_outcome(outcome, driver, this.classify) {
                        // Return from here, to keep this path independent of the result of a race.
                        Ok(value) => {
                            match seen {
                                true => driver.on_success(),
                                false => driver.on_success_without_summary(),
                            }
                            this.state.set(State::Done);
                            return Poll::Ready(Ok(value));
                        }
                        Err((failure, outcome)) => {
                            let (number, classify) = (driver.attempts(), &mut *this.classify);
                            decide(number, &failure, outcome, driver, classify, this.last)
                        }
                    }
                }
                StateProjection::Waiting { .. } => {
                    ready!(this.timer.poll(context));
                    this.state.set(State::Ready);
                    continue;
                }
            };

            // Setting the new state drops the attempt and all that it holds before the wait.
            match settled {
                AfterAttempt::Success(value) => {
                    this.state.set(State::Done);
                    return Poll::Ready(Ok(value));
                }
                AfterAttempt::Stop(stop) => break stop,
                AfterAttempt::Wait {
                    after: Duration::ZERO,
                    ..
                } => {
                    this.state.set(State::Ready);
                    if driver.should_yield() {
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
                AfterAttempt::Wait { after, hinted } => {
                    let clock = driver.clock();
                    let may_reset = O::MAY_RESET && !hinted;
                    let own = may_reset.then(|| clock.now().saturating_add(after));
                    this.timer.set(clock, after);
                    this.state.set(State::Waiting { own });
                }
            }
        };
        this.state.set(State::Done);
        Poll::Ready(Err(stop))
    }

    /// The last error and the summary of a call that ended.
    fn end(self: Pin<&mut Self>, stop: Option<Stop>) -> (Option<C::Last>, Summary) {
        let this = self.project();
        let last = this.last.take().and_then(C::into_error);
        (last, this.driver.summary(stop))
    }
}

/// Starts the permitted attempt.
#[inline]
fn begin<O: AsyncOperation, K: Sleeper>(
    driver: &mut Driver<'_, K>,
    operation: &mut O,
    mut state: Pin<&mut StateOf<O, K>>,
    permit: CallPermit,
) {
    let (attempt, limit) = driver.begin_attempt(permit);
    let limit = limit.map_or(Limit::Never, Limit::At);
    let attempt = operation.start(attempt);
    state.set(State::Running { attempt, limit });
}

/// Starts the permitted attempt of a policy with a hedge; hedges may join it.
#[cold]
#[inline(never)]
fn begin_hedged<O: AsyncOperation, K: Sleeper>(
    driver: &mut Driver<'_, K>,
    operation: &mut O,
    mut state: Pin<&mut StateOf<O, K>>,
    permit: CallPermit,
) -> Result<(), Stop> {
    match driver.hedge() {
        Ok(Some(hedge)) => {
            let start = |attempt| operation.start(attempt);
            let racing = Racing::begin(hedge, driver, permit, start);
            state.set(State::Racing { racing });
        }
        Ok(None) => begin(driver, operation, state, permit),
        Err(reason) => {
            driver.release_permit(permit);
            return Err(driver.on_retry_abandoned(&Failure::permanent(), reason));
        }
    }
    Ok(())
}

/// Cancels the call, and keeps the outcome of the deciding failure of a race.
#[cold]
#[inline(never)]
fn cancel<O: AsyncOperation, K: Sleeper>(
    driver: &mut Driver<'_, K>,
    state: Pin<&mut StateOf<O, K>>,
    last: &mut Option<O::Outcome>,
) -> Stop {
    if let StateProjection::Racing { racing } = state.project()
        && let Some(outcome) = racing.cancel(driver)
    {
        *last = Some(outcome);
    }
    driver.on_cancel()
}

/// Restarts the backoff.
#[cold]
#[inline(never)]
fn reset<O: AsyncOperation, K: Sleeper>(
    driver: &mut Driver<'_, K>,
    state: Pin<&mut StateOf<O, K>>,
    timer: &mut Timer<K>,
) {
    if let StateProjection::Waiting { own } = state.project()
        && let Some(until) = own.take()
    {
        let left = driver.shorten_delay(until);
        timer.set(driver.clock(), left);
    } else {
        driver.reset();
    }
}

pin_project! {
    /// The future of [`Retry::or_last_error`] and [`Retry::or_last_error_else`].
    // A named type: the bounds of an `async fn` apply to its return type, too, so the compiler
    // would report a missing bound of the error type twice.
    #[must_use = "futures do nothing unless awaited"]
    pub struct OrLastError<Fut, L, F = fn(NoLastError) -> L> {
        #[pin]
        future: Fut,
        otherwise: Option<F>,
        last: PhantomData<fn() -> L>,
    }
}

impl<Fut, T, L, F> Future for OrLastError<Fut, L, F>
where
    Fut: Future<Output = Result<T, GaveUp<L>>>,
    F: FnOnce(NoLastError) -> L,
{
    type Output = Result<T, L>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let gave_up = match ready!(this.future.poll(context)) {
            Ok(value) => return Poll::Ready(Ok(value)),
            Err(gave_up) => gave_up,
        };
        match this.otherwise.take() {
            Some(otherwise) => Poll::Ready(Err(gave_up.into_last_or_else(otherwise))),
            // Polled again by mistake after completion.
            None => Poll::Pending,
        }
    }
}

impl<Fut, L, F> fmt::Debug for OrLastError<Fut, L, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OrLastError")
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use relent_core::{Backoff, Policy};

    use crate::clock::VirtualClock;
    use crate::retry::retry;

    const SECOND: Duration = Duration::from_secs(1);

    fn five_seconds_each() -> Policy {
        Policy::builder(Backoff::None)
            .attempt_timeout(5 * SECOND)
            .max_retries(0)
            .build()
            .unwrap()
    }

    fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn the_limit_of_an_attempt_counts_from_its_start() {
        let (policy, clock) = (five_seconds_each(), VirtualClock::new());
        let asked = retry(&policy, async || {
            clock.advance(2 * SECOND);
            pending::<Result<(), ()>>().await
        });
        assert!(poll_once(asked.clock(&clock)).is_ready());
        assert_eq!(clock.sleeps(), [3 * SECOND]);
    }

    #[test]
    fn an_attempt_that_does_not_wait_sets_no_timer() {
        let (policy, clock) = (five_seconds_each(), VirtualClock::new());
        let asked = retry(&policy, async || Ok::<_, ()>(1)).clock(&clock);
        assert!(matches!(poll_once(asked), Poll::Ready(Ok(1))));
        assert!(clock.sleeps().is_empty());
    }
}
