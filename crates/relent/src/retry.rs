//! The settings that every form of retry shares, and the asynchronous entry points.

use std::fmt;
use std::marker::{PhantomData, PhantomPinned};
use std::time::Duration;

use pin_project_lite::pin_project;
use relent_core::{Attempt, Failure, Policy, Random};

use crate::classify::{AnyError, ByError, ByOutcome, ByRetryableError, Classify, Hooked};
use crate::clock::Clock;
use crate::destination::Destination;
use crate::driver::{Driver, DriverBuilder};
use crate::hook::{Hook, Notice, Notify};
use crate::interrupt::{Activity, Both, CancelOn, Interrupt, OnActivity};
use crate::operation::{
    Async, AttemptFuture, Borrowing, BoxFuture, OnState, Operation, Plain, WithAttempt,
};
use crate::state::State;
use crate::timer::Timer;

/// The clock that [`retry`] uses: tokio's. Without the feature `tokio` and in a browser it is
/// [`StdClock`](crate::clock::StdClock), which cannot wait in async code.
#[cfg(all(
    feature = "tokio",
    not(all(target_arch = "wasm32", target_os = "unknown"))
))]
pub type DefaultClock = crate::clock::TokioClock;
/// The clock that [`retry`] uses: tokio's. Without the feature `tokio` and in a browser it is
/// [`StdClock`](crate::clock::StdClock), which cannot wait in async code.
#[cfg(not(all(
    feature = "tokio",
    not(all(target_arch = "wasm32", target_os = "unknown"))
)))]
pub type DefaultClock = crate::clock::StdClock;

/// Calls `operation` until it succeeds or the policy gives up. Await the result.
///
/// Calling this declares that the operation may safely run twice. A plain `Err` may have taken
/// effect and is retried; see [`Retry::when`], [`Retry::classify`] and [`Retry::classify_by_error`] to
/// classify errors.
///
/// If the policy has a hedge ([`PolicyBuilder::hedge`](relent_core::PolicyBuilder::hedge)), a
/// second attempt starts beside a slow one. The first outcome is used, and the other future is
/// dropped: dropping it must be enough to cancel the attempt. Hedged attempts are boxed.
///
/// The closure makes a new future for each attempt, after the wait. To use captured `&mut` state,
/// see [`retry_mut`]. To spawn it: `tokio::spawn(retry(..))`. The call is `Send` if the closure, its
/// futures and their outcomes are, and `'static` if policy and destination are.
///
/// # Errors
/// Awaiting it returns [`GaveUp`](crate::GaveUp) with the last error, the reason and the number of
/// attempts. `?` is enough for an [`Error`](std::error::Error) in a function that returns
/// `anyhow::Error` or `Box<dyn Error>`. For other error types see [this
/// table](crate::GaveUp#in-a-function-that-returns-another-error).
///
/// ```
/// use relent::{Policy, retry};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// # async fn fetch() -> Result<&'static str, std::io::Error> { Ok("answer") }
/// let answer = retry(Policy::STANDARD, || fetch()).await;
/// assert_eq!(answer.unwrap(), "answer");
/// # }
/// ```
#[inline]
pub fn retry<F, Fut>(policy: &Policy, operation: F) -> Retry<'_, Async<Plain<F>>>
where
    F: FnMut() -> Fut,
    Fut: AttemptFuture,
{
    let operation = Async::new(Plain(operation));
    Retry::new(policy, operation, DefaultClock::default())
}

/// Like [`retry`], for an operation that needs the number of the attempt and the time left for it.
///
/// ```
/// use std::time::Duration;
/// use relent::{Backoff, Policy, retry_with};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = Policy::builder(Backoff::constant(Duration::from_secs(1)))
///     .deadline(Duration::from_secs(10))
///     .build()?;
/// let left = retry_with(&policy, |attempt| async move {
///     if attempt.number < 3 { Err(std::fmt::Error) } else { Ok(attempt.remaining) }
/// })
/// .await?;
/// assert!(left.is_some_and(|left| left < Duration::from_secs(10)));
/// # Ok(()) }
/// ```
#[inline]
pub fn retry_with<F, Fut>(policy: &Policy, operation: F) -> Retry<'_, Async<WithAttempt<F>>>
where
    F: FnMut(Attempt) -> Fut,
    Fut: AttemptFuture,
{
    let operation = Async::new(WithAttempt(operation));
    Retry::new(policy, operation, DefaultClock::default())
}

