//! Load shedding: a service serves as many requests concurrently as it can, queues a few, and rejects the others.
//!
//! The concurrency limit is adaptive ([`Concurrency`](relent_core::admission::Concurrency)); [`ConcurrencyLimiter`] decides which
//! requests wait and which are rejected. A request holds its slot until its response body has ended or its client has
//! disconnected, and for [60 s](OverloadLayer::slot_timeout) at most.
//!
//! An [idempotency layer](crate::idempotency) inside keeps the slot of a handler that continues after its client has
//! disconnected. It releases the slot of a duplicate that only waits, and of a request whose body is still to arrive.
//! Both wait for a slot again before their handler starts, and may be rejected then.
//!
//! # The response to a rejected request
//!
//! | reason | HTTP | gRPC (feature `grpc`) |
//! |---|---|---|
//! | too many requests | 503, `Retry-After` | `UNAVAILABLE`, pushback and `RetryInfo` |
//! | too many, and most attempts and most callers are retries | 503, do not retry, `relent-mark: overloaded` | `UNAVAILABLE`, pushback -1, `relent-mark: overloaded` |
//! | its caller's deadline has passed, perhaps while it waited | 504 | `DEADLINE_EXCEEDED` |
//!
//! These are header fields. The body is empty, unless the request accepts JSON: then it is a problem (RFC 9457). The
//! layer responds without reading the request body. If much of the body is left, an HTTP/1 server then closes the
//! connection. An idempotency layer never stores these responses.
//!
//! # Which requests are rejected first
//! The least important ones ([`Criticality`]). [`OverloadLayer::criticality`] sets the class of a route; all others
//! are `CRITICAL`. With the header `relent-criticality` a caller may lower the class of its request, but not raise
//! it, since any client could do so. If only your own services can send the header, use
//! [`trust_criticality`](OverloadLayer::trust_criticality); to ignore it, use
//! [`ignore_criticality`](OverloadLayer::ignore_criticality).
//!
//! Within a class, retries are rejected before first attempts. The client states the number of the attempt
//! (`relent-attempt`, `grpc-previous-rpc-attempts`). A client that always claims a first attempt gains only what it
//! would have without this rule.
//!
//! However many requests a client sends, its statements count as one. "Do not retry" takes a majority of
//! retries among the attempts, and among the latest attempts of the [callers](OverloadLayer::caller). Without callers
//! only retries get that response.
//! A client that lies about its attempts can then have the retries of other anonymous clients rejected for good. So
//! set a caller: the account, or the address where clients connect directly, as in the example. The address is not
//! the default: behind a proxy all clients have the address of the proxy, and one of them would count for all.
//!
//! # Limitations
//! [Exempt](OverloadLayer::exempt) health checks, and streams that last for hours, such as server-sent events.
//! Otherwise a stream holds a slot for [60 s](OverloadLayer::slot_timeout). A WebSocket releases its slot when the
//! connection is upgraded (101). The handler reads the body of a request without an idempotency key, so a slow upload
//! holds a slot meanwhile, for 60 s at most. A timeout inside ends both.
//!
//! ```
//! use std::net::SocketAddr;
//! use axum::{Router, extract::ConnectInfo, routing::get};
//! use relent_server::overload::{Criticality, OverloadLayer};
//!
//! let overload = OverloadLayer::default()
//!     // From `into_make_service_with_connect_info`. Behind a proxy, use the authenticated account.
//!     .caller(|parts| parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip()))
//!     .criticality(|parts| parts.uri.path().starts_with("/report").then_some(Criticality::Sheddable))
//!     .exempt(|parts| parts.uri.path() == "/health");
//! let app: Router = Router::new()
//!     .route("/price", get(|| async { "5" }))
//!     .route("/report", get(|| async { "all is well" }))
//!     .route("/health", get(|| async {}))
//!     .layer(overload);
//! ```

mod body;
mod refusal;
mod service;
mod settings;
mod slots;

use std::fmt;
use std::hash::{Hash, RandomState};
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use relent_core::PolicyError;
use relent_core::admission::ConcurrencyLimiter;
use tower_layer::Layer;

