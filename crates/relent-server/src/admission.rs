//! Rate limits that tell each refused caller when to come back, and keep the place.
//!
//! A service that tells everybody the same `Retry-After` brings them back together: a thousand callers against a hundred
//! per second need 50 attempts each. Here each of them gets a slot of its own, a *ticket*, and is done with two, in the
//! time that the limit needs for all.
//!
//! ```
//! use std::time::Duration;
//!
//! use axum::{Router, routing::get};
//! use relent_server::admission::{AdmissionLayer, InvalidQuota, LimiterConfig, Quota};
//!
//! /// Whoever has authenticated the request leaves it in the extensions.
//! #[derive(Clone, Hash)]
//! struct Account(u64);
//!
//! fn app() -> Result<Router, InvalidQuota> {
//!     let second = Duration::from_secs(1);
//!     let admission = AdmissionLayer::new()
//!         // A thousand requests a second for all, and a hundred at once after a pause.
//!         .quota(Quota::new("service", LimiterConfig { burst: 100, ..LimiterConfig::new(1000, second) })?)
//!         // Ten a second for each account.
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
//! # The response to a refused request
//!
//! | | HTTP | gRPC (feature `grpc`) |
//! |---|---|---|
//! | admitted | the answer of the service | the same |
//! | a limit is reached | 429, `Retry-After`, and `retry-after-ms` with `relent-ticket: true` for a slot of its own | `RESOURCE_EXHAUSTED`, pushback and `RetryInfo` |
//! | it costs more than a burst, so that it can never be admitted | 422, do not retry | `INVALID_ARGUMENT`, pushback -1 |
//! | its deadline (`relent-deadline-ms`) has passed | 504 | `DEADLINE_EXCEEDED` |
//! | the limits cannot be asked, and the fleet is `closed` | 503, `Retry-After` | `UNAVAILABLE`, pushback |
//!
//! Over HTTP a refusal is `application/problem+json`, with the name of the limit in `violated-policies`. Times are whole,
//! rounded up, and never 0. `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers-11) stand on
//! every answer, also of admitted requests, as they were when the request came; they replace such of the service inside, so
//! all quotas of a service belong into one layer. They are missing where nobody has asked: if no quota counts for the
//! request, and with `AdmissionLayer::fleet` while Redis is away or if the deadline has passed.
//!
//! A refusal costs nothing but itself: it does not wait for the body of the request nor until the service is ready.
//!
//! # Several quotas
//! They are checked together. What one of them refuses takes nothing from the others, and is told the furthest of
//! their times.
//!
//! # Who is a caller
//! A ticket is for a [caller](AdmissionLayer::caller), who has one live slot in each limiter: so whoever sends more than others
//! waits in line as others do. It is kept for a grace (3 s by default) after its time; see [`LimiterConfig`]. Without a
//! caller nobody holds a ticket: those who are refused are told different times, one interval apart.
//!
//! A caller should be something that cannot be changed at will, such as an account. **If one account sends many requests
//! at once**, all that are refused hear of the same slot, and come back together. Then a caller is better something finer, such as account and
//! worker, or account and `Idempotency-Key`; give each account a quota, too, which bounds what it gets.
//!
//! # The order of layers
//! Outside of what costs something: tracing and authentication outside, since they say who calls; this layer; then
//! what sheds load, and [`idempotency`](crate::idempotency), so that what is refused is not stored. A request that came in its own slot has
//! [`Admitted`] in its extensions: it comes at a reserved time, and is no retry by its caller's choice.

#[cfg(feature = "redis")]
mod fleet;
mod judge;
mod quota;
mod service;
mod shared;

use std::fmt;
use std::hash::{Hash, RandomState};
use std::sync::{Arc, OnceLock};

use http::request::Parts;
use relent::clock::{Clock, StdClock};
use tower_layer::Layer;

#[cfg(feature = "redis")]
pub use fleet::Fleet;
pub use quota::{InvalidQuota, Quota};
pub use relent_core::{Admitted, LimiterConfig};
pub use service::{Admission, ResponseFuture};

pub(crate) use quota::{Identify, identify};
use shared::{Limits, Settings, Shared};

/// Admits requests at a rate: see the [module](self).
///
/// Its clones, and the services that it makes, share their limits. Without a quota it admits all whose
/// deadline has not passed.
#[derive(Clone)]
pub struct AdmissionLayer {
    settings: Settings,
    /// Made for the first service.
    shared: Arc<OnceLock<Arc<Shared>>>,
}

impl AdmissionLayer {
    /// A layer that keeps its limits in this process.
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

    /// A layer that shares its limits with other processes, in Redis.
    #[cfg(feature = "redis")]
    #[must_use]
    pub fn fleet(fleet: Fleet) -> Self {
        Self::new().with(|settings| settings.fleet = Some(Arc::new(fleet)))
    }

    /// The same with this quota behind those that it has; one of the same name is replaced. A request for which several
    /// of them count has to be admitted by all.
    #[must_use]
    pub fn quota(self, quota: Quota) -> Self {
        self.with(|settings| {
            settings.quotas.retain(|other| other.name != quota.name);
            settings.quotas.push(quota);
        })
    }

    /// Who gets slots of its own: what this function reads from a request, such as the account that whoever
    /// has authenticated it has left there. `None` by default, and for a request that cannot be told apart: then
    /// it gets a time at which there may be room, and holds nothing.
    ///
    /// See [who is a caller](self#who-is-a-caller).
    #[must_use]
    pub fn caller<K: Hash>(
        self,
        caller: impl Fn(&Parts) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        self.with(|settings| settings.caller = Some(identify(caller)))
    }

    /// How many requests this one counts as: 1 by default, and 0 counts as 1. One that costs more than the burst of a
    /// quota can never be admitted, and is told so.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u32 + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.cost = Some(Arc::new(cost)))
    }

    /// The clock by which limits in this process are kept: [`StdClock`] by default. For tests.
    #[must_use]
    pub fn clock(self, clock: impl Clock + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.clock = Arc::new(clock))
    }

    /// How many keys the quotas remember, and how many of their limiters were forgotten while they were in use, for want of
    /// [room](Quota::max_keys). Of limits in this process.
    #[must_use]
    pub fn keys(&self) -> (usize, u64) {
        match &self.shared().limits {
            Limits::Local(local) => local.keys(),
            #[cfg(feature = "redis")]
            Limits::Fleet(_) => (0, 0),
        }
    }

    /// The same with other settings, and limits of its own.
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
    type Service = Admission<I>;

    fn layer(&self, inner: I) -> Self::Service {
        Admission::new(inner, Arc::clone(self.shared()))
    }
}

impl fmt::Debug for AdmissionLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmissionLayer")
            .field("quotas", &self.settings.quotas)
            .finish_non_exhaustive()
    }
}
