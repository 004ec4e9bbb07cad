//! Webhook receiver: verifies messages, handles each once, and acknowledges it when it is handled.
//!
//! A sender repeats its message by a schedule until the receiver acknowledges it with a 2xx. So a message may arrive
//! several times, also concurrently, or never if the schedule ends. A [`WebhookLayer`] admits messages that a known key
//! has signed by [Standard Webhooks](relent_http::webhook). It uses the `webhook-id` as the key of
//! [`idempotency`](crate::idempotency), so one message has one effect.
//!
//! ```
//! use axum::{Extension, Router, http::StatusCode, routing::post};
//! use relent_http::webhook::{Verifier, VerifyingKey};
//! use relent_server::store::Memory;
//! use relent_server::webhook::{Delivery, WebhookLayer};
//!
//! async fn settle(Extension(delivery): Extension<Delivery>) -> StatusCode {
//!     println!("{} says {} bytes", delivery.id(), delivery.body().len());
//!     StatusCode::NO_CONTENT // From now on the message is acknowledged.
//! }
//!
//! // While the sender rotates its key, the receiver accepts the old one and the new one.
//! let keys: [VerifyingKey; 2] = [
//!     "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse()?,
//!     "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD".parse()?,
//! ];
//! let layer = WebhookLayer::new(Memory::new(), "acquirer", Verifier::new(keys));
//! let app: Router = Router::new().route("/notifications", post(settle)).layer(layer);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What happens to a delivery
//!
//! | the delivery | response |
//! |---|---|
//! | is cut off, or takes longer than [10 s](WebhookLayer::read_timeout) | 408 |
//! | is longer than [256 KiB](WebhookLayer::max_body) | 413 |
//! | lacks a field, has two identifiers or times, or an identifier with a full stop | 400 |
//! | has no valid signature, or a time more than 5 min from the [clock](WebhookLayer::clock) | 401 |
//! | is the first of its message | the handler runs |
//! | is of a message that was acknowledged | that acknowledgement, with `Idempotent-Replayed: true` |
//! | comes while the message is handled | it waits; after [`wait`](WebhookLayer::wait) it gets 503 with `Retry-After` |
//! | has the identifier of another message | 422, do not retry |
//! | is of a message whose outcome is unknown | 500, unless [`takeover`](WebhookLayer::takeover) says otherwise |
//! | cannot be recorded, because the store fails | 503 with `Retry-After` |
//!
//! Errors are `application/problem+json` with a member `code`. A 401 does not reveal the reason to the client; events
//! and metrics ([`observe`](crate::observe)) show it to the operator. A delivery during handling gets 503, and not
//! the 409 of an `Idempotency-Key`, since some senders [take 4xx for final][merge]. If the first delivery then
//! failed, the sender would not repeat it.
//!
//! # What the handler's response means
//!
//! | response | the message |
//! |---|---|
//! | 2xx | is acknowledged: it does not run again, and its duplicates get this response |
//! | 4xx but 408, 503 with `Retry-After` | was rejected without effect: the next delivery runs |
//! | 3xx, 408, 5xx, an error, a panic, a crash | may have taken effect: see [`takeover`](WebhookLayer::takeover) |
//! | with an [`Outcome`](crate::idempotency::Outcome) in its extensions | as the outcome says |
//!
//! A 408 with `Retry-After` is a rejection, too. A handler that may have taken effect before it rejects must set its
//! `Outcome`.
//!
//! A message is acknowledged only after the handler has completed and its response is recorded. If the store fails
//! for about 30 s, the sender gets the response anyway: the message has been handled, and another delivery would find
//! the outcome unknown. If the sender disconnects, the handler continues, and the next delivery gets its response.
//!
//! By default a message that may have taken effect does not run again, and an operator has to [resolve
//! it](WebhookLayer::unknown_outcomes). That is right for a handler that sends money. A handler that is idempotent,
//! such as one that sets a row to the content of the message, should use [`Takeover::Rerun`]. Best avoid the
//! question:
//!
//! # Transactional idempotency
//! If the effects are in the transaction of the record, no outcome is unknown. A handler that fails, panics or is
//! killed has no effect, and the next delivery runs. Every response but 2xx rolls back.
//!
//! ```
//! # #[cfg(feature = "sqlite")] {
//! use axum::{Extension, Router, http::{Response, StatusCode}, response::IntoResponse, routing::post};
//! use relent_server::transactional::{Transactional, WorkError};
//! use relent_server::store::Sqlite;
//! use relent_server::webhook::{Delivery, WebhookLayer};
//! # use relent_http::webhook::Verifier;
//!
//! async fn settle(
//!     Extension(once): Extension<Transactional<Sqlite>>,
//!     Extension(delivery): Extension<Delivery>,
//! ) -> impl IntoResponse {
//!     let settled = once.run(move |transaction| {
//!         transaction.execute("INSERT INTO payments (message) VALUES (?1)", [delivery.id()])?;
//!         Ok::<_, WorkError>(Response::new("success"))
//!     });
//!     settled.await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR) // Nothing has happened.
//! }
//!
//! # fn app(store: Sqlite, verifier: Verifier) -> Router {
//! let layer = WebhookLayer::new(store, "acquirer", verifier).transactional();
//! Router::new().route("/notifications", post(settle)).layer(layer)
//! # } }
//! ```
//!
//! On PostgreSQL the work is asynchronous:
//!
//! ```
//! # #[cfg(feature = "postgres")] {
//! # use axum::{Extension, http::{Response, StatusCode}, response::IntoResponse};
//! # use relent_server::transactional::{Transactional, WorkError};
//! # use relent_server::webhook::Delivery;
//! use relent_server::store::Postgres;
//!
//! async fn settle(
//!     Extension(once): Extension<Transactional<Postgres>>,
//!     Extension(delivery): Extension<Delivery>,
//! ) -> impl IntoResponse {
//!     let settled = once.run(|transaction| {
//!         let id = delivery.id().to_owned();
//!         Box::pin(async move {
//!             transaction.execute("INSERT INTO payments (message) VALUES ($1)", &[&id]).await?;
//!             Ok::<_, WorkError>(Response::new("success"))
//!         })
//!     });
//!     settled.await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
//! }
//! # }
//! ```
//!
//! # How long a message is remembered
//! [8 days](KEEP). A message that comes after its record has expired is handled again, so the record must outlive the
//! sender's repetitions. The longest schedule of the built-in presets is `standard-webhooks` with 83 h, including
//! jitter. The rest is for a sender that is stopped over a long weekend. A sender may repeat a message for longer:
//! `relent deliver` holds it while the endpoint is down or disabled, and its operator can resend it weeks later. Then
//! increase [`retention`](WebhookLayer::retention), and let the handler recognize what it has done.
//!
//! # The order of layers
//! Outside: tracing, rate limits and overload. Then this layer. Inside: a timeout, so that it ends the handler. No
//! layer outside may change the body: decompression, for example, invalidates every signature.
//!
//! [merge]: https://help.merge.dev/en/articles/5720975-automatic-webhook-retries

