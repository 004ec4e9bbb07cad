//! A clock that a script advances, and that cancels waits at a time of the script.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use relent::clock::{BlockingSleeper, Clock, Instant, Sleeper};

/// Clones share one state.
#[derive(Clone, Default)]
pub struct Scripted(Rc<State>);

#[derive(Default)]
struct State {
    now: Cell<Duration>,
    cancel_at: Cell<Option<Duration>>,
    /// The earliest end of a running sleep.
    next: Cell<Option<Duration>>,
}

impl Scripted {
    pub fn new(cancel_at: Option<Duration>) -> Self {
        let clock = Self::default();
        // Not at the origin, so that earlier instants exist.
        clock.0.now.set(Duration::from_secs(1000));
        clock
            .0
            .cancel_at
            .set(cancel_at.map(|at| at + clock.0.now.get()));
        clock
    }

    pub fn advance(&self, time: Duration) {
        self.0.now.set(self.0.now.get() + time);
    }

    pub fn since_start(&self) -> Duration {
        self.0.now.get() - Duration::from_secs(1000)
    }

    /// Whether the caller has cancelled.
    pub fn is_over(&self) -> bool {
        let at = self.0.cancel_at.get();
        at.is_some_and(|at| at <= self.0.now.get())
    }

    /// Waits, at most until the caller cancels. Returns whether it has not cancelled.
    fn wait(&self, time: Duration) -> bool {
        let until = self.0.now.get() + time;
        match self.0.cancel_at.get() {
            Some(at) if at <= until => {
                self.0.now.set(at.max(self.0.now.get()));
                false
            }
            _ => {
                self.0.now.set(until);
                true
            }
        }
    }

    /// Advances to the end of the earliest sleep.
    pub fn skip(&self) {
        if let Some(next) = self.0.next.take() {
            self.wait(next.saturating_sub(self.0.now.get()));
        }
    }

    /// Completes when the caller cancels.
    pub async fn gone(self) {
        std::future::poll_fn(|_| match self.is_over() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }
}

impl Clock for Scripted {
    type Sleep = ScriptedSleep;

    fn now(&self) -> Instant {
        Instant::ORIGIN.saturating_add(self.0.now.get())
    }
}

impl BlockingSleeper for Scripted {
    fn block(&self, duration: Duration) -> bool {
        self.wait(duration)
    }

    fn park(&self, duration: Duration) -> bool {
        self.wait(duration)
    }

    fn is_cancelled(&self) -> bool {
        self.is_over()
    }
}

/// A sleep until a time.
pub struct ScriptedSleep {
    clock: Scripted,
    until: Duration,
}

impl Future for ScriptedSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        let state = &self.clock.0;
        if self.until <= state.now.get() {
            return Poll::Ready(());
        }
        let next = state.next.get().unwrap_or(self.until);
        state.next.set(Some(next.min(self.until)));
        Poll::Pending
    }
}

impl Sleeper for Scripted {
    fn sleep(&self, duration: Duration) -> ScriptedSleep {
        ScriptedSleep {
            clock: self.clone(),
            until: self.0.now.get() + duration,
        }
    }
}