/// Like [`retry_with`], for an async closure that uses captured `&mut` state. End it with
/// [`run`](Retry::run).
///
/// To spawn it, give the closure ownership of its state (`async move`) and spawn the `run()`. If
/// the compiler reports that the spawned future is not general enough, use [`retry_on`], which
/// boxes it.
///
/// ```
/// use relent::{Policy, retry_mut};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let mut log: Vec<u32> = Vec::new();
/// let result = retry_mut(Policy::PATIENT, async |attempt| {
///     log.push(attempt.number);
///     if log.len() < 3 { Err("not yet") } else { Ok(()) }
/// })
/// .run()
/// .await;
/// assert!(result.is_ok());
/// assert_eq!(log, [1, 2, 3]);
/// # }
/// ```
#[inline]
pub fn retry_mut<F, O>(policy: &Policy, operation: F) -> Retry<'_, Async<Borrowing<F, O>>>
where
    F: AsyncFnMut(Attempt) -> O,
{
    let operation = Async::new(Borrowing(operation, PhantomData));
    Retry::new(policy, operation, DefaultClock::default())
}

/// Like [`retry_with`], for an operation that needs `&mut` access to something, such as a
/// connection, in a spawned task. End it with [`run`](Retry::run).
///
/// [`retry_mut`] reads better and boxes nothing, but today's compiler often cannot prove that a
/// future with a borrowing async closure is [`Send`]. This future is.
///
/// ```
/// use relent::{Policy, retry_on};
///
/// struct Connection { queries: u32 }
/// impl Connection {
///     async fn query(&mut self) -> Result<u32, std::io::Error> {
///         self.queries += 1;
///         Ok(self.queries)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let rows = tokio::spawn(async {
///     let mut connection = Connection { queries: 0 };
///     retry_on(Policy::STANDARD, &mut connection, |connection, _| Box::pin(connection.query()))
///         .run()
///         .await
/// });
/// assert_eq!(rows.await.unwrap().unwrap(), 1);
/// # }
/// ```
#[inline]
pub fn retry_on<'p, 's, S, F, O>(
    policy: &'p Policy,
    state: &'s mut S,
    operation: F,
) -> Retry<'p, Async<OnState<'s, S, F, O>>>
where
    F: for<'a> FnMut(&'a mut S, Attempt) -> BoxFuture<'a, O>,
{
    let operation = Async::new(OnState {
        state,
        operation,
        outcome: PhantomData,
    });
    Retry::new(policy, operation, DefaultClock::default())
}

/// The extension form of [`retry`]: `operation.retry(&policy).await`.
///
/// ```
/// use relent::{Policy, RetryExt};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// # async fn fetch() -> Result<&'static str, std::io::Error> { Ok("answer") }
/// assert_eq!(fetch.retry(Policy::STANDARD).await.unwrap(), "answer");
/// # }
/// ```
pub trait RetryExt<Fut: Future>: FnMut() -> Fut + Sized {
    /// See [`retry`].
    #[inline]
    fn retry(self, policy: &Policy) -> Retry<'_, Async<Plain<Self>>> {
        retry(policy, self)
    }
}

impl<F: FnMut() -> Fut, Fut: Future> RetryExt<Fut> for F {}

pin_project! {
    /// An operation with its retry settings, made by [`retry`] and its siblings. It is a future:
    /// await, spawn or join it. End the blocking and borrowing forms with `run`.
    ///
    /// The classification of outcomes ([`when`](Self::when), [`classify`](Self::classify),
    /// [`classify_outcome`](Self::classify_outcome),
    /// [`classify_by_error`](Self::classify_by_error)) is set once, before
    /// [`notify`](Self::notify), whose closure receives the error.
    ///
    /// The call starts when it is first polled. Dropping it at any point leaves budget and session
    /// consistent. A poll after completion does not run the operation again.
    #[must_use = "nothing is attempted until it is awaited or run"]
    pub struct Retry<'p, O, C = AnyError, K = DefaultClock>
    where
        O: Operation,
        K: Clock,
    {
        pub(crate) operation: O,
        pub(crate) classify: C,
        pub(crate) driver: Driver<'p, K>,
        // The outcome of the last attempt that failed by itself.
        pub(crate) last: Option<O::Outcome>,
        // One timer for waits and attempt limits, created at its first use and reused.
        pub(crate) timer: Timer<K>,
        #[pin]
        pub(crate) state: State<O::Future, O::Outcome, K>,
        // Not `Unpin`: once polled, a call cannot be moved, so no setting can change.
        #[pin]
        pinned: PhantomPinned,
    }
}

impl<'p, O: Operation, K: Clock> Retry<'p, O, AnyError, K> {
    #[inline]
    pub(crate) fn new(policy: &'p Policy, operation: O, clock: K) -> Self {
        Self::with(operation, AnyError, Driver::builder(policy, clock).start())
    }
}