mod delivery;
mod path;
mod sender;
mod service;
mod settings;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::request::Parts;
use relent_core::idempotency::{ClaimConfig, InvalidClaimConfig, Takeover};
use relent_http::webhook::Verifier;
use tower_layer::Layer;

pub use delivery::Delivery;
pub use sender::Sender;
pub use service::Webhook;

use settings::Settings;

use crate::idempotency::request::uri;
use crate::idempotency::{IdempotencyLayer, Limits, UnknownOutcomes};
use crate::store::{Store, StoreFailure};

/// How long a message is remembered after it was acknowledged: 8 days, more than twice the longest published
/// schedule.
pub const KEEP: Duration = Duration::from_secs(8 * 24 * 3600);

/// Admits messages that a known sender has signed, each once: see the [module](self).
///
/// Clones of the layer, and the services that it creates, share their executions.
pub struct WebhookLayer<S> {
    engine: IdempotencyLayer<S>,
    settings: Settings,
}

impl<S: Store> WebhookLayer<S> {
    /// Creates a layer for the messages of one sender.
    #[must_use]
    pub fn new(store: S, name: impl Into<Arc<str>>, verifier: Verifier) -> Self {
        let least_keep = verifier.replay_window();
        let sender = Sender::new(name, verifier);
        let mut layer = Self::with(store, move |_| Some(sender.clone()), least_keep);
        layer.settings.shares = false;
        layer
    }