pub use body::SlotBody;
pub use relent_core::Criticality;
pub use relent_core::admission::{ConcurrencyConfig, ConcurrencyLimiterConfig, ShedderConfig};
pub use service::{Overload, OverloadFuture};
pub(crate) use slots::{HeldSlot, WeakSlot};

use settings::{Header, Settings};
use slots::Shared;

use crate::admission::identify;

/// Sheds load beyond the concurrency that the service can sustain: see the [module](self).
///
/// Clones of the layer, and the services that it creates, share their slots.
#[derive(Clone)]
pub struct OverloadLayer {
    shared: Arc<Shared>,
    settings: Arc<Settings>,
}

impl OverloadLayer {
    /// Creates a layer with this configuration.
    ///
    /// # Errors
    /// An invalid configuration: see [`ConcurrencyLimiter::new`].
    pub fn new(config: &ConcurrencyLimiterConfig) -> Result<Self, PolicyError> {
        let settings = Settings {
            criticality: Arc::new(|_| None),
            exempt: Arc::new(|_| false),
            caller: None,
            hashes: RandomState::new(),
            header: Header::Lowers,
        };
        Ok(Self {
            shared: Arc::new(Shared::new(ConcurrencyLimiter::new(config)?)),
            settings: Arc::new(settings),
        })
    }

    /// Sets the criticality of requests by route, method or authenticated account; [`Criticality::Critical`] by
    /// default.
    #[must_use]
    pub fn criticality(
        mut self,
        criticality: impl Fn(&Parts) -> Option<Criticality> + Send + Sync + 'static,
    ) -> Self {
        Arc::make_mut(&mut self.settings).criticality = Arc::new(criticality);
        self
    }

    /// Sets the function that identifies the caller of a request, such as by the authenticated account. `None` by
    /// default. All requests without a caller count as one caller, so a client that lies about its attempts has the
    /// retries of the others rejected. The [module](self) explains why the address is not the default.
    ///
    /// The service responds with "do not retry" only when most callers retry, so no single caller can cause that for
    /// the others.
    #[must_use]
    pub fn caller<K: Hash>(
        mut self,
        caller: impl Fn(&Parts) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        Arc::make_mut(&mut self.settings).caller = Some(identify(caller));
        self
    }

    /// Lets callers raise the criticality of their requests with `relent-criticality`. Use it only for a service that
    /// untrusted clients cannot reach.
    #[must_use]
    pub fn trust_criticality(mut self) -> Self {
        Arc::make_mut(&mut self.settings).header = Header::Trusted;
        self
    }

    /// Ignores `relent-criticality`.
    #[must_use]
    pub fn ignore_criticality(mut self) -> Self {
        Arc::make_mut(&mut self.settings).header = Header::Ignored;
        self
    }

    /// Lets requests through without a slot: health checks, streams that last for hours.
    #[must_use]
    pub fn exempt(mut self, exempt: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.settings).exempt = Arc::new(exempt);
        self
    }

    /// Sets how long a request may hold its slot: 60 s by default. After that the slot is free, and the request
    /// continues without one: it is a stream, or its client has stopped sending or reading. Set it above the duration
    /// of the slowest request that should count.
    #[must_use]
    pub fn slot_timeout(self, timeout: Duration) -> Self {
        self.shared.set_slot_timeout(timeout);
        self
    }

    /// Returns the number of requests that hold a slot.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.shared.with(ConcurrencyLimiter::in_flight)
    }

    /// Returns the number of requests that wait for a slot.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.shared.with(ConcurrencyLimiter::waiting)
    }

    /// Returns the current concurrency limit.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.shared.with(ConcurrencyLimiter::limit)
    }
}

impl Default for OverloadLayer {
    /// Uses [`ConcurrencyLimiterConfig::DEFAULT`].
    fn default() -> Self {
        #[allow(clippy::expect_used, reason = "the default is valid: a test makes it")]
        Self::new(&ConcurrencyLimiterConfig::DEFAULT).expect("the default is valid")
    }
}

impl<I> Layer<I> for OverloadLayer {
    type Service = Overload<I>;

    fn layer(&self, inner: I) -> Overload<I> {
        Overload::new(inner, Arc::clone(&self.shared), Arc::clone(&self.settings))
    }
}

impl fmt::Debug for OverloadLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OverloadLayer")
            .field("header", &self.settings.header)
            .finish_non_exhaustive()
    }
}
