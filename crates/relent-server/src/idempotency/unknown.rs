//! What an operator, or a job, does about outcomes that nobody knows.

use std::fmt;
use std::sync::Arc;

use relent_core::claim::{ClaimConfig, NotResolved};

use super::common::Common;
use crate::observe;
use crate::store::{Resolution, ResolveError, Store, UnknownOutcome};

/// The requests of a store of which nobody knows whether they had their effect: their process died, their handler said so,
/// or they were too late. Their duplicates are refused until somebody says what has come of them, or the record expires.
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
///     // If the provider has no charge of that name, and nobody can make one any more:
///     outcomes.resolve(&lost, Resolution::NotApplied).await?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// `docs/idempotency.md` of this crate has a job that does this by itself, and what it has to take care of.
pub struct UnknownOutcomes<S> {
    store: Arc<S>,
    config: ClaimConfig,
    /// Of the layer in this process.
    common: Option<Arc<Common>>,
}

impl<S: Store> UnknownOutcomes<S> {
    /// Of a store whose records are written by a layer with this configuration, for who has no
    /// [layer](super::IdempotencyLayer::unknown_outcomes).
    #[must_use]
    pub const fn new(store: Arc<S>, config: ClaimConfig) -> Self {
        Self {
            store,
            config,
            common: None,
        }
    }

    /// Of a layer, which knows what runs in this process.
    pub(super) fn of(store: Arc<S>, config: ClaimConfig, common: Arc<Common>) -> Self {
        Self {
            common: Some(common),
            ..Self::new(store, config)
        }
    }

    /// At most so many, the one that expires first, first: [`Store::find_unknown`]. With `after` those that follow on it.
    ///
    /// Nothing is changed. What is found may be resolved by another, or come back by itself.
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

    /// What came of this one, as it was found out *after* it was found: [`Store::resolve`]. The lost execution can write
    /// nothing any more, and whatever runs next has a higher [fence](super::Execution::fence). The same may be said again.
    ///
    /// Say [`NotApplied`](Resolution::NotApplied) only when the lost execution cannot act any more: its process has ended, or
    /// the outcome is [older](UnknownOutcome::age) than a request to the other service may be under way, or that service
    /// refuses a second request with the same [`derived_key`](super::Execution::derived_key).
    ///
    /// # Errors
    /// The record is not unknown any more, or was written since: the error says what it is. [`NotResolved::Running`] also if it
    /// runs in this process, though the store takes it for lost, such as after its clock was set forward. Or the store
    /// fails.
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
