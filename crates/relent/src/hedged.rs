//! The future of a hedged operation.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use relent_core::{Cause, Decision, Failure, Hedge, Instant, Policy, Raced, Random, Stop};

use crate::classify::{Classify, Judged};
use crate::clock::Sleeper;
use crate::driver::{Driver, Summary, Target};
use crate::gave_up::{GaveUp, NoLastError};
use crate::hook::{Hook, Notice};
use crate::interrupt::{Interrupt, Interruption};
use crate::operation::AsyncOperation;
use crate::race::{RaceEvent, Running};
use crate::retry::Retry;
use crate::timer::Timer;
use relent_core::Attempt;
use relent_core::Racer;

/// An operation whose slow attempts are joined by another. Made by [`Retry::hedge`]; awaited.
#[must_use = "nothing is attempted until it is awaited"]
pub struct Hedged<'p, O, C, H, K, R, X, D> {
    retry: Retry<'p, O, C, H, K, R, X, D>,
    hedge: &'p Hedge,
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
    /// Sends a second attempt when the first takes long, and takes the outcome that is there first;
    /// the other is dropped. Say it last.
    ///
    /// `hedge` says when, and is shared by all callers of a destination, as the budget is. A hedge
    /// is an attempt: it counts among the policy's retries, is taken from the same
    /// [`destination`](Self::destination)'s budget, and has the same limits of time. A policy that allows no retries
    /// sends no hedges. When all that run have failed, the policy decides once about a retry, which
    /// may be hedged in its turn. See [`Race`](relent_core::Race).
    ///
    /// Costs a box for each attempt. Dropping an attempt has to be enough to cancel it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use relent::{Hedge, HedgeConfig, Policy, retry};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // One for the destination, for all that it is asked.
    /// let hedge = Hedge::new(&HedgeConfig::after(Duration::from_millis(50)))?;
    ///
    /// let mut asked = 0;
    /// let answer = retry(Policy::STANDARD, || {
    ///     asked += 1;
    ///     let slow = asked == 1;
    ///     async move {
    ///         tokio::time::sleep(Duration::from_millis(if slow { 10_000 } else { 5 })).await;
    ///         Ok::<_, std::io::Error>(if slow { "first" } else { "hedge" })
    ///     }
    /// })
    /// .hedge(&hedge)
    /// .await?;
    /// assert_eq!(answer, "hedge");
    /// # Ok(()) }
    /// ```
    pub fn hedge(self, hedge: &'p Hedge) -> Hedged<'p, O, C, H, K, R, X, D> {
        Hedged { retry: self, hedge }
    }
}

pin_project! {
    /// The future of a [`Hedged`]. Dropping it at any point drops all attempts and leaves the budget
    /// consistent (design rule 12).
    #[must_use = "futures do nothing unless awaited"]
    pub struct HedgedFuture<'p, O, C, H, K, R, X, D>
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
        hedge: &'p Hedge,
        // Before `driver`, so that the attempts are dropped first.
        running: Running<O::Future, K>,
        driver: Driver<'p, K, R, &'p Policy, D>,
        last: Option<C::Last>,
        // The error of the failure that decides, unless a plainer one comes.
        kept: Option<C::Last>,
        timer: Timer<K>,
        state: State,
        #[pin]
        interrupt: X,
    }
}

enum State {
    Ready,
    Racing,
    /// Until then, if the wait is the session's own.
    Waiting {
        own: Option<Instant>,
    },
    // Polled again by mistake, it must not run the operation again.
    Done,
}

impl<'p, O, C, H, K, R, X, D> IntoFuture for Hedged<'p, O, C, H, K, R, X, D>
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
    type IntoFuture = HedgedFuture<'p, O, C, H, K, R, X, D>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { retry, hedge } = self;
        HedgedFuture {
            operation: retry.operation,
            classify: retry.classify,
            hook: retry.hook,
            hedge,
            running: Running::new(),
            driver: retry.driver.start(),
            last: None,
            kept: None,
            timer: Timer::new(),
            state: State::Ready,
            interrupt: retry.interrupt,
        }
    }
}

