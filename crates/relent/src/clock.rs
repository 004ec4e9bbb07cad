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
// The standard library's clock panics in a browser; this is the page's.
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

/// Tells the time.
///
/// Give another to [`Retry::clock`](crate::Retry::clock) to run without the real one.
pub trait Clock {
    /// Now, on a time line that never steps back. It may stand still or jump while the machine sleeps: what
    /// follows is said in `docs/rules.md`, 13.
    fn now(&self) -> Instant;

    /// Now, on the wall: only for showing an instant to people and for HTTP dates.
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
pub trait Sleeper: Clock {
    /// The future that waits.
    type Sleep: Future<Output = ()>;

    /// Waits for `duration`, counted from now.
    fn sleep(&self, duration: Duration) -> Self::Sleep;

    /// Waits until this instant of its own; not at all if it has passed. A clock whose timers take an
    /// instant need not be read for it.
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
    /// Waits for `duration`, counted from now; `false` if the wait was cancelled, which ends the
    /// session.
    fn block(&self, duration: Duration) -> bool;

    /// The same for a thread that waits at a [`Destination`](crate::Destination): it is
    /// [unparked](std::thread::Thread::unpark) when its turn comes, and may return early for no reason.
    /// Unless it is implemented, the thread looks every 100 ms.
    fn park(&self, duration: Duration) -> bool {
        self.block(duration.min(Duration::from_millis(100)))
    }

    /// Whether waits are cancelled: asked before each attempt.
    fn is_cancelled(&self) -> bool {
        false
    }
}

impl<K: Clock + ?Sized> Clock for &K {
    fn now(&self) -> Instant {
        (**self).now()
    }

    fn wall(&self) -> SystemTime {
        (**self).wall()
    }
}

impl<K: Sleeper + ?Sized> Sleeper for &K {
    type Sleep = K::Sleep;

    fn sleep(&self, duration: Duration) -> K::Sleep {
        (**self).sleep(duration)
    }

    fn sleep_until(&self, until: Instant) -> K::Sleep {
        (**self).sleep_until(until)
    }
}

impl<K: BlockingSleeper + ?Sized> BlockingSleeper for &K {
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

/// The monotonic clock of the standard library, or of the page in a browser; waits by blocking the thread,
/// which a browser cannot.
#[derive(Clone, Copy, Debug, Default)]
pub struct StdClock;

impl Clock for StdClock {
    fn now(&self) -> Instant {
        on_time_line(system::Instant::now())
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

/// Waits by another runtime's timer: a closure that makes a future for a wait, whatever that future
/// returns. The time is that of [`StdClock`].
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

impl<F> Clock for SleepBy<F> {
    fn now(&self) -> Instant {
        StdClock.now()
    }
}

impl<F: Fn(Duration) -> Fut, Fut: Future> Sleeper for SleepBy<F> {
    type Sleep = Slept<Fut>;

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
    /// A wait by a [`SleepBy`].
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

/// The first instant that was placed on the core's time line, and where: the origin lies 36 years
/// before it, so that paused clocks that stand earlier are still told apart.
static FIRST: OnceLock<system::Instant> = OnceLock::new();
const PLACE_OF_FIRST: Instant = Instant::from_nanos(1 << 60);

/// Places an instant of the standard library on the core's time line.
fn on_time_line(now: system::Instant) -> Instant {
    if let Some(first) = FIRST.get()
        && let Some(after) = now.checked_duration_since(*first)
        && after.as_secs() < SOON
    {
        let nanos = after.as_secs() * 1_000_000_000 + u64::from(after.subsec_nanos());
        return Instant::from_nanos(PLACE_OF_FIRST.as_nanos() + nanos);
    }
    on_whole_time_line(now)
}

/// In seconds; what comes within 270 years need not saturate.
const SOON: u64 = 1 << 33;

/// The same for the first, and for one far from it.
#[cold]
#[inline(never)]
fn on_whole_time_line(now: system::Instant) -> Instant {
    let first = *FIRST.get_or_init(|| now);
    match now.checked_duration_since(first) {
        Some(after) => PLACE_OF_FIRST.saturating_add(after),
        None => {
            let since_origin = PLACE_OF_FIRST.saturating_since(Instant::ORIGIN);
            Instant::ORIGIN.saturating_add(since_origin.saturating_sub(first.duration_since(now)))
        }
    }
}

/// The other way round; `None` if nothing was placed yet, or the standard library reaches less far.
#[cfg(all(
    feature = "tokio",
    not(all(target_arch = "wasm32", target_os = "unknown"))
))]
fn off_time_line(at: Instant) -> Option<system::Instant> {
    let first = *FIRST.get()?;
    if at >= PLACE_OF_FIRST {
        first.checked_add(at.saturating_since(PLACE_OF_FIRST))
    } else {
        first.checked_sub(PLACE_OF_FIRST.saturating_since(at))
    }
}

/// A clock for tests: sleeping takes no time, moves the clock, and is written down.
///
/// Clones share the time. One task sleeps at a time; for several at once use tokio's paused time,
/// which [`TokioClock`] follows.
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
    /// A clock that stands at its origin.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the time forward, as if the operation had taken this long.
    pub fn advance(&self, duration: Duration) {
        let mut state = self.lock();
        state.now = state.now.saturating_add(duration);
    }

    /// The time since the origin.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.lock().now
    }

    /// Every wait so far.
    #[must_use]
    pub fn sleeps(&self) -> Vec<Duration> {
        self.lock().sleeps.clone()
    }

    fn lock(&self) -> MutexGuard<'_, VirtualState> {
        // The state is valid after every statement, so a poisoned lock has lost nothing.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for VirtualClock {
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
    type Sleep = VirtualSleep;

    fn sleep(&self, duration: Duration) -> VirtualSleep {
        VirtualSleep {
            clock: self.clone(),
            duration: Some(duration),
        }
    }
}

/// A wait by a [`VirtualClock`]. Time moves when it is polled: the limit of an attempt that ends
/// by itself takes none.
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
        let placed = on_time_line(now);
        let Some(earlier) = now.checked_sub(Duration::from_secs(5)) else {
            return;
        };
        let before = on_time_line(earlier);
        assert_eq!(placed.saturating_since(before), Duration::from_secs(5));
        assert_eq!(off_time_line(placed), Some(now));
        assert_eq!(off_time_line(before), Some(earlier));
    }
}
