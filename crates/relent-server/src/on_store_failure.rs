//! Reports failures of the store.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::observe;
use crate::store::StoreFailure;

type Callback = dyn Fn(&StoreFailure) + Send + Sync;

/// The callback for failures of a store, in addition to the event.
#[derive(Clone, Default)]
pub(crate) struct OnStoreFailure(pub(crate) Option<Arc<Callback>>);

impl OnStoreFailure {
    pub(crate) fn failed(&self, failure: &StoreFailure) {
        observe::store_failed(failure);
        if let Some(callback) = &self.0 {
            // A panic of the callback must not end the request.
            drop(catch_unwind(AssertUnwindSafe(|| callback(failure))));
        }
    }
}
