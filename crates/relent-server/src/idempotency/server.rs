//! The store, settings and limits that all tasks of a layer share.

use std::error::Error;
use std::sync::Arc;

use http::Response;
use relent::GaveUp;
#[cfg(feature = "webhook")]
use relent_core::idempotency::ClaimConfig;

use super::body::Body;
use super::common::Common;
#[cfg(feature = "webhook")]
use super::limits::Limits;
use super::problems::Rejection;
use super::request::REQUEST_OVERHEAD_BYTES;
use super::settings::Settings;
use super::store_call::CallError;
use crate::fair_shares::{Principal, Share};
use crate::store::{Key, Store, StoreFailure};

/// The shared state of the tasks of a layer.
pub(crate) struct Server<S> {
    pub(super) store: Arc<S>,
    pub(super) settings: Arc<Settings>,
    pub(super) common: Arc<Common>,
}

impl<S> Server<S> {
    #[cfg(feature = "webhook")]
    pub(crate) fn claim_config(&self) -> &ClaimConfig {
        &self.settings.claim
    }

    /// Returns the response to a request without a response of its handler.
    pub(crate) fn refuse<R>(&self, refused: Rejection, is_grpc: bool) -> Response<Body<R>> {
        let refused = refused.observed(self.settings.source, is_grpc);
        refused.map(Body::whole)
    }

    #[cfg(feature = "webhook")]
    pub(crate) fn limits(&self) -> &Limits {
        &self.settings.limits
    }

    /// Reserves memory for a request whose body is not read yet.
    pub(crate) fn memory(&self, principal: &Principal) -> Result<Share, Rejection> {
        let memory = self.common.buffered.take(principal, REQUEST_OVERHEAD_BYTES);
        memory.ok_or(Rejection::Busy)
    }
}

impl<S: Store> Server<S> {
    /// Reports to the operator that a call of the store has failed.
    pub(super) fn store_failed(
        &self,
        operation: &'static str,
        key: &Key,
        error: &(dyn Error + 'static),
    ) {
        // `GaveUp` contains no more than its last error.
        let last = error.downcast_ref::<GaveUp<CallError<S::Error>>>();
        let call = match last {
            Some(last) => last.error(),
            None => error.downcast_ref::<CallError<S::Error>>(),
        };
        let failure = match call {
            Some(CallError::TimedOut(_)) => StoreFailure::timed_out(operation, *key),
            Some(CallError::Store(error)) => StoreFailure::new(operation, *key, error),
            None => StoreFailure::new(operation, *key, error),
        };
        self.settings.failures.failed(&failure);
    }
}

impl<S> Clone for Server<S> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            settings: Arc::clone(&self.settings),
            common: Arc::clone(&self.common),
        }
    }
}
