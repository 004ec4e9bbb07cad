//! Webhooks are verified, handled once, and acknowledged when that is done.
//!
//! A sender repeats its message by a schedule until the receiver acknowledges it with a 2xx (R4.3). So each message
//! comes at least once, often twice, and sometimes twice at the same time. A [`WebhookLayer`] lets through what a known
//! key has signed by [Standard Webhooks](relent_http::webhook), and drives the engine of
//! [`idempotency`](crate::idempotency) with the `webhook-id` as the key: one message has one effect.
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
//! // While the sender changes its key the receiver believes the old one and the new one.
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
//! | the delivery | answer |
//! |---|---|
//! | is cut off, or not whole in [10 s](WebhookLayer::read_timeout) | 408 |
//! | is longer than [256 KiB](WebhookLayer::max_body) | 413 |
//! | lacks a field, has two identifiers or times, or an identifier with a full stop | 400 |
//! | is signed by nobody known, or more than 5 min from the [time here](WebhookLayer::clock) | 401 |
//! | is the first of its message | the handler runs |
//! | is of a message that was acknowledged | that acknowledgement, with `Idempotent-Replayed: true` |
//! | comes while the message is handled | waits for it; after [`wait`](WebhookLayer::wait) 503 with `Retry-After` |
//! | has the identifier of another message | 422, do not retry |
//! | is of a message whose outcome is unknown | 500, unless [`takeover`](WebhookLayer::takeover) says otherwise |
//! | meets a store that fails | 503 with `Retry-After` |
//!
//! Problems are `application/problem+json` with a member `code`. A 401 does not say what failed: a stranger would learn
//! from it, and events and metrics ([`observe`](crate::observe)) tell the operator. In-flight is 503 and not the 409 of
//! an `Idempotency-Key`, since some senders [take 4xx for final][merge]: should the first delivery then fail, nobody
//! would repeat it.
//!
//! # What the handler's answer means
//!
//! | answer | the message |
//! |---|---|
//! | 2xx | is acknowledged: it does not run again, and its repetitions get this answer |
//! | 4xx but 408, 503 with `Retry-After` | was refused, and has had no effect: the next delivery runs |
//! | 3xx, 408, 5xx, an error, a panic, a crash | may have had its effect: [`takeover`](WebhookLayer::takeover) |
//! | with an [`Outcome`](crate::idempotency::Outcome) in its extensions | as that says |
//!
//! A 408 with `Retry-After` is a refusal, too. A handler that may have had an effect before it answers with a
//! refusal says so by its `Outcome`.
//!
//! Nothing is acknowledged before the handler is done and its answer is recorded. If the store fails at that for about
//! 30 s, the sender gets the answer all the same: the message has been handled, and another delivery of it would find
//! the outcome unknown. A sender that goes away ends nothing: the handler runs on, and the next delivery gets its answer.
//!
//! What may have had its effect is not run again by default, and needs an operator, who
//! [resolves it](WebhookLayer::unknown_outcomes). That is right for a handler which
//! sends money, and wrong for one which sets a row to what the message says: give that [`Takeover::Rerun`]. Best is not to
//! have the question:
//!
//! # Exactly once
//! With the effects in the transaction of the record nothing is unknown: a handler that fails, panics or is killed has
//! done nothing, and the next delivery runs. Everything but 2xx rolls back.
//!
//! ```
//! # #[cfg(feature = "sqlite")] {
//! use axum::{Extension, Router, http::{Response, StatusCode}, response::IntoResponse, routing::post};
//! use relent_server::exactly_once::{ExactlyOnce, WorkError};
//! use relent_server::store::Sqlite;
//! use relent_server::webhook::{Delivery, WebhookLayer};
//! # use relent_http::webhook::Verifier;
//!
//! async fn settle(
//!     Extension(once): Extension<ExactlyOnce<Sqlite>>,
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
//! let layer = WebhookLayer::new(store, "acquirer", verifier).exactly_once();
//! Router::new().route("/notifications", post(settle)).layer(layer)
//! # } }
//! ```
//!
//! It is the same on PostgreSQL, where the work is asynchronous:
//!
//! ```
//! # #[cfg(feature = "postgres")] {
//! # use axum::{Extension, http::{Response, StatusCode}, response::IntoResponse};
//! # use relent_server::exactly_once::{ExactlyOnce, WorkError};
//! # use relent_server::webhook::Delivery;
//! use relent_server::store::Postgres;
//!
//! async fn settle(
//!     Extension(once): Extension<ExactlyOnce<Postgres>>,
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
//! [8 days](KEEP). A message that comes after its record has gone is handled again, so the record has to outlive the
//! longest schedule: of the built-in presets that is `standard-webhooks` with 83 h, its jitter included. The rest is for a
//! sender that is stopped over a long weekend and goes on where it was. A sender that repeats by hand what is older needs
//! more: [`keep`](WebhookLayer::keep).
//!
//! # The order of layers
//! Tracing, rate limits and overload outside; this layer; a timeout inside, so that it ends the handler. Nothing outside
//! may change the body: a layer that decompresses it makes every signature wrong.
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
use relent_core::claim::{ClaimConfig, InvalidClaimConfig, Takeover};
use relent_http::webhook::Verifier;
use tower_layer::Layer;