impl<'p, O: Operation, C, K: Clock> Retry<'p, O, C, K> {
    /// A call that has not started.
    #[inline]
    const fn with(operation: O, classify: C, driver: Driver<'p, K>) -> Self {
        Self {
            operation,
            classify,
            driver,
            last: None,
            timer: Timer::new(),
            state: State::Ready,
            pinned: PhantomPinned,
        }
    }

    /// Changes the settings of the driver.
    #[inline]
    fn set<K2: Clock>(
        self,
        change: impl FnOnce(DriverBuilder<'p, K>) -> DriverBuilder<'p, K2>,
    ) -> Retry<'p, O, C, K2> {
        let driver = change(DriverBuilder(self.driver)).start();
        Retry::with(self.operation, self.classify, driver)
    }

    /// Uses this destination and its policy.
    #[inline]
    pub(crate) fn by_destination(mut self, destination: &'p Destination) -> Self {
        self.driver.set_by_destination(destination);
        self
    }

    /// The parts of a call that a form without a future runs.
    #[inline]
    pub(crate) fn into_parts(self) -> (O, C, Driver<'p, K>) {
        (self.operation, self.classify, self.driver)
    }
}

impl Destination {
    /// Calls `operation` until it succeeds or the policy of this destination gives up. This is
    /// [`retry`](crate::retry()) with this destination and its policy. The call uses the policy that
    /// is set now, also if the policy changes later, and at another
    /// [`destination`](Retry::destination).
    ///
    /// ```
    /// use relent::{Destination, Policy};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// # async fn fetch() -> Result<&'static str, std::io::Error> { Ok("answer") }
    /// let orders = Destination::new(Policy::STANDARD);
    /// assert_eq!(orders.retry(fetch).await.unwrap(), "answer");
    /// # }
    /// ```
    pub fn retry<F, Fut>(&self, operation: F) -> Retry<'_, Async<Plain<F>>>
    where
        F: FnMut() -> Fut,
        Fut: AttemptFuture,
    {
        retry(Policy::STANDARD, operation).by_destination(self)
    }

    /// Like [`retry`](Self::retry), for an operation that needs the number of the attempt and the
    /// time left for it; see [`retry_with`].
    pub fn retry_with<F, Fut>(&self, operation: F) -> Retry<'_, Async<WithAttempt<F>>>
    where
        F: FnMut(Attempt) -> Fut,
        Fut: AttemptFuture,
    {
        retry_with(Policy::STANDARD, operation).by_destination(self)
    }

    /// Like [`retry`](Self::retry), for an async closure that uses captured `&mut` state; see
    /// [`retry_mut`].
    pub fn retry_mut<F, O>(&self, operation: F) -> Retry<'_, Async<Borrowing<F, O>>>
    where
        F: AsyncFnMut(Attempt) -> O,
    {
        retry_mut(Policy::STANDARD, operation).by_destination(self)
    }
}

impl<'p, O: Operation, K: Clock> Retry<'p, O, AnyError, K> {
    /// Retries only errors for which `retryable` returns `true`; others are permanent and stop
    /// immediately.
    ///
    /// ```
    /// use std::io;
    /// use relent::{Policy, StopReason, blocking};
    ///
    /// let result = blocking::retry(Policy::PATIENT, || std::fs::read("/nowhere"))
    ///     .when(|error: &io::Error| error.kind() == io::ErrorKind::Interrupted)
    ///     .run();
    /// assert_eq!(result.unwrap_err().reason(), StopReason::Permanent);
    /// ```
    #[inline]
    pub fn when<T, E, F>(
        self,
        mut retryable: F,
    ) -> Retry<'p, O, ByError<impl FnMut(&E) -> Failure>, K>
    where
        O: Operation<Outcome = Result<T, E>>,
        F: FnMut(&E) -> bool,
    {
        self.classify(move |error: &E| match retryable(error) {
            true => Failure::ambiguous(),
            false => Failure::permanent(),
        })
    }

    /// Classifies each error as a failure kind, with a cause and a server hint if known.
    ///
    /// ```
    /// use std::time::Duration;
    /// use relent::{Failure, Hint, Policy, VirtualClock, blocking};
    ///
    /// let clock = VirtualClock::new();
    /// let _ = blocking::retry(Policy::STANDARD, || Err::<(), _>("quota, come back in 2 s"))
    ///     .classify(|_: &&str| Failure::throttled().hint(Hint::after(Duration::from_secs(2))))
    ///     .clock(&clock)
    ///     .run();
    /// assert!(clock.sleeps().iter().all(|wait| *wait >= Duration::from_secs(2)));
    /// ```
    #[inline]
    pub fn classify<T, E, F>(self, classify: F) -> Retry<'p, O, ByError<F>, K>
    where
        O: Operation<Outcome = Result<T, E>>,
        F: FnMut(&E) -> Failure,
    {
        self.classify_with(ByError(classify))
    }

