//! Clocks and sleepers: real ones, and a virtual one for tests.

#[cfg(all(
    feature = "tokio",
    not(all(target_arch = "wasm32", target_os = "unknown"))
))]
mod tokio;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
// The standard library's clock panics in a browser; `web_time` uses the clock of the page.
#[cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]
use std::time as system;
use std::time::{Duration, SystemTime};
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use web_time as system;

use pin_project_lite::pin_project;
pub use relent_core::Instant;

#[cfg(all(
    feature = "tokio",
    not(all(target_arch = "wasm32", target_os = "unknown"))
))]
pub use self::tokio::TokioClock;

/// A clock that reads the time.
///
/// Pass another one to [`Retry::clock`](crate::Retry::clock) to replace the real one.
pub trait Clock {
    /// The future of a wait, if this clock is a [`Sleeper`]; `()` if it cannot wait in async code.
    type Sleep
    where
        Self: Sized;

    /// The current instant of a monotonic clock. It may stand still or jump while the machine
    /// sleeps; for the consequences see *clocks* in `docs/spec/rules.md`, 13.
    fn now(&self) -> Instant;

    /// The current wall-clock time, used only for display and for HTTP dates.
    fn wall(&self) -> SystemTime {
        wall()
    }
}

#[cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]
fn wall() -> SystemTime {
    SystemTime::now()
}

#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
fn wall() -> SystemTime {
    web_time::web::SystemTimeExt::to_std(web_time::SystemTime::now())
}

/// A clock that can wait without blocking the thread.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot wait in async code",
    note = "enable the feature `tokio` of `relent`, or pass a sleeper with `.clock(..)`, \
            such as another runtime's timer: `.clock(relent::clock::SleepBy(smol::Timer::after))`"
)]
pub trait Sleeper: Sized + Clock<Sleep: Future<Output = ()>> {
    /// Waits for `duration` from now.
    fn sleep(&self, duration: Duration) -> Self::Sleep;

    /// Waits until this instant of this clock; returns immediately if it has passed. Override it if
    /// the timer takes an instant: then the clock is not read.
    fn sleep_until(&self, until: Instant) -> Self::Sleep {
        self.sleep(until.saturating_since(self.now()))
    }
}

/// A clock that can wait by blocking the thread.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot wait by blocking the thread",
    note = "leave out `.clock(..)`, or pass a clock that blocks, such as `StdClock`"
)]
pub trait BlockingSleeper: Clock {
    /// Waits for `duration` from now. Returns `false` if the wait was cancelled, which ends the
    /// session.
    fn block(&self, duration: Duration) -> bool;

    /// Waits at a [`Destination`](crate::Destination) for at most `duration`. The destination
    /// [unparks](std::thread::Thread::unpark) the thread when its turn comes; spurious returns are
    /// allowed. The default implementation checks every 100 ms.
    fn park(&self, duration: Duration) -> bool {
        self.block(duration.min(Duration::from_millis(100)))
    }

    /// Whether waits are cancelled. Called before each attempt.
    fn is_cancelled(&self) -> bool {
        false
    }
}

impl<K: Clock> Clock for &K {
    type Sleep = K::Sleep;

    fn now(&self) -> Instant {
        (**self).now()
    }

    fn wall(&self) -> SystemTime {
        (**self).wall()
    }
}

impl<K: Sleeper> Sleeper for &K {
    fn sleep(&self, duration: Duration) -> K::Sleep {
        (**self).sleep(duration)
    }

    fn sleep_until(&self, until: Instant) -> K::Sleep {
        (**self).sleep_until(until)
    }
}

impl<K: BlockingSleeper> BlockingSleeper for &K {
    fn block(&self, duration: Duration) -> bool {
        (**self).block(duration)
    }

    fn park(&self, duration: Duration) -> bool {
        (**self).park(duration)
    }

    fn is_cancelled(&self) -> bool {
        (**self).is_cancelled()
    }
}

/// The monotonic clock of the standard library, or of the page in a browser. It waits by blocking
/// the thread, which is not possible in a browser.
#[derive(Clone, Copy, Debug, Default)]
pub struct StdClock;

impl Clock for StdClock {
    type Sleep = ();

    fn now(&self) -> Instant {
        to_core_instant(system::Instant::now())
    }
}

#[cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]
impl BlockingSleeper for StdClock {
    fn block(&self, duration: Duration) -> bool {
        std::thread::sleep(duration);
        true
    }

    fn park(&self, duration: Duration) -> bool {
        std::thread::park_timeout(duration);
        true
    }
}

/// A sleeper over another runtime's timer: a closure that makes a future for each wait. The output
/// of the future is ignored. The time is read from [`StdClock`].
///
/// ```
/// use relent::clock::SleepBy;
/// use relent::{Policy, retry};
///
/// let answer = smol::block_on(async {
///     retry(Policy::STANDARD, async || Ok::<_, std::io::Error>(42))
///         .clock(SleepBy(smol::Timer::after))
///         .await
/// });
/// assert_eq!(answer.unwrap(), 42);
/// ```
#[derive(Clone, Copy)]
pub struct SleepBy<F>(pub F);

impl<F: Fn(Duration) -> Fut, Fut: Future> Clock for SleepBy<F> {
    type Sleep = Slept<Fut>;

    fn now(&self) -> Instant {
        StdClock.now()
    }
}

impl<F: Fn(Duration) -> Fut, Fut: Future> Sleeper for SleepBy<F> {
    fn sleep(&self, duration: Duration) -> Slept<Fut> {
        Slept {
            timer: (self.0)(duration),
        }
    }
}

impl<F> fmt::Debug for SleepBy<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SleepBy")
    }
}

pin_project! {
    /// A wait of a [`SleepBy`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless awaited"]
    pub struct Slept<Fut> {
        #[pin]
        timer: Fut,
    }
}