pub use delivery::Delivery;
pub use sender::Sender;
pub use service::Webhook;

use settings::Settings;

use crate::idempotency::request::uri;
use crate::idempotency::{IdempotencyLayer, Limits, UnknownOutcomes};
use crate::store::{Store, StoreFailure};

/// How long a message is remembered after it was acknowledged: 8 days, more than twice the longest published schedule.
pub const KEEP: Duration = Duration::from_secs(8 * 24 * 3600);

/// Lets messages through that a known sender has signed, each once: see the [module](self).
///
/// Its clones, and the services that it makes, share their executions.
pub struct WebhookLayer<S> {
    engine: IdempotencyLayer<S>,
    settings: Settings,
}

impl<S: Store> WebhookLayer<S> {
    /// For the messages of one sender.
    #[must_use]
    pub fn new(store: S, name: impl Into<Arc<str>>, verifier: Verifier) -> Self {
        let least_keep = verifier.replay_window();
        let sender = Sender::new(name, verifier);
        let mut layer = Self::with(store, move |_| Some(sender.clone()), least_keep);
        layer.settings.shares = false;
        layer
    }

    /// For several senders: `sender` tells by the head of a request whose message it says it is, such as by its path,
    /// before anything of that is believed. It is asked for each request, so keys can change while the service runs.
    /// `None` is answered as a wrong signature is. A message of a sender whose signatures are good for longer than
    /// messages are [kept](Self::keep) is refused (500).
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

    /// What a message is for, by default the path of the request: a sender that delivers one message to two endpoints
    /// uses one `webhook-id` for both, and each has to handle it. Give each a constant if their paths may change, or if a
    /// router outside of this layer takes a prefix away and leaves the same for both. axum's `nest` does; with the
    /// feature `axum` the default reads the whole path all the same, and without it a layer in a nested router needs this.
    ///
    /// The signature does not cover the path. The default reads one path in whatever way it is percent-encoded, but whoever
    /// has overheard a message can bring it, for as long as its time counts, to each other path that leads to a handler. So a
    /// handler whose route has a wildcard, or that does not look at all parts of the path, needs a constant or the parts
    /// that it does look at.
    #[must_use]
    pub fn operation(
        mut self,
        operation: impl Fn(&Parts) -> String + Send + Sync + 'static,
    ) -> Self {
        self.settings.operation = Arc::new(operation);
        self
    }

    /// The longest body of a message, in bytes: 256 KiB by default. Standard Webhooks asks for less than 20 kB, and
    /// senders that have a limit have one up to 256 KiB. A longer one is refused (413).
    #[must_use]
    pub const fn max_body(mut self, bytes: usize) -> Self {
        self.settings.max_body = bytes;
        self
    }

