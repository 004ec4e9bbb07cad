//! The executions of handlers: what they know, and who waits for them.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use relent_core::claim::Fingerprint;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use super::lease::HeldLease;
use crate::store::Key;

type Written = Pin<Box<dyn Future<Output = Result<(), CheckpointError>> + Send>>;

/// What a handler may know of the execution that it is: in the extensions of its request.
///
/// ```
/// use relent_server::idempotency::Execution;
///
/// async fn pay(request: http::Request<()>) {
///     if let Some(execution) = request.extensions().get::<Execution>() {
///         // The same for each execution of this request, so that the provider drops a duplicate too.
///         let key = execution.derived_key("charge");
///         assert_eq!(key.len(), 64);
///     }
/// }
/// ```
#[derive(Clone)]
pub struct Execution {
    held: Arc<HeldLease>,
    fence: u64,
    step: u32,
    repeated: bool,
    checkpoint: Arc<dyn Fn(u32) -> Written + Send + Sync>,
}

impl Execution {
    pub(super) fn new(
        fence: u64,
        step: u32,
        repeated: bool,
        held: Arc<HeldLease>,
        checkpoint: impl Fn(u32) -> Written + Send + Sync + 'static,
    ) -> Self {
        Self {
            held,
            fence,
            step,
            repeated,
            checkpoint: Arc::new(checkpoint),
        }
    }

    /// How often the key was claimed, this time included. It grows, so a resource that refuses a lower number
    /// than it has seen is protected from an execution that was taken for dead.
    #[must_use]
    pub const fn fence(&self) -> u64 {
        self.fence
    }

    /// Whether an execution before this one may have had an effect.
    #[must_use]
    pub const fn is_repeated(&self) -> bool {
        self.repeated
    }

    /// The last step that an execution before this one has [done](Self::checkpoint); 0 for none.
    #[must_use]
    pub const fn step(&self) -> u32 {
        self.step
    }

    /// Whether the lease is known to be lost: what has not been done yet should not be. Where the route says what
    /// happens then ([`Rerun`](relent_core::claim::Takeover::Rerun), [`Resume`](relent_core::claim::Takeover::Resume)) the
    /// handler is dropped; elsewhere it goes on, and its answer is not stored.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.held.is_lost()
    }

    /// Until the lease is known to be lost; for good, if it is not. For a handler that can stop: with
    /// `tokio::select!` beside what it waits for.
    pub async fn lost(&self) {
        self.held.lost().await;
    }

    /// A key for a request to another service, in 64 hexadecimal digits. It is the same in each execution of
    /// this request, and another for each `step`.
    #[must_use]
    pub fn derived_key(&self, step: &str) -> String {
        self.held.key.derived_key(step)
    }

    /// This step is done for good, whatever happens: an execution that
    /// [resumes](relent_core::claim::Takeover::Resume) begins after it. Steps count from 1.
    ///
    /// # Errors
    /// It is not known to be written. If the lease is lost, stop.
    pub async fn checkpoint(&self, step: u32) -> Result<(), CheckpointError> {
        (self.checkpoint)(step).await
    }
}

impl fmt::Debug for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Execution")
            .field("fence", &self.fence)
            .field("step", &self.step)
            .field("repeated", &self.repeated)
            .field("lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}

/// Why a step is not known to be written.
#[derive(Debug)]
#[non_exhaustive]
pub enum CheckpointError {
    /// Another execution has the key. Stop, and roll back what is not committed.
    Lost,
    /// The store has failed, and may have written it.
    Store(Box<dyn Error + Send + Sync>),
}

impl fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost => f.write_str("the lease of the idempotency key is lost: stop here"),
            Self::Store(error) => write!(f, "the step was not written: {error}"),
        }
    }
}

impl Error for CheckpointError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Lost => None,
            // Its text is in this one.
            Self::Store(error) => error.source(),
        }
    }
}

