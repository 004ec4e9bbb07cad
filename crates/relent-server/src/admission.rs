//! Rate limits that reserve a slot for each rejected caller and tell it when to come back.
//!
//! If all rejected callers get the same `Retry-After`, they come back together: a thousand callers of a limit of
//! 100/s need 50 attempts each. Here each rejected caller gets its own reserved slot, a *ticket*. It completes with
//! two attempts, in the time that the limit needs for all.
//!
//! ```
//! use std::time::Duration;
//!
//! use axum::{Router, routing::get};
//! use relent_server::admission::{AdmissionLayer, InvalidQuota, LimiterConfig, Quota};
//!
//! /// The account, as the authentication layer stores it in the extensions.
//! #[derive(Clone, Hash)]
//! struct Account(u64);
//!
//! fn app() -> Result<Router, InvalidQuota> {
//!     let second = Duration::from_secs(1);
//!     let admission = AdmissionLayer::new()
//!         // A thousand requests per second for all, with bursts of up to a hundred after a pause.
//!         .quota(Quota::new("service", LimiterConfig { burst: 100, ..LimiterConfig::new(1000, second) })?)
//!         // Ten per second for each account.
//!         .quota(
//!             Quota::new("account", LimiterConfig::new(10, second))?
//!                 .key(|request| request.extensions.get::<Account>().cloned()),
//!         )
//!         // Each account holds one slot at a time.
//!         .caller(|request| request.extensions.get::<Account>().cloned());
//!     Ok(Router::new().route("/", get(|| async { "hello" })).layer(admission))
//! }
//! # assert!(app().is_ok());
//! ```
//!
//! # The response to a rejected request
//!
//! | | HTTP | gRPC (feature `grpc`) |
//! |---|---|---|
//! | admitted | the response of the service | the response of the service |
//! | a limit is reached | 429, `Retry-After`, and for a reserved slot `retry-after-ms` with `relent-ticket: true` | `RESOURCE_EXHAUSTED`, pushback and `RetryInfo` |
//! | it costs more than a burst, so that it can never be admitted | 422, do not retry | `INVALID_ARGUMENT`, pushback -1 |
//! | its deadline (`relent-deadline-ms`) has passed | 504 | `DEADLINE_EXCEEDED` |
//! | Redis is unreachable, and the limits are `closed` | 503, `Retry-After` | `UNAVAILABLE`, pushback |
//!
//! Over HTTP a rejection is `application/problem+json` with the name of the limit in `violated-policies`.
//! `Retry-After` is in whole seconds, rounded up, and never 0.
//!
//! Every response, also to an admitted request, has `RateLimit` and `RateLimit-Policy`
//! (draft-ietf-httpapi-ratelimit-headers-11), as of the arrival of the request. They replace those of the service
//! inside, so put all quotas of a service into one layer. They are absent if no quota applies to the request. With
//! `AdmissionLayer::redis_limits` they are also absent if the deadline has passed, and while Redis is unreachable
//! unless the limits are `local`.
//!
//! A rejection waits neither for the request body nor until the service is ready.
//!
//! # Several quotas
//! All quotas of a request are checked together. If one rejects the request, the others are not charged, and the
//! response gives the latest of their times.
//!
//! # What identifies a caller
//! A ticket belongs to a [caller](AdmissionLayer::caller), and a caller has one live slot in each limiter. So a
//! caller that sends more than others waits as long as they do. The slot stays valid for a grace period (3 s by
//! default) after its time; see [`LimiterConfig`]. Without a caller there is no ticket: rejected requests get
//! different times, one interval apart.
//!
//! Identify a caller by something that it cannot change at will, such as an account. **If one account sends many
//! requests concurrently**, all that are rejected get the same slot and come back together. Then identify callers
//! more finely, such as by account and worker, or by account and `Idempotency-Key`. Also give each account a quota,
//! which bounds its total.
//!
//! # The order of layers
//! Outside: tracing, and authentication, since it identifies the caller. Then this layer. Inside: load shedding and
//! [`idempotency`](crate::idempotency), so that rejections are not stored. A request that comes in its reserved slot
//! has [`Admitted`] in its extensions, so other layers need not treat it as a retry.

