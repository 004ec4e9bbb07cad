//! The executions of handlers and their waiting duplicates.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use relent_core::idempotency::Fingerprint;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use super::StoredResponse;
use super::lease::HeldLease;
use super::problems::Rejection;
use crate::store::Key;

type WriteOutcome = Pin<Box<dyn Future<Output = Result<(), CheckpointError>> + Send>>;

/// A handler's view of its execution, in the extensions of its request.
///
/// ```
/// use relent_server::idempotency::Execution;
///
/// async fn pay(request: http::Request<()>) {
///     if let Some(execution) = request.extensions().get::<Execution>() {
///         // The key is equal in each execution of this request, so the provider drops duplicates, too.
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
    checkpoint: Arc<dyn Fn(u32) -> WriteOutcome + Send + Sync>,
}

impl Execution {
    pub(super) fn new(
        fence: u64,
        step: u32,
        repeated: bool,
        held: Arc<HeldLease>,
        checkpoint: impl Fn(u32) -> WriteOutcome + Send + Sync + 'static,
    ) -> Self {
        Self {
            held,
            fence,
            step,
            repeated,
            checkpoint: Arc::new(checkpoint),
        }
    }

    /// Returns the fencing token: the number of claims of the key so far. It only grows. A resource that rejects
    /// tokens lower than the highest it has seen is protected from an execution that lost its lease.
    #[must_use]
    pub const fn fence(&self) -> u64 {
        self.fence
    }

    /// Returns whether an earlier execution may have had an effect.
    #[must_use]
    pub const fn is_repeated(&self) -> bool {
        self.repeated
    }

    /// Returns the last step that an earlier execution has [completed](Self::checkpoint); 0 for none.
    #[must_use]
    pub const fn step(&self) -> u32 {
        self.step
    }

    /// Returns whether the lease is known to be lost; the handler should then stop. If the route allows a rerun
    /// ([`Rerun`](relent_core::idempotency::Takeover::Rerun), [`Resume`](relent_core::idempotency::Takeover::Resume)), the
    /// handler is dropped. Otherwise it continues, and its response is not stored.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.held.is_lost()
    }

    /// Completes when the lease is known to be lost, and never otherwise. Use it with `tokio::select!` in a handler
    /// that can stop.
    pub async fn lost(&self) {
        self.held.lost().await;
    }

    /// Derives a key for a request to another service, as 64 hexadecimal digits. It is equal in each execution of
    /// this request, and differs for each `step`.
    #[must_use]
    pub fn derived_key(&self, step: &str) -> String {
        self.held.key.derived_key(step)
    }

    /// Records that this step is completed: an execution that [resumes](relent_core::idempotency::Takeover::Resume) starts
    /// after it. Steps count from 1.
    ///
    /// # Errors
    /// The step may not be recorded. If the lease is lost, stop.
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

/// The reason why a step may not be recorded.
#[derive(Debug)]
#[non_exhaustive]
pub enum CheckpointError {
    /// Another execution has the key. Stop, and roll back uncommitted work.
    Lost,
    /// The store has failed, and may have written the step.
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
            // Its text is part of this error's text.
            Self::Store(error) => error.source(),
        }
    }
}

/// The keys that this process handles, and the executions.
#[derive(Default)]
pub(crate) struct Running {
    keys: Keys,
    tasks: TaskTracker,
    /// The average duration of an execution, in microseconds.
    mean: AtomicU64,
}

/// Each key has one leader: it alone asks the store and runs the handler. Other requests with the key follow it.
type Keys = Arc<Mutex<HashMap<Key, (Fingerprint, Arc<watch::Sender<LeaderStage>>)>>>;

/// The progress of a leader.
#[derive(Clone, Debug)]
pub(super) enum LeaderStage {
    /// The leader is claiming the key.
    Claims,
    /// Its handler runs.
    Runs,
    /// Its outcome is unknown, but its handler continues.
    Continues,
    /// Another process has the key; its lease lasts this much longer.
    Elsewhere(Duration),
    Over(LeaderResult),
}

/// The result of a leader, for its followers.
#[derive(Clone, Debug)]
pub(super) enum LeaderResult {
    /// The leader has this stored response.
    Answered(Arc<StoredResponse>),
    /// The leader has a stored response, which each follower reads from the store.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    Recorded,
    Rejection(Rejection),
    /// A follower has to ask the store. If another process has the key: not before this time, and its lease lasts
    /// this much longer.
    Open(Option<(Instant, Duration)>),
}

