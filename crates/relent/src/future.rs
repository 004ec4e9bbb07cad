//! The future of [`retry`](crate::retry), implemented by hand: it allocates only if it waits, and
//! does not box the operation.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use relent_core::{Failure, Instant, Policy, Random, Stop};

use crate::after_attempt::{AfterAttempt, classify_outcome, decide};
use crate::classify::Classify;
use crate::clock::Sleeper;
use crate::driver::{CallPermit, Driver, Target};
use crate::gave_up::{FromNoLastError, GaveUp, NoLastError};
use crate::hedged::Racing;
use crate::hook::Hook;
use crate::interrupt::{Interrupt, Interruption};
use crate::operation::AsyncOperation;
use crate::retry::Retry;
use crate::summary::Summary;
use crate::timer::Timer;

pin_project! {
    /// The future of a [`Retry`]. Dropping it at any point leaves budget and session consistent.
    #[must_use = "futures do nothing unless awaited"]
    pub struct RetryFuture<'p, O, C, H, K, R, X, D>
    where
        O: AsyncOperation,
        C: Classify<O::Outcome>,
        K: Sleeper,
        R: Random,
        D: Target,
    {
        operation: O,
        classify: C,
        hook: H,
        driver: Driver<'p, K, R, &'p Policy, D>,
        last: Option<C::Last>,
        // One timer for waits and attempt limits, created at its first use and reused.
        timer: Timer<K>,
        #[pin]
        interrupt: X,
        #[pin]
        state: State<O, C::Last, K>,
    }
}

/// The time limit of a running attempt.
#[derive(Clone, Copy)]
enum Limit {
    Never,
    /// At this instant. The timer is not set yet: an attempt that succeeds immediately never sets
    /// it.
    At(Instant),
    /// When the timer expires.
    Timer,
}

pin_project! {
    #[project = StateProjection]
    enum State<O: AsyncOperation, L, K: Sleeper> {
        Ready,
        Running { #[pin] attempt: O::Future, limit: Limit },
        // Hedges may join.
        Racing { racing: Option<Box<Racing<O, L, K>>> },
        // `own` is the end of the wait if it is a computed backoff.
        Waiting { own: Option<Instant> },
        // A poll after completion must not run the operation again.
        Done,
    }
}

impl<O: AsyncOperation, L, K: Sleeper> State<O, L, K> {
    /// Takes the concurrent attempts out of the state.
    fn end_race(self: Pin<&mut Self>) -> Option<Box<Racing<O, L, K>>> {
        match self.project() {
            StateProjection::Racing { racing } => racing.take(),
            _ => None,
        }
    }
}

/// Starts the permitted attempt.
#[inline]
fn begin<O, L, K, R, D>(
    driver: &mut Driver<'_, K, R, &Policy, D>,
    operation: &mut O,
    mut state: Pin<&mut State<O, L, K>>,
    permit: CallPermit,
) where
    O: AsyncOperation,
    K: Sleeper,
    R: Random,
    D: Target,
{
    let (attempt, limit) = driver.begin_attempt(permit);
    let limit = limit.map_or(Limit::Never, Limit::At);
    let attempt = operation.start(attempt);
    state.set(State::Running { attempt, limit });
}

impl<'p, O, C, H, K, R, X, D> IntoFuture for Retry<'p, O, C, H, K, R, X, D>
where
    O: AsyncOperation,
    C: Classify<O::Outcome>,
    H: Hook<C::Last>,
    K: Sleeper,
    R: Random,
    X: Interrupt,
    D: Target,
{
    type Output = Result<C::Success, GaveUp<C::Last>>;
    type IntoFuture = RetryFuture<'p, O, C, H, K, R, X, D>;

    #[inline]
    fn into_future(self) -> Self::IntoFuture {
        let Self {
            operation,
            classify,
            hook,
            driver,
            interrupt,
        } = self;
        RetryFuture {
            operation,
            classify,
            hook,
            driver: driver.start(),
            last: None,
            timer: Timer::new(),
            interrupt,
            state: State::Ready,
        }
    }
}

impl<'p, O, C, H, K, R, X, D> Retry<'p, O, C, H, K, R, X, D>
where
    O: AsyncOperation,
    C: Classify<O::Outcome>,
    H: Hook<C::Last>,
    K: Sleeper,
    R: Random,
    X: Interrupt,
    D: Target,
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
        let mut future = std::pin::pin!(self.into_future());
        match std::future::poll_fn(|context| future.as_mut().poll_end(context, true)).await {
            Ok(value) => (Ok(value), future.project().driver.summary(None)),
            Err(gave_up) => {
                let (last, summary) = gave_up.into_parts();
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
    #[allow(
        clippy::type_complexity,
        reason = "it is the future of this call with one step more"
    )]
    pub fn or_last_error(
        self,
    ) -> OrLastError<RetryFuture<'p, O, C, H, K, R, X, D>, C::Last, fn(NoLastError) -> C::Last>
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
    #[allow(
        clippy::type_complexity,
        reason = "it is the future of this call with one step more"
    )]
    pub fn or_last_error_else<F>(
        self,
        otherwise: F,
    ) -> OrLastError<RetryFuture<'p, O, C, H, K, R, X, D>, C::Last, F>
    where
        F: FnOnce(NoLastError) -> C::Last,
    {
        OrLastError {
            future: self.into_future(),
            otherwise: Some(otherwise),
            last: PhantomData,
        }
    }
}

