//! The executions of handlers: what they know, and who waits for them.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use relent_core::claim::Fingerprint;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use super::Answer;
use super::lease::HeldLease;
use super::problems::Refused;
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

/// The keys that are dealt with in this process, and the executions.
#[derive(Default)]
pub(crate) struct Running {
    keys: Keys,
    tasks: TaskTracker,
    /// How long one takes on average, in microseconds.
    mean: AtomicU64,
}

/// One request leads for each key: it alone asks the store, and runs the handler if it may. The others follow it.
type Keys = Arc<Mutex<HashMap<Key, (Fingerprint, Arc<watch::Sender<Stage>>)>>>;

/// How far the leader of a key has come.
#[derive(Clone, Debug)]
pub(super) enum Stage {
    /// It asks the store.
    Claims,
    /// Its handler runs.
    Runs,
    /// Another process has the key, and its lease lasts so much longer.
    Elsewhere(Duration),
    Over(Ended),
}

/// How a leader has ended, for those who follow it.
#[derive(Clone, Debug)]
pub(super) enum Ended {
    /// With this answer, which is stored.
    Answered(Arc<Answer>),
    /// With an answer that is stored, and that each of them finds there.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    Recorded,
    Refused(Refused),
    /// Another has to ask the store. If another process has the key: not before this time, and its lease lasts so much
    /// longer.
    Open(Option<(Instant, Duration)>),
}

/// What a request is that comes with a key.
pub(super) enum Entered {
    Leads(Lead),
    Follows(Follower),
}

/// The one request that asks the store for its key. When it is dropped another one leads.
pub(super) struct Lead {
    /// `None` if others may lead beside it.
    flight: Option<(Keys, Key, Arc<watch::Sender<Stage>>)>,
    ended: Ended,
}

/// Waits for the leader of its key.
pub(super) struct Follower {
    /// Of the leader.
    pub(super) fingerprint: Fingerprint,
    stage: watch::Receiver<Stage>,
}

impl Running {
    /// Runs a task whatever becomes of its caller.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// A request comes with this key.
    pub(super) fn enter(&self, key: Key, fingerprint: Fingerprint) -> Entered {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((fingerprint, stage)) = keys.get(&key) {
            return Entered::Follows(Follower {
                fingerprint: *fingerprint,
                stage: stage.subscribe(),
            });
        }
        let stage = Arc::new(watch::Sender::new(Stage::Claims));
        keys.insert(key, (fingerprint, Arc::clone(&stage)));
        Entered::Leads(Lead {
            flight: Some((Arc::clone(&self.keys), key, stage)),
            ended: Ended::Open(None),
        })
    }

    /// Whether the handler of this key runs in this process. A store may take it for lost, as when its clock is set forward:
    /// this process knows better.
    pub(super) fn runs(&self, key: &Key) -> bool {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let stage = keys.get(key).map(|(_, stage)| stage.borrow());
        stage.is_some_and(|stage| matches!(*stage, Stage::Runs))
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

    /// Waits for all tasks, and for no longer than this; how many are left.
    pub(super) async fn drain(&self, limit: Duration) -> usize {
        self.tasks.close();
        // How many are left says whether it was in time.
        drop(timeout(limit, self.tasks.wait()).await);
        // Others may come, if the server has not ended.
        self.tasks.reopen();
        self.tasks.len()
    }
}

impl Lead {
    /// One that leads nobody: what it asks for is recorded.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(super) const fn alone() -> Self {
        Self {
            flight: None,
            ended: Ended::Open(None),
        }
    }

    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(super) const fn is_alone(&self) -> bool {
        self.flight.is_none()
    }

    /// It has come so far.
    pub(super) fn reach(&self, stage: Stage) {
        if let Some((_, _, sender)) = &self.flight {
            sender.send_replace(stage);
        }
    }

    /// What those who follow hear when it is dropped.
    pub(super) fn will_end(&mut self, ended: Ended) {
        self.ended = ended;
    }

    /// It is over.
    pub(super) fn end(mut self, ended: Ended) {
        self.will_end(ended);
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if let Some((keys, key, stage)) = self.flight.take() {
            // Those who follow may lead then.
            let mut keys = keys.lock().unwrap_or_else(PoisonError::into_inner);
            keys.remove(&key);
            drop(keys);
            let ended = std::mem::replace(&mut self.ended, Ended::Open(None));
            stage.send_replace(Stage::Over(ended));
        }
    }
}

impl Follower {
    /// How far the leader is.
    pub(super) fn stage(&mut self) -> Stage {
        self.stage.borrow_and_update().clone()
    }

    /// Until the leader has come further.
    pub(super) async fn changed(&mut self) {
        // A leader that is gone has said how it ended.
        drop(self.stage.changed().await);
    }
}
