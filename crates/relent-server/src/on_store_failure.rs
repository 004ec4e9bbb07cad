//! The report of a failed store.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::observe;
use crate::store::StoreFailure;

type Callback = dyn Fn(&StoreFailure) + Send + Sync;

/// The callback that learns of each failure of a store, beside the event.
#[derive(Clone, Default)]
pub(crate) struct OnStoreFailure(pub(crate) Option<Arc<Callback>>);

impl OnStoreFailure {
    pub(crate) fn failed(&self, failure: &StoreFailure) {
        observe::store_failed(failure);
        if let Some(callback) = &self.0 {
            // Its panic is its own: the request that meets it must not be lost.
            drop(catch_unwind(AssertUnwindSafe(|| callback(failure))));
        }
    }
}