impl<'p, O, C, H, K, R, X, D> Hedged<'p, O, C, H, K, R, X, D>
where
    O: AsyncOperation,
    C: Classify<O::Outcome>,
    H: Hook<C::Last>,
    K: Sleeper,
    R: Random,
    X: Interrupt,
    D: Target,
{
    /// Like awaiting it, with an account of the session also when it succeeds; see
    /// [`Retry::with_summary`].
    pub async fn with_summary(self) -> (Result<C::Success, Option<C::Last>>, Summary) {
        let mut future = std::pin::pin!(self.into_future());
        let (result, stop) =
            std::future::poll_fn(|context| future.as_mut().poll_end(context)).await;
        let summary = future.project().driver.summary(stop);
        (result, summary)
    }

    /// Like awaiting it, with the operation's own error in place of a [`GaveUp`]; see
    /// [`Retry::or_last_error`].
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

impl<O, C, H, K, R, X, D> HedgedFuture<'_, O, C, H, K, R, X, D>
where
    O: AsyncOperation,
    C: Classify<O::Outcome>,
    H: Hook<C::Last>,
    K: Sleeper,
    R: Random,
    X: Interrupt,
    D: Target,
{
    fn poll_end(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<End<C::Success, C::Last>> {
        let mut this = self.project();
        loop {
            match this.interrupt.as_mut().poll_interrupt(context) {
                Poll::Pending => {}
                Poll::Ready(Interruption::Cancel) => {
                    this.running.cancel(this.driver);
                    let stop = this.driver.on_cancel();
                    *this.state = State::Done;
                    let last = this.kept.take().or(this.last.take());
                    return Poll::Ready((Err(last), Some(stop)));
                }
                Poll::Ready(Interruption::Reset) => {
                    if let State::Waiting { own } = this.state
                        && let Some(until) = own.take()
                    {
                        let left = this.driver.hasten(until);
                        this.timer.set(this.driver.clock(), left);
                    } else {
                        this.driver.reset();
                    }
                    continue;
                }
            }
            let (racer, outcome) = match this.state {
                State::Done => return Poll::Pending,
                State::Waiting { .. } => {
                    ready!(this.timer.poll(context));
                    this.timer.clear();
                    *this.state = State::Ready;
                    continue;
                }
                State::Ready => {
                    let leave = match ready!(this.driver.poll_enter(context, this.timer)) {
                        Ok(leave) => leave,
                        Err(stop) => {
                            *this.state = State::Done;
                            let last = this.kept.take().or(this.last.take());
                            return Poll::Ready((Err(last), Some(stop)));
                        }
                    };
                    this.timer.clear();
                    let operation = &mut *this.operation;
                    let start = |racer: &Racer| operation.start(racer.attempt());
                    this.running.begin(this.driver, this.hedge, leave, start);
                    *this.state = State::Racing;
                    continue;
                }
                State::Racing => match ready!(this.running.poll_next(this.driver, context)) {
                    RaceEvent::Due => {
                        let operation = &mut *this.operation;
                        let start = |racer: &Racer| operation.start(racer.attempt());
                        this.running.join(this.driver, start);
                        continue;
                    }
                    RaceEvent::Ended(racer, outcome) => (racer, Some(outcome)),
                    RaceEvent::CutOff(racer, attempt) => {
                        drop(attempt);
                        (racer, None)
                    }
                },
            };

            let (failure, error) = match outcome.map(|outcome| this.classify.judge(outcome)) {
                Some(Judged::Success(value)) => {
                    this.running.won(this.driver, this.hedge, &racer, None);
                    *this.state = State::Done;
                    return Poll::Ready((Ok(value), None));
                }
                Some(Judged::Failure(failure, error)) => (failure, Some(error)),
                Some(Judged::Pending { progress }) => {
                    if progress {
                        this.driver.reset();
                    }
                    (Failure::pending(), None)
                }
                None => (Failure::ambiguous().cause(Cause::Timeout), None),
            };
            let (failure, has_error) =
                match this
                    .running
                    .failed(this.driver, this.hedge, &racer, &failure)
                {
                    Raced::GoesOn { kept } => {
                        if kept && error.is_some() {
                            *this.kept = error;
                        }
                        continue;
                    }
                    Raced::Over { failure, latest } => {
                        let kept = this.kept.take();
                        let error = if latest {
                            error.or(kept)
                        } else {
                            kept.or(error)
                        };
                        let has_error = error.is_some();
                        if has_error {
                            *this.last = error;
                        }
                        (failure, has_error)
                    }
                };
            match this.driver.on_failure(&failure) {
                Decision::Stop(stop) => {
                    *this.state = State::Done;
                    return Poll::Ready((Err(this.last.take()), Some(stop)));
                }
                Decision::Retry { after } => {
                    let Attempt { number, .. } = racer.attempt();
                    this.hook.before_wait(&Notice {
                        attempt: number,
                        wait: after,
                        failure,
                        error: this.last.as_ref().filter(|_| has_error),
                    });
                    if after == Duration::ZERO {
                        *this.state = State::Ready;
                        // An operation that fails at once lets other tasks run.
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    this.timer.set(this.driver.clock(), after);
                    let own = match failure.hint.delay() {
                        None => Some(this.driver.clock().now().saturating_add(after)),
                        Some(_) => None,
                    };
                    *this.state = State::Waiting { own };
                }
            }
        }
    }
}

impl<O, C, H, K, R, X, D> Future for HedgedFuture<'_, O, C, H, K, R, X, D>
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

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (result, stop) = ready!(self.as_mut().poll_end(context));
        Poll::Ready(result.map_err(|last| GaveUp::new(last, self.project().driver.summary(stop))))
    }
}

impl<O, C, H, K, R, X, D> fmt::Debug for Hedged<'_, O, C, H, K, R, X, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hedged")
            .field("retry", &self.retry)
            .field("hedge", &self.hedge)
            .finish()
    }
}

impl<O, C, H, K, R, X, D> fmt::Debug for HedgedFuture<'_, O, C, H, K, R, X, D>
where
    O: AsyncOperation,
    C: Classify<O::Outcome>,
    K: Sleeper,
    R: Random,
    D: Target,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HedgedFuture")
            .field("driver", &self.driver)
            .finish_non_exhaustive()
    }
}