    /// How long a body may take to arrive: 10 s by default, less than the 15 to 30 s that a sender waits for its
    /// acknowledgement. A slower one is refused (408).
    #[must_use]
    pub const fn read_timeout(mut self, timeout: Duration) -> Self {
        self.settings.read_timeout = timeout;
        self
    }

    /// The clock that tells how old a delivery is: the system's by default.
    #[must_use]
    pub fn clock(mut self, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.settings.clock = Arc::new(clock);
        self
    }

    /// How long a message is remembered after its record was last written: [8 days](KEEP) by default, and the
    /// [window](Verifier::replay_window) of its signature if that is longer. Longer than the sender repeats it, or it is
    /// handled twice.
    ///
    /// # Errors
    /// It is zero, or shorter than the window of a signature (10 min unless the verifier says otherwise): an attacker
    /// with a copy of a message could replay it when it is forgotten.
    pub fn keep(self, keep: Duration) -> Result<Self, InvalidClaimConfig> {
        let least = self.settings.least_keep;
        ClaimConfig {
            keep,
            ..ClaimConfig::DEFAULT
        }
        .check_keep(least)?;
        self.claim(|claim| claim.keep = keep)
    }

    /// How long a handler that says nothing is believed to run: 30 s by default. It says so by itself while its process
    /// lives; after a crash deliveries get "come back later" for as long.
    ///
    /// # Errors
    /// It is zero.
    pub fn lease(self, lease: Duration) -> Result<Self, InvalidClaimConfig> {
        self.claim(|claim| claim.lease = lease)
    }

    fn claim(mut self, change: impl FnOnce(&mut ClaimConfig)) -> Result<Self, InvalidClaimConfig> {
        self.engine = self.engine.change_claim(change)?;
        Ok(self)
    }

    /// What the next delivery does when a message may have had its effect: [`Takeover::Refuse`] by default.
    #[must_use]
    pub fn takeover(mut self, takeover: Takeover) -> Self {
        self.engine = self.engine.takeover(takeover);
        self
    }

    /// How long a delivery waits for another one of its message before it is refused (503): 2 s by default.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.engine = self.engine.wait(wait);
        self
    }

    /// Calls this whenever a call of the store has failed with all its attempts:
    /// [`IdempotencyLayer::on_store_failure`](crate::idempotency::IdempotencyLayer::on_store_failure).
    #[must_use]
    pub fn on_store_failure(
        mut self,
        callback: impl Fn(&StoreFailure) + Send + Sync + 'static,
    ) -> Self {
        self.engine = self.engine.on_store_failure(callback);
        self
    }

    /// How much time, how many executions and how much memory messages may take; [`Limits::DEFAULT`] by default, but for
    /// [`Limits::read`], in whose place there is [`read_timeout`](Self::read_timeout). Each of several senders has a share
    /// of its own.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.engine = self.engine.limits(limits);
        self
    }

    /// Messages are recorded by their handler, in the transaction of its effects: by
    /// [`ExactlyOnce`](crate::exactly_once::ExactlyOnce), which is in the extensions of each request. A handler that
    /// acknowledges what it has not recorded by it gets 500, also if its transaction was rolled back and it does not say
    /// so: nobody would deliver the message again. For one that is nothing to it, it adds
    /// [`Outcome::NotApplied`](crate::idempotency::Outcome) to its 2xx.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    #[must_use]
    pub fn exactly_once(mut self) -> Self {
        self.engine = self.engine.exactly_once();
        self
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &S {
        self.engine.store()
    }

    /// The messages of which nobody knows whether they had their effect: to find them, and to say what has come of them. Of
    /// one that was applied the [`Answer`](crate::store::Answer) is a 2xx, so that it is acknowledged.
    #[must_use]
    pub fn unknown_outcomes(&self) -> UnknownOutcomes<S> {
        self.engine.unknown_outcomes()
    }

    /// Waits until no handler of a message runs any more, and [30 s](Limits::drain) at most; how many of their tasks are
    /// left. For the end of a server, when it takes no requests any more: what is cut off then has an unknown outcome, unless
    /// it is [exactly once](crate::webhook#exactly-once).
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