    /// Classifies the whole outcome, of any type: `None` is a success, `Some` a failure. An `Ok`
    /// value can therefore be retried. The result carries the unchanged outcome: in `Ok` for a
    /// success, in the [`GaveUp`](crate::GaveUp) otherwise.
    ///
    /// ```
    /// use relent::{Failure, Policy, VirtualClock, blocking};
    ///
    /// let mut stock = 0;
    /// let taken = blocking::retry(Policy::STANDARD, || { stock += 1; stock })
    ///     .classify_outcome(|stock| (*stock < 2).then(Failure::ambiguous))
    ///     .clock(VirtualClock::new())
    ///     .run();
    /// assert_eq!(taken.unwrap(), 2);
    /// ```
    #[inline]
    pub fn classify_outcome<F>(self, classify: F) -> Retry<'p, O, ByOutcome<F>, K>
    where
        F: FnMut(&O::Outcome) -> Option<Failure>,
    {
        self.classify_with(ByOutcome(classify))
    }

    /// Retries by the classification that each error carries itself; see
    /// [`RetryableError`](crate::classify::RetryableError).
    #[inline]
    pub fn classify_by_error(self) -> Retry<'p, O, ByRetryableError, K>
    where
        ByRetryableError: Classify<O::Outcome>,
    {
        self.classify_with(ByRetryableError)
    }

    /// Classifies outcomes with your own [`Classify`].
    #[inline]
    pub fn classify_with<C: Classify<O::Outcome>>(self, classify: C) -> Retry<'p, O, C, K> {
        Retry::with(self.operation, classify, self.driver)
    }
}

