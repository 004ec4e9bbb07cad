//! A service serves as many requests at once as it can, lets a few wait, and turns the others away at once.
//!
//! How many it serves at once is found out ([`Concurrency`](relent_core::slots::Concurrency)); who waits and who is turned
//! away is decided by [`Slots`]. A request holds its slot until the body of its answer has ended, or its client has gone,
//! and [no longer than 60 s](OverloadLayer::slot_timeout). An [idempotency layer](crate::idempotency) inside keeps the
//! slot of what runs on when its client has gone. It gives up that of a duplicate that only waits, and that of a request
//! whose body is still to come: when the body is there, the request waits for a slot again, and may be turned away.
//!
//! # The response to a request that is refused
//!
//! | why | HTTP | gRPC (feature `grpc`) |
//! |---|---|---|
//! | too many | 503, `Retry-After` | `UNAVAILABLE`, pushback and `RetryInfo` |
//! | too many, and most attempts of most callers are retries | 503, do not retry, `relent-mark: overloaded` | `UNAVAILABLE`, pushback -1, `relent-mark: overloaded` |
//! | its caller's deadline has passed, perhaps while it waited | 504 | `DEADLINE_EXCEEDED` |
//!
//! These are fields. The body is empty, unless the request accepts JSON: then it is the problem (RFC 9457).
//! A request is answered without a look at its body, which may still be on its way: over HTTP/1 the server then closes the
//! connection if much of it is left. An idempotency layer never stores these answers.
//!
//! # Who is turned away first
//! What matters least ([`Criticality`]): that of the route, by [`OverloadLayer::criticality`], `CRITICAL` for all others. The
//! caller may say with the header `relent-criticality` that its request matters less, and no more: for anybody could say
//! so. Where only services of your own can send the header, [`trust_criticality`](OverloadLayer::trust_criticality);
//! to ignore it, [`ignore_criticality`](OverloadLayer::ignore_criticality). Of one class retries go before first attempts. Which
//! attempt a request is, is what its client says (`relent-attempt`, `grpc-previous-rpc-attempts`): one that lies is
//! treated as everybody was before.
//!
//! What a client says of itself counts for others as one request, however many it sends. "Do not retry" takes
//! a majority of the [callers](OverloadLayer::caller) whose latest attempt is a retry. Without callers only retries get that
//! answer. A client that lies about its attempts can then have the retries of other anonymous clients refused for good, so
//! set a caller: the account, or the address where clients connect directly, as in the example. The layer does not take the
//! address by itself. Behind a proxy all clients have that of the proxy, and one of them would speak for all.
//!
//! # What it is not for
//! Streams that last for hours, such as server-sent events, and health checks: [`exempt`](OverloadLayer::exempt) them.
//! A stream that is not exempt holds a slot for [60 s](OverloadLayer::slot_timeout). A WebSocket holds none: its slot is
//! free when the connection is upgraded (101). The body of a request without an idempotency key is read by its handler,
//! so a slow upload holds a slot for as long as the handler reads, and for 60 s at most. A timeout inside ends both.
//!
//! ```
//! use std::net::SocketAddr;
//! use axum::{Router, extract::ConnectInfo, routing::get};
//! use relent_server::overload::{Criticality, OverloadLayer};
//!
//! let overload = OverloadLayer::default()
//!     // From `into_make_service_with_connect_info`. Behind a proxy: the account that authentication has found.
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
mod held;
mod refusal;
mod service;
mod settings;

use std::fmt;
use std::hash::{Hash, RandomState};
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use relent_core::PolicyError;
use relent_core::slots::Slots;
use tower_layer::Layer;

pub use body::SlotBody;
pub(crate) use held::{Held, SlotOf};
pub use relent_core::slots::{ConcurrencyConfig, SlotsConfig};
pub use relent_core::{Criticality, ShedderConfig};
pub use service::{Answering, Overload};

use held::Shared;
use settings::{Header, Settings};

use crate::admission::identify;

/// Serves as many requests at once as the service can: see the [module](self).
///
/// Its clones, and the services that it makes, share their slots.
#[derive(Clone)]
pub struct OverloadLayer {
    shared: Arc<Shared>,
    settings: Arc<Settings>,
}

impl OverloadLayer {
    /// A layer with these bounds.
    ///
    /// # Errors
    /// What [`Slots::new`] refuses.
    pub fn new(config: &SlotsConfig) -> Result<Self, PolicyError> {
        let settings = Settings {
            criticality: Arc::new(|_| None),
            exempt: Arc::new(|_| false),
            caller: None,
            hashes: RandomState::new(),
            header: Header::Lowers,
        };
        Ok(Self {
            shared: Arc::new(Shared::new(Slots::new(config)?)),
            settings: Arc::new(settings),
        })
    }

    /// How much a request matters, if that is not usual ([`Criticality::Critical`]): by its route, its method,
    /// or whoever has been authenticated before this layer.
    #[must_use]
    pub fn criticality(
        mut self,
        criticality: impl Fn(&Parts) -> Option<Criticality> + Send + Sync + 'static,
    ) -> Self {
        Arc::make_mut(&mut self.settings).criticality = Arc::new(criticality);
        self
    }

    /// Identifies the caller of a request, such as by the account that authentication has left there. `None` by default,
    /// and for a request that cannot be told apart: all those are one caller, so one that lies about its attempts has the
    /// retries of the others refused. The [module](self) says why the address is no default.
    ///
    /// The service answers "do not retry" where most callers retry, so that no single caller can bring that about for the others.
    #[must_use]
    pub fn caller<K: Hash>(
        mut self,
        caller: impl Fn(&Parts) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        Arc::make_mut(&mut self.settings).caller = Some(identify(caller));
        self
    }

    /// Callers may say with `relent-criticality` that their requests matter more than usual. Only for a service that
    /// strangers cannot reach.
    #[must_use]
    pub fn trust_criticality(mut self) -> Self {
        Arc::make_mut(&mut self.settings).header = Header::Trusted;
        self
    }

    /// What callers say with `relent-criticality` is not looked at.
    #[must_use]
    pub fn ignore_criticality(mut self) -> Self {
        Arc::make_mut(&mut self.settings).header = Header::Ignored;
        self
    }

    /// Requests that go through without a slot: health checks, streams that last for hours.
    #[must_use]
    pub fn exempt(mut self, exempt: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.settings).exempt = Arc::new(exempt);
        self
    }

    /// How long a request may hold its slot: 60 s by default. After that the slot is free for another, and the request
    /// goes on without one: it is a stream, or its client has stopped to send or to read. Longer than the slowest
    /// request that is to count; a service of which requests take minutes needs more.
    #[must_use]
    pub fn slot_timeout(self, timeout: Duration) -> Self {
        self.shared.set_slot_timeout(timeout);
        self
    }

    /// How many requests are served at the moment: those that hold a slot.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.shared.with(Slots::in_flight)
    }

    /// How many requests wait at the moment.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.shared.with(Slots::waiting)
    }

    /// How many requests may be served at once at the moment.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.shared.with(Slots::limit)
    }
}

impl Default for OverloadLayer {
    /// With [`SlotsConfig::DEFAULT`].
    fn default() -> Self {
        #[allow(clippy::expect_used, reason = "the default is valid: a test makes it")]
        Self::new(&SlotsConfig::DEFAULT).expect("the default is valid")
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