    /// Creates a layer for several senders. `sender` returns the claimed sender of a request, such as by its path,
    /// before the request is verified. It is called for each request, so keys can change at runtime. `None` gets the
    /// response of a wrong signature. A message is rejected with 500 if its sender's signatures are valid for longer
    /// than messages are [kept](Self::retention).
    #[must_use]
    pub fn for_senders(
        store: S,
        sender: impl Fn(&Parts) -> Option<Sender> + Send + Sync + 'static,
    ) -> Self {
        Self::with(store, sender, Duration::ZERO)
    }

    fn with(
        store: S,
        sender: impl Fn(&Parts) -> Option<Sender> + Send + Sync + 'static,
        least_keep: Duration,
    ) -> Self {
        Self {
            engine: IdempotencyLayer::of_webhooks(store, KEEP.max(least_keep)),
            settings: Settings {
                sender: Arc::new(sender),
                operation: Arc::new(|parts| path::canonical(uri(parts).path())),
                clock: Arc::new(SystemTime::now),
                max_body: 256 << 10,
                read_timeout: Duration::from_secs(10),
                least_keep,
                shares: true,
            },
        }
    }

    /// Sets the operation that a message is for, by default the path of the request. A sender that delivers one
    /// message to two endpoints uses the same `webhook-id` for both, and each has to handle it. Use a constant if the
    /// paths may change. Use it also if an outer router strips a prefix and leaves the same path for both, as axum's
    /// `nest` does. With the feature `axum` the default reads the whole path; without it a layer in a nested router
    /// needs an operation.
    ///
    /// The signature does not cover the path. The default normalizes percent-encoding. Still, an attacker who
    /// captured a message can replay it, while its timestamp is valid, on every other path that leads to a handler.
    /// So if the route has a wildcard, or the handler ignores parts of the path, return a constant or the parts that
    /// the handler uses.
    #[must_use]
    pub fn operation(
        mut self,
        operation: impl Fn(&Parts) -> String + Send + Sync + 'static,
    ) -> Self {
        self.settings.operation = Arc::new(operation);
        self
    }

    /// Sets the longest body of a message in bytes, 256 KiB by default. Standard Webhooks asks for less than 20 kB,
    /// and senders with a limit allow up to 256 KiB. A longer one is rejected with 413.
    #[must_use]
    pub const fn max_body(mut self, bytes: usize) -> Self {
        self.settings.max_body = bytes;
        self
    }

    /// Sets the longest time for a body to arrive: 10 s by default, less than the 15 to 30 s that a sender waits for
    /// its acknowledgement. A slower one is rejected with 408.
    #[must_use]
    pub const fn read_timeout(mut self, timeout: Duration) -> Self {
        self.settings.read_timeout = timeout;
        self
    }

    /// Sets the clock that determines the age of a delivery: the system's by default.
    #[must_use]
    pub fn clock(mut self, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.settings.clock = Arc::new(clock);
        self
    }

    /// Sets how long a message is remembered after the last write of its record: [8 days](KEEP) by default, or the
    /// [window](Verifier::replay_window) of its signature if longer. It must exceed the sender's schedule, or a
    /// message is handled twice.
    ///
    /// # Errors
    /// `retention` is zero, or shorter than the window of a signature (10 min unless the verifier says otherwise). An
    /// attacker with a copy of a message could then replay it after its record has expired.
    pub fn retention(self, retention: Duration) -> Result<Self, InvalidClaimConfig> {
        let least = self.settings.least_keep;
        ClaimConfig {
            retention,
            ..ClaimConfig::DEFAULT
        }
        .check_retention(least)?;
        self.claim(|claim| claim.retention = retention)
    }

