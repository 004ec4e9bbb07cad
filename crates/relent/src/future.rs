//! The future behind [`retry`](crate::retry), written by hand: no allocation unless it waits, and
//! no box around the operation.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use relent_core::{Attempt, Failure, Instant, Leave, Policy, Random, Stop};

use crate::after_attempt::{After, after_attempt};
use crate::classify::Classify;
use crate::clock::Sleeper;
use crate::driver::{Driver, Summary, Target};
use crate::gave_up::{GaveUp, NoLastError};
use crate::hedged::Racing;
use crate::hook::Hook;
use crate::interrupt::{Interrupt, Interruption};
use crate::operation::AsyncOperation;
use crate::retry::Retry;
use crate::timer::Timer;

pin_project! {
    /// The future of a [`Retry`]. Dropping it at any point leaves budget and session consistent
    /// (design rule 12).
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
        // One timer for waits and attempt limits, made when it is first needed and reused.
        timer: Timer<K>,
        #[pin]
        interrupt: X,
        #[pin]
        state: State<O, C::Last, K>,
    }
}

/// When a running attempt is cut off.
#[derive(Clone, Copy)]
enum Limit {
    Never,
    /// Then; the timer is not set before the attempt has to wait, which most that succeed at once
    /// never do.
    At(Instant),
    /// When the timer says so.
    Timer,
}

pin_project! {
    #[project = StateProjection]
    enum State<O: AsyncOperation, L, K: Sleeper> {
        Ready,
        Running { #[pin] attempt: O::Future, limit: Limit },
        // Hedges may join.
        Racing { racing: Box<Racing<O, L, K>> },
        // Until then, if the wait is the session's own.
        Waiting { own: Option<Instant> },
        // Polled again by mistake, it must not run the operation again.
        Done,
    }
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
    /// Like awaiting it, with an account of the session also when it succeeds: attempts, time, and
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
        let (result, stop) =
            std::future::poll_fn(|context| future.as_mut().poll_end(context)).await;
        let summary = future.project().driver.summary(stop);
        (result, summary)
    }

    /// Like awaiting it, with the operation's own error in place of a [`GaveUp`]: for a function that
    /// fails with the same type as the operation.
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
    /// The last error; without one, what the error type makes of a [`NoLastError`].
    pub async fn or_last_error(self) -> Result<C::Success, C::Last>
    where
        C::Last: From<NoLastError>,
    {
        self.await.map_err(GaveUp::into_last)
    }
}