mod quota;
mod quota_decision;
#[cfg(feature = "redis")]
mod redis_limits;
mod service;
mod shared;

use std::fmt;
use std::hash::{Hash, RandomState};
use std::sync::{Arc, OnceLock};

use http::request::Parts;
use relent::clock::{Clock, StdClock};
use tower_layer::Layer;

pub use quota::{InvalidQuota, Quota};
#[cfg(feature = "redis")]
pub use redis_limits::RedisLimits;
pub use relent_core::admission::{Admitted, LimiterConfig};
pub use service::{AdmissionService, ResponseFuture};

pub(crate) use quota::{Identify, identify};
use shared::{Limits, Settings, Shared};

/// Limits the rate of requests: see the [module](self).
///
/// Clones of the layer, and the services that it creates, share their limits. Without a quota it admits each request
/// whose deadline has not passed.
#[derive(Clone)]
pub struct AdmissionLayer {
    settings: Settings,
    /// Created with the first service.
    shared: Arc<OnceLock<Arc<Shared>>>,
}

impl AdmissionLayer {
    /// Creates a layer that keeps its limits in this process.
    #[must_use]
    pub fn new() -> Self {
        let settings = Settings {
            #[cfg(feature = "redis")]
            fleet: None,
            quotas: Vec::new(),
            caller: None,
            cost: None,
            clock: Arc::new(StdClock),
        };
        Self {
            settings,
            shared: Arc::default(),
        }
    }

    /// Creates a layer that shares its limits with other processes, in Redis.
    #[cfg(feature = "redis")]
    #[must_use]
    pub fn redis_limits(fleet: RedisLimits) -> Self {
        Self::new().with(|settings| settings.fleet = Some(Arc::new(fleet)))
    }

    /// Adds a quota, or replaces the one of the same name. If several quotas apply to a request, all of them have to
    /// admit it.
    #[must_use]
    pub fn quota(self, quota: Quota) -> Self {
        self.with(|settings| {
            settings.quotas.retain(|other| other.name != quota.name);
            settings.quotas.push(quota);
        })
    }

    /// Sets the function that identifies the caller of a request, for reserved slots. It may return the account that
    /// the authentication layer stored in the extensions. Without a caller (the default, or if it returns `None`) a
    /// rejected request gets an estimated time, and no slot is reserved.
    ///
    /// See [what identifies a caller](self#what-identifies-a-caller).
    #[must_use]
    pub fn caller<K: Hash>(
        self,
        caller: impl Fn(&Parts) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        self.with(|settings| settings.caller = Some(identify(caller)))
    }

    /// Sets the cost of a request: 1 by default, and 0 counts as 1. A request that costs more than the burst of a
    /// quota can never be admitted, and gets 422.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u32 + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.cost = Some(Arc::new(cost)))
    }

    /// Sets the clock of limits in this process, for tests: [`StdClock`] by default.
    #[must_use]
    pub fn clock(self, clock: impl Clock + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.clock = Arc::new(clock))
    }

    /// Returns the number of keys that the quotas remember, and of limiters that were evicted while in use, because
    /// [`max_keys`](Quota::max_keys) was reached. Both are 0 for limits in Redis.
    #[must_use]
    pub fn keys(&self) -> (usize, u64) {
        match &self.shared().limits {
            Limits::Local(local) => local.keys(),
            #[cfg(feature = "redis")]
            Limits::RedisLimits(_) => (0, 0),
        }
    }

    /// Changes the settings; the limits start from zero.
    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self.shared = Arc::default();
        self
    }

    fn shared(&self) -> &Arc<Shared> {
        self.shared.get_or_init(|| {
            Arc::new(Shared {
                limits: self.settings.limits(),
                settings: self.settings.clone(),
                hashes: RandomState::new(),
            })
        })
    }
}

impl Default for AdmissionLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<I> Layer<I> for AdmissionLayer {
    type Service = AdmissionService<I>;

    fn layer(&self, inner: I) -> Self::Service {
        AdmissionService::new(inner, Arc::clone(self.shared()))
    }
}

impl fmt::Debug for AdmissionLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmissionLayer")
            .field("quotas", &self.settings.quotas)
            .finish_non_exhaustive()
    }
}
