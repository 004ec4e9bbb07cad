//! Finding and resolving unknown (in-doubt) outcomes.

use std::fmt;
use std::sync::Arc;

use relent_core::idempotency::{ClaimConfig, NotResolved};

use super::common::Common;
use crate::observe;
use crate::store::{Resolution, ResolveError, Store, UnknownOutcome};

/// Finds and resolves requests whose outcome is unknown. Their process died, their handler reported it, or they
/// exceeded a limit. Duplicates are rejected until the outcome is resolved or the record expires.
///
/// Use one store for each layer, or one `Redis::namespace`: outcomes of all layers
/// that share a store are found, and do not show their layer.
///
/// ```
/// use std::sync::Arc;
/// use relent_server::idempotency::{IdempotencyLayer, UnknownOutcomes};
/// use relent_server::store::{Memory, Resolution};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let layer = IdempotencyLayer::anonymous(Memory::new());
/// let outcomes: UnknownOutcomes<Memory> = layer.unknown_outcomes();
/// for lost in outcomes.find(None, 100).await? {
///     println!("unknown for {:?}: charge {}", lost.age(), lost.key().derived_key("charge"));
///     // If the provider has no charge of that name, and none can be created any more:
///     outcomes.resolve(&lost, Resolution::NotApplied).await?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// `docs/idempotency.md` of this crate shows a job that does this, and its pitfalls.
pub struct UnknownOutcomes<S> {
    store: Arc<S>,
    config: ClaimConfig,
    /// The executions of the layer in this process.
    common: Option<Arc<Common>>,
}

impl<S: Store> UnknownOutcomes<S> {
    /// Creates access to a store without a [layer](super::IdempotencyLayer::unknown_outcomes). `config` should be that
    /// of the layer that writes the records: a resolved record is kept for its retention.
    #[must_use]
    pub const fn new(store: Arc<S>, config: ClaimConfig) -> Self {
        Self {
            store,
            config,
            common: None,
        }
    }

    /// Creates access for a layer, which knows the running executions of this process.
    pub(super) fn of(store: Arc<S>, config: ClaimConfig, common: Arc<Common>) -> Self {
        Self {
            common: Some(common),
            ..Self::new(store, config)
        }
    }

    /// Returns at most `most` outcomes, in the order of their expiry: [`Store::find_unknown`]. With `after` the page
    /// starts behind that outcome.
    ///
    /// Nothing is changed. A found outcome may be resolved by another process, or by its own execution.
    ///
    /// # Errors
    /// The store fails.
    pub async fn find(
        &self,
        after: Option<&UnknownOutcome>,
        most: usize,
    ) -> Result<Vec<UnknownOutcome>, S::Error> {
        self.store.find_unknown(after, most, &self.config).await
    }

    /// Resolves an outcome: [`Store::resolve`]. Find the outcome first, and query the other service *after* that. The
    /// lost execution can no longer write, and the next one has a higher [fencing token](super::Execution::fence).
    /// The same resolution may be repeated.
    ///
    /// Use [`NotApplied`](Resolution::NotApplied) only if the lost execution can no longer act. One of these must
    /// hold: the other service drops a second request with the same [`derived_key`](super::Execution::derived_key);
    /// the process has ended; or the outcome is [older](UnknownOutcome::age) than the longest request to the other
    /// service plus the 10 min for which a handler may continue after its limit, and the process cannot be suspended.
    ///
    /// # Errors
    /// The outcome is no longer unknown, or its record was written since: the error contains its state. It is
    /// [`NotResolved::Running`] also if the request runs in this process while the store considers it lost: its handler
    /// continues after its limit, or the clock of the store was set forward. Or the store fails.
    pub async fn resolve(
        &self,
        found: &UnknownOutcome,
        resolution: Resolution,
    ) -> Result<(), ResolveError<S::Error>> {
        let runs = |common: &Arc<Common>| common.running.runs(found.key());
        if self.common.as_ref().is_some_and(runs) {
            return Err(ResolveError::Refused(NotResolved::Running));
        }
        let name = resolution.name();
        self.store.resolve(found, resolution, &self.config).await?;
        observe::resolved(found.key(), name);
        Ok(())
    }
}

impl<S> Clone for UnknownOutcomes<S> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            config: self.config,
            common: self.common.clone(),
        }
    }
}

impl<S> fmt::Debug for UnknownOutcomes<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnknownOutcomes")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
