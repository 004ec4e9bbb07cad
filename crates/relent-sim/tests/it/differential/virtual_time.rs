//! An executor in virtual time: exact to the nanosecond, and in the same order on every machine.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use relent::clock::{Clock, Instant, Sleeper};

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Tasks and timers; clones share them.
#[derive(Clone, Default)]
pub(crate) struct VirtualTime(Rc<RefCell<State>>);

#[derive(Default)]
struct State {
    now: u64,
    timers: BTreeMap<(u64, u64), Waker>,
    sequence: u64,
    tasks: Vec<Option<Task>>,
    ready: Arc<Mutex<VecDeque<usize>>>,
}

struct Ready {
    task: usize,
    ready: Arc<Mutex<VecDeque<usize>>>,
}

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        let mut ready = self.ready.lock().unwrap();
        if !ready.contains(&self.task) {
            ready.push_back(self.task);
        }
    }
}

impl VirtualTime {
    pub(crate) fn nanos(&self) -> u64 {
        self.0.borrow().now
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let mut state = self.0.borrow_mut();
        let number = state.tasks.len();
        state.tasks.push(Some(Box::pin(task)));
        state.ready.lock().unwrap().push_back(number);
    }

    /// Polls ready tasks until none is left.
    pub(crate) fn run_ready(&self) {
        let ready = self.0.borrow().ready.clone();
        loop {
            let Some(number) = ready.lock().unwrap().pop_front() else {
                return;
            };
            let Some(mut task) = self.0.borrow_mut().tasks[number].take() else {
                continue;
            };
            let waker = Waker::from(Arc::new(Ready {
                task: number,
                ready: ready.clone(),
            }));
            if task
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
            {
                self.0.borrow_mut().tasks[number] = Some(task);
            }
        }
    }

    /// The time of the next timer.
    pub(crate) fn next(&self) -> Option<u64> {
        let state = self.0.borrow();
        state.timers.first_key_value().map(|((at, _), _)| *at)
    }

    /// Sets the time, and fires the next timer if it is due.
    pub(crate) fn advance(&self, now: u64) {
        let mut state = self.0.borrow_mut();
        state.now = now;
        if let Some(timer) = state
            .timers
            .first_entry()
            .filter(|timer| timer.key().0 <= now)
        {
            let waker = timer.remove();
            drop(state);
            waker.wake();
        }
    }
}

impl Clock for VirtualTime {
    type Sleep = Sleep;

    fn now(&self) -> Instant {
        Instant::from_nanos(self.nanos())
    }
}

impl Sleeper for VirtualTime {
    fn sleep(&self, duration: Duration) -> Sleep {
        let mut state = self.0.borrow_mut();
        state.sequence += 1;
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Sleep {
            key: (state.now.saturating_add(nanos), state.sequence),
            time: self.clone(),
        }
    }
}

pub(crate) struct Sleep {
    key: (u64, u64),
    time: VirtualTime,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.time.0.borrow_mut();
        if self.key.0 <= state.now {
            state.timers.remove(&self.key);
            return Poll::Ready(());
        }
        state.timers.insert(self.key, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.time.0.borrow_mut().timers.remove(&self.key);
    }
}