/// The role of a request with a key.
pub(super) enum RequestRole {
    Leads(Leader),
    Follows(Follower),
}

/// The leader of a key. When it is dropped, another request may lead.
pub(super) struct Leader {
    /// `None` for a request that reads a recorded response beside others.
    flight: Option<(Keys, Key, Arc<watch::Sender<LeaderStage>>)>,
    ended: LeaderResult,
}

/// Waits for the leader of its key.
pub(super) struct Follower {
    /// The fingerprint of the leader.
    pub(super) fingerprint: Fingerprint,
    stage: watch::Receiver<LeaderStage>,
}

impl Running {
    /// Runs a task independently of its caller.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Makes the request the leader or a follower of this key.
    pub(super) fn enter(&self, key: Key, fingerprint: Fingerprint) -> RequestRole {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((fingerprint, stage)) = keys.get(&key) {
            return RequestRole::Follows(Follower {
                fingerprint: *fingerprint,
                stage: stage.subscribe(),
            });
        }
        let stage = Arc::new(watch::Sender::new(LeaderStage::Claims));
        keys.insert(key, (fingerprint, Arc::clone(&stage)));
        RequestRole::Leads(Leader {
            flight: Some((Arc::clone(&self.keys), key, stage)),
            ended: LeaderResult::Open(None),
        })
    }

    /// Returns whether the handler of this key runs in this process. The store may consider it lost: it continues
    /// after its limit, or the clock of the store was set forward.
    pub(super) fn runs(&self, key: &Key) -> bool {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let stage = keys.get(key).map(|(_, stage)| stage.borrow());
        stage.is_some_and(|stage| matches!(*stage, LeaderStage::Runs | LeaderStage::Continues))
    }

    /// Updates the average duration.
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

    /// Returns the average duration of an execution; zero before the first has ended.
    pub(super) fn mean(&self) -> Duration {
        Duration::from_micros(self.mean.load(Ordering::Relaxed))
    }

    /// Waits for all tasks, but not longer than `limit`, and returns the number left.
    pub(super) async fn drain(&self, limit: Duration) -> usize {
        self.tasks.close();
        // The number of tasks left shows whether the limit was reached.
        drop(timeout(limit, self.tasks.wait()).await);
        // The server may still accept requests.
        self.tasks.reopen();
        self.tasks.len()
    }
}

impl Leader {
    /// Creates a leader without followers, for a request whose response is recorded.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(super) const fn alone() -> Self {
        Self {
            flight: None,
            ended: LeaderResult::Open(None),
        }
    }

    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(super) const fn is_alone(&self) -> bool {
        self.flight.is_none()
    }

    /// Publishes the progress to the followers.
    pub(super) fn reach(&self, stage: LeaderStage) {
        if let Some((_, _, sender)) = &self.flight {
            sender.send_replace(stage);
        }
    }

    /// Returns the leader for a handler that continues after its outcome is unknown: until that is dropped, no other
    /// handler of the key starts.
    pub(super) fn continues(&mut self) -> Self {
        self.reach(LeaderStage::Continues);
        Self {
            flight: self.flight.take(),
            ended: LeaderResult::Open(None),
        }
    }

    /// Sets the result that followers get when this is dropped.
    pub(super) fn set_result(&mut self, ended: LeaderResult) {
        self.ended = ended;
    }

    /// Ends with this result.
    pub(super) fn end(mut self, ended: LeaderResult) {
        self.set_result(ended);
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if let Some((keys, key, stage)) = self.flight.take() {
            // Remove the key first, so that followers may lead.
            let mut keys = keys.lock().unwrap_or_else(PoisonError::into_inner);
            keys.remove(&key);
            drop(keys);
            let ended = std::mem::replace(&mut self.ended, LeaderResult::Open(None));
            stage.send_replace(LeaderStage::Over(ended));
        }
    }
}

impl Follower {
    /// Returns the current progress of the leader.
    pub(super) fn stage(&mut self) -> LeaderStage {
        self.stage.borrow_and_update().clone()
    }

    /// Waits for progress of the leader.
    pub(super) async fn changed(&mut self) {
        // A dropped leader has published its result before.
        drop(self.stage.changed().await);
    }
}