impl<O, C, H, K, R, X, D> RetryFuture<'_, O, C, H, K, R, X, D>
where
    O: AsyncOperation,
    C: Classify<O::Outcome>,
    H: Hook<C::Last>,
    K: Sleeper,
    R: Random,
    X: Interrupt,
    D: Target,
{
    /// `seen`: whether the caller uses the summary of a success.
    #[inline]
    fn poll_end(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        seen: bool,
    ) -> Poll<Result<C::Success, GaveUp<C::Last>>> {
        let stop = loop {
            let mut this = self.as_mut().project();
            match this.interrupt.as_mut().poll_interrupt(context) {
                Poll::Pending => {}
                Poll::Ready(Interruption::Cancel) => return Poll::Ready(Err(self.cancel())),
                Poll::Ready(Interruption::Reset) => {
                    self.as_mut().reset();
                    // Poll the interrupt again, or it would not wake the task.
                    continue;
                }
            }
            if let StateProjection::Ready = this.state.as_mut().project() {
                let hook = &mut *this.hook;
                let entered = this
                    .driver
                    .poll_enter_notifying(context, this.timer, |queued| hook.on_queued(queued));
                let permit = match ready!(entered) {
                    Ok(permit) => permit,
                    Err(stop) => break stop,
                };
                if O::MAY_OVERLAP && this.driver.policy().hedge().is_some() {
                    match self.as_mut().begin_hedged(permit) {
                        Ok(()) => continue,
                        Err(stop) => break stop,
                    }
                }
                begin(this.driver, this.operation, this.state.as_mut(), permit);
            }
            let settled = match this.state.as_mut().project() {
                StateProjection::Ready => continue,
                StateProjection::Done => return Poll::Pending,
                StateProjection::Racing { .. } => {
                    let settled = ready!(self.as_mut().poll_race(context));
                    this = self.as_mut().project();
                    settled
                }
                StateProjection::Running { attempt, limit } => {
                    let outcome = match attempt.poll(context) {
                        Poll::Ready(outcome) => Some(outcome),
                        Poll::Pending => {
                            match *limit {
                                Limit::Never => return Poll::Pending,
                                Limit::At(end) => {
                                    this.timer.set_until(this.driver.clock(), end);
                                    *limit = Limit::Timer;
                                }
                                Limit::Timer => {}
                            }
                            ready!(this.timer.poll(context));
                            None
                        }
                    };
                    match classify_outcome(outcome, this.driver, this.classify) {
                        // Return from here, to keep this path independent of the result of a race.
                        Ok(value) => {
                            match seen {
                                true => this.driver.on_success(),
                                false => this.driver.on_success_without_summary(),
                            }
                            this.state.set(State::Done);
                            return Poll::Ready(Ok(value));
                        }
                        Err((failure, error)) => {
                            let number = this.driver.attempts();
                            decide(number, &failure, error, this.driver, this.hook, this.last)
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
                    if this.driver.should_yield() {
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
                AfterAttempt::Wait { after, hinted } => {
                    let clock = this.driver.clock();
                    let may_reset = X::MAY_RESET && !hinted;
                    let own = may_reset.then(|| clock.now().saturating_add(after));
                    this.timer.set(clock, after);
                    this.state.set(State::Waiting { own });
                }
            }
        };
        Poll::Ready(Err(self.give_up(stop)))
    }
}

impl<O, C, H, K, R, X, D> RetryFuture<'_, O, C, H, K, R, X, D>
where
    O: AsyncOperation,
    C: Classify<O::Outcome>,
    H: Hook<C::Last>,
    K: Sleeper,
    R: Random,
    X: Interrupt,
    D: Target,
{
    #[cold]
    #[inline(never)]
    fn cancel(mut self: Pin<&mut Self>) -> GaveUp<C::Last> {
        let this = self.as_mut().project();
        if let Some(mut racing) = this.state.end_race()
            && let Some(last) = racing.cancel(this.driver)
        {
            *this.last = Some(last);
        }
        let stop = this.driver.on_cancel();
        self.give_up(stop)
    }

    #[inline]
    fn give_up(self: Pin<&mut Self>, stop: Stop) -> GaveUp<C::Last> {
        let mut this = self.project();
        this.state.set(State::Done);
        GaveUp::new(this.last.take(), this.driver.summary(Some(stop)))
    }

    /// Restarts the backoff.
    #[cold]
    #[inline(never)]
    fn reset(self: Pin<&mut Self>) {
        let this = self.project();
        if let StateProjection::Waiting { own } = this.state.project()
            && let Some(until) = own.take()
        {
            let left = this.driver.shorten_delay(until);
            this.timer.set(this.driver.clock(), left);
        } else {
            this.driver.reset();
        }
    }

    /// Starts the permitted attempt of a policy with a hedge; hedges may join it.
    #[cold]
    #[inline(never)]
    fn begin_hedged(self: Pin<&mut Self>, permit: CallPermit) -> Result<(), Stop> {
        let mut this = self.project();
        match this.driver.hedge() {
            Ok(Some(hedge)) => {
                let racing = Racing::begin(hedge, this.driver, permit, this.operation);
                let racing = Some(racing);
                this.state.set(State::Racing { racing });
            }
            Ok(None) => begin(this.driver, this.operation, this.state, permit),
            Err(reason) => {
                this.driver.release_permit(permit);
                let failure = Failure::permanent();
                return Err(this.driver.on_retry_abandoned(&failure, reason));
            }
        }
        Ok(())
    }

    /// Polls the race until one attempt has succeeded, or all have failed.
    #[cold]
    #[inline(never)]
    fn poll_race(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<AfterAttempt<C::Success>> {
        let mut this = self.project();
        let StateProjection::Racing { racing } = this.state.as_mut().project() else {
            return Poll::Pending;
        };
        let Some(racing) = racing else {
            return Poll::Pending;
        };
        let settled = ready!(racing.poll(
            this.driver,
            this.operation,
            this.classify,
            this.hook,
            this.last,
            context,
        ));
        drop(this.state.end_race());
        Poll::Ready(settled)
    }
}

impl<O, C, H, K, R, X, D> Future for RetryFuture<'_, O, C, H, K, R, X, D>
where
    O: AsyncOperation,
    C: Classify<O::Outcome>,
    H: Hook<C::Last>,
    K: Sleeper,
    R: Random,
    X: Interrupt,
    D: Target,
{
    type Output = Result<C::Success, GaveUp<C::Last>>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_end(context, false)
    }
}

impl<O, C, H, K, R, X, D> fmt::Debug for RetryFuture<'_, O, C, H, K, R, X, D>
where
    O: AsyncOperation,
    C: Classify<O::Outcome>,
    K: Sleeper,
    R: Random,
    D: Target,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryFuture")
            .field("driver", &self.driver)
            .finish_non_exhaustive()
    }
}

pin_project! {
    /// The future of [`Retry::or_last_error`] and [`Retry::or_last_error_else`].
    // A named type: the bounds of an `async fn` apply to its return type, too, so the compiler
    // would report a missing bound of the error type twice.
    #[must_use = "futures do nothing unless awaited"]
    pub struct OrLastError<Fut, L, F> {
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

    fn poll_once<F: IntoFuture>(future: F) -> Poll<F::Output> {
        pin!(future.into_future()).poll(&mut Context::from_waker(Waker::noop()))
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