impl<Fut: Future> Future for Slept<Fut> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.project().timer.poll(context).map(drop)
    }
}

/// The first instant that was converted, as the reference point of the conversion. It is placed 36
/// years after the core's origin, so that earlier instants of paused clocks stay distinct.
static FIRST_INSTANT: OnceLock<system::Instant> = OnceLock::new();
const FIRST_INSTANT_ON_CORE_TIME_LINE: Instant = Instant::from_nanos(1 << 60);

/// Converts an instant of the standard library to the core's time line.
fn to_core_instant(now: system::Instant) -> Instant {
    if let Some(first) = FIRST_INSTANT.get()
        && let Some(after) = now.checked_duration_since(*first)
        && after.as_secs() < FAST_PATH_SECS
    {
        let nanos = after.as_secs() * 1_000_000_000 + u64::from(after.subsec_nanos());
        return Instant::from_nanos(FIRST_INSTANT_ON_CORE_TIME_LINE.as_nanos() + nanos);
    }
    to_core_instant_slow(now)
}

/// Seconds (about 270 years) up to which the sum cannot overflow.
const FAST_PATH_SECS: u64 = 1 << 33;

/// The slow path: the first conversion, and instants far from the first or before it.
#[cold]
#[inline(never)]
fn to_core_instant_slow(now: system::Instant) -> Instant {
    let first = *FIRST_INSTANT.get_or_init(|| now);
    match now.checked_duration_since(first) {
        Some(after) => FIRST_INSTANT_ON_CORE_TIME_LINE.saturating_add(after),
        None => {
            let since_origin = FIRST_INSTANT_ON_CORE_TIME_LINE.saturating_since(Instant::ORIGIN);
            Instant::ORIGIN.saturating_add(since_origin.saturating_sub(first.duration_since(now)))
        }
    }
}

/// Converts back. `None` if nothing was converted yet, or if the result is out of range.
#[cfg(all(
    feature = "tokio",
    not(all(target_arch = "wasm32", target_os = "unknown"))
))]
fn from_core_instant(at: Instant) -> Option<system::Instant> {
    let first = *FIRST_INSTANT.get()?;
    if at >= FIRST_INSTANT_ON_CORE_TIME_LINE {
        first.checked_add(at.saturating_since(FIRST_INSTANT_ON_CORE_TIME_LINE))
    } else {
        first.checked_sub(FIRST_INSTANT_ON_CORE_TIME_LINE.saturating_since(at))
    }
}

/// A clock for tests: sleeping takes no time, advances the clock, and is recorded.
///
/// Clones share the time. Only one task may sleep at a time. For several tasks use tokio's paused
/// time, which [`TokioClock`] follows.
///
/// ```
/// use std::time::Duration;
/// use relent::{Backoff, Jitter, Policy, VirtualClock, blocking};
///
/// let policy = Policy::builder(Backoff::exponential(Duration::from_secs(60)))
///     .jitter(Jitter::None)
///     .build()?;
/// let clock = VirtualClock::new();
/// let result = blocking::retry(&policy, || Err::<(), _>("down")).clock(&clock).run();
/// assert!(result.is_err());
/// assert_eq!(clock.sleeps(), [60, 60, 60].map(Duration::from_secs));
/// # Ok::<(), relent::policy::PolicyError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct VirtualClock {
    state: Arc<Mutex<VirtualState>>,
}

#[derive(Debug, Default)]
struct VirtualState {
    now: Duration,
    sleeps: Vec<Duration>,
}

impl VirtualClock {
    /// Creates a clock at its origin.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Advances the time, as if the operation had taken this long.
    pub fn advance(&self, duration: Duration) {
        let mut state = self.lock();
        state.now = state.now.saturating_add(duration);
    }

    /// The time since the origin.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.lock().now
    }

    /// All waits so far.
    #[must_use]
    pub fn sleeps(&self) -> Vec<Duration> {
        self.lock().sleeps.clone()
    }

    fn lock(&self) -> MutexGuard<'_, VirtualState> {
        // The state is valid after every statement, so a poisoned lock is safe to use.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for VirtualClock {
    type Sleep = VirtualSleep;

    fn now(&self) -> Instant {
        Instant::ORIGIN.saturating_add(self.elapsed())
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
            .checked_add(self.elapsed())
            .unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

impl Sleeper for VirtualClock {
    fn sleep(&self, duration: Duration) -> VirtualSleep {
        VirtualSleep {
            clock: self.clone(),
            duration: Some(duration),
        }
    }
}

/// A wait of a [`VirtualClock`]. The time advances when it is polled, so the limit of an attempt
/// that ends by itself takes no time.
#[derive(Debug)]
pub struct VirtualSleep {
    clock: VirtualClock,
    duration: Option<Duration>,
}

impl Future for VirtualSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if let Some(duration) = self.duration.take() {
            self.clock.block(duration);
        }
        Poll::Ready(())
    }
}

impl BlockingSleeper for VirtualClock {
    fn block(&self, duration: Duration) -> bool {
        let mut state = self.lock();
        state.now = state.now.saturating_add(duration);
        state.sleeps.push(duration);
        true
    }

    fn park(&self, duration: Duration) -> bool {
        self.block(duration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_before_the_first_call_keep_their_distance() {
        let now = std::time::Instant::now();
        let placed = to_core_instant(now);
        let Some(earlier) = now.checked_sub(Duration::from_secs(5)) else {
            return;
        };
        let before = to_core_instant(earlier);
        assert_eq!(placed.saturating_since(before), Duration::from_secs(5));
        assert_eq!(from_core_instant(placed), Some(now));
        assert_eq!(from_core_instant(before), Some(earlier));
    }
}