/// An execution whose end is written is on the list for a moment longer.
const JUST_ENDED: Duration = Duration::from_millis(100);

/// The executions of this process.
#[derive(Default)]
pub(crate) struct Running {
    keys: Arc<Mutex<Keys>>,
    tasks: TaskTracker,
    /// How long one takes on average, in microseconds.
    mean: AtomicU64,
}

#[derive(Default)]
struct Keys {
    next: u64,
    running: HashMap<Key, Run>,
}

/// One that runs.
struct Run {
    number: u64,
    fingerprint: Fingerprint,
    /// It is dropped when the execution ends.
    over: watch::Sender<()>,
}

impl Keys {
    fn put(&mut self, key: Key, fingerprint: Fingerprint) -> u64 {
        self.next += 1;
        let run = Run {
            number: self.next,
            fingerprint,
            over: watch::Sender::new(()),
        };
        self.running.insert(key, run);
        self.next
    }
}

impl Running {
    /// Runs a task whatever becomes of its caller.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the execution of this key was asked for, if it runs in this process. A store may take it for lost, as when its
    /// clock is set forward: this process knows better.
    pub(super) fn fingerprint(&self, key: &Key) -> Option<Fingerprint> {
        let keys = self.keys();
        keys.running.get(key).map(|run| run.fingerprint)
    }

    /// The execution of this key begins, also if one before it is not over; it ends when what is returned is dropped.
    #[cfg(feature = "postgres")]
    pub(crate) fn begin(&self, key: Key, fingerprint: Fingerprint) -> Over {
        let number = self.keys().put(key, fingerprint);
        self.entered(key, number)
    }

    /// The same, unless one of this key runs. One that has just ended is waited for.
    pub(super) async fn begin_alone(&self, key: Key, fingerprint: Fingerprint) -> Option<Over> {
        if let Some(over) = self.try_begin(key, fingerprint) {
            return Some(over);
        }
        tokio::select! {
            () = self.over(&key) => {}
            () = sleep(JUST_ENDED) => {}
        }
        self.try_begin(key, fingerprint)
    }

    fn try_begin(&self, key: Key, fingerprint: Fingerprint) -> Option<Over> {
        let mut keys = self.keys();
        if keys.running.contains_key(&key) {
            return None;
        }
        let number = keys.put(key, fingerprint);
        drop(keys);
        Some(self.entered(key, number))
    }

    fn entered(&self, key: Key, number: u64) -> Over {
        Over {
            keys: Arc::clone(&self.keys),
            key,
            number,
        }
    }

    /// Until the execution of this key ends, if it runs in this process; else forever.
    pub(crate) async fn over(&self, key: &Key) {
        let receiver = {
            let keys = self.keys();
            keys.running.get(key).map(|run| run.over.subscribe())
        };
        match receiver {
            // The end of the sender is what is waited for.
            Some(mut receiver) => while receiver.changed().await.is_ok() {},
            None => std::future::pending().await,
        }
    }

    /// One took this long.
    pub(super) fn took(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let mean = self.mean.load(Ordering::Relaxed);
        let mean = if mean == 0 {
            took
        } else {
            mean - mean / 8 + took / 8
        };
        self.mean.store(mean, Ordering::Relaxed);
    }

    /// How long one takes on average; zero while none has ended.
    pub(super) fn mean(&self) -> Duration {
        Duration::from_micros(self.mean.load(Ordering::Relaxed))
    }

    pub(super) async fn drain(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        // Others may come, if the server has not ended.
        self.tasks.reopen();
    }
}

/// Takes the execution off the list when it ends, in whatever way.
pub(crate) struct Over {
    keys: Arc<Mutex<Keys>>,
    key: Key,
    number: u64,
}

impl Drop for Over {
    fn drop(&mut self) {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = match keys.running.get(&self.key) {
            Some(run) if run.number == self.number => keys.running.remove(&self.key),
            // Another has taken over.
            _ => None,
        };
        drop(keys);
        drop(ended);
    }
}