    /// Sets the lease of a handler: 30 s by default. It is renewed while the process lives. After a crash, deliveries
    /// get 503 with `Retry-After` until the lease has expired.
    ///
    /// # Errors
    /// `lease` is zero.
    pub fn lease(self, lease: Duration) -> Result<Self, InvalidClaimConfig> {
        self.claim(|claim| claim.lease = lease)
    }

    fn claim(mut self, change: impl FnOnce(&mut ClaimConfig)) -> Result<Self, InvalidClaimConfig> {
        self.engine = self.engine.change_claim(change)?;
        Ok(self)
    }

    /// Sets the action of the next delivery when a message may have taken effect: [`Takeover::Refuse`] by default.
    #[must_use]
    pub fn takeover(mut self, takeover: Takeover) -> Self {
        self.engine = self.engine.takeover(takeover);
        self
    }

    /// Sets how long a delivery waits for another one of its message before it is rejected with 503: 2 s by default.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.engine = self.engine.wait(wait);
        self
    }

    /// Calls `callback` when a call of the store has failed with all its attempts:
    /// [`IdempotencyLayer::on_store_failure`](crate::idempotency::IdempotencyLayer::on_store_failure).
    #[must_use]
    pub fn on_store_failure(
        mut self,
        callback: impl Fn(&StoreFailure) + Send + Sync + 'static,
    ) -> Self {
        self.engine = self.engine.on_store_failure(callback);
        self
    }

    /// Sets limits of time, executions and memory for messages; [`Limits::DEFAULT`] by default.
    /// [`read_timeout`](Self::read_timeout) replaces [`Limits::read`]. With several senders each has its own share.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.engine = self.engine.limits(limits);
        self
    }

    /// Lets the handler record the message in the transaction of its effects, by
    /// [`Transactional`](crate::transactional::Transactional) in the extensions. If a handler acknowledges a message that
    /// it has not recorded, the sender gets 500, since it would not deliver the message again. The same holds if the
    /// transaction was rolled back. To acknowledge a message without a record, add
    /// [`Outcome::NotApplied`](crate::idempotency::Outcome) to the 2xx.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    #[must_use]
    pub fn transactional(mut self) -> Self {
        self.engine = self.engine.transactional();
        self
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &S {
        self.engine.store()
    }

    /// Finds and resolves messages whose outcome is unknown. To resolve one as applied, pass a 2xx
    /// [`StoredResponse`](crate::store::StoredResponse), so that the sender gets an acknowledgement.
    #[must_use]
    pub fn unknown_outcomes(&self) -> UnknownOutcomes<S> {
        self.engine.unknown_outcomes()
    }

    /// Waits until no handler of a message runs, for up to [30 s](Limits::drain), and returns the number of tasks
    /// left. Call it at shutdown, after the server has stopped accepting requests. A message that is cut off then has
    /// an unknown outcome, unless it is [transactional](crate::webhook#transactional-idempotency).
    pub async fn drain(&self) -> usize {
        self.engine.drain().await
    }
}

impl<S> Clone for WebhookLayer<S> {
    fn clone(&self) -> Self {
        Self {
            engine: self.engine.clone(),
            settings: self.settings.clone(),
        }
    }
}

impl<S: Store, I> Layer<I> for WebhookLayer<S> {
    type Service = Webhook<I, S>;

    fn layer(&self, inner: I) -> Self::Service {
        Webhook::new(inner, self.engine.server(), self.settings.clone())
    }
}

impl<S> fmt::Debug for WebhookLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookLayer")
            .field("engine", &self.engine)
            .field("max_body", &self.settings.max_body)
            .field("read_timeout", &self.settings.read_timeout)
            .finish_non_exhaustive()
    }
}
