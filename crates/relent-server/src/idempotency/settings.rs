//! The settings of a layer.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use http::request::Parts;
use relent_core::idempotency::ClaimConfig;

use super::limits::{Limits, ReadLimits};
use super::source::KeySource;
use crate::on_store_failure::OnStoreFailure;

type ReadText = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) source: KeySource,
    pub(super) principal: ReadText,
    pub(super) operation: ReadText,
    pub(super) required: Arc<dyn Fn(&Parts) -> bool + Send + Sync>,
    pub(super) fingerprint: Vec<HeaderName>,
    pub(super) claim: ClaimConfig,
    pub(super) limits: Limits,
    pub(super) wait: Duration,
    pub(super) max_request: usize,
    pub(super) max_response: usize,
    pub(super) fail_open: bool,
    pub(super) first_sent: bool,
    pub(super) failures: OnStoreFailure,
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(super) transactional: bool,
}

impl Settings {
    pub(super) const fn read_limits(&self) -> ReadLimits {
        ReadLimits {
            total: self.limits.read,
            idle: self.limits.read_idle,
            bytes: self.max_request,
        }
    }

    /// Returns whether the handler claims the key.
    pub(super) const fn is_exactly_once(&self) -> bool {
        #[cfg(any(feature = "postgres", feature = "sqlite"))]
        {
            self.transactional
        }
        #[cfg(not(any(feature = "postgres", feature = "sqlite")))]
        {
            let _ = self;
            false
        }
    }
}
