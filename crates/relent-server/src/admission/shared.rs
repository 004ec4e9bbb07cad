//! The settings and limits that all services of one layer share.

use std::hash::RandomState;
use std::sync::Arc;

use http::request::Parts;
use relent::clock::Clock;

use super::quota::{Identify, Quota};
use super::quota_decision::Local;
#[cfg(feature = "redis")]
use super::redis_limits::{self, RedisLimits};

type Cost = Arc<dyn Fn(&Parts) -> u32 + Send + Sync>;

#[derive(Clone)]
pub(super) struct Settings {
    #[cfg(feature = "redis")]
    pub(super) fleet: Option<Arc<RedisLimits>>,
    pub(super) quotas: Vec<Quota>,
    pub(super) caller: Option<Identify>,
    pub(super) cost: Option<Cost>,
    pub(super) clock: Arc<dyn Clock + Send + Sync>,
}

/// The state that all services of one layer share.
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) limits: Limits,
    pub(super) hashes: RandomState,
}

/// The place of the limits.
pub(super) enum Limits {
    Local(Local),
    #[cfg(feature = "redis")]
    RedisLimits(Arc<redis_limits::Limits>),
}

impl Settings {
    pub(super) fn limits(&self) -> Limits {
        #[cfg(feature = "redis")]
        if let Some(fleet) = &self.fleet {
            return Limits::RedisLimits(Arc::new(redis_limits::Limits::new(
                Arc::clone(fleet),
                &self.quotas,
            )));
        }
        Limits::Local(Local::new(&self.quotas))
    }
}
