//! Interrupts of a wait or an attempt: cancellation, and activity.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

/// The request of an [`Interrupt`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interruption {
    /// Give up now.
    Cancel,
    /// Restart the backoff.
    Reset,
}

/// A source of interrupts for waits and attempts; made by
/// [`Retry::cancel_on`](crate::Retry::cancel_on) and [`Retry::activity`](crate::Retry::activity).
pub trait Interrupt {
    /// Whether it may ever request a [`Reset`](Interruption::Reset). If not, the loop need not read
    /// the clock for a wait.
    const MAY_RESET: bool = true;

    /// Polls for an interruption; wakes the task when there is one.
    fn poll_interrupt(&mut self, context: &mut Context<'_>) -> Poll<Interruption>;
}

impl Interrupt for () {
    const MAY_RESET: bool = false;

    #[inline]
    fn poll_interrupt(&mut self, _: &mut Context<'_>) -> Poll<Interruption> {
        Poll::Pending
    }
}

/// Cancels when its future completes.
#[derive(Debug)]
pub struct CancelOn<S> {
    /// `None` once it has completed. Boxed, because a setting moves the
    /// call, and this future may not move once it is polled.
    signal: Option<Pin<Box<S>>>,
}

impl<S> CancelOn<S> {
    pub(crate) fn new(signal: S) -> Self {
        Self {
            signal: Some(Box::pin(signal)),
        }
    }
}

impl<S: Future> Interrupt for CancelOn<S> {
    const MAY_RESET: bool = false;

    fn poll_interrupt(&mut self, context: &mut Context<'_>) -> Poll<Interruption> {
        if let Some(signal) = &mut self.signal {
            ready!(signal.as_mut().poll(context));
        }
        self.signal = None;
        Poll::Ready(Interruption::Cancel)
    }
}

/// Notifies waiting polls that the user has returned. Clones share one state.
///
/// ```
/// let activity = relent::Activity::new();
/// activity.notify(); // without a waiter: no effect
/// ```
#[derive(Clone, Default)]
pub struct Activity {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    touches: AtomicU64,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    next: u64,
    wakers: Vec<(u64, Waker)>,
}

impl Activity {
    /// A new signal.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Notifies every session that watches this signal: its backoff restarts.
    pub fn notify(&self) {
        self.shared.touches.fetch_add(1, Ordering::Release);
        let wakers = std::mem::take(&mut self.waiting().wakers);
        for (_, waker) in wakers {
            waker.wake();
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.shared
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Activity")
            .field("touches", &self.shared.touches.load(Ordering::Relaxed))
            .finish()
    }
}

/// Watches an [`Activity`].
#[derive(Debug)]
pub struct OnActivity {
    activity: Activity,
    id: u64,
    seen: u64,
}

impl OnActivity {
    pub(crate) fn new(activity: &Activity) -> Self {
        let seen = activity.shared.touches.load(Ordering::Acquire);
        let id = {
            let mut waiting = activity.waiting();
            waiting.next += 1;
            waiting.next
        };
        Self {
            activity: activity.clone(),
            id,
            seen,
        }
    }

    fn changed(&mut self) -> bool {
        let touches = self.activity.shared.touches.load(Ordering::Acquire);
        std::mem::replace(&mut self.seen, touches) != touches
    }
}

impl Interrupt for OnActivity {
    fn poll_interrupt(&mut self, context: &mut Context<'_>) -> Poll<Interruption> {
        if self.changed() {
            return Poll::Ready(Interruption::Reset);
        }
        {
            let mut waiting = self.activity.waiting();
            match waiting.wakers.iter_mut().find(|(id, _)| *id == self.id) {
                Some((_, waker)) => waker.clone_from(context.waker()),
                None => waiting.wakers.push((self.id, context.waker().clone())),
            }
        }
        // Check again after the waker is registered, or a touch in between would be missed.
        if self.changed() {
            Poll::Ready(Interruption::Reset)
        } else {
            Poll::Pending
        }
    }
}

impl Drop for OnActivity {
    fn drop(&mut self) {
        let id = self.id;
        self.activity
            .waiting()
            .wakers
            .retain(|(waiting, _)| *waiting != id);
    }
}

/// Two interrupts; the one that was added first takes precedence.
#[derive(Debug)]
pub struct Both<A, B> {
    pub(crate) first: A,
    pub(crate) second: B,
}

impl<A: Interrupt, B: Interrupt> Interrupt for Both<A, B> {
    const MAY_RESET: bool = A::MAY_RESET || B::MAY_RESET;

    fn poll_interrupt(&mut self, context: &mut Context<'_>) -> Poll<Interruption> {
        let first = self.first.poll_interrupt(context);
        if first == Poll::Ready(Interruption::Cancel) {
            return first;
        }
        match self.second.poll_interrupt(context) {
            Poll::Pending => first,
            ready => ready,
        }
    }
}