impl<'p, O: Operation, C, K: Clock> Retry<'p, O, C, K> {
    /// Calls `notify` for each failure before the wait that follows, but not for the last failure. Also
    /// calls it when an attempt is queued at its destination, with the control that queues it and the
    /// longest wait. Earlier hooks are called first.
    ///
    /// ```
    /// use relent::{Policy, VirtualClock, blocking};
    ///
    /// let mut lines = Vec::new();
    /// let _ = blocking::retry(Policy::STANDARD, || Err::<(), _>("refused"))
    ///     .notify(|notice| lines.push(notice.to_string()))
    ///     .clock(VirtualClock::new())
    ///     .run();
    /// assert_eq!(lines.len(), 7);
    /// assert!(lines[0].starts_with("attempt 1 failed: refused; next in "));
    /// ```
    #[inline]
    pub fn notify<F>(self, notify: F) -> Retry<'p, O, Hooked<C, Notify<F>>, K>
    where
        C: Classify<O::Outcome>,
        F: FnMut(&Notice<'_, C::Last>),
    {
        self.hook(Notify(notify))
    }

    /// Calls your own [`Hook`] for each failure, after the hooks that were set before.
    #[inline]
    pub fn hook<H>(self, hook: H) -> Retry<'p, O, Hooked<C, H>, K>
    where
        C: Classify<O::Outcome>,
        H: Hook<C::Last>,
    {
        let classify = Hooked {
            classify: self.classify,
            hook,
        };
        Retry::with(self.operation, classify, self.driver)
    }

    /// Sends the attempts to this destination, which its callers share. Retries are paid from its
    /// budget, and its cooldown is observed. While it is down, the circuit breaker queues requests,
    /// first attempts included ([`CircuitBreaker`](crate::destination::CircuitBreaker)). A request whose limits end
    /// while it is queued gives up with [`StopReason::CircuitBreaker`](crate::StopReason::CircuitBreaker). If it was
    /// never attempted, there is no last error.
    ///
    /// ```
    /// use relent::{Destination, Policy, StopReason, VirtualClock, blocking};
    ///
    /// let policy = Policy::STANDARD.clone().into_builder().no_circuit_breaker().build()?;
    /// let there = Destination::new(&policy);
    /// let reasons: Vec<_> = (0..10)
    ///     .map(|_| {
    ///         blocking::retry(&policy, || Err::<(), _>("down"))
    ///             .destination(&there)
    ///             .clock(VirtualClock::new())
    ///             .run()
    ///             .unwrap_err()
    ///             .reason()
    ///     })
    ///     .collect();
    /// assert_eq!(reasons[0], StopReason::RetriesExhausted);
    /// assert_eq!(reasons[9], StopReason::Budget);
    /// # Ok::<(), relent::policy::PolicyError>(())
    /// ```
    #[inline]
    pub fn destination(self, destination: &'p Destination) -> Self {
        self.maybe_destination(Some(destination))
    }

    /// Like [`destination`](Self::destination), for code that may have none.
    ///
    /// ```
    /// use relent::{Destination, Policy, blocking};
    ///
    /// fn answer(shared: Option<&Destination>) -> Result<u32, relent::GaveUp<std::io::Error>> {
    ///     blocking::retry(Policy::STANDARD, || Ok(42)).maybe_destination(shared).run()
    /// }
    /// assert_eq!(answer(None)?, 42);
    /// assert_eq!(answer(Some(&Destination::new(Policy::STANDARD)))?, 42);
    /// # Ok::<(), relent::GaveUp<std::io::Error>>(())
    /// ```
    #[inline]
    pub fn maybe_destination(mut self, destination: Option<&'p Destination>) -> Self {
        self.driver.set_destination(destination);
        self
    }

    /// Keeps a [`Trace`](crate::trace::Trace) of every attempt for the result.
    ///
    /// An attempt has the cause that the classification knows, such as a status or a timeout. The trace is
    /// plain data without errors, so an error of your own is only "failed" there. The result displays the
    /// last error, and [`notify`](Self::notify) gets each one.
    #[inline]
    pub fn traced(self) -> Self {
        self.set(DriverBuilder::traced)
    }

    /// Takes the delays from an iterator in place of the policy's backoff. Jitter, cap, hints and
    /// limits of the policy still apply. When the iterator ends, there are no more retries.
    #[inline]
    pub fn waits(self, waits: impl Iterator<Item = Duration> + Send + 'p) -> Self {
        self.set(|settings| settings.waits(waits))
    }

    /// Seeds the random source: the same seed gives the same waits.
    #[inline]
    pub fn seed(self, seed: u64) -> Self {
        self.set(|settings| settings.seed(seed))
    }

    /// Uses this random source, such as [`FixedRandom::at(0.5)`](crate::random::FixedRandom::at).
    #[inline]
    pub fn random(self, random: impl Random + Send + 'p) -> Self {
        self.set(|settings| settings.random(random))
    }

    /// Uses this clock for time and waits, such as a [`VirtualClock`](crate::VirtualClock).
    #[inline]
    pub fn clock<K2: Clock>(self, clock: K2) -> Retry<'p, O, C, K2> {
        self.set(|settings| settings.clock(clock))
    }
}

impl<'p, O: Operation, X: Interrupt, C, K: Clock> Retry<'p, Async<O, X>, C, K> {
    /// Gives up as soon as `signal` completes, during a wait or during an attempt, which is
    /// dropped. Asynchronous forms only. With `tokio-util`: `.cancel_on(token.cancelled())`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use relent::{Policy, StopReason, retry};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let gave_up = retry(Policy::PATIENT, || async { Err::<(), _>("down") })
    ///     .cancel_on(tokio::time::sleep(Duration::from_millis(1)))
    ///     .await
    ///     .unwrap_err();
    /// assert_eq!(gave_up.reason(), StopReason::Cancelled);
    /// # }
    /// ```
    #[inline]
    #[allow(
        clippy::type_complexity,
        reason = "it is the type of this call with one interrupt more"
    )]
    pub fn cancel_on<S: Future>(
        self,
        signal: S,
    ) -> Retry<'p, Async<O, Both<X, CancelOn<S>>>, C, K> {
        self.interrupt(CancelOn::new(signal))
    }

    /// Restarts the backoff, and shortens a running wait to the first delay, whenever
    /// [`Activity::notify`] is called. Asynchronous forms only. It never delays the next attempt,
    /// and it does not shorten a wait that the server asked for.
    #[inline]
    pub fn activity(self, activity: &Activity) -> Retry<'p, Async<O, Both<X, OnActivity>>, C, K> {
        self.interrupt(OnActivity::new(activity))
    }

    fn interrupt<X2>(self, second: X2) -> Retry<'p, Async<O, Both<X, X2>>, C, K> {
        let Async {
            operation,
            interrupt: first,
        } = self.operation;
        let operation = Async {
            operation,
            interrupt: Both { first, second },
        };
        Retry::with(operation, self.classify, self.driver)
    }
}

impl<O: Operation, C, K: Clock> fmt::Debug for Retry<'_, O, C, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retry")
            .field("driver", &self.driver)
            .finish_non_exhaustive()
    }
}