/// How it ended: a success, or the last failure with the stop.
type End<S, L> = (Result<S, Option<L>>, Option<Stop>);

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
    #[inline]
    fn poll_end(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<End<C::Success, C::Last>> {
        let mut this = self.project();
        'attempts: loop {
            match this.interrupt.as_mut().poll_interrupt(context) {
                Poll::Pending => {}
                Poll::Ready(Interruption::Cancel) => {
                    let mut last = this.last.take();
                    if let StateProjection::Racing { racing } = this.state.as_mut().project() {
                        last = racing.cancel(this.driver).or(last);
                    }
                    let stop = this.driver.on_cancel();
                    this.state.set(State::Done);
                    return Poll::Ready((Err(last), Some(stop)));
                }
                Poll::Ready(Interruption::Reset) => {
                    if let StateProjection::Waiting { own } = this.state.as_mut().project()
                        && let Some(until) = own.take()
                    {
                        let left = this.driver.hasten(until);
                        this.timer.set(this.driver.clock(), left);
                    } else {
                        this.driver.reset();
                    }
                    // The interrupt has to be asked again, or it would not wake the task.
                    continue;
                }
            }
            if let StateProjection::Ready = this.state.as_mut().project() {
                let (attempt, limit) = match this.driver.begin_untimed() {
                    Some(number) => (Attempt::unlimited(number), None),
                    None => match ready!(begin(this.driver, this.timer, this.operation, context)) {
                        Ok(Begun::Alone(begun)) => begun,
                        Ok(Begun::Racing(racing)) => {
                            this.state.set(State::Racing { racing });
                            continue;
                        }
                        Err(stop) => {
                            this.state.set(State::Done);
                            return Poll::Ready((Err(this.last.take()), Some(stop)));
                        }
                    },
                };
                let limit = limit.map_or(Limit::Never, Limit::At);
                let attempt = this.operation.start(attempt);
                this.state.set(State::Running { attempt, limit });
            }
            let settled = 'settled: {
                // In one place for all that ran alone, so that it goes into this loop.
                let outcome = match this.state.as_mut().project() {
                    StateProjection::Ready => continue 'attempts,
                    StateProjection::Done => return Poll::Pending,
                    StateProjection::Racing { racing } => {
                        break 'settled ready!(racing.poll(
                            this.driver,
                            this.operation,
                            this.classify,
                            this.hook,
                            this.last,
                            context,
                        ));
                    }
                    StateProjection::Running { attempt, limit } => match attempt.poll(context) {
                        Poll::Ready(outcome) => Some(outcome),
                        Poll::Pending => {
                            match *limit {
                                Limit::Never => return Poll::Pending,
                                Limit::At(end) => {
                                    let clock = this.driver.clock();
                                    let left = end.saturating_since(clock.now());
                                    this.timer.set(clock, left);
                                    *limit = Limit::Timer;
                                }
                                Limit::Timer => {}
                            }
                            ready!(this.timer.poll(context));
                            None
                        }
                    },
                    StateProjection::Waiting { .. } => {
                        ready!(this.timer.poll(context));
                        this.state.set(State::Ready);
                        continue 'attempts;
                    }
                };
                after_attempt(outcome, this.driver, this.classify, this.hook, this.last)
            };

            // Each new state drops the attempt, with all that it holds, before the wait.
            match settled {
                After::Success(value) => {
                    this.state.set(State::Done);
                    return Poll::Ready((Ok(value), None));
                }
                After::Stop(stop) => {
                    this.state.set(State::Done);
                    return Poll::Ready((Err(this.last.take()), Some(stop)));
                }
                After::Wait {
                    after: Duration::ZERO,
                    ..
                } => {
                    this.state.set(State::Ready);
                    if this.driver.is_turn_over() {
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
                After::Wait { after, hinted } => {
                    let clock = this.driver.clock();
                    let own = (!hinted).then(|| clock.now().saturating_add(after));
                    this.timer.set(clock, after);
                    this.state.set(State::Waiting { own });
                }
            }
        }
    }
}

/// How an attempt begins that hedges may join.
enum Begun<O: AsyncOperation, L, K: Sleeper> {
    Alone((Attempt, Option<Instant>)),
    Racing(Box<Racing<O, L, K>>),
}

/// The attempt begins that had to ask, or that hedges may join: out of the way of those that succeed at
/// once.
#[inline(never)]
fn begin<O, L, K, R, D>(
    driver: &mut Driver<'_, K, R, &Policy, D>,
    timer: &mut Timer<K>,
    operation: &mut O,
    context: &mut Context<'_>,
) -> Poll<Result<Begun<O, L, K>, Stop>>
where
    O: AsyncOperation,
    K: Sleeper,
    R: Random,
    D: Target,
{
    Poll::Ready(if O::MAY_OVERLAP && driver.policy().hedge().is_some() {
        let entered = ready!(driver.poll_enter(context, timer));
        entered.and_then(|leave| begin_hedged(driver, leave, operation))
    } else {
        ready!(driver.poll_begin(context, timer)).map(Begun::Alone)
    })
}

/// The policy hedges: the attempt that has leave begins, and hedges may join it.
#[cold]
#[inline(never)]
fn begin_hedged<O, L, K, R, D>(
    driver: &mut Driver<'_, K, R, &Policy, D>,
    leave: Leave,
    operation: &mut O,
) -> Result<Begun<O, L, K>, Stop>
where
    O: AsyncOperation,
    K: Sleeper,
    R: Random,
    D: Target,
{
    Ok(match driver.hedge() {
        Ok(Some(hedge)) => Begun::Racing(Racing::begin(hedge, driver, leave, operation)),
        Ok(None) => Begun::Alone(driver.begin_attempt(leave)),
        Err(reason) => {
            driver.step_back(leave);
            return Err(driver.on_declined(&Failure::permanent(), reason));
        }
    })
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
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (result, stop) = ready!(self.as_mut().poll_end(context));
        Poll::Ready(result.map_err(|last| GaveUp::new(last, self.project().driver.summary(stop))))
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
